"""The attachment manifest: intent before bytes, a stamp by the commit, a sweep that asks who still holds the content."""

from __future__ import annotations

from collections.abc import Sequence

from lash_store.errors import NotFound, ReplayConflict
from lash_store.model.attachment import AttachmentEntry, AttachmentPage, AttachmentRef
from lash_store.ops.heads import lock_session, look_session
from lash_store.ops.statement import Op, Row, database_now, execute, fetch, fetch_one


def record_intent(
    session_id: str, ref: AttachmentRef, incarnation: int | None = None, *, measured: bool = False
) -> Op[AttachmentEntry]:
    """Say that bytes are about to be stored, before they are. The content's row is locked, so that no sweep is under way.

    A length that was measured corrects one that was only announced. What a commit named keeps its description.
    """
    yield from lock_session(session_id, incarnation)
    now_ms = yield from database_now()
    yield from _hold_content(ref, measured=measured)
    yield from execute(
        """
        INSERT INTO {attachments} (session_id, attachment_id, media_type, byte_len, label, width, height, intent_ms)
        VALUES (:session_id, :attachment_id, :media_type, :byte_len, :label, :width, :height, :now_ms)
        ON CONFLICT (session_id, attachment_id) DO UPDATE
        SET media_type = excluded.media_type, byte_len = excluded.byte_len, label = excluded.label, width = excluded.width,
            height = excluded.height, intent_ms = excluded.intent_ms
        WHERE {attachments}.committed_ms IS NULL
        """,
        session_id=session_id,
        attachment_id=ref.attachment_id,
        media_type=ref.media_type,
        byte_len=ref.byte_len,
        label=ref.label,
        width=ref.width,
        height=ref.height,
        now_ms=now_ms,
    )
    return (yield from _entry(session_id, ref.attachment_id))


def _hold_content(ref: AttachmentRef, *, measured: bool) -> Op[None]:
    """Take the content's row: no sweep deletes its bytes until this transaction ends, and none after it while we hold it."""
    yield from execute(
        """
        INSERT INTO {digests} (attachment_id, byte_len)
        VALUES (:attachment_id, :byte_len)
        ON CONFLICT (attachment_id) DO UPDATE
        SET released_ms = NULL,
            byte_len = CASE WHEN CAST(:measured AS {int}) = 1 THEN excluded.byte_len ELSE {digests}.byte_len END
        """,
        attachment_id=ref.attachment_id,
        byte_len=ref.byte_len,
        measured=int(measured),
    )
    row = yield from fetch_one(
        "SELECT byte_len FROM {digests} WHERE attachment_id = :attachment_id",
        attachment_id=ref.attachment_id,
    )
    if row is None or row[0] != ref.byte_len:
        raise ReplayConflict("attachment", key=ref.attachment_id, owner="the byte store")


def entry(session_id: str, attachment_id: str, incarnation: int | None = None) -> Op[AttachmentEntry]:
    """The manifest row of one attachment of a session."""
    yield from look_session(session_id, incarnation)
    return (yield from _entry(session_id, attachment_id))


def _entry(session_id: str, attachment_id: str) -> Op[AttachmentEntry]:
    row = yield from fetch_one(
        """
        SELECT session_id, attachment_id, media_type, byte_len, label, width, height, intent_ms, committed_ms
        FROM {attachments}
        WHERE session_id = :session_id AND attachment_id = :attachment_id
        """,
        session_id=session_id,
        attachment_id=attachment_id,
    )
    if row is None:
        raise NotFound("attachment", attachment_id, within=session_id)
    return _as_entry(row)


def _as_entry(row: Row) -> AttachmentEntry:
    session_id, attachment_id, media_type, byte_len, label, width, height, intent_ms, committed_ms = row
    ref = AttachmentRef(
        attachment_id=attachment_id, media_type=media_type, byte_len=byte_len, label=label, width=width, height=height
    )
    return AttachmentEntry(session_id=session_id, ref=ref, intent_ms=intent_ms, committed_ms=committed_ms)


def page(session_id: str, *, limit: int, after: str, incarnation: int | None = None) -> Op[AttachmentPage]:
    """The manifest of a session, by attachment id."""
    yield from look_session(session_id, incarnation)
    rows = yield from fetch(
        """
        SELECT session_id, attachment_id, media_type, byte_len, label, width, height, intent_ms, committed_ms
        FROM {attachments}
        WHERE session_id = :session_id AND attachment_id > :after
        ORDER BY attachment_id
        LIMIT :limit
        """,
        session_id=session_id,
        after=after,
        limit=limit,
    )
    cursor = rows[-1][1] if len(rows) == limit else None
    return AttachmentPage(entries=tuple(_as_entry(row) for row in rows), cursor=cursor)


def stamp_attachments(session_id: str, attachment_ids: Sequence[str], now_ms: int) -> Op[None]:
    """Stamp intents as committed, under the session lock; an id without an intent is refused, a stamped one keeps its time."""
    if not attachment_ids:
        return
    rows = yield from fetch(
        """
        SELECT attachment_id FROM {attachments}
        WHERE session_id = :session_id AND attachment_id {any_text:ids}
        ORDER BY attachment_id
        {for_update}
        """,
        session_id=session_id,
        ids=list(attachment_ids),
    )
    known = {row[0] for row in rows}
    for attachment_id in attachment_ids:
        if attachment_id not in known:
            raise NotFound("attachment", attachment_id, within=session_id)
    count = yield from execute(
        """
        UPDATE {attachments} SET committed_ms = COALESCE(committed_ms, :now_ms)
        WHERE session_id = :session_id AND attachment_id {any_text:ids}
        """,
        session_id=session_id,
        ids=list(attachment_ids),
        now_ms=now_ms,
    )
    assert count == len(known), "a locked manifest row vanished"


def commit_refs(session_id: str, attachment_ids: Sequence[str], incarnation: int | None = None) -> Op[int]:
    """Stamp intents outside a commit."""
    yield from lock_session(session_id, incarnation)
    now_ms = yield from database_now()
    yield from stamp_attachments(session_id, attachment_ids, now_ms)
    return len(attachment_ids)


def uncommitted(*, older_than_ms: int, limit: int, after: tuple[int, str, str]) -> Op[AttachmentPage]:
    """Intents no commit named, at least this old, over all sessions: oldest first."""
    now_ms = yield from database_now()
    rows = yield from fetch(
        """
        SELECT session_id, attachment_id, media_type, byte_len, label, width, height, intent_ms, committed_ms
        FROM {attachments}
        WHERE committed_ms IS NULL AND intent_ms <= :cutoff_ms
          AND (intent_ms, attachment_id, session_id)
              > (CAST(:after_ms AS {int}), CAST(:after_id AS TEXT), CAST(:after_session AS TEXT))
        ORDER BY intent_ms, attachment_id, session_id
        LIMIT :limit
        """,
        cutoff_ms=now_ms - older_than_ms,
        after_ms=after[0],
        after_id=after[1],
        after_session=after[2],
        limit=limit,
    )
    entries = tuple(_as_entry(row) for row in rows)
    last = entries[-1] if len(entries) == limit else None
    cursor = None if last is None else f"{last.intent_ms}:{last.ref.attachment_id}:{last.session_id}"
    return AttachmentPage(entries=entries, cursor=cursor)


def forget(session_id: str, attachment_id: str, incarnation: int | None = None) -> Op[bool]:
    """Drop a manifest row; its content is released for the sweep. False when there was none."""
    yield from lock_session(session_id, incarnation)
    # The content's row before the manifest's, as everywhere: a sweep takes them in this order too.
    yield from fetch(
        "SELECT attachment_id FROM {digests} WHERE attachment_id = :attachment_id {for_update}",
        attachment_id=attachment_id,
    )
    now_ms = yield from database_now()
    count = yield from execute(
        "DELETE FROM {attachments} WHERE session_id = :session_id AND attachment_id = :attachment_id",
        session_id=session_id,
        attachment_id=attachment_id,
    )
    if count:
        yield from execute(
            "UPDATE {digests} SET released_ms = :now_ms WHERE attachment_id = :attachment_id",
            attachment_id=attachment_id,
            now_ms=now_ms,
        )
    return count == 1


# --- sweeping -------------------------------------------------------------------------------------------------------------


def sweep_candidates(*, older_than_ms: int, limit: int, after: str) -> Op[list[str]]:
    """Contents that may have become garbage: released by their sessions, or only ever intended, long enough ago."""
    now_ms = yield from database_now()
    rows = yield from fetch(
        """
        SELECT attachment_id FROM {digests}
        WHERE released_ms <= :cutoff_ms AND attachment_id > :after
        UNION
        SELECT attachment_id FROM {attachments}
        WHERE committed_ms IS NULL AND intent_ms <= :cutoff_ms AND attachment_id > :after
        ORDER BY attachment_id
        LIMIT :limit
        """,
        cutoff_ms=now_ms - older_than_ms,
        after=after,
        limit=limit,
    )
    return [row[0] for row in rows]


def drop_stale_intents(attachment_id: str, *, older_than_ms: int) -> Op[bool]:
    """Drop the intents of a content that no commit named in time; whether nobody holds the content now.

    This is committed before any byte goes: a crash in between must not leave an intent whose bytes are gone.
    """
    locked = yield from fetch_one(
        "SELECT byte_len FROM {digests} WHERE attachment_id = :attachment_id {for_update}",
        attachment_id=attachment_id,
    )
    if locked is None:
        return False
    now_ms = yield from database_now()
    yield from execute(
        """
        DELETE FROM {attachments}
        WHERE attachment_id = :attachment_id AND committed_ms IS NULL AND intent_ms <= :cutoff_ms
        """,
        attachment_id=attachment_id,
        cutoff_ms=now_ms - older_than_ms,
    )
    held = yield from _is_held(attachment_id)
    yield from execute(
        "UPDATE {digests} SET released_ms = :released_ms WHERE attachment_id = :attachment_id",
        attachment_id=attachment_id,
        released_ms=None if held else now_ms,
    )
    return not held


def condemn(attachment_id: str) -> Op[int | None]:
    """Lock a content that nobody holds and say how many bytes go; None when somebody took hold of it.

    The caller deletes the bytes while this transaction holds the lock, then runs `release`.
    """
    locked = yield from fetch_one(
        "SELECT byte_len FROM {digests} WHERE attachment_id = :attachment_id {for_update}",
        attachment_id=attachment_id,
    )
    if locked is None or (yield from _is_held(attachment_id)):
        return None
    return locked[0]


def _is_held(attachment_id: str) -> Op[bool]:
    row = yield from fetch_one(
        "SELECT 1 FROM {attachments} WHERE attachment_id = :attachment_id LIMIT 1",
        attachment_id=attachment_id,
    )
    return row is not None


def reclaimable(attachment_id: str, *, older_than_ms: int) -> Op[int | None]:
    """What `condemn` would answer, changing nothing."""
    now_ms = yield from database_now()
    row = yield from fetch_one(
        """
        SELECT byte_len FROM {digests}
        WHERE attachment_id = :attachment_id AND NOT EXISTS (
            SELECT 1 FROM {attachments} a
            WHERE a.attachment_id = :attachment_id AND (a.committed_ms IS NOT NULL OR a.intent_ms > :cutoff_ms))
        """,
        attachment_id=attachment_id,
        cutoff_ms=now_ms - older_than_ms,
    )
    return None if row is None else row[0]


def release(attachment_id: str) -> Op[None]:
    """Forget a content whose bytes are gone; the chunks the database kept go with it."""
    yield from execute("DELETE FROM {chunks} WHERE attachment_id = :attachment_id", attachment_id=attachment_id)
    yield from execute("DELETE FROM {digests} WHERE attachment_id = :attachment_id", attachment_id=attachment_id)


# --- bytes in the database ------------------------------------------------------------------------------------------------


def put_chunk(attachment_id: str, ordinal: int, data: bytes) -> Op[None]:
    """Store one chunk; writing it again heals a damaged one."""
    yield from execute(
        """
        INSERT INTO {chunks} (attachment_id, ordinal, data)
        VALUES (:attachment_id, :ordinal, :data)
        ON CONFLICT (attachment_id, ordinal) DO UPDATE SET data = excluded.data
        """,
        attachment_id=attachment_id,
        ordinal=ordinal,
        data=data,
    )


def chunk(attachment_id: str, ordinal: int) -> Op[bytes | None]:
    """One chunk, or None past the end."""
    row = yield from fetch_one(
        "SELECT data FROM {chunks} WHERE attachment_id = :attachment_id AND ordinal = :ordinal",
        attachment_id=attachment_id,
        ordinal=ordinal,
    )
    return None if row is None else bytes(row[0])


def stored_bytes(attachment_id: str) -> Op[int]:
    """How many bytes of a content the database holds."""
    row = yield from fetch_one(
        "SELECT CAST(COALESCE(SUM(LENGTH(data)), 0) AS {int}) FROM {chunks} WHERE attachment_id = :attachment_id",
        attachment_id=attachment_id,
    )
    assert row is not None
    return row[0]
