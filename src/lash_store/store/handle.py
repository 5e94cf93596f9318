"""A bound handle: one session, and the incarnation it first saw. Nothing it does can reach another session."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from lash_store.blobs.spool import Source
from lash_store.errors import NotFound, SessionMismatch
from lash_store.model.attachment import AttachmentEntry, AttachmentPage, AttachmentRef
from lash_store.model.commit import Commit, CommitPage, CommitRecord, Receipt
from lash_store.model.graph import FULL, BranchPage, Node, NodePage, ReadScope, RunPage
from lash_store.model.maintenance import VacuumReport
from lash_store.model.queue import Batch, BatchPage, Boundary, Claim, Completion, Delivery, Depth, Slot
from lash_store.model.session import Component, Deletion, Relation, Session, Snapshot
from lash_store.model.usage import Usage, UsageTotal
from lash_store.store.attachments import AsyncAttachments
from lash_store.store.queue import AsyncQueue
from lash_store.store.runtime import AsyncRuntime, AsyncTransactionRuntime
from lash_store.store.session_processes import AsyncSessionProcesses
from lash_store.store.sessions import AsyncSessions


class AsyncSessionHandle:
    """The verbs of the store for one session. Once it has met an incarnation, any other one is SessionDeleted."""

    def __init__(self, runtime: AsyncRuntime | AsyncTransactionRuntime, session_id: str) -> None:
        self.session_id = runtime.encoder.id(session_id, "session_id")
        self._runtime = runtime
        self._bind(None)
        self.processes = AsyncSessionProcesses(runtime, self)

    def _bind(self, incarnation: int | None) -> None:
        self._incarnation = incarnation
        self._sessions = AsyncSessions(self._runtime, incarnation)
        self._queue = AsyncQueue(self._runtime, incarnation)
        self._attachments = AsyncAttachments(self._runtime, incarnation)

    def _met(self, incarnation: int) -> None:
        if self._incarnation is None:
            self._bind(incarnation)

    async def meet(self) -> int:
        """The incarnation this handle stays with; learned before a call that would not tell it."""
        if self._incarnation is None:
            self._met((await self._sessions.get(self.session_id)).incarnation)
        assert self._incarnation is not None
        return self._incarnation

    def _own(self, claim: Claim | Completion) -> None:
        if claim.session_id != self.session_id:
            raise SessionMismatch(bound=self.session_id, attempted=claim.session_id)

    # --- session ----------------------------------------------------------------------------------------------------------

    async def create(
        self,
        *,
        name: str | None = None,
        model: str | None = None,
        cwd: str | None = None,
        relation: Relation | None = None,
        config: Any = UNSET,
    ) -> Session:
        """Create the session, or return it unchanged. A handle that met an earlier incarnation stays with it."""
        if self._incarnation is not None:
            return await self.get()
        session = await self._sessions.create(self.session_id, name=name, model=model, cwd=cwd, relation=relation, config=config)
        self._met(session.incarnation)
        return session

    async def get(self) -> Session:
        """Identity, metadata and head."""
        session = await self._sessions.get(self.session_id)
        self._met(session.incarnation)
        return session

    async def update_meta(
        self,
        *,
        name: str | UnsetType = UNSET,
        model: str | None | UnsetType = UNSET,
        cwd: str | None | UnsetType = UNSET,
    ) -> Session:
        """Change name, model or cwd."""
        await self.meet()
        return await self._sessions.update_meta(self.session_id, name=name, model=model, cwd=cwd)

    async def delete(self) -> Deletion:
        """Delete this incarnation; a session that is not there is nothing to delete."""
        try:
            await self.meet()
        except NotFound:
            return Deletion(session_id=self.session_id, existed=False, purged_rows=0, complete=True)
        return await self._sessions.delete(self.session_id)

    async def commit(self, commit: Commit) -> Receipt:
        """Apply a turn: all or nothing, once per turn id."""
        receipt = await self._sessions.commit(self.session_id, commit)
        self._met(receipt.incarnation)
        return receipt

    async def load(self, scope: ReadScope = FULL, *, at_revision: int | None = None, checkpoint: bool = True) -> Snapshot:
        """One consistent look, now or as of a commit."""
        snapshot = await self._sessions.load(self.session_id, scope, at_revision=at_revision, checkpoint=checkpoint)
        self._met(snapshot.incarnation)
        return snapshot

    async def commits(self, *, after: int = 0, limit: int = 100) -> CommitPage:
        """The history, oldest first."""
        await self.meet()
        return await self._sessions.commits(self.session_id, after=after, limit=limit)

    async def receipt(self, turn_id: str) -> Receipt:
        """The receipt of a committed turn."""
        await self.meet()
        return await self._sessions.receipt(self.session_id, turn_id)

    async def follow(self, *, after: int | None = None) -> AsyncIterator[CommitRecord]:
        """New commits as they happen."""
        await self.meet()
        async for record in self._sessions.follow(self.session_id, after=after):
            yield record

    async def node(self, node_id: str) -> Node:
        """One live node."""
        await self.meet()
        return await self._sessions.node(self.session_id, node_id)

    async def children(self, node_id: str | None, *, limit: int = 100, cursor: str | None = None) -> NodePage:
        """Live children of a node; of None, the roots."""
        await self.meet()
        return await self._sessions.children(self.session_id, node_id, limit=limit, cursor=cursor)

    async def branches(self, *, limit: int = 100, cursor: str | None = None) -> BranchPage:
        """The tips of the graph."""
        await self.meet()
        return await self._sessions.branches(self.session_id, limit=limit, cursor=cursor)

    async def runs(self, *, ends: int = 3, limit: int = 100, cursor: str | None = None) -> RunPage:
        """The shape of the graph."""
        await self.meet()
        return await self._sessions.runs(self.session_id, ends=ends, limit=limit, cursor=cursor)

    async def components(self) -> tuple[Component, ...]:
        """The components of the present checkpoint, without their bytes."""
        await self.meet()
        return await self._sessions.components(self.session_id)

    async def tombstone(self, node_ids: Sequence[str]) -> int:
        """Hide nodes."""
        await self.meet()
        return await self._sessions.tombstone(self.session_id, node_ids)

    async def vacuum(self) -> VacuumReport:
        """Erase what is tombstoned."""
        await self.meet()
        return await self._sessions.vacuum(self.session_id)

    async def fork(
        self,
        new_id: str,
        *,
        at: str | int | None = None,
        name: str | None = None,
        model: str | None = None,
        cwd: str | None = None,
    ) -> Session:
        """A new session over a path of this one."""
        await self.meet()
        return await self._sessions.fork(self.session_id, new_id, at=at, name=name, model=model, cwd=cwd)

    async def usage(self) -> tuple[UsageTotal, ...]:
        """Totals by (source, model)."""
        await self.meet()
        return await self._sessions.usage(self.session_id)

    async def usage_of(self, revision: int) -> tuple[Usage, ...]:
        """The entries one commit recorded."""
        await self.meet()
        return await self._sessions.usage_of(self.session_id, revision)

    # --- inbox ------------------------------------------------------------------------------------------------------------

    async def enqueue(
        self,
        payloads: Sequence[Any],
        *,
        source_key: str | None = None,
        delivery: Delivery = Delivery.EARLIEST_SAFE_BOUNDARY,
        slot: Slot = Slot.JOIN,
        merge_key: str = "never",
        delay_ms: int = 0,
        max_attempts: int | None = None,
        batch_id: str | None = None,
    ) -> Batch:
        """Put work into the inbox."""
        await self.meet()
        return await self._queue.enqueue(
            self.session_id,
            payloads,
            source_key=source_key,
            delivery=delivery,
            slot=slot,
            merge_key=merge_key,
            delay_ms=delay_ms,
            max_attempts=max_attempts,
            batch_id=batch_id,
        )

    async def claim(
        self,
        owner: str,
        *,
        lease_ms: int,
        boundary: Boundary = Boundary.IDLE,
        max_batches: int = 1,
        token: str | None = None,
    ) -> Claim | None:
        """Lease the longest prefix of ready batches that may run together."""
        await self.meet()
        return await self._queue.claim(
            self.session_id, owner, lease_ms=lease_ms, boundary=boundary, max_batches=max_batches, token=token
        )

    async def claim_exact(
        self,
        owner: str,
        batch_ids: Sequence[str],
        *,
        lease_ms: int,
        boundary: Boundary = Boundary.IDLE,
        token: str | None = None,
    ) -> Claim | None:
        """Lease exactly these batches, or nothing."""
        await self.meet()
        return await self._queue.claim_exact(self.session_id, owner, batch_ids, lease_ms=lease_ms, boundary=boundary, token=token)

    async def renew(self, claim: Claim, *, lease_ms: int) -> Claim:
        """Extend a claim of this session."""
        self._own(claim)
        await self.meet()
        return await self._queue.renew(claim, lease_ms=lease_ms)

    async def abandon(self, claim: Claim | Completion) -> int:
        """Give work back at once."""
        self._own(claim)
        await self.meet()
        return await self._queue.abandon(claim)

    async def settle(self, claim: Claim | Completion) -> int:
        """Settle work outside a commit."""
        self._own(claim)
        await self.meet()
        return await self._queue.settle(claim)

    async def cancel(self, batch_id: str) -> Batch | None:
        """Remove a batch no live claim holds."""
        await self.meet()
        return await self._queue.cancel(self.session_id, batch_id)

    async def park(self, batch_id: str, *, reason: str) -> Batch:
        """Take a batch out of delivery."""
        await self.meet()
        return await self._queue.park(self.session_id, batch_id, reason=reason)

    async def unpark(self, batch_id: str) -> Batch:
        """Put a parked batch back."""
        await self.meet()
        return await self._queue.unpark(self.session_id, batch_id)

    async def batch(self, batch_id: str) -> Batch:
        """One batch as it is now."""
        await self.meet()
        return await self._queue.get(self.session_id, batch_id)

    async def list_work(self, *, limit: int = 100, cursor: str | None = None) -> BatchPage:
        """All batches in enqueue order."""
        await self.meet()
        return await self._queue.list(self.session_id, limit=limit, cursor=cursor)

    async def pending(self, *, limit: int = 100, cursor: str | None = None) -> BatchPage:
        """Batches no live claim holds."""
        await self.meet()
        return await self._queue.pending(self.session_id, limit=limit, cursor=cursor)

    async def depth(self) -> Depth:
        """How many batches wait in each state."""
        await self.meet()
        return await self._queue.depth(self.session_id)

    async def wait_ready(self, *, timeout_ms: int) -> bool:
        """Sleep until the inbox has work; False at the timeout."""
        await self.meet()
        return await self._queue.wait_ready(self.session_id, timeout_ms=timeout_ms)

    # --- attachments ------------------------------------------------------------------------------------------------------

    async def put(
        self,
        data: Source | AsyncIterable[bytes],
        *,
        media_type: str,
        label: str | None = None,
        width: int | None = None,
        height: int | None = None,
    ) -> AttachmentRef:
        """Store bytes under an intent; a commit that names them keeps them."""
        await self.meet()
        return await self._attachments.put(self.session_id, data, media_type=media_type, label=label, width=width, height=height)

    async def get_attachment(self, attachment_id: str) -> bytes:
        """The bytes, verified."""
        await self.meet()
        return await self._attachments.get(self.session_id, attachment_id)

    async def attachment(self, attachment_id: str) -> AttachmentEntry:
        """The manifest row of one attachment."""
        await self.meet()
        return await self._attachments.entry(self.session_id, attachment_id)

    async def attachments(self, *, limit: int = 100, cursor: str | None = None) -> AttachmentPage:
        """The manifest, by attachment id."""
        await self.meet()
        return await self._attachments.list(self.session_id, limit=limit, cursor=cursor)

    async def forget(self, attachment_id: str) -> bool:
        """Drop the hold on an attachment."""
        await self.meet()
        return await self._attachments.forget(self.session_id, attachment_id)
