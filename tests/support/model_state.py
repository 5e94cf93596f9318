"""What the reference model remembers: sessions with their whole history, and the contents attachments name."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from lash_store import (
    AttachmentEntry,
    CommitRecord,
    Frame,
    NotFound,
    Receipt,
    Relation,
    SessionDeleted,
    Usage,
    UsageTotal,
)
from tests.support.model_graph import Graph, text
from tests.support.model_inbox import Inbox


class Line(Struct, frozen=True):
    """A line of a session's history: what a commit, or the fork that began the session, left."""

    record: CommitRecord
    receipt: Receipt
    said: str


class Origin(Struct, frozen=True):
    """Where a forked session came from."""

    source: str
    incarnation: int
    leaf_id: str | None


class FrameRow(Struct, frozen=True):
    """A frame in its place, from one revision until another."""

    ordinal: int
    frame: Frame
    since: int
    until: int | None = None


class ModelSession(Struct):
    """Everything of one session id. History is kept whole; `floor` says how far back it may be shown."""

    session_id: str
    name: str
    model: str | None
    cwd: str | None
    relation: Relation
    created_ms: int
    updated_ms: int
    graph: Graph
    inbox: Inbox
    incarnation: int = 1
    deleted: bool = False
    revision: int = 0
    floor: int = 0
    frame_id: str | None = None
    origin: Origin | None = None
    lines: tuple[Line, ...] = ()
    configs: tuple[tuple[int, Any], ...] = ()
    frames: tuple[FrameRow, ...] = ()
    versions: tuple[tuple[int, str, bytes | None], ...] = ()
    components: frozenset[str] = frozenset()
    usage: tuple[tuple[int, Usage], ...] = ()
    attachments: Mapping[str, AttachmentEntry] = {}

    def copy(self) -> ModelSession:
        return replace(self, graph=self.graph.copy(), inbox=self.inbox.copy())

    def checkpoint(self, revision: int) -> dict[str, bytes]:
        """The components as of a revision."""
        latest: dict[str, bytes | None] = {name: data for at, name, data in self.versions if at <= revision}
        return {name: data for name, data in sorted(latest.items()) if data is not None}

    def config_at(self, revision: int) -> Any:
        return next((value for at, value in reversed(self.configs) if at <= revision), None)

    def frames_at(self, revision: int) -> tuple[Frame, ...]:
        shown = [row for row in self.frames if row.since <= revision and (row.until is None or row.until > revision)]
        return tuple(row.frame for row in sorted(shown, key=lambda row: row.ordinal))

    def set_frames(self, frames: Sequence[Frame], revision: int, now_ms: int) -> None:
        """Close the versions that changed or went; open new ones. A time once stamped stays."""
        current = {row.frame.frame_id: row for row in self.frames if row.until is None}
        wanted: dict[tuple[int, str], Frame] = {}
        for ordinal, frame in enumerate(frames):
            known = current.get(frame.frame_id)
            stamped = now_ms if known is None else known.frame.created_ms
            wanted[ordinal, frame.frame_id] = frame if frame.created_ms is not None else replace(frame, created_ms=stamped)
        kept = {
            id
            for (at, id), frame in wanted.items()
            if id in current and _spelled(current[id]) == _spelled(FrameRow(at, frame, 0))
        }
        closed = (
            row if row.until is not None or row.frame.frame_id in kept else replace(row, until=revision) for row in self.frames
        )
        opened = (FrameRow(at, frame, revision) for (at, id), frame in wanted.items() if id not in kept)
        self.frames = (*closed, *opened)

    def state_revisions(self) -> list[int]:
        """The revisions whose checkpoint, config or frames are kept as they were."""
        kept = {revision for revision, _, _ in self.versions} | {revision for revision, _ in self.configs}
        return sorted(kept | {row.since for row in self.frames})

    def line_at(self, revision: int) -> Line | None:
        return next((line for line in self.lines if line.record.revision == revision), None)

    def totals(self, revision: int) -> tuple[UsageTotal, ...]:
        sums: dict[tuple[str, str], list[int]] = {}
        for at, entry in self.usage:
            if at <= revision:
                before = sums.setdefault((entry.source, entry.model), [0, 0, 0, 0])
                sums[entry.source, entry.model] = [a + b for a, b in zip(before, counts(entry), strict=True)]
        return tuple(
            UsageTotal(source=source, model=model, input=c[0], output=c[1], cached_input=c[2], reasoning=c[3])
            for (source, model), c in sums.items()
            if any(c)
        )


class Content(Struct, frozen=True):
    """Bytes some session announced: their length, since when nobody may hold them, and whether they are stored."""

    byte_len: int
    released_ms: int | None = None
    stored: bool = False


class State:
    """The whole store. `now_ms` is its clock; only the test moves it."""

    def __init__(self, now_ms: int, *, retention_ms: int) -> None:
        self.now_ms = now_ms
        self.retention_ms = retention_ms
        self.sessions: dict[str, ModelSession] = {}
        self.contents: dict[str, Content] = {}
        self.names: dict[tuple[str, str], str] = {}
        self.derived: dict[tuple[str, str, int], str] = {}

    @contextmanager
    def all_or_nothing(self) -> Generator[None]:
        """A refusal inside leaves everything as it was."""
        sessions = {session_id: session.copy() for session_id, session in self.sessions.items()}
        contents = dict(self.contents)
        try:
            yield
        except BaseException:
            self.sessions, self.contents = sessions, contents
            raise

    def live(self, session_id: str, incarnation: int | None = None) -> ModelSession:
        """A live session, of the incarnation a handle remembers."""
        session = self.sessions.get(session_id)
        if session is None:
            raise NotFound("session", session_id)
        if session.deleted:
            raise SessionDeleted(session_id, incarnation=incarnation or session.incarnation)
        if incarnation is not None and session.incarnation != incarnation:
            raise SessionDeleted(session_id, incarnation=incarnation)
        return session

    def named(self, kind: str, value: str, name: str | None) -> str:
        """The name the store gives to a content: the first one it told, the same for the same content only."""
        if name is not None and (kind, value) not in self.names:
            assert name not in self.names.values(), f"{kind} {name} names two contents"
            self.names[kind, value] = name
        return self.names.get((kind, value), "unknown")


def counts(entry: Usage | UsageTotal) -> list[int]:
    """The four numbers of an entry."""
    return [entry.input, entry.output, entry.cached_input, entry.reasoning]


def _spelled(row: FrameRow) -> tuple[object, ...]:
    frame = row.frame
    return row.ordinal, text(frame.body), frame.state, frame.created_ms
