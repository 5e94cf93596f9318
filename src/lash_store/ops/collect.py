"""Retention: which checkpoint versions must stay, what must be rewritten whole, and the bounded deletion of the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from lash_store import delta
from lash_store.ops import checkpoints
from lash_store.ops.checkpoints import Version
from lash_store.ops.heads import LIVE, lock_sessions, look_session
from lash_store.ops.statement import Op, execute, fetch


class Plan(Struct, frozen=True, kw_only=True):
    """What retention does to one session: nothing below `floor` stays, `whole` must be rebuilt as full frames first."""

    session_id: str
    floor: int
    whole: tuple[Version, ...]
    scanned: int
    kept: int
    doomed: int


def session_ids(*, after: str, limit: int) -> Op[list[str]]:
    """Live sessions that have versions of a checkpoint, a config or a frame, in id order."""
    rows = yield from fetch(
        """
        SELECT s.session_id
        FROM {sessions} s
        WHERE s.state = 'live' AND s.session_id > :after
          AND (EXISTS (SELECT 1 FROM {components} c WHERE c.session_id = s.session_id)
               OR EXISTS (SELECT 1 FROM {configs} c WHERE c.session_id = s.session_id)
               OR EXISTS (SELECT 1 FROM {frames} f WHERE f.session_id = s.session_id))
        ORDER BY s.session_id
        LIMIT :limit
        """,
        after=after,
        limit=limit,
    )
    return [row[0] for row in rows]


class History(Struct, frozen=True):
    """What there is to collect: versions without their frames, and every revision that changed checkpoint, config or frames."""

    versions: list[Version]
    revisions: list[int]
    floor: int


class Look(Struct, frozen=True):
    """One snapshot of a session's history: what is to be done, and the chains of what must be rewritten whole."""

    history: History
    plan: Plan | None
    chains: list[list[Version]]


def look(session_id: str, keep_checkpoints: int) -> Op[Look]:
    """Plan one live session, in one read transaction: a plan and its chains that disagree would look like corruption."""
    head = yield from look_session(session_id)
    rows = yield from fetch(
        """
        SELECT revision FROM {configs} WHERE session_id = :session_id
        UNION
        SELECT revision FROM {frames} WHERE session_id = :session_id
        """,
        session_id=session_id,
    )
    versions = yield from checkpoints.history(session_id)
    revisions = sorted({row[0] for row in rows} | {version.revision for version in versions})
    known = History(versions, revisions, head.history_floor)
    planned = plan(session_id, known, keep_checkpoints)
    chains = [] if planned is None or not planned.whole else (yield from _chains(session_id, planned.whole))
    return Look(known, planned, chains)


def _chains(session_id: str, whole: Sequence[Version]) -> Op[list[list[Version]]]:
    """The frames that rebuild these versions, in one statement."""
    frames = yield from checkpoints.frames_between(
        session_id,
        [version.component for version in whole],
        first_revision=min(version.full_revision for version in whole),
        last_revision=max(version.revision for version in whole),
    )
    return [
        [
            frame
            for frame in frames
            if frame.component == version.component and version.full_revision <= frame.revision <= version.revision
        ]
        for version in whole
    ]


def plan(session_id: str, known: History, keep_checkpoints: int) -> Plan | None:
    """Keep what the newest `keep_checkpoints` states of the session need. None when nothing is to be done.

    The floor may stand higher already, because vacuum erased nodes that older states showed; it is never lowered.
    """
    kept_from = known.revisions[-keep_checkpoints] if len(known.revisions) > keep_checkpoints else 0
    floor = max(known.floor, kept_from)
    if not known.revisions or known.revisions[0] >= floor:
        return None
    versions = known.versions
    kept = [version for version in versions if version.revision >= _base(versions, version.component, floor)]
    firsts = {version.component: version for version in reversed(kept)}
    whole = tuple(first for first in firsts.values() if first.base_revision is not None)
    doomed = len(versions) - len(kept)
    return Plan(session_id=session_id, floor=floor, whole=whole, scanned=len(versions), kept=len(kept), doomed=doomed)


def _base(versions: Sequence[Version], component: str, floor: int) -> int:
    """The version of a component that was current at the floor, or its first one after it."""
    own = [version.revision for version in versions if version.component == component]
    return max((revision for revision in own if revision <= floor), default=own[0])


def rebuild(session_id: str, chains: Sequence[Sequence[Version]]) -> dict[str, bytes]:
    """Full frames for the versions whose chains are cut: pure work, outside every lock."""
    return {chain[-1].component: delta.full(checkpoints.restore_chain(session_id, chain)) for chain in chains}


def apply(plan: Plan, frames: Mapping[str, bytes]) -> Op[bool]:
    """Rewrite what must stay whole and raise the floor, under the session lock. False when a commit came in between."""
    head = (yield from lock_sessions([plan.session_id])).get(plan.session_id)
    if head is None or head.state != LIVE:
        return True
    done = yield from checkpoints.make_whole(plan.session_id, [(version, frames[version.component]) for version in plan.whole])
    if not done:
        return False
    yield from execute(
        "UPDATE {sessions} SET history_floor = :floor WHERE session_id = :session_id AND history_floor < :floor",
        session_id=plan.session_id,
        floor=plan.floor,
    )
    return True


class Deleted(Struct, frozen=True):
    """What one bounded step of retention deleted, and whether it reached the end."""

    versions: int
    complete: bool


def delete_step(session_id: str, limit: int) -> Op[Deleted]:
    """Delete up to `limit` versions, configs and frames that nothing from the floor on needs, under the session lock."""
    head = (yield from lock_sessions([session_id])).get(session_id)
    if head is None or head.state != LIVE:
        return Deleted(0, True)
    versions = yield from _delete_versions(session_id, head.history_floor, limit)
    configs = yield from _delete_configs(session_id, head.history_floor, limit)
    frames = yield from _delete_frames(session_id, head.history_floor, limit)
    # A component that was removed before the floor has nothing left to say.
    yield from execute(
        "DELETE FROM {components} WHERE session_id = :session_id AND digest IS NULL AND revision <= :floor",
        session_id=session_id,
        floor=head.history_floor,
    )
    return Deleted(versions, max(versions, configs, frames) < limit)


def _delete_versions(session_id: str, floor: int, limit: int) -> Op[int]:
    return (
        yield from execute(
            """
            DELETE FROM {versions}
            WHERE (session_id, component, revision) IN (
                SELECT v.session_id, v.component, v.revision
                FROM {versions} v
                WHERE v.session_id = :session_id AND v.revision < (
                    SELECT MAX(k.full_revision) FROM {versions} k
                    WHERE k.session_id = v.session_id AND k.component = v.component AND k.revision = (
                        SELECT MAX(x.revision) FROM {versions} x
                        WHERE x.session_id = v.session_id AND x.component = v.component AND x.revision <= :floor))
                ORDER BY v.component, v.revision
                LIMIT :limit)
            """,
            session_id=session_id,
            floor=floor,
            limit=limit,
        )
    )


def _delete_configs(session_id: str, floor: int, limit: int) -> Op[int]:
    return (
        yield from execute(
            """
            DELETE FROM {configs}
            WHERE (session_id, revision) IN (
                SELECT c.session_id, c.revision FROM {configs} c
                WHERE c.session_id = :session_id AND c.revision < (
                    SELECT MAX(x.revision) FROM {configs} x WHERE x.session_id = c.session_id AND x.revision <= :floor)
                ORDER BY c.revision
                LIMIT :limit)
            """,
            session_id=session_id,
            floor=floor,
            limit=limit,
        )
    )


def _delete_frames(session_id: str, floor: int, limit: int) -> Op[int]:
    return (
        yield from execute(
            """
            DELETE FROM {frames}
            WHERE (session_id, frame_id, revision) IN (
                SELECT f.session_id, f.frame_id, f.revision FROM {frames} f
                WHERE f.session_id = :session_id AND f.until_revision <= :floor
                ORDER BY f.frame_id, f.revision
                LIMIT :limit)
            """,
            session_id=session_id,
            floor=floor,
            limit=limit,
        )
    )


def delete_settled_keys(*, retention_ms: int, limit: int, now_ms: int) -> Op[int]:
    """Forget settled keys whose window has passed, oldest first."""
    return (
        yield from execute(
            """
            DELETE FROM {settled_keys}
            WHERE (session_id, source_key) IN (
                SELECT k.session_id, k.source_key FROM {settled_keys} k
                WHERE k.settled_ms <= :cutoff_ms
                ORDER BY k.settled_ms, k.session_id, k.source_key
                LIMIT :limit {skip_locked})
            """,
            cutoff_ms=now_ms - retention_ms,
            limit=limit,
        )
    )
