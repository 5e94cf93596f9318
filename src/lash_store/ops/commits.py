"""The commit: one transaction in which a turn's nodes, head, checkpoint, usage, settled and new work and receipt appear."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from msgspec import Struct, UnsetType

from lash_store.encode import canonical, check, decode, digest
from lash_store.errors import Corrupt, NotFound, RevisionConflict, TurnConflict
from lash_store.model.commit import CommitPage, CommitRecord, Receipt
from lash_store.ops import checkpoints, claims, frames, graph, usage
from lash_store.ops.attachments import stamp_attachments
from lash_store.ops.checkpoints import Component
from lash_store.ops.graph import GraphPlan
from lash_store.ops.heads import Head, live, lock_sessions, look_session
from lash_store.ops.prepare import PreparedCommit
from lash_store.ops.queue import insert_batches
from lash_store.ops.sessions import NewSession, insert_row, write_config
from lash_store.ops.statement import Op, Row, database_now, execute, fetch, fetch_one, ring

COMMIT_TAG = "commit/1"


def commit(prepared: PreparedCommit, *, retention_ms: int) -> Op[Receipt]:
    """All or nothing, once per turn id: binding, receipt, revision, claims and graph are checked before the first write."""
    heads = yield from _lock(prepared)
    head = live(heads.get(prepared.session_id), prepared.session_id, prepared.incarnation)
    now_ms = yield from database_now()
    before = yield from _receipt_of_turn(prepared)
    if before is not None:
        return (yield from _replay(prepared, before, now_ms))
    for batch in prepared.enqueues:
        live(heads.get(batch.session_id), batch.session_id)
    if prepared.expected_revision is not None and prepared.expected_revision != head.revision:
        raise RevisionConflict(prepared.session_id, expected=prepared.expected_revision, actual=head.revision)
    settled = yield from claims.require_owned(prepared.session_id, prepared.completes)
    plan = yield from _plan_graph(prepared, head)
    current = yield from checkpoints.components(prepared.session_id, [each.component for each in prepared.components])
    versions, after = checkpoints.plan_versions(prepared.components, current, head.revision + 1)

    revision = head.revision + 1
    died = yield from _write_graph(prepared, plan, revision=revision, now_ms=now_ms)
    yield from checkpoints.write_versions(prepared.session_id, versions, after)
    yield from usage.record(prepared.session_id, prepared.usage, revision)
    yield from _write_settings(prepared, revision=revision, now_ms=now_ms)
    yield from claims.settle_rows(prepared.session_id, settled, now_ms)
    batch_ids = yield from _enqueue(prepared, heads, now_ms=now_ms, retention_ms=retention_ms)
    yield from stamp_attachments(prepared.session_id, prepared.attachments, now_ms)
    receipt = _receipt(prepared, head, plan, after, batch_ids, now_ms)
    yield from _write_commit(prepared, receipt, _frame_after(prepared, head))
    yield from _move_head(prepared, head, plan, receipt, died)
    yield from ring("commits", prepared.session_id)
    return receipt


# --- looking --------------------------------------------------------------------------------------------------------------


def _lock(prepared: PreparedCommit) -> Op[Mapping[str, Head]]:
    """Lock every session the commit touches, in one statement; a session id never used before is created first.

    A row this transaction has just inserted blocks nobody's lock statement, so inserting before locking keeps the order.
    """
    ids = {prepared.session_id, *(batch.session_id for batch in prepared.enqueues)}
    if len(ids) > 1 and not (yield from _exists(prepared.session_id)):
        yield from _create(prepared)
    heads = yield from lock_sessions(sorted(ids))
    if prepared.session_id not in heads:
        yield from _create(prepared)
        heads = yield from lock_sessions(sorted(ids))
    return heads


def _exists(session_id: str) -> Op[bool]:
    row = yield from fetch_one("SELECT 1 FROM {sessions} WHERE session_id = :session_id", session_id=session_id)
    return row is not None


def _create(prepared: PreparedCommit) -> Op[None]:
    if prepared.incarnation is not None:
        raise NotFound("session", prepared.session_id)
    now_ms = yield from database_now()
    yield from insert_row(NewSession(session_id=prepared.session_id, name=prepared.session_id), now_ms)


def _receipt_of_turn(prepared: PreparedCommit) -> Op[Receipt | None]:
    """The receipt of this turn, if it was committed; other content under its id is refused."""
    if not prepared.repeatable:
        return None
    row = yield from _row_of_turn(prepared.session_id, prepared.turn_id)
    if row is None:
        return None
    before = stored_receipt(row, replayed=True)
    if bytes(row[5]) != prepared.intent:
        raise TurnConflict(prepared.session_id, turn_id=prepared.turn_id, revision=before.revision)
    return before


def _replay(prepared: PreparedCommit, receipt: Receipt, now_ms: int) -> Op[Receipt]:
    """Answer with the first receipt; claims their token still holds are settled, so that a redelivered batch does not loop."""
    held = yield from claims.still_owned(prepared.session_id, prepared.completes)
    yield from claims.settle_rows(prepared.session_id, held, now_ms)
    return receipt


def _plan_graph(prepared: PreparedCommit, head: Head) -> Op[GraphPlan]:
    ids = graph.named_ids(prepared.nodes, prepared.leaf, head)
    if prepared.graph == "unchanged" and not isinstance(prepared.leaf, str):
        return graph.plan_unchanged(prepared.session_id, prepared.leaf, head, {})
    stored = yield from graph.stored_nodes(prepared.session_id, ids)
    if prepared.graph == "append":
        return graph.plan_append(prepared.session_id, prepared.nodes, prepared.leaf, head, stored)
    if prepared.graph == "replace":
        return graph.plan_replace(prepared.session_id, prepared.nodes, prepared.leaf, head, stored)
    return graph.plan_unchanged(prepared.session_id, prepared.leaf, head, stored)


# --- writing --------------------------------------------------------------------------------------------------------------


def _write_graph(prepared: PreparedCommit, plan: GraphPlan, *, revision: int, now_ms: int) -> Op[int]:
    """The nodes of the plan; the number of live nodes a replacement tombstoned."""
    died = 0
    if prepared.graph == "replace":
        keep = [node.node_id for node in prepared.nodes]
        died = yield from graph.tombstone_absent(prepared.session_id, keep, revision=revision)
    yield from graph.write_graph(prepared.session_id, plan, revision=revision, now_ms=now_ms)
    return died


def _write_settings(prepared: PreparedCommit, *, revision: int, now_ms: int) -> Op[None]:
    if not isinstance(prepared.config, UnsetType):
        yield from write_config(prepared.session_id, revision, prepared.config)
    if not isinstance(prepared.frames, UnsetType):
        yield from frames.replace_frames(prepared.session_id, prepared.frames, revision=revision, now_ms=now_ms)


def _enqueue(prepared: PreparedCommit, heads: Mapping[str, Head], *, now_ms: int, retention_ms: int) -> Op[tuple[str, ...]]:
    """Follow-up work in the same transaction; the ids it has, whether stored now or before."""
    if not prepared.enqueues:
        return ()
    done = yield from insert_batches(prepared.enqueues, heads, now_ms=now_ms, retention_ms=retention_ms)
    ids = {(row.session_id, row.key): row.batch_id for row in done.stored}
    ids.update({(batch.session_id, batch.source_key or batch.batch_id): batch.batch_id for batch in done.settled})
    return tuple(ids[batch.session_id, batch.key] for batch in prepared.enqueues)


def _frame_after(prepared: PreparedCommit, head: Head) -> str | None:
    return head.current_frame_id if isinstance(prepared.current_frame_id, UnsetType) else prepared.current_frame_id


def _receipt(
    prepared: PreparedCommit,
    head: Head,
    plan: GraphPlan,
    after: Mapping[str, Component],
    batch_ids: tuple[str, ...],
    now_ms: int,
) -> Receipt:
    whole = checkpoints.checkpoint_digest(after)
    return Receipt(
        session_id=prepared.session_id,
        incarnation=head.incarnation,
        revision=head.revision + 1,
        turn_id=prepared.turn_id,
        leaf_id=plan.leaf_id,
        node_ids=tuple(node.node_id for node in prepared.nodes),
        components={name: c.digest.hex() for name, c in sorted(after.items()) if c.digest is not None},
        checkpoint_digest=None if whole is None else whole.hex(),
        batch_ids=batch_ids,
        committed_ms=now_ms,
        replayed=False,
    )


def _write_commit(prepared: PreparedCommit, receipt: Receipt, frame_id: str | None) -> Op[None]:
    yield from write_commit_row(
        CommitRow(
            session_id=prepared.session_id,
            revision=receipt.revision,
            incarnation=receipt.incarnation,
            kind="commit",
            turn_id=prepared.turn_id,
            intent=prepared.intent,
            leaf_id=receipt.leaf_id,
            current_frame_id=frame_id,
            checkpoint_digest=None if receipt.checkpoint_digest is None else bytes.fromhex(receipt.checkpoint_digest),
            result=canonical(
                {
                    "node_ids": list(receipt.node_ids),
                    "components": dict(receipt.components),
                    "batch_ids": list(receipt.batch_ids),
                }
            ),
            committed_ms=receipt.committed_ms,
        )
    )


class CommitRow(Struct, frozen=True, kw_only=True):
    """A row of the history, before its digest."""

    session_id: str
    revision: int
    incarnation: int
    kind: str
    turn_id: str | None
    intent: bytes | None
    leaf_id: str | None
    current_frame_id: str | None
    checkpoint_digest: bytes | None
    result: str
    committed_ms: int


def write_commit_row(row: CommitRow) -> Op[None]:
    """Append one line to the session's history."""
    yield from execute(
        """
        INSERT INTO {commits} (session_id, revision, incarnation, kind, turn_id, intent, leaf_id, current_frame_id,
                               checkpoint_digest, result, digest, committed_ms)
        VALUES (:session_id, :revision, :incarnation, :kind, :turn_id, :intent, :leaf_id, :current_frame_id,
                :checkpoint_digest, :result, :digest, :committed_ms)
        """,
        session_id=row.session_id,
        revision=row.revision,
        incarnation=row.incarnation,
        kind=row.kind,
        turn_id=row.turn_id,
        intent=row.intent,
        leaf_id=row.leaf_id,
        current_frame_id=row.current_frame_id,
        checkpoint_digest=row.checkpoint_digest,
        result=row.result,
        digest=_commit_digest(row),
        committed_ms=row.committed_ms,
    )


def _commit_digest(row: CommitRow) -> bytes:
    return digest(
        COMMIT_TAG,
        row.session_id,
        row.revision,
        row.incarnation,
        row.kind,
        row.turn_id,
        row.intent,
        row.leaf_id,
        row.current_frame_id,
        row.checkpoint_digest,
        row.result,
        row.committed_ms,
    )


def _move_head(prepared: PreparedCommit, head: Head, plan: GraphPlan, receipt: Receipt, died: int) -> Op[None]:
    """The compare-and-set: the head moves from the revision that was locked, by one."""
    born = len(plan.inserts) + len(plan.revives)
    config_revision = head.config_revision if isinstance(prepared.config, UnsetType) else receipt.revision
    count = yield from execute(
        """
        UPDATE {sessions}
        SET revision = :revision, leaf_id = :leaf_id, config_revision = :config_revision, current_frame_id = :frame_id,
            checkpoint_digest = :checkpoint_digest, node_count = :node_count, next_position = :next_position,
            next_branch = :next_branch, updated_ms = :now_ms
        WHERE session_id = :session_id AND revision = :before AND state = 'live'
        """,
        session_id=prepared.session_id,
        before=head.revision,
        revision=receipt.revision,
        leaf_id=receipt.leaf_id,
        config_revision=config_revision,
        frame_id=_frame_after(prepared, head),
        checkpoint_digest=None if receipt.checkpoint_digest is None else bytes.fromhex(receipt.checkpoint_digest),
        node_count=head.node_count + born - died,
        next_position=plan.next_position,
        next_branch=plan.next_branch,
        now_ms=receipt.committed_ms,
    )
    if count != 1:
        raise RevisionConflict(prepared.session_id, expected=head.revision, actual=head.revision + 1)


# --- history --------------------------------------------------------------------------------------------------------------


def _row_of_turn(session_id: str, turn_id: str) -> Op[Row | None]:
    return (
        yield from fetch_one(
            """
            SELECT session_id, revision, incarnation, kind, turn_id, intent, leaf_id, current_frame_id, checkpoint_digest,
                   result, committed_ms, digest
            FROM {commits}
            WHERE session_id = :session_id AND turn_id = :turn_id
            """,
            session_id=session_id,
            turn_id=turn_id,
        )
    )


def receipt(session_id: str, turn_id: str, incarnation: int | None = None) -> Op[Receipt]:
    """The receipt of a committed turn."""
    yield from look_session(session_id, incarnation)
    row = yield from _row_of_turn(session_id, turn_id)
    if row is None:
        raise NotFound("turn", turn_id, within=session_id)
    return stored_receipt(row, replayed=True)


def page(session_id: str, *, after: int, limit: int, incarnation: int | None = None) -> Op[CommitPage]:
    """The history of a session, oldest first, after a revision."""
    yield from look_session(session_id, incarnation)
    rows = yield from fetch(
        """
        SELECT session_id, revision, incarnation, kind, turn_id, intent, leaf_id, current_frame_id, checkpoint_digest,
               result, committed_ms, digest
        FROM {commits}
        WHERE session_id = :session_id AND revision > :after
        ORDER BY revision
        LIMIT :limit
        """,
        session_id=session_id,
        after=after,
        limit=limit,
    )
    for earlier, later in pairwise(rows):
        if later[1] != earlier[1] + 1:
            raise Corrupt("commits", f"{session_id!r}@{earlier[1] + 1}", "the row is missing")
    cursor = str(rows[-1][1]) if len(rows) == limit else None
    return CommitPage(commits=tuple(stored_record(row) for row in rows), cursor=cursor)


def record_at(session_id: str, revision: int) -> Op[CommitRecord | None]:
    """The commit that made a revision, if its row is still there."""
    row = yield from fetch_one(
        """
        SELECT session_id, revision, incarnation, kind, turn_id, intent, leaf_id, current_frame_id, checkpoint_digest,
               result, committed_ms, digest
        FROM {commits}
        WHERE session_id = :session_id AND revision = :revision
        """,
        session_id=session_id,
        revision=revision,
    )
    return None if row is None else stored_record(row)


def record_with_leaf(session_id: str, leaf_id: str) -> Op[CommitRecord | None]:
    """The last commit that left the leaf on this node."""
    row = yield from fetch_one(
        """
        SELECT session_id, revision, incarnation, kind, turn_id, intent, leaf_id, current_frame_id, checkpoint_digest,
               result, committed_ms, digest
        FROM {commits}
        WHERE session_id = :session_id AND leaf_id = :leaf_id
        ORDER BY revision DESC
        LIMIT 1
        """,
        session_id=session_id,
        leaf_id=leaf_id,
    )
    return None if row is None else stored_record(row)


def _verified(row: Row) -> tuple[CommitRow, dict[str, Any]]:
    stored = CommitRow(
        session_id=row[0],
        revision=row[1],
        incarnation=row[2],
        kind=row[3],
        turn_id=row[4],
        intent=None if row[5] is None else bytes(row[5]),
        leaf_id=row[6],
        current_frame_id=row[7],
        checkpoint_digest=None if row[8] is None else bytes(row[8]),
        result=row[9],
        committed_ms=row[10],
    )
    name = f"{stored.session_id!r}@{stored.revision}"
    check(bytes(row[11]), _commit_digest(stored), table="commits", row=name)
    result = decode(stored.result, table="commits", row=name)
    if not isinstance(result, dict):
        raise Corrupt("commits", name, "its result is not an object")
    return stored, result  # pyright: ignore[reportUnknownVariableType]


def stored_receipt(row: Row, *, replayed: bool) -> Receipt:
    """The receipt a verified row of the history holds."""
    stored, result = _verified(row)
    return Receipt(
        session_id=stored.session_id,
        incarnation=stored.incarnation,
        revision=stored.revision,
        turn_id=stored.turn_id,
        leaf_id=stored.leaf_id,
        node_ids=tuple(result["node_ids"]),
        components=result["components"],
        checkpoint_digest=None if stored.checkpoint_digest is None else stored.checkpoint_digest.hex(),
        batch_ids=tuple(result["batch_ids"]),
        committed_ms=stored.committed_ms,
        replayed=replayed,
    )


def stored_record(row: Row) -> CommitRecord:
    """The line of history a verified row holds."""
    stored, result = _verified(row)
    return CommitRecord(
        session_id=stored.session_id,
        incarnation=stored.incarnation,
        revision=stored.revision,
        kind=stored.kind,
        turn_id=stored.turn_id,
        intent=None if stored.intent is None else stored.intent.hex(),
        leaf_id=stored.leaf_id,
        current_frame_id=stored.current_frame_id,
        checkpoint_digest=None if stored.checkpoint_digest is None else stored.checkpoint_digest.hex(),
        node_ids=tuple(result["node_ids"]),
        committed_ms=stored.committed_ms,
    )


def check_at_revision(head: Head, revision: int) -> None:
    """Whether the session can still be shown as of a revision."""
    if revision > head.revision:
        raise NotFound("revision", str(revision), within=head.session_id)
    if revision < head.history_floor:
        raise NotFound("revision", str(revision), within=head.session_id, retention=True)
