"""The shape of a graph without all of its nodes: its runs, with the ends of each."""

from __future__ import annotations

from collections.abc import Sequence

from lash_store.model.graph import Run, RunNode, RunPage
from lash_store.ops.heads import look_session
from lash_store.ops.paths import NodeRow, verified
from lash_store.ops.statement import Op, Row, fetch


def runs(
    session_id: str, *, ends: int, limit: int, after: int, incarnation: int | None = None
) -> Op[tuple[list[Row], list[Row]]]:
    """A page of runs after a number, and the rows of their first and last live nodes: it reads no more of a larger graph."""
    yield from look_session(session_id, incarnation)
    found = yield from fetch(
        """
        SELECT b.branch, b.parent_branch,
               (SELECT p.node_id FROM {nodes} p
                WHERE p.session_id = b.session_id AND p.branch = b.parent_branch AND p.depth = b.parent_depth),
               b.first_depth, b.tip_depth,
               (SELECT COUNT(*) FROM {nodes} t
                WHERE t.session_id = b.session_id AND t.branch = b.branch AND t.tombstone_revision IS NOT NULL)
        FROM {branches} b
        WHERE b.session_id = :session_id AND b.branch > :after
        ORDER BY b.branch
        LIMIT :limit
        """,
        session_id=session_id,
        after=after,
        limit=limit,
    )
    if not found:
        return [], []
    return found, (yield from _ends(session_id, ends=ends, after=after, last=found[-1][0]))


def _ends(session_id: str, *, ends: int, after: int, last: int) -> Op[list[Row]]:
    """Two ranges of depth per run, so that the middle of a long one is not read."""
    return (
        yield from fetch(
            """
            SELECT n.node_id, n.parent_id, n.kind, n.body, n.frame_id, n.caused_by, n.digest, n.created_ms, n.position, n.depth,
                   n.created_revision, n.tombstone_revision, n.branch
            FROM {branches} b
            JOIN {nodes} n ON n.session_id = b.session_id AND n.branch = b.branch
                          AND n.depth >= b.first_depth AND n.depth < b.first_depth + CAST(:ends AS {int})
            WHERE b.session_id = :session_id AND b.branch > :after AND b.branch <= :last AND n.tombstone_revision IS NULL
            UNION ALL
            SELECT n.node_id, n.parent_id, n.kind, n.body, n.frame_id, n.caused_by, n.digest, n.created_ms, n.position, n.depth,
                   n.created_revision, n.tombstone_revision, n.branch
            FROM {branches} b
            JOIN {nodes} n ON n.session_id = b.session_id AND n.branch = b.branch
                          AND n.depth >= b.first_depth + CAST(:ends AS {int}) AND n.depth > b.tip_depth - CAST(:ends AS {int})
            WHERE b.session_id = :session_id AND b.branch > :after AND b.branch <= :last AND n.tombstone_revision IS NULL
            """,
            session_id=session_id,
            ends=ends,
            after=after,
            last=last,
        )
    )


def run_page(session_id: str, found: Sequence[Row], rows: Sequence[Row], *, limit: int) -> RunPage:
    """The rows as a page of runs, their nodes verified."""
    nodes: dict[int, list[RunNode]] = {}
    for row in sorted(rows, key=lambda row: (row[12], row[9])):
        nodes.setdefault(row[12], []).append(RunNode(depth=row[9], node=verified(session_id, NodeRow(*row[:12]))))
    runs = tuple(_run(row, tuple(nodes.get(row[0], ()))) for row in found)
    return RunPage(runs=runs, cursor=str(runs[-1].number) if len(runs) == limit else None)


def _run(row: Row, nodes: tuple[RunNode, ...]) -> Run:
    number, parent, parent_id, first_depth, tip_depth, hidden = row
    return Run(
        number=number,
        parent=parent,
        parent_id=parent_id,
        first_depth=first_depth,
        tip_depth=tip_depth,
        node_count=tip_depth - first_depth + 1 - hidden,
        hidden_count=hidden,
        nodes=nodes,
    )
