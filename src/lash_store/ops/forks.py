"""Forking: a new session over a path of another, with its checkpoint as full frames; it survives its source."""

from __future__ import annotations

from msgspec import Struct

from lash_store.encode import canonical, decode
from lash_store.errors import NotFound, ReplayConflict, SessionDeleted
from lash_store.model.limits import INT_MAX
from lash_store.model.session import Session
from lash_store.ops import checkpoints, commits, frames, sessions
from lash_store.ops.checkpoints import PreparedComponent, Version
from lash_store.ops.commits import CommitRow
from lash_store.ops.heads import LIVE, Head, live, lock_sessions, look_session
from lash_store.ops.sessions import NewSession
from lash_store.ops.statement import Op, database_now, execute, fetch, fetch_one, ring


class ForkPoint(Struct, frozen=True, kw_only=True):
    """Where a fork starts: a node, and the revision whose checkpoint, config and frames go along (None: none does)."""

    source_id: str
    incarnation: int
    leaf_id: str | None
    state_revision: int | None
    current_frame_id: str | None
    visible_after: int
    versions: list[Version]


def find_point(source_id: str, at: str | int | None, incarnation: int | None = None) -> Op[ForkPoint]:
    """The head, a revision, or a node; a node's state is that of the last commit that ended on it."""
    head = yield from look_session(source_id, incarnation)
    if at is None:
        return (yield from _point(head, head.leaf_id, head.revision, head.current_frame_id))
    if isinstance(at, int):
        commits.check_at_revision(head, at)
        record = yield from commits.record_at(source_id, at)
        if record is None:
            raise NotFound("revision", str(at), within=source_id)
        return (yield from _point(head, record.leaf_id, at, record.current_frame_id, visible_after=at))
    record = yield from commits.record_with_leaf(source_id, at)
    if record is None:
        return (yield from _point(head, at, None, None))
    commits.check_at_revision(head, record.revision)
    return (yield from _point(head, at, record.revision, record.current_frame_id))


def _point(
    head: Head, leaf_id: str | None, revision: int | None, frame_id: str | None, *, visible_after: int = INT_MAX
) -> Op[ForkPoint]:
    versions = [] if revision is None else (yield from checkpoints.chains_at(head.session_id, revision))
    return ForkPoint(
        source_id=head.session_id,
        incarnation=head.incarnation,
        leaf_id=leaf_id,
        state_revision=revision,
        current_frame_id=frame_id,
        visible_after=visible_after,
        versions=versions,
    )


class PointMoved(Exception):
    """Retention passed the fork's point between the look and the lock. Look again."""


class Fork(Struct, frozen=True, kw_only=True):
    """A fork to write: its point, its new session, and the checkpoint as full frames."""

    point: ForkPoint
    new: NewSession
    components: tuple[PreparedComponent, ...]


def fork(plan: Fork) -> Op[Session]:
    """Copy the path in one statement and the state beside it. Repeating the same fork returns the first one."""
    source_id, new_id = plan.point.source_id, plan.new.session_id
    now_ms = yield from database_now()
    created = yield from sessions.insert_row(plan.new, now_ms)
    heads = yield from lock_sessions([source_id, new_id])
    if not created:
        return (yield from _forked_before(plan, heads[new_id]))
    source = live(heads.get(source_id), source_id, plan.point.incarnation)
    # Vacuum may put the floor above the head: the present state is there all the same.
    floor = min(source.history_floor, source.revision)
    if plan.point.state_revision is not None and plan.point.state_revision < floor:
        raise PointMoved
    now_ms = yield from database_now()
    copied = yield from _copy_path(plan)
    yield from _copy_state(plan)
    yield from _copy_attachments(plan)
    versions, after = checkpoints.plan_versions(plan.components, {}, 1)
    yield from checkpoints.write_versions(new_id, versions, after)
    whole = checkpoints.checkpoint_digest(after)
    yield from commits.write_commit_row(
        CommitRow(
            session_id=new_id,
            revision=1,
            incarnation=1,
            kind="fork",
            turn_id=None,
            intent=None,
            leaf_id=plan.point.leaf_id,
            current_frame_id=plan.point.current_frame_id,
            checkpoint_digest=whole,
            result=_result(plan, {c.component: c.digest.hex() for c in after.values() if c.digest is not None}),
            committed_ms=now_ms,
        )
    )
    yield from _set_head(plan, copied, whole, now_ms)
    yield from ring("commits", new_id)
    return (yield from sessions.get(new_id))


def _result(plan: Fork, components: dict[str, str]) -> str:
    source = {"session_id": plan.point.source_id, "incarnation": plan.point.incarnation, "leaf_id": plan.point.leaf_id}
    return canonical({"node_ids": [], "components": components, "batch_ids": [], "fork": source})


def _forked_before(plan: Fork, head: Head) -> Op[Session]:
    if head.state != LIVE:
        raise SessionDeleted(head.session_id, incarnation=head.incarnation)
    row = yield from fetch_one(
        "SELECT result FROM {commits} WHERE session_id = :session_id AND revision = 1 AND kind = 'fork'",
        session_id=head.session_id,
    )
    same = row is not None and _same_source(plan, row[0])
    if not same:
        raise ReplayConflict("session", key=head.session_id, owner=plan.point.source_id)
    return (yield from sessions.get(head.session_id))


def _same_source(plan: Fork, result: str) -> bool:
    before = decode(result, table="commits", row=f"{plan.new.session_id!r}@1").get("fork")
    point = plan.point
    return before == {"session_id": point.source_id, "incarnation": point.incarnation, "leaf_id": point.leaf_id}


class Copied(Struct, frozen=True):
    """How many rows a fork copied, and how many of them are live."""

    rows: int
    live: int


def _copy_path(plan: Fork) -> Op[Copied]:
    """One run, root first. Ancestors tombstoned by then keep their places without bodies, so that no parent edge changes."""
    if plan.point.leaf_id is None:
        return Copied(0, 0)
    rows = yield from execute(
        """
        WITH RECURSIVE run (branch, last_depth) AS (
            SELECT branch, depth FROM {nodes} WHERE session_id = :source_id AND node_id = :leaf_id
            UNION ALL
            SELECT (SELECT b.parent_branch FROM {branches} b WHERE b.session_id = :source_id AND b.branch = run.branch),
                   (SELECT b.parent_depth FROM {branches} b WHERE b.session_id = :source_id AND b.branch = run.branch)
            FROM run
            WHERE run.branch IS NOT NULL
        )
        INSERT INTO {nodes} (session_id, branch, depth, position, node_id, parent_id, kind, body, frame_id, caused_by, digest,
                             created_ms, created_revision, tombstone_revision)
        SELECT CAST(:new_id AS TEXT), 0, n.depth, n.depth, n.node_id, n.parent_id, n.kind,
               CASE WHEN n.tombstone_revision <= :visible_after THEN NULL ELSE n.body END, n.frame_id,
               CASE WHEN n.tombstone_revision <= :visible_after THEN NULL ELSE n.caused_by END, n.digest, n.created_ms, 1,
               CASE WHEN n.tombstone_revision <= :visible_after THEN 0 END
        FROM run
        CROSS JOIN {lookup}{nodes} n
        WHERE n.session_id = :source_id AND n.branch = run.branch AND n.depth <= run.last_depth {end_lookup:n}
        """,
        source_id=plan.point.source_id,
        leaf_id=plan.point.leaf_id,
        new_id=plan.new.session_id,
        visible_after=plan.point.visible_after,
    )
    row = yield from fetch_one(
        """
        SELECT COUNT(*), MAX(depth), COUNT(CASE WHEN tombstone_revision IS NULL THEN 1 END),
               COUNT(CASE WHEN node_id = :leaf_id AND tombstone_revision IS NULL THEN 1 END)
        FROM {nodes} WHERE session_id = :new_id
        """,
        new_id=plan.new.session_id,
        leaf_id=plan.point.leaf_id,
    )
    assert row is not None
    if row[3] != 1:
        raise NotFound("node", plan.point.leaf_id, within=plan.point.source_id)
    assert rows == row[0] == row[1] + 1, "the path of a fork has a gap"
    yield from execute(
        """
        INSERT INTO {branches} (session_id, branch, first_depth, tip_depth)
        VALUES (:session_id, 0, 0, :tip_depth)
        """,
        session_id=plan.new.session_id,
        tip_depth=rows - 1,
    )
    return Copied(rows, row[2])


def _copy_state(plan: Fork) -> Op[None]:
    """Config and frames as of the fork's revision."""
    revision = plan.point.state_revision
    if revision is None:
        return
    config = yield from frames.config_at(plan.point.source_id, revision)
    if config is not None:
        frames.verified_config(plan.point.source_id, config, None)
        yield from sessions.write_config(plan.new.session_id, 1, config[1])
    yield from execute(
        """
        INSERT INTO {frames} (session_id, frame_id, revision, ordinal, body, state, digest, created_ms)
        SELECT CAST(:new_id AS TEXT), frame_id, 1, ordinal, body, state, digest, created_ms
        FROM {frames}
        WHERE session_id = :source_id AND revision <= :revision
          AND (until_revision IS NULL OR until_revision > :revision)
        """,
        new_id=plan.new.session_id,
        source_id=plan.point.source_id,
        revision=revision,
    )


def _copy_attachments(plan: Fork) -> Op[None]:
    """The fork holds what its source's commits named: a sweep keeps the bytes when the source is gone."""
    yield from fetch(
        """
        SELECT d.attachment_id FROM {digests} d
        WHERE d.attachment_id IN (
            SELECT a.attachment_id FROM {attachments} a WHERE a.session_id = :source_id AND a.committed_ms IS NOT NULL)
        ORDER BY d.attachment_id
        {for_update}
        """,
        source_id=plan.point.source_id,
    )
    yield from execute(
        """
        INSERT INTO {attachments} (session_id, attachment_id, media_type, byte_len, label, width, height, intent_ms,
                                   committed_ms)
        SELECT CAST(:new_id AS TEXT), attachment_id, media_type, byte_len, label, width, height, intent_ms, committed_ms
        FROM {attachments}
        WHERE session_id = :source_id AND committed_ms IS NOT NULL
        """,
        source_id=plan.point.source_id,
        new_id=plan.new.session_id,
    )


def _set_head(plan: Fork, copied: Copied, whole: bytes | None, now_ms: int) -> Op[None]:
    count = yield from execute(
        """
        UPDATE {sessions}
        SET revision = 1, leaf_id = :leaf_id, current_frame_id = :frame_id, checkpoint_digest = :checkpoint_digest,
            config_revision = (SELECT MAX(c.revision) FROM {configs} c WHERE c.session_id = {sessions}.session_id),
            node_count = :live, next_position = :next_position, next_branch = :next_branch, history_floor = 1,
            updated_ms = :now_ms
        WHERE session_id = :session_id AND revision = 0 AND state = 'live'
        """,
        session_id=plan.new.session_id,
        leaf_id=plan.point.leaf_id,
        frame_id=plan.point.current_frame_id,
        checkpoint_digest=whole,
        live=copied.live,
        next_position=copied.rows,
        next_branch=min(copied.rows, 1),
        now_ms=now_ms,
    )
    assert count == 1, "the new session of a fork vanished"
