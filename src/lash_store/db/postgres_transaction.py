"""Several operations and the application's own SQL in one PostgreSQL transaction.

Each runs in a savepoint, so that a refusal leaves the transaction usable. Nothing is run again by the driver in here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from lash_store.db.driver import Call, RingHook, Running
from lash_store.db.pool import Pool, is_gone
from lash_store.db.postgres_errors import DATABASE_ERRORS, is_ours
from lash_store.db.postgres_session import Session
from lash_store.errors import Busy, Misuse, StoreError, Unavailable
from lash_store.ops.statement import Ring

T = TypeVar("T")

IDLE_GRACE_MS = 1_000  # the server's own limit on a forgotten transaction comes after ours


class PostgresTransaction:
    """An open transaction. `nested` says that it is a savepoint of the caller's, whose COMMIT publishes it."""

    def __init__(self, session: Session, pool: Pool | None, *, max_ms: int, deadline: float, deliver: RingHook) -> None:
        self.nested = pool is None and session.connection.is_in_transaction()
        self.ended = asyncio.Event()
        self._session = session
        self._pool = pool  # None: the connection is the caller's
        self._max_ms, self._deadline = max_ms, deadline
        self._deliver = deliver
        self._rings: list[Ring] = []
        self._lock = asyncio.Lock()
        self._error: StoreError = Misuse("closed", "the transaction has ended; open another one.")
        self._timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.Task[None] | None = None

    async def start(self, begin: str) -> None:
        """Begin; called once, by the driver."""
        idle_ms = self._max_ms + IDLE_GRACE_MS
        if self.nested:
            begin = "SAVEPOINT lash_transaction"
        elif self._pool is not None:
            begin = f"{begin}; SET LOCAL idle_in_transaction_session_timeout = {idle_ms}"
        try:
            await self._session.control(begin)
        except BaseException as error:
            self._session.broken = True
            await self._leave()
            if isinstance(error, Busy) and self._is_late():
                raise self._too_long() from None
            raise
        if self._pool is not None:
            # The caller's own connection may be in use by the caller: there we look at the clock at each call.
            self._timer = asyncio.get_running_loop().call_at(self._deadline, self._watch)

    async def run(self, call: Call[T]) -> T:
        """Run one operation in its own savepoint."""
        running = Running(call)
        statement = running.start()
        async with self._turn():
            if statement is not None:
                await self._in_savepoint(lambda: self._session.run(running, statement))
            self._rings.extend(running.rings)
        return running.result

    async def execute(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """Run the application's SQL, parameters as $1, $2 …, in its own savepoint.

        Errors about its SQL and its data are asyncpg's own; those about the connection, locks and time are ours.
        """
        async with self._turn():
            rows = await self._in_savepoint(lambda: self._application(sql, params))
        return [tuple(row) for row in rows]

    async def _application(self, sql: str, params: tuple[object, ...]) -> list[Any]:
        try:
            rows = await self._session.connection.fetch(sql, *params, timeout=self._session.remaining_s())
        except DATABASE_ERRORS as error:
            if not is_ours(error, gone=is_gone(self._session.connection)):
                raise
            failure = self._session.note(error)
        else:
            return self._still_inside(rows)
        raise failure.error

    def _still_inside(self, rows: list[Any]) -> list[Any]:
        if not self._session.connection.is_in_transaction():
            self._session.broken = True
            raise Misuse("in-transaction", "the application's SQL ended the transaction; leave COMMIT and ROLLBACK to the store.")
        return rows

    async def commit(self) -> None:
        """Publish everything, then wake those who wait for it."""
        async with self._turn():
            try:
                await (self._session.control("RELEASE SAVEPOINT lash_transaction") if self.nested else self._session.commit())
            finally:
                await self._leave()
        self._deliver(self._rings)

    def take_rings(self) -> list[Ring]:
        """The rings so far, which the caller delivers itself."""
        taken, self._rings = self._rings, []
        return taken

    async def rollback(self) -> None:
        """Undo everything. A transaction that has ended already stays as it ended."""
        async with self._lock:
            if not self.ended.is_set():
                await self._undo()

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None, None]:
        """One call at a time, on a transaction that is open and in time."""
        async with self._lock:
            await self._check()
            try:
                yield
            except BaseException:
                if not self.ended.is_set():
                    await self._after_failure()
                raise

    async def _check(self) -> None:
        if not self.ended.is_set() and self._is_late():
            await self._expire()
        if self.ended.is_set():
            raise self._error

    async def _after_failure(self) -> None:
        if self._session.broken:
            self._error = Unavailable("the transaction's connection was lost. Nothing was written; run the transaction again.")
            await self._leave()
        elif self._is_late():
            await self._expire()
            raise self._error from None

    async def _in_savepoint(self, work: Callable[[], Awaitable[T]]) -> T:
        await self._session.control("SAVEPOINT lash_operation")
        try:
            answer = await work()
        except BaseException:
            await self._session.end_surely("ROLLBACK TO SAVEPOINT lash_operation; RELEASE SAVEPOINT lash_operation")
            raise
        await self._session.control("RELEASE SAVEPOINT lash_operation")
        return answer

    def _is_late(self) -> bool:
        return asyncio.get_running_loop().time() >= self._deadline

    def _watch(self) -> None:
        self._expiry = asyncio.get_running_loop().create_task(self._expire_idle())

    async def _expire_idle(self) -> None:
        # A call in progress holds the lock; its own time limit ends it, and then it expires the transaction itself.
        async with self._lock:
            if not self.ended.is_set():
                await self._expire()

    async def _expire(self) -> None:
        self._error = self._too_long()
        await self._undo()

    def _too_long(self) -> Busy:
        return Busy(f"the transaction took longer than max_ms = {self._max_ms}")

    async def _undo(self) -> None:
        try:
            nested = "ROLLBACK TO SAVEPOINT lash_transaction; RELEASE SAVEPOINT lash_transaction"
            await self._session.end(nested if self.nested else "ROLLBACK")
        finally:
            await self._leave()

    async def _leave(self) -> None:
        self.ended.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._pool is not None:
            await self._pool.release(self._session.connection, broken=self._session.broken)
