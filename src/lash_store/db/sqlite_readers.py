"""Threads that read, each on a connection of its own. They never wait for the writer."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from lash_store.db.sqlite_connection import Engine
from lash_store.db.sqlite_writer import Work, closed

_log = logging.getLogger("lash_store")


class Readers:
    """A pool that grows to `count` threads as reads overlap."""

    def __init__(self, connect: Callable[[], Engine], count: int) -> None:
        self._connect = connect
        self._count = count
        self._queue: deque[Work] = deque()
        self._changed = threading.Condition()
        self._idle = 0
        self._closed = False
        self._threads: list[threading.Thread] = []

    def submit(self, work: Work) -> None:
        with self._changed:
            if self._closed:
                raise closed()
            self._queue.append(work)
            if len(self._queue) > self._idle and len(self._threads) < self._count:
                self._grow()
            self._changed.notify()

    def close(self) -> None:
        """Finish the reads that were submitted, then close the connections."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _grow(self) -> None:
        thread = threading.Thread(target=self._main, name=f"lash-store-reader-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _main(self) -> None:
        engine: Engine | None = None
        while (work := self._next()) is not None:
            try:
                engine = engine or self._connect()
            except Exception as error:  # noqa: BLE001 - it is the answer; the next read tries to connect again
                work.refuse(error)
                continue
            read(engine, work)
        if engine is not None:
            engine.close()

    def _next(self) -> Work | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._queue or self._closed)
            self._idle -= 1
            return self._queue.popleft() if self._queue else None


def read(engine: Engine, work: Work) -> None:
    """Run one operation in a transaction of its own, so that all its statements see one snapshot."""
    if not work.start():
        return
    try:
        engine.begin("BEGIN")
        work.result = engine.run(work.call).result
    except Exception as error:  # noqa: BLE001 - kept as the operation's answer
        work.error = engine.translate(error)
    engine.rollback()  # nothing was written; this only lets the snapshot go
    work.answer()
