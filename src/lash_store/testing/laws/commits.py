"""Laws of commits: compare-and-set, replay, the order of refusals, all or nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec import structs

from lash_store.errors import (
    ClaimLost,
    InvalidArgument,
    NodeConflict,
    NotFound,
    RevisionConflict,
    SessionDeleted,
    SessionMismatch,
    TurnConflict,
)
from lash_store.model.commit import Commit, Receipt
from lash_store.model.graph import Append, NodeDraft, Replace, Unchanged
from lash_store.model.queue import BatchDraft
from lash_store.model.session import Frame
from lash_store.model.usage import Usage
from lash_store.testing.backend import Backend
from lash_store.testing.steps import (
    HOUR_MS,
    MINUTE_MS,
    append,
    claimed,
    commit,
    draft,
    node_ids,
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


async def a_commit_moves_the_head_by_one_and_creates_an_id_never_used(backend: Backend) -> None:
    """The first commit of an unknown id creates it; each commit raises the revision by exactly one."""
    store = await backend.open()
    for revision in range(3):
        receipt = await commit(store, "s", revision, graph=append(f"n{revision}"))
        assert (receipt.revision, receipt.leaf_id, receipt.replayed) == (revision + 1, f"n{revision}", False)
    session = await store.sessions.get("s")
    assert (session.revision, session.leaf_id, session.node_count) == (3, "n2", 3)


async def a_stale_revision_is_refused_and_changes_nothing(backend: Backend) -> None:
    """The head moves by compare-and-set: another expected revision is RevisionConflict with both numbers."""
    store = await backend.open()
    await say(store, "s", "a")
    async with nothing_changes(backend):
        for expected in (0, 2, 99):
            with refused(RevisionConflict, expected=expected, actual=1, session_id="s"):
                await commit(store, "s", expected, graph=append("b"), checkpoint={"c": b"x"}, usage=[_spent()])
        with refused(RevisionConflict, expected=1, actual=0):
            await commit(store, "fresh", 1, graph=append("b"))


async def of_two_writers_at_one_revision_exactly_one_wins(backend: Backend) -> None:
    """Over two handles, one commit succeeds, the others get RevisionConflict, and the head moved by one."""
    stores = [await backend.open() for _ in range(2)]
    for revision in range(5):
        results = await outcomes(*(commit(stores[i % 2], "s", revision, graph=append(f"{revision}-{i}")) for i in range(4)))
        assert len(of_type(results, Receipt)) == 1
        assert len(of_type(results, RevisionConflict)) == 3
        assert (await stores[0].sessions.get("s")).revision == revision + 1


async def appends_to_whatever_the_head_is_all_succeed_in_one_line(backend: Backend) -> None:
    """Without an expected revision concurrent appends never conflict: each hangs on the one before it."""
    stores = [await backend.open() for _ in range(3)]
    receipts = await asyncio.gather(*(say(stores[i % 3], "s", f"n{i}") for i in range(12)))
    assert sorted(receipt.revision for receipt in receipts) == list(range(1, 13))
    by_revision = sorted(receipts, key=lambda receipt: receipt.revision)
    snapshot = await stores[0].sessions.load("s")
    assert node_ids(snapshot) == [receipt.leaf_id for receipt in by_revision]
    assert [node.parent_id for node in snapshot.nodes] == [None, *node_ids(snapshot)[:-1]]


async def a_commit_without_expected_revision_may_only_append(backend: Backend) -> None:
    """What replaces state needs to say which state: without a revision it is InvalidArgument."""
    store = await backend.open()
    await say(store, "s", "a")
    fields: list[dict[str, Any]] = [
        {"graph": Unchanged()},
        {"graph": Replace([draft("b")])},
        {"graph": append("b"), "checkpoint": {"c": b"x"}},
        {"graph": append("b"), "config": {}},
        {"graph": append("b"), "frames": []},
        {"graph": append("b"), "current_frame_id": None},
    ]
    async with nothing_changes(backend):
        for bad in fields:
            with refused(InvalidArgument):
                await commit(store, "s", None, **bad)


async def an_identical_retry_returns_the_first_receipt(backend: Backend) -> None:
    """A turn commits once: its retry gets the same receipt, marked as replayed, and writes nothing."""
    store = await backend.open()
    first = await commit(store, "s", 0, turn_id="t", **_turn())
    async with nothing_changes(backend):
        again = await commit(store, "s", 0, turn_id="t", **_turn())
    assert again == structs.replace(first, replayed=True)
    other = await backend.open()
    assert await commit(other, "s", 0, turn_id="t", **_turn()) == again
    assert structs.replace(await other.sessions.receipt("s", "t"), replayed=False) == first


async def a_retry_is_answered_after_the_head_moved_on_and_with_any_expected_revision(backend: Backend) -> None:
    """The receipt is looked up before the compare-and-set; the expected revision is not part of the turn."""
    store = await backend.open()
    first = await commit(store, "s", 0, turn_id="t", graph=append("a"))
    await say(store, "s", "b")
    await say(store, "s", "c")
    for expected in (0, 1, 3, 7, None):
        again = await commit(store, "s", expected, turn_id="t", graph=append("a"))
        assert again == structs.replace(first, replayed=True)
    assert (await store.sessions.get("s")).revision == 3


async def a_retry_is_answered_after_the_session_it_enqueued_into_is_gone(backend: Backend) -> None:
    """What became of its follow-up work does not change what a turn did: the retry gets the first receipt."""
    store = await backend.open()
    await store.sessions.create("target")
    follow_up = [BatchDraft(payloads=[1], session_id="target", source_key="k")]
    first = await say(store, "s", "a", turn_id="t", enqueues=follow_up)
    await store.sessions.delete("target")
    again = await say(store, "s", "a", turn_id="t", enqueues=follow_up)
    assert again == structs.replace(first, replayed=True)


async def concurrent_retries_of_one_turn_commit_it_once(backend: Backend) -> None:
    """However many identical commits run at once, one is the first and all get its receipt."""
    stores = [await backend.open() for _ in range(2)]
    for turn in range(4):
        receipts = await asyncio.gather(*(commit(stores[i % 2], "s", turn, turn_id=f"t{turn}", **_turn()) for i in range(6)))
        assert len([receipt for receipt in receipts if not receipt.replayed]) == 1
        assert len({(receipt.revision, receipt.node_ids) for receipt in receipts}) == 1
    assert (await stores[0].sessions.get("s")).revision == 4
    assert (await stores[0].sessions.usage("s"))[0].input == 4


async def a_turn_id_with_other_content_is_a_conflict(backend: Backend) -> None:
    """Whatever part of the content differs, the second use of a turn id is TurnConflict and changes nothing."""
    store = await backend.open()
    ref = await _session_with_attachment(store)
    await commit(store, "s", 0, turn_id="t", **_turn())
    changed: list[dict[str, Any]] = [
        {"graph": Append([NodeDraft(body={"text": "other"}), NodeDraft(body=2)])},
        {"graph": Append([NodeDraft(body={"text": "hi"}, kind="event"), NodeDraft(body=2)])},
        {"graph": Append([NodeDraft(body={"text": "hi"}, frame_id="f"), NodeDraft(body=2)])},
        {"graph": Append([NodeDraft(body={"text": "hi"}, caused_by={"x": 1}), NodeDraft(body=2)])},
        {"graph": Append([NodeDraft(body={"text": "hi"}), NodeDraft(body=2, parent_id=None)])},
        {"graph": Append([NodeDraft(body={"text": "hi"})])},
        {"checkpoint": {"c": b"other"}},
        {"checkpoint": {"other": b"state"}},
        {"checkpoint": {"c": b"state", "d": None}},
        {"config": {"temperature": 1}},
        {"frames": [Frame(frame_id="f", body={"r": 2})]},
        {"current_frame_id": None},
        {"usage": [_spent(2)]},
        {"usage": []},
        {"enqueues": [BatchDraft(payloads=[{"text": "other"}])]},
        {"enqueues": []},
        {"attachments": [ref]},
    ]
    async with nothing_changes(backend):
        for change in changed:
            with refused(TurnConflict, session_id="s", turn_id="t", revision=1):
                await commit(store, "s", 0, turn_id="t", **{**_turn(), **change})


async def clocks_and_claims_are_not_part_of_a_turn(backend: Backend) -> None:
    """A retry from another worker, with another claim and other frame timestamps, is still the same turn."""
    store = await backend.open()
    await store.sessions.create("s")
    await work(store, "s", "job")
    first_claim = await claimed(store, "s", "a", lease_ms=MINUTE_MS)
    frames = [Frame(frame_id="f", body=1, created_ms=5)]
    first = await commit(store, "s", 0, turn_id="t", graph=append("n"), frames=frames, completes=[first_claim])
    await work(store, "s", "job")
    second_claim = await claimed(store, "s", "b", lease_ms=MINUTE_MS)
    again = [Frame(frame_id="f", body=1, created_ms=9)]
    replay = await commit(store, "s", 1, turn_id="t", graph=append("n"), frames=again, completes=[second_claim])
    assert replay == structs.replace(first, replayed=True)


async def a_replay_settles_claims_its_token_still_holds(backend: Backend) -> None:
    """A redelivered batch whose turn is already committed is settled by the replay, so that it does not loop."""
    store = await backend.open()
    await say(store, "s", "a", turn_id="t")
    await work(store, "s", "redelivered", "kept")
    claim = await claimed(store, "s")
    assert (await say(store, "s", "a", turn_id="t", completes=[claim])).replayed
    assert texts((await store.queue.list("s")).batches) == ["kept"]


async def a_replay_ignores_claims_that_were_lost(backend: Backend) -> None:
    """The first receipt is returned although a listed claim was re-claimed by another worker; its work stays."""
    store = await backend.open()
    await say(store, "s", "a", turn_id="t")
    await work(store, "s", "job")
    lost = await claimed(store, "s", "a", lease_ms=MINUTE_MS)
    await backend.advance(2 * MINUTE_MS)
    await claimed(store, "s", "b")
    async with nothing_changes(backend):
        assert (await say(store, "s", "a", turn_id="t", completes=[lost])).replayed


async def a_replay_neither_counts_usage_nor_enqueues_again(backend: Backend) -> None:
    """Everything a turn does happens once, however often it is sent."""
    store = await backend.open()
    for _ in range(3):
        await commit(store, "s", 0, turn_id="t", **_turn())
    assert [total.input for total in await store.sessions.usage("s")] == [1]
    assert len((await store.queue.list("s")).batches) == 1


async def a_receipt_names_what_was_realised(backend: Backend) -> None:
    """Node ids derive from session, turn and ordinal, or are minted; the receipt carries them, and retries repeat them."""
    store = await backend.open()
    bodies = Append([NodeDraft(body=1), NodeDraft(body=2)])
    receipt = await _say_all(store, bodies, turn_id="t")
    assert receipt.node_ids == tuple(node_ids(await store.sessions.load("s")))
    assert (await _say_all(store, bodies, turn_id="t")).node_ids == receipt.node_ids
    minted = [(await _say_all(store, bodies)).node_ids for _ in range(2)]
    assert len({*receipt.node_ids, *minted[0], *minted[1]}) == 6
    assert (await store.sessions.get("s")).node_count == 6


async def an_unknown_turn_has_no_receipt(backend: Backend) -> None:
    """receipt of a turn never committed is NotFound."""
    store = await backend.open()
    await say(store, "s", "a")
    with refused(NotFound):
        await store.sessions.receipt("s", "never")


async def checks_refuse_in_a_fixed_order(backend: Backend) -> None:
    """Binding, incarnation, receipt, revision, claims, graph: the first broken rule is the one reported."""
    store = await backend.open()
    await say(store, "s", "a", turn_id="t")
    await say(store, "other", "x")
    await work(store, "s", "job")
    lost = await claimed(store, "s", "a", lease_ms=MINUTE_MS)
    await backend.advance(2 * MINUTE_MS)
    await claimed(store, "s", "b")
    broken: dict[str, Any] = {"graph": Append([draft("n", "nowhere")]), "completes": [lost]}
    bound = store.session("s")
    await bound.get()
    async with nothing_changes(backend):
        with refused(SessionMismatch):
            await bound.commit(Commit(expected_revision=99, turn_id="t", session_id="other", **broken))
        with refused(TurnConflict):
            await commit(store, "s", 99, turn_id="t", **broken)
        with refused(RevisionConflict):
            await commit(store, "s", 99, turn_id="new", **broken)
        with refused(ClaimLost):
            await commit(store, "s", 1, turn_id="new", **broken)
        with refused(NotFound, kind="node"):
            await commit(store, "s", 1, turn_id="new", graph=broken["graph"])
    await store.sessions.delete("s")
    with refused(SessionDeleted):
        await commit(store, "s", 99, turn_id="t", **broken)


async def a_commit_is_all_or_nothing(backend: Backend) -> None:
    """Whichever part is refused, no other part of the commit is stored."""
    store = await backend.open()
    ref = await _session_with_attachment(store)
    await say(store, "s", "a")
    await work(store, "s", "job")
    good: dict[str, Any] = {**_turn(), "completes": [await claimed(store, "s")], "attachments": [ref], "turn_id": "t"}
    bad: list[tuple[type[Exception], dict[str, Any]]] = [
        (NotFound, {"attachments": [ref, "f" * 64]}),
        (NotFound, {"enqueues": [BatchDraft(payloads=[1]), BatchDraft(payloads=[1], session_id="unknown")]}),
        (NotFound, {"graph": Append([draft("b"), draft("c", "unknown")])}),
        (NotFound, {"graph": Append([draft("b")], leaf="unknown")}),
        (NotFound, {"graph": Unchanged(leaf="unknown")}),
        (NodeConflict, {"graph": Append([draft("b"), draft("a", body="other")])}),
        (NodeConflict, {"graph": Append([draft("b"), draft("b")])}),
        (ClaimLost, {"completes": [structs.replace(good["completes"][0], token="forged")]}),
    ]
    async with nothing_changes(backend):
        for error, change in bad:
            with refused(error):
                await commit(store, "s", 1, **{**good, **change})
    receipt = await commit(store, "s", 1, **good)
    assert not receipt.replayed
    assert [batch.batch_id for batch in (await store.queue.list("s")).batches] == list(receipt.batch_ids)


async def a_refused_first_commit_creates_no_session(backend: Backend) -> None:
    """A session exists once its first commit is accepted, not before."""
    store = await backend.open()
    async with nothing_changes(backend):
        with refused(NotFound, kind="node"):
            await commit(store, "s", 0, graph=Append([draft("a", "unknown")]))
        with refused(NotFound):
            await commit(store, "s", 0, graph=append("a"), attachments=["f" * 64])
    with refused(NotFound, kind="session"):
        await store.sessions.get("s")


async def a_commit_settles_its_claim_and_leaves_its_receipt_together(backend: Backend) -> None:
    """With a lost claim neither head, receipt nor queue change; with a held one all three do, and a retry replays."""
    store = await backend.open()
    await store.sessions.create("s")
    await work(store, "s", "job")
    claim = await claimed(store, "s")
    stale = structs.replace(claim, token="forged")
    async with nothing_changes(backend):
        with refused(ClaimLost, session_id="s"):
            await commit(store, "s", 0, turn_id="t", graph=append("a"), completes=[stale])
        with refused(NotFound):
            await store.sessions.receipt("s", "t")
    first = await commit(store, "s", 0, turn_id="t", graph=append("a"), completes=[claim])
    assert (await store.queue.list("s")).batches == ()
    assert await commit(store, "s", 0, turn_id="t", graph=append("a"), completes=[claim]) == structs.replace(first, replayed=True)


async def a_commit_may_settle_part_of_a_claim(backend: Backend) -> None:
    """Each listed batch must be owned; those not listed stay claimed."""
    store = await backend.open()
    await store.sessions.create("s")
    first, second = await work(store, "s", "one", "two")
    claim = await claimed(store, "s", max_batches=2)
    await say(store, "s", "a", completes=[claim.completion([second.batch_id])])
    assert texts((await store.queue.list("s")).batches) == ["one"]
    await say(store, "s", "b", completes=[claim.completion([first.batch_id])])
    assert (await store.queue.list("s")).batches == ()


async def one_claim_is_settled_by_one_of_two_commits(backend: Backend) -> None:
    """Two turns that complete the same claim at once: one is stored, the other is ClaimLost and leaves nothing."""
    stores = [await backend.open() for _ in range(2)]
    await stores[0].sessions.create("s")
    for number in range(4):
        await work(stores[0], "s", "job")
        claim = await claimed(stores[0], "s")
        results = await outcomes(*(say(stores[i], "s", f"{number}-{i}", completes=[claim]) for i in range(2)))
        assert (len(of_type(results, Receipt)), len(of_type(results, ClaimLost))) == (1, 1)
    assert (await stores[0].sessions.get("s")).node_count == 4


async def work_re_claimed_before_the_commit_fails_the_whole_commit(backend: Backend) -> None:
    """A worker that was paused past its lease, and whose work was re-claimed, commits nothing."""
    store = await backend.open()
    await store.sessions.create("s")
    await work(store, "s", "job")
    stale = await claimed(store, "s", "paused", lease_ms=MINUTE_MS)
    await backend.advance(2 * MINUTE_MS)
    heir = await claimed(store, "s", "heir")
    async with nothing_changes(backend):
        with refused(ClaimLost, held_fence=stale.fence, actual_fence=heir.fence):
            await commit(store, "s", 0, turn_id="t", completes=[stale], **_turn())
    await commit(store, "s", 0, turn_id="t", completes=[heir], **_turn())


async def follow_up_work_is_enqueued_with_the_commit(backend: Backend) -> None:
    """Work for this or another session is there when the commit is, in the order given."""
    store = await backend.open()
    await store.sessions.create("other")
    follow_ups = [
        BatchDraft(payloads=[{"text": "mine"}]),
        BatchDraft(payloads=[{"text": "theirs"}], session_id="other", source_key="k"),
        BatchDraft(payloads=[{"text": "mine too"}], delay_ms=HOUR_MS),
    ]
    receipt = await commit(store, "s", 0, graph=append("a"), enqueues=follow_ups)
    mine, theirs = (await store.queue.list("s")).batches, (await store.queue.list("other")).batches
    assert (texts(mine), texts(theirs)) == (["mine", "mine too"], ["theirs"])
    assert set(receipt.batch_ids) == {batch.batch_id for batch in (*mine, *theirs)}


async def follow_up_work_for_a_deleted_session_is_refused(backend: Backend) -> None:
    """A commit cannot put work into a session that is gone, and then nothing of it is stored."""
    store = await backend.open()
    await say(store, "s", "a")
    await say(store, "gone", "a")
    await store.sessions.delete("gone")
    async with nothing_changes(backend):
        with refused(SessionDeleted, session_id="gone"):
            await say(store, "s", "b", enqueues=[BatchDraft(payloads=[1], session_id="gone")])


async def crossed_enqueues_of_two_sessions_never_deadlock(backend: Backend) -> None:
    """Two sessions that enqueue into each other at once both commit: locks are taken in one order."""
    stores = [await backend.open() for _ in range(2)]
    for session_id in ("a", "b"):
        await stores[0].sessions.create(session_id)
    calls = [
        say(stores[i % 2], here, f"{here}{i}", enqueues=[BatchDraft(payloads=[{"text": str(i)}], session_id=there)])
        for i in range(8)
        for here, there in (("a", "b"), ("b", "a"))
    ]
    assert len(await asyncio.gather(*calls)) == 16
    for session_id in ("a", "b"):
        assert (await stores[0].queue.depth(session_id)).ready == 8


async def a_reader_never_sees_a_torn_state(backend: Backend) -> None:
    """Revision, leaf, nodes, checkpoint, config and usage of one load belong to one commit."""
    writer, reader = await backend.open(), await backend.open()
    await writer.sessions.create("s")
    done = asyncio.Event()

    async def write() -> None:
        for n in range(15):
            step = str(n + 1)
            usage = [_spent()]
            await commit(writer, "s", n, graph=append(step), checkpoint={"c": step.encode()}, config=n + 1, usage=usage)
        done.set()

    async def read() -> int:
        looks = 0
        while not done.is_set():
            looks += 1
            seen = await reader.sessions.load("s")
            n = seen.revision
            if n == 0:
                continue
            assert (seen.leaf_id, len(seen.nodes), seen.config) == (str(n), n, n)
            assert (seen.checkpoint["c"], seen.usage[0].input) == (str(n).encode(), n)
        return looks

    _, looks = await asyncio.gather(write(), read())
    assert looks > 0


async def _say_all(store: AsyncStore, graph: Append, **fields: Any) -> Receipt:
    return await store.sessions.commit("s", Commit(expected_revision=None, graph=graph, **fields))


async def _session_with_attachment(store: AsyncStore) -> str:
    await store.sessions.create("s")
    return (await store.attachments.put("s", b"bytes", media_type="text/plain")).attachment_id


def _spent(tokens: int = 1) -> Usage:
    return Usage(source="agent", model="large", input=tokens)


def _turn() -> dict[str, Any]:
    return {
        "graph": Append([NodeDraft(body={"text": "hi"}), NodeDraft(body=2)]),
        "checkpoint": {"c": b"state"},
        "config": {"temperature": 0},
        "frames": [Frame(frame_id="f", body={"r": 1})],
        "current_frame_id": "f",
        "usage": [_spent()],
        "enqueues": [BatchDraft(payloads=[{"text": "follow-up"}])],
    }
