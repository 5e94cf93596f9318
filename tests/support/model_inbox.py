"""The reference model's inbox: works in a list, leases by comparing numbers."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from lash_store import (
    Batch,
    BatchDraft,
    BatchState,
    Boundary,
    Claim,
    ClaimLost,
    Completion,
    Delivery,
    Depth,
    NotFound,
    ReplayConflict,
    Slot,
)
from tests.support.model_graph import meaning


class Lease(Struct, frozen=True):
    """Who holds a work, by which token, until when."""

    claim_id: str
    owner: str
    token: str
    claimed_ms: int
    expires_ms: int


class Work(Struct, frozen=True, kw_only=True):
    """A batch in the inbox."""

    batch_id: str
    seq: int
    draft: BatchDraft
    available_ms: int
    enqueued_ms: int
    attempts: int = 0
    fence: int = 0
    parked: str | None = None
    lease: Lease | None = None

    @property
    def key(self) -> str:
        return self.draft.source_key or self.batch_id

    def held(self, now_ms: int) -> bool:
        return self.lease is not None and self.lease.expires_ms > now_ms

    def held_by(self, completion: Completion) -> bool:
        return self.lease is not None and (self.lease.token, self.fence) == (completion.token, completion.fence)

    def ready(self, now_ms: int) -> bool:
        return self.parked is None and self.available_ms <= now_ms and not self.held(now_ms)

    def exhausted(self) -> bool:
        return self.draft.max_attempts is not None and self.attempts >= self.draft.max_attempts


class Settled(Struct, frozen=True):
    """What is remembered of a settled batch."""

    batch_id: str
    seq: int
    content: str
    settled_ms: int


def content(draft: BatchDraft) -> str:
    """What makes two batches the same: everything but their names."""
    return meaning([draft.delivery, draft.slot, draft.merge_key, draft.delay_ms, draft.max_attempts, list(draft.payloads)])


class Inbox(Struct):
    """One session's inbox. `works` is in enqueue order."""

    session_id: str
    works: dict[str, Work]
    settled: dict[str, Settled]
    next_seq: int = 1
    fence: int = 0

    def copy(self) -> Inbox:
        return Inbox(self.session_id, dict(self.works), dict(self.settled), self.next_seq, self.fence)

    # --- arriving -------------------------------------------------------------------------------------------------------

    def enqueue(self, draft: BatchDraft, minted: str, *, now_ms: int, retention_ms: int) -> Batch:
        """Store a batch under its key, or find what the key stored before."""
        batch_id = draft.batch_id or minted
        key = draft.source_key or batch_id
        stored = next((work for work in self.works.values() if work.key == key), None)
        done = self.settled.get(key)
        if done is not None and done.settled_ms <= now_ms - retention_ms:
            done = None
        before = content(stored.draft) if stored is not None else done.content if done is not None else None
        if before is not None and before != content(draft):
            raise ReplayConflict("source key", key=key, owner=self.session_id)
        if stored is not None:
            return self.batch(stored, now_ms)
        if done is not None:
            return self._settled(draft, done)
        work = Work(batch_id=batch_id, seq=self.next_seq, draft=draft, available_ms=now_ms + draft.delay_ms, enqueued_ms=now_ms)
        self.works[batch_id] = work
        self.next_seq += 1
        return self.batch(work, now_ms)

    def _settled(self, draft: BatchDraft, done: Settled) -> Batch:
        return Batch(
            batch_id=done.batch_id,
            session_id=self.session_id,
            enqueue_seq=done.seq,
            source_key=draft.source_key,
            delivery=draft.delivery,
            slot=draft.slot,
            merge_key=draft.merge_key,
            payloads=(),
            available_ms=done.settled_ms,
            enqueued_ms=done.settled_ms,
            attempts=0,
            max_attempts=draft.max_attempts,
            fence=0,
            state=BatchState.SETTLED,
        )

    # --- claiming -------------------------------------------------------------------------------------------------------

    def claim(self, owner: str, token: str, *, boundary: Boundary, limit: int, lease_ms: int, now_ms: int) -> Claim | None:
        """Lease what may be handed out together."""
        return self._lease(self.choose(boundary, limit, now_ms), owner, token, lease_ms, now_ms)

    def claim_exact(
        self, owner: str, token: str, batch_ids: Sequence[str], *, boundary: Boundary, lease_ms: int, now_ms: int
    ) -> Claim | None:
        """Lease exactly these, if they are what a claim would choose."""
        chosen = self.choose(boundary, len(batch_ids), now_ms)
        if [work.batch_id for work in chosen] != list(batch_ids):
            return None
        return self._lease(chosen, owner, token, lease_ms, now_ms)

    def choose(self, boundary: Boundary, limit: int, now_ms: int) -> list[Work]:
        """The run at the head of the queue, after what used up its attempts was parked."""
        ready = [work for work in self.works.values() if work.ready(now_ms)]
        if any(work.exhausted() for work in ready[:limit]):
            for work in ready:
                if work.exhausted():
                    self._put(replace(work, parked="max_attempts", lease=None))
            ready = [work for work in ready if not work.exhausted()]
        chosen: list[Work] = []
        for work in ready[:limit]:
            if chosen and (_kind(work) != _kind(chosen[0]) or chosen[0].draft.slot is Slot.EXCLUSIVE):
                break
            chosen.append(work)
        waits = bool(chosen) and chosen[0].draft.delivery is not Delivery.EARLIEST_SAFE_BOUNDARY
        return [] if boundary is Boundary.ACTIVE_TURN_CHECKPOINT and waits else chosen

    def _lease(self, chosen: Sequence[Work], owner: str, token: str, lease_ms: int, now_ms: int) -> Claim | None:
        if not chosen:
            return None
        self.fence += 1
        lease = Lease(f"qwc:{chosen[0].seq}:{self.fence}", owner, token, now_ms, now_ms + lease_ms)
        for work in chosen:
            self._put(replace(work, lease=lease, fence=self.fence, attempts=work.attempts + 1))
        return self.claim_of(token)

    def claim_of(self, token: str) -> Claim | None:
        """What a token holds."""
        mine = [(work, work.lease) for work in self.works.values() if work.lease is not None and work.lease.token == token]
        if not mine:
            return None
        work, lease = mine[0]
        return Claim(
            session_id=self.session_id,
            claim_id=lease.claim_id,
            owner=lease.owner,
            token=token,
            fence=work.fence,
            claimed_ms=lease.claimed_ms,
            expires_ms=min(lease.expires_ms for _, lease in mine),
            batches=tuple(self.batch(work, lease.claimed_ms) for work, _ in mine),
        )

    def due_ms(self, *, concurrent: bool) -> int | None:
        """When claim_next may look here: at the first free or expired batch, or only once no claim is live."""
        leases = [work.lease.expires_ms for work in self.works.values() if work.lease is not None]
        free = [work.available_ms for work in self.works.values() if work.lease is None and work.parked is None]
        if not concurrent and leases:
            return max(leases)
        return min([*leases, *free], default=None)

    # --- holding and letting go -----------------------------------------------------------------------------------------

    def owned(self, completion: Completion) -> list[Work]:
        """The batches of a completion, all still held by its token."""
        for batch_id in completion.batch_ids:
            work = self.works.get(batch_id)
            if work is None or not work.held_by(completion):
                actual = None if work is None else work.fence
                raise ClaimLost(self.session_id, batch_id=batch_id, held_fence=completion.fence, actual_fence=actual)
        return [self.works[batch_id] for batch_id in dict.fromkeys(completion.batch_ids)]

    def still_owned(self, completion: Completion) -> list[Work]:
        """Those of its batches a completion's token still holds."""
        found = [self.works[batch_id] for batch_id in dict.fromkeys(completion.batch_ids) if batch_id in self.works]
        return [work for work in found if work.held_by(completion)]

    def settle(self, works: Sequence[Work], now_ms: int) -> int:
        """Remove works and remember their keys."""
        for work in works:
            del self.works[work.batch_id]
            self.settled[work.key] = Settled(work.batch_id, work.seq, content(work.draft), now_ms)
        return len(works)

    def renew(self, claim: Claim, lease_ms: int, now_ms: int) -> Claim:
        """Extend a whole claim."""
        for work in self.owned(claim.completion()):
            assert work.lease is not None
            self._put(replace(work, lease=replace(work.lease, expires_ms=now_ms + lease_ms)))
        return replace(claim, expires_ms=now_ms + lease_ms)

    def abandon(self, completion: Completion) -> int:
        """Give back what is still held."""
        found = [self.works[batch_id] for batch_id in dict.fromkeys(completion.batch_ids) if batch_id in self.works]
        held = [work for work in found if work.lease is not None and work.lease.token == completion.token]
        for work in held:
            self._put(replace(work, lease=None))
        return len(held)

    # --- levers ---------------------------------------------------------------------------------------------------------

    def cancel(self, batch_id: str, now_ms: int) -> Batch | None:
        """Remove a batch no live claim holds."""
        work = self.works.get(batch_id)
        if work is None or work.held(now_ms):
            return None
        del self.works[batch_id]
        return self.batch(work, now_ms)

    def park(self, batch_id: str, reason: str, now_ms: int) -> Batch:
        """Take a batch out of delivery."""
        return self.batch(self._put(replace(self._work(batch_id), parked=reason, lease=None)), now_ms)

    def unpark(self, batch_id: str, now_ms: int) -> Batch:
        """Put a parked batch back, with all its attempts."""
        work = self._work(batch_id)
        if work.parked is not None:
            work = self._put(replace(work, parked=None, attempts=0))
        return self.batch(work, now_ms)

    def _work(self, batch_id: str) -> Work:
        if batch_id not in self.works:
            raise NotFound("batch", batch_id, within=self.session_id)
        return self.works[batch_id]

    def _put(self, work: Work) -> Work:
        self.works[work.batch_id] = work
        return work

    # --- looking --------------------------------------------------------------------------------------------------------

    def batch(self, work: Work, now_ms: int) -> Batch:
        """The work as the store returns it."""
        draft = work.draft
        return Batch(
            batch_id=work.batch_id,
            session_id=self.session_id,
            enqueue_seq=work.seq,
            source_key=draft.source_key,
            delivery=draft.delivery,
            slot=draft.slot,
            merge_key=draft.merge_key,
            payloads=tuple(draft.payloads),
            available_ms=work.available_ms,
            enqueued_ms=work.enqueued_ms,
            attempts=work.attempts,
            max_attempts=draft.max_attempts,
            fence=work.fence,
            state=_state(work, now_ms),
            parked_reason=work.parked,
        )

    def list(self, now_ms: int, *, pending: bool) -> tuple[Batch, ...]:
        """All batches, or those nobody holds or parked."""
        works = [w for w in self.works.values() if not pending or (w.parked is None and not w.held(now_ms))]
        return tuple(self.batch(work, now_ms) for work in works)

    def depth(self, now_ms: int) -> Depth:
        """How many batches are in each state."""
        states = [_state(work, now_ms) for work in self.works.values()]
        return Depth(
            ready=states.count(BatchState.READY),
            delayed=states.count(BatchState.DELAYED),
            claimed=states.count(BatchState.CLAIMED),
            parked=states.count(BatchState.PARKED),
        )


def _kind(work: Work) -> tuple[object, ...]:
    return work.draft.slot, work.draft.delivery, work.draft.merge_key


def _state(work: Work, now_ms: int) -> BatchState:
    if work.parked is not None:
        return BatchState.PARKED
    if work.held(now_ms):
        return BatchState.CLAIMED
    return BatchState.READY if work.available_ms <= now_ms else BatchState.DELAYED
