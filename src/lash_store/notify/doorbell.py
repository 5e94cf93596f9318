"""Waking across processes on SQLite: a file beside the database to which every writer appends one byte after its COMMIT.

The size of the file counts the rings, so a store tells its own rings from those of others and looks only after the latter.
The file is watched with inotify; where there is none, `PRAGMA data_version` is polled instead.
The `-wal` file cannot serve as a doorbell: watching it loses wake-ups.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import apsw

from lash_store.notify.hub import Hub, Pace

log = logging.getLogger("lash_store")

BELL_MAX_BYTES = 1 << 20  # the file starts again at zero here; it is a counter, not a log
QUIET_S = 0.005  # rings this close together share one look: a busy writer cannot make the watchers spin
POLL_S = 0.05  # data_version: half of it is the mean latency without inotify

IN_MODIFY, IN_ATTRIB, IN_DELETE_SELF, IN_MOVE_SELF = 0x2, 0x4, 0x400, 0x800
IN_NONBLOCK, IN_CLOEXEC = getattr(os, "O_NONBLOCK", 0), getattr(os, "O_CLOEXEC", 0)


class Bell:
    """The doorbell of one store: rung by its writer, read by its watcher."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd: int | None = None
        self._own = 0
        self._seen: int | None = None
        self._lock = threading.Lock()

    def ring(self) -> None:
        """Append one byte. A bell that cannot ring costs the others a slow look, never the commit."""
        with self._lock:
            try:
                self._append()
            except OSError as error:
                log.warning("cannot ring the doorbell %s (%s); other processes look by themselves", self.path, error.strerror)

    def foreign(self) -> bool:
        """Whether another store rang since the last call; the first call says yes."""
        with self._lock:
            rings = os.fstat(self._open()).st_size - self._own
            changed, self._seen = rings != self._seen, rings
            return changed

    def ensure(self) -> None:
        """Make the file, if it is not there."""
        with self._lock:
            self._open()

    def close(self) -> None:
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
            self._fd = None

    def _append(self) -> None:
        fd = self._open()
        if os.fstat(fd).st_size >= BELL_MAX_BYTES:
            os.ftruncate(fd, 0)
        self._own += os.write(fd, b"!")

    def _open(self) -> int:
        if self._fd is not None and os.fstat(self._fd).st_nlink > 0:
            return self._fd
        if self._fd is not None:  # somebody deleted the file: others watch its successor
            os.close(self._fd)
            self._fd = None
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | IN_CLOEXEC
        self._fd = os.open(self.path, flags, 0o600)
        return self._fd


class Signal(Protocol):
    """How a watcher learns that another process committed: a descriptor that becomes readable, or a period to ask in."""

    @property
    def fd(self) -> int | None: ...
    @property
    def poll_s(self) -> float | None: ...
    def rung(self) -> bool: ...
    def close(self) -> None: ...


class Inotify:
    """The doorbell file, watched by the kernel."""

    poll_s = None

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._libc: Any = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError(errno.ENOSYS, "no inotify on this system")
        self.fd: int | None = self._checked(self._libc.inotify_init1(IN_NONBLOCK | IN_CLOEXEC))
        try:
            self._watch()
        except OSError:
            self.close()
            raise

    def rung(self) -> bool:
        """Empty the queue of events, and tell whether somebody else rang."""
        assert self.fd is not None
        try:
            while os.read(self.fd, 4096):
                pass
        except BlockingIOError:
            pass
        # Watch before counting: a ring between the two shows in one of them.
        self._watch()
        return self._bell.foreign()

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
        self.fd = None

    def _watch(self) -> None:
        # Watching twice is idempotent, and follows a file that was deleted and made anew.
        self._bell.ensure()
        mask = IN_MODIFY | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF
        self._checked(self._libc.inotify_add_watch(self.fd, os.fsencode(self._bell.path), mask))

    def _checked(self, result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


class DataVersion:
    """Where inotify is missing or used up: ask SQLite whether another connection committed."""

    fd = None
    poll_s = POLL_S

    def __init__(self, path: str) -> None:
        self._connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        self._seen: object = None

    def rung(self) -> bool:
        version = self._connection.pragma("data_version")
        changed, self._seen = version != self._seen, version
        return changed

    def close(self) -> None:
        self._connection.close()


class Silent:
    """No other process can commit (`:memory:`), or none can be heard: only the slow look remains."""

    fd = None
    poll_s = None

    def rung(self) -> bool:
        return False

    def close(self) -> None:
        return None


def best_signal(path: str, bell: Bell | None) -> Signal:
    """The fastest way to hear other processes that works here."""
    if bell is None:
        return Silent()
    try:
        return Inotify(bell)
    except OSError as error:
        log.info("no inotify for %s (%s); polling data_version every %d ms", bell.path, error.strerror, POLL_S * 1000)
    try:
        return DataVersion(path)
    except apsw.Error as error:
        log.warning("cannot poll data_version (%s); waiting by slow look only", type(error).__name__)
        return Silent()


class Watcher:
    """One thread per store that looks for all waiters: when another process rings, and at a slow pace always.

    It starts with the first subscription, sleeps without a timeout while nobody waits, and ends with the store.
    """

    def __init__(self, hub: Hub[Any], look: Callable[[Sequence[str]], None], listen: Callable[[], Signal]) -> None:
        self._hub = hub
        self._look = look
        self._listen = listen
        self._pace = Pace()
        self._lock = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._quiet_until_s = 0.0
        self._inbox, self._nudges = socket.socketpair()
        self._inbox.setblocking(False)
        self._nudges.setblocking(False)

    def nudge(self) -> None:
        """A subscription appeared: start watching, or watch at the first pace again."""
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lash-store-watch", daemon=True)
                self._thread.start()
            self._wake()

    def close(self) -> None:
        """End the thread. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._wake()
        if self._thread is not None:
            self._thread.join()
        self._inbox.close()
        self._nudges.close()

    def _wake(self) -> None:
        try:
            self._nudges.send(b"!")
        except BlockingIOError:
            pass  # it is full of nudges already

    def _run(self) -> None:
        signal = self._listen()
        with selectors.DefaultSelector() as nudged, selectors.DefaultSelector() as woken:
            nudged.register(self._inbox, selectors.EVENT_READ)
            woken.register(self._inbox, selectors.EVENT_READ)
            if signal.fd is not None:
                woken.register(signal.fd, selectors.EVENT_READ)
            try:
                self._rung(signal)
                self._look(self._hub.kinds())  # for what happened before the bell was watched
                while not self._closed:
                    self._sleep(signal, nudged, woken)
                    self._turn(signal)
            finally:
                signal.close()

    def _turn(self, signal: Signal) -> None:
        """Look for everybody whom what happened may concern."""
        rung = self._rung(signal)
        kinds = self._hub.kinds()
        due = self._pace.due(kinds, time.monotonic())
        unsure = self._hub.rouse(kinds) if rung else due
        if unsure:
            self._look(unsure)

    def _rung(self, signal: Signal) -> bool:
        try:
            return signal.rung()
        except (OSError, apsw.Error) as error:
            log.warning("the doorbell cannot be read (%s); waiting by slow look", type(error).__name__)
            return False

    def _sleep(self, signal: Signal, nudged: selectors.BaseSelector, woken: selectors.BaseSelector) -> None:
        now_s = time.monotonic()
        wait_s = self._pace.wait_s(self._hub.kinds(), now_s)
        if wait_s is None:  # nobody waits: rings are of no interest
            events = nudged.select()
        elif now_s < self._quiet_until_s:
            events = nudged.select(self._quiet_until_s - now_s)
        else:
            events = woken.select(wait_s if signal.poll_s is None else min(wait_s, signal.poll_s))
            self._quiet_until_s = time.monotonic() + QUIET_S if events else 0.0
        if any(key.fileobj is self._inbox for key, _ in events):
            self._drain()

    def _drain(self) -> None:
        self._pace.hurry(time.monotonic())
        try:
            while self._inbox.recv(4096):
                pass
        except BlockingIOError:
            pass
