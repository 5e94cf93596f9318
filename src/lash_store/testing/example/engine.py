"""A backend that is not one of ours: the store's operations on Python's own `sqlite3`, in memory, in one event loop.

It shows the whole of what an engine must do. An operation is a generator: it yields statements, the engine answers them, in
one transaction, and rings for whoever waits once that is committed. Everything else is shared: the facades, the encoder, the
SQL and its dialect.

It is small because it gives things up: one connection, no thread, no file, no group commit, no backup. A statement blocks the
event loop, and everything ends with the `Shelf`. While a transaction is open, readers see a copy made when it began.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from lash_store import AsyncStore
from lash_store.blobs.database import DatabaseBytes
from lash_store.blobs.filesystem import FilesystemBytes
from lash_store.db.dialect import SqliteDialect
from lash_store.db.driver import Call, Mode, Query, Running, StatementClock
from lash_store.db.migrate import bring_up, look, needs_migration
from lash_store.db.scripts import steps
from lash_store.errors import Busy, InvalidArgument, Misuse, SchemaMismatch
from lash_store.notify.hub import AsyncSubscription, Hub, Pace
from lash_store.ops.statement import Execute, Fetch, Op, Ring
from lash_store.ops.watch import PROBES
from lash_store.store.options import Options
from lash_store.store.runtime import AsyncRuntime

T = TypeVar("T")
Rows = list[tuple[Any, ...]]
DIALECT = SqliteDialect()  # one for all: it remembers every text it has spelled
MISSING = ("no such table", "no such column", "has no column named")
# Application SQL in a transaction may not end it, nor reach other files.
GUARDED = frozenset({sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})


class Shelf:
    """One database, and all that its handles share: the connection, the clock, the lock of writers, and who is waiting."""

    def __init__(self) -> None:
        self.dialect = DIALECT
        self.connection = self._connect()
        self.reading = self.connection  # a copy while a transaction is open
        self.writing = asyncio.Lock()
        self.hubs: list[Hub[AsyncSubscription]] = []
        self.offset_ms = 0
        self.path = None

    async def open(self, **options: Any) -> AsyncStore:
        """A store on this shelf. `options` are those of `AsyncStore.open` that mean something here."""
        chosen = Options(url="sqlite://:memory:", **options)
        chosen.target()  # refuses what contradicts itself
        engine = Engine(self, chosen)
        await engine.migrate(allowed=chosen.may_migrate)
        runtime = AsyncRuntime(engine, chosen)
        runtime.blobs = _byte_store(chosen.blobs, engine)
        return AsyncStore(runtime)

    def raw(self, sql: str, *params: object) -> Rows:
        """Rows of a statement that is nobody's operation."""
        return self.reading.execute(sql, _numbered(params)).fetchall()

    def advance(self, ms: int) -> None:
        """Move the clock, for every handle."""
        self.offset_ms += ms

    def close(self) -> None:
        """Forget everything."""
        self.connection.close()

    def ring(self, rings: list[Ring]) -> None:
        """Wake whoever waits, on every handle."""
        for hub in self.hubs:
            hub.ring(rings)

    def set_aside(self) -> None:
        """A transaction begins: readers go on with what is committed now."""
        self.reading = self._connect()
        self.connection.backup(self.reading)

    def take_back(self) -> None:
        """A transaction has ended: readers see what it left."""
        self.reading.close()
        self.reading = self.connection

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> NoReturn:
        """Refused: it would be a file."""
        raise Misuse("backup", "this backend lives in memory and makes no files. Export the sessions instead.")

    def _connect(self) -> sqlite3.Connection:
        # None: no transaction begins by itself.
        connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=512)
        connection.execute("PRAGMA foreign_keys = ON")
        connection.create_function("lash_now_ms", 0, self._now_ms)
        return connection

    def _now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.offset_ms


class Engine:
    """One handle's way to the shelf."""

    name = "shelf"

    def __init__(self, shelf: Shelf, options: Options) -> None:
        self.driver = shelf
        self.hub = Hub(AsyncSubscription, probes=PROBES, max_waiters=options.limits.active_waiters)
        self.hub.on_subscribe = self._begin_to_look
        self._clock = StatementClock(options.on_statement, self.name)
        self._looking: asyncio.Task[None] | None = None
        shelf.hubs.append(self.hub)

    async def migrate(self, *, allowed: bool) -> None:
        """The schema as this library wants it, or SchemaMismatch."""
        shelf, known = self.driver, steps()
        found = await self.run(partial(look, shelf.dialect), Mode.READ)
        if needs_migration(found, known[-1].version, migrate=allowed):
            await self.run(partial(bring_up, shelf.dialect, known), Mode.WRITE)

    async def run(self, call: Call[T], mode: Mode) -> T:
        """One operation in a transaction of its own. Nothing awaits inside, so nothing can come in between."""
        await asyncio.sleep(0)  # the other tasks first: a busy writer must not starve them
        if mode is Mode.READ:
            return self.within(self.driver.reading, call, "BEGIN").result
        async with self.driver.writing:
            running = self.within(self.driver.connection, call, "BEGIN IMMEDIATE")
        self.driver.ring(running.rings)
        return running.result

    async def begin(self, max_ms: int, connection: object) -> Transaction:
        """Several operations in one transaction; until it ends, other writers wait."""
        if connection is not None:
            raise InvalidArgument("connection", "this backend has one connection, and it is its own")
        await self.driver.writing.acquire()
        self.driver.set_aside()
        self.driver.connection.execute("BEGIN IMMEDIATE")
        return Transaction(self, max_ms)

    async def close(self) -> None:
        """Wake the waiters for the last time. The shelf stays."""
        self.hub.close()
        if self.hub in self.driver.hubs:
            self.driver.hubs.remove(self.hub)
        if self._looking is not None:
            self._looking.cancel()

    def within(self, connection: sqlite3.Connection, call: Call[T], begin: str, end: str = "COMMIT") -> Running[T]:
        """Run an operation between `begin` and `end`; what it raises takes all of it back."""
        connection.execute(begin)
        try:
            running = Running(call)
            statement = running.start()
            while statement is not None:
                statement = running.send(self._answer(connection, running, statement))
            connection.execute(end)
        except BaseException:
            _undo(connection, begin)
            raise
        return running

    def _answer(self, connection: sqlite3.Connection, running: Running[Any], statement: Query) -> Rows | int:
        started_ns = self._clock.start_ns()
        try:
            answer = self._ask(connection, statement)
        except sqlite3.Error as error:
            running.fail(_translated(error))
        self._clock.stop(running.operation, statement.sql, answer, started_ns)
        return answer

    def _ask(self, connection: sqlite3.Connection, statement: Query) -> Rows | int:
        compiled = self.driver.dialect.compile(statement.sql)
        before = connection.total_changes
        if isinstance(statement, Fetch):
            return connection.execute(compiled.text, _numbered(compiled.json_arguments(statement.params))).fetchall()
        if isinstance(statement, Execute):
            connection.execute(compiled.text, _numbered(compiled.json_arguments(statement.params))).fetchall()
            # What was changed by a foreign key is in the total, but not in the answer.
            return 0 if connection.total_changes == before else connection.execute("SELECT changes()").fetchone()[0]
        for row in compiled.each(statement.rows, statement.params):
            connection.execute(compiled.text, _numbered(row)).fetchall()
        return connection.total_changes - before

    def _begin_to_look(self) -> None:
        # Rings wake at once; delayed work becomes due without any, so somebody looks now and then.
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        pace, loop = Pace(), asyncio.get_running_loop()
        while (wait_s := pace.wait_s(self.hub.kinds(), loop.time())) is not None:
            await asyncio.sleep(wait_s)
            for kind, call in self.hub.looks(pace.due(self.hub.kinds(), loop.time())):
                self.hub.found(kind, await self.run(call, Mode.READ))
        self._looking = None


class Transaction:
    """Operations and the application's SQL, each in a savepoint, until it commits, rolls back, or takes too long."""

    def __init__(self, engine: Engine, max_ms: int) -> None:
        self._engine = engine
        self._rings: list[Ring] = []
        self._ended: Exception | None = None
        late = Busy(f"the transaction took longer than max_ms = {max_ms}")
        self._timer = asyncio.get_running_loop().call_later(max_ms / 1000, self._end, "ROLLBACK", late)

    async def run(self, call: Call[T]) -> T:
        """One operation. A refusal takes back that operation alone."""
        self._check()
        connection = self._engine.driver.connection
        running = self._engine.within(connection, call, "SAVEPOINT operation", "RELEASE operation")
        self._rings += running.rings
        return running.result

    async def execute(self, sql: str, *params: object) -> Rows:
        """The application's own SQL, with `?1` or `$1` for parameters."""
        self._check()
        connection = self._engine.driver.connection
        connection.execute("SAVEPOINT operation")
        connection.set_authorizer(_authorize)
        try:
            rows = connection.execute(sql, _numbered(params)).fetchall()
        except BaseException:
            connection.set_authorizer(None)
            _undo(connection, "SAVEPOINT operation")
            raise
        connection.set_authorizer(None)
        connection.execute("RELEASE operation")
        return rows

    async def commit(self) -> None:
        """Publish everything, then ring."""
        self._check()
        self._end("COMMIT", _over())
        self._engine.driver.ring(self._rings)

    async def rollback(self) -> None:
        """Take everything back. Nothing to do when it has ended."""
        if self._ended is None:
            self._end("ROLLBACK", _over())

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _end(self, how: str, why: Exception) -> None:
        self._timer.cancel()
        self._ended = why
        shelf = self._engine.driver
        shelf.connection.execute(how)
        shelf.take_back()
        shelf.writing.release()


def _byte_store(chosen: Any, engine: Engine) -> Any:
    if chosen is None or chosen == "database":
        return DatabaseBytes(partial(_run, engine, Mode.READ), partial(_run, engine, Mode.WRITE), durable=False)
    return FilesystemBytes(Path(chosen)) if isinstance(chosen, str | os.PathLike) else chosen


async def _run(engine: Engine, mode: Mode, op: Callable[..., Op[T]], *args: Any, **kwargs: Any) -> T:
    return await engine.run(partial(op, *args, **kwargs), mode)


def _numbered(values: Any) -> dict[str, Any]:
    """`?1` and `$1` are names to `sqlite3`: 1, 2, 3."""
    return {str(number): value for number, value in enumerate(values, 1)}


def _undo(connection: sqlite3.Connection, begun: str) -> None:
    if begun.startswith("SAVEPOINT"):
        connection.execute("ROLLBACK TO operation")
        connection.execute("RELEASE operation")
    elif connection.in_transaction:
        connection.execute("ROLLBACK")


def _translated(error: sqlite3.Error) -> Exception:
    """The store's error for a missing table; anything else is a mistake in this file and stays what it is."""
    if not any(text in str(error) for text in MISSING):
        return error
    return SchemaMismatch(f"{error}. Open it once with migrate=True", found=0, expected=steps()[-1].version)


def _authorize(action: int, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action in GUARDED else sqlite3.SQLITE_OK


def _over() -> Exception:
    return Misuse("closed", "this transaction has ended. Open another one.")
