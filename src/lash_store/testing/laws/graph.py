"""Laws of the graph: append-only nodes, paths, branches, replace, tombstones, vacuum, fork."""

from __future__ import annotations

import asyncio
from typing import Any

from lash_store.errors import NodeConflict, NotFound, Refused, RevisionConflict
from lash_store.model.commit import Receipt
from lash_store.model.graph import Append, NodeDraft, Replace, Unchanged, active_path
from lash_store.testing.backend import Backend
from lash_store.testing.steps import append, commit, count, draft, node_ids, nothing_changes, of_type, outcomes, refused, say

FORKED = Append([draft("root"), draft("left", "root"), draft("left-leaf", "left"), draft("right-leaf", "root")], leaf="left-leaf")


async def a_path_is_the_ancestry_of_one_leaf_root_first(backend: Backend) -> None:
    """A full load returns every live node in insertion order, a path load only the ancestry of its leaf."""
    store = await backend.open()
    await commit(store, "s", 0, graph=FORKED)
    full = await store.sessions.load("s")
    assert (node_ids(full), full.leaf_id) == (["root", "left", "left-leaf", "right-leaf"], "left-leaf")
    path = await store.sessions.load("s", active_path())
    assert (node_ids(path), path.leaf_id) == (["root", "left", "left-leaf"], "left-leaf")
    right = await store.sessions.load("s", active_path("right-leaf"))
    assert (node_ids(right), right.leaf_id) == (["root", "right-leaf"], "right-leaf")
    assert node_ids(await store.sessions.load("s", active_path("left"))) == ["root", "left"]


async def without_a_leaf_the_path_is_empty(backend: Backend) -> None:
    """No leaf means no path, never the whole graph."""
    store = await backend.open()
    await store.sessions.create("empty")
    assert (await store.sessions.load("empty", active_path())).nodes == ()
    await commit(store, "s", 0, graph=Append([draft("a"), draft("b")], leaf=None))
    assert (await store.sessions.load("s", active_path())).nodes == ()
    assert node_ids(await store.sessions.load("s")) == ["a", "b"]


async def an_unknown_leaf_is_not_found(backend: Backend) -> None:
    """A path to a node that does not exist is refused, never an empty answer."""
    store = await backend.open()
    await say(store, "s", "a")
    await say(store, "other", "b")
    for leaf in ("none", "b"):
        with refused(NotFound, kind="node", id=leaf):
            await store.sessions.load("s", active_path(leaf))


async def the_end_of_a_path_can_be_read_alone(backend: Backend) -> None:
    """`last` keeps the last nodes of the path, across branches, and is no error when the path is shorter."""
    store = await backend.open()
    await say(store, "s", *(f"n{n}" for n in range(10)))
    await commit(store, "s", 1, graph=Append([draft("x", "n4"), draft("y")]))
    path = ["n0", "n1", "n2", "n3", "n4", "x", "y"]
    for last in (1, 2, 3, 5, 7, 50):
        assert node_ids(await store.sessions.load("s", active_path(last=last))) == path[-last:]
    assert node_ids(await store.sessions.load("s", active_path("n9", last=2))) == ["n8", "n9"]


async def a_path_through_many_forks_is_complete(backend: Backend) -> None:
    """Whatever the shape of the graph, the loaded path is the chain of parents."""
    store = await backend.open()
    await say(store, "s", "p0")
    for n in range(1, 25):
        side = [draft(f"side{n}", f"p{n - 1}"), draft(f"p{n}", f"p{n - 1}")]
        await commit(store, "s", n, graph=Append(side if n % 2 else side[::-1], leaf=f"p{n}"))
    path = await store.sessions.load("s", active_path())
    assert node_ids(path) == [f"p{n}" for n in range(25)]
    assert [node.parent_id for node in path.nodes] == [None, *(f"p{n}" for n in range(24))]
    assert node_ids(await store.sessions.load("s", active_path("side9"))) == [*(f"p{n}" for n in range(9)), "side9"]


async def a_long_path_loads_whole(backend: Backend) -> None:
    """Thousands of nodes on one path come back in order."""
    store = await backend.open()
    ids = [f"n{n}" for n in range(3000)]
    await say(store, "s", *ids[:2999])
    await say(store, "s", ids[2999])
    assert node_ids(await store.sessions.load("s", active_path())) == ids
    assert node_ids(await store.sessions.load("s", active_path(last=3))) == ids[-3:]


async def a_node_hangs_on_the_previous_one_and_the_first_on_the_leaf(backend: Backend) -> None:
    """Parents not named are the previous draft; a named None is a root; a named node is a branch."""
    store = await backend.open()
    await say(store, "s", "a", "b")
    graph = Append([draft("c"), draft("d"), draft("root", None), draft("e"), draft("f", "a"), draft("g")])
    await commit(store, "s", 1, graph=graph)
    parents = {node.node_id: node.parent_id for node in (await store.sessions.load("s")).nodes}
    assert parents == {"a": None, "b": "a", "c": "b", "d": "c", "root": None, "e": "root", "f": "a", "g": "f"}
    assert (await store.sessions.get("s")).leaf_id == "g"


async def the_leaf_moves_only_where_it_is_told(backend: Backend) -> None:
    """A named leaf is taken, also None and an old node; Unchanged without a leaf keeps it."""
    store = await backend.open()
    await commit(store, "s", 0, graph=Append([draft("a"), draft("b"), draft("c")], leaf="b"))
    assert (await store.sessions.get("s")).leaf_id == "b"
    assert (await commit(store, "s", 1, graph=Unchanged())).leaf_id == "b"
    assert (await commit(store, "s", 2, graph=Unchanged(leaf="c"))).leaf_id == "c"
    assert (await commit(store, "s", 3, graph=Append([draft("d")], leaf="a"))).leaf_id == "a"
    assert (await commit(store, "s", 4, graph=Unchanged(leaf=None))).leaf_id is None
    await say(store, "s", "second-root")
    assert (await store.sessions.node("s", "second-root")).parent_id is None
    assert (await store.sessions.node("s", "d")).parent_id == "c"


async def unknown_parents_and_leaves_are_refused(backend: Backend) -> None:
    """A node of another session, a tombstoned leaf and an id never used are NotFound, and nothing is stored."""
    store = await backend.open()
    await say(store, "s", "a", "b")
    await say(store, "other", "foreign")
    await store.sessions.tombstone("s", ["b"])
    async with nothing_changes(backend):
        for missing in ("none", "foreign"):
            with refused(NotFound, kind="node", id=missing):
                await commit(store, "s", None, graph=Append([draft("x", missing)]))
            with refused(NotFound, kind="node", id=missing):
                await commit(store, "s", 1, graph=Unchanged(leaf=missing))
        with refused(NotFound, kind="node", id="b"):
            await commit(store, "s", 1, graph=Unchanged(leaf="b"))


async def appending_an_identical_node_again_changes_nothing_in_it(backend: Backend) -> None:
    """Nodes are append-only: the same content is a no-op, whatever parent is left unnamed."""
    store = await backend.open()
    await say(store, "s", "a", "b")
    before = (await store.sessions.load("s")).nodes
    await backend.advance(1000)
    await commit(store, "s", 1, graph=Append([draft("b", "a"), draft("a", None)], leaf="b"))
    await commit(store, "s", 2, graph=Append([draft("b")]))
    session = await store.sessions.get("s")
    assert (await store.sessions.load("s")).nodes == before
    assert (session.revision, session.node_count, session.leaf_id) == (3, 2, "b")


async def a_node_id_is_bound_to_its_first_content(backend: Backend) -> None:
    """Another body, kind, frame, cause or parent under the same id is NodeConflict, and nothing is stored."""
    store = await backend.open()
    base: dict[str, Any] = {"node_id": "b", "body": {"text": "b"}, "parent_id": "a"}
    await commit(store, "s", 0, graph=Append([draft("a"), NodeDraft(**base)]))
    changes: list[dict[str, Any]] = [
        {"body": {"text": "c"}},
        {"kind": "event"},
        {"frame_id": "f"},
        {"caused_by": 1},
        {"parent_id": None},
    ]
    async with nothing_changes(backend):
        for change in changes:
            with refused(NodeConflict, session_id="s", node_id="b"):
                await commit(store, "s", 1, graph=Append([draft("x"), NodeDraft(**{**base, **change})]))
        with refused(NodeConflict, node_id="y"):
            await commit(store, "s", 1, graph=Append([draft("y"), draft("y")]))
        with refused(NodeConflict, node_id="y"):
            await commit(store, "s", 1, graph=Replace([draft("y", None), draft("y", None)]))


async def sessions_share_no_nodes(backend: Backend) -> None:
    """The same node id in two sessions is two nodes; tombstone and vacuum touch one session."""
    store = await backend.open()
    await commit(store, "one", 0, graph=Append([draft("n", body=1)]))
    await commit(store, "two", 0, graph=Append([draft("n", body=2)]))
    await store.sessions.tombstone("one", ["n"])
    await store.sessions.vacuum("one")
    assert (await store.sessions.node("two", "n")).body == 2
    with refused(NotFound, kind="node"):
        await store.sessions.node("one", "n")


async def replace_makes_the_live_nodes_exactly_those_given(backend: Backend) -> None:
    """Absent nodes are tombstoned, new ones inserted, equal ones untouched, in the given order."""
    store = await backend.open()
    await say(store, "s", "a", "b", "c")
    kept = await store.sessions.node("s", "a")
    await backend.advance(1000)
    graph = Replace([draft("a"), draft("z", "a"), draft("y", "a")], leaf="z")
    receipt = await commit(store, "s", 1, graph=graph)
    session = await store.sessions.get("s")
    assert (receipt.leaf_id, session.node_count) == ("z", 3)
    assert node_ids(await store.sessions.load("s")) == ["a", "z", "y"]
    assert (await store.sessions.node("s", "a")).created_ms == kept.created_ms
    for gone in ("b", "c"):
        with refused(NotFound, kind="node"):
            await store.sessions.node("s", gone)


async def replace_may_reorder_and_revive(backend: Backend) -> None:
    """The order of a full load is the order of the last replace; a tombstoned node given again is live."""
    store = await backend.open()
    await commit(store, "s", 0, graph=Append([draft("r"), draft("a", "r"), draft("b", "r"), draft("c", "r")]))
    await commit(store, "s", 1, graph=Replace([draft("r"), draft("c", "r"), draft("a", "r")]))
    assert node_ids(await store.sessions.load("s")) == ["r", "c", "a"]
    await commit(store, "s", 2, graph=Replace([draft("r"), draft("b", "r"), draft("a", "r"), draft("c", "r")]))
    assert node_ids(await store.sessions.load("s")) == ["r", "b", "a", "c"]
    await say(store, "s", "d")
    assert node_ids(await store.sessions.load("s")) == ["r", "b", "a", "c", "d"]
    assert (await store.sessions.get("s")).node_count == 5


async def replace_by_nothing_empties_the_session(backend: Backend) -> None:
    """An empty replace leaves no live node and no leaf."""
    store = await backend.open()
    await say(store, "s", "a", "b")
    receipt = await commit(store, "s", 1, graph=Replace([], leaf=None))
    assert receipt.leaf_id is None
    session = await store.sessions.get("s")
    assert (session.node_count, (await store.sessions.load("s")).nodes) == (0, ())


async def of_two_replaces_with_the_same_nodes_one_wins(backend: Backend) -> None:
    """Concurrent replaces that share node ids: one is stored, the other is RevisionConflict, no mixture."""
    stores = [await backend.open() for _ in range(2)]
    await say(stores[0], "s", "a")
    calls = [commit(stores[i], "s", 1, graph=Replace([draft("a"), draft("b"), draft(f"c{i}")])) for i in range(2)]
    results = await outcomes(*calls)
    assert (len(of_type(results, Receipt)), len(of_type(results, RevisionConflict))) == (1, 1)
    winner = of_type(results, Receipt)[0]
    assert node_ids(await stores[0].sessions.load("s")) == ["a", "b", winner.leaf_id]


async def children_and_roots_are_pages_in_insertion_order(backend: Backend) -> None:
    """children lists the live children of a node, or the roots, without gaps between pages."""
    store = await backend.open()
    roots = [draft(f"r{n}", None) for n in range(3)]
    await commit(store, "s", 0, graph=Append([*roots, *(draft(f"c{n}", "r0") for n in range(5))]))
    await store.sessions.tombstone("s", ["c3"])
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.sessions.children("s", "r0", limit=2, cursor=cursor)
        seen += [node.node_id for node in page.nodes]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == ["c0", "c1", "c2", "c4"]
    page = await store.sessions.children("s", None, limit=10)
    assert [node.node_id for node in page.nodes] == ["r0", "r1", "r2"]
    assert (await store.sessions.children("s", "c0", limit=10)).nodes == ()


async def branches_are_the_tips_of_the_graph(backend: Backend) -> None:
    """Each live node without live children is a branch; the head's leaf says so."""
    store = await backend.open()
    await commit(store, "s", 0, graph=FORKED)
    branches = (await store.sessions.branches("s", limit=10)).branches
    assert {(branch.leaf_id, branch.is_head) for branch in branches} == {("left-leaf", True), ("right-leaf", False)}
    depth = {branch.leaf_id: branch.depth for branch in branches}
    assert depth["left-leaf"] == depth["right-leaf"] + 1
    await store.sessions.tombstone("s", ["right-leaf"])
    await say(store, "s", "longer")
    assert [branch.leaf_id for branch in (await store.sessions.branches("s", limit=10)).branches] == ["longer"]


async def a_tombstoned_node_vanishes_from_reads(backend: Backend) -> None:
    """Tombstoning is idempotent, ignores unknown ids, counts what is new, and lowers the count of live nodes."""
    store = await backend.open()
    await say(store, "s", "a", "b", "c")
    assert await store.sessions.tombstone("s", ["c", "unknown"]) == 1
    assert await store.sessions.tombstone("s", ["c", "b"]) == 1
    assert await store.sessions.tombstone("s", []) == 0
    assert node_ids(await store.sessions.load("s")) == ["a"]
    assert (await store.sessions.get("s")).node_count == 1
    with refused(NotFound, kind="node", id="c"):
        await store.sessions.node("s", "c")


async def a_tombstoned_ancestor_ends_the_path(backend: Backend) -> None:
    """The path stops below a tombstone: what lies above it is not returned."""
    store = await backend.open()
    await say(store, "s", "a", "b", "c", "d")
    await store.sessions.tombstone("s", ["b"])
    assert node_ids(await store.sessions.load("s", active_path())) == ["c", "d"]
    assert node_ids(await store.sessions.load("s", active_path(last=10))) == ["c", "d"]
    assert node_ids(await store.sessions.load("s")) == ["a", "c", "d"]


async def appending_a_tombstoned_node_revives_it(backend: Backend) -> None:
    """The identical node given again is live again, at its place, and counted."""
    store = await backend.open()
    await say(store, "s", "a", "b", "c")
    before = (await store.sessions.load("s")).nodes
    await store.sessions.tombstone("s", ["b"])
    await commit(store, "s", 1, graph=Append([draft("b", "a")], leaf="c"))
    assert (await store.sessions.load("s", active_path())).nodes == before
    assert (await store.sessions.get("s")).node_count == 3


async def vacuum_erases_tombstones_and_keeps_the_shape_live_nodes_need(backend: Backend) -> None:
    """Content of tombstones goes, and their rows too where no live node descends; the second call finds nothing."""
    store = await backend.open()
    await commit(store, "s", 0, graph=Append([draft("a"), draft("b"), draft("c"), draft("d", "a"), draft("e")], leaf="c"))
    await store.sessions.tombstone("s", ["b", "d", "e"])
    report = await store.sessions.vacuum("s")
    assert (report.erased, report.kept_bodiless, report.complete) == (3, 1, True)
    sql = f"SELECT node_id, body FROM {backend.table('nodes')} WHERE session_id = $1"
    rows = dict(await backend.raw(sql, "s"))
    assert set(rows) == {"a", "b", "c"}
    assert rows["b"] is None and rows["c"] is not None
    assert (await store.sessions.vacuum("s")).erased == 0
    assert node_ids(await store.sessions.load("s")) == ["a", "c"]


async def a_bodiless_node_given_again_has_its_body_again(backend: Backend) -> None:
    """Reviving after vacuum restores the whole node, and only with the content it always had."""
    store = await backend.open()
    await say(store, "s", "a", "b", "c")
    await store.sessions.tombstone("s", ["b"])
    await store.sessions.vacuum("s")
    with refused(NodeConflict, node_id="b"):
        await commit(store, "s", None, graph=Append([draft("b", "a", body="other")], leaf="c"))
    await commit(store, "s", None, graph=Append([draft("b", "a")], leaf="c"))
    assert (await store.sessions.node("s", "b")).body == {"text": "b"}
    assert node_ids(await store.sessions.load("s", active_path())) == ["a", "b", "c"]


async def a_fork_is_the_path_alone(backend: Backend) -> None:
    """A fork holds the path to its point, the checkpoint, config and frames, and opens its own history."""
    store = await backend.open()
    await commit(store, "s", 0, graph=FORKED, checkpoint={"c": b"state"}, config={"v": 1})
    forked = await store.sessions.fork("s", "f", name="forked")
    assert (forked.name, forked.leaf_id, forked.node_count) == ("forked", "left-leaf", 3)
    ours, theirs = await store.sessions.load("f"), await store.sessions.load("s", active_path())
    assert [(n.node_id, n.parent_id, n.body) for n in ours.nodes] == [(n.node_id, n.parent_id, n.body) for n in theirs.nodes]
    assert (dict(ours.checkpoint), ours.config) == ({"c": b"state"}, {"v": 1})
    assert [record.kind for record in (await store.sessions.commits("f")).commits] == ["fork"]
    at = await store.sessions.fork("s", "g", at="right-leaf")
    assert at.leaf_id == "right-leaf"
    assert node_ids(await store.sessions.load("g")) == ["root", "right-leaf"]


async def a_fork_survives_its_source(backend: Backend) -> None:
    """Commits on either side, vacuum and deletion of the source leave the fork as it was."""
    store = await backend.open()
    for n in range(5):
        await commit(store, "s", n, graph=append(f"n{n}"), checkpoint={"c": b"state" * (n + 1)})
    forked = await store.sessions.fork("s", "f", at="n3")
    await commit(store, "f", forked.revision, graph=append("own"), checkpoint={"mine": b"1"})
    await say(store, "s", "theirs")
    before = await store.sessions.load("f")
    await store.sessions.tombstone("s", ["n0", "n1"])
    await store.sessions.vacuum("s")
    await store.sessions.delete("s")
    await store.maintenance.collect()
    other = await backend.open()
    assert await other.sessions.load("f") == before
    assert node_ids(before) == ["n0", "n1", "n2", "n3", "own"]
    assert before.checkpoint["mine"] == b"1"


async def a_fork_needs_a_source_a_point_and_a_free_id(backend: Backend) -> None:
    """Unknown sources and points are NotFound; an id in use is refused; nothing is stored."""
    store = await backend.open()
    await say(store, "s", "a")
    await say(store, "taken", "b")
    async with nothing_changes(backend):
        with refused(NotFound, kind="session"):
            await store.sessions.fork("none", "f")
        with refused(NotFound, kind="node"):
            await store.sessions.fork("s", "f", at="b")
        with refused(Refused):
            await store.sessions.fork("s", "taken")


async def concurrent_appends_under_one_parent_make_branches(backend: Backend) -> None:
    """Children of one node appended at once are all kept, each on a branch of its own."""
    stores = [await backend.open() for _ in range(2)]
    await say(stores[0], "s", "root")
    calls = [commit(stores[i % 2], "s", None, graph=Append([draft(f"c{i}", "root"), draft(f"d{i}")])) for i in range(8)]
    await asyncio.gather(*calls)
    for i in range(8):
        assert node_ids(await stores[0].sessions.load("s", active_path(f"d{i}"))) == ["root", f"c{i}", f"d{i}"]
    assert len((await stores[0].sessions.branches("s", limit=100)).branches) == 8
    assert await count(backend, "nodes", "s") == 17
