"""Agent frames and config: replaced as a whole by a commit, written only where they changed, kept per revision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from lash_store.encode import check, decode, digest
from lash_store.errors import Corrupt
from lash_store.model.session import Frame
from lash_store.ops.statement import Op, Row, execute, execute_many, fetch, fetch_one


class PreparedFrame(Struct, frozen=True, kw_only=True):
    """A frame after the walk. No created time: the store stamps it, or keeps the one it has."""

    frame_id: str
    body: str
    state: bytes | None
    created_ms: int | None


def frame_digest(frame_id: str, body: str, state: bytes | None) -> bytes:
    """The digest of a frame's content, without its time; a fork copies it as it is."""
    return digest("frame/1", frame_id, body, state)


def replace_frames(session_id: str, frames: Sequence[PreparedFrame], *, revision: int, now_ms: int) -> Op[None]:
    """Make the current frames exactly these, in this order: close the versions that changed or went, open new ones."""
    rows = yield from fetch(
        """
        SELECT frame_id, ordinal, digest, created_ms
        FROM {frames}
        WHERE session_id = :session_id AND until_revision IS NULL
        """,
        session_id=session_id,
    )
    current = {row[0]: (row[1], bytes(row[2]), row[3]) for row in rows}
    written = [
        _frame_row(ordinal, frame, current.get(frame.frame_id), now_ms)
        for ordinal, frame in enumerate(frames)
        if not _same(ordinal, frame, current.get(frame.frame_id))
    ]
    kept = {frame.frame_id for frame in frames} - {str(row["frame_id"]) for row in written}
    yield from _close(session_id, sorted(current.keys() - kept), revision)
    yield from execute_many(
        """
        INSERT INTO {frames} (session_id, frame_id, revision, ordinal, body, state, digest, created_ms)
        SELECT CAST(:session_id AS TEXT), rows.frame_id, CAST(:revision AS {int}), rows.ordinal, rows.body, rows.state,
               rows.digest, rows.created_ms
        FROM {rows(frame_id text, ordinal int, body text, state bytes, digest bytes, created_ms int)}
        """,
        written,
        session_id=session_id,
        revision=revision,
    )


def _same(ordinal: int, frame: PreparedFrame, current: tuple[int, bytes, int] | None) -> bool:
    if current is None or frame.created_ms not in (None, current[2]):
        return False
    return current[:2] == (ordinal, frame_digest(frame.frame_id, frame.body, frame.state))


def _frame_row(ordinal: int, frame: PreparedFrame, current: tuple[int, bytes, int] | None, now_ms: int) -> dict[str, Any]:
    stamped = now_ms if current is None else current[2]
    return {
        "frame_id": frame.frame_id,
        "ordinal": ordinal,
        "body": frame.body,
        "state": frame.state,
        "digest": frame_digest(frame.frame_id, frame.body, frame.state),
        "created_ms": stamped if frame.created_ms is None else frame.created_ms,
    }


def _close(session_id: str, frame_ids: Sequence[str], revision: int) -> Op[None]:
    if not frame_ids:
        return
    count = yield from execute(
        """
        UPDATE {frames} SET until_revision = :revision
        WHERE session_id = :session_id AND frame_id {any_text:frame_ids} AND until_revision IS NULL
        """,
        session_id=session_id,
        frame_ids=list(frame_ids),
        revision=revision,
    )
    assert count == len(frame_ids), "a frame of the locked session vanished"


def frames_at(session_id: str, revision: int) -> Op[list[Row]]:
    """The frames as of a revision, in order."""
    return (
        yield from fetch(
            """
            SELECT frame_id, body, state, digest, created_ms, ordinal
            FROM {frames}
            WHERE session_id = :session_id AND revision <= :revision
              AND (until_revision IS NULL OR until_revision > :revision)
            ORDER BY ordinal
            """,
            session_id=session_id,
            revision=revision,
        )
    )


def verified_frames(session_id: str, rows: Sequence[Row]) -> tuple[Frame, ...]:
    """All frames in their order; a gap in it is a row that was lost."""
    for place, row in enumerate(rows):
        if row[5] != place:
            raise Corrupt("frames", f"{session_id!r}#{place}", "the row is missing")
    return tuple(verified_frame(session_id, row) for row in rows)


def verified_frame(session_id: str, row: Row) -> Frame:
    """A frame whose stored bytes match their digest."""
    frame_id, body, state, expected, created_ms, _ = row
    name = f"{session_id!r}/{frame_id!r}"
    kept = None if state is None else bytes(state)
    check(bytes(expected), frame_digest(frame_id, body, kept), table="frames", row=name)
    return Frame(frame_id=frame_id, body=decode(body, table="frames", row=name), state=kept, created_ms=created_ms)


def config_at(session_id: str, revision: int) -> Op[Row | None]:
    """The config as of a revision; None when none was ever set."""
    return (
        yield from fetch_one(
            """
            SELECT revision, body, digest
            FROM {configs}
            WHERE session_id = :session_id AND revision <= :revision
            ORDER BY revision DESC
            LIMIT 1
            """,
            session_id=session_id,
            revision=revision,
        )
    )


def verified_config(session_id: str, row: Row | None, expected_revision: int | None) -> Any:
    """The config whose stored bytes match their digest; None when none was ever set."""
    if row is None:
        if expected_revision is not None:
            raise Corrupt("configs", f"{session_id!r}@{expected_revision}", "the row is missing")
        return None
    revision, body, expected = row
    name = f"{session_id!r}@{revision}"
    if expected_revision is not None and revision != expected_revision:
        raise Corrupt("configs", f"{session_id!r}@{expected_revision}", "the row is missing")
    check(bytes(expected), digest("config/1", session_id, revision, body), table="configs", row=name)
    return decode(body, table="configs", row=name)
