"""The reference model's triggers and artifacts, and processes as a session's handle sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from lash_store import (
    Appended,
    ArtifactCollectReport,
    ArtifactEntry,
    ArtifactRef,
    DeliveryOutcome,
    DeliveryState,
    Descriptor,
    EmitReport,
    FixedBinding,
    Grant,
    Interval,
    InvalidArgument,
    Namespace,
    NotFound,
    NotGranted,
    Occurrence,
    OccurrenceConflict,
    OccurrencePruneReport,
    OccurrenceRequest,
    Outcome,
    Process,
    ProcessInput,
    RedriveReport,
    Registration,
    RegistrationConflict,
    ReplayConflict,
    Scope,
    StartGrant,
    Subscription,
    SubscriptionDraft,
    TickReport,
    TriggerDelivery,
)
from tests.support.pmodel_meaning import (
    canonical,
    check_registration,
    first_instant,
    fits,
    hashed,
    named_after,
    registration_hash,
    to_fire,
    written,
)
from tests.support.pmodel_processes import Processes
from tests.support.pmodel_state import Queue, Sessions, State, Stored

WHY = "a reason"  # texts of reasons are compared by nobody


class Triggers:
    """`store.triggers`."""

    def __init__(self, state: State, processes: Processes) -> None:
        self._state = state
        self._processes = processes

    # --- subscriptions --------------------------------------------------------------------------------------------------

    def subscribe(self, draft: SubscriptionDraft, *, learned: Subscription | None) -> Subscription:
        state = self._state
        key = draft.registration_key or ("?" if learned is None else learned.registration_key)
        made = self._made(draft, key)
        check_registration(self._registration(made, "draft", None))
        for session_id in sorted({scope.session_id for scope in (draft.registrant, draft.wake_target) if scope}):
            state.live(session_id)
        before = next((each for each in state.subscriptions.values() if _place(each) == _place(made)), None)
        if before is not None:
            if _content(before) != _content(made):
                raise RegistrationConflict("subscription", key)
            return before
        state.number += 1
        state.hold(made.env_ref)
        state.subscriptions[state.number] = made
        if isinstance(made.schedule, Interval):
            state.due_ms[state.number] = first_instant(made.schedule, state.now_ms)
        return made

    def _made(self, draft: SubscriptionDraft, key: str) -> Subscription:
        number, now_ms = self._state.number + 1, self._state.now_ms
        identity = draft.identity or named_after(draft.target)
        if draft.identity is None and draft.label is not None:
            identity = replace(identity, label=draft.label)
        source = draft.source
        if source is None and draft.schedule is not None:
            source = msgspec.to_builtins(draft.schedule)
        derived = f"source:{draft.source_type}:sha256:{hashed([draft.source_type, source])}"
        return Subscription(
            subscription_id=f"subscription:{number}",
            handle=f"trigger:{number}",
            number=number,
            registrant=draft.registrant,
            registration_key=key,
            name=draft.name,
            source_type=draft.source_type,
            source_key=draft.source_key or derived,
            source=source,
            payload_schema=draft.payload_schema,
            target=draft.target,
            identity=identity,
            event_types=tuple(draft.event_types),
            input_template=draft.input_template,
            env_ref=draft.env_ref,
            wake_target=draft.wake_target,
            label=draft.label,
            schedule=draft.schedule,
            enabled=True,
            created_ms=now_ms,
            updated_ms=now_ms,
        )

    def get(self, name: str) -> Subscription:
        found = [each for each in self._state.subscriptions.values() if name in (each.subscription_id, each.handle)]
        if not found:
            raise NotFound("subscription", name)
        return found[0]

    def list(self, *, session_id: str | None = None, enabled: bool | None = None) -> tuple[Subscription, ...]:
        found = [each for _, each in sorted(self._state.subscriptions.items())]
        return tuple(
            each
            for each in found
            if session_id is None or (each.registrant is not None and each.registrant.session_id == session_id)
            if enabled is None or each.enabled == enabled
        )

    def cancel(self, session_id: str, handle: str) -> bool:
        return self._disable(session_id, handle)

    def cancel_host(self, handle: str) -> bool:
        return self._disable(None, handle)

    def _disable(self, session_id: str | None, handle: str) -> bool:
        for number, each in self._state.subscriptions.items():
            registrant = None if each.registrant is None else each.registrant.session_id
            if handle == each.handle and registrant == session_id and each.enabled:
                self._state.subscriptions[number] = replace(each, enabled=False, updated_ms=self._state.now_ms)
                self._state.due_ms.pop(number, None)
                return True
        return False

    def delete_for_session(self, session_id: str) -> int:
        return self._state.drop_subscriptions(session_id)

    # --- occurrences ----------------------------------------------------------------------------------------------------

    def record_occurrence(self, request: OccurrenceRequest) -> Occurrence:
        if request.idempotency_key.startswith("schedule:") or not request.idempotency_key.strip():
            raise InvalidArgument("idempotency_key", "is not for callers")
        return self._record(request)

    def _record(self, request: OccurrenceRequest) -> Occurrence:
        source, key = (request.source_type, request.source_key), request.idempotency_key
        occurrence_id = f"trigger:{hashed([*source, key])}"
        known = self._state.occurrences.get(occurrence_id)
        if known is not None:
            if canonical([known.payload, known.source]) != canonical([request.payload, request.source]):
                raise OccurrenceConflict(source_type=source[0], source_key=source[1], idempotency_key=key)
            return known
        made = Occurrence(
            occurrence_id=occurrence_id,
            source_type=source[0],
            source_key=source[1],
            idempotency_key=key,
            payload=request.payload,
            source=request.source,
            occurred_ms=self._state.now_ms,
        )
        self._state.occurrences[occurrence_id] = made
        return made

    def occurrence(self, occurrence_id: str) -> Occurrence:
        if occurrence_id not in self._state.occurrences:
            raise NotFound("occurrence", occurrence_id)
        return self._state.occurrences[occurrence_id]

    def _unreserved(self, occurrence: Occurrence) -> list[Subscription]:
        """Who waits for this and was promised nothing yet."""
        source, key = (occurrence.source_type, occurrence.source_key), occurrence.idempotency_key
        return [
            each
            for number, each in sorted(self._state.subscriptions.items())
            if each.enabled and (each.source_type, each.source_key) == source
            if not key.startswith("schedule:") or key.startswith(f"schedule:{each.subscription_id}:")
            if each.registrant is None or self._state.is_live(each.registrant.session_id)
            if (occurrence.occurrence_id, number) not in self._state.deliveries
        ]

    def reserve(self, occurrence_id: str) -> tuple[TriggerDelivery, ...]:
        occurrence = self.occurrence(occurrence_id)
        return tuple(self._deliver(occurrence, each, DeliveryState.RESERVED) for each in self._unreserved(occurrence))

    def _deliver(self, occurrence: Occurrence, subscription: Subscription, state: DeliveryState) -> TriggerDelivery:
        now_ms, key = self._state.now_ms, (occurrence.occurrence_id, subscription.number)
        before = self._state.deliveries.get(key)
        made = TriggerDelivery(
            occurrence_id=occurrence.occurrence_id,
            subscription_id=subscription.subscription_id,
            process_id=f"process:trigger:{hashed([occurrence.occurrence_id, subscription.subscription_id])}",
            state=state,
            error=WHY if state is DeliveryState.FAILED else None,
            subscription=subscription,
            created_ms=now_ms if before is None else before.created_ms,
            updated_ms=now_ms,
        )
        self._state.deliveries[key] = made
        return made

    def emit(self, request: OccurrenceRequest) -> EmitReport:
        occurrence = self.record_occurrence(request)
        fresh = {each.number: each for each in self._unreserved(occurrence)}
        stored = {number: each for (id, number), each in self._state.deliveries.items() if id == occurrence.occurrence_id}
        outcomes: list[DeliveryOutcome] = []
        for number in sorted({*fresh, *stored}):
            before = stored.get(number)
            if before is not None and before.state is not DeliveryState.RESERVED:
                outcomes.append(DeliveryOutcome(outcome=Outcome.ALREADY, delivery=before))
            else:
                outcomes.append(self._start(occurrence, fresh.get(number) or (before and before.subscription)))
        return EmitReport(occurrence=occurrence, outcomes=tuple(outcomes))

    def _start(self, occurrence: Occurrence, subscription: Subscription | None) -> DeliveryOutcome:
        """Register the process of one delivery, and grant it to the session it wakes."""
        assert subscription is not None
        outcome = self._register(occurrence, subscription)
        state = DeliveryState.FAILED if outcome is Outcome.FAILED else DeliveryState.STARTED
        return DeliveryOutcome(outcome=outcome, delivery=self._deliver(occurrence, subscription, state))

    def _register(self, occurrence: Occurrence, subscription: Subscription) -> Outcome:
        if not fits(subscription.payload_schema, occurrence.payload):
            return Outcome.FAILED
        target = subscription.wake_target
        woken = target if target is not None and self._state.is_live(target.session_id) else None
        wanted = replace(self._registration(subscription, occurrence.occurrence_id, occurrence.payload), wake_target=woken)
        self._state.hold(wanted.env_ref)
        known = self._state.processes.get(wanted.process_id)
        if known is not None and registration_hash(known.registration) != registration_hash(wanted):
            return Outcome.FAILED
        if known is None:
            self._processes.insert(wanted)
        if woken is not None and known is None:
            label = subscription.label if subscription.label is not None else subscription.identity.label
            self._processes.put_grant(woken, wanted.process_id, Descriptor(kind=subscription.identity.kind, label=label))
        return Outcome.STARTED if known is None else Outcome.ALREADY

    def _registration(self, subscription: Subscription, occurrence_id: str, payload: Any) -> Registration:
        if not isinstance(subscription.target.payload, dict):
            raise InvalidArgument("target.payload", "must be an object")
        template = subscription.input_template.items()
        args = {name: bound.value if isinstance(bound, FixedBinding) else payload for name, bound in template}
        return Registration(
            process_id=f"process:trigger:{hashed([occurrence_id, subscription.subscription_id])}",
            input=ProcessInput(subscription.target.kind, {**subscription.target.payload, "args": args}),
            identity=subscription.identity,
            event_types=subscription.event_types,
            originator=subscription.registrant,
            caused_by={"type": "trigger_occurrence", "occurrence_id": occurrence_id},
            env_ref=subscription.env_ref,
            wake_target=subscription.wake_target,
        )

    # --- deliveries -----------------------------------------------------------------------------------------------------

    def deliveries(self, occurrence_id: str) -> tuple[TriggerDelivery, ...]:
        return tuple(each for key, each in sorted(self._state.deliveries.items()) if key[0] == occurrence_id)

    def undelivered(self) -> tuple[TriggerDelivery, ...]:
        left = [each for each in self._state.deliveries.values() if each.state is DeliveryState.RESERVED]
        return tuple(sorted(left, key=lambda each: (each.created_ms, each.occurrence_id, each.subscription_id)))

    def redrive(self, *, limit: int) -> RedriveReport:
        left = self.undelivered()[:limit]
        done = [self._start(self._state.occurrences[each.occurrence_id], each.subscription) for each in left]
        return RedriveReport(outcomes=tuple(done), more=len(left) == limit)

    def prune(self, *, older_than_ms: int, dry_run: bool = False) -> OccurrencePruneReport:
        until_ms = self._state.now_ms - older_than_ms
        promised = {each.occurrence_id for each in self.undelivered()}
        gone = [id for id, each in self._state.occurrences.items() if each.occurred_ms <= until_ms and id not in promised]
        finished = [key for key in self._state.deliveries if key[0] in gone]
        if not dry_run:
            for id in gone:
                del self._state.occurrences[id]
            for key in finished:
                del self._state.deliveries[key]
        return OccurrencePruneReport(occurrences=len(gone), deliveries=len(finished))

    # --- schedules ------------------------------------------------------------------------------------------------------

    def tick(self, *, limit: int) -> TickReport:
        """Every due schedule in turn, as long as there is room; at most `limit` instants and `limit` schedules."""
        room = schedules = limit
        fired = passed_over = 0
        owes_more = False
        outcomes: list[DeliveryOutcome] = []
        after = (0, "")
        while True:
            due = self._due(after)[:limit]
            for next_ms, id, number in due:
                if not room or not schedules:
                    return self._report(fired, passed_over, outcomes, more=True)
                instants, passed, more = self._fire(number, next_ms, room, outcomes)
                room, schedules, fired = room - instants, schedules - 1, fired + instants
                passed_over, owes_more, after = passed_over + passed, owes_more or more, (next_ms, id)
            if len(due) < limit:
                return self._report(fired, passed_over, outcomes, more=owes_more)

    def _report(self, fired: int, passed_over: int, outcomes: Sequence[DeliveryOutcome], *, more: bool) -> TickReport:
        return TickReport(fired=fired, passed_over=passed_over, more=more, outcomes=tuple(outcomes), broken=())

    def _due(self, after: tuple[int, str]) -> list[tuple[int, str, int]]:
        found = [
            (next_ms, f"subscription:{number}", number)
            for number, next_ms in self._state.due_ms.items()
            if next_ms is not None and next_ms <= self._state.now_ms
        ]
        return [each for each in sorted(found) if each[:2] > after]

    def _fire(self, number: int, next_ms: int, room: int, outcomes: list[DeliveryOutcome]) -> tuple[int, int, bool]:
        """Fire what one schedule owes: how many instants, how many it passed over, and whether it owes more."""
        subscription, now_ms = self._state.subscriptions[number], self._state.now_ms
        schedule = subscription.schedule
        assert isinstance(schedule, Interval)
        due = list(range(next_ms, now_ms + 1, schedule.every_ms))
        wanted = to_fire(schedule, due, now_ms)
        chosen = wanted[:room]
        for instant_ms in chosen:
            request = OccurrenceRequest(
                source_type=subscription.source_type,
                source_key=subscription.source_key,
                idempotency_key=f"schedule:{subscription.subscription_id}:{instant_ms}",
                payload={"instant_ms": instant_ms, "scheduled": written(instant_ms)},
                source=subscription.source,
            )
            outcomes.append(self._start(self._record(request), subscription))
        more = len(wanted) > len(chosen)
        self._state.due_ms[number] = wanted[len(chosen)] if more else due[-1] + schedule.every_ms
        return len(chosen), len(due) - len(wanted), more


def _place(subscription: Subscription) -> tuple[str | None, str]:
    registrant = subscription.registrant
    return None if registrant is None else registrant.session_id, subscription.registration_key


def _content(subscription: Subscription) -> str:
    own = replace(subscription, subscription_id="", handle="", number=0, enabled=True, created_ms=0, updated_ms=0)
    return canonical(msgspec.to_builtins(own))


class Artifacts:
    """`store.artifacts`."""

    def __init__(self, state: State) -> None:
        self._state = state

    def put(self, namespace: str, data: bytes, *, ref: str | None = None, descriptor: str | None = None) -> ArtifactRef:
        digest, minted = hashlib.sha256(data).hexdigest(), {"module": "module:sha256:", "process_env": "process-env:sha256:"}
        if ref is None and namespace not in minted:
            raise InvalidArgument("ref", "is needed")
        ref = f"{minted[namespace]}{digest}" if ref is None else ref
        stated = ref.rpartition("sha256:")[2] if "sha256:" in ref else digest
        if stated != digest and (namespace == "process_env" or ref.startswith(minted.get(namespace, "no such"))):
            raise InvalidArgument("ref", "is not of these bytes")
        self._keep(Namespace(namespace), ref, data, descriptor)
        return ArtifactRef(namespace=Namespace(namespace), ref=ref, byte_len=len(data))

    def _keep(self, namespace: Namespace, ref: str, data: bytes, descriptor: str | None) -> None:
        now_ms = self._state.now_ms
        before = self._state.artifacts.get((namespace, ref))
        bound = before is not None and namespace is not Namespace.RAW
        if before is not None and bound and before.data != data:
            raise ReplayConflict("artifact", key=ref, owner=namespace)
        entry = ArtifactEntry(
            ref=ArtifactRef(namespace=namespace, ref=ref, byte_len=len(data)),
            descriptor=before.entry.descriptor if before is not None and bound else descriptor,
            created_ms=now_ms if before is None else before.entry.created_ms,
            updated_ms=now_ms,
        )
        self._state.artifacts[namespace, ref] = Stored(entry, data)

    def put_env(self, spec: Any) -> str:
        return self.put("process_env", canonical(spec).encode()).ref

    def get(self, namespace: str, ref: str) -> bytes:
        if (namespace, ref) not in self._state.artifacts:
            raise NotFound("artifact", ref)
        return self._state.artifacts[namespace, ref].data

    def delete(self, namespace: str, ref: str) -> bool:
        return self._state.artifacts.pop((namespace, ref), None) is not None

    def list(self, namespace: str) -> tuple[ArtifactEntry, ...]:
        return tuple(each.entry for key, each in sorted(self._state.artifacts.items()) if key[0] == namespace)

    def collect(self, *, older_than_ms: int, dry_run: bool = False) -> ArtifactCollectReport:
        state = self._state
        named = {each.registration.env_ref for each in state.processes.values() if not each.pruned}
        named |= {each.env_ref for each in state.subscriptions.values()}
        gone = {
            key: each
            for key, each in state.artifacts.items()
            if key[0] == "process_env" and key[1] not in named and each.entry.updated_ms <= state.now_ms - older_than_ms
        }
        for key in () if dry_run else gone:
            del state.artifacts[key]
        return ArtifactCollectReport(
            removed=len(gone), removed_bytes=sum(len(each.data) for each in gone.values()), complete=True
        )


class Handle:
    """What a session's handle may do with processes. It stays with the incarnation it met first."""

    def __init__(self, state: State, processes: Processes, session_id: str) -> None:
        self._state = state
        self._processes = processes
        self.session_id = session_id
        self._incarnation: int | None = None

    def _meet(self) -> int:
        if self._incarnation is None:
            self._incarnation = self._state.live(self.session_id).incarnation
        return self._incarnation

    def _present(self) -> None:
        self._state.live(self.session_id, self._meet())

    def _require(self, process_id: str) -> None:
        self._present()
        if not any(key[0] == self.session_id and key[2] == process_id for key in self._state.grants):
            raise NotGranted(self.session_id, process_id=process_id)

    def start(self, registration: Registration, *, frame_id: str | None = None, descriptor: Descriptor | None = None) -> Process:
        scope, incarnation = Scope(self.session_id, frame_id), self._meet()
        own = replace(registration, originator=registration.originator or scope, wake_target=registration.wake_target or scope)
        grant = StartGrant(scope=scope, descriptor=descriptor or Descriptor())
        return self._processes.register(own, grant=grant, incarnation=incarnation)

    def get(self, process_id: str) -> Process:
        self._require(process_id)
        return self._processes.get(process_id)

    def signal(
        self, process_id: str, name: str, payload: Any = None, *, signal_id: str | None = None, learned: Appended | None
    ) -> Appended:
        self._require(process_id)
        return self._processes.signal(process_id, name, payload, signal_id=signal_id, learned=learned)

    def cancel(self, process_id: str, *, reason: str | None = None) -> Process:
        self._require(process_id)
        return self._processes.cancel(process_id, reason=reason)

    def share(self, process_id: str, scope: Scope, *, descriptor: Descriptor | None = None) -> Grant:
        self._require(process_id)
        return self._processes.grant(scope, process_id, descriptor=descriptor)

    def transfer(self, target: Scope, process_ids: Sequence[str], *, frame_id: str | None = None) -> int:
        self._present()
        return self._processes.transfer(Scope(self.session_id, frame_id), target, process_ids)

    def revoke(self, process_id: str, *, frame_id: str | None = None) -> bool:
        self._present()
        return self._processes.revoke(Scope(self.session_id, frame_id), process_id)


class Model:
    """The whole store in plain Python, noun by noun."""

    def __init__(self, now_ms: int) -> None:
        self.state = State(now_ms)
        self.sessions = Sessions(self.state)
        self.queue = Queue(self.state)
        self.processes = Processes(self.state)
        self.triggers = Triggers(self.state, self.processes)
        self.artifacts = Artifacts(self.state)

    def handle(self, session_id: str) -> Handle:
        return Handle(self.state, self.processes, session_id)
