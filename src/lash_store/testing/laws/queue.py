"""Laws of the inbox: enqueue, source keys, lists, cancel, park. Claims have their own file."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lash_store.errors import ClaimLost, LimitExceeded, NotFound, ReplayConflict
from lash_store.model.limits import SETTLED_KEY_RETENTION_MS
from lash_store.model.queue import BatchDraft, BatchState, Delivery, Slot
from lash_store.testing.backend import Backend
from lash_store.testing.steps import HOUR_MS, MINUTE_MS, batch_ids, claimed, count, nothing_changes, refused, say, texts, work

if TYPE_CHECKING:
    from lash_store import AsyncStore


async def a_batch_comes_back_as_it_was_enqueued(backend: Backend) -> None:
    """Payloads travel with their batch, in order, with every option it was given."""
    store = await backend.open()
    await store.sessions.create("s")
    payloads = [{"type": "turn_input", "z": 1, "a": [None, 1.5, "é"]}, None, "text", []]
    batch = await store.queue.enqueue(
        "s",
        payloads,
        source_key="host:1",
        delivery=Delivery.AFTER_CURRENT_TURN_COMMIT,
        slot=Slot.EXCLUSIVE,
        merge_key="group a",
        max_attempts=3,
    )
    assert list(batch.payloads) == payloads
    assert (batch.delivery, batch.slot, batch.merge_key) == (Delivery.AFTER_CURRENT_TURN_COMMIT, Slot.EXCLUSIVE, "group a")
    assert (batch.state, batch.attempts, batch.max_attempts, batch.source_key) == (BatchState.READY, 0, 3, "host:1")
    assert batch.batch_id.startswith("qwb:")
    other = await backend.open()
    assert (await other.queue.list("s")).batches == (batch,)


async def a_source_key_enqueues_once(backend: Backend) -> None:
    """The same key and content returns the stored batch; lists hold each batch once, in enqueue order, per session."""
    store = await backend.open()
    for session_id in ("s", "other"):
        await store.sessions.create(session_id)
    first = (await work(store, "s", "first", source_key="k"))[0]
    again = (await work(store, "s", "first", source_key="k"))[0]
    second = (await work(store, "s", "second"))[0]
    foreign = (await work(store, "other", "foreign", source_key="k"))[0]
    assert again == first
    listed = (await store.queue.list("s")).batches
    assert batch_ids(listed) == [first.batch_id, second.batch_id]
    assert first.enqueue_seq < second.enqueue_seq
    assert foreign.batch_id != first.batch_id


async def a_source_key_with_other_content_is_a_conflict(backend: Backend) -> None:
    """Whatever part of the work differs, the second use of a key is ReplayConflict and stores nothing."""
    store = await backend.open()
    await store.sessions.create("s")
    await store.queue.enqueue("s", [1], source_key="k")
    changes: list[dict[str, Any]] = [
        {"payloads": [2]},
        {"payloads": [1, 1]},
        {"slot": Slot.EXCLUSIVE},
        {"delivery": Delivery.AFTER_CURRENT_TURN_COMMIT},
        {"merge_key": "group"},
    ]
    async with nothing_changes(backend):
        for change in changes:
            fields: dict[str, Any] = {"payloads": [1], "source_key": "k", **change}
            with refused(ReplayConflict, key="k", owner="s"):
                await store.queue.enqueue("s", **fields)


async def concurrent_enqueues_of_one_key_return_one_batch(backend: Backend) -> None:
    """The loser of a race gets the winner's batch, not an error."""
    stores = [await backend.open() for _ in range(3)]
    await stores[0].sessions.create("s")
    for key in ("k1", "k2", "k3"):
        made = await asyncio.gather(*(stores[i % 3].queue.enqueue("s", [key], source_key=key) for i in range(6)))
        assert len({batch.batch_id for batch in made}) == 1
    assert await count(backend, "batches", "s") == 3


async def a_claimed_batch_still_answers_for_its_key(backend: Backend) -> None:
    """A key is bound while its batch exists, claimed or not."""
    store = await backend.open()
    await store.sessions.create("s")
    first = (await work(store, "s", "job", source_key="k"))[0]
    await claimed(store, "s")
    again = (await work(store, "s", "job", source_key="k"))[0]
    assert (again.batch_id, again.state) == (first.batch_id, BatchState.CLAIMED)


async def a_settled_key_is_remembered_for_its_retention(backend: Backend) -> None:
    """A late retry of settled work gets its id back as settled; after the window the key is free."""
    store = await backend.open()
    await store.sessions.create("s")
    first = (await work(store, "s", "job", source_key="k"))[0]
    await store.queue.settle(await claimed(store, "s"))
    await backend.advance(SETTLED_KEY_RETENTION_MS - HOUR_MS)
    late = (await work(store, "s", "job", source_key="k"))[0]
    assert (late.batch_id, late.state, late.payloads) == (first.batch_id, BatchState.SETTLED, ())
    assert await store.queue.claim("s", "w", lease_ms=1000) is None
    with refused(ReplayConflict):
        await work(store, "s", "other", source_key="k")
    await backend.advance(2 * HOUR_MS)
    fresh = (await work(store, "s", "other", source_key="k"))[0]
    assert fresh.batch_id != first.batch_id
    assert fresh.state == BatchState.READY


async def work_settled_by_a_commit_is_remembered_too(backend: Backend) -> None:
    """A key settled inside a commit does not run again."""
    store = await backend.open()
    await store.sessions.create("s")
    first = (await work(store, "s", "wake", source_key="process:1:event:7:wake"))[0]
    claim = await claimed(store, "s", max_batches=10)
    assert texts(claim.batches) == ["wake"]
    await say(store, "s", "a", completes=[claim])
    late = (await work(store, "s", "wake", source_key="process:1:event:7:wake"))[0]
    assert (late.batch_id, late.state) == (first.batch_id, BatchState.SETTLED)
    assert (await store.queue.list("s")).batches == ()


async def the_retention_of_settled_keys_is_an_option(backend: Backend) -> None:
    """A store opened with a short window forgets sooner."""
    store = await backend.open(settled_key_retention_ms=MINUTE_MS)
    await store.sessions.create("s")
    first = (await work(store, "s", "job", source_key="k"))[0]
    await store.queue.settle(await claimed(store, "s"))
    await backend.advance(2 * MINUTE_MS)
    assert (await work(store, "s", "job", source_key="k"))[0].batch_id != first.batch_id


async def a_given_batch_id_makes_the_retry_safe(backend: Backend) -> None:
    """Repeating an enqueue with its batch id returns the first batch; other content is ReplayConflict."""
    store = await backend.open()
    await store.sessions.create("s")
    first = await store.queue.enqueue("s", [1], batch_id="qwb:1")
    assert first.batch_id == "qwb:1"
    assert await store.queue.enqueue("s", [1], batch_id="qwb:1") == first
    with refused(ReplayConflict):
        await store.queue.enqueue("s", [2], batch_id="qwb:1")
    assert await count(backend, "batches", "s") == 1


async def a_batch_id_in_use_by_other_work_is_a_conflict(backend: Backend) -> None:
    """An id names one batch, with a source key or without: the clash is ReplayConflict, not a database error."""
    store = await backend.open()
    await store.sessions.create("s")
    await store.queue.enqueue("s", [1], batch_id="qwb:job")
    await store.queue.enqueue("s", [1], batch_id="qwb:keyed", source_key="k")
    async with nothing_changes(backend):
        with refused(ReplayConflict):
            await store.queue.enqueue("s", [1], batch_id="qwb:job", source_key="other")
        with refused(ReplayConflict):
            await store.queue.enqueue("s", [2], batch_id="qwb:keyed")


async def one_commit_may_repeat_a_key_only_with_the_same_work(backend: Backend) -> None:
    """Two drafts of one commit under one key are one batch when they agree, and ReplayConflict when they do not."""
    store = await backend.open()
    await store.sessions.create("s")
    same = [BatchDraft(payloads=[1], source_key="k"), BatchDraft(payloads=[1], source_key="k")]
    await say(store, "s", "a", enqueues=same)
    assert await count(backend, "batches", "s") == 1
    async with nothing_changes(backend):
        with refused(ReplayConflict):
            await say(
                store, "s", "b", enqueues=[BatchDraft(payloads=[1], source_key="z"), BatchDraft(payloads=[2], source_key="z")]
            )


async def a_thousand_keyless_enqueues_are_a_thousand_batches(backend: Backend) -> None:
    """Work without a key never collides, over several handles in a tight loop, and positions never repeat."""
    stores = [await backend.open() for _ in range(4)]
    await stores[0].sessions.create("s")

    async def many(store: AsyncStore) -> list[str]:
        return [(await store.queue.enqueue("s", ["same"])).batch_id for _ in range(50)]

    made = await asyncio.gather(*(many(stores[i % 4]) for i in range(20)))
    assert len({batch_id for ids in made for batch_id in ids}) == 1000
    sql = f"SELECT COUNT(DISTINCT enqueue_seq) FROM {backend.table('batches')} WHERE session_id = $1"
    assert await backend.raw(sql, "s") == [(1000,)]


async def cancel_removes_only_work_nobody_holds(backend: Backend) -> None:
    """An unclaimed batch is returned and gone; a live claim's batch is not; after abandon it can be cancelled."""
    store = await backend.open()
    await store.sessions.create("s")
    first = (await work(store, "s", "first"))[0]
    cancelled = await store.queue.cancel("s", first.batch_id)
    assert cancelled is not None and texts([cancelled]) == ["first"]
    assert (await store.queue.list("s")).batches == ()
    second = (await work(store, "s", "second"))[0]
    claim = await claimed(store, "s")
    assert (await store.queue.pending("s")).batches == ()
    assert len((await store.queue.list("s")).batches) == 1
    assert await store.queue.cancel("s", second.batch_id) is None
    assert await store.queue.abandon(claim) == 1
    assert batch_ids((await store.queue.pending("s")).batches) == [second.batch_id]
    gone = await store.queue.cancel("s", second.batch_id)
    assert gone is not None and gone.batch_id == second.batch_id
    assert await store.queue.cancel("s", second.batch_id) is None


async def cancelling_frees_the_key_and_keeps_positions_growing(backend: Backend) -> None:
    """A cancelled batch's key may carry other work; its place in the order is never used again."""
    store = await backend.open()
    await store.sessions.create("s")
    first = (await work(store, "s", "old", source_key="k"))[0]
    await store.queue.cancel("s", first.batch_id)
    second = (await work(store, "s", "new", source_key="k"))[0]
    assert (texts([second]), second.state) == (["new"], BatchState.READY)
    assert second.enqueue_seq > first.enqueue_seq


async def cancel_takes_work_of_a_passed_lease_from_its_owner(backend: Backend) -> None:
    """After its lease a batch may be cancelled, and its former owner can no longer settle it."""
    store = await backend.open()
    await store.sessions.create("s")
    batch = (await work(store, "s", "job"))[0]
    claim = await claimed(store, "s", lease_ms=MINUTE_MS)
    await backend.advance(2 * MINUTE_MS)
    assert await store.queue.cancel("s", batch.batch_id) is not None
    with refused(ClaimLost, actual_fence=None):
        await store.queue.settle(claim)


async def delayed_work_waits_for_its_time_without_blocking(backend: Backend) -> None:
    """A batch that is not due is pending and skipped; when it is due it comes first, by its place."""
    store = await backend.open()
    await store.sessions.create("s")
    await work(store, "s", "later", delay_ms=HOUR_MS, slot=Slot.EXCLUSIVE)
    await work(store, "s", "now", slot=Slot.EXCLUSIVE)
    assert [batch.state for batch in (await store.queue.pending("s")).batches] == [BatchState.DELAYED, BatchState.READY]
    claim = await claimed(store, "s")
    assert texts(claim.batches) == ["now"]
    await store.queue.abandon(claim)
    await backend.advance(2 * HOUR_MS)
    assert texts((await claimed(store, "s")).batches) == ["later"]


async def parked_work_is_set_aside_with_its_reason(backend: Backend) -> None:
    """A parked batch is listed but neither pending nor claimable, until it is unparked."""
    store = await backend.open()
    await store.sessions.create("s")
    first, second = await work(store, "s", "poison", "fine")
    parked = await store.queue.park("s", first.batch_id, reason="fails every time")
    assert (parked.state, parked.parked_reason) == (BatchState.PARKED, "fails every time")
    assert batch_ids((await store.queue.pending("s")).batches) == [second.batch_id]
    assert batch_ids((await store.queue.list("s")).batches) == [first.batch_id, second.batch_id]
    assert texts((await claimed(store, "s", max_batches=5)).batches) == ["fine"]
    back = await store.queue.unpark("s", first.batch_id)
    assert (back.state, back.parked_reason) == (BatchState.READY, None)
    assert texts((await claimed(store, "s")).batches) == ["poison"]


async def work_that_fails_too_often_is_parked(backend: Backend) -> None:
    """After max_attempts claims the next one parks the batch instead of handing it out; unpark starts over."""
    store = await backend.open()
    await store.sessions.create("s")
    poison = (await work(store, "s", "poison", max_attempts=2))[0]
    await work(store, "s", "fine")
    for attempt in (1, 2):
        claim = await claimed(store, "s", lease_ms=MINUTE_MS)
        assert [(batch.batch_id, batch.attempts) for batch in claim.batches] == [(poison.batch_id, attempt)]
        await backend.advance(2 * MINUTE_MS)
    assert texts((await claimed(store, "s", max_batches=5)).batches) == ["fine"]
    assert (await store.queue.depth("s")).parked == 1
    assert (await store.queue.list("s")).batches[0].parked_reason is not None
    await store.queue.unpark("s", poison.batch_id)
    assert texts((await claimed(store, "s")).batches) == ["poison"]


async def parking_what_is_not_there_is_not_found(backend: Backend) -> None:
    """park and unpark name a batch of this session."""
    store = await backend.open()
    for session_id in ("s", "other"):
        await store.sessions.create(session_id)
    foreign = (await work(store, "other", "job"))[0]
    for batch_id in ("none", foreign.batch_id):
        with refused(NotFound, kind="batch", id=batch_id):
            await store.queue.park("s", batch_id, reason="x")
        with refused(NotFound, kind="batch", id=batch_id):
            await store.queue.unpark("s", batch_id)
        assert await store.queue.cancel("s", batch_id) is None


async def depth_counts_by_state(backend: Backend) -> None:
    """Ready, delayed, claimed and parked work is counted apart; a passed lease is ready again."""
    store = await backend.open()
    await store.sessions.create("s")
    batches = await work(store, "s", "a", "b", "c", "d")
    await work(store, "s", "e", delay_ms=HOUR_MS)
    await store.queue.park("s", batches[3].batch_id, reason="x")
    await claimed(store, "s", lease_ms=MINUTE_MS)
    depth = await store.queue.depth("s")
    assert (depth.ready, depth.delayed, depth.claimed, depth.parked) == (2, 1, 1, 1)
    await backend.advance(2 * MINUTE_MS)
    depth = await store.queue.depth("s")
    assert (depth.ready, depth.claimed) == (3, 0)


async def lists_of_work_are_pages_in_enqueue_order(backend: Backend) -> None:
    """Pages follow each other without gaps or repeats, for all work and for pending work."""
    store = await backend.open()
    await store.sessions.create("s")
    batches = batch_ids(await work(store, "s", *"abcdefg"))
    await claimed(store, "s", max_batches=1)
    for look, expected in ((store.queue.list, batches), (store.queue.pending, batches[1:])):
        seen: list[str] = []
        cursor: str | None = None
        while True:
            page = await look("s", limit=2, cursor=cursor)
            assert len(page.batches) <= 2
            seen += batch_ids(page.batches)
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == expected


async def a_batch_has_a_bounded_number_of_payloads(backend: Backend) -> None:
    """One more than the limit is LimitExceeded before any write."""
    store = await backend.open()
    await store.sessions.create("s")
    async with nothing_changes(backend):
        with refused(LimitExceeded, limit="batch_payloads"):
            await store.queue.enqueue("s", [0] * 1001)
    assert len((await store.queue.enqueue("s", [0] * 1000)).payloads) == 1000
