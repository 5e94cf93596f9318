"""One SQLite connection: how it is opened, what it is set to, and how an operation runs on it."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import apsw
from msgspec import Struct

from lash_store.db.dialect import Dialect
from lash_store.db.driver import Call, Query, Running, StatementClock, StatementHook
from lash_store.db.sqlite_errors import NO_ROOM, VOIDING, Versions, translate, translate_ours
from lash_store.errors import InvalidArgument, Misuse, NotFound, NotPermitted, StorageFull, Unavailable
from lash_store.ops.statement import Execute, Fetch

T = TypeVar("T")
Durability = Literal["full", "relaxed"]

IN_MEMORY = ":memory:"
PAGE_BYTES = 8192  # measured: fewer pages per commit than 4096 for bodies of some kilobytes
CACHED_STATEMENTS = 512  # more than all SQL constants of the store together
RETRY_S = 0.001  # SQLite's own busy handler backs off to 100 ms and starves; a short retry does not

# What application SQL may not do inside a transaction: end it, reach other files, or change the connection.
GUARDED = frozenset({apsw.SQLITE_TRANSACTION, apsw.SQLITE_SAVEPOINT, apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH})
READABLE_PRAGMAS = frozenset({"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"})


class Clock:
    """The database's clock: the host's time in milliseconds, and what a test adds to it."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def now_ms(self, *_: Any) -> int:
        return time.time_ns() // 1_000_000 + self.offset_ms


class Settings(Struct, frozen=True):
    """What every connection of one driver is opened with."""

    path: str
    durability: Durability
    busy_ms: int
    clock: Clock
    versions: Versions
    read_only: bool = False


class Engine:
    """A connection that runs operations. Used by one thread at a time."""

    def __init__(self, connection: apsw.Connection, dialect: Dialect, hook: StatementHook | None, versions: Versions) -> None:
        self.connection = connection
        self._versions = versions
        self.bytes_bound = 0  # payload of the current transaction
        self.broken = False  # an error of the kind that may drop the transaction came up in it
        self._guarded = False
        self._dialect = dialect
        self._clock = StatementClock(hook, "sqlite")
        self._cursor = connection.cursor()
        connection.authorizer = self._authorize

    def begin(self, how: str) -> None:
        """Open a transaction."""
        self.broken = False
        self.bytes_bound = 0
        self._cursor.execute(how)

    def control(self, sql: str) -> None:
        """Run a statement that moves the transaction, not the data."""
        self._cursor.execute(sql)

    def rollback(self) -> None:
        """End the transaction without a trace, whether or not SQLite has done it already."""
        if self.connection.in_transaction:
            with suppress(apsw.Error):
                self._cursor.execute("ROLLBACK")

    @property
    def lost(self) -> bool:
        """Whether the transaction is gone, or must not be continued."""
        return self.broken or not self.connection.in_transaction

    def run(self, call: Call[T]) -> Running[T]:
        """Run an operation to its end inside the open transaction."""
        running = Running(call)
        statement = running.start()
        while statement is not None:
            try:
                answer = self._answer(running.operation, statement)
            except Exception as error:  # noqa: BLE001 - raised again, from inside the operation
                running.fail(self.translate(error))
            statement = running.send(answer)
        return running

    def application(self, sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Run the application's own SQL. It is prepared anew, because a cached statement is not authorized again."""
        self._guarded = True
        try:
            return self._cursor.execute(sql, params, can_cache=False).fetchall()
        finally:
            self._guarded = False

    def translate(self, error: Exception, *, ours: bool = True) -> Exception:
        """The store's error for whatever a statement raised, noting whether the transaction survives it."""
        if not isinstance(error, apsw.Error):
            return error
        self.broken = self.broken or isinstance(error, VOIDING)
        system_errno = self.connection.system_errno
        return (
            translate_ours(error, self._versions, system_errno=system_errno)
            if ours
            else translate(error, system_errno=system_errno)
        )

    def close(self) -> None:
        self.connection.close()

    def _answer(self, operation: str, statement: Query) -> list[tuple[Any, ...]] | int:
        if not self._clock.runs:
            return self._ask(statement)
        started_ns = self._clock.start_ns()
        answer = self._ask(statement)
        self._clock.stop(operation, statement.sql, answer, started_ns)
        return answer

    def _ask(self, statement: Query) -> list[tuple[Any, ...]] | int:
        compiled = self._dialect.compile(statement.sql)
        if isinstance(statement, Fetch):
            return self._cursor.execute(compiled.text, compiled.json_arguments(statement.params)).fetchall()
        if isinstance(statement, Execute):
            return self._execute(compiled.text, compiled.json_arguments(statement.params))
        return self._execute_many(compiled.text, compiled.each(statement.rows, statement.params))

    def _execute(self, text: str, arguments: list[Any]) -> int:
        before = self.connection.total_changes()
        self._cursor.execute(text, arguments).fetchall()
        self.bytes_bound += _weight(arguments)
        # changes() keeps the count of an earlier statement when this one was none that changes rows.
        return self.connection.changes() if self.connection.total_changes() != before else 0

    def _execute_many(self, text: str, rows: list[list[Any]]) -> int:
        before = self.connection.total_changes()
        self._cursor.executemany(text, rows).fetchall()
        self.bytes_bound += sum(map(_weight, rows))
        return self.connection.total_changes() - before

    def _authorize(self, action: int, first: str | None, *_: str | None) -> int:
        if not self._guarded:
            return apsw.SQLITE_OK
        if action in GUARDED or (action == apsw.SQLITE_PRAGMA and first not in READABLE_PRAGMAS):
            return apsw.SQLITE_DENY
        return apsw.SQLITE_OK


_SIZED = frozenset[type]({str, bytes})


def _weight(arguments: list[Any]) -> int:
    return sum([len(value) for value in arguments if value.__class__ in _SIZED])


def connect(settings: Settings, *, reader: bool) -> apsw.Connection:
    """Open and configure a connection. The file exists already, see `create_file`."""
    with _opening():
        connection = apsw.Connection(settings.path, flags=_flags(settings), statementcachesize=CACHED_STATEMENTS)
        try:
            patiently(lambda: _configure(connection, settings), settings.busy_ms)
            if reader:
                # Readers only ever wait for a recovery or for the last closer of another process.
                connection.set_busy_timeout(settings.busy_ms)
                connection.pragma("query_only", True)
        except BaseException:
            connection.close()
            raise
    _open_connections.add(connection)
    return connection


def patiently(act: Callable[[], T], busy_ms: int) -> T:
    """`act`, tried again while the database is busy, for at most `busy_ms`."""
    deadline = time.monotonic() + busy_ms / 1000
    while True:
        try:
            return act()
        except apsw.BusyError:
            if time.monotonic() >= deadline:
                raise
        pause()


def pause() -> None:
    """A moment before asking for a lock again; the jitter keeps two processes out of step."""
    time.sleep(RETRY_S * random.uniform(0.5, 1.5))


def _flags(settings: Settings) -> int:
    # Without CREATE, SQLite cannot make the file itself with a mode that follows the umask.
    if settings.read_only:
        return apsw.SQLITE_OPEN_READONLY
    return apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if settings.path == IN_MEMORY else 0)


def _configure(connection: apsw.Connection, settings: Settings) -> None:
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
    # This SQLite is built with STAT4, which plans a cached statement anew whenever a value in its WHERE is bound again.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    if not settings.read_only:
        connection.pragma("page_size", PAGE_BYTES)
    if settings.path != IN_MEMORY and not settings.read_only:
        _configure_wal(connection, settings)
    connection.create_scalar_function("lash_now_ms", settings.clock.now_ms, 0)


def _configure_wal(connection: apsw.Connection, settings: Settings) -> None:
    mode = connection.pragma("journal_mode", "wal")
    if mode != "wal":
        message = f"SQLite cannot use a write-ahead log here (journal mode {mode}). Put the file on a local disk."
        raise Unavailable(message, code=str(mode))
    connection.pragma("synchronous", "FULL" if settings.durability == "full" else "NORMAL")
    connection.wal_autocheckpoint(0)
    if sys.platform == "darwin":
        connection.pragma("fullfsync", True)
        connection.pragma("checkpoint_fullfsync", True)


@contextmanager
def _opening() -> Generator[None]:
    try:
        yield
    except apsw.Error as error:
        raise translate(error) from error


_creating = threading.Lock()


def create_file(path: Path) -> str:
    """Make sure the database file exists, readable by its owner only, and return its real path.

    SQLite gives -wal and -shm the mode of this file. An existing file is never opened here: closing it would drop the
    locks that another store of this process holds on it. The lock keeps a second opener away until our own close.
    """
    real = os.path.realpath(path)
    _check_not_inherited(real)
    with _creating, _creation_errors(real):
        try:
            descriptor = os.open(real, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return real
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
    return real


def existing_file(path: Path) -> str:
    """The real path of a file that must exist already. It is never opened here, as in `create_file`."""
    real = os.path.realpath(path)
    _check_not_inherited(real)
    if not Path(real).is_file():
        raise NotFound("database file", str(path))
    return real


@contextmanager
def _creation_errors(path: str) -> Generator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise InvalidArgument("url", f"{Path(path).parent} is not an existing folder") from error
    except PermissionError as error:
        raise NotPermitted(f"to create {path}") from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise StorageFull(f"cannot create {path}") from error
        raise Unavailable(f"cannot create {path}: {error.strerror}. Repeat the call.", code=str(error.errno)) from error


_open_connections: weakref.WeakSet[apsw.Connection] = weakref.WeakSet()
_inherited: set[tuple[int, int]] = set()


def _after_fork_in_child() -> None:
    """Closing an inherited connection could delete a log that the parent still writes: leak it instead."""
    global _creating  # noqa: PLW0603 - another thread of the parent may hold it; in the child nobody would ever let it go
    _creating = threading.Lock()
    for connection in list(_open_connections):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        # A closed connection that is not collected yet has no file any more, and nothing to protect.
        with suppress(OSError, apsw.ConnectionClosedError):
            _inherited.add(_identity(connection.filename))


def _check_not_inherited(path: str) -> None:
    """Refuse a file that was open when this process was forked.

    SQLite remembers, per process, which locks it holds on a file. The child inherits that memory but not the locks: a new
    connection would believe itself protected, and lose its commits when the parent closes.
    """
    with suppress(OSError):
        if _identity(path) in _inherited:
            message = f"{path} was open when this process was forked. Open it after the fork only, or start the child by spawn."
            raise Misuse("after-fork", message)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)  # noqa: PTH116 - by name: opening and closing the file would drop its locks
    return status.st_dev, status.st_ino


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
