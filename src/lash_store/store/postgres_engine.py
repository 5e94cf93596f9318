"""PostgreSQL behind a runtime: the driver, the sender of notifications, and the task that looks for all waiters.

Everything here lives on one event loop: the caller's for AsyncStore, the portal's for Store.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import asyncpg

from lash_store.db.driver import AsyncTransaction, Call, Mode, RingHook
from lash_store.db.migrate import open_postgres
from lash_store.db.postgres import PostgresDriver
from lash_store.db.postgres_transaction import PostgresTransaction
from lash_store.errors import InvalidArgument
from lash_store.notify.hub import Hub, SyncSubscription
from lash_store.notify.listen import NOBODY, Connect, Connection, Listener, Sender, channel_name, notify, payloads
from lash_store.ops.statement import Ring
from lash_store.store.options import Options
from lash_store.store.portal import Portal, settle
from lash_store.store.url import Target

log = logging.getLogger("lash_store")

T = TypeVar("T")
CONNECT_S = 30  # for the LISTEN connection; waiters poll meanwhile


async def open_engine(target: Target, options: Options, hub: Hub[Any]) -> PostgresEngine:
    """Connect, and bring the schema up to date if the options say so. Nothing stays open when it raises."""
    engine = PostgresEngine(hub, target.schema, options.listen_target())
    await engine.open(partial(_open_driver, target, options))
    try:
        await open_postgres(engine.driver, migrate=options.may_migrate)
    except BaseException:
        await engine.close()
        raise
    return engine


def open_sync_engine(target: Target, options: Options, hub: Hub[SyncSubscription], portal: Portal) -> SyncPostgres:
    """The same on the portal's loop."""
    opening = portal.submit(open_engine(target, options, hub))
    try:
        return SyncPostgres(settle(opening), hub, portal)
    except KeyboardInterrupt:
        if opening.exception() is None:
            portal.call(opening.result().close())
        raise


async def _open_driver(target: Target, options: Options, ring: RingHook) -> PostgresDriver:
    return await PostgresDriver.open(
        target.dsn,
        schema=target.schema,
        pool=options.pool,
        pool_size=options.pool_size,
        acquire_ms=options.acquire_ms,
        lock_ms=options.lock_ms,
        statement_ms=options.statement_ms,
        pooler=options.pooler,
        on_statement=options.on_statement,
        ring=ring,
    )


class PostgresEngine:
    """One store's driver and waiters. Every operation runs in a task of its own, which its caller cannot cancel."""

    name = "postgresql"
    driver: PostgresDriver

    def __init__(self, hub: Hub[Any], schema: str, listen: Target | None) -> None:
        self.hub = hub
        self.channel = channel_name(schema)
        self._tasks: set[asyncio.Task[Any]] = set()
        origin = secrets.token_hex(8)
        self._sender = Sender(self._notify, origin)
        self._listener = Listener(hub, self._look, connect=_connect_to(listen), channel=self.channel, origin=origin)
        hub.on_subscribe = self._listener.nudge
        if listen is None:
            log.info("no url to LISTEN on (a pooler or a given pool): waiting by slow look; pass listen_url to be woken at once")

    @property
    def listening(self) -> asyncio.Event:
        """Set while the LISTEN connection stands."""
        return self._listener.listening

    async def open(self, open_driver: Callable[[RingHook], Coroutine[Any, Any, PostgresDriver]]) -> None:
        """Connect. The driver gets what to call after each commit."""
        self.driver = await open_driver(self._rung)

    async def run(self, call: Call[T], mode: Mode) -> T:
        return await self.started(partial(self.driver.run, call, mode))

    async def begin(self, max_ms: int, connection: Any) -> AsyncTransaction:
        starting = self._spawn(self.driver.begin(max_ms, connection))
        try:
            return _Serial(self, await asyncio.shield(starting))
        except asyncio.CancelledError:
            self._spawn(_abandon(starting))
            raise

    async def started(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer of `work`, which runs to its end even if the caller is cancelled."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._spawn(_answered(work, answer))
        try:
            return await answer
        finally:
            del answer  # an error knows this frame, and the frame would know the error: only the collector would free both

    async def close(self) -> None:
        """Wait for what was begun, send the last notifications, then hang up."""
        self.hub.close()
        await self._listener.close()
        await self._finish()
        await self._sender.close()
        await self._finish()
        await self.driver.close()

    async def _finish(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _rung(self, rings: Sequence[Ring]) -> None:
        if rings:
            self.hub.ring(rings)
            self._sender.post(rings)

    async def _notify(self, messages: Sequence[str]) -> None:
        await self.run(partial(notify, self.channel, messages), Mode.WRITE)

    async def _look(self, kinds: Sequence[str]) -> None:
        for kind, call in self.hub.looks(kinds):
            try:
                self.hub.found(kind, await self.run(call, Mode.READ))
            except Exception as error:  # noqa: BLE001 - the look must go on for the other waiters, whatever one of them met
                log.warning("the slow look for %s failed (%s); the next one follows", kind, type(error).__name__)


class _Serial:
    """An interactive transaction whose calls run one after another, each to its end: it has one connection."""

    def __init__(self, engine: PostgresEngine, transaction: PostgresTransaction) -> None:
        self._engine = engine
        self._transaction = transaction
        self._lock = asyncio.Lock()

    async def run(self, call: Call[T]) -> T:
        return await self._engine.started(partial(self._alone, partial(self._transaction.run, call)))

    async def execute(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        return await self._engine.started(partial(self._alone, partial(self._transaction.execute, sql, *params)))

    async def commit(self) -> None:
        await self._engine.started(partial(self._alone, self._publish))

    async def _publish(self) -> None:
        """Inside the caller's transaction only the server knows when it commits: it carries the rings, to us as well."""
        if self._transaction.nested:
            topics = list(dict.fromkeys((ring.kind, ring.id) for ring in self._transaction.take_rings()))
            for payload in payloads(NOBODY, topics) if topics else ():
                await self._transaction.execute("SELECT pg_notify($1, $2)", self._engine.channel, payload)
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._engine.started(partial(self._alone, self._transaction.rollback))

    async def _alone(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with self._lock:
            return await work()


class SyncPostgres:
    """The engine for threads: every call is one trip to the portal's loop."""

    def __init__(self, engine: PostgresEngine, hub: Hub[SyncSubscription], portal: Portal) -> None:
        self.name = engine.name
        self.hub = hub
        self.driver = engine.driver
        self._engine = engine
        self._portal = portal
        nudge = hub.on_subscribe
        hub.on_subscribe = lambda: portal.loop.call_soon_threadsafe(nudge) and None

    def run(self, call: Call[T], mode: Mode) -> T:
        return self._portal.call(self._engine.run(call, mode))

    async def run_on_loop(self, call: Call[T], mode: Mode) -> T:
        """The same for byte stores, which live on the portal's loop."""
        return await self._engine.run(call, mode)

    def begin(self, max_ms: int, connection: object) -> SyncPostgresTransaction:
        if connection is not None:
            raise InvalidArgument("connection", "only AsyncStore takes the caller's connection: it belongs to the caller's loop")
        starting = self._portal.submit(self._engine.begin(max_ms, None))
        try:
            return SyncPostgresTransaction(self._portal, settle(starting))
        except KeyboardInterrupt:
            if starting.exception() is None:
                self._portal.call(starting.result().rollback())
            raise

    def close(self) -> None:
        self._portal.call(self._engine.close())


class SyncPostgresTransaction:
    """An interactive transaction for a thread."""

    def __init__(self, portal: Portal, transaction: AsyncTransaction) -> None:
        self._portal = portal
        self._transaction = transaction

    def run(self, call: Call[T]) -> T:
        return self._portal.call(self._transaction.run(call))

    def execute(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        return self._portal.call(self._transaction.execute(sql, *params))

    def commit(self) -> None:
        self._portal.call(self._transaction.commit())

    def rollback(self) -> None:
        self._portal.call(self._transaction.rollback())


def _connect_to(listen: Target | None) -> Connect | None:
    if listen is None:
        return None

    async def connect() -> Connection:
        connection: Any = await asyncpg.connect(listen.dsn, timeout=CONNECT_S)
        return connection

    return connect


async def _answered(work: Callable[[], Coroutine[Any, Any, T]], answer: asyncio.Future[T]) -> None:
    """Run `work` to its end and say how it ended; a caller that was cancelled listens no more."""
    try:
        result = await work()
    except GeneratorExit:  # the loop was closed meanwhile, and nobody can be told
        raise
    except asyncio.CancelledError:
        answer.cancel()
        raise
    except BaseException as error:
        if not answer.done():
            answer.set_exception(error)
        del answer
        if not isinstance(error, Exception):
            raise
    else:
        if not answer.done():
            answer.set_result(result)


async def _abandon(starting: asyncio.Task[AsyncTransaction]) -> None:
    """Nobody waits for this transaction any more: end it as soon as it has begun."""
    await asyncio.wait([starting])
    if not starting.cancelled() and starting.exception() is None:
        await starting.result().rollback()
