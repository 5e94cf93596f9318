"""Grants: which sessions may see and use a process. They never decide whether it runs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from lash_store.errors import NotGranted
from lash_store.model.process import Descriptor, Grant, Scope
from lash_store.ops.heads import PURGING, live, lock_session, lock_sessions, look_session
from lash_store.ops.processes import ProcessRow, get, lock_process, lock_processes
from lash_store.ops.statement import Op, Row, database_now, execute, execute_many, fetch, fetch_one


class PreparedGrant(Struct, frozen=True, kw_only=True):
    """A grant to write. A frame of '' is the session itself."""

    session_id: str
    frame_id: str
    process_id: str
    kind: str | None
    label: str | None


def prepared(scope: Scope, process_id: str, descriptor: Descriptor) -> PreparedGrant:
    """The columns of a grant."""
    return PreparedGrant(
        session_id=scope.session_id,
        frame_id=scope.frame_id or "",
        process_id=process_id,
        kind=descriptor.kind,
        label=descriptor.label,
    )


def insert_grants(grants: Sequence[PreparedGrant], now_ms: int) -> Op[None]:
    """Write grants; a later one for the same scope and process replaces the descriptor."""
    yield from execute_many(
        """
        INSERT INTO {grants} (session_id, frame_id, process_id, kind, label, granted_ms)
        SELECT rows.session_id, rows.frame_id, rows.process_id, rows.kind, rows.label, CAST(:now_ms AS {int})
        FROM {rows(session_id text, frame_id text, process_id text, kind text, label text)}
        WHERE true
        ON CONFLICT (session_id, frame_id, process_id) DO UPDATE SET kind = excluded.kind, label = excluded.label
        """,
        [
            {
                "session_id": grant.session_id,
                "frame_id": grant.frame_id,
                "process_id": grant.process_id,
                "kind": grant.kind,
                "label": grant.label,
            }
            for grant in grants
        ],
        now_ms=now_ms,
    )


def grant(new: PreparedGrant) -> Op[Grant]:
    """Let a session see a process."""
    yield from lock_session(new.session_id)
    yield from lock_process(new.process_id)
    now_ms = yield from database_now()
    yield from insert_grants([new], now_ms)
    row = yield from _row(Scope(new.session_id, new.frame_id or None), new.process_id)
    assert row is not None
    return _grant(row)


def revoke(scope: Scope, process_id: str) -> Op[bool]:
    """Take one scope's grant away; false when it had none."""
    yield from lock_sessions([scope.session_id])
    count = yield from execute(
        """
        DELETE FROM {grants}
        WHERE session_id = :session_id AND frame_id = :frame_id AND process_id = :process_id
        """,
        session_id=scope.session_id,
        frame_id=scope.frame_id or "",
        process_id=process_id,
    )
    return count == 1


def transfer(source: Scope, target: Scope, process_ids: Sequence[str]) -> Op[int]:
    """Move grants from one scope to another, all or none; what the target held of them is replaced."""
    heads = yield from lock_sessions([source.session_id, target.session_id])
    for session_id in (source.session_id, target.session_id):
        live(heads.get(session_id), session_id)
    if not process_ids:
        return 0
    yield from lock_processes(process_ids)
    rows = yield from fetch(
        """
        SELECT process_id, kind, label FROM {grants}
        WHERE session_id = :session_id AND frame_id = :frame_id AND process_id {any_text:process_ids}
        """,
        session_id=source.session_id,
        frame_id=source.frame_id or "",
        process_ids=sorted(process_ids),
    )
    held = {row[0]: Descriptor(kind=row[1], label=row[2]) for row in rows}
    for process_id in process_ids:
        if process_id not in held:
            raise NotGranted(source.session_id, process_id=process_id)
    if source == target:
        return len(held)
    now_ms = yield from database_now()
    count = yield from execute(
        """
        DELETE FROM {grants}
        WHERE session_id = :session_id AND frame_id = :frame_id AND process_id {any_text:process_ids}
        """,
        session_id=source.session_id,
        frame_id=source.frame_id or "",
        process_ids=sorted(held),
    )
    assert count == len(held), "a grant of the locked session vanished"
    yield from insert_grants([prepared(target, process_id, held[process_id]) for process_id in sorted(held)], now_ms)
    return count


def page(scope: Scope, *, live_only: bool, limit: int, after: str) -> Op[list[tuple[Grant, ProcessRow]]]:
    """The grants of exactly this scope, by process id, each with its process."""
    rows = yield from fetch(
        """
        SELECT p.process_id, p.registration_hash, p.kind, p.wake_session_id, p.wake_frame_id, p.state, p.output,
               p.output_digest, p.wait_name, p.wait_ordinal, p.wait_since_ms, p.external_ref, p.external_ref_digest,
               p.last_sequence, p.lease_owner, p.lease_incarnation, p.lease_token, p.lease_fence, p.lease_claimed_ms,
               p.lease_expires_ms, p.created_ms, p.updated_ms, p.pruned_ms, r.body, r.digest,
               g.session_id, g.frame_id, g.process_id, g.kind, g.label, g.granted_ms
        FROM {grants} g
        JOIN {processes} p ON p.process_id = g.process_id
        LEFT JOIN {registrations} r ON r.process_id = p.process_id
        WHERE g.session_id = :session_id AND g.frame_id = :frame_id AND g.process_id > :after
          AND (CAST(:live_only AS {int}) = 0 OR p.state = 'running')
        ORDER BY g.process_id
        LIMIT :limit
        """,
        session_id=scope.session_id,
        frame_id=scope.frame_id or "",
        after=after,
        live_only=int(live_only),
        limit=limit,
    )
    return [(_grant(row[25:]), ProcessRow(*row[:25])) for row in rows]


def for_process(process_id: str) -> Op[tuple[Grant, ...]]:
    """Every grant on a process, by session and frame."""
    yield from get(process_id)
    rows = yield from fetch(
        """
        SELECT session_id, frame_id, process_id, kind, label, granted_ms FROM {grants}
        WHERE process_id = :process_id
        ORDER BY session_id, frame_id
        """,
        process_id=process_id,
    )
    return tuple(_grant(row) for row in rows)


def has(scope: Scope, process_id: str) -> Op[bool]:
    """Whether exactly this scope holds the process."""
    return (yield from _row(scope, process_id)) is not None


def require(session_id: str, process_id: str, incarnation: int | None = None) -> Op[None]:
    """Refuse a session handle a process that no scope of its session holds."""
    yield from look_session(session_id, incarnation)
    row = yield from fetch_one(
        "SELECT 1 FROM {grants} WHERE session_id = :session_id AND process_id = :process_id LIMIT 1",
        session_id=session_id,
        process_id=process_id,
    )
    if row is None:
        raise NotGranted(session_id, process_id=process_id)


def _row(scope: Scope, process_id: str) -> Op[Row | None]:
    return (
        yield from fetch_one(
            """
            SELECT session_id, frame_id, process_id, kind, label, granted_ms FROM {grants}
            WHERE session_id = :session_id AND frame_id = :frame_id AND process_id = :process_id
            """,
            session_id=scope.session_id,
            frame_id=scope.frame_id or "",
            process_id=process_id,
        )
    )


def _grant(row: Sequence[object]) -> Grant:
    session_id, frame_id, process_id, kind, label, granted_ms = row
    return Grant(
        scope=Scope(str(session_id), str(frame_id) or None),
        process_id=str(process_id),
        descriptor=Descriptor(kind=_text(kind), label=_text(label)),
        granted_ms=int(str(granted_ms)),
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


# --- a session goes -------------------------------------------------------------------------------------------------------


class Released(Struct, frozen=True, kw_only=True):
    """What one bounded step of a session's deletion did to processes."""

    revoked: int
    orphaned: tuple[str, ...]
    preserved: tuple[str, ...]
    retargeted: int
    complete: bool


def release_session(session_id: str, limit: int) -> Op[Released]:
    """Revoke a deleted session's grants and clear the wake targets that name it, up to `limit` processes, locked in order.

    Only while it is being purged: a purge that comes late takes nothing from the next incarnation.
    """
    head = (yield from lock_sessions([session_id])).get(session_id)
    if head is None or head.state != PURGING:
        return Released(revoked=0, orphaned=(), preserved=(), retargeted=0, complete=True)
    rows = yield from fetch(
        """
        SELECT process_id FROM {grants} WHERE session_id = :session_id
        UNION
        SELECT process_id FROM {processes} WHERE wake_session_id = :session_id
        ORDER BY process_id
        LIMIT :limit
        """,
        session_id=session_id,
        limit=limit,
    )
    process_ids = yield from lock_processes([row[0] for row in rows]) if rows else _none()
    if not process_ids:
        return Released(revoked=0, orphaned=(), preserved=(), retargeted=0, complete=True)
    now_ms = yield from database_now()
    held = yield from _live_held(session_id, process_ids)
    revoked = yield from execute(
        "DELETE FROM {grants} WHERE session_id = :session_id AND process_id {any_text:process_ids}",
        session_id=session_id,
        process_ids=process_ids,
    )
    retargeted = yield from execute(
        """
        UPDATE {processes} SET wake_session_id = NULL, wake_frame_id = NULL, updated_ms = :now_ms
        WHERE wake_session_id = :session_id AND process_id {any_text:process_ids}
        """,
        session_id=session_id,
        process_ids=process_ids,
        now_ms=now_ms,
    )
    kept = yield from _still_granted(held)
    return Released(
        revoked=revoked,
        orphaned=tuple(process_id for process_id in held if process_id not in kept),
        preserved=tuple(process_id for process_id in held if process_id in kept),
        retargeted=retargeted,
        complete=len(rows) < limit,
    )


def _none() -> Op[list[str]]:
    return []
    yield  # an operation without statements


def _live_held(session_id: str, process_ids: Sequence[str]) -> Op[list[str]]:
    rows = yield from fetch(
        """
        SELECT p.process_id FROM {processes} p
        WHERE p.process_id {any_text:process_ids} AND p.state = 'running'
          AND EXISTS (SELECT 1 FROM {grants} g WHERE g.process_id = p.process_id AND g.session_id = :session_id)
        ORDER BY p.process_id
        """,
        session_id=session_id,
        process_ids=list(process_ids),
    )
    return [row[0] for row in rows]


def _still_granted(process_ids: Sequence[str]) -> Op[set[str]]:
    rows = yield from fetch(
        "SELECT DISTINCT process_id FROM {grants} WHERE process_id {any_text:process_ids}",
        process_ids=list(process_ids),
    )
    return {row[0] for row in rows}
