"""The hot operations, with a shortcut where the database has one: a function that does the straight case in one round trip.

The operations beside this file are what happens; a shortcut is the same, compiled. It answers what is ordinary and touches
nothing else: whatever it did not expect, refusals included, is left to the operation, which then runs as if nothing had been.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from msgspec import UnsetType
from msgspec.structs import astuple

from lash_store import delta
from lash_store.encode import canonical, decode, frames
from lash_store.errors import RevisionConflict
from lash_store.model.commit import Receipt
from lash_store.model.process import Scope
from lash_store.model.queue import Boundary, Completion
from lash_store.ops import checkpoints, claims, commits, events, queue, semantics, usage
from lash_store.ops.checkpoints import NeedsFullFrame
from lash_store.ops.claims import Claimed, LookAgain
from lash_store.ops.commits import COMMIT_TAG
from lash_store.ops.events import Appending, EventRow, PreparedEvent
from lash_store.ops.graph import PreparedNode, node_digest
from lash_store.ops.prepare import PreparedCommit
from lash_store.ops.queue import Enqueued, PreparedBatch, StoredBatch, as_stored
from lash_store.ops.statement import Op, Ring, Row, Shortcut

# --- commit ---------------------------------------------------------------------------------------------------------------

# Above these a function, which finds each element of an array from its beginning, takes longer than the statements it replaces.
NODES_MAX = 1_000
COMPONENTS_MAX = 250


def commit(prepared: PreparedCommit, *, retention_ms: int, assumed: delta.Left | None = None) -> Op[Receipt]:
    """All or nothing, once per turn id: see `commits.commit`. What came before is assumed; a good guess saves work."""
    rows = None
    if _is_straight(prepared):
        rows = yield Shortcut("commit_v1", partial(_commit_arguments, prepared, assumed))
    if not rows:
        return (yield from commits.commit(prepared, retention_ms=retention_ms))
    answer = rows[0]
    if answer[0] == "moved":
        raise RevisionConflict(prepared.session_id, expected=prepared.expected_revision or 0, actual=answer[2])
    if answer[0] == "full":
        raise NeedsFullFrame
    if answer[0] == "replayed":
        return commits.stored_receipt(_commit_row(prepared, answer), replayed=True)
    if prepared.completes:
        yield Ring("inbox", prepared.session_id)
    yield Ring("commits", prepared.session_id)
    return _receipt(prepared, answer)


def _is_straight(prepared: PreparedCommit) -> bool:
    """Whether the commit is of the kind every turn has: rare fields, work for other sessions and bulk go the long way."""
    bulk = len(prepared.nodes) > NODES_MAX or len(prepared.components) > COMPONENTS_MAX
    rare = bulk or prepared.graph == "replace" or prepared.enqueues or not _is_chain(prepared.nodes)
    return not rare and isinstance(prepared.config, UnsetType) and isinstance(prepared.frames, UnsetType)


def _is_chain(nodes: Sequence[PreparedNode]) -> bool:
    """Whether each node but the first hangs on the one before it, and the first on none of them."""
    if not nodes or nodes[0].parent_id in {node.node_id for node in nodes}:
        return not nodes
    return all(isinstance(b.parent_id, UnsetType) or b.parent_id == a.node_id for a, b in pairwise(nodes))


def _commit_arguments(prepared: PreparedCommit, assumed: delta.Left | None) -> Sequence[Any]:
    leaf, frame = prepared.leaf, prepared.current_frame_id
    assumed_leaf_id = None if assumed is None else assumed.leaf_id
    return (
        prepared.session_id,
        prepared.incarnation,
        prepared.expected_revision,
        prepared.turn_id,
        prepared.repeatable,
        prepared.intent,
        frames(COMMIT_TAG, prepared.session_id),
        frames(None, "commit", prepared.turn_id, prepared.intent),
        assumed_leaf_id,
        not isinstance(leaf, UnsetType),
        None if isinstance(leaf, UnsetType) else leaf,
        not isinstance(frame, UnsetType),
        None if isinstance(frame, UnsetType) else frame,
        canonical([node.node_id for node in prepared.nodes]),
        *_node_arguments(prepared.nodes, assumed_leaf_id),
        *_component_arguments(prepared),
        *_checkpoint_arguments(prepared, assumed),
        *_usage_arguments(prepared),
        *_completion_arguments(prepared.completes),
        list(prepared.attachments) or None,
    )


def _node_arguments(nodes: Sequence[PreparedNode], assumed_leaf_id: str | None) -> Sequence[Any]:
    if not nodes:
        return (None,) * 8
    first = nodes[0].parent_id
    given = not isinstance(first, UnsetType)
    rows = _node_rows(nodes, first if given else assumed_leaf_id, given or assumed_leaf_id is not None)
    ids, *columns = zip(*rows, strict=True)
    return ids, given, first if given else None, *columns


def _node_rows(nodes: Sequence[PreparedNode], parent_id: str | None, known: bool) -> Iterator[Row]:
    """The columns of a chain, with digests. The first node may hang on the leaf, which only the database knows for sure."""
    for node in nodes:
        id, _, kind, body, frame_id, caused_by = astuple(node)
        digest = node_digest(id, parent_id, kind, body, frame_id, caused_by) if known else None
        yield id, kind, body, frame_id, caused_by, digest
        parent_id, known = id, True


def _component_arguments(prepared: PreparedCommit) -> Sequence[Any]:
    rows = [(each.component, each.digest, each.size, each.frame, each.base_digest) for each in prepared.components]
    return *(zip(*rows, strict=True) if rows else (None,) * 5), checkpoints.CHECKPOINT_CHAIN_MAX


def _checkpoint_arguments(prepared: PreparedCommit, assumed: delta.Left | None) -> Sequence[Any]:
    """The checkpoint before, as assumed, and the one after it; nothing where a delta does not fit the assumption."""
    if assumed is None or assumed.contents is None:
        return (None, None, None)
    after = dict(assumed.contents)
    for new in prepared.components:
        if new.base_digest is not None and after.get(new.component) != new.base_digest:
            return (None, None, None)
        if new.digest is None:
            after.pop(new.component, None)
        else:
            after[new.component] = new.digest
    json_text = canonical({name: content.hex() for name, content in after.items()})
    return (assumed.checkpoint_digest, checkpoints.digest_of(after), json_text)


def _usage_arguments(prepared: PreparedCommit) -> Sequence[Any]:
    rows = [(e.source, e.model, e.input, e.output, e.cached_input, e.reasoning) for e in prepared.usage]
    return *(zip(*rows, strict=True) if rows else (None,) * 6), usage.COUNTER_MAX


def _completion_arguments(completions: Sequence[Completion]) -> Sequence[Any]:
    held = [(batch_id, each.token, each.fence) for each in completions for batch_id in each.batch_ids]
    return list(zip(*held, strict=True)) if held else (None, None, None)


def _receipt(prepared: PreparedCommit, answer: Row) -> Receipt:
    _, incarnation, revision, leaf_id, _, whole, result, committed_ms, *_ = answer
    return Receipt(
        session_id=prepared.session_id,
        incarnation=incarnation,
        revision=revision,
        turn_id=prepared.turn_id,
        leaf_id=leaf_id,
        node_ids=tuple(node.node_id for node in prepared.nodes),
        components=decode(result, table="commits", row=repr(prepared.session_id))["components"],
        checkpoint_digest=None if whole is None else whole.hex(),
        batch_ids=(),
        committed_ms=committed_ms,
        replayed=False,
    )


def _commit_row(prepared: PreparedCommit, answer: Row) -> Row:
    """The stored row a replay answered with, in the order of `commits`."""
    _, incarnation, revision, leaf_id, frame_id, whole, result, committed_ms, kind, intent, digest = answer
    turn_id = prepared.turn_id
    return (
        prepared.session_id, revision, incarnation, kind, turn_id, intent, leaf_id, frame_id, whole, result, committed_ms, digest
    )  # fmt: skip


# --- inbox ----------------------------------------------------------------------------------------------------------------


def enqueue(batch: PreparedBatch, *, retention_ms: int, incarnation: int | None = None) -> Op[Enqueued]:
    """Store a batch, or return what its key stored before: see `queue.enqueue`."""
    rows = yield Shortcut("enqueue_v1", partial(_enqueue_arguments, batch, retention_ms, incarnation))
    if not rows:
        return (yield from queue.enqueue(batch, retention_ms=retention_ms, incarnation=incarnation))
    outcome, now_ms, *stored = rows[0]
    if outcome == "stored":
        return Enqueued((StoredBatch(*stored),), (), now_ms)
    yield Ring("inbox", batch.session_id)
    return Enqueued((as_stored(batch, stored[1], now_ms),), (), now_ms)


def _enqueue_arguments(batch: PreparedBatch, retention_ms: int, incarnation: int | None) -> Sequence[Any]:
    return (
        batch.session_id,
        incarnation,
        batch.batch_id,
        batch.source_key,
        batch.delivery,
        batch.slot,
        batch.merge_key,
        batch.payloads,
        queue.digest_of(batch),
        batch.intent,
        batch.delay_ms,
        batch.max_attempts,
        retention_ms,
    )


def claim(
    session_id: str,
    owner: str,
    *,
    boundary: Boundary,
    lease_ms: int,
    max_batches: int,
    token: str,
    repeated: bool = False,
    incarnation: int | None = None,
) -> Op[Claimed | None]:
    """Lease the longest prefix of ready batches that may run together, or None: see `claims.claim`."""
    active = boundary is Boundary.ACTIVE_TURN_CHECKPOINT
    arguments = (session_id, incarnation, False, owner, active, lease_ms, max_batches, token, repeated)
    rows = yield Shortcut("claim_v1", lambda: arguments)
    if rows:
        return _claimed(rows, owner, token)
    return (
        yield from claims.claim(
            session_id,
            owner,
            boundary=boundary,
            lease_ms=lease_ms,
            max_batches=max_batches,
            token=token,
            repeated=repeated,
            incarnation=incarnation,
        )
    )


def claim_next(
    owner: str, *, lease_ms: int, max_batches: int, concurrent: bool, token: str, wait_for_locks: bool
) -> Op[Claimed | LookAgain | None]:
    """Lease work of the session that has been ready longest: see `claims.claim_next`."""
    arguments = (None, None, concurrent, owner, False, lease_ms, max_batches, token, False)
    rows = None if wait_for_locks else (yield Shortcut("claim_v1", lambda: arguments))
    if rows:
        return _claimed(rows, owner, token)
    return (
        yield from claims.claim_next(
            owner,
            lease_ms=lease_ms,
            max_batches=max_batches,
            concurrent=concurrent,
            token=token,
            wait_for_locks=wait_for_locks,
        )
    )


def _claimed(rows: Sequence[Row], owner: str, token: str) -> Claimed | None:
    outcome, claim_id, fence, now_ms, session_id = rows[0][:5]
    if outcome == "nothing":
        return None
    batches = sorted((StoredBatch(*row[4:]) for row in rows), key=lambda batch: batch.enqueue_seq)
    return Claimed(
        session_id=session_id,
        claim_id=claim_id,
        owner=owner,
        token=token,
        fence=fence,
        claimed_ms=now_ms,
        expires_ms=rows[0][22],
        rows=tuple(batches),
    )


def settle(completion: Completion, incarnation: int | None = None) -> Op[int]:
    """Settle work outside a commit, all of it or nothing: see `claims.settle`."""
    arguments = (completion.session_id, incarnation, list(completion.batch_ids), completion.token, completion.fence)
    rows = (yield Shortcut("settle_v1", lambda: arguments)) if completion.batch_ids else None
    if not rows:
        return (yield from claims.settle(completion, incarnation))
    yield Ring("inbox", completion.session_id)
    return rows[0][0]


# --- events ---------------------------------------------------------------------------------------------------------------


def append(call: Appending) -> Op[list[tuple[EventRow, bool]]]:
    """Append events in one transaction: see `events.append`."""
    rows = (yield Shortcut("append_v1", partial(_append_arguments, call))) if _is_plain(call) else None
    if not rows:
        return (yield from events.append(call))
    if rows[0][0] == "stored":
        return [(_stored_event(call, row), True) for row in rows]
    if rows[0][8] and call.wake_target is not None:
        yield Ring("inbox", call.wake_target.session_id)
    yield Ring("process", call.process_id)
    answers = sorted(rows, key=lambda row: row[1])
    return [(_event_row(call, draft, row), False) for draft, row in zip(call.events, answers, strict=True)]


def _stored_event(call: Appending, row: Row) -> EventRow:
    _, sequence, wake_id, dedupe, batch_id, coalesced, occurred_ms, digest, _, *rest = row
    event_type, payload, payload_hash, replay_key, terminal, wake_input, session_id, frame_id = rest
    return EventRow(
        call.process_id, sequence, event_type, payload, payload_hash, replay_key, terminal, wake_id, dedupe, wake_input,
        session_id, frame_id, batch_id, coalesced, occurred_ms, digest,
    )  # fmt: skip


def _is_plain(call: Appending) -> bool:
    """Whether nothing ends, and whoever is woken is known."""
    wakes = any(event.wake_input is not None for event in call.events)
    return (call.wake_target is not None or not wakes) and all(event.terminal is None for event in call.events)


def _append_arguments(call: Appending) -> Sequence[Any]:
    lease = call.lease
    return (
        call.process_id,
        call.registration_hash,
        *((None,) * 4 if lease is None else (lease.owner, lease.incarnation, lease.token, lease.fence)),
        [event.event_type for event in call.events],
        [event.payload for event in call.events],
        [event.payload_hash for event in call.events],
        [event.replay_key for event in call.events],
        *_wake_arguments(call),
        call.fence_replays,
    )


def _wake_arguments(call: Appending) -> Sequence[Any]:
    """What the wakes are called and say. One without a key of its own is named after its sequence, which the database gives."""
    target = call.wake_target
    if target is None or all(event.wake_input is None for event in call.events):
        return (None,) * 9
    start = json.dumps([semantics.scope_id(target), f"{call.process_id}:"], ensure_ascii=False, separators=(",", ":"))
    return (
        target.session_id,
        target.frame_id,
        start.removesuffix('"]'),
        canonical(f"{call.process_id}:").removesuffix('"'),
        [None if event.wake_dedupe is None else semantics.wake_id(target, event.wake_dedupe) for event in call.events],
        [None if event.wake_dedupe is None else canonical(event.wake_dedupe) for event in call.events],
        [None if event.wake_input is None else canonical(event.wake_input) for event in call.events],
        [event.wake_batch_id for event in call.events],
        [_wake_payloads(call, event, target) for event in call.events],
    )


def _wake_payloads(call: Appending, event: PreparedEvent, target: Scope) -> str | None:
    if event.wake_input is None:
        return None
    return events.wake_payloads(call, event.event_type, canonical(event.wake_input), target.frame_id)


def _event_row(call: Appending, draft: PreparedEvent, answer: Row) -> EventRow:
    _, sequence, wake_id, dedupe_json, batch_id, coalesced, occurred_ms, digest, *_ = answer
    target = call.wake_target if wake_id is not None else None
    return EventRow(
        call.process_id,
        sequence,
        draft.event_type,
        draft.payload,
        draft.payload_hash,
        draft.replay_key,
        None,
        wake_id,
        dedupe_json,
        None if wake_id is None or draft.wake_input is None else canonical(draft.wake_input),
        None if target is None else target.session_id,
        None if target is None else target.frame_id,
        batch_id,
        coalesced,
        occurred_ms,
        digest,
    )
