"""Runs operations on PostgreSQL through asyncpg: one transaction each, run again when the database asks for it.

Nothing relies on the state of a session: tables are qualified, transactions name their isolation.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, LiteralString, TypeVar, cast

import asyncpg
from msgspec import Struct

from lash_store.db.dialect import PostgresDialect
from lash_store.db.driver import Call, Mode, Query, RingHook, Running, StatementClock, StatementHook
from lash_store.db.pool import BorrowedPool, Connection, OwnPool, Pool
from lash_store.db.postgres_errors import DATABASE_ERRORS, Failure, Versions, understand
from lash_store.db.postgres_session import Session, Shared
from lash_store.db.postgres_transaction import PostgresTransaction
from lash_store.db.scripts import function_text
from lash_store.errors import InvalidArgument, Misuse, StoreError, Unavailable
from lash_store.model.maintenance import BackupReport
from lash_store.ops.statement import Fetch, Op, Ring, Shortcut, execute

T = TypeVar("T")
_log = logging.getLogger("lash_store")

POOL_SIZE = 16
ACQUIRE_MS = 30_000
LOCK_MS = 10_000
STATEMENT_MS = 30_000
IDLE_IN_TRANSACTION_MS = 60_000  # a client that vanished in mid-transaction must not hold its locks for longer
CLIENT_GRACE_S = 5.0  # the client's own limit comes after the server's: it is for a network that went silent
STATEMENT_CACHE = 512  # prepared statements per connection: more than all operations have
PAUSE_MS = 10  # before the first retry; doubled each time, and drawn at random below that
PAUSE_MAX_MS = 500

BEGIN = {
    Mode.READ: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
    Mode.WRITE: "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
}


class Timeouts(Struct, frozen=True):
    """The server's limits on one statement and one transaction; 0 is no limit."""

    lock_ms: int = LOCK_MS
    statement_ms: int = STATEMENT_MS
    idle_in_transaction_ms: int = IDLE_IN_TRANSACTION_MS

    def connection(self) -> dict[str, str]:
        """Everything a connection of our own is opened with: also what BEGIN would say, for what runs without one."""
        return self.settings() | {"default_transaction_isolation": "read committed", "default_transaction_read_only": "off"}

    def settings(self) -> dict[str, str]:
        """As settings of a connection."""
        return {
            "lock_timeout": str(self.lock_ms),
            "statement_timeout": str(self.statement_ms),
            "idle_in_transaction_session_timeout": str(self.idle_in_transaction_ms),
        }

    def begin(self, mode: Mode) -> str:
        """BEGIN with these limits for this transaction only, in one round trip."""
        return "; ".join([BEGIN[mode], *(f"SET LOCAL {name} = {value}" for name, value in self.settings().items())])


UNBOUNDED = Timeouts(0, 0, 0)  # a migration takes as long as the data demands


class PostgresDriver:
    """Operations on one schema of one database."""

    path: str | None = None  # no file that the client could see

    shortcuts = True  # false sends every operation the long way, statement by statement: for tests that compare the two

    def __init__(self, pool: Pool, shared: Shared, *, ring: RingHook | None, begin: dict[Mode, str], alone: bool) -> None:
        self.dialect = shared.dialect
        self._alone = alone  # whether a function may be a transaction of its own, with the connection's settings
        self._pool = pool
        self._shared = shared
        self._ring = ring
        self._begin = begin

    @classmethod
    async def open(
        cls,
        url: str | None = None,
        *,
        schema: str = "lash_store",
        pool: Any = None,
        pool_size: int = POOL_SIZE,
        acquire_ms: int = ACQUIRE_MS,
        lock_ms: int = LOCK_MS,
        statement_ms: int = STATEMENT_MS,
        pooler: bool = False,
        on_statement: StatementHook | None = None,
        ring: RingHook | None = None,
    ) -> PostgresDriver:
        """A driver on `url`, or on the caller's asyncpg `pool`, which keeps its settings and stays the caller's."""
        if pool_size < 1:
            raise InvalidArgument("pool_size", f"must be at least 1, got {pool_size}")
        timeouts = Timeouts(lock_ms, statement_ms)
        dialect = PostgresDialect(schema)
        timeout_s = statement_ms / 1000 + CLIENT_GRACE_S if statement_ms else None
        shared = Shared(dialect, StatementClock(on_statement, dialect.engine), Versions(found=0, expected=0), timeout_s)
        source: Pool = BorrowedPool(pool, acquire_ms=acquire_ms)
        if pool is None:
            source = _own_pool(url, timeouts, pool_size, acquire_ms, pooler=pooler)
        begin = {mode: timeouts.begin(mode) for mode in Mode} if pooler else BEGIN
        driver = cls(source, shared, ring=ring, begin=begin, alone=pool is None and not pooler)
        await driver._look()
        return driver

    async def _look(self) -> None:
        connection = await self._pool.acquire()
        await self._pool.release(connection, broken=False)

    async def run(self, call: Call[T], mode: Mode, *, unbounded: bool = False) -> T:
        """Run one operation in a transaction of its own. `unbounded` lifts the timeouts, for migrations."""
        tries = 0
        while True:
            heard: list[Failure] = []
            try:
                return await self._attempt(call, mode, heard, unbounded=unbounded)
            except StoreError:
                # Nothing was published: an error at COMMIT that leaves a doubt is not among those heard.
                if not heard or tries >= heard[0].retries:
                    raise
            if heard[0].lost:
                self._pool.forget_idle()
            tries += 1
            await asyncio.sleep(pause_s(tries))

    async def _attempt(self, call: Call[T], mode: Mode, heard: list[Failure], *, unbounded: bool) -> T:
        running = Running(call)
        statement = running.start_with_shortcut()
        if statement is not None:
            try:
                await self._on_connection(running, statement, mode, heard, unbounded=unbounded)
            finally:
                running.close()
        self.deliver(running.rings)
        return running.result

    async def _on_connection(
        self, running: Running[Any], statement: Query | Shortcut, mode: Mode, heard: list[Failure], *, unbounded: bool
    ) -> None:
        connection = await self._pool.acquire()
        session = Session(connection, self._shared, timeout_s=None if unbounded else self._shared.timeout_s)
        try:
            if isinstance(statement, Shortcut) and self._may_publish(connection):
                following = running.send(await session.publish(running, statement))
                if following is None:
                    return
                statement = following
            if isinstance(statement, Fetch) and statement.alone and self._alone and not unbounded:
                await session.run_alone(running, statement)
                return
            await self._in_transaction(
                session, running, statement, UNBOUNDED.begin(mode) if unbounded else self._begin[mode], mode
            )
        finally:
            heard.extend([session.failure] if session.failure else [])
            await self._pool.release(connection, broken=session.broken)

    def _may_publish(self, connection: Connection) -> bool:
        # A connection that rested may have died unnoticed. A BEGIN finds out while nothing is at stake.
        return self.shortcuts and self._alone and self._pool.was_used_lately(connection)

    async def _in_transaction(
        self, session: Session, running: Running[Any], statement: Query | Shortcut, begin: str, mode: Mode
    ) -> None:
        try:
            await session.control(begin)
            if isinstance(statement, Shortcut):
                rows = await session.call(running, statement) if self.shortcuts else None
                if rows is None and self.shortcuts:
                    await session.restart(begin)
                following = running.send(rows)
            else:
                following = statement
            await session.run(running, following)
            await (session.commit() if mode is Mode.WRITE else session.end("COMMIT"))
        except BaseException:
            await session.end_surely()
            raise

    async def begin(self, max_ms: int, connection: Connection | None = None) -> PostgresTransaction:
        """An interactive transaction of at most `max_ms`, on a connection of the pool or on the caller's own.

        The caller's may be inside a transaction already; then this one is a savepoint of it.
        """
        if connection is not None:
            return await self._begin_on(connection, None, max_ms, heard=[])
        heard: list[Failure] = []
        try:
            return await self._begin_on(await self._pool.acquire(), self._pool, max_ms, heard)
        except StoreError:
            if not heard or not heard[0].lost:
                raise
        # An idle connection that died unnoticed; nothing was asked of it yet.
        self._pool.forget_idle()
        return await self._begin_on(await self._pool.acquire(), self._pool, max_ms, heard)

    async def _begin_on(
        self, connection: Connection, pool: Pool | None, max_ms: int, heard: list[Failure]
    ) -> PostgresTransaction:
        deadline = asyncio.get_running_loop().time() + max_ms / 1000
        session = Session(connection, self._shared, timeout_s=self._shared.timeout_s, deadline=deadline)
        transaction = PostgresTransaction(session, pool, max_ms=max_ms, deadline=deadline, deliver=self.deliver)
        try:
            await transaction.start(self._begin[Mode.WRITE])
        finally:
            heard.extend([session.failure] if session.failure else [])
        return transaction

    def deliver(self, rings: Sequence[Ring]) -> None:
        """Wake those who wait; only called when what they wait for is committed."""
        if not rings or self._ring is None:
            return
        try:
            self._ring(rings)
        except Exception:  # noqa: BLE001 - the commit stands, whatever its messenger does
            _log.exception("ringing failed after a commit; waiters find out by looking")

    def know_versions(self, *, found: int, expected: int) -> None:
        """Remember the schema's version, for the error that names it when a table is missing later."""
        self._shared.versions = Versions(found=found, expected=expected)

    async def set_clock_offset(self, ms: int) -> None:
        """Shift the database's clock of this schema. For tests: every store on the schema sees it."""
        await self.run(partial(shift_clock, ms), Mode.WRITE)

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> BackupReport:
        """Refused: PostgreSQL has its own tools, which know what a client cannot."""
        message = (
            "PostgreSQL is backed up with its own tools: `pg_dump --format=custom --schema="
            f"{self.dialect.schema}` for the store alone, `pg_basebackup` with WAL archiving for the whole cluster."
        )
        raise Misuse("backup", message)

    async def close(self) -> None:
        """Close our connections, after those that are in use came back. A caller's pool stays open."""
        await self._pool.close()


def shift_clock(ms: int) -> Op[None]:
    """Replace the schema's clock by one that is `ms` ahead."""
    true = function_text("now_ms")
    shifted = true.replace("::bigint", f"::bigint + ({int(ms)})")
    assert shifted != true
    yield from execute(cast("LiteralString", shifted))


def pause_s(tries: int) -> float:
    """A random pause, so that those who collided do not meet again; longer with every try."""
    return random.uniform(0, min(PAUSE_MS * 2 ** (tries - 1), PAUSE_MAX_MS)) / 1000


def _own_pool(url: str | None, timeouts: Timeouts, size: int, acquire_ms: int, *, pooler: bool) -> OwnPool:
    dsn = url and url.replace("postgresql+asyncpg://", "postgresql://", 1)
    options: dict[str, Any] = {"timeout": acquire_ms / 1000, "max_cached_statement_lifetime": 0}
    if pooler:
        # Prepared statements and settings would land on whichever server connection comes next.
        options |= {"statement_cache_size": 0}
    else:
        options |= {"statement_cache_size": STATEMENT_CACHE, "server_settings": timeouts.connection()}
    return OwnPool(partial(connect, dsn, options), size=size, acquire_ms=acquire_ms)


async def connect(dsn: str | None, options: dict[str, Any]) -> Connection:
    """A new connection. No error quotes the URL: it may hold a password."""
    try:
        connection: Connection = await asyncpg.connect(dsn, **options)
        return connection
    except DATABASE_ERRORS as error:
        failure = _unreachable(error)
    except ValueError:
        failure = InvalidArgument("url", "is not a PostgreSQL URL; percent-encode characters such as @ and / in a password")
    raise failure


def _unreachable(error: BaseException) -> StoreError:
    if isinstance(error, asyncpg.ClientConfigurationError):
        return InvalidArgument("url", "is not a usable PostgreSQL URL, or names options that do not fit")
    if isinstance(error, asyncpg.PostgresError) and "startup parameter" in str(error):
        return Misuse("pooler", f"{error}. A pooler is in between: open the store with pooler=True.")
    if isinstance(error, asyncpg.PostgresError):
        return understand(error, Versions(found=0, expected=0), gone=True).error
    reason = getattr(error, "strerror", None) or type(error).__name__
    return Unavailable(f"PostgreSQL cannot be reached: {reason}. See that it runs at the given address.")
