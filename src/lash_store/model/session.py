"""A session: who it is, where its head stands, and what a load of it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from lash_store.model.graph import Node
from lash_store.model.usage import UsageTotal


class Relation(Struct, frozen=True, kw_only=True):
    """How a session came to be: a root, or a child of another session."""

    parent_session_id: str | None = None
    caused_by: Any = None


class Session(Struct, frozen=True, kw_only=True):
    """Identity, metadata and head of a session."""

    session_id: str
    incarnation: int
    revision: int
    leaf_id: str | None
    node_count: int
    current_frame_id: str | None
    checkpoint_digest: str | None
    name: str
    model: str | None
    cwd: str | None
    relation: Relation
    created_ms: int
    updated_ms: int


class Frame(Struct, frozen=True, kw_only=True):
    """An agent frame: a stretch of the session under one assignment. `created_ms` None is stamped by the store."""

    frame_id: str
    body: Any = None
    state: bytes | None = None
    created_ms: int | None = None


class Component(Struct, frozen=True, kw_only=True):
    """A component of the checkpoint without its bytes: how many there are, their sha256, and the revision that wrote them."""

    name: str
    size: int
    digest: str
    revision: int


class Snapshot(Struct, frozen=True, kw_only=True):
    """One consistent look at a session: everything in it is of the same revision."""

    session_id: str
    incarnation: int
    revision: int
    leaf_id: str | None
    nodes: tuple[Node, ...]
    config: Any
    frames: tuple[Frame, ...]
    current_frame_id: str | None
    checkpoint: Mapping[str, bytes]
    checkpoint_digest: str | None
    usage: tuple[UsageTotal, ...]


class SessionPage(Struct, frozen=True, kw_only=True):
    """A page of sessions; pass `cursor` on for the next one, None at the end."""

    sessions: tuple[Session, ...]
    cursor: str | None


class Deletion(Struct, frozen=True, kw_only=True):
    """What a delete did. `complete` is false when rows remain for `collect` to purge.

    Running processes it held are `orphaned` when nobody else holds them, `preserved` otherwise. None is cancelled.
    """

    session_id: str
    existed: bool
    purged_rows: int
    complete: bool
    revoked_grants: int = 0
    orphaned: tuple[str, ...] = ()
    preserved: tuple[str, ...] = ()
