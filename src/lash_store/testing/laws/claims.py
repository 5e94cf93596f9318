"""Laws of claims: prefixes, boundaries, leases, fences, settlement, and claiming over all sessions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import structs

from lash_store.errors import ClaimLost, LimitExceeded
from lash_store.model.queue import BatchState, Boundary, Claim, Delivery, Slot
from lash_store.testing.backend import Backend
from lash_store.testing.steps import (
    HOUR_MS,
    MINUTE_MS,
    batch_ids,
    claimed,
    count,
    nothing_changes,
    of_type,
    outcomes,
    refused,
    say,
    texts,
    work,
)

if TYPE_CHECKING:
    from lash_store import AsyncStore

CHECKPOINT = Boundary.ACTIVE_TURN_CHECKPOINT
AFTER_COMMIT = Delivery.AFTER_CURRENT_TURN_COMMIT


async def a_claim_is_the_longest_prefix_that_may_run_together(backend: Backend) -> None:
    """Join batches with the same delivery and merge key share a claim, up to the maximum, in order."""
    store = await _inbox(backend)
    await work(store, "s", "a1", "a2", merge_key="a")
    await work(store, "s", "b", merge_key="b")
    await work(store, "s", "a-after", merge_key="a", delivery=AFTER_COMMIT)
    groups = [texts((await claimed(store, "s", max_batches=10)).batches) for _ in range(3)]
    assert groups == [["a1", "a2"], ["b"], ["a-after"]]


async def a_claim_takes_no_more_than_it_asked_for(backend: Backend) -> None:
    """The maximum cuts the prefix; the next claim takes the rest; then there is nothing."""
    store = await _inbox(backend)
    await work(store, "s", "1", "2", "3", "4")
    assert texts((await claimed(store, "s", max_batches=3)).batches) == ["1", "2", "3"]
    assert texts((await claimed(store, "s", max_batches=3)).batches) == ["4"]
    assert await store.queue.claim("s", "w", lease_ms=1000) is None


async def an_exclusive_batch_is_claimed_alone(backend: Backend) -> None:
    """An exclusive head comes alone, and an exclusive batch further on ends the run before it."""
    store = await _inbox(backend)
    await work(store, "s", "x", slot=Slot.EXCLUSIVE)
    await work(store, "s", "j1", "j2")
    await work(store, "s", "y", slot=Slot.EXCLUSIVE)
    groups = [texts((await claimed(store, "s", max_batches=10)).batches) for _ in range(3)]
    assert groups == [["x"], ["j1", "j2"], ["y"]]


async def work_for_after_the_turn_blocks_a_claim_inside_a_turn(backend: Backend) -> None:
    """At a checkpoint of a running turn a head that waits for the commit blocks; between turns it comes first."""
    store = await _inbox(backend)
    await work(store, "s", "A", delivery=AFTER_COMMIT)
    await work(store, "s", "B")
    for most in (1, 10):
        assert await store.queue.claim("s", "w", lease_ms=1000, boundary=CHECKPOINT, max_batches=most) is None
    first = await claimed(store, "s", max_batches=10)
    assert texts(first.batches) == ["A"]
    assert texts((await claimed(store, "s", boundary=CHECKPOINT)).batches) == ["B"]
    await store.queue.abandon(first)
    again = await claimed(store, "s")
    assert texts(again.batches) == ["A"]
    assert again.fence > first.fence


async def a_run_may_span_work_that_is_not_ready(backend: Backend) -> None:
    """Delayed, parked and held batches are skipped, and do not split the run around them."""
    store = await _inbox(backend)
    await work(store, "s", "held", slot=Slot.EXCLUSIVE)
    await claimed(store, "s")
    await work(store, "s", "j1")
    await work(store, "s", "later", delay_ms=HOUR_MS)
    parked = (await work(store, "s", "parked"))[0]
    await store.queue.park("s", parked.batch_id, reason="x")
    await work(store, "s", "j2")
    assert texts((await claimed(store, "s", max_batches=10)).batches) == ["j1", "j2"]


async def an_exact_claim_takes_the_named_prefix_or_nothing(backend: Backend) -> None:
    """Queue order cannot be skipped: other ids than the next prefix give None and change nothing."""
    store = await _inbox(backend)
    first, second = await work(store, "s", "first", "second", slot=Slot.EXCLUSIVE)
    async with nothing_changes(backend):
        for ids in ([second.batch_id], [second.batch_id, first.batch_id], ["none"]):
            assert await store.queue.claim_exact("s", "w", ids, lease_ms=HOUR_MS) is None
    assert batch_ids((await store.queue.pending("s")).batches) == [first.batch_id, second.batch_id]
    claim = await store.queue.claim_exact("s", "w", [first.batch_id], lease_ms=HOUR_MS)
    assert claim is not None and batch_ids(claim.batches) == [first.batch_id]
    assert batch_ids((await store.queue.pending("s")).batches) == [second.batch_id]


async def an_exact_claim_may_name_several(backend: Backend) -> None:
    """All named batches are claimed together, or none."""
    store = await _inbox(backend)
    ids = batch_ids(await work(store, "s", "1", "2", "3"))
    async with nothing_changes(backend):
        assert await store.queue.claim_exact("s", "w", [ids[0], ids[2]], lease_ms=HOUR_MS) is None
    claim = await store.queue.claim_exact("s", "w", ids[:2], lease_ms=HOUR_MS)
    assert claim is not None and batch_ids(claim.batches) == ids[:2]


async def held_work_is_not_handed_out_and_its_owner_may_renew(backend: Backend) -> None:
    """While a lease lives nobody else gets the batch; renewing keeps claim, token, fence and batches."""
    store, other = await _inbox(backend), await backend.open()
    await work(store, "s", "job")
    claim = await claimed(store, "s", "a", lease_ms=MINUTE_MS)
    assert claim.expires_ms == claim.claimed_ms + MINUTE_MS
    assert await other.queue.claim("s", "b", lease_ms=1000) is None
    renewed = await store.queue.renew(claim, lease_ms=HOUR_MS)
    assert renewed == structs.replace(claim, expires_ms=renewed.expires_ms)
    assert renewed.expires_ms >= claim.claimed_ms + HOUR_MS
    await backend.advance(2 * MINUTE_MS)
    assert await other.queue.claim("s", "b", lease_ms=1000) is None
    assert await store.queue.settle(renewed) == 1


async def of_many_claimers_one_gets_the_batch(backend: Backend) -> None:
    """Claimers that race for one batch: exactly one winner, no error, and the winner can renew."""
    stores = [await backend.open() for _ in range(3)]
    await stores[0].sessions.create("s")
    for _ in range(3):
        await work(stores[0], "s", "job")
        claims = await asyncio.gather(*(stores[i % 3].queue.claim("s", f"w{i}", lease_ms=HOUR_MS) for i in range(6)))
        won = of_type(claims, Claim)
        assert len(won) == 1
        await stores[0].queue.settle(await stores[0].queue.renew(won[0], lease_ms=HOUR_MS))


async def claimers_of_one_session_share_its_work_without_overlap(backend: Backend) -> None:
    """Many batches, many claimers at once: each batch is handed out once, and none is left behind."""
    stores = [await backend.open() for _ in range(3)]
    await stores[0].sessions.create("s")
    expected = batch_ids(await work(stores[0], "s", *(str(n) for n in range(12))))
    claims = await asyncio.gather(*(stores[i % 3].queue.claim("s", f"w{i}", lease_ms=HOUR_MS, max_batches=2) for i in range(6)))
    got = [batch_id for claim in of_type(claims, Claim) for batch_id in batch_ids(claim.batches)]
    assert sorted(got) == sorted(expected)


async def a_lease_lasts_exactly_as_long_as_it_says_on_the_databases_clock(backend: Backend) -> None:
    """Before its expiry work is held, after it it can be claimed again, with a higher fence and one more attempt."""
    store = await _inbox(backend)
    await work(store, "s", "job")
    first = await claimed(store, "s", "a", lease_ms=HOUR_MS)
    await backend.advance(HOUR_MS - MINUTE_MS)
    assert await store.queue.claim("s", "b", lease_ms=1000) is None
    await backend.advance(MINUTE_MS)
    second = await claimed(store, "s", "b")
    assert second.fence > first.fence
    assert second.token != first.token
    assert (first.batches[0].attempts, second.batches[0].attempts) == (1, 2)
    assert second.claimed_ms >= first.claimed_ms + HOUR_MS


async def a_clock_that_steps_back_frees_nothing_early(backend: Backend) -> None:
    """When the database's clock jumps backwards a lease is held longer, never shorter, and fences still grow."""
    store = await _inbox(backend)
    await work(store, "s", "job")
    first = await claimed(store, "s", "a", lease_ms=HOUR_MS)
    await backend.advance(-10 * HOUR_MS)
    assert await store.queue.claim("s", "b", lease_ms=1000) is None
    await backend.advance(12 * HOUR_MS)
    assert (await claimed(store, "s", "b")).fence > first.fence
    with refused(ClaimLost):
        await store.queue.settle(first)


async def a_paused_worker_cannot_settle_after_its_work_was_reclaimed(backend: Backend) -> None:
    """After a re-claim the former owner can neither settle, renew nor abandon; the heir can."""
    store = await _inbox(backend)
    batch = (await work(store, "s", "job"))[0]
    stale = await claimed(store, "s", "paused", lease_ms=MINUTE_MS)
    await backend.advance(2 * MINUTE_MS)
    heir = await claimed(store, "s", "heir")
    async with nothing_changes(backend):
        with refused(ClaimLost, batch_id=batch.batch_id, held_fence=stale.fence, actual_fence=heir.fence):
            await store.queue.settle(stale)
        with refused(ClaimLost):
            await store.queue.renew(stale, lease_ms=HOUR_MS)
        with refused(ClaimLost):
            await say(store, "s", "a", completes=[stale])
        assert await store.queue.abandon(stale) == 0
    assert await store.queue.settle(heir) == 1


async def the_same_owner_reclaiming_is_another_claim(backend: Backend) -> None:
    """Ownership is the token of one claim, not the owner's name."""
    store = await _inbox(backend)
    await work(store, "s", "job")
    first = await claimed(store, "s", "w", lease_ms=MINUTE_MS)
    await backend.advance(2 * MINUTE_MS)
    second = await claimed(store, "s", "w")
    assert (second.token, second.claim_id) != (first.token, first.claim_id)
    with refused(ClaimLost):
        await store.queue.settle(first)
    with refused(ClaimLost):
        await store.queue.settle(structs.replace(first, fence=second.fence))
    assert await store.queue.settle(second) == 1


async def a_passed_lease_still_settles_until_someone_reclaims(backend: Backend) -> None:
    """Expiry only lets others claim; while nobody did, the token settles and renews."""
    store = await _inbox(backend)
    await work(store, "s", "one", "two", slot=Slot.EXCLUSIVE)
    one = await claimed(store, "s", lease_ms=MINUTE_MS)
    two = await claimed(store, "s", lease_ms=MINUTE_MS)
    await backend.advance(HOUR_MS)
    assert await store.queue.settle(one) == 1
    await store.queue.renew(two, lease_ms=HOUR_MS)
    assert await store.queue.claim("s", "b", lease_ms=1000) is None
    await say(store, "s", "a", completes=[two])
    assert (await store.queue.list("s")).batches == ()


async def a_claim_settles_once(backend: Backend) -> None:
    """The second settlement of a claim is ClaimLost, in sequence and at once."""
    stores = [await backend.open() for _ in range(2)]
    await stores[0].sessions.create("s")
    for _ in range(3):
        await work(stores[0], "s", "job")
        claim = await claimed(stores[0], "s")
        results = await outcomes(*(stores[i % 2].queue.settle(claim) for i in range(4)))
        assert sorted(type(result).__name__ for result in results) == ["ClaimLost", "ClaimLost", "ClaimLost", "int"]
        with refused(ClaimLost, actual_fence=None):
            await stores[0].queue.settle(claim)


async def a_forged_token_settles_nothing(backend: Backend) -> None:
    """Every listed batch must be owned by the token: one that is not refuses them all."""
    store = await _inbox(backend)
    await work(store, "s", "one", "two")
    claim = await claimed(store, "s", max_batches=2)
    later = (await work(store, "s", "unclaimed"))[0]
    forged = [
        structs.replace(claim, token="forged"),
        structs.replace(claim.completion(), batch_ids=(claim.batches[0].batch_id, later.batch_id)),
        structs.replace(claim.completion(), batch_ids=(claim.batches[0].batch_id, "none")),
    ]
    async with nothing_changes(backend):
        for bad in forged:
            with refused(ClaimLost, session_id="s"):
                await store.queue.settle(bad)
            with refused(ClaimLost):
                await say(store, "s", "a", completes=[bad])
    assert await store.queue.settle(claim) == 2


async def renewing_is_all_or_nothing(backend: Backend) -> None:
    """A claim that lost one of its batches extends none of them."""
    store = await _inbox(backend)
    first, _ = await work(store, "s", "one", "two")
    claim = await claimed(store, "s", max_batches=2, lease_ms=MINUTE_MS)
    await store.queue.settle(claim.completion([first.batch_id]))
    async with nothing_changes(backend):
        with refused(ClaimLost, batch_id=first.batch_id):
            await store.queue.renew(claim, lease_ms=HOUR_MS)


async def abandoned_work_is_ready_at_once_and_abandoning_twice_is_no_error(backend: Backend) -> None:
    """Abandon releases what the claim still holds and counts it; a stale or repeated one releases nothing."""
    store = await _inbox(backend)
    await work(store, "s", "one", "two")
    claim = await claimed(store, "s", max_batches=2)
    assert await store.queue.abandon(claim) == 2
    assert await store.queue.abandon(claim) == 0
    assert [batch.state for batch in (await store.queue.list("s")).batches] == [BatchState.READY] * 2
    with refused(ClaimLost):
        await store.queue.settle(claim)
    assert (await claimed(store, "s", max_batches=2)).fence > claim.fence


async def repeating_a_claim_with_its_token_returns_the_same_claim(backend: Backend) -> None:
    """A claim whose answer was lost is had again by its token, and takes nothing more."""
    store = await _inbox(backend)
    await work(store, "s", "one", "two", slot=Slot.EXCLUSIVE)
    first = await claimed(store, "s", token="nonce-1")
    again = await claimed(store, "s", token="nonce-1")
    assert (again.claim_id, again.token, again.fence, batch_ids(again.batches)) == (
        first.claim_id,
        first.token,
        first.fence,
        batch_ids(first.batches),
    )
    assert (await store.queue.depth("s")).ready == 1
    taken = await store.queue.claim_next("w", lease_ms=HOUR_MS, concurrent=True, token="nonce-2")
    assert taken is not None and texts(taken.batches) == ["two"]
    same = await store.queue.claim_next("w", lease_ms=HOUR_MS, concurrent=True, token="nonce-2")
    assert same is not None and same.claim_id == taken.claim_id


async def claims_of_one_session_never_touch_another(backend: Backend) -> None:
    """Each session's inbox has its own order, claims and keys."""
    store = await _inbox(backend)
    await store.sessions.create("other")
    await work(store, "s", "mine")
    await work(store, "other", "theirs")
    assert texts((await claimed(store, "other", max_batches=10)).batches) == ["theirs"]
    assert texts((await claimed(store, "s", max_batches=10)).batches) == ["mine"]


async def a_claim_has_a_bounded_size(backend: Backend) -> None:
    """Asking for nothing or for more than the limit is refused before any write."""
    store = await _inbox(backend)
    await work(store, "s", "job")
    async with nothing_changes(backend):
        for most in (0, 1001, -1):
            with refused(LimitExceeded):
                await store.queue.claim("s", "w", lease_ms=1000, max_batches=most)
        with refused(LimitExceeded):
            await store.queue.claim("s", "w", lease_ms=-1)
        with refused(LimitExceeded):
            await store.queue.claim("s", "w", lease_ms=2**62)


async def the_next_claim_is_the_session_that_waits_longest(backend: Backend) -> None:
    """Over all sessions the oldest ready work comes first; a busy session does not hide the others."""
    store = await backend.open()
    for session_id, text in (("a", "a1"), ("b", "b1"), ("a", "a2"), ("c", "c1")):
        await store.sessions.create(session_id)
        await work(store, session_id, text)
        await backend.advance(10)
    order: list[str] = []
    for _ in range(4):
        claim = await store.queue.claim_next("w", lease_ms=HOUR_MS)
        assert claim is not None
        order += texts(claim.batches)
        await store.queue.settle(claim)
    assert order == ["a1", "b1", "a2", "c1"]
    assert await store.queue.claim_next("w", lease_ms=HOUR_MS) is None


async def the_next_claim_leaves_a_session_with_a_live_claim_alone(backend: Backend) -> None:
    """One worker per session unless asked otherwise; settling, abandoning and expiry make it free again."""
    store = await _inbox(backend)
    await work(store, "s", "1", "2", "3", slot=Slot.EXCLUSIVE)
    first = await store.queue.claim_next("a", lease_ms=HOUR_MS)
    assert first is not None
    assert await store.queue.claim_next("b", lease_ms=HOUR_MS) is None
    beside = await store.queue.claim_next("b", lease_ms=MINUTE_MS, concurrent=True)
    assert beside is not None and texts(beside.batches) == ["2"]
    await store.queue.settle(first)
    assert await store.queue.claim_next("a", lease_ms=HOUR_MS) is None
    await backend.advance(2 * MINUTE_MS)
    after = await store.queue.claim_next("a", lease_ms=HOUR_MS)
    assert after is not None and texts(after.batches) == ["2"]
    await store.queue.abandon(after)
    again = await store.queue.claim_next("a", lease_ms=HOUR_MS)
    assert again is not None and texts(again.batches) == ["2"]


async def a_live_claim_made_by_name_also_makes_its_session_busy(backend: Backend) -> None:
    """claim_next respects claims that were made with claim, and those settled by a commit free the session."""
    store = await _inbox(backend)
    await work(store, "s", "1", "2", slot=Slot.EXCLUSIVE)
    held = await claimed(store, "s")
    assert await store.queue.claim_next("b", lease_ms=HOUR_MS) is None
    await say(store, "s", "a", completes=[held])
    claim = await store.queue.claim_next("b", lease_ms=HOUR_MS)
    assert claim is not None and texts(claim.batches) == ["2"]


async def the_next_claim_finds_work_as_it_becomes_due(backend: Backend) -> None:
    """Delayed, parked, re-leased and deleted work is not handed out; what becomes due is."""
    store = await _inbox(backend)
    for session_id in ("parked", "deleted"):
        await store.sessions.create(session_id)
    await work(store, "s", "later", delay_ms=HOUR_MS)
    poison = (await work(store, "parked", "poison"))[0]
    await store.queue.park("parked", poison.batch_id, reason="x")
    await work(store, "deleted", "gone")
    await store.sessions.delete("deleted")
    assert await store.queue.claim_next("w", lease_ms=MINUTE_MS) is None
    await backend.advance(2 * HOUR_MS)
    first = await store.queue.claim_next("w", lease_ms=MINUTE_MS)
    assert first is not None and texts(first.batches) == ["later"]
    await backend.advance(2 * MINUTE_MS)
    second = await store.queue.claim_next("w", lease_ms=MINUTE_MS)
    assert second is not None and second.fence > first.fence
    await store.queue.unpark("parked", poison.batch_id)
    third = await store.queue.claim_next("w", lease_ms=MINUTE_MS)
    assert third is not None and third.session_id == "parked"


async def many_workers_claim_many_sessions_without_overlap(backend: Backend) -> None:
    """As many workers as ready sessions, all at once: each gets one, none is told there is nothing."""
    stores = [await backend.open() for _ in range(3)]
    for n in range(9):
        await stores[0].sessions.create(f"s{n}")
        await work(stores[0], f"s{n}", "x", "y", slot=Slot.EXCLUSIVE)
    claims = await asyncio.gather(*(stores[i % 3].queue.claim_next(f"w{i}", lease_ms=HOUR_MS) for i in range(9)))
    assert sorted(claim.session_id for claim in of_type(claims, Claim)) == [f"s{n}" for n in range(9)]
    assert await stores[0].queue.claim_next("w", lease_ms=HOUR_MS) is None


async def work_is_done_in_order_and_each_batch_settled_once(backend: Backend) -> None:
    """Workers that claim, commit and settle drain the inbox in enqueue order, one settlement per batch."""
    stores = [await backend.open() for _ in range(2)]
    await stores[0].sessions.create("s")
    expected = [f"j{n}" for n in range(10)]
    await work(stores[0], "s", *expected, slot=Slot.EXCLUSIVE)

    async def worker(store: AsyncStore, name: str) -> None:
        while await count(backend, "batches", "s"):
            claim = await store.queue.claim_next(name, lease_ms=HOUR_MS)
            if claim is not None:
                await say(store, "s", claim.batches[0].payloads[0]["text"], completes=[claim])

    await asyncio.gather(*(worker(store, f"w{i}") for i, store in enumerate(stores)))
    assert [node.node_id for node in (await stores[0].sessions.load("s")).nodes] == expected


async def a_token_used_again_does_not_settle_what_an_earlier_fence_named(backend: Backend) -> None:
    """The fence is part of the proof: a completion of an earlier claim is lost, even if its token was used again."""
    store = await backend.open()
    await store.sessions.create("s")
    await work(store, "s", "one")
    first = await store.queue.claim("s", "w", lease_ms=MINUTE_MS, token="mine")
    assert first is not None
    await store.queue.abandon(first)
    second = await store.queue.claim("s", "w", lease_ms=MINUTE_MS, token="mine")
    assert second is not None
    assert second.fence > first.fence
    with refused(ClaimLost):
        await store.queue.settle(first)
    assert await store.queue.settle(second) == 1


async def _inbox(backend: Backend) -> AsyncStore:
    store = await backend.open()
    await store.sessions.create("s")
    return store
