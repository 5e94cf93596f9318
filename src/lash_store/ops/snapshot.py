"""Loading a session: one snapshot of rows, verified and assembled after the database is done.

A load of the present is one statement, one round trip: rows of six kinds in common columns, told apart by the first one.
They arrive in any order and are sorted here, which costs less than a sort of whole rows in the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from msgspec import Struct

from lash_store.errors import Corrupt, NotFound
from lash_store.model.graph import ActivePath, Node, ReadScope
from lash_store.model.session import Snapshot
from lash_store.model.usage import UsageTotal
from lash_store.ops import checkpoints, commits, frames, paths, usage
from lash_store.ops.checkpoints import Version
from lash_store.ops.heads import Head, check_live, look_session
from lash_store.ops.paths import RUNS, WHOLE_PATH
from lash_store.ops.statement import Op, Row, fetch


class Parts(Struct, frozen=True, kw_only=True):
    """The rows of one snapshot. Everything in it is of the same revision."""

    session_id: str
    incarnation: int
    revision: int
    at_revision: int | None
    leaf_id: str | None
    config_revision: int | None
    current_frame_id: str | None
    checkpoint_digest: bytes | None
    node_count: int
    rows: list[Row]  # of nodes, in the columns of NodeRow
    path: bool
    last: int
    config: Row | None
    frames: list[Row]
    versions: list[Version]
    usage: tuple[UsageTotal, ...]

    @property
    def size(self) -> int:
        """How much there is to verify and decode: the length of bodies, components and the states of frames."""
        bodies = sum([len(row[3] or "") for row in self.rows])
        return bodies + sum([version.size for version in self.versions]) + sum([len(row[2] or b"") for row in self.frames])


def load(
    session_id: str, scope: ReadScope, *, at_revision: int | None, checkpoint: bool, incarnation: int | None = None
) -> Op[Parts]:
    """Read everything a load returns; drivers run it in one read transaction."""
    if at_revision is None:
        return (yield from _load_now(session_id, scope, checkpoint, incarnation))
    head = yield from look_session(session_id, incarnation)
    if at_revision == head.revision == 0:
        return (yield from _load_now(session_id, scope, checkpoint, incarnation))
    return (yield from _load_at(head, scope, at_revision, checkpoint))


HEAD, NODE, CONFIG, FRAME, VERSION, USAGE = range(6)

# Every kind of row has these columns: its kind, six texts, bytes, six integers, bytes. A node needs all but the last two.
_PARTS = """
    SELECT 0, s.session_id, s.state, s.leaf_id, s.current_frame_id, CAST(NULL AS TEXT), CAST(NULL AS TEXT),
           s.checkpoint_digest, s.incarnation, s.revision, s.config_revision, s.node_count, CAST(NULL AS {int}),
           CAST(NULL AS {int}), CAST(NULL AS {bytes})
    FROM {sessions} s
    WHERE s.session_id = :session_id
    UNION ALL
    SELECT 2, c.body, NULL, NULL, NULL, NULL, NULL, c.digest, c.revision, NULL, NULL, NULL, NULL, NULL, NULL
    FROM {configs} c
    WHERE c.session_id = :session_id
      AND c.revision = (SELECT MAX(x.revision) FROM {configs} x WHERE x.session_id = :session_id AND x.revision <= (
                            SELECT s.revision FROM {sessions} s WHERE s.session_id = :session_id))
    UNION ALL
    SELECT 3, f.frame_id, f.body, NULL, NULL, NULL, NULL, f.digest, f.created_ms, f.ordinal, NULL, NULL, NULL, NULL, f.state
    FROM {frames} f
    WHERE f.session_id = :session_id AND f.until_revision IS NULL
    UNION ALL
    SELECT 4, v.component, NULL, NULL, NULL, NULL, NULL, v.digest, v.revision, v.full_revision, v.base_revision, v.size,
           NULL, NULL, v.frame
    FROM (SELECT c.component, c.full_revision, c.revision FROM {components} c
          WHERE c.session_id = :session_id AND c.digest IS NOT NULL AND CAST(:checkpoint AS {int}) = 1) c
    CROSS JOIN {lookup}{versions} v
    WHERE v.session_id = :session_id AND v.component = c.component AND v.revision >= c.full_revision
      AND v.revision <= c.revision {end_lookup:v}
    UNION ALL
    SELECT 5, u.source, u.model, NULL, NULL, NULL, NULL, NULL, u.input, u.output, u.cached_input, u.reasoning,
           u.first_revision, u.first_ordinal, NULL
    FROM {usage_totals} u
    WHERE u.session_id = :session_id AND u.input + u.output + u.cached_input + u.reasoning > 0
    UNION ALL
    SELECT 1, n.node_id, n.parent_id, n.kind, n.body, n.frame_id, n.caused_by, n.digest, n.created_ms, n.position, n.depth,
           n.created_revision, n.tombstone_revision, NULL, NULL
    """
_GRAPH = (
    _PARTS
    + """
    FROM {nodes} n
    WHERE n.session_id = :session_id AND n.tombstone_revision IS NULL
    """
)
_PATH = (
    "WITH RECURSIVE run (branch, last_depth, min_depth) AS ("
    + RUNS
    + ")"
    + _PARTS
    + """
    FROM run
    CROSS JOIN {lookup}{nodes} n
    WHERE n.session_id = :session_id AND n.branch = run.branch AND n.depth <= run.last_depth AND n.depth >= run.min_depth
    {end_lookup:n}
    """
)


def _load_now(session_id: str, scope: ReadScope, checkpoint: bool, incarnation: int | None) -> Op[Parts]:
    path = isinstance(scope, ActivePath)
    found = yield from (_path_now(session_id, scope, checkpoint) if path else _graph_now(session_id, checkpoint))
    kinds: tuple[list[Row], ...] = ([], [], [], [], [], [])
    for row in found:
        kinds[row[0]].append(row)
    head = _head(session_id, kinds[HEAD], incarnation)
    leaf_id, last = _leaf_and_last(scope, head[3])
    if not kinds[NODE] and isinstance(scope, ActivePath) and scope.leaf is not None:
        raise NotFound("node", scope.leaf, within=session_id)
    return Parts(
        session_id=session_id,
        incarnation=head[8],
        revision=head[9],
        at_revision=None,
        leaf_id=leaf_id,
        config_revision=head[10],
        current_frame_id=head[4],
        checkpoint_digest=head[7],
        node_count=head[11],
        rows=_node_rows(kinds[NODE], by_depth=path),
        path=path,
        last=last,
        config=next(((row[8], row[1], row[7]) for row in kinds[CONFIG]), None),
        frames=[(row[1], row[2], row[14], row[7], row[8], row[9]) for row in sorted(kinds[FRAME], key=itemgetter(9))],
        versions=_versions(kinds[VERSION]),
        usage=tuple(usage.total((row[1], row[2], *row[8:12])) for row in sorted(kinds[USAGE], key=itemgetter(12, 13))),
    )


def _graph_now(session_id: str, checkpoint: bool) -> Op[list[Row]]:
    return (yield from fetch(_GRAPH, session_id=session_id, checkpoint=int(checkpoint)))


def _path_now(session_id: str, scope: ReadScope, checkpoint: bool) -> Op[list[Row]]:
    leaf_id, last = _leaf_and_last(scope, None)
    return (yield from fetch(_PATH, session_id=session_id, leaf_id=leaf_id, last=last, checkpoint=int(checkpoint)))


def _head(session_id: str, rows: Sequence[Row], incarnation: int | None) -> Row:
    if not rows:
        raise NotFound("session", session_id)
    check_live(session_id, state=rows[0][2], found=rows[0][8], meant=incarnation)
    return rows[0]


def _node_rows(rows: list[Row], *, by_depth: bool) -> list[Row]:
    rows.sort(key=itemgetter(10) if by_depth else itemgetter(9))
    return [row[1:13] for row in rows]


def _versions(rows: list[Row]) -> list[Version]:
    rows.sort(key=itemgetter(1, 8))
    return [Version(row[1], row[8], row[9], row[10], row[7], row[11], row[14]) for row in rows]


def _load_at(head: Head, scope: ReadScope, revision: int, checkpoint: bool) -> Op[Parts]:
    commits.check_at_revision(head, revision)
    record = yield from commits.record_at(head.session_id, revision)
    if record is None and revision != head.history_floor:
        raise Corrupt("commits", f"{head.session_id!r}@{revision}", "the row is missing")
    leaf_id, last = _leaf_and_last(scope, None if record is None else record.leaf_id)
    path = isinstance(scope, ActivePath)
    rows = yield from (_path(head, scope, leaf_id, last) if path else paths.full_rows(head.session_id))
    digest = None if record is None or record.checkpoint_digest is None else bytes.fromhex(record.checkpoint_digest)
    return Parts(
        session_id=head.session_id,
        incarnation=head.incarnation,
        revision=revision,
        at_revision=revision,
        leaf_id=leaf_id,
        config_revision=None,
        current_frame_id=None if record is None else record.current_frame_id,
        checkpoint_digest=digest,
        node_count=head.node_count,
        rows=rows,
        path=path,
        last=last,
        config=(yield from frames.config_at(head.session_id, revision)),
        frames=(yield from frames.frames_at(head.session_id, revision)),
        versions=(yield from checkpoints.chains_at(head.session_id, revision)) if checkpoint else [],
        usage=(yield from usage.totals_at(head.session_id, revision)),
    )


def _leaf_and_last(scope: ReadScope, head_leaf_id: str | None) -> tuple[str | None, int]:
    if not isinstance(scope, ActivePath):
        return head_leaf_id, WHOLE_PATH
    leaf_id = head_leaf_id if scope.leaf is None else scope.leaf
    return leaf_id, WHOLE_PATH if scope.last is None else scope.last


def _path(head: Head, scope: ReadScope, leaf_id: str | None, last: int) -> Op[list[Row]]:
    if leaf_id is None:
        return []
    rows = yield from paths.path_rows(head.session_id, leaf_id, last)
    if not rows and isinstance(scope, ActivePath) and scope.leaf is not None:
        raise NotFound("node", scope.leaf, within=head.session_id)
    return rows


def assemble(parts: Parts, *, checkpoint: bool) -> Snapshot:
    """Verify every digest and edge, and decode: pure work, off the database's threads."""
    session_id = parts.session_id
    components = checkpoints.restore(session_id, parts.versions)
    if checkpoint:
        _check_complete(parts, components)
    return Snapshot(
        session_id=session_id,
        incarnation=parts.incarnation,
        revision=parts.revision,
        leaf_id=parts.leaf_id,
        nodes=_nodes(parts),
        config=frames.verified_config(session_id, parts.config, parts.config_revision),
        frames=frames.verified_frames(session_id, parts.frames),
        current_frame_id=parts.current_frame_id,
        checkpoint=components,
        checkpoint_digest=None if parts.checkpoint_digest is None else bytes(parts.checkpoint_digest).hex(),
        usage=parts.usage,
    )


def _check_complete(parts: Parts, components: dict[str, bytes]) -> None:
    """The components that came out must be the checkpoint the head names: a lost row is not a smaller checkpoint."""
    last = {version.component: version for version in parts.versions}
    found = {
        name: checkpoints.Component(name, v.revision, v.full_revision, 1, None if v.digest is None else bytes(v.digest))
        for name, v in last.items()
        if name in components
    }
    expected = None if parts.checkpoint_digest is None else bytes(parts.checkpoint_digest)
    if checkpoints.checkpoint_digest(found) != expected:
        raise Corrupt("versions", f"{parts.session_id!r}@{parts.revision}", "a component of the checkpoint is missing")


def _nodes(parts: Parts) -> tuple[Node, ...]:
    session_id = parts.session_id
    if not parts.path and parts.at_revision is None and len(parts.rows) != parts.node_count:
        why = f"{len(parts.rows)} live nodes are there, the head counts {parts.node_count}"
        raise Corrupt("nodes", repr(session_id), why)
    if not parts.path:
        visible = [row for row in parts.rows if paths.visible(row, parts.at_revision)]
        return tuple(paths.verified_nodes(session_id, visible))
    if parts.leaf_id is None:
        return ()
    return paths.assemble_path(session_id, parts.leaf_id, parts.rows, last=parts.last, at_revision=parts.at_revision)
