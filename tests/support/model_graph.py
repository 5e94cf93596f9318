"""The reference model's graph: nodes in a dict, every rule written the slow and obvious way."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, UnsetType
from msgspec.structs import replace

from lash_store import (
    ActivePath,
    Append,
    Branch,
    Corrupt,
    FullGraph,
    InvalidArgument,
    Node,
    NodeConflict,
    NodeDraft,
    NotFound,
    Replace,
    Unchanged,
    VacuumReport,
)


def text(value: Any) -> str:
    """A JSON value with its key order: what must come back exactly."""
    return json.dumps(value)


def meaning(value: Any) -> str:
    """A JSON value without its key order: what decides whether two contents are the same."""
    return json.dumps(value, sort_keys=True)


class ModelNode(Struct, frozen=True):
    """A node and its life: `body` None once vacuum erased it, `died` the first revision it is hidden at."""

    draft: NodeDraft
    parent_id: str | None
    created_ms: int
    position: int
    born: int
    died: int | None = None
    erased: bool = False

    def visible(self, at_revision: int | None) -> bool:
        if at_revision is None:
            return self.died is None
        return self.born <= at_revision and (self.died is None or self.died > at_revision)


class Graph(Struct):
    """All nodes of one session, tombstoned ones too, and the leaf of its head."""

    session_id: str
    nodes: dict[str, ModelNode]
    leaf_id: str | None = None
    next_position: int = 0

    def copy(self) -> Graph:
        return Graph(self.session_id, dict(self.nodes), self.leaf_id, self.next_position)

    def live_count(self) -> int:
        return sum(node.died is None for node in self.nodes.values())

    # --- changing -------------------------------------------------------------------------------------------------------

    def change(self, change: Append | Replace | Unchanged, ids: Sequence[str], *, revision: int, now_ms: int) -> None:
        """Apply a commit's graph change; raises what the store raises. `ids` are those of the drafts."""
        if isinstance(change, Unchanged):
            if isinstance(change.leaf, str):
                self._require_live(change.leaf)
            self.leaf_id = self.leaf_id if isinstance(change.leaf, UnsetType) else change.leaf
            return
        drafts = dict(zip(ids, change.nodes, strict=True))
        parents = self._parents(drafts, first=self.leaf_id if isinstance(change, Append) else None)
        leaf = self._leaf_after(change, ids, parents)
        self._check_shape(drafts, parents)
        if isinstance(change, Replace):
            self._bury([node_id for node_id in self.nodes if node_id not in drafts], revision)
        self._check_content(drafts)
        positions = self._positions(ids, reorder=isinstance(change, Replace))
        for node_id, draft in drafts.items():
            known = self.nodes.get(node_id)
            if known is None:
                self.nodes[node_id] = ModelNode(draft, parents[node_id], now_ms, positions[node_id], revision)
            else:
                # What vacuum erased comes back in the draft's spelling; anything else keeps its own.
                kept = draft if known.erased else known.draft
                self.nodes[node_id] = replace(known, draft=kept, position=positions[node_id], died=None, erased=False)
        self.leaf_id = leaf

    def _parents(self, drafts: Mapping[str, NodeDraft], *, first: str | None) -> dict[str, str | None]:
        parents: dict[str, str | None] = {}
        previous = first
        for node_id, draft in drafts.items():
            known = self.nodes.get(node_id)
            if not isinstance(draft.parent_id, UnsetType):
                parents[node_id] = draft.parent_id
            else:
                parents[node_id] = previous if known is None else known.parent_id
            previous = node_id
        return parents

    def _leaf_after(self, change: Append | Replace, ids: Sequence[str], parents: Mapping[str, str | None]) -> str | None:
        """Parents and leaf must be there: live ones for an append, given ones for a replacement."""
        for node_id, parent_id in parents.items():
            stays = isinstance(change, Append) and node_id in self.nodes
            if parent_id is not None and parent_id not in parents and not stays:
                self._require(parent_id, live=isinstance(change, Append))
        if isinstance(change.leaf, str) and change.leaf not in parents:
            self._require(change.leaf, live=isinstance(change, Append))
        if not isinstance(change.leaf, UnsetType):
            return change.leaf
        kept = self.leaf_id if isinstance(change, Append) else None
        return ids[-1] if ids else kept

    def _require(self, node_id: str, *, live: bool) -> None:
        if not live:
            raise NotFound("node", node_id, within=self.session_id)
        self._require_live(node_id)

    def _require_live(self, node_id: str) -> None:
        node = self.nodes.get(node_id)
        if node is None or node.died is not None:
            raise NotFound("node", node_id, within=self.session_id)

    def _check_shape(self, drafts: Mapping[str, NodeDraft], parents: Mapping[str, str | None]) -> None:
        for node_id in drafts:
            known = self.nodes.get(node_id)
            if known is None:
                self._check_acyclic(node_id, parents)
            elif known.parent_id != parents[node_id]:
                raise NodeConflict(self.session_id, node_id=node_id, why="")

    def _check_acyclic(self, node_id: str, parents: Mapping[str, str | None]) -> None:
        seen: set[str] = set()
        current: str | None = node_id
        while current is not None and current not in self.nodes:
            if current in seen:
                raise InvalidArgument("graph.nodes", "")
            seen.add(current)
            current = parents[current]

    def _check_content(self, drafts: Mapping[str, NodeDraft]) -> None:
        for node_id, draft in drafts.items():
            known = self.nodes.get(node_id)
            if known is None:
                continue
            # Of an erased body only the digest is left, so it must come back in the same spelling.
            spell = text if known.erased else meaning
            if _content(draft, spell) != _content(known.draft, spell):
                raise NodeConflict(self.session_id, node_id=node_id, why="")

    def _positions(self, ids: Sequence[str], *, reorder: bool) -> dict[str, int]:
        positions: dict[str, int] = {}
        last = -1
        for node_id in ids:
            known = self.nodes.get(node_id)
            if known is not None and (not reorder or known.position > last):
                positions[node_id] = last = known.position
                continue
            positions[node_id] = last = self.next_position
            self.next_position += 1
        return positions

    def _bury(self, node_ids: Sequence[str], revision: int) -> int:
        doomed = [node_id for node_id in dict.fromkeys(node_ids) if node_id in self.nodes and self.nodes[node_id].died is None]
        for node_id in doomed:
            self.nodes[node_id] = replace(self.nodes[node_id], died=revision)
        return len(doomed)

    def tombstone(self, node_ids: Sequence[str], revision: int) -> int:
        """Hide nodes from the next revision on; how many were live."""
        return self._bury(node_ids, revision + 1)

    def vacuum(self) -> VacuumReport:
        """Erase hidden bodies; drop hidden nodes unless a live node or the leaf descends from them."""
        hidden = {node_id for node_id, node in self.nodes.items() if node.died is not None}
        erased = [node_id for node_id in hidden if not self.nodes[node_id].erased]
        for node_id in erased:
            self.nodes[node_id] = replace(self.nodes[node_id], erased=True)
        needed: set[str] = set()
        for node_id in self.nodes:
            if node_id not in hidden or node_id == self.leaf_id:
                needed.update(self.ancestry(node_id))
        self.nodes = {node_id: node for node_id, node in self.nodes.items() if node_id in needed}
        return VacuumReport(erased=len(erased), kept_bodiless=len(hidden & needed), complete=True)

    def forked(self, new_id: str, leaf_id: str | None, at_revision: int | None) -> Graph:
        """The path to a node as a graph of its own; ancestors hidden by then keep their places without their bodies."""
        if leaf_id is None:
            return Graph(new_id, {})
        if leaf_id not in self.nodes or self._hidden(leaf_id, at_revision):
            raise NotFound("node", leaf_id, within=self.session_id)
        hidden = {node_id: self._hidden(node_id, at_revision) for node_id in self.ancestry(leaf_id)}
        nodes = {
            node_id: replace(self.nodes[node_id], position=depth, born=1, died=0 if gone else None, erased=gone)
            for depth, (node_id, gone) in enumerate(hidden.items())
        }
        return Graph(new_id, nodes, leaf_id, len(nodes))

    def _hidden(self, node_id: str, at_revision: int | None) -> bool:
        died = self.nodes[node_id].died
        return died is not None and (at_revision is None or died <= at_revision)

    # --- looking --------------------------------------------------------------------------------------------------------

    def ancestry(self, node_id: str) -> list[str]:
        """The ids from the root to a node."""
        path: list[str] = []
        current: str | None = node_id
        while current is not None:
            path.append(current)
            current = self.nodes[current].parent_id
        return path[::-1]

    def value(self, node_id: str) -> Node:
        """The node as the store returns it."""
        node = self.nodes[node_id]
        if node.erased:
            raise NotFound("node", node_id, within=self.session_id, retention=True)
        draft = node.draft
        return Node(
            node_id=node_id,
            parent_id=node.parent_id,
            kind=draft.kind,
            body=draft.body,
            frame_id=draft.frame_id,
            caused_by=draft.caused_by,
            created_ms=node.created_ms,
            position=node.position,
        )

    def in_scope(self, scope: FullGraph | ActivePath, leaf_id: str | None, at_revision: int | None) -> tuple[Node, ...]:
        """What a load returns: all visible nodes by position, or the part of a path below its last hidden node."""
        if isinstance(scope, FullGraph):
            shown = [i for i, node in self.nodes.items() if node.visible(at_revision)]
            return tuple(self.value(i) for i in sorted(shown, key=lambda i: self.nodes[i].position))
        if leaf_id is None:
            return ()
        if leaf_id not in self.nodes:
            if scope.leaf is not None:
                raise NotFound("node", scope.leaf, within=self.session_id)
            raise Corrupt("nodes", "", "")
        path: list[str] = []
        for node_id in self.ancestry(leaf_id)[-(scope.last or len(self.nodes)) :]:
            path = [*path, node_id] if self.nodes[node_id].visible(at_revision) else []
        return tuple(self.value(node_id) for node_id in path)

    def node(self, node_id: str) -> Node:
        """One live node."""
        self._require_live(node_id)
        return self.value(node_id)

    def children(self, node_id: str | None) -> tuple[Node, ...]:
        """Live children by position."""
        if node_id is not None and node_id not in self.nodes:
            raise NotFound("node", node_id, within=self.session_id)
        found = [self.value(i) for i, node in self.nodes.items() if node.died is None and node.parent_id == node_id]
        return tuple(sorted(found, key=lambda node: node.position))

    def tips(self) -> tuple[dict[str, Branch], set[str]]:
        """Live nodes without live children, and those of them without any live descendant."""
        live = [node_id for node_id, node in self.nodes.items() if node.died is None]
        parents = {self.nodes[node_id].parent_id for node_id in live}
        above = {ancestor for node_id in live for ancestor in self.ancestry(node_id)[:-1]}
        tips = {
            node_id: Branch(
                leaf_id=node_id,
                depth=len(self.ancestry(node_id)) - 1,
                position=self.nodes[node_id].position,
                is_head=node_id == self.leaf_id,
            )
            for node_id in live
            if node_id not in parents
        }
        return tips, tips.keys() - above


def _content(draft: NodeDraft, spell: Any) -> tuple[object, ...]:
    return draft.kind, spell(draft.body), draft.frame_id, None if draft.caused_by is None else spell(draft.caused_by)
