"""Laws of signals: the N-th wait on a name is satisfied by the N-th signal of that name, whichever came first, from the log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lash_store.errors import (
    InvalidArgument,
    InvalidPayload,
    LeaseLost,
    LimitExceeded,
    ReplayConflict,
    UndeclaredEvent,
)
from lash_store.model.process import Event, Success, Wait
from lash_store.testing.backend import Backend
from lash_store.testing.process_steps import NOTE, lease_of, log, registered, signal_of, types
from lash_store.testing.steps import HOUR_MS, MINUTE_MS, nothing_changes, refused, soon, until

if TYPE_CHECKING:
    from lash_store import AsyncStore

GO = signal_of("go", {"type": "object"})


async def _waits(store: AsyncStore, ordinal: int, name: str = "go") -> bool:
    wait = (await store.processes.get("p")).wait
    return wait is not None and (wait.name, wait.ordinal) == (name, ordinal)


async def _payload(call: asyncio.Task[Event | None]) -> object:
    found = await soon(call)
    assert found is not None, "the signal did not come"
    return found.payload


async def the_nth_wait_gets_the_nth_signal(backend: Backend) -> None:
    """Signals sent before, during and after a wait are consumed in order, each wait once; names do not mix."""
    store = await backend.open()
    await registered(store, "p", GO, signal_of("other"))
    for n in (1, 2):
        await store.processes.signal("p", "go", {"n": n})
    await store.processes.signal("p", "other", "x")
    for n in (1, 2):
        found = await store.processes.wait_signal("p", "go", ordinal=n, timeout_ms=0)
        assert found is not None
        assert found.payload == {"n": n}
    third = asyncio.create_task(store.processes.wait_signal("p", "go", ordinal=3, timeout_ms=20_000))
    await until(lambda: _waits(store, 3))
    await store.processes.signal("p", "go", {"n": 3})
    assert await _payload(third) == {"n": 3}
    again = await store.processes.wait_signal("p", "go", ordinal=1, timeout_ms=0)
    assert again is not None
    assert again.payload == {"n": 1}


async def two_quick_signals_during_one_wait_are_both_kept(backend: Backend) -> None:
    """The second signal is the second wait's, even when both arrive while the first wait lasts."""
    store, sender = await backend.open(), await backend.open()
    await registered(store, "p", GO)
    first = asyncio.create_task(store.processes.wait_signal("p", "go", ordinal=1, timeout_ms=20_000))
    await until(lambda: _waits(store, 1))
    for n in (1, 2):
        await sender.processes.signal("p", "go", {"n": n})
    assert await _payload(first) == {"n": 1}
    second = asyncio.create_task(store.processes.wait_signal("p", "go", ordinal=2, timeout_ms=20_000))
    assert await _payload(second) == {"n": 2}


async def a_wait_is_logged_shown_and_ended(backend: Backend) -> None:
    """While it lasts the process shows it; waiting and resumed are in the log once each, also when the wait is repeated."""
    store = await backend.open()
    await registered(store, "p", GO)
    for ordinal in (1, 2):
        waiter = asyncio.create_task(store.processes.wait_signal("p", "go", ordinal=ordinal, timeout_ms=20_000))
        await until(lambda ordinal=ordinal: _waits(store, ordinal))
        await store.processes.signal("p", "go", {})
        await soon(waiter)
        assert (await store.processes.get("p")).wait is None
    before = await log(store, "p")
    assert types(before) == ["process.waiting", "signal.go", "process.resumed"] * 2
    for ordinal in (1, 2):
        assert await store.processes.wait_signal("p", "go", ordinal=ordinal, timeout_ms=0) is not None
    assert await log(store, "p") == before


async def a_wait_survives_its_worker(backend: Backend) -> None:
    """A worker that died waiting is succeeded by one that waits for the same signal, and gets it, sent meanwhile or later."""
    store, successor = await backend.open(), await backend.open()
    await registered(store, "p", GO)
    assert await store.processes.wait_signal("p", "go", ordinal=1, timeout_ms=0) is None
    since_ms = ((await store.processes.get("p")).wait or Wait(name="", ordinal=1)).since_ms
    await backend.advance(MINUTE_MS)
    assert await successor.processes.wait_signal("p", "go", ordinal=1, timeout_ms=0) is None
    shown = (await store.processes.get("p")).wait
    assert shown == Wait(name="go", ordinal=1, since_ms=since_ms)
    await store.processes.signal("p", "go", {"late": True})
    found = await successor.processes.wait_signal("p", "go", ordinal=1, timeout_ms=0)
    assert found is not None
    assert found.payload == {"late": True}


async def a_signal_from_another_handle_ends_a_wait(backend: Backend) -> None:
    """Signals come from anywhere: the waiter reads the log, not the memory of the process that sent them."""
    store, sender = await backend.open(), await backend.open()
    await registered(store, "p", GO)
    waiter = asyncio.create_task(store.processes.wait_signal("p", "go", ordinal=1, timeout_ms=20_000))
    await until(lambda: _waits(store, 1))
    sent = await sender.processes.signal("p", "go", {"x": 1})
    assert await soon(waiter) == sent.event


async def a_signal_id_is_sent_once(backend: Backend) -> None:
    """The same id with the same content changes nothing, with other content it is a conflict; another name is another signal."""
    store = await backend.open()
    await registered(store, "p", GO, signal_of("other"))
    first = await store.processes.signal("p", "go", {"x": 1}, signal_id="id")
    async with nothing_changes(backend):
        again = await store.processes.signal("p", "go", {"x": 1}, signal_id="id")
        assert (again.event, again.replayed) == (first.event, True)
        with refused(ReplayConflict):
            await store.processes.signal("p", "go", {"x": 2}, signal_id="id")
    assert not (await store.processes.signal("p", "other", {"x": 1}, signal_id="id")).replayed
    assert not (await store.processes.signal("p", "go", {"x": 1})).replayed


async def undeclared_names_and_mistyped_payloads_reach_nobody(backend: Backend) -> None:
    """A refused signal is not in the log and ends no wait; a good one does."""
    store = await backend.open()
    await registered(store, "p", GO)
    waiter = asyncio.create_task(store.processes.wait_signal("p", "go", ordinal=1, timeout_ms=20_000))
    await until(lambda: _waits(store, 1))
    async with nothing_changes(backend):
        with refused(UndeclaredEvent, event_type="signal.stop"):
            await store.processes.signal("p", "stop")
        with refused(InvalidPayload):
            await store.processes.signal("p", "go", "no object")
        for name in ("", "a b", "é", "a.b", "a/b"):
            with refused(InvalidArgument, argument="name"):
                await store.processes.signal("p", name)
            with refused(InvalidArgument):
                await store.processes.wait_signal("p", name, ordinal=1)
        for ordinal in (0, -1):
            with refused(LimitExceeded):
                await store.processes.wait_signal("p", "go", ordinal=ordinal)
    assert not waiter.done()
    await store.processes.signal("p", "go", {})
    assert await _payload(waiter) == {}


async def a_wait_ends_at_its_timeout_and_without_a_signal(backend: Backend) -> None:
    """None after the given time; the signal that comes later is there for the next call."""
    store = await backend.open()
    await registered(store, "p", GO)
    assert await soon(store.processes.wait_signal("p", "go", ordinal=1, timeout_ms=30)) is None
    await store.processes.signal("p", "go", {"late": 1})
    found = await store.processes.wait_signal("p", "go", ordinal=1, timeout_ms=0)
    assert found is not None
    assert found.payload == {"late": 1}


async def a_superseded_worker_does_not_end_its_successors_wait(backend: Backend) -> None:
    """A worker that lost its lease while it waited learns so; what its successor waits for by then is still shown."""
    store, other = await backend.open(), await backend.open()
    await registered(store, "p", GO, NOTE)
    old = await lease_of(store, "p", "a", lease_ms=MINUTE_MS)
    slow = asyncio.create_task(store.processes.wait_signal("p", "go", ordinal=1, timeout_ms=20_000, lease=old))
    await until(lambda: _waits(store, 1))
    await backend.advance(HOUR_MS)
    new = await lease_of(other, "p", "b")
    async with other.transaction() as tx:
        # The successor takes the first signal and waits for the second before the old worker can look.
        await tx.processes.signal("p", "go", {"n": 1})
        await tx.processes.append(
            "p",
            "process.resumed",
            {"signal": "go", "ordinal": 1},
            replay_key="process:p:resumed:signal.go:1",
            lease=new,
        )
        await tx.processes.set_wait("p", Wait(name="go", ordinal=2))
    with refused(LeaseLost):
        await soon(slow)
    assert await _waits(store, 2)


async def a_host_process_waits_for_signals_without_any_session(backend: Backend) -> None:
    """Registered by the host, nobody's, it waits, is asked to stop, is signalled, and ends."""
    store = await backend.open()
    process = await registered(store, "p", GO)
    assert (process.originator, process.wake_target) == (None, None)
    waiter = asyncio.create_task(store.processes.wait_signal("p", "go", ordinal=1, timeout_ms=20_000))
    await until(lambda: _waits(store, 1))
    assert not (await store.processes.cancel("p", reason="requested by host")).terminal
    await store.processes.signal("p", "go", {"ok": 1})
    assert await _payload(waiter) == {"ok": 1}
    assert (await store.processes.complete("p", Success())).terminal
    assert types(await log(store, "p")) == [
        "process.waiting",
        "process.cancel_requested",
        "signal.go",
        "process.resumed",
        "process.completed",
    ]
