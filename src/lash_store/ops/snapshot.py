"""Loading a session: one snapshot of rows, verified and assembled after the database is done."""

from __future__ import annotations

from msgspec import Struct

from lash_store.errors import Corrupt, NotFound
from lash_store.model.graph import ActivePath, Node, ReadScope
from lash_store.model.session import Snapshot
from lash_store.model.usage import UsageTotal
from lash_store.ops import checkpoints, commits, frames, paths, usage
from lash_store.ops.checkpoints import Version
from lash_store.ops.heads import Head, look_session
from lash_store.ops.paths import WHOLE_PATH, NodeRow
from lash_store.ops.statement import Op, Row


class Parts(Struct, frozen=True, kw_only=True):
    """The rows of one snapshot. Everything in it is of the same revision."""

    head: Head
    revision: int
    at_revision: int | None
    leaf_id: str | None
    current_frame_id: str | None
    checkpoint_digest: bytes | None
    rows: list[NodeRow]
    path: bool
    last: int
    config: Row | None
    frames: list[Row]
    versions: list[Version]
    usage: tuple[UsageTotal, ...]


def load(
    session_id: str, scope: ReadScope, *, at_revision: int | None, checkpoint: bool, incarnation: int | None = None
) -> Op[Parts]:
    """Read everything a load returns; drivers run it in one read transaction."""
    head = yield from look_session(session_id, incarnation)
    if at_revision is None or at_revision == head.revision == 0:
        return (yield from _load_now(head, scope, checkpoint))
    return (yield from _load_at(head, scope, at_revision, checkpoint))


def _load_now(head: Head, scope: ReadScope, checkpoint: bool) -> Op[Parts]:
    leaf_id, last = _leaf_and_last(scope, head.leaf_id)
    path = isinstance(scope, ActivePath)
    rows = yield from (_path(head, scope, leaf_id, last) if path else paths.live_rows(head.session_id))
    return Parts(
        head=head,
        revision=head.revision,
        at_revision=None,
        leaf_id=leaf_id,
        current_frame_id=head.current_frame_id,
        checkpoint_digest=head.checkpoint_digest,
        rows=rows,
        path=path,
        last=last,
        config=(yield from frames.config_at(head.session_id, head.revision)),
        frames=(yield from frames.current_frames(head.session_id)),
        versions=(yield from checkpoints.chains(head.session_id)) if checkpoint else [],
        usage=(yield from usage.read_totals(head.session_id)),
    )


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
        head=head,
        revision=revision,
        at_revision=revision,
        leaf_id=leaf_id,
        current_frame_id=None if record is None else record.current_frame_id,
        checkpoint_digest=digest,
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


def _path(head: Head, scope: ReadScope, leaf_id: str | None, last: int) -> Op[list[NodeRow]]:
    if leaf_id is None:
        return []
    rows = yield from paths.path_rows(head.session_id, leaf_id, last)
    if not rows and isinstance(scope, ActivePath) and scope.leaf is not None:
        raise NotFound("node", scope.leaf, within=head.session_id)
    return rows


def assemble(parts: Parts, *, checkpoint: bool) -> Snapshot:
    """Verify every digest and edge, and decode: pure work, off the database's threads."""
    session_id = parts.head.session_id
    components = checkpoints.restore(session_id, parts.versions)
    if checkpoint:
        _check_complete(parts, components)
    return Snapshot(
        session_id=session_id,
        incarnation=parts.head.incarnation,
        revision=parts.revision,
        leaf_id=parts.leaf_id,
        nodes=_nodes(parts),
        config=frames.verified_config(
            session_id, parts.config, parts.head.config_revision if parts.at_revision is None else None
        ),
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
        raise Corrupt("versions", f"{parts.head.session_id!r}@{parts.revision}", "a component of the checkpoint is missing")


def _nodes(parts: Parts) -> tuple[Node, ...]:
    session_id = parts.head.session_id
    if not parts.path and parts.at_revision is None and len(parts.rows) != parts.head.node_count:
        why = f"{len(parts.rows)} live nodes are there, the head counts {parts.head.node_count}"
        raise Corrupt("nodes", repr(session_id), why)
    if not parts.path:
        return tuple(paths.verified(session_id, row) for row in parts.rows if row.visible(parts.at_revision))
    if parts.leaf_id is None:
        return ()
    return paths.assemble_path(session_id, parts.leaf_id, parts.rows, last=parts.last, at_revision=parts.at_revision)
