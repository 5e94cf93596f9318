"""The pool: who gets which connection, and which connection nobody gets again."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import asyncpg
import pytest

from lash_store.db.pool import BorrowedPool, OwnPool
from lash_store.errors import Busy, Misuse, Unavailable


class Wire:
    """A connection that only remembers what was done to it."""

    def __init__(self) -> None:
        self.closed = ""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        raise AssertionError(query)

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> list[Any]:
        raise AssertionError(query)

    async def close(self, *, timeout: float | None = None) -> None:
        self.closed = "politely"

    def is_closed(self) -> bool:
        return bool(self.closed)

    def is_in_transaction(self) -> bool:
        return False

    def terminate(self) -> None:
        self.closed = "at once"


class Server:
    """Opens wires, and counts them; its clock stands still unless moved."""

    def __init__(self) -> None:
        self.wires: list[Wire] = []
        self.refuse = False
        self.now = 1000.0

    async def connect(self) -> Wire:
        if self.refuse:
            raise Unavailable("no server.")
        self.wires.append(Wire())
        return self.wires[-1]

    def pool(self, size: int = 2, acquire_ms: int = 5_000) -> OwnPool:
        return OwnPool(
            self.connect, size=size, acquire_ms=acquire_ms, idle_ms=60_000, lifetime_ms=300_000, clock=lambda: self.now
        )


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def settled() -> None:
    """Let every task that can run, run."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_connection_is_opened_when_needed_and_used_again() -> None:
    async def scenario() -> None:
        server = Server()
        pool = server.pool()
        first = await pool.acquire()
        await pool.release(first, broken=False)
        assert await pool.acquire() is first
        assert len(server.wires) == 1

    run(scenario())


def test_the_connection_used_last_is_handed_out_first() -> None:
    """It is warm: its statements are prepared, its functions compiled."""

    async def scenario() -> None:
        pool = Server().pool(size=3)
        taken = [await pool.acquire() for _ in range(3)]
        for connection in (taken[2], taken[0], taken[1]):
            await pool.release(connection, broken=False)
        assert [await pool.acquire() for _ in range(3)] == [taken[1], taken[0], taken[2]]

    run(scenario())


def test_waiters_are_served_in_the_order_they_came() -> None:
    async def scenario() -> None:
        pool = Server().pool(size=1)
        connection = await pool.acquire()
        served: list[int] = []

        async def wait(number: int) -> None:
            got = await pool.acquire()
            served.append(number)
            await pool.release(got, broken=False)

        waiters: list[asyncio.Task[None]] = []
        for number in range(5):
            waiters.append(asyncio.create_task(wait(number)))
            await settled()
        await pool.release(connection, broken=False)
        await asyncio.gather(*waiters)
        assert served == [0, 1, 2, 3, 4]

    run(scenario())


def test_never_more_connections_than_its_size() -> None:
    async def scenario() -> None:
        server = Server()
        pool = server.pool(size=2)

        async def use() -> None:
            connection = await pool.acquire()
            await settled()
            await pool.release(connection, broken=False)

        await asyncio.gather(*(use() for _ in range(20)))
        assert len(server.wires) == 2

    run(scenario())


def test_a_full_pool_is_busy_after_acquire_ms() -> None:
    async def scenario() -> None:
        pool = Server().pool(size=1, acquire_ms=1)
        held = await pool.acquire()
        with pytest.raises(Busy, match="acquire_ms = 1"):
            await pool.acquire()
        await pool.release(held, broken=False)
        assert await pool.acquire() is held

    run(scenario())


def test_a_broken_connection_is_closed_and_its_place_is_free() -> None:
    async def scenario() -> None:
        server = Server()
        pool = server.pool(size=1)
        await pool.release(await pool.acquire(), broken=True)
        assert server.wires[0].closed == "at once"
        assert await pool.acquire() is server.wires[1]

    run(scenario())


def test_a_connection_that_died_while_idle_is_not_handed_out() -> None:
    async def scenario() -> None:
        server = Server()
        pool = server.pool()
        await pool.release(await pool.acquire(), broken=False)
        server.wires[0].terminate()
        assert await pool.acquire() is server.wires[1]

    run(scenario())


@pytest.mark.parametrize(("seconds", "kept"), [(59, True), (61, False)])
def test_an_idle_connection_is_closed_after_its_limit(seconds: int, kept: bool) -> None:
    async def scenario() -> None:
        server = Server()
        pool = server.pool()
        await pool.release(await pool.acquire(), broken=False)
        server.now += seconds
        pool.reap()
        await settled()
        assert server.wires[0].closed == ("" if kept else "politely")

    run(scenario())


def test_a_busy_connection_is_closed_after_its_lifetime() -> None:
    async def scenario() -> None:
        server = Server()
        pool = server.pool()
        for _ in range(10):
            await pool.release(await pool.acquire(), broken=False)
            server.now += 40
        await settled()
        assert [wire.closed for wire in server.wires] == ["politely", ""]

    run(scenario())


def test_a_failed_connect_frees_its_place() -> None:
    async def scenario() -> None:
        server = Server()
        pool = server.pool(size=1)
        server.refuse = True
        for _ in range(3):
            with pytest.raises(Unavailable):
                await pool.acquire()
        server.refuse = False
        assert await pool.acquire() is server.wires[0]

    run(scenario())


def test_a_cancelled_waiter_takes_nothing_with_it() -> None:
    async def scenario() -> None:
        pool = Server().pool(size=1)
        held = await pool.acquire()
        waiter = asyncio.create_task(pool.acquire())
        await settled()
        waiter.cancel()
        await settled()
        await pool.release(held, broken=False)
        assert await pool.acquire() is held

    run(scenario())


def test_forgetting_idle_connections_closes_them_all() -> None:
    async def scenario() -> None:
        server = Server()
        pool = server.pool(size=2)
        for connection in [await pool.acquire(), await pool.acquire()]:
            await pool.release(connection, broken=False)
        pool.forget_idle()
        assert [wire.closed for wire in server.wires] == ["at once", "at once"]
        assert await pool.acquire() is server.wires[2]

    run(scenario())


def test_close_waits_for_what_is_out_and_closes_everything() -> None:
    async def scenario() -> None:
        server = Server()
        pool = server.pool(size=2)
        out, idle = await pool.acquire(), await pool.acquire()
        await pool.release(idle, broken=False)
        closing = asyncio.create_task(pool.close())
        await settled()
        assert not closing.done()
        await pool.release(out, broken=False)
        await closing
        assert all(wire.closed for wire in server.wires)
        with pytest.raises(Misuse, match="closed"):
            await pool.acquire()
        await pool.close()

    run(scenario())


def test_close_does_not_wait_forever() -> None:
    async def scenario() -> None:
        server = Server()
        pool = server.pool(size=1, acquire_ms=1)
        await pool.acquire()
        await pool.close()
        assert server.wires[0].closed == "at once"

    run(scenario())


def test_a_callers_pool_is_used_and_left_open(pg_url: str) -> None:
    async def scenario() -> None:
        async with asyncpg.create_pool(pg_url, min_size=0, max_size=1) as theirs:
            pool = BorrowedPool(theirs, acquire_ms=500)
            held = await pool.acquire()
            with pytest.raises(Busy, match="acquire_ms = 500"):
                await pool.acquire()
            await pool.release(held, broken=True)
            again = await pool.acquire()
            assert await again.execute("SELECT 1") == "SELECT 1"
            await pool.release(again, broken=False)
            pool.forget_idle()
            await pool.close()
            assert await theirs.fetchval("SELECT 1") == 1

    run(scenario())
