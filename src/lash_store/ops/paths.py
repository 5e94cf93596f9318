"""Reading the graph back: rows of a path or of a whole session, and the verification of every digest and edge."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NoReturn

from msgspec import Struct

from lash_store.encode import check, decode, quick_decode
from lash_store.errors import Corrupt, NotFound
from lash_store.model.graph import Node
from lash_store.ops.graph import node_digest
from lash_store.ops.statement import Op, fetch

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

    def visible(self, at_revision: int | None) -> bool:
        """Whether the node is live now, or was as of a commit."""
        if at_revision is None:
            return self.tombstone_revision is None
        return self.created_revision <= at_revision and (self.tombstone_revision is None or self.tombstone_revision > at_revision)


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


def path_rows(session_id: str, leaf_id: str, last: int = WHOLE_PATH) -> Op[list[NodeRow]]:
    """The ancestry of a leaf, root first: the forks on the path are walked, the runs between them are range scans."""
    rows = yield from fetch(_PATH, session_id=session_id, leaf_id=leaf_id, last=last)
    return [NodeRow(*row) for row in rows]


def full_rows(session_id: str) -> Op[list[NodeRow]]:
    """Every node of the session in insertion order, tombstoned ones too."""
    rows = yield from fetch(
        """
        SELECT node_id, parent_id, kind, body, frame_id, caused_by, digest, created_ms, position, depth,
               created_revision, tombstone_revision
        FROM {nodes}
        WHERE session_id = :session_id
        ORDER BY position
        """,
        session_id=session_id,
    )
    return [NodeRow(*row) for row in rows]


def assemble_path(
    session_id: str, leaf_id: str, rows: Sequence[NodeRow], *, last: int, at_revision: int | None
) -> tuple[Node, ...]:
    """Verify the parent edges of a path and cut it below its last tombstone."""
    _verify_edges(session_id, leaf_id, rows, last)
    start = 0
    for index, row in enumerate(rows):
        if not row.visible(at_revision):
            start = index + 1
    return tuple(verified(session_id, row) for row in rows[start:])


def _verify_edges(session_id: str, leaf_id: str, rows: Sequence[NodeRow], last: int) -> None:
    """Parent edges are authoritative: a path read through runs must agree with them, edge by edge."""
    if not rows or rows[-1].node_id != leaf_id:
        raise Corrupt("nodes", f"{session_id!r}/{leaf_id!r}", "the leaf of the session is missing")
    for above, below in pairwise(rows):
        if below.parent_id != above.node_id or below.depth != above.depth + 1:
            raise Corrupt("nodes", f"{session_id!r}/{below.node_id!r}", f"its ancestor {below.parent_id!r} is missing")
    first = rows[0]
    complete = first.depth == max(0, rows[-1].depth - last + 1)
    if not complete or (first.depth == 0) != (first.parent_id is None):
        raise Corrupt("nodes", f"{session_id!r}/{first.node_id!r}", f"its ancestor {first.parent_id!r} is missing")


def verified(session_id: str, row: NodeRow) -> Node:
    """A node whose stored bytes match their digest."""
    body, caused_by = row.body, row.caused_by
    if body is None:
        _refuse_erased(session_id, row)
    actual = node_digest(row.node_id, row.parent_id, kind=row.kind, body=body, frame_id=row.frame_id, caused_by=caused_by)
    if row.digest != actual:
        check(bytes(row.digest), actual, table="nodes", row=_name(session_id, row))
    return Node(
        node_id=row.node_id,
        parent_id=row.parent_id,
        kind=row.kind,
        body=_decoded(session_id, row, body),
        frame_id=row.frame_id,
        caused_by=None if caused_by is None else _decoded(session_id, row, caused_by),
        created_ms=row.created_ms,
        position=row.position,
    )


def _decoded(session_id: str, row: NodeRow, text: str) -> Any:
    try:
        return quick_decode(text)
    except ValueError:
        return decode(text, table="nodes", row=_name(session_id, row))


def _name(session_id: str, row: NodeRow) -> str:
    # Made when it is needed: for a path of a thousand nodes it would take longer than reading them.
    return f"{session_id!r}/{row.node_id!r}"


def _refuse_erased(session_id: str, row: NodeRow) -> NoReturn:
    if row.tombstone_revision is not None:
        raise NotFound("node", row.node_id, within=session_id, retention=True)
    raise Corrupt("nodes", _name(session_id, row), "a live node has no body")
