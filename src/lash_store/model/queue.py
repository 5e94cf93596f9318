"""The session's inbox: batches of work, and the claims workers hold on them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from lash_store.errors import NotFound


class Delivery(StrEnum):
    """When a batch may be handed out."""

    EARLIEST_SAFE_BOUNDARY = "earliest_safe_boundary"
    AFTER_CURRENT_TURN_COMMIT = "after_current_turn_commit"


class Slot(StrEnum):
    """Whether a batch may share a claim with its neighbours."""

    JOIN = "join"
    EXCLUSIVE = "exclusive"


class Boundary(StrEnum):
    """Where the claimer stands: between turns, or at a checkpoint of a running one."""

    IDLE = "idle"
    ACTIVE_TURN_CHECKPOINT = "active_turn_checkpoint"


class BatchState(StrEnum):
    """What a batch is waiting for, at the instant it was read."""

    READY = "ready"
    DELAYED = "delayed"
    CLAIMED = "claimed"
    PARKED = "parked"
    SETTLED = "settled"


class BatchDraft(Struct, frozen=True, kw_only=True):
    """Work to enqueue. `session_id` None is the committing session; `batch_id` None is minted by the client."""

    payloads: Sequence[Any]
    session_id: str | None = None
    source_key: str | None = None
    delivery: Delivery = Delivery.EARLIEST_SAFE_BOUNDARY
    slot: Slot = Slot.JOIN
    merge_key: str = "never"
    delay_ms: int = 0
    max_attempts: int | None = None
    batch_id: str | None = None


class Batch(Struct, frozen=True, kw_only=True):
    """Stored work. A settled batch found by its source key has no payloads any more.

    * `batch_id`, `session_id`: its name, and whose inbox it is in.
    * `enqueue_seq`: its place in the inbox; lists and claims follow it.
    * `source_key`: your idempotency key.
    * `delivery`, `slot`, `merge_key`: when it is handed out, and whether together with its neighbours.
    * `payloads`: the JSON values that were enqueued; a wake's has `input` and `process_id`.
    * `available_ms`, `enqueued_ms`: not handed out before, and when it came.
    * `attempts`, `max_attempts`: how often it was claimed, and after how many it is parked.
    * `fence`: of its newest claim; it only grows.
    * `state`, `parked_reason`: what it waits for, and why it was set aside.
    """

    batch_id: str
    session_id: str
    enqueue_seq: int
    source_key: str | None
    delivery: Delivery
    slot: Slot
    merge_key: str
    payloads: tuple[Any, ...]
    available_ms: int
    enqueued_ms: int
    attempts: int
    max_attempts: int | None
    fence: int
    state: BatchState
    parked_reason: str | None = None


class Completion(Struct, frozen=True, kw_only=True):
    """What a commit needs of a claim: which batches are done, and the token that proves ownership."""

    session_id: str
    claim_id: str
    token: str
    fence: int
    batch_ids: tuple[str, ...]


class Claim(Struct, frozen=True, kw_only=True):
    """Batches leased to one owner. The token settles them until somebody else claims them.

    * `session_id`: whose work it is.
    * `claim_id`, `owner`: its name, and the worker that asked.
    * `token`, `fence`: prove ownership; a later claim has another token and a higher fence.
    * `claimed_ms`, `expires_ms`: when the lease began and passes, by the database's clock.
    * `batches`: the work, in the order of the inbox.
    """

    session_id: str
    claim_id: str
    owner: str
    token: str
    fence: int
    claimed_ms: int
    expires_ms: int
    batches: tuple[Batch, ...]

    def completion(self, batch_ids: Sequence[str] | None = None) -> Completion:
        """The whole claim as done, or some of its batches."""
        held = tuple(batch.batch_id for batch in self.batches)
        chosen = held if batch_ids is None else tuple(batch_ids)
        for batch_id in chosen:
            if batch_id not in held:
                raise NotFound("batch", batch_id, within=self.session_id)
        return Completion(
            session_id=self.session_id, claim_id=self.claim_id, token=self.token, fence=self.fence, batch_ids=chosen
        )


class Depth(Struct, frozen=True, kw_only=True):
    """How much work a session's inbox holds, by state."""

    ready: int
    delayed: int
    claimed: int
    parked: int


class BatchPage(Struct, frozen=True, kw_only=True):
    """A page of batches in enqueue order; pass `cursor` on for the next one, None at the end."""

    batches: tuple[Batch, ...]
    cursor: str | None
