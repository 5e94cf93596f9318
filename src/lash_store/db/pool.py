"""Connections to PostgreSQL. The one used last goes out first; those who wait are served in the order they came.

A warm connection has its statements prepared and its functions compiled, which takes a cold one some twenty milliseconds.
No round trip is spent on resetting one: an operation leaves none dirty.
A connection that broke, or failed while it committed, is closed and never handed out again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import asyncpg

from lash_store.db.postgres_errors import DATABASE_ERRORS, Versions, understand
from lash_store.errors import Busy, Misuse

_log = logging.getLogger("lash_store")

IDLE_MS = 10 * 60 * 1000  # an unused connection costs the server memory
LIFETIME_MS = 30 * 60 * 1000  # a backend grows with what it caches, and a failed-over host must be left some time
LATELY_MS = 1_000  # a connection in use cannot have died unnoticed for long
CLOSE_MS = 5_000  # a polite goodbye; after it the socket is dropped


class Connection(Protocol):
    """What we use of an asyncpg connection, also of one a caller's pool wraps."""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str: ...
    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[Any]: ...
    async def close(self, *, timeout: float | None = None) -> None: ...
    def is_closed(self) -> bool: ...
    def is_in_transaction(self) -> bool: ...
    def terminate(self) -> None: ...


def is_gone(connection: Connection) -> bool:
    """Whether the connection is closed. A caller's pool takes a closed one back at once, and then it may not even be asked."""
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True


class Pool(Protocol):
    """Where a driver gets its connections."""

    async def acquire(self) -> Connection: ...
    async def release(self, connection: Connection, *, broken: bool) -> None: ...
    def was_used_lately(self, connection: Connection) -> bool: ...
    def forget_idle(self) -> None: ...
    async def close(self) -> None: ...


class OwnPool:
    """At most `size` connections. `connect` opens one; `clock` gives seconds and is a parameter for tests."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        *,
        size: int,
        acquire_ms: int,
        idle_ms: int = IDLE_MS,
        lifetime_ms: int = LIFETIME_MS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._size, self._acquire_ms = size, acquire_ms
        self._idle_s, self._lifetime_s = idle_ms / 1000, lifetime_ms / 1000
        self._clock = clock
        self._slots = asyncio.Semaphore(size)  # wakes its waiters in the order they came
        self._idle: deque[Connection] = deque()
        self._born: dict[Connection, float] = {}
        self._used: dict[Connection, float] = {}  # when it last answered
        self._goodbyes: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.TimerHandle | None = None
        self._closed = False

    async def acquire(self) -> Connection:
        """A connection nobody else has. Waits at most `acquire_ms` for its turn and for the server, then Busy."""
        if self._closed:
            raise Misuse("closed", "the connection pool is closed.")
        if not self._slots.locked() and (idle := self._take_idle()) is not None:
            await self._slots.acquire()  # a place is free: this neither waits nor needs a timer
            return idle
        try:
            async with asyncio.timeout(self._acquire_ms / 1000):
                await self._slots.acquire()
                return await self._in_slot()
        except TimeoutError:
            raise Busy(f"no connection became free within acquire_ms = {self._acquire_ms}") from None

    async def _in_slot(self) -> Connection:
        try:
            return self._take_idle() or await self._open()
        except BaseException:
            self._slots.release()
            raise

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if self._is_fresh(connection):
                return connection
            self._retire(connection)
        return None

    async def _open(self) -> Connection:
        connection = await self._connect()
        self._born[connection] = self._used[connection] = self._clock()
        return connection

    async def release(self, connection: Connection, *, broken: bool) -> None:
        """Hand the connection to the longest waiter. A broken one is closed; the waiter opens another."""
        if broken or self._closed:
            self._drop(connection)
        else:
            self._used[connection] = self._clock()
            self._idle.append(connection)
            self._schedule_reaping()
        self._slots.release()

    def reap(self) -> None:
        """Close the idle connections that are dead, unused for long, or old."""
        looked_at, self._idle = self._idle, deque()
        for connection in looked_at:
            if self._is_fresh(connection):
                self._idle.append(connection)
            else:
                self._retire(connection)

    def _is_fresh(self, connection: Connection) -> bool:
        now = self._clock()
        young = now - self._born[connection] < self._lifetime_s
        return young and now - self._used[connection] < self._idle_s and not connection.is_closed()

    def _schedule_reaping(self) -> None:
        # Without traffic nobody else would look at the connections that stay.
        if self._reaper is None:
            self._reaper = asyncio.get_running_loop().call_later(min(self._idle_s, self._lifetime_s), self._reap_later)

    def _reap_later(self) -> None:
        self._reaper = None
        self.reap()
        if self._idle:
            self._schedule_reaping()

    def was_used_lately(self, connection: Connection) -> bool:
        """Whether the connection answered within the last second."""
        return self._clock() - self._used[connection] < LATELY_MS / 1000

    def forget_idle(self) -> None:
        """Close every idle connection: the server went away, and they went with it."""
        while self._idle:
            self._drop(self._idle.popleft())

    def _drop(self, connection: Connection) -> None:
        self._born.pop(connection, None)
        self._used.pop(connection, None)
        connection.terminate()

    def _retire(self, connection: Connection) -> None:
        del self._born[connection], self._used[connection]
        task = asyncio.get_running_loop().create_task(_goodbye(connection))
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)

    async def close(self) -> None:
        """Wait for the connections that are out, at most `acquire_ms`, then close them all."""
        if self._closed:
            return
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._acquire_ms / 1000):
                for _ in range(self._size):
                    await self._slots.acquire()
        while self._idle:
            self._retire(self._idle.popleft())
        for connection in list(self._born):
            self._drop(connection)
        await asyncio.gather(*self._goodbyes)


async def _goodbye(connection: Connection) -> None:
    try:
        await connection.close(timeout=CLOSE_MS / 1000)
    except DATABASE_ERRORS:
        connection.terminate()


class BorrowedPool:
    """A caller's asyncpg pool, with its own size, limits and reset. It stays open when the store closes."""

    def __init__(self, pool: Any, *, acquire_ms: int) -> None:
        self._pool = pool
        self._acquire_ms = acquire_ms

    async def acquire(self) -> Connection:
        """A connection of the caller's pool, or Busy after `acquire_ms`."""
        try:
            connection: Connection = await self._pool.acquire(timeout=self._acquire_ms / 1000)
            return connection
        except TimeoutError:
            failure = Busy(f"the given pool had no connection free within acquire_ms = {self._acquire_ms}")
        except DATABASE_ERRORS as error:
            failure = understand(error, Versions(found=0, expected=0), gone=True).error
        raise failure

    async def release(self, connection: Connection, *, broken: bool) -> None:
        """Back to its pool, which replaces a terminated one."""
        if broken and not is_gone(connection):
            connection.terminate()
        try:
            await self._pool.release(connection)
        except DATABASE_ERRORS:
            # The reset of the caller's pool failed and it dropped the connection; what was committed stays committed.
            _log.warning("a connection could not be returned to the given pool", exc_info=True)

    def was_used_lately(self, connection: Connection) -> bool:
        """Unknown: it is the caller's."""
        return False

    def forget_idle(self) -> None:
        """Its owner's pool finds dead connections by itself."""

    async def close(self) -> None:
        """It is not ours to close."""
