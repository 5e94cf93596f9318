"""Sessions: create, look, list, rename, delete, and the bounded purge of what a deleted one owned."""

from __future__ import annotations

from typing import Literal, LiteralString

from msgspec import UNSET, Struct, UnsetType

from lash_store.encode import check, decode, digest
from lash_store.errors import InvalidArgument, NotFound
from lash_store.model.session import Relation, Session, SessionPage
from lash_store.ops.heads import DELETED, PURGING, Head, check_live, live, lock_session, lock_sessions
from lash_store.ops.statement import Op, Row, database_now, execute, fetch, fetch_one, ring

Order = Literal["updated", "id"]


class NewSession(Struct, frozen=True, kw_only=True):
    """A session to create, walked and encoded."""

    session_id: str
    name: str
    model: str | None = None
    cwd: str | None = None
    parent_session_id: str | None = None
    caused_by: str | None = None
    config: str | UnsetType = UNSET


def create(new: NewSession) -> Op[Session | None]:
    """Insert if absent: an existing session is returned unchanged. None while a deleted one is not purged yet."""
    now_ms = yield from database_now()
    fresh = yield from insert_row(new, now_ms)
    head = (yield from lock_sessions([new.session_id]))[new.session_id]
    if head.state == PURGING:
        return None
    if head.state == DELETED:
        yield from _revive(new, head)
        fresh = True
    if fresh and not isinstance(new.config, UnsetType):
        yield from _first_config(new.session_id, head.revision, new.config)
    return (yield from get(new.session_id))


def insert_row(new: NewSession, now_ms: int) -> Op[bool]:
    """Insert the row of a session id never used before; false when the id exists, whoever was first."""
    count = yield from execute(
        """
        INSERT INTO {sessions} (
            session_id, incarnation, state, name, model, cwd, parent_session_id, caused_by, meta_digest,
            created_ms, updated_ms, revision, node_count, next_position, next_branch, next_enqueue_seq, fence, history_floor)
        VALUES (
            :session_id, 1, 'live', :name, :model, :cwd, :parent_session_id, :caused_by, :meta_digest,
            :now_ms, :now_ms, 0, 0, 0, 0, 1, 0, 0)
        ON CONFLICT (session_id) DO NOTHING
        """,
        session_id=new.session_id,
        name=new.name,
        model=new.model,
        cwd=new.cwd,
        parent_session_id=new.parent_session_id,
        caused_by=new.caused_by,
        meta_digest=_meta_digest(new),
        now_ms=now_ms,
    )
    return count == 1


def _revive(new: NewSession, head: Head) -> Op[None]:
    """Start the next incarnation of a purged id: the revision, the fence and the inbox counter go on."""
    now_ms = yield from database_now()
    count = yield from execute(
        """
        UPDATE {sessions}
        SET incarnation = incarnation + 1, state = 'live', name = :name, model = :model, cwd = :cwd,
            parent_session_id = :parent_session_id, caused_by = :caused_by, meta_digest = :meta_digest,
            created_ms = :now_ms, updated_ms = :now_ms, history_floor = revision
        WHERE session_id = :session_id AND state = 'deleted' AND incarnation = :incarnation
        """,
        session_id=new.session_id,
        incarnation=head.incarnation,
        name=new.name,
        model=new.model,
        cwd=new.cwd,
        parent_session_id=new.parent_session_id,
        caused_by=new.caused_by,
        meta_digest=_meta_digest(new),
        now_ms=now_ms,
    )
    assert count == 1, "the locked tombstone vanished"


def _first_config(session_id: str, revision: int, config: str) -> Op[None]:
    """Keep the config a session is created with."""
    count = yield from execute(
        "UPDATE {sessions} SET config_revision = revision WHERE session_id = :session_id AND state = 'live'",
        session_id=session_id,
    )
    assert count == 1, "the locked session vanished"
    yield from write_config(session_id, revision, config)


def write_config(session_id: str, revision: int, config: str) -> Op[None]:
    """Store the config a revision starts with."""
    yield from execute(
        """
        INSERT INTO {configs} (session_id, revision, body, digest)
        VALUES (:session_id, :revision, :body, :digest)
        """,
        session_id=session_id,
        revision=revision,
        body=config,
        digest=digest("config/1", session_id, revision, config),
    )


def get(session_id: str, incarnation: int | None = None) -> Op[Session]:
    """A live session, or a typed refusal."""
    row = yield from fetch_one(
        """
        SELECT session_id, incarnation, state, revision, leaf_id, node_count, current_frame_id, checkpoint_digest,
               name, model, cwd, parent_session_id, caused_by, meta_digest, created_ms, updated_ms
        FROM {sessions}
        WHERE session_id = :session_id
        """,
        session_id=session_id,
    )
    if row is None:
        raise NotFound("session", session_id)
    check_live(session_id, state=row[2], found=row[1], meant=incarnation)
    return _session(row)


def _session(row: Row) -> Session:
    (session_id, incarnation, _, revision, leaf_id, node_count, frame_id, checkpoint) = row[:8]
    (name, model, cwd, parent, caused_by, meta_digest, created_ms, updated_ms) = row[8:]
    check(meta_digest, session_digest(session_id, name, model, cwd, parent, caused_by), table="sessions", row=repr(session_id))
    cause = None if caused_by is None else decode(caused_by, table="sessions", row=repr(session_id))
    return Session(
        session_id=session_id,
        incarnation=incarnation,
        revision=revision,
        leaf_id=leaf_id,
        node_count=node_count,
        current_frame_id=frame_id,
        checkpoint_digest=None if checkpoint is None else bytes(checkpoint).hex(),
        name=name,
        model=model,
        cwd=cwd,
        relation=Relation(parent_session_id=parent, caused_by=cause),
        created_ms=created_ms,
        updated_ms=updated_ms,
    )


def page(*, order: Order, parent: str | None, limit: int, cursor: str | None) -> Op[SessionPage]:
    """A keyset page of live sessions: newest first by update, or by id."""
    if order == "updated":
        rows = yield from _by_updated(parent, limit, cursor)
    else:
        rows = yield from _by_id(parent, limit, cursor)
    last = rows[-1] if len(rows) == limit else None
    next_cursor = None if last is None else (f"{last[15]}:{last[0]}" if order == "updated" else last[0])
    return SessionPage(sessions=tuple(_session(row) for row in rows), cursor=next_cursor)


def _by_updated(parent: str | None, limit: int, cursor: str | None) -> Op[list[Row]]:
    updated_ms, session_id = split_cursor(cursor)
    if parent is not None:
        return (yield from _children_by_updated(parent, limit, updated_ms, session_id))
    return (
        yield from fetch(
            """
            SELECT session_id, incarnation, state, revision, leaf_id, node_count, current_frame_id, checkpoint_digest,
                   name, model, cwd, parent_session_id, caused_by, meta_digest, created_ms, updated_ms
            FROM {sessions}
            WHERE state = 'live'
              AND (updated_ms, session_id) < (CAST(:updated_ms AS {int}), CAST(:session_id AS TEXT))
            ORDER BY updated_ms DESC, session_id DESC
            LIMIT :limit
            """,
            updated_ms=updated_ms,
            session_id=session_id,
            limit=limit,
        )
    )


def _children_by_updated(parent: str, limit: int, updated_ms: int, session_id: str) -> Op[list[Row]]:
    return (
        yield from fetch(
            """
            SELECT session_id, incarnation, state, revision, leaf_id, node_count, current_frame_id, checkpoint_digest,
                   name, model, cwd, parent_session_id, caused_by, meta_digest, created_ms, updated_ms
            FROM {sessions}
            WHERE state = 'live' AND parent_session_id = :parent
              AND (updated_ms, session_id) < (CAST(:updated_ms AS {int}), CAST(:session_id AS TEXT))
            ORDER BY updated_ms DESC, session_id DESC
            LIMIT :limit
            """,
            parent=parent,
            updated_ms=updated_ms,
            session_id=session_id,
            limit=limit,
        )
    )


def _by_id(parent: str | None, limit: int, cursor: str | None) -> Op[list[Row]]:
    if parent is not None:
        return (yield from _children_by_id(parent, limit, cursor))
    return (
        yield from fetch(
            """
            SELECT session_id, incarnation, state, revision, leaf_id, node_count, current_frame_id, checkpoint_digest,
                   name, model, cwd, parent_session_id, caused_by, meta_digest, created_ms, updated_ms
            FROM {sessions}
            WHERE state = 'live' AND session_id > :after
            ORDER BY session_id
            LIMIT :limit
            """,
            after=cursor or "",
            limit=limit,
        )
    )


def _children_by_id(parent: str, limit: int, cursor: str | None) -> Op[list[Row]]:
    return (
        yield from fetch(
            """
            SELECT session_id, incarnation, state, revision, leaf_id, node_count, current_frame_id, checkpoint_digest,
                   name, model, cwd, parent_session_id, caused_by, meta_digest, created_ms, updated_ms
            FROM {sessions}
            WHERE state = 'live' AND parent_session_id = :parent AND session_id > :after
            ORDER BY session_id
            LIMIT :limit
            """,
            parent=parent,
            after=cursor or "",
            limit=limit,
        )
    )


def split_cursor(cursor: str | None) -> tuple[int, str]:
    """The (time, id) a newest-first page ended on; the far future when there is none yet."""
    if cursor is None:
        return 2**63 - 1, ""
    instant, _, session_id = cursor.partition(":")
    if not instant.isascii() or not instant.isdigit() or len(instant) > 18:
        raise InvalidArgument("cursor", "is not one this list returned")
    return int(instant), session_id


class MetaChange(Struct, frozen=True, kw_only=True):
    """The metadata fields to change; unset ones stay."""

    name: str | UnsetType = UNSET
    model: str | None | UnsetType = UNSET
    cwd: str | None | UnsetType = UNSET


def update_meta(session_id: str, change: MetaChange, incarnation: int | None = None) -> Op[Session]:
    """Change name, model or cwd. Takes no revision: the head does not move."""
    yield from lock_session(session_id, incarnation)
    now_ms = yield from database_now()
    before = yield from get(session_id)
    row = yield from fetch_one(
        "SELECT caused_by FROM {sessions} WHERE session_id = :session_id",
        session_id=session_id,
    )
    assert row is not None
    after = NewSession(
        session_id=session_id,
        name=before.name if isinstance(change.name, UnsetType) else change.name,
        model=before.model if isinstance(change.model, UnsetType) else change.model,
        cwd=before.cwd if isinstance(change.cwd, UnsetType) else change.cwd,
        parent_session_id=before.relation.parent_session_id,
        caused_by=row[0],
    )
    count = yield from execute(
        """
        UPDATE {sessions}
        SET name = :name, model = :model, cwd = :cwd, meta_digest = :meta_digest, updated_ms = :now_ms
        WHERE session_id = :session_id AND state = 'live'
        """,
        session_id=session_id,
        name=after.name,
        model=after.model,
        cwd=after.cwd,
        meta_digest=_meta_digest(after),
        now_ms=now_ms,
    )
    assert count == 1, "the locked session vanished"
    return (yield from get(session_id))


def delete(session_id: str, incarnation: int | None = None) -> Op[bool]:
    """Make the session invisible and fence it, in one short transaction. False when there is nothing to delete."""
    head = (yield from lock_sessions([session_id])).get(session_id)
    if head is None or head.state == DELETED:
        return False
    if head.state == PURGING:
        return True
    live(head, session_id, incarnation)
    now_ms = yield from database_now()
    count = yield from execute(
        """
        UPDATE {sessions}
        SET state = 'purging', revision = revision + 1, name = '', model = NULL, cwd = NULL, parent_session_id = NULL,
            caused_by = NULL, meta_digest = :meta_digest, leaf_id = NULL, config_revision = NULL, current_frame_id = NULL,
            checkpoint_digest = NULL, node_count = 0, ready_ms = NULL, open_ms = NULL, updated_ms = :now_ms
        WHERE session_id = :session_id AND state = 'live'
        """,
        session_id=session_id,
        meta_digest=session_digest(session_id, "", None, None, None, None),
        now_ms=now_ms,
    )
    assert count == 1, "the locked session vanished"
    yield from ring("commits", session_id)
    yield from ring("inbox", session_id)
    return True


class Purged(Struct, frozen=True):
    """What one bounded step of a purge removed, and whether anything is left."""

    rows: int
    complete: bool


def purge_step(session_id: str, limit: int) -> Op[Purged]:
    """Remove up to `limit` rows of a deleted session from each table it owns rows in; the tombstone stays."""
    head = (yield from lock_sessions([session_id])).get(session_id)
    if head is None or head.state != PURGING:
        return Purged(0, True)
    now_ms = yield from database_now()
    counts: list[int] = [(yield from _purge_attachments(session_id, limit, now_ms))]
    for sql in PURGES:
        counts += [(yield from execute(sql, session_id=session_id, limit=limit))]
    complete = all(count < limit for count in counts)
    if complete:
        changed = yield from execute(
            """
            UPDATE {sessions}
            SET state = 'deleted', next_position = 0, next_branch = 0
            WHERE session_id = :session_id AND state = 'purging'
            """,
            session_id=session_id,
        )
        assert changed == 1, "the locked tombstone vanished"
    return Purged(sum(counts), complete)


PURGES: tuple[LiteralString, ...] = (
    """DELETE FROM {nodes} WHERE (session_id, branch, depth) IN (
        SELECT session_id, branch, depth FROM {nodes} WHERE session_id = :session_id ORDER BY branch, depth LIMIT :limit)""",
    """DELETE FROM {branches} WHERE (session_id, branch) IN (
        SELECT session_id, branch FROM {branches} WHERE session_id = :session_id ORDER BY branch LIMIT :limit)""",
    """DELETE FROM {commits} WHERE (session_id, revision) IN (
        SELECT session_id, revision FROM {commits} WHERE session_id = :session_id ORDER BY revision LIMIT :limit)""",
    """DELETE FROM {configs} WHERE (session_id, revision) IN (
        SELECT session_id, revision FROM {configs} WHERE session_id = :session_id ORDER BY revision LIMIT :limit)""",
    """DELETE FROM {frames} WHERE (session_id, frame_id, revision) IN (
        SELECT session_id, frame_id, revision FROM {frames} WHERE session_id = :session_id
        ORDER BY frame_id, revision LIMIT :limit)""",
    """DELETE FROM {versions} WHERE (session_id, component, revision) IN (
        SELECT session_id, component, revision FROM {versions} WHERE session_id = :session_id
        ORDER BY component, revision LIMIT :limit)""",
    """DELETE FROM {components} WHERE (session_id, component) IN (
        SELECT session_id, component FROM {components} WHERE session_id = :session_id ORDER BY component LIMIT :limit)""",
    """DELETE FROM {usage_entries} WHERE (session_id, revision, ordinal) IN (
        SELECT session_id, revision, ordinal FROM {usage_entries} WHERE session_id = :session_id
        ORDER BY revision, ordinal LIMIT :limit)""",
    """DELETE FROM {usage_totals} WHERE (session_id, source, model) IN (
        SELECT session_id, source, model FROM {usage_totals} WHERE session_id = :session_id
        ORDER BY source, model LIMIT :limit)""",
    """DELETE FROM {batches} WHERE (session_id, enqueue_seq) IN (
        SELECT session_id, enqueue_seq FROM {batches} WHERE session_id = :session_id ORDER BY enqueue_seq LIMIT :limit)""",
    """DELETE FROM {settled_keys} WHERE (session_id, source_key) IN (
        SELECT session_id, source_key FROM {settled_keys} WHERE session_id = :session_id ORDER BY source_key LIMIT :limit)""",
)


def _purge_attachments(session_id: str, limit: int, now_ms: int) -> Op[int]:
    """Drop manifest rows and mark their contents released, so that a sweep looks whether anybody else holds the bytes.

    The number of rows that were chosen: a sweep may take some of them first, which does not mean that none are left.
    """
    rows = yield from fetch(
        "SELECT attachment_id FROM {attachments} WHERE session_id = :session_id ORDER BY attachment_id LIMIT :limit",
        session_id=session_id,
        limit=limit,
    )
    ids = [row[0] for row in rows]
    if not ids:
        return 0
    yield from fetch(
        "SELECT attachment_id FROM {digests} WHERE attachment_id {any_text:ids} ORDER BY attachment_id {for_update}",
        ids=ids,
    )
    yield from execute(
        "DELETE FROM {attachments} WHERE session_id = :session_id AND attachment_id {any_text:ids}",
        session_id=session_id,
        ids=ids,
    )
    yield from execute(
        "UPDATE {digests} SET released_ms = :now_ms WHERE attachment_id {any_text:ids}",
        ids=ids,
        now_ms=now_ms,
    )
    return len(ids)


def purging(*, after: str, limit: int) -> Op[list[str]]:
    """Deleted sessions whose rows are not all gone yet, in id order."""
    rows = yield from fetch(
        "SELECT session_id FROM {sessions} WHERE state = 'purging' AND session_id > :after ORDER BY session_id LIMIT :limit",
        after=after,
        limit=limit,
    )
    return [row[0] for row in rows]


def _meta_digest(new: NewSession) -> bytes:
    return session_digest(new.session_id, new.name, new.model, new.cwd, new.parent_session_id, new.caused_by)


def session_digest(
    session_id: str, name: str, model: str | None, cwd: str | None, parent: str | None, cause: str | None
) -> bytes:
    """The digest that ties what a session is called and comes from to its id."""
    return digest("session-meta/1", session_id, name, model, cwd, parent, cause)
