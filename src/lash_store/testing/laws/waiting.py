"""Laws of waiting: nobody misses what happened, nobody waits longer than told, nobody polls a clock of their own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lash_store.errors import NotFound, SessionDeleted
from lash_store.model.commit import CommitRecord
from lash_store.testing.backend import Backend
from lash_store.testing.steps import HOUR_MS, MINUTE_MS, claimed, refused, say, soon, watched, work

if TYPE_CHECKING:
    from lash_store import AsyncStore


async def a_follower_sees_every_commit_once_and_in_order(backend: Backend) -> None:
    """Commits of several handles reach a follower gapless, whether made before or after it started."""
    writers, reader = [await backend.open() for _ in range(2)], await backend.open()
    await say(writers[0], "s", "n0")
    seen = asyncio.create_task(_follow(reader, 13, after=0))
    await asyncio.gather(*(say(writers[i % 2], "s", f"n{i}") for i in range(1, 13)))
    records = await soon(seen)
    assert [record.revision for record in records] == list(range(1, 14))
    assert {record.leaf_id for record in records} == {f"n{i}" for i in range(13)}


async def a_follower_without_a_start_sees_only_what_is_new(backend: Backend) -> None:
    """Following from now on skips the past and misses nothing after it."""
    store, other = await backend.open(), await backend.open()
    await say(store, "s", "old")
    follower = store.sessions.follow("s")
    first = asyncio.ensure_future(anext(follower))
    await _until_waiting(first)
    await say(other, "s", "new")
    assert (await soon(first)).revision >= 2
    await follower.aclose()  # pyright: ignore[reportAttributeAccessIssue]


async def a_follower_of_the_own_handle_is_woken(backend: Backend) -> None:
    """A commit through the same handle wakes its followers."""
    store = await backend.open()
    await store.sessions.create("s")
    seen = asyncio.create_task(_follow(store, 3, after=0))
    for n in range(3):
        await say(store, "s", f"n{n}")
    assert [record.revision for record in await soon(seen)] == [1, 2, 3]


async def a_follower_learns_that_its_session_is_gone(backend: Backend) -> None:
    """After a deletion the iterator ends or raises SessionDeleted; it does not wait forever."""
    store, other = await backend.open(), await backend.open()
    await say(store, "s", "a")

    async def follow() -> None:
        async for _ in store.sessions.follow("s", after=0):
            pass

    task = asyncio.create_task(follow())
    await other.sessions.delete("s")
    done, _ = await asyncio.wait([task], timeout=20)
    assert done, "the follower of a deleted session still waits"
    assert isinstance(task.exception(), SessionDeleted | None)


async def following_an_unknown_session_is_not_found(backend: Backend) -> None:
    """There is nothing to follow before the session exists."""
    store = await backend.open()
    with refused(NotFound, kind="session"):
        await soon(anext(store.sessions.follow("none")))


async def ready_work_is_seen_at_once(backend: Backend) -> None:
    """wait_ready checks before it sleeps: what is ready needs no wake-up."""
    store = await backend.open()
    await store.sessions.create("s")
    await work(store, "s", "job")
    assert await soon(store.queue.wait_ready("s", timeout_ms=20_000))
    assert await soon(store.queue.wait_ready(timeout_ms=20_000))


async def a_wait_ends_at_its_timeout(backend: Backend) -> None:
    """Without work the answer is False, after the given time and not before work would come."""
    store = await backend.open()
    await store.sessions.create("s")
    assert not await soon(store.queue.wait_ready("s", timeout_ms=30))
    assert not await soon(store.queue.wait_ready(timeout_ms=30))
    assert not await soon(store.queue.wait_ready("s", timeout_ms=0))


async def new_work_wakes_who_waits_for_its_session_and_for_any(backend: Backend) -> None:
    """An enqueue through another handle wakes both kinds of waiters, and not those of other sessions."""
    store, other = await backend.open(), await backend.open()
    for session_id in ("s", "quiet"):
        await store.sessions.create(session_id)
    waiters = [asyncio.create_task(store.queue.wait_ready(name, timeout_ms=15_000)) for name in ("s", None)]
    quiet = asyncio.create_task(store.queue.wait_ready("quiet", timeout_ms=300))
    await _until_waiting(*waiters)
    await work(other, "s", "job")
    assert await soon(asyncio.gather(*waiters)) == [True, True]
    assert await soon(quiet) is False


async def work_that_becomes_claimable_again_wakes(backend: Backend) -> None:
    """Abandon, unpark and a follow-up of a commit wake like an enqueue."""
    store, other = await backend.open(), await backend.open()
    await store.sessions.create("s")
    batch = (await work(store, "s", "job"))[0]
    claim = await claimed(store, "s")
    waiter = asyncio.create_task(store.queue.wait_ready("s", timeout_ms=15_000))
    await _until_waiting(waiter)
    await other.queue.abandon(claim)
    assert await soon(waiter)
    await other.queue.park("s", batch.batch_id, reason="x")
    waiter = asyncio.create_task(store.queue.wait_ready("s", timeout_ms=15_000))
    await _until_waiting(waiter)
    await other.queue.unpark("s", batch.batch_id)
    assert await soon(waiter)


async def delayed_work_and_passed_leases_wake_by_the_databases_clock(backend: Backend) -> None:
    """When the clock passes a due time or the end of a lease, a waiter sees it without any write."""
    store = await backend.open()
    await store.sessions.create("s")
    await work(store, "s", "later", delay_ms=HOUR_MS)
    waiter = asyncio.create_task(store.queue.wait_ready("s", timeout_ms=15_000))
    await _until_waiting(waiter)
    await backend.advance(2 * HOUR_MS)
    assert await soon(waiter)
    await claimed(store, "s", lease_ms=MINUTE_MS)
    waiter = asyncio.create_task(store.queue.wait_ready("s", timeout_ms=15_000))
    await _until_waiting(waiter)
    await backend.advance(2 * MINUTE_MS)
    assert await soon(waiter)


async def many_waiters_cost_the_database_little(backend: Backend) -> None:
    """Idle waiters share one slow look: sixty of them take a handful of statements a second, and all are woken."""
    store, statements = await watched(backend)
    await store.sessions.create("s")
    waiters = [asyncio.create_task(store.queue.wait_ready("s", timeout_ms=20_000)) for _ in range(60)]
    await _until_quiet(statements)
    before = len(statements)
    await asyncio.sleep(1)
    assert len(statements) - before <= 20
    await work(store, "s", "job")
    assert all(await soon(asyncio.gather(*waiters)))


async def _follow(store: AsyncStore, number: int, *, after: int | None) -> list[CommitRecord]:
    records: list[CommitRecord] = []
    async for record in store.sessions.follow("s", after=after):
        records.append(record)
        if len(records) == number:
            break
    return records


async def _until_waiting(*tasks: asyncio.Future[Any]) -> None:
    """Let waiters reach their sleep. They must also see what happens before it; this only makes the sleep likely."""
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in tasks)


async def _until_quiet(statements: list[str]) -> None:
    """Until every waiter has looked once and sleeps: no statement for a while."""
    seen = -1
    while len(statements) != seen:
        seen = len(statements)
        await asyncio.sleep(0.3)
