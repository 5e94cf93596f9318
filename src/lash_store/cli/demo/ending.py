"""What there is at the end: the tree and the usage as the store has them, and who did what when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from lash_store import FULL, Node, Snapshot, Store
from lash_store.cli.demo.crew import Member
from lash_store.cli.demo.ledger import RACE, TRIP, WITH_ADA, Killed, Ledger

LEADS = ("user", "process", "agent")  # lines that are shown; tools are folded into the answer they led to


class Line(Struct, frozen=True):
    """A line of a conversation, the tools that led to it, and the branches that leave after it."""

    role: str
    text: str
    tools: tuple[str, ...] = ()
    branches: tuple[tuple[Line, ...], ...] = ()


class Tree(Struct, frozen=True):
    """A session: its main line, with branches where they leave."""

    session_id: str
    name: str
    revision: int
    nodes: int
    parent: str | None
    lines: tuple[Line, ...]


class Spent(Struct, frozen=True):
    """Tokens of one session."""

    session_id: str
    model: str
    turns: int
    input: int
    output: int


class Lane(Struct, frozen=True, kw_only=True):
    """A worker's life, in seconds since the story began."""

    worker: str
    pid: int
    from_s: float
    to_s: float
    commits: tuple[float, ...]
    killed: Killed | None


class Ending(Struct, frozen=True):
    """All of it."""

    trees: tuple[Tree, ...]
    spent: tuple[Spent, ...]
    lanes: tuple[Lane, ...]


def ending(store: Store, ledger: Ledger, workers: Sequence[Member], *, began: float, now: float) -> Ending:
    """Read it from the store; when things happened, from what was heard."""
    trees = tuple(tree(store, session_id) for session_id in (TRIP, WITH_ADA, RACE))
    return Ending(trees, tuple(spent(store, ledger)), tuple(lane(each, ledger, began, now) for each in workers))


# --- the tree -------------------------------------------------------------------------------------------------------------


def tree(store: Store, session_id: str) -> Tree:
    """A session's graph, its main line first."""
    session, snapshot = store.sessions.get(session_id), store.sessions.load(session_id, FULL)
    parent = session.relation.parent_session_id
    return Tree(session_id, session.name, session.revision, session.node_count, parent, Graph(snapshot).lines())


class Graph:
    """Nodes by parent, and which of them are on the way to the head."""

    def __init__(self, snapshot: Snapshot) -> None:
        nodes = {node.node_id: node for node in snapshot.nodes}
        self._children: dict[str | None, list[Node]] = {}
        for node in snapshot.nodes:
            self._children.setdefault(node.parent_id, []).append(node)
        self._main: set[str] = set()
        leaf = snapshot.leaf_id
        while leaf is not None:
            self._main.add(leaf)
            leaf = nodes[leaf].parent_id

    def lines(self) -> tuple[Line, ...]:
        """The main line, from its root."""
        return self._run(self._sorted(None)[0])

    def _run(self, first: Node) -> tuple[Line, ...]:
        """A node and what follows it, up to a leaf. Where several follow, the main line goes on and the others are branches."""
        found, tools, node = list[Line](), list[str](), first
        while True:
            role, after = node.body["role"], self._sorted(node.node_id)
            tools += [node.body["text"]] if role == "call" else []
            if role in LEADS:
                branches = tuple(self._run(branch) for branch in after[1:])
                found.append(Line(role, node.body["text"], tuple(tools), branches))
                tools = []
            if not after:
                return tuple(found)
            node = after[0]

    def _sorted(self, parent: str | None) -> list[Node]:
        """Children, the one on the main line first."""
        return sorted(self._children.get(parent, []), key=lambda node: (node.node_id not in self._main, node.position))


# --- usage and time -------------------------------------------------------------------------------------------------------


def spent(store: Store, ledger: Ledger) -> list[Spent]:
    """Tokens by session and model, as the store totals them."""
    turns = Counter(each.session_id for each in ledger.turns if each.node_ids)
    return [
        Spent(session_id, total.model, turns[session_id], total.input, total.output)
        for session_id in (TRIP, WITH_ADA)
        for total in store.sessions.usage(session_id)
    ]


def lane(worker: Member, ledger: Ledger, began: float, now: float) -> Lane:
    """When a worker lived, when it was told of a commit, and how it ended."""
    return Lane(
        worker=worker.name,
        pid=worker.pid,
        from_s=max(0.0, worker.started - began),
        to_s=(worker.ended or now) - began,
        commits=tuple(each.at_s for each in ledger.turns if each.worker == worker.name),
        killed=next((each for each in ledger.kills if each.pid == worker.pid), None),
    )
