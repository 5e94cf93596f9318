"""A commit: everything one turn changes, and the receipt it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from lash_store.model.graph import GraphChange, Unchanged
from lash_store.model.queue import BatchDraft, Claim, Completion
from lash_store.model.session import Frame
from lash_store.model.usage import Usage


class Commit(Struct, frozen=True, kw_only=True):
    """All or nothing. `expected_revision` None appends to whatever the head is, and then allows only `Append`, without
    checkpoint, config or frames.

    * `expected_revision`: the revision you loaded, 0 for a new session; `RevisionConflict` if the head is elsewhere.
    * `turn_id`: the same id and content again returns the first receipt; other content is `TurnConflict`. None is no retry key.
    * `graph`: what happens to the nodes: `Append`, `Unchanged` or `Replace`.
    * `checkpoint`: named byte strings; a component not named stays, None removes one.
    * `config`: a JSON value that replaces the session's; not given, it stays.
    * `frames`: replace the agent frames as a whole; not given, they stay.
    * `current_frame_id`: which frame is the current one; None is none; not given, it stays.
    * `usage`: entries for the ledger of tokens.
    * `completes`: claims that this turn settles, or parts of them; `ClaimLost` if one is no longer held.
    * `enqueues`: work for inboxes, this session's or another's.
    * `attachments`: the ids of stored attachments that the session keeps from now on.
    * `session_id`: if given, it must be the session committed to, else `SessionMismatch`.
    """

    expected_revision: int | None
    turn_id: str | None = None
    graph: GraphChange = field(default_factory=Unchanged)
    checkpoint: Mapping[str, bytes | None] = field(default_factory=dict[str, bytes | None])
    config: Any = UNSET
    frames: Sequence[Frame] | UnsetType = UNSET
    current_frame_id: str | None | UnsetType = UNSET
    usage: Sequence[Usage] = ()
    completes: Sequence[Claim | Completion] = ()
    enqueues: Sequence[BatchDraft] = ()
    attachments: Sequence[str] = ()
    session_id: str | None = None


class Receipt(Struct, frozen=True, kw_only=True):
    """What a commit did. A retry of its turn gets the same receipt with `replayed` true."""

    session_id: str
    incarnation: int
    revision: int
    turn_id: str | None
    leaf_id: str | None
    node_ids: tuple[str, ...]
    components: Mapping[str, str]
    checkpoint_digest: str | None
    batch_ids: tuple[str, ...]
    committed_ms: int
    replayed: bool


class CommitRecord(Struct, frozen=True, kw_only=True):
    """A line of the session's history. `kind` is "commit"; "fork" opens a forked session's history."""

    session_id: str
    incarnation: int
    revision: int
    kind: str
    turn_id: str | None
    intent: str | None
    leaf_id: str | None
    current_frame_id: str | None
    checkpoint_digest: str | None
    node_ids: tuple[str, ...]
    committed_ms: int


class CommitPage(Struct, frozen=True, kw_only=True):
    """A page of commits in revision order; pass `cursor` on for the next one, None at the end."""

    commits: tuple[CommitRecord, ...]
    cursor: str | None
