"""The conversation graph: where nodes are placed, how they are written, and how a path is read back.

Nodes are stored in runs. The first child of a branch's tip continues the branch; any other child starts a new one, whose row
says where it forked off. A path is then a handful of range scans, one for each fork on it, whatever else the session holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from msgspec import Struct, UnsetType

from lash_store.encode import SHORT_TEXTS, canonical, decode, digest, frames
from lash_store.errors import InvalidArgument, NodeConflict, NotFound
from lash_store.ops.heads import Head
from lash_store.ops.statement import Op, Row, execute, execute_many, fetch

NODE_TAG = "node/1"
_TAG, _NO_TEXTS = frames(NODE_TAG), frames(None, None, None)


class PreparedNode(Struct, frozen=True, kw_only=True):
    """A draft after the walk: its body is text, its id is known."""

    node_id: str
    parent_id: str | None | UnsetType
    kind: str
    body: str
    frame_id: str | None
    caused_by: str | None


class StoredNode(Struct, frozen=True, kw_only=True):
    """Where a stored node stands, and the digest of its content."""

    node_id: str
    parent_id: str | None
    branch: int
    depth: int
    position: int
    digest: bytes
    tombstoned: bool
    erased: bool
    tip_depth: int


class Placed(Struct, frozen=True, kw_only=True):
    """A new node and its place."""

    node: PreparedNode
    parent_id: str | None
    branch: int
    depth: int
    position: int


class NewBranch(Struct, frozen=True, kw_only=True):
    """A branch to create. Its tip may move on while the same plan places more nodes."""

    branch: int
    parent_branch: int | None
    parent_depth: int | None
    first_depth: int


class GraphPlan(Struct, frozen=True, kw_only=True):
    """Everything a commit does to the graph, decided before the first write."""

    inserts: tuple[Placed, ...] = ()
    revives: tuple[PreparedNode, ...] = ()
    matches: tuple[PreparedNode, ...] = ()
    positions: Mapping[str, int] = {}
    branches: tuple[NewBranch, ...] = ()
    tips: Mapping[int, int] = {}
    leaf_id: str | None = None
    next_position: int
    next_branch: int


def node_digest(node_id: str, parent_id: str | None, kind: str, body: str, frame_id: str | None, caused_by: str | None) -> bytes:
    """The digest that ties a node's content to its id and its parent; a fork copies it as it is."""
    if parent_id is None or frame_id is not None or caused_by is not None:
        return digest(NODE_TAG, node_id, parent_id, kind, body, frame_id, caused_by)
    # The same for almost every node, in fewer calls: a path is read as fast as its nodes are verified.
    own, above, word, text = node_id.encode(), parent_id.encode(), kind.encode(), body.encode()
    heads = SHORT_TEXTS
    try:
        framed = (_TAG, heads[len(own)], own, heads[len(above)], above, heads[len(word)], word, heads[len(text)], text, _NO_TEXTS)
    except IndexError:
        return digest(NODE_TAG, node_id, parent_id, kind, body, None, None)
    return sha256(b"".join(framed)).digest()


def named_ids(drafts: Sequence[PreparedNode], leaf: str | None | UnsetType, head: Head) -> list[str]:
    """Every stored node a plan may need to look at."""
    ids = {draft.node_id for draft in drafts}
    ids.update(draft.parent_id for draft in drafts if isinstance(draft.parent_id, str))
    if isinstance(leaf, str):
        ids.add(leaf)
    if head.leaf_id is not None:
        ids.add(head.leaf_id)
    return sorted(ids)


def stored_nodes(session_id: str, node_ids: Sequence[str]) -> Op[dict[str, StoredNode]]:
    """The places of these nodes, as far as they exist."""
    if not node_ids:
        return {}
    rows = yield from fetch(
        """
        SELECT n.node_id, n.parent_id, n.branch, n.depth, n.position, n.digest, n.tombstone_revision, n.body IS NULL, b.tip_depth
        FROM {nodes} n
        JOIN {branches} b ON b.session_id = n.session_id AND b.branch = n.branch
        WHERE n.session_id = :session_id AND n.node_id {any_text:node_ids}
        """,
        session_id=session_id,
        node_ids=list(node_ids),
    )
    return {row[0]: _stored(row) for row in rows}


def _stored(row: Row) -> StoredNode:
    return StoredNode(
        node_id=row[0],
        parent_id=row[1],
        branch=row[2],
        depth=row[3],
        position=row[4],
        digest=bytes(row[5]),
        tombstoned=row[6] is not None,
        erased=bool(row[7]),
        tip_depth=row[8],
    )


# --- deciding -------------------------------------------------------------------------------------------------------------


def plan_append(
    session_id: str,
    drafts: Sequence[PreparedNode],
    leaf: str | None | UnsetType,
    head: Head,
    stored: Mapping[str, StoredNode],
) -> GraphPlan:
    """Place new nodes under their parents; equal ones are left alone, tombstoned ones come back to life."""
    parents = _parents(drafts, stored, first=head.leaf_id)
    for node_id, parent_id in parents.items():
        # A node that is stored already hangs where it hangs; only a new one needs a live parent.
        if node_id not in stored and parent_id is not None and parent_id not in parents:
            _require_live(session_id, parent_id, stored)
    return _plan(session_id, drafts, parents, _leaf_after(session_id, drafts, leaf, head, stored), head, stored)


def plan_replace(
    session_id: str,
    drafts: Sequence[PreparedNode],
    leaf: str | None | UnsetType,
    head: Head,
    stored: Mapping[str, StoredNode],
) -> GraphPlan:
    """Make the live set exactly the drafts in their order; parents must be among them."""
    parents = _parents(drafts, stored, first=None)
    given = {draft.node_id for draft in drafts}
    for parent_id in parents.values():
        if parent_id is not None and parent_id not in given:
            raise NotFound("node", parent_id, within=session_id)
    if isinstance(leaf, str) and leaf not in given:
        raise NotFound("node", leaf, within=session_id)
    last = drafts[-1].node_id if drafts else None
    plan = _plan(session_id, drafts, parents, last if isinstance(leaf, UnsetType) else leaf, head, stored)
    return _reordered(plan, drafts, stored, head)


def plan_unchanged(session_id: str, leaf: str | None | UnsetType, head: Head, stored: Mapping[str, StoredNode]) -> GraphPlan:
    """Only the leaf moves, to a live node or to none."""
    if isinstance(leaf, str):
        _require_live(session_id, leaf, stored)
    kept = head.leaf_id if isinstance(leaf, UnsetType) else leaf
    return GraphPlan(leaf_id=kept, next_position=head.next_position, next_branch=head.next_branch)


def _parents(drafts: Sequence[PreparedNode], stored: Mapping[str, StoredNode], *, first: str | None) -> dict[str, str | None]:
    """Who hangs on whom. A stored node whose parent is not named keeps the one it has."""
    parents: dict[str, str | None] = {}
    previous = first
    for draft in drafts:
        known = stored.get(draft.node_id)
        if not isinstance(draft.parent_id, UnsetType):
            parents[draft.node_id] = draft.parent_id
        else:
            parents[draft.node_id] = previous if known is None else known.parent_id
        previous = draft.node_id
    return parents


def _require_live(session_id: str, node_id: str, stored: Mapping[str, StoredNode]) -> None:
    node = stored.get(node_id)
    if node is None or node.tombstoned:
        raise NotFound("node", node_id, within=session_id)


def _leaf_after(
    session_id: str,
    drafts: Sequence[PreparedNode],
    leaf: str | None | UnsetType,
    head: Head,
    stored: Mapping[str, StoredNode],
) -> str | None:
    if isinstance(leaf, UnsetType):
        return drafts[-1].node_id if drafts else head.leaf_id
    if leaf is not None and all(draft.node_id != leaf for draft in drafts):
        _require_live(session_id, leaf, stored)
    return leaf


class _Places:
    """Branch and depth of every node of a plan, found in the order parents demand."""

    def __init__(self, parents: Mapping[str, str | None], stored: Mapping[str, StoredNode], next_branch: int) -> None:
        self.parents = parents
        self.stored = stored
        self.next_branch = next_branch
        self.found: dict[str, tuple[int, int]] = {}
        self.branches: list[NewBranch] = []
        self.tips: dict[int, int] = {node.branch: node.tip_depth for node in stored.values()}

    def place(self, node_id: str) -> tuple[int, int]:
        """Where the node stands; its unplaced ancestors are placed first."""
        waiting: list[str] = []
        on_the_way: set[str] = set()
        current: str | None = node_id
        while current is not None and current not in self.found and current not in self.stored:
            if current in on_the_way:
                raise InvalidArgument("graph.nodes", f"node {current!r} is its own ancestor")
            on_the_way.add(current)
            waiting.append(current)
            current = self.parents[current]
        for waiting_id in reversed(waiting):
            self.found[waiting_id] = self._below(self.parents[waiting_id])
        return self._at(node_id)

    def _at(self, node_id: str) -> tuple[int, int]:
        if node_id in self.found:
            return self.found[node_id]
        node = self.stored[node_id]
        return node.branch, node.depth

    def _below(self, parent_id: str | None) -> tuple[int, int]:
        if parent_id is None:
            return self._start(None, None)
        branch, depth = self._at(parent_id)
        if self.tips[branch] == depth:
            self.tips[branch] = depth + 1
            return branch, depth + 1
        return self._start(branch, depth)

    def _start(self, parent_branch: int | None, parent_depth: int | None) -> tuple[int, int]:
        first_depth = 0 if parent_depth is None else parent_depth + 1
        branch = NewBranch(
            branch=self.next_branch, parent_branch=parent_branch, parent_depth=parent_depth, first_depth=first_depth
        )
        self.branches.append(branch)
        self.tips[branch.branch] = first_depth
        self.next_branch += 1
        return branch.branch, first_depth


def _plan(
    session_id: str,
    drafts: Sequence[PreparedNode],
    parents: Mapping[str, str | None],
    leaf_id: str | None,
    head: Head,
    stored: Mapping[str, StoredNode],
) -> GraphPlan:
    places = _Places(parents, stored, head.next_branch)
    inserts: list[Placed] = []
    revives: list[PreparedNode] = []
    matches: list[PreparedNode] = []
    position = head.next_position
    for draft in drafts:
        known = stored.get(draft.node_id)
        if known is None:
            branch, depth = places.place(draft.node_id)
            inserts.append(Placed(node=draft, parent_id=parents[draft.node_id], branch=branch, depth=depth, position=position))
            position += 1
            continue
        if parents[draft.node_id] != known.parent_id:
            raise NodeConflict(
                session_id, node_id=draft.node_id, why=f"hangs on {known.parent_id!r}, not {parents[draft.node_id]!r}"
            )
        if _digest_of(draft, known.parent_id) != known.digest:
            matches.append(draft)
        if known.tombstoned:
            revives.append(draft)
    before = {node.branch: node.tip_depth for node in stored.values()}
    fresh = {branch.branch for branch in places.branches}
    moved = {b: tip for b, tip in places.tips.items() if b in fresh or before[b] != tip}
    return GraphPlan(
        inserts=tuple(inserts),
        revives=tuple(revives),
        matches=tuple(matches),
        branches=tuple(places.branches),
        tips=moved,
        leaf_id=leaf_id,
        next_position=position,
        next_branch=places.next_branch,
    )


def _digest_of(draft: PreparedNode, parent_id: str | None) -> bytes:
    return node_digest(draft.node_id, parent_id, draft.kind, draft.body, draft.frame_id, draft.caused_by)


def _reordered(plan: GraphPlan, drafts: Sequence[PreparedNode], stored: Mapping[str, StoredNode], head: Head) -> GraphPlan:
    """Give nodes new positions from the first one that stands out of order; those before it stay untouched."""
    fresh = {placed.node.node_id for placed in plan.inserts}
    positions: dict[str, int] = {}
    last, following = -1, head.next_position
    for draft in drafts:
        known = stored.get(draft.node_id)
        if known is not None and draft.node_id not in fresh and known.position > last:
            last = known.position
            continue
        positions[draft.node_id] = last = following
        following += 1
    inserts = tuple(
        Placed(node=p.node, parent_id=p.parent_id, branch=p.branch, depth=p.depth, position=positions[p.node.node_id])
        for p in plan.inserts
    )
    moved = {node_id: position for node_id, position in positions.items() if node_id not in fresh}
    return GraphPlan(
        inserts=inserts,
        revives=plan.revives,
        matches=plan.matches,
        positions=moved,
        branches=plan.branches,
        tips=plan.tips,
        leaf_id=plan.leaf_id,
        next_position=following,
        next_branch=plan.next_branch,
    )


# --- writing --------------------------------------------------------------------------------------------------------------


def check_matches(session_id: str, drafts: Sequence[PreparedNode]) -> Op[None]:
    """Same id, other bytes: the same content in another key order passes, anything else is refused."""
    if not drafts:
        return
    rows = yield from fetch(
        """
        SELECT node_id, kind, body, frame_id, caused_by
        FROM {nodes}
        WHERE session_id = :session_id AND node_id {any_text:node_ids}
        """,
        session_id=session_id,
        node_ids=[draft.node_id for draft in drafts],
    )
    found = {row[0]: row for row in rows}
    for draft in drafts:
        _, kind, body, frame_id, caused_by = found[draft.node_id]
        same = (kind, frame_id) == (draft.kind, draft.frame_id)
        if not same or _sorted(draft.node_id, body) != _sorted(draft.node_id, draft.body):
            raise NodeConflict(session_id, node_id=draft.node_id, why="exists with other content")
        if _sorted(draft.node_id, caused_by) != _sorted(draft.node_id, draft.caused_by):
            raise NodeConflict(session_id, node_id=draft.node_id, why="exists with another cause")


def _sorted(node_id: str, text: str | None) -> str | None:
    return None if text is None else canonical(decode(text, table="nodes", row=repr(node_id)))


def write_graph(session_id: str, plan: GraphPlan, *, revision: int, now_ms: int) -> Op[None]:
    """Insert, revive and renumber what the plan says: one statement each, whatever their number."""
    yield from check_matches(session_id, plan.matches)
    yield from _write_branches(session_id, plan)
    yield from _insert_nodes(session_id, plan.inserts, revision=revision, now_ms=now_ms)
    yield from _revive_nodes(session_id, plan.revives)
    moved = yield from execute_many(
        """
        UPDATE {nodes} SET position = rows.position
        FROM {rows(node_id text, position int)}
        WHERE {nodes}.session_id = :session_id AND {nodes}.node_id = rows.node_id
        """,
        [{"node_id": node_id, "position": position} for node_id, position in plan.positions.items()],
        session_id=session_id,
    )
    assert moved == len(plan.positions), "a node of the locked session vanished"


def _write_branches(session_id: str, plan: GraphPlan) -> Op[None]:
    yield from execute_many(
        """
        INSERT INTO {branches} (session_id, branch, parent_branch, parent_depth, first_depth, tip_depth)
        SELECT CAST(:session_id AS TEXT), rows.branch, rows.parent_branch, rows.parent_depth, rows.first_depth, rows.tip_depth
        FROM {rows(branch int, parent_branch int, parent_depth int, first_depth int, tip_depth int)}
        """,
        [
            {
                "branch": new.branch,
                "parent_branch": new.parent_branch,
                "parent_depth": new.parent_depth,
                "first_depth": new.first_depth,
                "tip_depth": plan.tips[new.branch],
            }
            for new in plan.branches
        ],
        session_id=session_id,
    )
    fresh = {new.branch for new in plan.branches}
    grown = [{"branch": branch, "tip_depth": tip} for branch, tip in plan.tips.items() if branch not in fresh]
    count = yield from execute_many(
        """
        UPDATE {branches} SET tip_depth = rows.tip_depth
        FROM {rows(branch int, tip_depth int)}
        WHERE {branches}.session_id = :session_id AND {branches}.branch = rows.branch
        """,
        grown,
        session_id=session_id,
    )
    assert count == len(grown), "a branch of the locked session vanished"


def _insert_nodes(session_id: str, inserts: Sequence[Placed], *, revision: int, now_ms: int) -> Op[None]:
    yield from execute_many(
        """
        INSERT INTO {nodes} (session_id, branch, depth, position, node_id, parent_id, kind, body, frame_id, caused_by, digest,
                             created_ms, created_revision)
        SELECT CAST(:session_id AS TEXT), rows.branch, rows.depth, rows.position, rows.node_id, rows.parent_id, rows.kind,
               rows.body, rows.frame_id, rows.caused_by, rows.digest, CAST(:now_ms AS {int}), CAST(:revision AS {int})
        FROM {rows(branch int, depth int, position int, node_id text, parent_id text, kind text, body text, frame_id text,
                   caused_by text, digest bytes)}
        """,
        [
            {
                "branch": placed.branch,
                "depth": placed.depth,
                "position": placed.position,
                "node_id": placed.node.node_id,
                "parent_id": placed.parent_id,
                "kind": placed.node.kind,
                "body": placed.node.body,
                "frame_id": placed.node.frame_id,
                "caused_by": placed.node.caused_by,
                "digest": _digest_of(placed.node, placed.parent_id),
            }
            for placed in inserts
        ],
        session_id=session_id,
        now_ms=now_ms,
        revision=revision,
    )


def _revive_nodes(session_id: str, revives: Sequence[PreparedNode]) -> Op[None]:
    """Undo tombstones; a body that vacuum erased comes back from the draft, whose digest was compared."""
    count = yield from execute_many(
        """
        UPDATE {nodes} SET tombstone_revision = NULL, body = COALESCE({nodes}.body, rows.body),
                           caused_by = COALESCE({nodes}.caused_by, rows.caused_by)
        FROM {rows(node_id text, body text, caused_by text)}
        WHERE {nodes}.session_id = :session_id AND {nodes}.node_id = rows.node_id AND {nodes}.tombstone_revision IS NOT NULL
        """,
        [{"node_id": draft.node_id, "body": draft.body, "caused_by": draft.caused_by} for draft in revives],
        session_id=session_id,
    )
    assert count == len(revives), "a tombstone of the locked session vanished"


def tombstone_absent(session_id: str, keep: Iterable[str], *, revision: int) -> Op[int]:
    """Tombstone every live node that is not kept; the number of nodes that died."""
    return (
        yield from execute(
            """
            UPDATE {nodes} SET tombstone_revision = :revision
            WHERE session_id = :session_id AND tombstone_revision IS NULL AND NOT (node_id {any_text:keep})
            """,
            session_id=session_id,
            revision=revision,
            keep=sorted(keep),
        )
    )
