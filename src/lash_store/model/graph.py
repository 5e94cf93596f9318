"""Nodes of the conversation graph, and the three ways a commit may change it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType


class NodeDraft(Struct, frozen=True, kw_only=True):
    """A node to append. Parent not named: the previous draft, the first one the leaf. Parent None: a root.

    * `body`: any JSON value.
    * `kind`: a word of yours, to tell nodes apart.
    * `node_id`: yours, if you need to know it beforehand; None is minted.
    * `parent_id`: the node it follows; one in the middle of the graph begins a branch.
    * `frame_id`: the agent frame it belongs to.
    * `caused_by`: a JSON value that says what caused it.
    """

    body: Any
    kind: str = "message"
    node_id: str | None = None
    parent_id: str | None | UnsetType = UNSET
    frame_id: str | None = None
    caused_by: Any = None


class Node(Struct, frozen=True, kw_only=True):
    """A stored node. `position` is its place in the order of insertion."""

    node_id: str
    parent_id: str | None
    kind: str
    body: Any
    frame_id: str | None
    caused_by: Any
    created_ms: int
    position: int


class Append(Struct, frozen=True, tag="append"):
    """Add nodes; the leaf moves to `leaf`, or to the last node when it is not named.

    * `nodes`: the drafts; one that names no parent follows the one before it.
    * `leaf`: the id of the node where the active path ends.
    """

    nodes: Sequence[NodeDraft]
    leaf: str | None | UnsetType = UNSET


class Unchanged(Struct, frozen=True, tag="unchanged"):
    """Add nothing; the leaf moves to `leaf`, or stays when it is not named."""

    leaf: str | None | UnsetType = UNSET


class Replace(Struct, frozen=True, tag="replace"):
    """Make the live nodes exactly these, in this order; absent ones are tombstoned. Parents not named: the previous draft."""

    nodes: Sequence[NodeDraft]
    leaf: str | None | UnsetType = UNSET


GraphChange = Append | Unchanged | Replace


class FullGraph(Struct, frozen=True):
    """Read scope: every live node in insertion order."""


class ActivePath(Struct, frozen=True, kw_only=True):
    """Read scope: the ancestry of one leaf, root first; the head's leaf when none is named; only the `last` n nodes."""

    leaf: str | None = None
    last: int | None = None


FULL = FullGraph()
ReadScope = FullGraph | ActivePath


def active_path(leaf: str | None = None, *, last: int | None = None) -> ActivePath:
    """The ancestry of `leaf` (default: the head's leaf), root first; `last` keeps only its end."""
    return ActivePath(leaf=leaf, last=last)


class Branch(Struct, frozen=True, kw_only=True):
    """A tip of the graph: the deepest live node of a run, unless a live branch goes on from it."""

    leaf_id: str
    depth: int
    position: int
    is_head: bool


class NodePage(Struct, frozen=True, kw_only=True):
    """A page of nodes in insertion order; pass `cursor` on for the next one, None at the end."""

    nodes: tuple[Node, ...]
    cursor: str | None


class BranchPage(Struct, frozen=True, kw_only=True):
    """A page of branches; pass `cursor` on for the next one, None at the end."""

    branches: tuple[Branch, ...]
    cursor: str | None


class RunNode(Struct, frozen=True, kw_only=True):
    """A live node and its distance from its root."""

    depth: int
    node: Node


class Run(Struct, frozen=True, kw_only=True):
    """Nodes in one line: the first child of a node goes on with its run, any other child begins a new one.

    `nodes` has the live ones of both ends, by depth. A run goes on from node `parent_id` of run `parent`, which has a lower
    number; a root's has none. `hidden_count` are tombstoned.
    """

    number: int
    parent: int | None
    parent_id: str | None
    first_depth: int
    tip_depth: int
    node_count: int
    hidden_count: int
    nodes: tuple[RunNode, ...]


class RunPage(Struct, frozen=True, kw_only=True):
    """A page of runs by number; pass `cursor` on for the next one, None at the end."""

    runs: tuple[Run, ...]
    cursor: str | None
