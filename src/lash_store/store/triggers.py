"""Triggers: subscribe to sources, emit what happens, start what was wanted, and tick schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from lash_store.encode import stable_hash
from lash_store.errors import Busy, Corrupt, Refused
from lash_store.model.limits import COLLECT_ROWS_PER_TRANSACTION
from lash_store.model.trigger import (
    BrokenSchedule,
    DeliveryOutcome,
    DeliveryPage,
    EmitReport,
    Occurrence,
    OccurrencePruneReport,
    OccurrenceRequest,
    RedriveReport,
    Subscription,
    SubscriptionDraft,
    SubscriptionPage,
    TickReport,
    TriggerDelivery,
)
from lash_store.ops import deliveries, occurrences, ticks, triggers
from lash_store.ops.deliveries import Candidate, Plan, prepare_plan
from lash_store.ops.drafts import HOST, prepare_source_type, prepare_subscription, source_key
from lash_store.ops.occurrences import StaleMatch, StoredOccurrence, prepare_instant, prepare_occurrence
from lash_store.ops.statement import database_now
from lash_store.ops.ticks import Due, DueSchedule, Firing
from lash_store.ops.tree import number_cursor
from lash_store.ops.triggers import SubscriptionFilter, number_of
from lash_store.store import instants
from lash_store.store.keys import keyed
from lash_store.store.runtime import AsyncRuntime, AsyncTransactionRuntime

LOOKS_MAX = 16  # times an emit looks again because subscriptions or sessions came or went meanwhile
TICK_MAX = 100  # instants, and schedules, of one tick: the next one goes on
OFFLOAD_DELIVERIES = 50  # from here on validating and hashing would hold up the event loop longer than a thread costs


class AsyncTriggers:
    """What the store knows of triggers: subscriptions, occurrences, deliveries and schedules."""

    def __init__(self, runtime: AsyncRuntime | AsyncTransactionRuntime) -> None:
        self._runtime = runtime
        self._encoder = runtime.encoder

    # --- subscriptions --------------------------------------------------------------------------------------------------

    async def subscribe(self, draft: SubscriptionDraft) -> Subscription:
        """Start a process whenever the source occurs. The same registration key and content returns the stored one."""
        prepared = prepare_subscription(draft, self._encoder, self._runtime.schemas)
        first_ms: int | None = None
        if prepared.schedule is not None:
            instants.check(prepared.schedule)
            first_ms = instants.first(prepared.schedule, await self._runtime.read(database_now))
        with keyed(prepared.registration_key):
            return triggers.verified(await self._runtime.write(triggers.subscribe, prepared, first_ms))

    async def get(self, subscription_id: str) -> Subscription:
        """A subscription by its id or its handle."""
        name = self._encoder.id(subscription_id, "subscription_id")
        return triggers.verified(await self._runtime.read(triggers.get, name))

    async def list(
        self,
        *,
        session_id: str | None = None,
        handle: str | None = None,
        name: str | None = None,
        source_type: str | None = None,
        source_key: str | None = None,
        definition: Any = None,
        enabled: bool | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> SubscriptionPage:
        """Subscriptions in the order they were made, disabled ones too. A session means its registrations in any frame."""
        encoder = self._encoder
        if definition is not None:
            encoder.json(definition, "definition")
        number = None if handle is None else number_of(encoder.id(handle, "handle"))
        if handle is not None and number is None:
            return SubscriptionPage(subscriptions=(), cursor=None)
        where = SubscriptionFilter(
            session_id=encoder.optional_id(session_id, "session_id"),
            number=number,
            name=encoder.optional_text(name, "name"),
            source_type=encoder.optional_id(source_type, "source_type"),
            source_key=encoder.optional_id(source_key, "source_key"),
            definition_hash=None if definition is None else bytes.fromhex(stable_hash(definition)),
            enabled=enabled,
        )
        limit = self._limit(limit)
        rows = await self._runtime.read(triggers.page, where, limit=limit, after=number_cursor(cursor, start=0))
        return triggers.subscription_page(rows, limit=limit)

    async def cancel(self, session_id: str, handle: str) -> bool:
        """Disable a subscription that this session registered, in any frame. False when it is not its, or was disabled."""
        session_id = self._encoder.id(session_id, "session_id")
        return await self._runtime.write(triggers.cancel, session_id, self._encoder.id(handle, "handle"))

    async def cancel_host(self, handle: str) -> bool:
        """Disable a subscription that the host registered. False when it is not the host's, or was disabled."""
        return await self._runtime.write(triggers.cancel, HOST, self._encoder.id(handle, "handle"))

    async def delete_for_session(self, session_id: str) -> int:
        """Delete everything a session registered, in any frame, with its deliveries; in bounded batches. How many went."""
        session_id = self._encoder.id(session_id, "session_id")
        count, complete = 0, False
        while not complete:
            step = await self._runtime.write(triggers.delete_for_session_step, session_id, COLLECT_ROWS_PER_TRANSACTION)
            count, complete = count + step.subscriptions, step.complete
        return count

    def source_key(self, source_type: str, source: Any) -> str:
        """The key a source has when nobody gave it one: stable, and equal for equal sources."""
        source_type = prepare_source_type(source_type, self._encoder, "source_type")
        self._encoder.json(source, "source")
        return source_key(source_type, source)

    # --- occurrences ----------------------------------------------------------------------------------------------------

    async def emit(self, request: OccurrenceRequest) -> EmitReport:
        """Record what happened and start everything that waits for it, in one transaction.

        The report has every matching subscription: started, failed with its reason, or done already. None is a success too.
        """
        occurrence = prepare_occurrence(request, self._encoder)
        with keyed(occurrence.idempotency_key):
            for _ in range(LOOKS_MAX):
                found = await self._runtime.read(deliveries.match, occurrence)
                wanted = [(candidate, occurrence.occurrence_id, occurrence.payload) for candidate in found.candidates]
                plan = await self._plan(wanted, found.live)
                try:
                    done = await self._runtime.write(deliveries.emit, occurrence, plan)
                except StaleMatch:
                    continue
                return EmitReport(occurrence=occurrences.verified(done.occurrence), outcomes=deliveries.outcomes(done.done))
        raise Busy(f"subscriptions to {occurrence.source_type!r} kept changing")

    async def _plan(self, wanted: Sequence[Any], live: frozenset[str]) -> Plan:
        arguments = (wanted, live, self._encoder, self._runtime.schemas)
        if len(wanted) < OFFLOAD_DELIVERIES:
            return prepare_plan(*arguments)
        return await self._runtime.offload(prepare_plan, *arguments)

    async def record_occurrence(self, request: OccurrenceRequest) -> Occurrence:
        """Record what happened and start nothing. The same key and content returns what was recorded."""
        occurrence = prepare_occurrence(request, self._encoder)
        with keyed(occurrence.idempotency_key):
            for _ in range(LOOKS_MAX):
                try:
                    return occurrences.verified(await self._runtime.write(occurrences.record_occurrence, occurrence))
                except StaleMatch:
                    continue
        raise Busy(f"occurrence {occurrence.occurrence_id!r} kept being pruned")

    async def occurrence(self, occurrence_id: str) -> Occurrence:
        """A recorded occurrence."""
        return occurrences.verified(await self._runtime.read(occurrences.get, self._occurrence(occurrence_id)))

    async def reserve(self, occurrence_id: str) -> tuple[TriggerDelivery, ...]:
        """Promise a delivery to each matching subscription without one; only the new ones, at most 1,000 a call.

        Later subscribers get theirs by a later call. `redrive` starts what is promised.
        """
        made = await self._runtime.write(deliveries.reserve, self._occurrence(occurrence_id))
        return tuple(deliveries.verified(row) for row in made)

    # --- deliveries -----------------------------------------------------------------------------------------------------

    async def deliveries(self, occurrence_id: str, *, limit: int = 100, cursor: str | None = None) -> DeliveryPage:
        """What came of an occurrence, in the order of the subscriptions."""
        after = number_cursor(cursor, start=0)
        return await self._runtime.read(
            deliveries.of_occurrence, self._occurrence(occurrence_id), limit=self._limit(limit), after=after
        )

    async def undelivered(self, *, limit: int = 100, cursor: str | None = None) -> DeliveryPage:
        """Deliveries that were promised and not started yet, oldest first."""
        after = deliveries.undelivered_cursor(cursor)
        return await self._runtime.read(deliveries.undelivered, limit=self._limit(limit), after=after)

    async def redrive(self, *, limit: int = 100) -> RedriveReport:
        """Start deliveries that were promised and left behind, oldest first. Any number of workers may do it at once."""
        limit = self._limit(limit)
        for _ in range(LOOKS_MAX):
            left = await self._runtime.read(deliveries.left_behind, limit)
            wanted = [_wanted(candidate, row) for candidate, row in left.rows]
            plan = await self._plan(wanted, left.live)
            try:
                done = await self._runtime.write(deliveries.redrive, plan) if wanted else []
            except StaleMatch:
                continue
            return RedriveReport(outcomes=deliveries.outcomes(done), more=len(wanted) == limit)
        raise Busy("the deliveries left behind kept changing")

    async def prune(self, *, older_than_ms: int, dry_run: bool = False) -> OccurrencePruneReport:
        """Remove occurrences older than this whose deliveries are all finished, with those; in bounded batches.

        Their processes stay, and so an occurrence that is emitted again later starts nothing twice.
        """
        age_ms = self._encoder.duration(older_than_ms, "older_than_ms")
        removed, unpromised = 0, 0
        after: tuple[int, str] | None = (0, "")
        while after is not None:
            run = self._runtime.read if dry_run else self._runtime.write
            step = await run(
                occurrences.prune_step,
                older_than_ms=age_ms,
                after=after,
                limit=COLLECT_ROWS_PER_TRANSACTION,
                dry_run=dry_run,
            )
            removed, unpromised, after = removed + step.occurrences, unpromised + step.deliveries, step.after
        return OccurrencePruneReport(occurrences=removed, deliveries=unpromised)

    # --- schedules ------------------------------------------------------------------------------------------------------

    async def tick(self, *, limit: int = TICK_MAX) -> TickReport:
        """Fire what is due by the database's clock, at most `limit` instants. Any number of workers may tick at once."""
        tally = Tally(self._encoder.counter(limit, "limit", minimum=1, maximum=TICK_MAX, limit="TICK_MAX"))
        after = (0, "")
        while True:
            found = await self._runtime.read(ticks.due, after=after, limit=limit)
            for each in found.schedules:
                if tally.full:
                    return tally.report(more=True)
                await self._fire(each, found, tally)
                after = (each.next_ms, each.subscription_id)
            if len(found.schedules) < limit:
                return tally.report(more=tally.more)

    async def _fire(self, each: DueSchedule, found: Due, tally: Tally) -> None:
        try:
            owed, firing = self._firing(each, found, tally.room)
        except (Corrupt, Refused) as reason:
            tally.broken.append(BrokenSchedule(subscription_id=each.subscription_id, error=str(reason)))
            return
        try:
            done = await self._runtime.write(ticks.fire, firing)
        except StaleMatch:
            tally.more = True  # its subscription or session went or came: the next tick sees which
            return
        if done is not None:
            tally.add(owed, deliveries.outcomes(done))

    def _firing(self, each: DueSchedule, found: Due, room: int) -> tuple[instants.DueInstants, Firing]:
        subscription = triggers.verified(each.row)
        candidate, schedule = deliveries.candidate_of(each.row), subscription.schedule
        assert schedule is not None, "only subscriptions with a schedule are ever due"
        owed = instants.due(schedule, next_ms=each.next_ms, now_ms=found.now_ms, limit=room)
        made = [
            prepare_instant(subscription, instant_ms, instants.written(schedule, instant_ms), self._encoder)
            for instant_ms in owed.fire
        ]
        wanted = [(candidate, occurrence.occurrence_id, occurrence.payload) for occurrence in made]
        firing = Firing(
            subscription_id=each.subscription_id,
            before_ms=each.next_ms,
            next_ms=owed.next_ms,
            done_ms=owed.done_ms,
            occurrences=tuple(made),
            plan=prepare_plan(wanted, found.live, self._encoder, self._runtime.schemas),
        )
        return owed, firing

    def _limit(self, limit: int) -> int:
        return self._encoder.counter(limit, "limit", minimum=1, maximum=self._runtime.limits.page_rows, limit="page_rows")

    def _occurrence(self, occurrence_id: str) -> str:
        return self._encoder.id(occurrence_id, "occurrence_id")


def _wanted(candidate: Candidate, row: StoredOccurrence) -> tuple[Candidate, str, Any]:
    """What a promise is to be started with; one whose occurrence is damaged fails alone, and says why."""
    try:
        return candidate, row.occurrence_id, occurrences.verified(row).payload
    except Corrupt as error:
        return structs.replace(candidate, subscription=None, error=str(error)), row.occurrence_id, None


class Tally:
    """What a tick did so far, and how much it may still do."""

    def __init__(self, limit: int) -> None:
        self.room = limit
        self.more = False
        self.broken: list[BrokenSchedule] = []
        self._schedules_left = limit
        self._fired = 0
        self._passed_over = 0
        self._outcomes: list[DeliveryOutcome] = []

    @property
    def full(self) -> bool:
        """Whether the next schedule must wait for the next tick."""
        return not self.room or not self._schedules_left

    def add(self, owed: instants.DueInstants, outcomes: Sequence[DeliveryOutcome]) -> None:
        """One schedule that this worker moved on."""
        self.room -= len(owed.fire)
        self.more = self.more or owed.more
        self._schedules_left -= 1
        self._fired += len(owed.fire)
        self._passed_over += owed.passed_over
        self._outcomes += outcomes

    def report(self, *, more: bool) -> TickReport:
        """All of it."""
        return TickReport(
            fired=self._fired,
            passed_over=self._passed_over,
            more=more,
            outcomes=tuple(self._outcomes),
            broken=tuple(self.broken),
        )
