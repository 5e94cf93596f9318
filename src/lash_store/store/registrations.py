"""Registrations this process has read: they never change, so an append need not read them again."""

from __future__ import annotations

import threading
from collections import OrderedDict

from lash_store.model.process import Registration

HELD_MAX = 4_096  # processes one worker appends to in turn


class Registrations:
    """A bounded memory of registrations and their hashes by process id, shared by all threads of a store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[str, tuple[Registration, bytes]] = OrderedDict()

    def get(self, process_id: str) -> tuple[Registration, bytes] | None:
        """The registration and its hash, if they are held."""
        with self._lock:
            found = self._held.get(process_id)
            if found is not None:
                self._held.move_to_end(process_id)
            return found

    def put(self, process_id: str, registration: tuple[Registration, bytes]) -> None:
        """Hold a registration; the one used longest ago makes room."""
        with self._lock:
            self._held[process_id] = registration
            self._held.move_to_end(process_id)
            if len(self._held) > HELD_MAX:
                self._held.popitem(last=False)

    def drop(self, process_id: str) -> None:
        """Forget a registration that turned out to be another one."""
        with self._lock:
            self._held.pop(process_id, None)
