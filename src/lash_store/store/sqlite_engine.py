"""A SQLite file behind a runtime: the driver's threads, the doorbell, and the thread that looks for all waiters."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from lash_store.db.driver import Call, Mode, RingHook, ThreadTransaction
from lash_store.db.sqlite import SqliteDriver
from lash_store.db.sqlite_transaction import SqliteTransaction
from lash_store.errors import InvalidArgument
from lash_store.notify.doorbell import Bell, Watcher, best_signal
from lash_store.notify.hub import AsyncSubscription, Hub, SyncSubscription
from lash_store.ops.statement import Ring
from lash_store.store.portal import in_thread, settle
from lash_store.store.url import Target

log = logging.getLogger("lash_store")

T = TypeVar("T")
BELL_SUFFIX = "-bell"


class SqliteEngine:
    """One open file and everything that hears or rings for it. Its methods block; the two classes below wait for it."""

    name = "sqlite"

    def __init__(self, target: Target, hub: Hub[Any], open_driver: Callable[[RingHook], SqliteDriver]) -> None:
        assert target.path is not None
        self.hub = hub
        self._bell = None if target.in_memory else Bell(target.path + BELL_SUFFIX)
        self.driver = open_driver(self._rung)
        self._watcher = Watcher(hub, self._look, lambda: best_signal(target.path or "", self._bell))
        self._beginning = ThreadPoolExecutor(1, "lash-store-begin")
        hub.on_subscribe = self._watcher.nudge

    def begin(self, max_ms: int, connection: object) -> Future[SqliteTransaction]:
        """Wait for the write lock in a thread of its own: only one transaction can hold it, so one thread is enough."""
        if connection is not None:
            raise InvalidArgument("connection", "only AsyncStore on PostgreSQL takes the caller's connection")
        return self._beginning.submit(self.driver.begin, max_ms)

    def close(self) -> None:
        """End the watcher, then the driver, which finishes what it has begun."""
        self.hub.close()
        self._watcher.close()
        self.driver.close()
        self._beginning.shutdown()
        if self._bell is not None:
            self._bell.close()

    def _rung(self, rings: Sequence[Ring]) -> None:
        # Called by the writer after COMMIT: our own waiters first, then the other processes.
        if not rings:
            return
        self.hub.ring(rings)
        if self._bell is not None:
            self._bell.ring()

    def _look(self, kinds: Sequence[str]) -> None:
        for kind, call in self.hub.looks(kinds):
            try:
                self.hub.found(kind, self.driver.submit(call, Mode.READ).result())
            except Exception as error:  # noqa: BLE001 - the look must go on for the other waiters, whatever one of them met
                log.warning("the slow look for %s failed (%s); the next one follows", kind, type(error).__name__)


class AsyncSqlite:
    """The engine for tasks. A cancelled task leaves its operation running to its end."""

    def __init__(self, engine: SqliteEngine, hub: Hub[AsyncSubscription]) -> None:
        self.name = engine.name
        self.hub = hub
        self.driver = engine.driver
        self._engine = engine
        self._answers = Answers()

    async def run(self, call: Call[T], mode: Mode) -> T:
        return await self._answers.of(self._engine.driver.submit(call, mode))

    async def begin(self, max_ms: int, connection: object) -> AsyncSqliteTransaction:
        starting = self._engine.begin(max_ms, connection)
        try:
            return AsyncSqliteTransaction(await finished(starting))
        except asyncio.CancelledError:
            starting.add_done_callback(_abandon)
            raise

    async def close(self) -> None:
        await asyncio.to_thread(self._engine.close)


class AsyncSqliteTransaction:
    """An interactive transaction for a task."""

    def __init__(self, transaction: ThreadTransaction) -> None:
        self._transaction = transaction

    async def run(self, call: Call[T]) -> T:
        return await finished(self._transaction.run(call))

    async def execute(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        return await finished(self._transaction.execute(sql, *params))

    async def commit(self) -> None:
        await finished(self._transaction.commit())

    async def rollback(self) -> None:
        await finished(self._transaction.rollback())


class SyncSqlite:
    """The engine for threads: straight to the driver, no event loop between."""

    def __init__(self, engine: SqliteEngine, hub: Hub[SyncSubscription]) -> None:
        self.name = engine.name
        self.hub = hub
        self.driver = engine.driver
        self._engine = engine

    def run(self, call: Call[T], mode: Mode) -> T:
        return settle(self._engine.driver.submit(call, mode))

    async def run_on_loop(self, call: Call[T], mode: Mode) -> T:
        """The same for byte stores, which live on the portal's loop."""
        return await finished(self._engine.driver.submit(call, mode))

    def begin(self, max_ms: int, connection: object) -> SyncSqliteTransaction:
        starting = self._engine.begin(max_ms, connection)
        try:
            return SyncSqliteTransaction(settle(starting))
        except KeyboardInterrupt:
            starting.add_done_callback(_abandon)
            raise

    def close(self) -> None:
        settle(in_thread(self._engine.close))


class SyncSqliteTransaction:
    """An interactive transaction for a thread."""

    def __init__(self, transaction: ThreadTransaction) -> None:
        self._transaction = transaction

    def run(self, call: Call[T]) -> T:
        return settle(self._transaction.run(call))

    def execute(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        return settle(self._transaction.execute(sql, *params))

    def commit(self) -> None:
        settle(self._transaction.commit())

    def rollback(self) -> None:
        settle(self._transaction.rollback())


class Answers:
    """Brings what the driver's threads answer to one event loop: a group of commits wakes it once."""

    def __init__(self) -> None:
        self._arrived: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._called = False
        self._lock = threading.Lock()

    async def of(self, future: Future[T]) -> T:
        """Await a driver's future without ever cancelling it."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[T] = loop.create_future()
        future.add_done_callback(partial(self._arrive, loop, waiter))
        return await waiter

    def _arrive(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[Any], answer: Future[Any]) -> None:
        self._arrived.append((waiter, answer))
        with self._lock:
            if self._called:
                return
            self._called = True
        with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            self._called = False  # before looking: who arrives from now on calls again
        while self._arrived:
            waiter, answer = self._arrived.popleft()
            if waiter.done():
                continue  # its task was cancelled
            if (error := answer.exception()) is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(answer.result())


async def finished(future: Future[T]) -> T:
    """Await a driver's future without ever cancelling it."""
    return await Answers().of(future)


def _abandon(starting: Future[SqliteTransaction]) -> None:
    """Nobody waits for this transaction any more: end it as soon as it has begun."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().rollback()
