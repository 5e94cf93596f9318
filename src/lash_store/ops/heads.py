"""The session row: the lock every operation on a session takes first, and the head it finds there."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from lash_store.errors import NotFound, SessionDeleted
from lash_store.ops.statement import Op, Row, execute, fetch

LIVE, PURGING, DELETED = "live", "purging", "deleted"


class Head(Struct, frozen=True):
    """What the head of a session holds, as read under its lock."""

    session_id: str
    incarnation: int
    state: str
    revision: int
    leaf_id: str | None
    config_revision: int | None
    current_frame_id: str | None
    checkpoint_digest: bytes | None
    node_count: int
    next_position: int
    next_branch: int
    next_enqueue_seq: int
    fence: int
    history_floor: int


def lock_sessions(session_ids: Sequence[str]) -> Op[dict[str, Head]]:
    """Lock the rows of these sessions in one statement, in ascending order, which is the order all operations use."""
    ids = sorted(set(session_ids))
    rows = yield from (_lock_one(ids[0]) if len(ids) == 1 else _lock_all(ids))
    return {row[0]: Head(*row) for row in rows}


def _lock_one(session_id: str) -> Op[list[Row]]:
    # By far the most frequent case, and one row needs no order: SQLite would set up a sorter for it.
    return (
        yield from fetch(
            """
            SELECT session_id, incarnation, state, revision, leaf_id, config_revision, current_frame_id, checkpoint_digest,
                   node_count, next_position, next_branch, next_enqueue_seq, fence, history_floor
            FROM {sessions}
            WHERE session_id = :session_id
            {for_update}
            """,
            session_id=session_id,
        )
    )


def _lock_all(session_ids: Sequence[str]) -> Op[list[Row]]:
    return (
        yield from fetch(
            """
            SELECT session_id, incarnation, state, revision, leaf_id, config_revision, current_frame_id, checkpoint_digest,
                   node_count, next_position, next_branch, next_enqueue_seq, fence, history_floor
            FROM {sessions}
            WHERE session_id {any_text:session_ids}
            ORDER BY session_id
            {for_update}
            """,
            session_ids=session_ids,
        )
    )


def lock_session(session_id: str, incarnation: int | None = None) -> Op[Head]:
    """Lock one live session, or refuse: unknown, deleted, or another incarnation than the caller remembers."""
    heads = yield from lock_sessions([session_id])
    return live(heads.get(session_id), session_id, incarnation)


def live(head: Head | None, session_id: str, incarnation: int | None = None) -> Head:
    """The head, if the session is there and is the incarnation the caller means."""
    if head is None:
        raise NotFound("session", session_id)
    check_live(session_id, state=head.state, found=head.incarnation, meant=incarnation)
    return head


def check_live(session_id: str, *, state: str, found: int, meant: int | None) -> None:
    """Refuse a session that is deleted, or another incarnation than the caller means; the error names the one meant."""
    if state != LIVE or (meant is not None and found != meant):
        raise SessionDeleted(session_id, incarnation=found if meant is None else meant)


def look_session(session_id: str, incarnation: int | None = None) -> Op[Head]:
    """The head of one live session without a lock, for reads."""
    rows = yield from fetch(
        """
        SELECT session_id, incarnation, state, revision, leaf_id, config_revision, current_frame_id, checkpoint_digest,
               node_count, next_position, next_branch, next_enqueue_seq, fence, history_floor
        FROM {sessions}
        WHERE session_id = :session_id
        """,
        session_id=session_id,
    )
    return live(Head(*rows[0]) if rows else None, session_id, incarnation)


def refresh_ready(session_ids: Sequence[str]) -> Op[None]:
    """Recompute when the inbox of each locked session has work, through indexes, whatever its depth.

    `open_ms` is the first instant any batch can be claimed. `ready_ms` waits, too, for the claims that are live now.
    """
    count = yield from execute(
        """
        UPDATE {sessions}
        SET ready_ms = COALESCE(
                (SELECT MAX(b.expires_ms) FROM {batches} b WHERE b.session_id = {sessions}.session_id AND b.token IS NOT NULL),
                (SELECT MIN(b.available_ms) FROM {batches} b
                 WHERE b.session_id = {sessions}.session_id AND b.token IS NULL AND b.parked_ms IS NULL)),
            open_ms = (SELECT MIN(due.at_ms) FROM (
                SELECT MIN(b.expires_ms) AS at_ms FROM {batches} b
                WHERE b.session_id = {sessions}.session_id AND b.token IS NOT NULL
                UNION ALL
                SELECT MIN(b.available_ms) FROM {batches} b
                WHERE b.session_id = {sessions}.session_id AND b.token IS NULL AND b.parked_ms IS NULL) AS due)
        WHERE session_id {any_text:session_ids}
        """,
        session_ids=sorted(set(session_ids)),
    )
    assert count == len(set(session_ids)), "a locked session row vanished"
