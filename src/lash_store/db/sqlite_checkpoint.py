"""When the write-ahead log is copied back into the database: when the writer is idle, and when the log is too long."""

from __future__ import annotations

import logging

import apsw

from lash_store.db.sqlite_connection import PAGE_BYTES

IDLE_S = 0.2  # quiet time before a checkpoint; short enough to find pauses between turns
TRUNCATE_PAGES = (4 << 20) // PAGE_BYTES  # a log above this gives its disk space back when idle
CAP_PAGES = (64 << 20) // PAGE_BYTES  # above this the next writers wait for a checkpoint
CAP_WAIT_MS = 100  # for readers of old snapshots, while writers stand still

_log = logging.getLogger("lash_store")


class Checkpoints:
    """The checkpoints of one writer connection, run on its thread between transactions."""

    def __init__(self, connection: apsw.Connection, *, cap_pages: int = CAP_PAGES) -> None:
        self._connection = connection
        self._pages = 0  # in the log since the last attempt
        self._cap_pages = self._next_cap = cap_pages
        connection.set_wal_hook(self._committed)

    @property
    def patience_s(self) -> float | None:
        """How long the writer waits for work before it checkpoints; None when there is nothing to copy."""
        return IDLE_S if self._pages else None

    def when_idle(self) -> None:
        """Copy what can be copied without waiting. One attempt per quiet period: a reader may hold the rest for long."""
        self._pages = 0
        in_log, copied = self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)
        if copied == in_log and in_log >= TRUNCATE_PAGES:
            self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def after_commit(self) -> None:
        """Keep the log under its cap. When a long reader prevents it, try again only after the log has grown by a quarter."""
        if self._pages < self._next_cap:
            return
        self._connection.set_busy_timeout(CAP_WAIT_MS)
        try:
            in_log, _ = self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            self._connection.set_busy_timeout(0)
        self._next_cap = self._cap_pages if in_log == 0 else self._pages + self._cap_pages // 4

    def after_error(self) -> None:
        """A checkpoint needs room and a working disk: leave it until a commit has shown that they are back."""
        self._pages = 0

    def at_close(self) -> None:
        """Leave a short log behind. SQLite removes it when ours was the last connection."""
        self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _checkpoint(self, mode: int) -> tuple[int, int]:
        try:
            return self._connection.wal_checkpoint(mode=mode)
        except (apsw.BusyError, apsw.LockedError):
            return -1, 0  # a reader or another process is in the way: the log stays, nothing is wrong
        except apsw.Error as error:
            _log.warning("checkpoint failed, the log stays: %s", error)
            return -1, 0

    def _committed(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK
