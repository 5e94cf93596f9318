"""Sessions: create, commit, load, look around, fork, follow, delete."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from lash_store.errors import Busy, InvalidArgument, Unstorable
from lash_store.model.commit import Commit, CommitPage, CommitRecord, Receipt
from lash_store.model.graph import FULL, ActivePath, BranchPage, FullGraph, Node, NodePage, ReadScope, RunPage
from lash_store.model.limits import COLLECT_ROWS_PER_TRANSACTION
from lash_store.model.maintenance import VacuumReport
from lash_store.model.session import Component, Deletion, Relation, Session, SessionPage, Snapshot
from lash_store.model.usage import Usage, UsageTotal
from lash_store.ops import (
    checkpoints,
    commits,
    forks,
    grants,
    outline,
    paths,
    sessions,
    shortcuts,
    snapshot,
    tree,
    triggers,
    usage,
)
from lash_store.ops.checkpoints import NeedsFullFrame, PreparedComponent
from lash_store.ops.forks import Fork, PointMoved
from lash_store.ops.prepare import PreparedCommit, prepare_commit
from lash_store.ops.sessions import MetaChange, NewSession, Order
from lash_store.ops.statement import alone
from lash_store.store.keys import keyed
from lash_store.store.runtime import AsyncRuntime, AsyncTransactionRuntime
from lash_store.store.weight import HEAVY_BYTES, is_heavy

# One statement each, and one round trip.
look, load_now = alone(sessions.get), alone(snapshot.load)

FORK_LOOKS_MAX = 64  # times a fork looks again because retention passed its point


class AsyncSessions:
    """What the store knows of sessions. With an incarnation, every call refuses any other one."""

    def __init__(self, runtime: AsyncRuntime | AsyncTransactionRuntime, incarnation: int | None = None) -> None:
        self._runtime = runtime
        self._encoder = runtime.encoder
        self._incarnation = incarnation

    # --- life -----------------------------------------------------------------------------------------------------------

    async def create(
        self,
        session_id: str,
        *,
        name: str | None = None,
        model: str | None = None,
        cwd: str | None = None,
        relation: Relation | None = None,
        config: Any = UNSET,
    ) -> Session:
        """Create a session, or return the one that exists, unchanged. A deleted id starts its next incarnation."""
        new = self._new_session(session_id, name=name, model=model, cwd=cwd, relation=relation or Relation(), config=config)
        created = await self._runtime.write(sessions.create, new)
        while created is None:
            await purge(self._runtime, new.session_id)
            created = await self._runtime.write(sessions.create, new)
        return created

    def _new_session(
        self, session_id: str, *, name: str | None, model: str | None, cwd: str | None, relation: Relation, config: Any = UNSET
    ) -> NewSession:
        encoder = self._encoder
        session_id = encoder.id(session_id, "session_id")
        if not isinstance(relation, Relation):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
            raise Unstorable("relation", f"must be a Relation, got {type(relation).__name__}")
        cause = relation.caused_by
        return NewSession(
            session_id=session_id,
            name=session_id if name is None else encoder.text(name, "name"),
            model=encoder.optional_text(model, "model"),
            cwd=encoder.optional_text(cwd, "cwd"),
            parent_session_id=encoder.optional_id(relation.parent_session_id, "relation.parent_session_id"),
            caused_by=None if cause is None else encoder.json(cause, "relation.caused_by"),
            config=UNSET if config is UNSET else encoder.json(config, "config"),
        )

    async def get(self, session_id: str) -> Session:
        """Identity, metadata and head of a session."""
        return await self._runtime.read(look, self._id(session_id), self._incarnation)

    async def list(
        self, *, order: Order = "updated", parent: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> SessionPage:
        """A page of sessions: newest first, or by id; of one parent, or of all."""
        if order not in ("updated", "id"):
            raise InvalidArgument("order", 'must be "updated" or "id"')
        parent = self._encoder.optional_id(parent, "parent")
        after = None if cursor is None else self._encoder.text(cursor, "cursor")
        return await self._runtime.read(sessions.page, order=order, parent=parent, limit=self._limit(limit), cursor=after)

    async def update_meta(
        self,
        session_id: str,
        *,
        name: str | UnsetType = UNSET,
        model: str | None | UnsetType = UNSET,
        cwd: str | None | UnsetType = UNSET,
    ) -> Session:
        """Change name, model or cwd; what is not given stays. The head does not move."""
        change = MetaChange(
            name=UNSET if isinstance(name, UnsetType) else self._encoder.text(name, "name"),
            model=UNSET if isinstance(model, UnsetType) else self._encoder.optional_text(model, "model"),
            cwd=UNSET if isinstance(cwd, UnsetType) else self._encoder.optional_text(cwd, "cwd"),
        )
        return await self._runtime.write(sessions.update_meta, self._id(session_id), change, self._incarnation)

    async def delete(self, session_id: str) -> Deletion:
        """Fence the session at once, then remove its rows in bounded batches; `collect` resumes an interrupted removal."""
        session_id = self._id(session_id)
        existed = await self._runtime.write(sessions.delete, session_id, self._incarnation)
        self._runtime.held.drop(session_id)
        if not existed:
            return Deletion(session_id=session_id, existed=False, purged_rows=0, complete=True)
        return await purge(self._runtime, session_id)

    # --- commit ---------------------------------------------------------------------------------------------------------

    async def commit(self, session_id: str, commit: Commit) -> Receipt:
        """Apply a turn: all or nothing, once per turn id. A retry with the same content returns the first receipt."""
        if _is_large(commit):
            prepared = await self._runtime.offload(prepare_commit, session_id, commit, self._encoder, self._incarnation)
        else:
            prepared = prepare_commit(session_id, commit, self._encoder, self._incarnation)
        with keyed(prepared.turn_id):
            try:
                receipt = await self._apply(prepared, full=False)
            except NeedsFullFrame:
                receipt = await self._apply(prepared, full=True)
        return receipt

    async def _apply(self, prepared: PreparedCommit, *, full: bool) -> Receipt:
        components = await self._compressed(prepared.session_id, prepared.checkpoint, full=full, digests=prepared.digests)
        receipt = await self._runtime.write(
            shortcuts.commit,
            replace(prepared, components=components),
            retention_ms=self._runtime.settled_key_retention_ms,
            assumed=self._runtime.held.left(prepared.session_id),
        )
        if not receipt.replayed:
            self._hold(prepared, components)
            self._runtime.held.put_left(receipt)
        return receipt

    async def _compressed(
        self,
        session_id: str,
        checkpoint: Mapping[str, bytes | None],
        *,
        full: bool,
        digests: Mapping[str, bytes] | None = None,
    ) -> tuple[PreparedComponent, ...]:
        held = self._runtime.held
        if not is_heavy(*checkpoint.values()):
            return checkpoints.prepare(session_id, checkpoint, held, full=full, digests=digests)
        return await self._runtime.offload(checkpoints.prepare, session_id, checkpoint, held, full=full, digests=digests)

    def _hold(self, prepared: PreparedCommit, components: Sequence[PreparedComponent]) -> None:
        """Remember the bytes just stored: the next commit of this process sends only what changed."""
        held = self._runtime.held
        for new in components:
            data = prepared.checkpoint[new.component]
            if data is None or new.digest is None:
                held.drop(prepared.session_id, new.component)
            else:
                held.put(prepared.session_id, new.component, digest=new.digest, data=data, chain=new.chain)

    async def receipt(self, session_id: str, turn_id: str) -> Receipt:
        """The receipt of a committed turn."""
        turn_id = self._encoder.id(turn_id, "turn_id")
        return await self._runtime.read(commits.receipt, self._id(session_id), turn_id, self._incarnation)

    async def commits(self, session_id: str, *, after: int = 0, limit: int = 100) -> CommitPage:
        """The history, oldest first, after a revision."""
        after = self._encoder.counter(after, "after")
        return await self._runtime.read(
            commits.page, self._id(session_id), after=after, limit=self._limit(limit), incarnation=self._incarnation
        )

    async def follow(self, session_id: str, *, after: int | None = None) -> AsyncIterator[CommitRecord]:
        """New commits as they happen, in this process or another; `after` None starts at the present revision."""
        first = await self.get(session_id)
        seen = first.revision if after is None else self._encoder.counter(after, "after")
        same = AsyncSessions(self._runtime, first.incarnation)
        with self._runtime.subscribe("commits", session_id, seen) as subscription:
            while True:
                page = await same.commits(session_id, after=seen)
                for record in page.commits:
                    seen = subscription.seen = record.revision
                    yield record
                if page.cursor is None:
                    await subscription.wait(None)

    # --- load -----------------------------------------------------------------------------------------------------------

    async def load(
        self, session_id: str, scope: ReadScope = FULL, *, at_revision: int | None = None, checkpoint: bool = True
    ) -> Snapshot:
        """One consistent look: nodes in scope, config, frames, checkpoint and usage, now or as of a commit."""
        session_id = self._id(session_id)
        revision = None if at_revision is None else self._encoder.counter(at_revision, "at_revision")
        parts = await self._runtime.read(
            snapshot.load if revision is not None else load_now,
            session_id,
            self._scope(scope),
            at_revision=revision,
            checkpoint=checkpoint,
            incarnation=self._incarnation,
        )
        if parts.size >= HEAVY_BYTES:
            loaded = await self._runtime.offload(snapshot.assemble, parts, checkpoint=checkpoint)
        else:
            loaded = snapshot.assemble(parts, checkpoint=checkpoint)
        if revision is None:
            self._remember(session_id, loaded, parts.versions)
        return loaded

    def _remember(self, session_id: str, loaded: Snapshot, versions: Sequence[checkpoints.Version]) -> None:
        current = {version.component: version for version in versions}
        chains = Counter(version.component for version in versions)
        for name, version in current.items():
            if version.digest is not None:
                content, data = bytes(version.digest), loaded.checkpoint[name]
                self._runtime.held.put(session_id, name, digest=content, data=data, chain=chains[name])

    def _scope(self, scope: object) -> ReadScope:
        if isinstance(scope, FullGraph):
            return scope
        if not isinstance(scope, ActivePath):
            raise Unstorable("scope", "must be FULL or active_path(...)")
        last = None if scope.last is None else self._encoder.counter(scope.last, "scope.last", minimum=1)
        return ActivePath(leaf=self._encoder.optional_id(scope.leaf, "scope.leaf"), last=last)

    async def node(self, session_id: str, node_id: str) -> Node:
        """One live node."""
        session_id, node_id = self._id(session_id), self._encoder.id(node_id, "node_id")
        row = await self._runtime.read(tree.node, session_id, node_id, self._incarnation)
        return paths.verified(session_id, row)

    async def children(self, session_id: str, node_id: str | None, *, limit: int = 100, cursor: str | None = None) -> NodePage:
        """Live children of a node in insertion order; of None, the roots."""
        session_id, limit = self._id(session_id), self._limit(limit)
        rows = await self._runtime.read(
            tree.children,
            session_id,
            self._encoder.optional_id(node_id, "node_id"),
            limit=limit,
            after=tree.number_cursor(cursor, start=-1),
            incarnation=self._incarnation,
        )
        nodes = tuple(paths.verified(session_id, row) for row in rows)
        return NodePage(nodes=nodes, cursor=str(nodes[-1].position) if len(nodes) == limit else None)

    async def branches(self, session_id: str, *, limit: int = 100, cursor: str | None = None) -> BranchPage:
        """The tips of the graph."""
        return await self._runtime.read(
            tree.branches,
            self._id(session_id),
            limit=self._limit(limit),
            after=tree.number_cursor(cursor, start=-1),
            incarnation=self._incarnation,
        )

    async def runs(self, session_id: str, *, ends: int = 3, limit: int = 100, cursor: str | None = None) -> RunPage:
        """The shape of the graph: its runs by number, each with its first and last `ends` nodes."""
        session_id, limit = self._id(session_id), self._limit(limit)
        found, rows = await self._runtime.read(
            outline.runs,
            session_id,
            ends=self._encoder.counter(ends, "ends", maximum=self._runtime.limits.page_rows, limit="page_rows"),
            limit=limit,
            after=tree.number_cursor(cursor, start=-1),
            incarnation=self._incarnation,
        )
        return outline.run_page(session_id, found, rows, limit=limit)

    async def components(self, session_id: str) -> tuple[Component, ...]:
        """The components of the present checkpoint by name, without their bytes."""
        session_id = self._id(session_id)
        rows = await self._runtime.read(checkpoints.listed, session_id, self._incarnation)
        return tuple(checkpoints.component(session_id, row) for row in rows)

    # --- change the graph -------------------------------------------------------------------------------------------------

    async def tombstone(self, session_id: str, node_ids: Sequence[str]) -> int:
        """Hide nodes until a commit writes them again or vacuum erases them; how many were hidden by this call."""
        given = self._encoder.items(node_ids, "node_ids")
        self._encoder.counter(len(given), "node_ids", maximum=self._runtime.limits.commit_rows, limit="commit_rows")
        ids = [self._encoder.id(node_id, f"node_ids[{i}]") for i, node_id in enumerate(given)]
        return await self._runtime.write(tree.tombstone, self._id(session_id), ids, self._incarnation)

    async def vacuum(self, session_id: str) -> VacuumReport:
        """Erase what is tombstoned, in bounded batches."""
        session_id = self._id(session_id)
        erased = 0
        while True:
            report = await self._runtime.write(tree.vacuum, session_id, COLLECT_ROWS_PER_TRANSACTION, self._incarnation)
            erased += report.erased
            if report.complete:
                return VacuumReport(erased=erased, kept_bodiless=report.kept_bodiless, complete=True)

    async def fork(
        self,
        source: str,
        new_id: str,
        *,
        at: str | int | None = None,
        name: str | None = None,
        model: str | None = None,
        cwd: str | None = None,
    ) -> Session:
        """A new session over the path to a node (`at` str), a commit (`at` int) or the head, with its checkpoint.

        The state of a node is that of the last commit that ended on it; a node no commit ended on brings none.
        """
        source = self._id(source)
        where = at if at is None else self._encoder.id(at, "at") if isinstance(at, str) else self._encoder.counter(at, "at")
        for _ in range(FORK_LOOKS_MAX):
            point = await self._runtime.read(forks.find_point, source, where, self._incarnation)
            cause = None if point.leaf_id is None else {"type": "session_node", "session_id": source, "node_id": point.leaf_id}
            relation = Relation(parent_session_id=source, caused_by=cause)
            new = self._new_session(new_id, name=name, model=model, cwd=cwd, relation=relation)
            restored = await self._runtime.offload(checkpoints.restore, source, point.versions)
            components = await self._compressed(new.session_id, restored, full=True)
            try:
                return await self._runtime.write(forks.fork, Fork(point=point, new=new, components=components))
            except PointMoved:
                continue
        raise Busy(f"retention kept passing the point of session {source!r} to fork at")

    # --- usage ------------------------------------------------------------------------------------------------------------

    async def usage(self, session_id: str) -> tuple[UsageTotal, ...]:
        """Totals by (source, model) in the order they were first seen."""
        return await self._runtime.read(usage.totals, self._id(session_id), self._incarnation)

    async def usage_of(self, session_id: str, revision: int) -> tuple[Usage, ...]:
        """The entries one commit recorded."""
        revision = self._encoder.counter(revision, "revision")
        return await self._runtime.read(usage.entries_of, self._id(session_id), revision, self._incarnation)

    def _id(self, session_id: str) -> str:
        return self._encoder.id(session_id, "session_id")

    def _limit(self, limit: int) -> int:
        return self._encoder.counter(limit, "limit", minimum=1, maximum=self._runtime.limits.page_rows, limit="page_rows")


async def purge(runtime: AsyncRuntime | AsyncTransactionRuntime, session_id: str) -> Deletion:
    """Remove what a deleted session held and owned, in bounded steps; safe to repeat, and beside another purge of it."""
    revoked, orphaned, preserved, rows = 0, set[str](), set[str](), 0
    complete = False
    while not complete:
        released = await runtime.write(grants.release_session, session_id, COLLECT_ROWS_PER_TRANSACTION)
        revoked, complete = revoked + released.revoked, released.complete
        orphaned.update(released.orphaned)
        preserved.update(released.preserved)
    complete = False
    while not complete:
        removed = await runtime.write(triggers.delete_for_session_step, session_id, COLLECT_ROWS_PER_TRANSACTION, purging=True)
        rows, complete = rows + removed.subscriptions, removed.complete
    complete = False
    while not complete:
        step = await runtime.write(sessions.purge_step, session_id, COLLECT_ROWS_PER_TRANSACTION)
        rows, complete = rows + step.rows, step.complete
    return Deletion(
        session_id=session_id,
        existed=True,
        purged_rows=rows,
        complete=True,
        revoked_grants=revoked,
        orphaned=tuple(sorted(orphaned)),
        preserved=tuple(sorted(preserved)),
    )


def _is_large(commit: object) -> bool:
    """Whether encoding would hold up the event loop. What is no commit at all is refused where it is prepared."""
    if not isinstance(commit, Commit):
        return False
    parts: list[object] = [commit.checkpoint, commit.config, commit.usage]
    lists = (
        (getattr(commit.graph, "nodes", ()), ("body",)),
        (commit.enqueues, ("payloads",)),
        (commit.frames, ("body", "state")),
    )
    for things, names in lists:
        if things and isinstance(things, list | tuple):
            parts += [getattr(thing, name, None) for thing in things for name in names]
    return is_heavy(*parts)
