"""Pairs of operations that may collide, and the state each pair starts from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from lash_store.model.graph import Append, NodeDraft, Replace, Unchanged
from lash_store.model.limits import SETTLED_KEY_RETENTION_MS
from lash_store.model.queue import BatchDraft
from lash_store.model.usage import Usage
from lash_store.ops import attachments, claims, queue, sessions, tree
from lash_store.ops.collect import delete_settled_keys
from lash_store.ops.prepare import prepare_batch
from lash_store.ops.sessions import MetaChange
from lash_store.ops.statement import Op, database_now, fetch
from tests.support.player import Script, one
from tests.support.sides import (
    CONTENT,
    ENCODER,
    LEASE_MS,
    OTHER_CONTENT,
    OTHER_DATA,
    STALE_MS,
    checkpointed,
    claim,
    claim_next,
    claimed_work,
    collect,
    commit,
    completion,
    create,
    delete,
    enqueue,
    fork,
    put,
    renew,
    say,
    stale_content,
    started,
    sweep,
    work,
)
from tests.support.stepper import Stage

Scenario = Callable[[Stage], Awaitable[Sequence[Script]]]

# --- commits --------------------------------------------------------------------------------------------------------------


async def commit_commit_same_turn(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    turn = partial(
        commit, "s", **say("answer", expected_revision=1, turn_id="turn", usage=[Usage(source="m", model="x", input=3)])
    )
    return [turn(), turn()]


async def commit_commit_same_turn_other_content(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    return [commit("s", **say(text, expected_revision=1, turn_id="turn")) for text in ("yes", "no")]


async def commit_commit_other_turn(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    return [
        commit("s", **say(text, expected_revision=1, turn_id=text, checkpoint={"state": text.encode()})) for text in ("a", "b")
    ]


async def commit_commit_same_claim(made: Stage) -> Sequence[Script]:
    held = await claimed_work(made)
    return [commit("s", **say(text, turn_id=text, completes=[held])) for text in ("a", "b")]


async def commit_commit_same_turn_same_claim(made: Stage) -> Sequence[Script]:
    held = await claimed_work(made)
    turn = partial(commit, "s", **say("answer", turn_id="turn", completes=[held]))
    return [turn(), turn()]


async def commit_commit_blind(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    return [commit("s", **say(text, usage=[Usage(source="m", model="x", input=1)])) for text in ("a", "b")]


async def commit_commit_new_session(made: Stage) -> Sequence[Script]:
    return [commit("new", **say("hello", turn_id="turn")) for _ in range(2)]


async def commit_commit_new_session_blind(made: Stage) -> Sequence[Script]:
    return [commit("new", **say(text)) for text in ("a", "b")]


async def commit_commit_new_session_expected(made: Stage) -> Sequence[Script]:
    return [commit("new", **say(text, expected_revision=0, turn_id=text)) for text in ("a", "b")]


async def commit_commit_same_node(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    return [commit("s", graph=Append([NodeDraft(node_id="n", body=text)])) for text in ("a", "b")]


async def commit_replace_commit(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    whole = Replace([NodeDraft(node_id="only", body="only")])
    return [commit("s", graph=whole, expected_revision=1, turn_id="replace"), commit("s", **say("next"))]


async def commit_commit_crossed(made: Stage) -> Sequence[Script]:
    await started(made, "a", "b")
    return [
        commit(here, **say(f"from {here}", turn_id=here, enqueues=[work(there, here), work(here, here)]))
        for here, there in (("a", "b"), ("b", "a"))
    ]


async def commit_commit_crossed_new(made: Stage) -> Sequence[Script]:
    await started(made, "b")
    return [
        commit("new", **say("one", turn_id="one", enqueues=[work("b")])),
        commit("b", **say("two", turn_id="two", enqueues=[work("new")])),
    ]


async def commit_commit_crossed_new_both(made: Stage) -> Sequence[Script]:
    return [
        commit("new a", **say("one", turn_id="one", enqueues=[work("new b")])),
        commit("new b", **say("two", turn_id="two", enqueues=[work("new a")])),
    ]


async def commit_create(made: Stage) -> Sequence[Script]:
    return [commit("new", **say("hello")), create("new", name="named", config={"k": 1})]


async def create_create(made: Stage) -> Sequence[Script]:
    return [create("new", name=name, config=name) for name in ("one", "two")]


async def create_create_after_delete(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    await made.play(delete("s"))
    return [create("s", name=name, config=name) for name in ("one", "two")]


async def tombstone_commit(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    hide = one(partial(tree.tombstone, "s", ["first of s"]))
    return [hide, commit("s", **say("next", parent="first of s"))]


async def tombstone_commit_revives(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    return [one(partial(tree.tombstone, "s", ["first of s"])), commit("s", **say("first of s"))]


async def vacuum_commit(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    await made.play(commit("s", **say("second")))
    await made.play(one(partial(tree.tombstone, "s", ["second"])))
    return [one(partial(tree.vacuum, "s", 10)), commit("s", **say("second"))]


async def update_meta_commit(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    return [one(partial(sessions.update_meta, "s", MetaChange(name="renamed"))), commit("s", **say("next"))]


# --- the inbox ------------------------------------------------------------------------------------------------------------


async def commit_claim(made: Stage) -> Sequence[Script]:
    held = await claimed_work(made)
    await made.play(enqueue("s", "more"))
    return [commit("s", **say("done", turn_id="done", completes=[held], enqueues=[work("s")])), claim("s", "second")]


async def commit_claim_after_expiry(made: Stage) -> Sequence[Script]:
    held = await claimed_work(made)
    await made.advance(2 * LEASE_MS)
    return [commit("s", **say("done", turn_id="done", completes=[held])), claim("s", "second")]


async def claim_claim(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    await made.play(enqueue("s", "one"))
    await made.play(enqueue("s", "two"))
    return [claim("s", owner) for owner in ("anna", "bert")]


async def claim_claim_same_token(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    await made.play(enqueue("s", "one"))
    await made.play(enqueue("s", "two"))
    return [claim("s", "anna", token="same") for _ in range(2)]


async def claim_next_claim_next(made: Stage) -> Sequence[Script]:
    await started(made, "x", "y")
    await made.play(enqueue("x", "one"))
    await made.play(enqueue("y", "two"))
    return [claim_next(owner) for owner in ("anna", "bert")]


async def claim_next_claim_next_one_session(made: Stage) -> Sequence[Script]:
    await started(made, "x")
    await made.play(enqueue("x", "one"))
    await made.play(enqueue("x", "two"))
    return [claim_next(owner) for owner in ("anna", "bert")]


async def claim_next_claim_next_concurrent(made: Stage) -> Sequence[Script]:
    await started(made, "x")
    await made.play(enqueue("x", "one"))
    await made.play(enqueue("x", "two"))
    return [claim_next(owner, concurrent=True) for owner in ("anna", "bert")]


async def claim_next_enqueue(made: Stage) -> Sequence[Script]:
    await started(made, "x")
    return [claim_next("anna"), enqueue("x", "one")]


async def claim_next_commit_moves_work(made: Stage) -> Sequence[Script]:
    """At every instant one session has work: a look must not come back empty."""
    held = await claimed_work(made, "x")
    await started(made, "y")
    await made.advance(2 * LEASE_MS)
    return [claim_next("anna"), commit("x", **say("done", turn_id="done", completes=[held], enqueues=[work("y")]))]


async def claim_next_settle_crossed_commit(made: Stage) -> Sequence[Script]:
    """Three sides: whoever looks for work must not hold one session while it waits for another."""
    held = await claimed_work(made, "y")
    await started(made, "x")
    await made.advance(2 * LEASE_MS)
    await made.play(enqueue("x", "one"))
    crossed = commit("x", **say("both", turn_id="both", enqueues=[work("y")]))
    return [claim_next("anna", waits=True), one(partial(claims.settle, held)), crossed]


async def forget_keys_settle_pinned(made: Stage) -> Sequence[Script]:
    """A third side makes both stop in the middle of a statement, at one of the keys."""
    return [*(await forget_keys_settle(made)), one(partial(_pin_key, "key 1"))]


async def forget_keys_settle(made: Stage) -> Sequence[Script]:
    """Old keys are forgotten while the same keys are settled again."""
    await started(made, "s")
    for number in (1, 0):
        await made.play(enqueue("s", f"old {number}", source_key=f"key {number}"))
        await made.play(one(partial(claims.settle, completion(await made.play(claim("s", "first"))))))
    await made.advance(2 * SETTLED_KEY_RETENTION_MS)
    for number in (0, 1):
        await made.play(enqueue("s", f"new {number}", source_key=f"key {number}"))
    held = completion(await made.play(claim("s", "second", max_batches=2)))
    now_ms = await made.play(one(database_now))
    forget = partial(delete_settled_keys, retention_ms=SETTLED_KEY_RETENTION_MS, limit=100, now_ms=now_ms)
    return [one(forget), one(partial(claims.settle, held))]


def _pin_key(source_key: str) -> Op[None]:
    yield from fetch("SELECT 1 FROM {settled_keys} WHERE source_key = :source_key {for_update}", source_key=source_key)


async def claim_next_delete(made: Stage) -> Sequence[Script]:
    await started(made, "x")
    await made.play(enqueue("x", "one"))
    return [claim_next("anna"), delete("x")]


async def enqueue_enqueue_same_key(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    drafts = [BatchDraft(payloads=["same"], source_key="key", batch_id=f"qwb:{name}") for name in ("one", "two")]
    prepared = [prepare_batch("s", draft, ENCODER, "batch") for draft in drafts]
    return [one(partial(queue.enqueue, batch, retention_ms=SETTLED_KEY_RETENTION_MS)) for batch in prepared]


async def enqueue_enqueue_same_key_other_content(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    return [enqueue("s", text, source_key="key") for text in ("one", "two")]


async def enqueue_enqueue_other_keys(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    return [enqueue("s", text, source_key=text) for text in ("one", "two")]


async def enqueue_settle_same_key(made: Stage) -> Sequence[Script]:
    held = await claimed_work(made)
    return [enqueue("s", "work 0 of s", source_key="key 0"), one(partial(claims.settle, held))]


async def settle_claim_after_expiry(made: Stage) -> Sequence[Script]:
    held = await claimed_work(made)
    await made.advance(2 * LEASE_MS)
    return [one(partial(claims.settle, held)), claim("s", "second")]


async def renew_claim_after_expiry(made: Stage) -> Sequence[Script]:
    held = await claimed_work(made)
    await made.advance(2 * LEASE_MS)
    return [renew(held), claim("s", "second")]


async def settle_settle(made: Stage) -> Sequence[Script]:
    held = await claimed_work(made, count=2)
    return [one(partial(claims.settle, held)) for _ in range(2)]


async def abandon_claim(made: Stage) -> Sequence[Script]:
    held = await claimed_work(made)
    return [one(partial(claims.abandon, held)), claim("s", "second")]


async def park_settle(made: Stage) -> Sequence[Script]:
    held = await claimed_work(made)
    return [one(partial(queue.park, "s", held.batch_ids[0], "by hand")), one(partial(claims.settle, held))]


async def cancel_claim(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    await made.play(enqueue("s", "one"))
    return [one(partial(queue.cancel, "s", "qwb:one")), claim("s", "anna")]


# --- maintenance ----------------------------------------------------------------------------------------------------------


async def collect_commit(made: Stage) -> Sequence[Script]:
    held = await checkpointed(made)
    change = commit("s", held, expected_revision=3, graph=Unchanged(), checkpoint={"state": b"state " * 50 + b"new"})
    return [collect("s"), change]


async def collect_collect(made: Stage) -> Sequence[Script]:
    await checkpointed(made)
    return [collect("s"), collect("s")]


async def collect_delete(made: Stage) -> Sequence[Script]:
    await checkpointed(made)
    return [collect("s"), delete("s", step=1)]


async def delete_commit(made: Stage) -> Sequence[Script]:
    held = await claimed_work(made)
    return [delete("s"), commit("s", **say("late", turn_id="late", completes=[held]))]


async def delete_commit_from_afar(made: Stage) -> Sequence[Script]:
    await started(made, "a", "b")
    return [delete("a"), commit("b", **say("late", turn_id="late", enqueues=[work("a")]))]


async def delete_enqueue(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    return [delete("s"), enqueue("s", "late")]


async def delete_create(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    return [delete("s"), create("s", config={"k": 1})]


async def delete_delete(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    return [delete("s"), delete("s")]


async def fork_delete(made: Stage) -> Sequence[Script]:
    await checkpointed(made, "s")
    await made.play(commit("s", **say("hello")))
    return [fork("s", "copy"), delete("s")]


async def fork_commit(made: Stage) -> Sequence[Script]:
    await checkpointed(made, "s")
    await made.play(commit("s", **say("hello")))
    return [fork("s", "copy"), commit("s", **say("more"))]


async def fork_fork(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    return [fork("s", "copy"), fork("s", "copy")]


async def fork_commit_to_the_copy(made: Stage) -> Sequence[Script]:
    await started(made, "s")
    return [fork("s", "copy"), commit("copy", **say("mine", enqueues=[work("s")]))]


# --- attachments ----------------------------------------------------------------------------------------------------------


async def put_sweep(made: Stage) -> Sequence[Script]:
    await stale_content(made, "other")
    await started(made, "s")
    return [put("s"), sweep()]


async def put_again_sweep(made: Stage) -> Sequence[Script]:
    await stale_content(made, "s")
    return [put("s"), sweep()]


async def put_put(made: Stage) -> Sequence[Script]:
    await started(made, "a", "b")
    return [put("a"), put("b")]


async def commit_sweep(made: Stage) -> Sequence[Script]:
    await stale_content(made, "s")
    return [commit("s", **say("keeps it", attachments=[CONTENT])), sweep()]


async def forget_sweep(made: Stage) -> Sequence[Script]:
    await stale_content(made, "s")
    return [one(partial(attachments.forget, "s", CONTENT)), sweep()]


async def forget_sweep_committed(made: Stage) -> Sequence[Script]:
    await stale_content(made, "s", "other")
    await made.play(one(partial(attachments.commit_refs, "s", [CONTENT])))
    return [one(partial(attachments.forget, "s", CONTENT)), sweep()]


async def forget_put(made: Stage) -> Sequence[Script]:
    await stale_content(made, "a")
    await started(made, "b")
    return [one(partial(attachments.forget, "a", CONTENT)), put("b")]


async def sweep_sweep(made: Stage) -> Sequence[Script]:
    await stale_content(made, "a", "b")
    return [sweep(), sweep()]


async def delete_sweep(made: Stage) -> Sequence[Script]:
    """The purge goes row by row, and the sweep takes one of them away."""
    await made.play(create("s"))
    await made.play(put("s"))
    await made.play(put("s", OTHER_DATA))
    await made.play(one(partial(attachments.commit_refs, "s", [OTHER_CONTENT])))
    await made.advance(2 * STALE_MS)
    return [delete("s", step=1), sweep()]


SCENARIOS: tuple[Scenario, ...] = (
    commit_commit_same_turn,
    commit_commit_same_turn_other_content,
    commit_commit_other_turn,
    commit_commit_same_claim,
    commit_commit_same_turn_same_claim,
    commit_commit_blind,
    commit_commit_new_session,
    commit_commit_new_session_blind,
    commit_commit_new_session_expected,
    commit_commit_same_node,
    commit_replace_commit,
    commit_commit_crossed,
    commit_commit_crossed_new,
    commit_commit_crossed_new_both,
    commit_create,
    create_create,
    create_create_after_delete,
    tombstone_commit,
    tombstone_commit_revives,
    vacuum_commit,
    update_meta_commit,
    commit_claim,
    commit_claim_after_expiry,
    claim_claim,
    claim_claim_same_token,
    claim_next_claim_next,
    claim_next_claim_next_one_session,
    claim_next_claim_next_concurrent,
    claim_next_enqueue,
    claim_next_commit_moves_work,
    claim_next_delete,
    enqueue_enqueue_same_key,
    enqueue_enqueue_same_key_other_content,
    enqueue_enqueue_other_keys,
    enqueue_settle_same_key,
    forget_keys_settle,
    settle_claim_after_expiry,
    renew_claim_after_expiry,
    settle_settle,
    abandon_claim,
    park_settle,
    cancel_claim,
    collect_commit,
    collect_collect,
    collect_delete,
    delete_commit,
    delete_commit_from_afar,
    delete_enqueue,
    delete_create,
    delete_delete,
    fork_delete,
    fork_commit,
    fork_fork,
    fork_commit_to_the_copy,
    put_sweep,
    put_again_sweep,
    put_put,
    commit_sweep,
    forget_sweep,
    forget_sweep_committed,
    forget_put,
    sweep_sweep,
    delete_sweep,
)


async def town(made: Stage) -> dict[str, Script]:
    """Two sessions with some of everything, and one of every operation that writes."""
    held = await checkpointed(made, "a")
    await started(made, "b")
    await made.play(commit("a", **say("root")))
    await made.play(commit("a", **say("leaf")))
    for text in ("one", "two", "three"):
        await made.play(enqueue("a", text, source_key=text))
    await made.play(enqueue("b", "other"))
    claimed = completion(await made.play(claim("a", "first")))
    await made.play(put("a"))
    await made.play(put("b"))
    await made.advance(2 * STALE_MS)
    state = {"state": b"state " * 50 + b"new"}
    return {
        "commit": commit("a", held, expected_revision=5, turn_id="turn", checkpoint=state, config=9, completes=[claimed]),
        "commit_blind": commit(
            "a", **say("blind", turn_id="blind", usage=[Usage(source="m", model="x", input=1)], attachments=[CONTENT])
        ),
        "commit_a_to_b": commit("a", **say("to b", turn_id="to b", enqueues=[work("b", "from a")])),
        "commit_b_to_a": commit("b", **say("to a", turn_id="to a", enqueues=[work("a", "from b"), work("b", "own")])),
        "commit_new_to_a": commit("0 new", **say("hello", turn_id="new", enqueues=[work("a", "from new")])),
        "create": create("0 new", config="created"),
        "create_again": create("a", config="created"),
        "update_meta": one(partial(sessions.update_meta, "a", MetaChange(name="renamed"))),
        "delete": delete("a"),
        "fork": fork("a", "0 new"),
        "tombstone": one(partial(tree.tombstone, "a", ["leaf", "root"])),
        "vacuum": one(partial(tree.vacuum, "a", 10)),
        "collect": collect("a"),
        "enqueue": enqueue("a", "one", source_key="one"),
        "claim": claim("a", "second"),
        "claim_next": claim_next("third", concurrent=True),
        "renew": renew(claimed),
        "settle": one(partial(claims.settle, claimed)),
        "abandon": one(partial(claims.abandon, claimed)),
        "cancel": one(partial(queue.cancel, "a", "qwb:two")),
        "park": one(partial(queue.park, "a", "qwb:one", "by hand"), show=lambda _: "parked"),
        "unpark": one(partial(queue.unpark, "a", "qwb:one"), show=lambda _: "unparked"),
        "put": put("a"),
        "stamp": one(partial(attachments.commit_refs, "b", [CONTENT])),
        "forget": one(partial(attachments.forget, "a", CONTENT)),
        "sweep": sweep(),
    }
