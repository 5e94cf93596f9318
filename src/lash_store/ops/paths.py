"""Reading the graph back: rows of a path or of a whole session, and the verification of every digest and edge."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NoReturn

from msgspec import Struct
from msgspec.structs import astuple

from lash_store.encode import check, decode, quick_decode
from lash_store.errors import Corrupt, NotFound
from lash_store.model.graph import Node
from lash_store.ops.graph import node_digest
from lash_store.ops.statement import Op, Row, fetch

WHOLE_PATH = 2**62  # more nodes than a path can have: read it to its root


class NodeRow(Struct, frozen=True):
    """A node as it is stored, not yet verified."""

    node_id: str
    parent_id: str | None
    kind: str
    body: str | None
    frame_id: str | None
    caused_by: str | None
    digest: bytes
    created_ms: int
    position: int
    depth: int
    created_revision: int
    tombstone_revision: int | None


def visible(row: Row, at_revision: int | None) -> bool:
    """Whether a node, its columns in the order of `NodeRow`, is live now, or was as of a commit."""
    created_revision, tombstone_revision = row[10], row[11]
    if at_revision is None:
        return tombstone_revision is None
    return created_revision <= at_revision and (tombstone_revision is None or tombstone_revision > at_revision)


# The runs a path leads through, of the leaf that is given or else of the session's own, down to the last n nodes. Each step of
# the walk looks its branch up by key in a subquery: as a join, a planner without statistics may read all branches of the
# session at every step.
RUNS = """
    SELECT n.branch, n.depth, n.depth - CAST(:last AS {int}) + 1
    FROM {nodes} n
    WHERE n.session_id = :session_id AND n.node_id = COALESCE(
        CAST(:leaf_id AS TEXT), (SELECT s.leaf_id FROM {sessions} s WHERE s.session_id = :session_id))
    UNION ALL
    SELECT (SELECT b.parent_branch FROM {branches} b WHERE b.session_id = :session_id AND b.branch = run.branch),
           (SELECT b.parent_depth FROM {branches} b WHERE b.session_id = :session_id AND b.branch = run.branch),
           run.min_depth
    FROM run
    WHERE run.branch IS NOT NULL AND run.last_depth >= run.min_depth
    """


_PATH = (
    "WITH RECURSIVE run (branch, last_depth, min_depth) AS ("
    + RUNS
    + """)
    SELECT n.node_id, n.parent_id, n.kind, n.body, n.frame_id, n.caused_by, n.digest, n.created_ms, n.position, n.depth,
           n.created_revision, n.tombstone_revision
    FROM run
    CROSS JOIN {lookup}{nodes} n
    WHERE n.session_id = :session_id AND n.branch = run.branch AND n.depth <= run.last_depth AND n.depth >= run.min_depth
    {end_lookup:n}
    ORDER BY n.depth
    """
)


def path_rows(session_id: str, leaf_id: str, last: int = WHOLE_PATH) -> Op[list[Row]]:
    """The ancestry of a leaf, root first: the forks on the path are walked, the runs between them are range scans."""
    return (yield from fetch(_PATH, session_id=session_id, leaf_id=leaf_id, last=last))


def full_rows(session_id: str) -> Op[list[Row]]:
    """Every node of the session in insertion order, tombstoned ones too."""
    return (
        yield from fetch(
            """
            SELECT node_id, parent_id, kind, body, frame_id, caused_by, digest, created_ms, position, depth,
                   created_revision, tombstone_revision
            FROM {nodes}
            WHERE session_id = :session_id
            ORDER BY position
            """,
            session_id=session_id,
        )
    )


def assemble_path(session_id: str, leaf_id: str, rows: Sequence[Row], *, last: int, at_revision: int | None) -> tuple[Node, ...]:
    """Verify the parent edges of a path and cut it below its last tombstone."""
    _verify_edges(session_id, leaf_id, rows, last)
    start = 0
    for index, row in enumerate(rows):
        if not visible(row, at_revision):
            start = index + 1
    return tuple(verified_nodes(session_id, rows[start:]))


def _verify_edges(session_id: str, leaf_id: str, rows: Sequence[Row], last: int) -> None:
    """Parent edges are authoritative: a path read through runs must agree with them, edge by edge."""
    if not rows or rows[-1][0] != leaf_id:
        raise Corrupt("nodes", f"{session_id!r}/{leaf_id!r}", "the leaf of the session is missing")
    for above, below in pairwise(rows):
        if below[1] != above[0] or below[9] != above[9] + 1:
            raise _no_ancestor(session_id, below)
    depth, parent_id = rows[0][9], rows[0][1]
    complete = depth == max(0, rows[-1][9] - last + 1)
    if not complete or (depth == 0) != (parent_id is None):
        raise _no_ancestor(session_id, rows[0])


def _no_ancestor(session_id: str, row: Row) -> Corrupt:
    return Corrupt("nodes", _name(session_id, row[0]), f"its ancestor {row[1]!r} is missing")


def verified(session_id: str, row: NodeRow) -> Node:
    """A node whose stored bytes match their digest."""
    return verified_nodes(session_id, [astuple(row)])[0]


def verified_nodes(session_id: str, rows: Iterable[Row]) -> list[Node]:
    """Nodes whose stored bytes match their digests. One loop over plain rows: more calls would take longer than the hashes."""
    nodes: list[Node] = []
    for node_id, parent_id, kind, body, frame_id, caused_by, stored, created_ms, position, _, _, tombstone_revision in rows:
        if body is None:
            _refuse_erased(session_id, node_id, tombstone_revision)
        actual = node_digest(node_id, parent_id, kind, body, frame_id, caused_by)
        if stored != actual:
            check(bytes(stored), actual, table="nodes", row=_name(session_id, node_id))
        try:
            value = quick_decode(body)
        except ValueError:
            value = decode(body, table="nodes", row=_name(session_id, node_id))
        nodes.append(
            Node(
                node_id=node_id,
                parent_id=parent_id,
                kind=kind,
                body=value,
                frame_id=frame_id,
                caused_by=None if caused_by is None else decode(caused_by, table="nodes", row=_name(session_id, node_id)),
                created_ms=created_ms,
                position=position,
            )
        )
    return nodes


def _name(session_id: str, node_id: str) -> str:
    # Made when it is needed: for a path of a thousand nodes it would take longer than reading them.
    return f"{session_id!r}/{node_id!r}"


def _refuse_erased(session_id: str, node_id: str, tombstone_revision: int | None) -> NoReturn:
    if tombstone_revision is not None:
        raise NotFound("node", node_id, within=session_id, retention=True)
    raise Corrupt("nodes", _name(session_id, node_id), "a live node has no body")
