"""What the reference model knows of a commit before it looks at any state: its arguments, and what its turn says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET, UnsetType

from lash_store import (
    Append,
    BatchDraft,
    Claim,
    Commit,
    Completion,
    InvalidArgument,
    NodeConflict,
    ReplayConflict,
    SessionMismatch,
    Unchanged,
)
from tests.support.model_graph import meaning
from tests.support.model_inbox import content
from tests.support.model_state import counts


def check_arguments(session_id: str, commit: Commit) -> list[tuple[str, BatchDraft]]:
    """What is refused before the database is asked; the batches to enqueue, each once."""
    if commit.session_id not in (None, session_id):
        raise SessionMismatch(bound=session_id, attempted=str(commit.session_id))
    overwrites = bool(commit.checkpoint) or commit.config is not UNSET or not isinstance(commit.frames, UnsetType)
    overwrites = overwrites or not isinstance(commit.current_frame_id, UnsetType) or not isinstance(commit.graph, Append)
    if commit.expected_revision is None and overwrites:
        raise InvalidArgument("commit.expected_revision", "")
    given = [] if isinstance(commit.graph, Unchanged) else [draft.node_id for draft in commit.graph.nodes]
    for i, node_id in enumerate(given):
        if node_id is not None and node_id in given[:i]:
            raise NodeConflict(session_id, node_id=node_id, why="")
    frame_ids = [] if isinstance(commit.frames, UnsetType) else [frame.frame_id for frame in commit.frames]
    for i, frame_id in enumerate(frame_ids):
        if frame_id in frame_ids[:i]:
            raise InvalidArgument(f"commit.frames[{i}].frame_id", "")
    _check_completes(session_id, commit)
    return _once_each(session_id, commit)


def _check_completes(session_id: str, commit: Commit) -> None:
    seen: set[str] = set()
    for i, claim in enumerate(commit.completes):
        if claim.session_id != session_id:
            raise SessionMismatch(bound=session_id, attempted=claim.session_id)
        batch_ids = completion_of(claim).batch_ids
        if seen & set(batch_ids) or len(set(batch_ids)) < len(batch_ids):
            raise InvalidArgument(f"commit.completes[{i}]", "")
        seen.update(batch_ids)


def _once_each(session_id: str, commit: Commit) -> list[tuple[str, BatchDraft]]:
    drafts: dict[tuple[str, object], tuple[str, BatchDraft]] = {}
    for i, draft in enumerate(commit.enqueues):
        target = draft.session_id or session_id
        key = (target, draft.source_key or draft.batch_id or i)
        _, before = drafts.setdefault(key, (target, draft))
        if content(before) != content(draft):
            raise ReplayConflict("source key", key=str(key[1]), owner=target)
    return list(drafts.values())


def said(commit: Commit, ids: Sequence[str], drafts: Sequence[tuple[str, BatchDraft]]) -> str:
    """What a turn says, without the names of its nodes, revisions, claims and clocks."""
    places = {node_id: i for i, node_id in enumerate(ids)}
    nodes = () if isinstance(commit.graph, Unchanged) else commit.graph.nodes
    frames = () if isinstance(commit.frames, UnsetType) else commit.frames
    return meaning(
        [
            type(commit.graph).__name__,
            [[n.kind, n.body, n.frame_id, n.caused_by, _shape(n.parent_id, places)] for n in nodes],
            _shape(commit.graph.leaf, places),
            sorted((name, _hex(data)) for name, data in commit.checkpoint.items()),
            [commit.config is UNSET, None if commit.config is UNSET else commit.config],
            [isinstance(commit.frames, UnsetType), [[f.frame_id, f.body, _hex(f.state)] for f in frames]],
            _shape(commit.current_frame_id, {}),
            [[e.source, e.model, *counts(e)] for e in commit.usage],
            sorted([target, draft.source_key or "", content(draft)] for target, draft in drafts),
            sorted(set(commit.attachments)),
        ]
    )


def _shape(node_id: str | None | UnsetType, places: Mapping[str, int]) -> list[object]:
    """How a node is named: not at all, by its place in the commit, or by its id."""
    if isinstance(node_id, UnsetType):
        return []
    return [places[node_id]] if node_id is not None and node_id in places else [node_id, "by id"]


def _hex(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def completion_of(claim: Claim | Completion) -> Completion:
    """A claim, whole or in part."""
    return claim.completion() if isinstance(claim, Claim) else claim
