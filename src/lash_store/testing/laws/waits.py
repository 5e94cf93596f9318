"""Laws of waiting on processes: for an output, an event, the log or work; nothing missed, never too long, at little cost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from lash_store.errors import LimitExceeded, NotFound
from lash_store.model.process import Event, Success
from lash_store.testing.backend import Backend
from lash_store.testing.process_steps import NOTE, OTHER, lease_of, log, next_of, notes, registered, sequences
from lash_store.testing.steps import HOUR_MS, MINUTE_MS, refused, soon, watched

if TYPE_CHECKING:
    from lash_store import AsyncStore

IDLE_WAITERS = 1_000
IDLE_THREADS = 100  # a waiter of the sync store is a thread, and the laws have a bounded number of them
LOOK_SECONDS = 3


async def an_output_is_awaited_or_there_at_once(backend: Backend) -> None:
    """Waiters of other handles get the output when the process ends; later ones at once, exactly as it was given."""
    store, other = await backend.open(), await backend.open()
    await registered(store, "p")
    waiters = [asyncio.create_task(handle.processes.await_output("p", timeout_ms=20_000)) for handle in (store, other)]
    await _asleep(*waiters)
    await store.processes.complete("p", Success({"ok": True}))
    assert await soon(asyncio.gather(*waiters)) == [Success({"ok": True})] * 2
    assert await other.processes.await_output("p") == Success({"ok": True})


async def an_event_is_awaited_by_type_and_sequence(backend: Backend) -> None:
    """The first of the type after the sequence: at once if it is there, else when it comes; others do not count."""
    store, other = await backend.open(), await backend.open()
    await registered(store, "p", NOTE, OTHER)
    for event_type in ("note", "other", "note"):
        await store.processes.append("p", event_type)
    found = await soon(store.processes.wait_event("p", "note", after=1))
    assert found is not None
    assert found.sequence == 3
    waiter = asyncio.create_task(store.processes.wait_event("p", "other", after=3, timeout_ms=20_000))
    await _asleep(waiter)
    await other.processes.append("p", "note")
    await _asleep(waiter)
    appended = await other.processes.append("p", "other", "x")
    assert await soon(waiter) == appended.event
    assert appended.event.sequence == 5


async def every_wait_ends_at_its_timeout(backend: Backend) -> None:
    """None, or False, after the given time; a timeout below zero or beyond ten years is refused."""
    store = await backend.open()
    await registered(store, "p", NOTE, kind="external")
    for timeout_ms in (0, 30):
        assert await soon(store.processes.await_output("p", timeout_ms=timeout_ms)) is None
        assert await soon(store.processes.wait_event("p", "note", timeout_ms=timeout_ms)) is None
        assert await soon(store.processes.wait_runnable(timeout_ms=timeout_ms)) is False
    for bad in (-1, 10**15):
        for call in (
            lambda bad=bad: store.processes.await_output("p", timeout_ms=bad),
            lambda bad=bad: store.processes.wait_event("p", "note", timeout_ms=bad),
            lambda bad=bad: store.processes.wait_runnable(timeout_ms=bad),
        ):
            with refused(LimitExceeded):
                await call()


async def a_follower_sees_every_event_once_in_order_up_to_the_end(backend: Backend) -> None:
    """Events of several handles, made before and after it began, reach a follower gapless; the end is its last."""
    writers, reader = [await backend.open() for _ in range(2)], await backend.open()
    await registered(writers[0], "p", NOTE)
    await writers[0].processes.append("p", "note", 0)
    follower = asyncio.create_task(_follow(reader, after=0))
    await asyncio.gather(*(writers[n % 2].processes.append("p", "note", n) for n in range(1, 12)))
    await writers[1].processes.complete("p", Success())
    events = await soon(follower)
    assert sequences(events) == list(range(1, 14))
    assert events == await log(writers[0], "p")
    assert sequences(await soon(_follow(reader, after=11))) == [12, 13]
    assert await soon(_follow(reader, after=13)) == []


async def a_follower_reads_a_long_log_in_pages(backend: Backend) -> None:
    """More events than a page holds arrive without a gap."""
    store = await backend.open()
    await registered(store, "p", NOTE)
    await store.processes.append_many("p", notes(250))
    await store.processes.complete("p", Success())
    assert sequences(await soon(_follow(store, after=0))) == list(range(1, 252))


async def a_wait_that_begins_beside_the_event_misses_nothing(backend: Backend) -> None:
    """Subscribe, then check, then sleep: whenever the event comes, the waiter has it without waiting for a slow look."""
    store, other = await backend.open(), await backend.open()
    for n in range(25):
        process_id = f"p{n}"
        await registered(store, process_id, NOTE)
        results = await soon(
            asyncio.gather(
                store.processes.wait_event(process_id, "note", timeout_ms=15_000),
                other.processes.append(process_id, "note", n),
                store.processes.await_output(process_id, timeout_ms=15_000),
                _completed(other, process_id),
            )
        )
        assert (results[0].payload if results[0] else None, results[2]) == (n, Success(n))


async def waiters_learn_that_their_process_was_pruned(backend: Backend) -> None:
    """Nobody waits forever for an event that can never come."""
    store, other = await backend.open(), await backend.open()
    await registered(store, "p", NOTE)
    await store.processes.complete("p", Success())
    waiter = asyncio.create_task(store.processes.wait_event("p", "note", timeout_ms=20_000))
    await _asleep(waiter)
    await other.processes.prune(older_than_ms=0)
    with refused(NotFound, kind="process", retention=True):
        await soon(waiter)


async def workers_are_woken_by_new_and_by_released_work(backend: Backend) -> None:
    """wait_runnable sees a registration, a release and a broken lease of other handles, and what is there already."""
    store, other = await backend.open(), await backend.open()
    await _wakes(store, registered(other, "p"))
    assert await soon(store.processes.wait_runnable(timeout_ms=20_000))
    (leased,) = await next_of(store)
    await _wakes(store, other.processes.release(leased.lease))
    await lease_of(store, "p")
    await _wakes(store, other.processes.break_lease("p"))


async def a_passed_lease_wakes_workers_by_the_databases_clock(backend: Backend) -> None:
    """When the clock passes the end of a lease, a waiting worker sees it without any write."""
    store = await backend.open()
    await registered(store, "p")
    await lease_of(store, "p", lease_ms=HOUR_MS)
    assert not await store.processes.wait_runnable(timeout_ms=0)
    await _wakes(store, backend.advance(HOUR_MS + MINUTE_MS))


async def a_thousand_idle_waiters_cost_a_handful_of_statements_a_second(backend: Backend) -> None:
    """All waiters of a store share one look: waiting for outputs and events of many processes costs next to nothing."""
    store, statements = await watched(backend)
    number = IDLE_WAITERS if type(store).__name__ == "AsyncStore" else IDLE_THREADS
    names = [f"p{n}" for n in range(10)]
    for name in names:
        await registered(store, name, NOTE)
    waiters: list[asyncio.Task[Any]] = []
    statements.clear()
    for n in range(number // 2):
        waiters.append(asyncio.create_task(store.processes.await_output(names[n % 10], timeout_ms=100_000)))
        waiters.append(asyncio.create_task(store.processes.wait_event(names[n % 10], "note", timeout_ms=100_000)))
    await _quiet(statements, number)
    before = len(statements)
    await asyncio.sleep(LOOK_SECONDS)
    assert len(statements) - before <= 5 * LOOK_SECONDS, f"{len(statements) - before} statements in {LOOK_SECONDS} s"
    assert not any(waiter.done() for waiter in waiters)
    for name in names:
        await store.processes.append(name, "note")
        await store.processes.complete(name, Success())
    assert all(await soon(asyncio.gather(*waiters), seconds=60))


async def _completed(store: AsyncStore, process_id: str) -> object:
    return await store.processes.complete(process_id, Success(int(process_id[1:])))


async def _follow(store: AsyncStore, *, after: int) -> list[Event]:
    return [event async for event in store.processes.follow("p", after=after)]


async def _wakes(store: AsyncStore, act: Awaitable[object]) -> None:
    """A worker that sleeps is woken by what is done."""
    waiter = asyncio.create_task(store.processes.wait_runnable(timeout_ms=20_000))
    await _asleep(waiter)
    await act
    assert await soon(waiter) is True


async def _asleep(*tasks: asyncio.Future[Any]) -> None:
    """Let waiters reach their sleep. They must also see what happens before it; this only makes the sleep likely."""
    await asyncio.sleep(0.1)
    assert not any(task.done() for task in tasks)


async def _quiet(statements: list[str], at_least: int) -> None:
    """Until every waiter has looked once and nobody looks any more. Those who never sleep are measured awake."""
    for _ in range(60):
        seen = len(statements)
        await asyncio.sleep(0.5)
        if len(statements) == seen >= at_least:
            return
