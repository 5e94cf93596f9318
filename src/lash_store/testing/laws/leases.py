"""Laws of leases: one holder at a time, fenced, on the database's clock, over at their expiry, handed out in turn."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from lash_store.errors import AlreadyTerminal, LeaseHeld, LeaseLost, LimitExceeded, Unstorable
from lash_store.model.process import EXTERNAL, Cancelled, EventType, Lease, Leased, ProcessState, Success, Terminal
from lash_store.testing.backend import Backend
from lash_store.testing.process_steps import NOTE, lease_of, log, next_of, process_ids, registered
from lash_store.testing.steps import HOUR_MS, MINUTE_MS, nothing_changes, of_type, outcomes, refused


async def a_live_lease_refuses_every_other_claimer(backend: Backend) -> None:
    """One holder at a time: another owner, and another incarnation of the same one, are told who holds it and until when."""
    store, other = await backend.open(), await backend.open()
    await registered(store, "p")
    lease = await lease_of(store, "p", "a")
    assert (lease.process_id, lease.owner, lease.incarnation, lease.fence) == ("p", "a", "1", 1)
    assert lease.expires_ms == lease.claimed_ms + HOUR_MS
    async with nothing_changes(backend):
        with refused(LeaseHeld, process_id="p", owner="a", expires_ms=lease.expires_ms):
            await lease_of(other, "p", "b")
        with refused(LeaseHeld):
            await lease_of(other, "p", "a", incarnation="2")


async def the_same_incarnation_reclaims_and_its_earlier_token_ends(backend: Backend) -> None:
    """A worker that asks again gets a new token and a higher fence; what it held before is lost."""
    store = await backend.open()
    await registered(store, "p", NOTE)
    first = await lease_of(store, "p", "a")
    second = await lease_of(store, "p", "a")
    assert second.fence == first.fence + 1
    assert second.token != first.token
    with refused(LeaseLost, process_id="p", held_fence=1, actual_fence=2):
        await store.processes.renew(first, lease_ms=HOUR_MS)
    with refused(LeaseLost):
        await store.processes.append("p", "note", lease=first)
    await store.processes.append("p", "note", lease=second)


async def a_claim_repeated_with_its_token_is_the_same_lease(backend: Backend) -> None:
    """A claim whose answer was lost is repeated with its token: the same lease, the same fence."""
    store = await backend.open()
    await registered(store, "p")
    first = await lease_of(store, "p", "a", token="t")
    async with nothing_changes(backend):
        assert await lease_of(store, "p", "a", token="t") == first
        with refused(LeaseHeld):
            await lease_of(store, "p", "b", token="t")


async def of_many_claimers_one_gets_the_process(backend: Backend) -> None:
    """Claims at once have one winner, and no error but LeaseHeld."""
    handles = [await backend.open() for _ in range(3)]
    for n in range(4):
        await registered(handles[0], f"p{n}")
        results = await outcomes(*(lease_of(handles[i % 3], f"p{n}", f"w{i}") for i in range(6)))
        assert len(of_type(results, Lease)) == 1
        assert len(of_type(results, LeaseHeld)) == 5


async def a_lease_ends_at_its_expiry_on_the_databases_clock(backend: Backend) -> None:
    """Until then only its holder acts; from then on renew, append, complete and release are lost, though nobody took over."""
    store = await backend.open()
    await registered(store, "p", NOTE)
    lease = await lease_of(store, "p", "a", lease_ms=HOUR_MS)
    await backend.advance(HOUR_MS - MINUTE_MS)
    await store.processes.append("p", "note", lease=lease)
    with refused(LeaseHeld):
        await lease_of(store, "p", "b")
    await backend.advance(MINUTE_MS)
    async with nothing_changes(backend):
        with refused(LeaseLost):
            await store.processes.renew(lease, lease_ms=HOUR_MS)
        with refused(LeaseLost):
            await store.processes.append("p", "note", lease=lease)
        with refused(LeaseLost):
            await store.processes.complete("p", Success(), lease=lease)
    assert (await lease_of(store, "p", "b")).fence == 2


async def a_lease_of_no_time_is_over_at_once(backend: Backend) -> None:
    """Zero milliseconds are none: the lease cannot be renewed and holds nobody off."""
    store = await backend.open()
    await registered(store, "p")
    lease = await lease_of(store, "p", "a", lease_ms=0)
    with refused(LeaseLost):
        await store.processes.renew(lease, lease_ms=HOUR_MS)
    assert (await lease_of(store, "p", "b")).fence == 2
    with refused(LeaseLost, held_fence=1, actual_fence=2):
        await store.processes.renew(lease, lease_ms=HOUR_MS)
    for lease_ms in (-1, 10**15):
        with refused(LimitExceeded):
            await lease_of(store, "p", "b", lease_ms=lease_ms)


async def a_renewed_lease_outlives_its_first_expiry(backend: Backend) -> None:
    """Renewal counts from now, keeps token and fence, and may also shorten."""
    store = await backend.open()
    await registered(store, "p")
    lease = await lease_of(store, "p", "a", lease_ms=MINUTE_MS)
    await backend.advance(MINUTE_MS // 2)
    renewed = await store.processes.renew(lease, lease_ms=HOUR_MS)
    assert (renewed.token, renewed.fence, renewed.claimed_ms) == (lease.token, lease.fence, lease.claimed_ms)
    await backend.advance(2 * MINUTE_MS)
    shorter = await store.processes.renew(renewed, lease_ms=MINUTE_MS)
    assert shorter.expires_ms < renewed.expires_ms
    with refused(LeaseHeld):
        await lease_of(store, "p", "b")
    await backend.advance(MINUTE_MS)
    assert (await lease_of(store, "p", "b")).fence == 2


async def every_part_of_a_lease_is_checked(backend: Backend) -> None:
    """A lease with another token, owner, incarnation or fence than the stored one renews nothing and fences nothing."""
    store = await backend.open()
    await registered(store, "p", NOTE)
    lease = await lease_of(store, "p", "a")
    forged = [
        replace(lease, token="x"),
        replace(lease, owner="b"),
        replace(lease, incarnation="2"),
        replace(lease, fence=7),
        replace(lease, fence=0),
    ]
    async with nothing_changes(backend):
        for other in forged:
            with refused(LeaseLost):
                await store.processes.renew(other, lease_ms=HOUR_MS)
            with refused(LeaseLost):
                await store.processes.append("p", "note", lease=other)
            with refused(LeaseLost):
                await store.processes.complete("p", Success(), lease=other)
        for nothing in (None, "lease"):
            with refused(Unstorable):
                await store.processes.renew(nothing, lease_ms=HOUR_MS)  # type: ignore[arg-type]


async def a_renewal_and_a_takeover_at_once_have_one_holder(backend: Backend) -> None:
    """Around the expiry either the old holder renews or a new one takes over, and only that one can append."""
    store, other = await backend.open(), await backend.open()
    for n in range(6):
        process_id = f"p{n}"
        await registered(store, process_id, NOTE)
        old = await lease_of(store, process_id, "a", lease_ms=MINUTE_MS)
        results = await outcomes(
            store.processes.renew(old, lease_ms=HOUR_MS),
            backend.advance(MINUTE_MS),
            lease_of(other, process_id, "b"),
        )
        holders = of_type(results, Lease)
        if not holders:  # the renewal came too late and the takeover too early
            holders = [await lease_of(other, process_id, "b")]
        assert len(holders) == 1, results
        await store.processes.append(process_id, "note", lease=holders[0])
        losers = [lease for lease in (old, *of_type(results, Lease)) if lease.token != holders[0].token]
        for lease in losers:
            with refused(LeaseLost):
                await store.processes.append(process_id, "note", lease=lease)


async def the_fence_grows_across_release_and_expiry(backend: Backend) -> None:
    """Fences only grow: after a release, an expiry, a break and an end, for every owner."""
    store = await backend.open()
    await registered(store, "p")
    fences: list[int] = []
    for n in range(3):
        lease = await lease_of(store, "p", f"w{n}")
        fences.append(lease.fence)
        assert await store.processes.release(lease)
        fences.append((await lease_of(store, "p", "x", lease_ms=0)).fence)
    fences.append(await store.processes.break_lease("p"))
    lease = await lease_of(store, "p", "y")
    await store.processes.complete("p", Success(), lease=lease)
    fences += [lease.fence, (await lease_of(store, "p", "z")).fence]
    assert fences == sorted(set(fences))


async def a_stale_lease_releases_nothing(backend: Backend) -> None:
    """Giving back what was taken over is no error and changes nothing; the present holder goes on."""
    store = await backend.open()
    await registered(store, "p")
    old = await lease_of(store, "p", "a", lease_ms=0)
    new = await lease_of(store, "p", "b")
    async with nothing_changes(backend):
        assert await store.processes.release(old) is False
        with refused(LeaseHeld):
            await lease_of(store, "p", "c")
    await store.processes.renew(new, lease_ms=HOUR_MS)
    assert await store.processes.release(new) is True
    assert await store.processes.release(new) is False
    await store.processes.complete("p", Success())
    await store.processes.prune(older_than_ms=0)
    assert await store.processes.release(new) is False


async def a_broken_lease_is_lost_to_its_holder(backend: Backend) -> None:
    """The host takes a process from whoever holds it; the old holder's writes are refused, and anybody may claim."""
    store = await backend.open()
    await registered(store, "p", NOTE)
    lease = await lease_of(store, "p", "a")
    fence = await store.processes.break_lease("p")
    assert fence == lease.fence + 1
    with refused(LeaseLost, held_fence=lease.fence, actual_fence=fence):
        await store.processes.append("p", "note", lease=lease)
    assert (await lease_of(store, "p", "b")).fence == fence + 1


# --- ending ---------------------------------------------------------------------------------------------------------------


async def a_completion_with_a_lease_checks_ends_and_releases_in_one(backend: Backend) -> None:
    """The holder ends the process and holds nothing any more; repeating it after the lost answer changes nothing."""
    store = await backend.open()
    await registered(store, "p")
    lease = await lease_of(store, "p", "a")
    ended = await store.processes.complete("p", Success(1), lease=lease)
    assert ended.state is ProcessState.COMPLETED
    async with nothing_changes(backend):
        assert await store.processes.complete("p", Success(1), lease=lease) == ended
        assert await store.processes.release(lease) is False
        with refused(LeaseLost):
            await store.processes.complete("p", Cancelled(message="m"), lease=lease)
        with refused(AlreadyTerminal):
            await store.processes.complete("p", Cancelled(message="m"))
    assert (await lease_of(store, "p", "b")).fence == lease.fence + 1


async def a_superseded_worker_cannot_end_the_process(backend: Backend) -> None:
    """A paused worker whose lease was taken over writes nothing; the process ends with its successor's output."""
    store = await backend.open()
    await registered(store, "p")
    old = await lease_of(store, "p", "a", lease_ms=MINUTE_MS)
    await backend.advance(HOUR_MS)
    new = await lease_of(store, "p", "b")
    async with nothing_changes(backend):
        with refused(LeaseLost):
            await store.processes.complete("p", Success("old"), lease=old)
    assert (await store.processes.complete("p", Success("new"), lease=new)).output == Success("new")
    assert len(await log(store, "p")) == 1


async def without_a_lease_nobody_ends_what_another_one_runs(backend: Backend) -> None:
    """While a lease is live a completion needs it, by whichever event; a cancel request and facts do not."""
    store = await backend.open()
    end = EventType(name="end", terminal=Terminal(state=ProcessState.COMPLETED))
    await registered(store, "p", NOTE, end)
    lease = await lease_of(store, "p", "a")
    async with nothing_changes(backend):
        with refused(LeaseHeld, process_id="p", owner="a", expires_ms=lease.expires_ms):
            await store.processes.complete("p", Success())
        with refused(LeaseHeld):
            await store.processes.append("p", "end", 1, replay_key="end")
    await store.processes.cancel("p", reason="stop")
    await store.processes.append("p", "note")
    await backend.advance(HOUR_MS)
    assert (await store.processes.complete("p", Success())).terminal


# --- handing out ----------------------------------------------------------------------------------------------------------


async def the_longest_runnable_process_is_handed_out_first(backend: Backend) -> None:
    """In the order they became runnable; a released or expired one goes to the end of the line."""
    store = await backend.open()
    for process_id in ("c", "a", "b"):
        await registered(store, process_id)
        await backend.advance(1_000)
    (first,) = await next_of(store)
    assert (first.process.process_id, first.lease.process_id, first.lease.fence) == ("c", "c", 1)
    await store.processes.release(first.lease)
    await backend.advance(1_000)
    assert [process_ids(await next_of(store))[0] for _ in range(3)] == ["a", "b", "c"]
    assert await next_of(store) == ()


async def what_somebody_holds_or_has_ended_is_not_handed_out(backend: Backend) -> None:
    """Only running processes without a live lease; an expired one is handed out again, with a higher fence."""
    store = await backend.open()
    for process_id in ("held", "done", "free"):
        await registered(store, process_id)
    await lease_of(store, "held", "a", lease_ms=HOUR_MS)
    await store.processes.complete("done", Success())
    assert process_ids(await next_of(store, limit=10, lease_ms=2 * HOUR_MS)) == ["free"]
    await backend.advance(HOUR_MS)
    (again,) = await next_of(store, limit=10)
    assert (again.process.process_id, again.lease.fence) == ("held", 2)


async def external_work_is_never_handed_out(backend: Backend) -> None:
    """Nobody runs what is done elsewhere, whatever kinds are asked for; it ends when it is completed."""
    store = await backend.open()
    await registered(store, "p", kind=EXTERNAL)
    assert await next_of(store, limit=10) == ()
    assert await next_of(store, kinds=[EXTERNAL]) == ()
    assert await store.processes.wait_runnable(timeout_ms=0) is False
    lease = await lease_of(store, "p")
    await store.processes.release(lease)
    await store.processes.break_lease("p")
    assert await next_of(store, limit=10) == ()
    assert (await store.processes.get("p")).state is ProcessState.RUNNING
    assert (await store.processes.complete("p", Success("done"))).output == Success("done")


async def a_worker_gets_only_the_kinds_and_the_number_it_asks_for(backend: Backend) -> None:
    """Kinds filter, the limit bounds, and what is left stays for others."""
    store = await backend.open()
    for n in range(4):
        await registered(store, f"a{n}", kind="a")
        await registered(store, f"b{n}", kind="b")
    assert process_ids(await next_of(store, kinds=["b"], limit=3)) == ["b0", "b1", "b2"]
    assert await next_of(store, kinds=["c"]) == ()
    assert await next_of(store, kinds=[]) == ()
    assert len(await next_of(store, kinds=["a", "b"], limit=100)) == 5
    with refused(LimitExceeded, limit="claim_batches"):
        await next_of(store, limit=10_000)
    with refused(LimitExceeded):
        await next_of(store, limit=0)


async def each_process_is_handed_to_one_of_many_workers(backend: Backend) -> None:
    """Workers at once share the work without a repetition; none is told there is nothing while something is free."""
    handles = [await backend.open() for _ in range(3)]
    for n in range(20):
        await registered(handles[0], f"p{n:02}")

    async def drain(n: int) -> list[Leased]:
        mine: list[Leased] = []
        while handed := await next_of(handles[n % 3], f"w{n}", limit=1 + n % 2):
            mine += handed
        return mine

    shares = await asyncio.gather(*(drain(n) for n in range(6)))
    everything = [leased for share in shares for leased in share]
    assert sorted(leased.process.process_id for leased in everything) == [f"p{n:02}" for n in range(20)]
    assert len({leased.lease.token for leased in everything}) == 20


async def a_handed_out_process_can_be_run_to_its_end(backend: Backend) -> None:
    """What claim_next returns is the process and a lease that works; a second sweep finds nothing."""
    store = await backend.open()
    payload: dict[str, Any] = {"do": ["this"]}
    await registered(store, "p", NOTE, payload=payload)
    (leased,) = await next_of(store, "w", incarnation="7")
    assert (leased.process.input.payload, leased.lease.owner, leased.lease.incarnation) == (payload, "w", "7")
    await store.processes.append("p", "note", lease=leased.lease)
    await store.processes.complete("p", Success(), lease=leased.lease)
    assert await next_of(store) == ()
