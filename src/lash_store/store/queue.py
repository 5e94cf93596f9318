"""The inbox of every session: enqueue, claim, settle, and wait for work."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from lash_store.encode import mint
from lash_store.errors import Busy, InvalidArgument, Unstorable
from lash_store.model.queue import (
    Batch,
    BatchDraft,
    BatchPage,
    Boundary,
    Claim,
    Completion,
    Delivery,
    Depth,
    Slot,
)
from lash_store.ops import claims, queue, shortcuts, watch
from lash_store.ops.claims import Claimed, LookAgain
from lash_store.ops.prepare import prepare_batch, prepare_completion
from lash_store.ops.queue import StoredBatch, verified
from lash_store.ops.tree import number_cursor
from lash_store.store.keys import keyed
from lash_store.store.runtime import AsyncRuntime, AsyncTransactionRuntime
from lash_store.store.weight import is_heavy

log = logging.getLogger("lash_store")

LOOKS_MAX = 256  # times a claim looks again because what it was shown had gone


class AsyncQueue:
    """What the store knows of queued work. With an incarnation, every call refuses any other one."""

    def __init__(self, runtime: AsyncRuntime | AsyncTransactionRuntime, incarnation: int | None = None) -> None:
        self._runtime = runtime
        self._encoder = runtime.encoder
        self._incarnation = incarnation

    # --- arriving -------------------------------------------------------------------------------------------------------

    async def enqueue(
        self,
        session_id: str,
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
        """Put work into a session's inbox. The same source key and content returns the batch it stored before."""
        draft = BatchDraft(
            payloads=payloads,
            source_key=source_key,
            delivery=delivery,
            slot=slot,
            merge_key=merge_key,
            delay_ms=delay_ms,
            max_attempts=max_attempts,
            batch_id=batch_id,
        )
        if is_heavy(payloads):
            prepared = await self._runtime.offload(prepare_batch, session_id, draft, self._encoder, "batch")
        else:
            prepared = prepare_batch(session_id, draft, self._encoder, "batch")
        with keyed(prepared.batch_id):
            done = await self._runtime.write(
                shortcuts.enqueue,
                prepared,
                retention_ms=self._runtime.settled_key_retention_ms,
                incarnation=self._incarnation,
            )
        if done.settled:
            return done.settled[0]
        return verified(done.stored[0], done.now_ms)

    # --- claiming -------------------------------------------------------------------------------------------------------

    async def claim(
        self,
        session_id: str,
        owner: str,
        *,
        lease_ms: int,
        boundary: Boundary = Boundary.IDLE,
        max_batches: int = 1,
        token: str | None = None,
    ) -> Claim | None:
        """Lease the longest prefix of ready batches that may run together, or None. Repeating a token returns its claim."""
        own = self._token(token)
        with keyed(own):
            claimed = await self._runtime.write(
                shortcuts.claim,
                self._id(session_id),
                self._encoder.id(owner, "owner"),
                boundary=_boundary(boundary),
                lease_ms=self._encoder.duration(lease_ms, "lease_ms"),
                max_batches=self._max_batches(max_batches),
                token=own,
                repeated=token is not None,
                incarnation=self._incarnation,
            )
        return None if claimed is None else _claim(claimed)

    async def claim_exact(
        self,
        session_id: str,
        owner: str,
        batch_ids: Sequence[str],
        *,
        lease_ms: int,
        boundary: Boundary = Boundary.IDLE,
        token: str | None = None,
    ) -> Claim | None:
        """Lease exactly these batches, in this order, if that is what a claim would choose; otherwise None."""
        own = self._token(token)
        given = self._encoder.items(batch_ids, "batch_ids")
        ids = [self._encoder.id(batch_id, f"batch_ids[{i}]") for i, batch_id in enumerate(given)]
        self._max_batches(max(1, len(ids)))
        with keyed(own):
            claimed = await self._runtime.write(
                claims.claim_exact,
                self._id(session_id),
                self._encoder.id(owner, "owner"),
                ids,
                boundary=_boundary(boundary),
                lease_ms=self._encoder.duration(lease_ms, "lease_ms"),
                token=own,
                repeated=token is not None,
                incarnation=self._incarnation,
            )
        return None if claimed is None else _claim(claimed)

    async def claim_next(
        self, owner: str, *, lease_ms: int, max_batches: int = 1, concurrent: bool = False, token: str | None = None
    ) -> Claim | None:
        """Lease work of the session that has been ready longest; None when no session has any.

        A session with a live claim is passed over, unless `concurrent` asks for several claims in one session.
        """
        own = self._token(token)
        owner = self._encoder.id(owner, "owner")
        lease_ms, max_batches = self._encoder.duration(lease_ms, "lease_ms"), self._max_batches(max_batches)
        with keyed(own):
            before = None if token is None else await self._runtime.write(claims.claim_of_token_anywhere, own)
            if before is not None:
                return _claim(before)
            wait_for_locks = False
            for _ in range(LOOKS_MAX):
                found = await self._runtime.write(
                    shortcuts.claim_next,
                    owner,
                    lease_ms=lease_ms,
                    max_batches=max_batches,
                    concurrent=concurrent,
                    token=own,
                    wait_for_locks=wait_for_locks,
                )
                if isinstance(found, Claimed):
                    return _claim(found)
                if isinstance(found, LookAgain):
                    for name in found.corrupt:
                        log.error("batch %s does not match its digest; it is parked as 'corrupt'", name)
                elif wait_for_locks:
                    return None
                else:
                    wait_for_locks = True
        raise Busy(f"{LOOKS_MAX} looks for work found sessions that others had just emptied")

    # --- holding and letting go -------------------------------------------------------------------------------------------

    async def renew(self, claim: Claim, *, lease_ms: int) -> Claim:
        """Extend a claim: all its batches or none. ClaimLost once somebody else claimed one of them."""
        if not isinstance(claim, Claim):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
            raise Unstorable("claim", f"must be a Claim, got {type(claim).__name__}")
        completion = prepare_completion(claim, self._encoder, "claim")
        expires_ms = await self._runtime.write(
            claims.renew,
            completion,
            lease_ms=self._encoder.duration(lease_ms, "lease_ms"),
            incarnation=self._incarnation,
        )
        return Claim(
            session_id=claim.session_id,
            claim_id=claim.claim_id,
            owner=claim.owner,
            token=claim.token,
            fence=claim.fence,
            claimed_ms=claim.claimed_ms,
            expires_ms=expires_ms,
            batches=claim.batches,
        )

    async def abandon(self, claim: Claim | Completion) -> int:
        """Give work back at once; what is no longer held is left alone. How many batches were given back."""
        return await self._runtime.write(claims.abandon, prepare_completion(claim, self._encoder, "claim"), self._incarnation)

    async def settle(self, claim: Claim | Completion) -> int:
        """Settle work outside a commit: all of it, or ClaimLost and nothing."""
        return await self._runtime.write(shortcuts.settle, prepare_completion(claim, self._encoder, "claim"), self._incarnation)

    async def cancel(self, session_id: str, batch_id: str) -> Batch | None:
        """Remove a batch no live claim holds; None when it is held or gone. Its source key is free again."""
        found = await self._runtime.write(queue.cancel, self._id(session_id), self._batch(batch_id), self._incarnation)
        return None if found is None else verified(*found)

    async def discard(self, session_id: str, batch_id: str) -> bool:
        """Remove a batch no live claim holds without reading it: the way out for one that is damaged. False if held or gone."""
        return await self._runtime.write(queue.discard, self._id(session_id), self._batch(batch_id), self._incarnation)

    async def park(self, session_id: str, batch_id: str, *, reason: str) -> Batch:
        """Take a batch out of delivery; a claim that holds it loses it."""
        reason = self._encoder.text(reason, "reason")
        return verified(
            *await self._runtime.write(queue.park, self._id(session_id), self._batch(batch_id), reason, self._incarnation)
        )

    async def unpark(self, session_id: str, batch_id: str) -> Batch:
        """Put a parked batch back in its place, with all its attempts."""
        return verified(*await self._runtime.write(queue.unpark, self._id(session_id), self._batch(batch_id), self._incarnation))

    # --- looking ----------------------------------------------------------------------------------------------------------

    async def get(self, session_id: str, batch_id: str) -> Batch:
        """One batch as it is now; a settled one is gone."""
        return verified(*await self._runtime.read(queue.get, self._id(session_id), self._batch(batch_id), self._incarnation))

    async def list(self, session_id: str, *, limit: int = 100, cursor: str | None = None) -> BatchPage:
        """All batches in enqueue order, claimed and parked ones too."""
        return await self._page(session_id, pending=False, limit=limit, cursor=cursor)

    async def pending(self, session_id: str, *, limit: int = 100, cursor: str | None = None) -> BatchPage:
        """Batches no live claim holds, delayed ones too, parked ones not."""
        return await self._page(session_id, pending=True, limit=limit, cursor=cursor)

    async def _page(self, session_id: str, *, pending: bool, limit: int, cursor: str | None) -> BatchPage:
        limit = self._encoder.counter(limit, "limit", minimum=1, maximum=self._runtime.limits.page_rows, limit="page_rows")
        rows, now_ms = await self._runtime.read(
            queue.page,
            self._id(session_id),
            pending=pending,
            limit=limit,
            after=number_cursor(cursor, start=0),
            incarnation=self._incarnation,
        )
        return queue.batch_page(rows, now_ms=now_ms, limit=limit)

    async def depth(self, session_id: str) -> Depth:
        """How many batches wait in each state."""
        return await self._runtime.read(queue.depth, self._id(session_id), self._incarnation)

    async def wait_ready(self, session_id: str | None = None, *, timeout_ms: int) -> bool:
        """Sleep until the inbox of a session (None: of any session without a live claim) has work; False at the timeout."""
        if session_id is not None:
            session_id = self._id(session_id)
        deadline = time.monotonic() + self._encoder.duration(timeout_ms, "timeout_ms") / 1000
        with self._runtime.subscribe("inbox", session_id) as subscription:
            while True:
                due_ms, now_ms = await self._runtime.read(watch.next_due, session_id, self._incarnation)
                if due_ms is not None and due_ms <= now_ms:
                    return True
                remaining_ms = (deadline - time.monotonic()) * 1000
                if remaining_ms <= 0:
                    return False
                await subscription.wait(remaining_ms if due_ms is None else min(remaining_ms, due_ms - now_ms))

    def _id(self, session_id: str) -> str:
        return self._encoder.id(session_id, "session_id")

    def _batch(self, batch_id: str) -> str:
        return self._encoder.id(batch_id, "batch_id")

    def _token(self, token: str | None) -> str:
        return mint("qwt:") if token is None else self._encoder.id(token, "token")

    def _max_batches(self, count: int) -> int:
        maximum = self._runtime.limits.claim_batches
        return self._encoder.counter(count, "max_batches", minimum=1, maximum=maximum, limit="claim_batches")


def _boundary(boundary: object) -> Boundary:
    if not isinstance(boundary, str) or boundary not in Boundary._value2member_map_:
        raise InvalidArgument("boundary", f"must be one of {', '.join(Boundary)}")
    return Boundary(boundary)


def _claim(claimed: Claimed) -> Claim:
    rows: Sequence[StoredBatch] = claimed.rows
    return Claim(
        session_id=claimed.session_id,
        claim_id=claimed.claim_id,
        owner=claimed.owner,
        token=claimed.token,
        fence=claimed.fence,
        claimed_ms=claimed.claimed_ms,
        expires_ms=claimed.expires_ms,
        batches=tuple(verified(row, claimed.claimed_ms) for row in rows),
    )
