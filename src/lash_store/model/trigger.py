"""Triggers: who wants to run what when something happens, what happened, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from lash_store.model.process import EventType, ProcessIdentity, ProcessInput, Scope

# --- subscriptions --------------------------------------------------------------------------------------------------------


class EventBinding(Struct, frozen=True, tag="event"):
    """An argument that is the whole payload of the occurrence."""


class FixedBinding(Struct, frozen=True, tag="fixed"):
    """An argument that is always the same."""

    value: Any


Binding = EventBinding | FixedBinding


class Missed(StrEnum):
    """What becomes of instants nobody fired in time: pass over the late ones, fire the newest, or fire every one."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


class Cron(Struct, frozen=True, tag="cron"):
    """Instants by a cron expression in a time zone. With `skip`, an instant later than `grace_ms` is passed over."""

    expression: str
    timezone: str = "UTC"
    missed: Missed = Missed.SKIP
    grace_ms: int = 60_000


class Interval(Struct, frozen=True, tag="interval"):
    """An instant every `every_ms`, counted from `anchor_ms`; without one, from the moment of subscribing."""

    every_ms: int
    anchor_ms: int | None = None
    missed: Missed = Missed.SKIP
    grace_ms: int = 60_000


Schedule = Cron | Interval


class SubscriptionDraft(Struct, frozen=True, kw_only=True):
    """A wish to start `target` whenever (source type, source key) occurs. `registrant` None is the host.

    `source_key` None is derived from `source`, and `source` None, with a schedule, is the schedule. The target's payload is
    an object; its `args` are filled from the template. The same `registration_key` and content is the same subscription.
    """

    source_type: str
    target: ProcessInput
    registrant: Scope | None = None
    registration_key: str | None = None
    name: str | None = None
    source_key: str | None = None
    source: Any = None
    payload_schema: Any = True
    identity: ProcessIdentity | None = None
    event_types: Sequence[EventType] = ()
    input_template: Mapping[str, Binding] = {}
    env_ref: str | None = None
    wake_target: Scope | None = None
    label: str | None = None
    schedule: Schedule | None = None


class Subscription(Struct, frozen=True, kw_only=True):
    """A stored subscription. A disabled one stays listed and starts nothing."""

    subscription_id: str
    handle: str
    number: int
    registrant: Scope | None
    registration_key: str
    name: str | None
    source_type: str
    source_key: str
    source: Any
    payload_schema: Any
    target: ProcessInput
    identity: ProcessIdentity
    event_types: tuple[EventType, ...]
    input_template: Mapping[str, Binding]
    env_ref: str | None
    wake_target: Scope | None
    label: str | None
    schedule: Schedule | None
    enabled: bool
    created_ms: int
    updated_ms: int


class SubscriptionPage(Struct, frozen=True, kw_only=True):
    """A page of subscriptions in the order they were made; pass `cursor` on for the next one, None at the end."""

    subscriptions: tuple[Subscription, ...]
    cursor: str | None


# --- occurrences ----------------------------------------------------------------------------------------------------------


class OccurrenceRequest(Struct, frozen=True, kw_only=True):
    """Something that happened. Its key belongs to (source type, source key): the same key there is the same occurrence."""

    source_type: str
    source_key: str
    idempotency_key: str
    payload: Any = None
    source: Any = None


class Occurrence(Struct, frozen=True, kw_only=True):
    """A recorded occurrence, stamped by the database's clock."""

    occurrence_id: str
    source_type: str
    source_key: str
    idempotency_key: str
    payload: Any
    source: Any
    occurred_ms: int


# --- deliveries -----------------------------------------------------------------------------------------------------------


class DeliveryState(StrEnum):
    """How far a delivery got: promised, its process registered, or impossible."""

    RESERVED = "reserved"
    STARTED = "started"
    FAILED = "failed"


class TriggerDelivery(Struct, frozen=True, kw_only=True):
    """One occurrence for one subscription, which is kept as it was then (None: its row could not be read)."""

    occurrence_id: str
    subscription_id: str
    process_id: str
    state: DeliveryState
    error: str | None
    subscription: Subscription | None
    created_ms: int
    updated_ms: int


class DeliveryPage(Struct, frozen=True, kw_only=True):
    """A page of deliveries; pass `cursor` on for the next one, None at the end."""

    deliveries: tuple[TriggerDelivery, ...]
    cursor: str | None


class Outcome(StrEnum):
    """What one call did about a delivery. `already`: it was finished, or its process registered, before."""

    STARTED = "started"
    FAILED = "failed"
    ALREADY = "already"


class DeliveryOutcome(Struct, frozen=True, kw_only=True):
    """A delivery, and what this call did about it. A failed one says why in `delivery.error`."""

    outcome: Outcome
    delivery: TriggerDelivery


class EmitReport(Struct, frozen=True, kw_only=True):
    """An occurrence, and what came of it for every subscription it matched."""

    occurrence: Occurrence
    outcomes: tuple[DeliveryOutcome, ...]

    @property
    def started(self) -> tuple[str, ...]:
        """The processes this call registered."""
        return started(self.outcomes)


class RedriveReport(Struct, frozen=True, kw_only=True):
    """What became of deliveries that had been left behind. `more`: others are waiting."""

    outcomes: tuple[DeliveryOutcome, ...]
    more: bool

    @property
    def started(self) -> tuple[str, ...]:
        """The processes this call registered."""
        return started(self.outcomes)


class BrokenSchedule(Struct, frozen=True, kw_only=True):
    """A due schedule this worker could not read: an unknown zone, a missing extra, a damaged row. It stays due."""

    subscription_id: str
    error: str


class TickReport(Struct, frozen=True, kw_only=True):
    """What a tick did. `passed_over` counts missed instants that will not fire; of a cron schedule at most 1,000 each."""

    fired: int
    passed_over: int
    more: bool
    outcomes: tuple[DeliveryOutcome, ...]
    broken: tuple[BrokenSchedule, ...]

    @property
    def started(self) -> tuple[str, ...]:
        """The processes this call registered."""
        return started(self.outcomes)


class OccurrencePruneReport(Struct, frozen=True, kw_only=True):
    """What a prune of occurrences removed, or would remove."""

    occurrences: int
    deliveries: int


def started(outcomes: Sequence[DeliveryOutcome]) -> tuple[str, ...]:
    """The processes that were registered."""
    return tuple(each.delivery.process_id for each in outcomes if each.outcome is Outcome.STARTED)
