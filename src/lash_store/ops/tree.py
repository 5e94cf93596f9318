"""Looking around in the graph and clearing it: one node, children, branches, tombstones, vacuum."""

from __future__ import annotations

from collections.abc import Sequence

from lash_store.errors import InvalidArgument, NotFound
from lash_store.model.graph import Branch, BranchPage
from lash_store.model.maintenance import VacuumReport
from lash_store.ops.heads import lock_session, look_session
from lash_store.ops.paths import NodeRow
from lash_store.ops.statement import Op, Row, execute, execute_many, fetch, fetch_one


def node(session_id: str, node_id: str, incarnation: int | None = None) -> Op[NodeRow]:
    """One live node."""
    yield from look_session(session_id, incarnation)
    row = yield from fetch_one(
        """
        SELECT node_id, parent_id, kind, body, frame_id, caused_by, digest, created_ms, position, depth,
               created_revision, tombstone_revision
        FROM {nodes}
        WHERE session_id = :session_id AND node_id = :node_id AND tombstone_revision IS NULL
        """,
        session_id=session_id,
        node_id=node_id,
    )
    if row is None:
        raise NotFound("node", node_id, within=session_id)
    return NodeRow(*row)


def children(
    session_id: str, node_id: str | None, *, limit: int, after: int, incarnation: int | None = None
) -> Op[list[NodeRow]]:
    """Live children of a node (None: the roots) in insertion order, after a position."""
    yield from look_session(session_id, incarnation)
    if node_id is None:
        return (yield from _roots(session_id, limit=limit, after=after))
    place = yield from fetch_one(
        "SELECT branch, depth FROM {nodes} WHERE session_id = :session_id AND node_id = :node_id",
        session_id=session_id,
        node_id=node_id,
    )
    if place is None:
        raise NotFound("node", node_id, within=session_id)
    rows = yield from fetch(
        """
        SELECT n.node_id, n.parent_id, n.kind, n.body, n.frame_id, n.caused_by, n.digest, n.created_ms, n.position, n.depth,
               n.created_revision, n.tombstone_revision
        FROM {nodes} n
        WHERE n.session_id = :session_id AND n.depth = CAST(:depth AS {int}) + 1
          AND n.branch IN (
              SELECT CAST(:branch AS {int})
              UNION ALL
              SELECT b.branch FROM {branches} b
              WHERE b.session_id = :session_id AND b.parent_branch = :branch AND b.parent_depth = :depth)
          AND n.tombstone_revision IS NULL AND n.position > :after
        ORDER BY n.position
        LIMIT :limit
        """,
        session_id=session_id,
        branch=place[0],
        depth=place[1],
        after=after,
        limit=limit,
    )
    return [NodeRow(*row) for row in rows]


def _roots(session_id: str, *, limit: int, after: int) -> Op[list[NodeRow]]:
    rows = yield from fetch(
        """
        SELECT n.node_id, n.parent_id, n.kind, n.body, n.frame_id, n.caused_by, n.digest, n.created_ms, n.position, n.depth,
               n.created_revision, n.tombstone_revision
        FROM (SELECT b.branch FROM {branches} b WHERE b.session_id = :session_id AND b.parent_branch IS NULL) b
        CROSS JOIN {lookup}{nodes} n
        WHERE n.session_id = :session_id AND n.branch = b.branch AND n.depth = 0 AND n.tombstone_revision IS NULL
          AND n.position > :after {end_lookup:n}
        ORDER BY n.position
        LIMIT :limit
        """,
        session_id=session_id,
        after=after,
        limit=limit,
    )
    return [NodeRow(*row) for row in rows]


def branches(session_id: str, *, limit: int, after: int, incarnation: int | None = None) -> Op[BranchPage]:
    """The tips: the deepest live node of each run that no live branch continues."""
    head = yield from look_session(session_id, incarnation)
    rows = yield from fetch(
        """
        SELECT b.branch, n.node_id, n.depth, n.position,
               EXISTS (SELECT 1 FROM {branches} c JOIN {nodes} m ON m.session_id = c.session_id AND m.branch = c.branch
                       WHERE c.session_id = b.session_id AND c.parent_branch = b.branch AND c.parent_depth = n.depth
                         AND m.depth = c.first_depth AND m.tombstone_revision IS NULL)
        FROM {branches} b
        LEFT JOIN {nodes} n ON n.session_id = b.session_id AND n.branch = b.branch
                           AND n.depth = (SELECT MAX(x.depth) FROM {nodes} x
                                          WHERE x.session_id = b.session_id AND x.branch = b.branch
                                            AND x.tombstone_revision IS NULL)
        WHERE b.session_id = :session_id AND b.branch > :after
        ORDER BY b.branch
        LIMIT :limit
        """,
        session_id=session_id,
        after=after,
        limit=limit,
    )
    cursor = str(rows[-1][0]) if len(rows) == limit else None
    tips = tuple(_branch(row, head.leaf_id) for row in rows if row[1] is not None and not row[4])
    return BranchPage(branches=tips, cursor=cursor)


def _branch(row: Row, leaf_id: str | None) -> Branch:
    return Branch(leaf_id=row[1], depth=row[2], position=row[3], is_head=row[1] == leaf_id)


def number_cursor(cursor: object, *, start: int) -> int:
    """The number a page ended on."""
    if cursor is None:
        return start
    if not isinstance(cursor, str) or not cursor.isascii() or not cursor.isdigit() or len(cursor) > 18:
        raise InvalidArgument("cursor", "is not one this list returned")
    return int(cursor)


def tombstone(session_id: str, node_ids: Sequence[str], incarnation: int | None = None) -> Op[int]:
    """Hide nodes; unknown and hidden ones are ignored. The head does not move; a commit that writes the node revives it."""
    head = yield from lock_session(session_id, incarnation)
    if not node_ids:
        return 0
    count = yield from execute(
        """
        UPDATE {nodes} SET tombstone_revision = :revision
        WHERE session_id = :session_id AND node_id {any_text:node_ids} AND tombstone_revision IS NULL
        """,
        session_id=session_id,
        node_ids=sorted(set(node_ids)),
        # As of the present revision the node was alive; from the next one on it is not.
        revision=head.revision + 1,
    )
    changed = yield from execute(
        "UPDATE {sessions} SET node_count = node_count - CAST(:count AS {int}) WHERE session_id = :session_id",
        session_id=session_id,
        count=count,
    )
    assert changed == 1, "the locked session vanished"
    return count


def vacuum(session_id: str, limit: int, incarnation: int | None = None) -> Op[VacuumReport]:
    """Erase up to `limit` tombstoned bodies, and drop the rows no live node descends from; the head's leaf keeps its row.

    The revisions that showed what is erased cannot be shown again: the floor of the session's history rises past them.
    """
    head = yield from lock_session(session_id, incarnation)
    yield from _raise_floor(session_id, limit)
    erased = yield from execute(
        """
        UPDATE {nodes} SET body = NULL, caused_by = NULL
        WHERE session_id = :session_id AND node_id IN (
            SELECT node_id FROM {nodes}
            WHERE session_id = :session_id AND tombstone_revision IS NOT NULL AND body IS NOT NULL
            ORDER BY branch, depth LIMIT :limit)
        """,
        session_id=session_id,
        limit=limit,
    )
    yield from _drop_tails(session_id, head.leaf_id)
    left = yield from fetch_one(
        """
        SELECT COUNT(*), COUNT(body)
        FROM {nodes}
        WHERE session_id = :session_id AND tombstone_revision IS NOT NULL
        """,
        session_id=session_id,
    )
    assert left is not None
    return VacuumReport(erased=erased, kept_bodiless=left[0] - left[1], complete=left[1] == 0)


def _raise_floor(session_id: str, limit: int) -> Op[None]:
    yield from execute(
        """
        UPDATE {sessions} SET history_floor = (
            SELECT MAX(seen.floor) FROM (
                SELECT {sessions}.history_floor AS floor
                UNION ALL
                SELECT MAX(doomed.tombstone_revision) FROM (
                    SELECT n.tombstone_revision FROM {nodes} n
                    WHERE n.session_id = :session_id AND n.tombstone_revision IS NOT NULL AND n.body IS NOT NULL
                    ORDER BY n.branch, n.depth LIMIT :limit) AS doomed) AS seen)
        WHERE session_id = :session_id
        """,
        session_id=session_id,
        limit=limit,
    )


def _drop_tails(session_id: str, leaf_id: str | None) -> Op[None]:
    """Cut each run behind its last node that is live, has a body left, carries a branch, or is the head's leaf."""
    rows = yield from fetch(
        """
        SELECT b.branch, b.parent_branch, b.parent_depth, b.first_depth, b.tip_depth,
               (SELECT MAX(n.depth) FROM {nodes} n WHERE n.session_id = b.session_id AND n.branch = b.branch
                  AND (n.tombstone_revision IS NULL OR n.body IS NOT NULL OR n.node_id = :leaf_id))
        FROM {branches} b
        WHERE b.session_id = :session_id
        ORDER BY b.branch DESC
        """,
        session_id=session_id,
        leaf_id=leaf_id or "",
    )
    cuts = _cuts(rows)
    yield from execute_many(
        """
        DELETE FROM {nodes}
        WHERE session_id = :session_id
          AND branch IN (SELECT rows.branch FROM {rows(branch int, keep_depth int)})
          AND EXISTS (SELECT 1 FROM {rows(branch int, keep_depth int)}
                      WHERE rows.branch = {nodes}.branch AND {nodes}.depth > rows.keep_depth)
        """,
        cuts,
        session_id=session_id,
    )
    yield from execute_many(
        """
        UPDATE {branches} SET tip_depth = rows.keep_depth
        FROM {rows(branch int, keep_depth int)}
        WHERE {branches}.session_id = :session_id AND {branches}.branch = rows.branch
        """,
        cuts,
        session_id=session_id,
    )
    yield from execute(
        "DELETE FROM {branches} WHERE session_id = :session_id AND tip_depth < first_depth",
        session_id=session_id,
    )


def _cuts(rows: Sequence[Row]) -> list[dict[str, int]]:
    """Where each run ends once its dead tail is gone, children before parents (a child has the higher number)."""
    forks: dict[int, int] = {}
    cuts: list[dict[str, int]] = []
    for branch, parent_branch, parent_depth, first_depth, tip_depth, last_kept in rows:
        keep = max(forks.get(branch, -1), -1 if last_kept is None else last_kept)
        if keep < first_depth:
            keep = first_depth - 1
        elif parent_branch is not None:
            forks[parent_branch] = max(forks.get(parent_branch, -1), parent_depth)
        if keep < tip_depth:
            cuts.append({"branch": branch, "keep_depth": keep})
    return cuts
