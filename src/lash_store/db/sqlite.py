"""The SQLite driver: one thread that writes in groups, and a few that read."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from lash_store.db.dialect import Dialect, SqliteDialect
from lash_store.db.driver import Call, Mode, RingHook, StatementHook
from lash_store.db.sqlite_backup import Progress, back_up
from lash_store.db.sqlite_connection import IN_MEMORY, Clock, Durability, Engine, Settings, connect, create_file, existing_file
from lash_store.db.sqlite_errors import Versions
from lash_store.db.sqlite_readers import Readers
from lash_store.db.sqlite_transaction import SqliteTransaction
from lash_store.db.sqlite_writer import Faults, Work, Writer
from lash_store.errors import Misuse
from lash_store.model.maintenance import BackupReport

T = TypeVar("T")
BUSY_MS = 15_000  # longer than any honest writer holds the lock, short enough to notice a stuck one
READERS = 4


class SqliteDriver:
    """Runs operations on one SQLite file, or on a database in memory that has a single connection and no durability."""

    def __init__(self, settings: Settings, dialect: Dialect, writer: Writer | None, readers: Readers | None) -> None:
        self.dialect = dialect
        self.path: str | None = None if settings.path == IN_MEMORY else settings.path
        self.in_memory = readers is None
        self._settings = settings
        self._busy_ms = settings.busy_ms
        self._clock = settings.clock
        self._versions = settings.versions
        self._writer = writer
        self._readers = readers
        self._opener_pid = os.getpid()
        self._closing = threading.Lock()

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        ring: RingHook,
        durability: Durability = "full",
        on_statement: StatementHook | None = None,
        busy_ms: int = BUSY_MS,
        readers: int = READERS,
        faults: Faults | None = None,
        read_only: bool = False,
    ) -> SqliteDriver:
        """Create the file if it is missing, and start the writer. Blocks for at most `busy_ms`. `read_only`: neither.

        `faults` is for tests: it is called on the writer thread at "begin", "before-operation", "after-operation",
        "before-commit" and "after-commit", and may raise one of apsw's errors or end the process.
        """
        place = IN_MEMORY if str(path) == IN_MEMORY else (existing_file if read_only else create_file)(Path(path))
        settings = Settings(place, durability, busy_ms, Clock(), Versions(), read_only)
        dialect = SqliteDialect()

        def engine(*, reader: bool) -> Engine:
            return Engine(connect(settings, reader=reader), dialect, on_statement, settings.versions)

        writer = None if read_only else Writer(engine(reader=False), busy_ms=busy_ms, ring=ring, faults=faults)
        pool = None if place == IN_MEMORY else Readers(lambda: engine(reader=True), readers)
        return cls(settings, dialect, writer, pool)

    @property
    def clock_offset_ms(self) -> int:
        """Added to the database's clock. Tests move it; nobody else does."""
        return self._clock.offset_ms

    @clock_offset_ms.setter
    def clock_offset_ms(self, offset_ms: int) -> None:
        self._clock.offset_ms = offset_ms

    def know_versions(self, *, found: int, expected: int) -> None:
        """What a later SchemaMismatch names."""
        self._versions.found, self._versions.expected = found, expected

    def submit(self, call: Call[T], mode: Mode) -> Future[T]:
        """Run an operation. Cancelling its future helps until it has begun; then it runs to its end."""
        self._check_process()
        work = Work(call, mode, self._deadline())
        if mode is Mode.WRITE or self._readers is None:
            self._writing().submit(work)
        else:
            self._readers.submit(work)
        return work.future

    def begin(self, max_ms: int) -> SqliteTransaction:
        """Hold the writer for an interactive transaction. Blocks until it is held, or is Busy."""
        self._check_process()
        transaction = SqliteTransaction(max_ms=max_ms, deadline=self._deadline(), check=self._check_process)
        self._writing().submit(transaction)
        transaction.begun.result()
        return transaction

    def backup(self, path: str, progress: Progress | None = None) -> BackupReport:
        """Copy the database to a new file, on a connection of its own. Blocks the caller, and no writer."""
        self._check_process()
        if self.in_memory:
            raise Misuse("backup", "a database in memory has no backup: it ends with the store. Use a file.")
        with closing(connect(self._settings, reader=True)) as source:
            return back_up(source, path, progress)

    def close(self) -> None:
        """Finish what was submitted, checkpoint, close. Again, or in a forked child, it does nothing."""
        if os.getpid() != self._opener_pid:
            return
        with self._closing:
            if self._readers is not None:
                self._readers.close()
            if self._writer is not None:
                self._writer.close()

    def _writing(self) -> Writer:
        assert self._writer is not None, "a runtime that may only read submits no writes"
        return self._writer

    def _deadline(self) -> float:
        return time.monotonic() + self._busy_ms / 1000

    def _check_process(self) -> None:
        pid = os.getpid()
        if pid != self._opener_pid:
            message = (
                f"the store was opened in process {self._opener_pid}; its fork {pid} cannot use it. Open stores after forking."
            )
            raise Misuse("after-fork", message)
