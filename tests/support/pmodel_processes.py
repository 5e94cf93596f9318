"""The reference model's processes: logs that are lists, leases by comparing numbers, grants in a dictionary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lash_store import (
    AlreadyTerminal,
    Appended,
    Descriptor,
    Event,
    EventDraft,
    EventType,
    ExternalRef,
    Failure,
    Grant,
    GrantEntry,
    InvalidArgument,
    Lease,
    Leased,
    LeaseHeld,
    NotFound,
    NotGranted,
    Output,
    Process,
    ProcessState,
    PruneReport,
    Registration,
    RegistrationConflict,
    ReplayConflict,
    Scope,
    StartGrant,
    Success,
    UndeclaredEvent,
    Wait,
    WakeDelivery,
)
from tests.support.pmodel_meaning import (
    CORE,
    RUNNING,
    Meaning,
    canonical,
    check_registration,
    hashed,
    meaning,
    registration_hash,
    resolved,
    wake_id,
)
from tests.support.pmodel_state import Room, Running, State, Work


class Planned(Struct):
    """An event about to be appended, and what it means."""

    event: Event
    means: Meaning


class Registering:
    """Registration and grants: who there is, and who may see whom."""

    def __init__(self, state: State) -> None:
        self._state = state

    def register(self, registration: Registration, *, grant: StartGrant | None = None, incarnation: int | None = None) -> Process:
        check_registration(registration)
        known = self._state.processes.get(registration.process_id)
        if known is not None and registration_hash(known.registration) != registration_hash(registration):
            raise RegistrationConflict("process", registration.process_id)
        if known is None:
            self._check_sessions(registration.wake_target, grant, incarnation)
        self._state.hold(registration.env_ref)
        process = known or self.insert(registration)
        if grant is not None and known is None:
            # A retry grants nothing again: the process may have been handed on since.
            self.put_grant(grant.scope, process.process_id, grant.descriptor)
        return process.shown()

    def _check_sessions(self, target: Scope | None, grant: StartGrant | None, incarnation: int | None) -> None:
        for session_id in sorted({scope.session_id for scope in (target, grant and grant.scope) if scope}):
            self._state.live(session_id)
        if grant is not None:
            self._state.live(grant.scope.session_id, incarnation)

    def insert(self, registration: Registration) -> Running:
        """A new process, running since now."""
        now_ms = self._state.now_ms
        runnable_ms = None if registration.input.kind == "external" else now_ms
        process = Running(resolved(registration), registration.wake_target, now_ms, now_ms, runnable_ms)
        self._state.processes[process.process_id] = process
        return process

    def put_grant(self, scope: Scope, process_id: str, descriptor: Descriptor) -> Grant:
        """A later grant to the same scope changes how it names the process, not since when it holds it."""
        key = (scope.session_id, scope.frame_id or "", process_id)
        before = self._state.grants.get(key)
        since_ms = self._state.now_ms if before is None else before.granted_ms
        made = Grant(scope=scope, process_id=process_id, descriptor=descriptor, granted_ms=since_ms)
        self._state.grants[key] = made
        return made

    def grant(self, scope: Scope, process_id: str, *, descriptor: Descriptor | None = None) -> Grant:
        self._state.live(scope.session_id)
        self._state.there(process_id)
        return self.put_grant(scope, process_id, descriptor or Descriptor())

    def revoke(self, scope: Scope, process_id: str) -> bool:
        return self._state.grants.pop((scope.session_id, scope.frame_id or "", process_id), None) is not None

    def transfer(self, source: Scope, target: Scope, process_ids: Sequence[str]) -> int:
        if len(set(process_ids)) < len(process_ids):
            raise InvalidArgument("process_ids", "names a process twice")
        for scope in (source, target):
            self._state.live(scope.session_id)
        for process_id in process_ids:
            if not self.has_grant(source, process_id):
                raise NotGranted(source.session_id, process_id=process_id)
        for process_id in process_ids if source != target else ():
            moved = self._state.grants.pop((source.session_id, source.frame_id or "", process_id))
            self.put_grant(target, process_id, moved.descriptor)
        return len(process_ids)

    def has_grant(self, scope: Scope, process_id: str) -> bool:
        return (scope.session_id, scope.frame_id or "", process_id) in self._state.grants

    def grants_for(self, process_id: str) -> tuple[Grant, ...]:
        self._state.there(process_id)
        return tuple(grant for key, grant in sorted(self._state.grants.items()) if key[2] == process_id)

    def list_grants(self, scope: Scope, *, live_only: bool = False) -> tuple[GrantEntry, ...]:
        held = [grant for _, grant in sorted(self._state.grants.items()) if grant.scope == scope]
        entries = [GrantEntry(grant=grant, process=self._state.processes[grant.process_id].shown()) for grant in held]
        return tuple(entry for entry in entries if not live_only or not entry.process.terminal)


class Logging(Registering):
    """The event log, and the wakes that come of it."""

    def append(
        self,
        process_id: str,
        event_type: str,
        payload: Any = None,
        *,
        replay_key: str | None = None,
        lease: Lease | None = None,
        learned: Appended | None,
    ) -> Appended:
        draft = EventDraft(event_type=event_type, payload=payload, replay_key=replay_key)
        return self._append(process_id, [draft], lease, learned=() if learned is None else (learned,))[0]

    def append_many(
        self,
        process_id: str,
        drafts: Sequence[EventDraft],
        *,
        lease: Lease | None = None,
        key: str | None = None,
        learned: Sequence[Appended] | None,
    ) -> tuple[Appended, ...]:
        return self._append(process_id, drafts, lease, key=key, learned=learned or ())

    def _append(
        self,
        process_id: str,
        drafts: Sequence[EventDraft],
        lease: Lease | None = None,
        *,
        key: str | None = None,
        learned: Sequence[Appended] = (),
        fenced: bool = False,
    ) -> tuple[Appended, ...]:
        if not drafts:
            return ()
        process = self._state.there(process_id)
        meanings = [self._meaning(process, draft) for draft in drafts]
        minted = [each.event for each in learned] if len(learned) == len(drafts) else [None] * len(drafts)
        # A refused call tells nobody its keys; they differ from each other all the same.
        spare = [f"{key}:{i}" if key else f"?:{i}" if event is None else event.replay_key for i, event in enumerate(minted)]
        known = {event.replay_key: _said(event) for event in process.events}
        keyed = [draft if draft.replay_key else replace(draft, replay_key=spare[i]) for i, draft in enumerate(drafts)]
        plan = [self._planned(process, draft, means) for draft, means in zip(keyed, meanings, strict=True)]
        if lease is not None and any(_said(planned.event) != known.get(planned.event.replay_key) for planned in plan):
            process.require(lease, self._state.now_ms)
        found, fresh = self._split(process, plan)
        self._check_lease(process, lease, fresh, fenced=fenced)
        for planned in fresh:
            first = next(i for i, draft in enumerate(keyed) if draft.replay_key == planned.event.replay_key)
            event = minted[first]
            self._write(process, planned, None if event is None or event.wake is None else event.wake.batch_id)
        stored = {event.replay_key: event for event in process.events}
        return tuple(Appended(event=stored[draft.replay_key], replayed=again) for draft, again in zip(keyed, found, strict=True))

    def _meaning(self, process: Running, draft: EventDraft) -> Meaning:
        declared = self._declared(process, draft.event_type)
        if draft.replay_key is None and (declared.terminal or declared.name == "process.cancel_requested"):
            raise InvalidArgument("replay_key", "is required")
        return meaning(declared, draft.payload)

    def _declared(self, process: Running, name: str) -> EventType:
        for declared in (*CORE, *process.registration.event_types):
            if declared.name == name:
                return declared
        raise UndeclaredEvent(process.process_id, event_type=name)

    def _planned(self, process: Running, draft: EventDraft, means: Meaning) -> Planned:
        terminal = self._declared(process, draft.event_type).terminal
        event = Event(
            process_id=process.process_id,
            sequence=0,
            event_type=draft.event_type,
            payload=draft.payload,
            replay_key=draft.replay_key,
            terminal=None if terminal is None else terminal.state,
            wake=None,
            occurred_ms=self._state.now_ms,
        )
        return Planned(event, means)

    def _split(self, process: Running, plan: Sequence[Planned]) -> tuple[list[bool], list[Planned]]:
        """Which of these are stored already, and the new ones. A process ends once."""
        known = {event.replay_key: event for event in process.events}
        found: list[bool] = []
        fresh: list[Planned] = []
        state = process.state
        for planned in plan:
            event, before = planned.event, known.get(planned.event.replay_key)
            found.append(before is not None)
            if before is not None:
                if _said(before) != _said(event):
                    raise ReplayConflict("event", key=event.replay_key or "", owner=process.process_id)
                continue
            if event.terminal is not None and state is not RUNNING:
                raise AlreadyTerminal(process.process_id, state=str(state))
            state = event.terminal or state
            known[event.replay_key] = event
            fresh.append(planned)
        return found, fresh

    def _check_lease(self, process: Running, lease: Lease | None, fresh: Sequence[Planned], *, fenced: bool) -> None:
        if not fresh and not fenced:
            return
        if lease is not None:
            process.require(lease, self._state.now_ms)
        elif any(planned.event.terminal for planned in fresh) and process.leased(self._state.now_ms):
            assert process.lease is not None
            raise LeaseHeld(process.process_id, owner=process.lease.owner, expires_ms=process.lease.expires_ms)

    def _write(self, process: Running, planned: Planned, minted: str | None) -> None:
        event = replace(planned.event, sequence=process.last_sequence + 1)
        if planned.means.input is not None:
            event = replace(event, wake=self._wake(process, event, planned.means, minted or "?"))
        process.events = [*process.events, event]
        process.last_sequence += 1
        process.updated_ms = self._state.now_ms
        if event.terminal is not None:
            process.state, process.output = event.terminal, planned.means.output
            process.wait = process.lease = process.runnable_ms = None

    def _wake(self, process: Running, event: Event, means: Meaning, minted: str) -> WakeDelivery:
        """Put the wake into its session's inbox, unless one of the same id waits there that nobody works on."""
        target, said = process.wake, means.input or ""
        dedupe = means.dedupe if means.dedupe is not None else f"{process.process_id}:{event.sequence}"
        name = wake_id(target, dedupe)
        batch_id, coalesced = None, False
        if target is not None:
            room = self._state.rooms[target.session_id]
            batch_id, coalesced = self._enqueue(room, process, event, said, name, minted)
        return WakeDelivery(wake_id=name, dedupe_key=dedupe, input=said, target=target, batch_id=batch_id, coalesced=coalesced)

    def _enqueue(self, room: Room, process: Running, event: Event, said: str, name: str, minted: str) -> tuple[str, bool]:
        same = [work for work in room.works.values() if work.key.startswith(name)]
        waiting = next((work for work in same if work.hold is None and work.parked is None), None)
        if waiting is not None:
            return waiting.batch_id, True
        beside = hashed([process.process_id, event.sequence])[:32]
        payload = {
            "type": "process_wake",
            "process_id": process.process_id,
            "event_type": event.event_type,
            "input": said,
            "frame_id": None if process.wake is None else process.wake.frame_id,
            "caused_by": process.registration.caused_by,
        }
        key = f"{name}:{beside}" if same else name
        room.works[minted] = Work(minted, room.next_seq, key, json.loads(canonical(payload)), self._state.now_ms)
        room.next_seq += 1
        return minted, False

    # --- looking at the log ---------------------------------------------------------------------------------------------

    def events(self, process_id: str, *, after: int = 0, types: Sequence[str] | None = None) -> tuple[Event, ...]:
        log = self._state.there(process_id).events
        return tuple(event for event in log if event.sequence > after and (types is None or event.event_type in types))

    def recent(self, process_id: str, *, limit: int) -> tuple[Event, ...]:
        return tuple(self._state.there(process_id).events[-limit:])

    def count_through(self, process_id: str, event_type: str, sequence: int) -> int:
        return sum(event.sequence <= sequence for event in self.events(process_id, types=[event_type]))

    def wake_events(self, process_id: str) -> tuple[Event, ...]:
        process = self._state.there(process_id)
        return tuple(event for event in process.events if event.wake and event.sequence not in process.acked)

    def woken_by(self, process_id: str, batch_id: str) -> tuple[Event, ...]:
        return tuple(event for event in self.events(process_id) if event.wake and event.wake.batch_id == batch_id)

    def ack_wake(self, process_id: str, sequence: int) -> bool:
        process = self._state.there(process_id)
        if not any(event.sequence == sequence and event.wake for event in process.events):
            raise NotFound("wake", f"{process_id}#{sequence}")
        first = sequence not in process.acked
        process.acked = {*process.acked, sequence}
        return first


class Processes(Logging):
    """`store.processes`."""

    def get(self, process_id: str) -> Process:
        return self._state.there(process_id).shown()

    def list(self, **where: Any) -> tuple[Process, ...]:
        found = [process for _, process in sorted(self._state.processes.items()) if not process.pruned]
        return tuple(process.shown() for process in found if _matches(process, where))

    def non_terminal(self) -> tuple[Process, ...]:
        return self.list(state=RUNNING)

    def set_external_ref(self, process_id: str, ref: ExternalRef) -> Process:
        process = self._touched(process_id)
        process.external_ref = ref
        return process.shown()

    def set_wait(self, process_id: str, wait: Wait, *, lease: Lease | None = None) -> Process:
        process, now_ms = self._state.there(process_id), self._state.now_ms
        if process.state is not RUNNING:
            raise AlreadyTerminal(process_id, state=str(process.state))
        if lease is not None:
            process.require(lease, now_ms)
        shown = process.wait
        same = shown is not None and (shown.name, shown.ordinal) == (wait.name, wait.ordinal)
        process.wait = shown if same else replace(wait, since_ms=now_ms)
        return self._touched(process_id).shown()

    def clear_wait(self, process_id: str) -> Process:
        process = self._touched(process_id)
        process.wait = None
        return process.shown()

    def _touched(self, process_id: str) -> Running:
        process = self._state.there(process_id)
        process.updated_ms = self._state.now_ms
        return process

    # --- ending and signals ---------------------------------------------------------------------------------------------

    def complete(self, process_id: str, output: Output, *, lease: Lease | None = None) -> Process:
        state = "completed" if isinstance(output, Success) else "failed" if isinstance(output, Failure) else "cancelled"
        payload = {"output": msgspec.to_builtins(output)}
        self._mark(process_id, f"process.{state}", payload, f"terminal:process.{state}", lease)
        return self.get(process_id)

    def cancel(self, process_id: str, *, reason: str | None = None) -> Process:
        name, payload = "process.cancel_requested", {"reason": reason}
        self._mark(process_id, name, payload, f"cancel_requested:{hashed([name, payload])}")
        return self.get(process_id)

    def signal(
        self, process_id: str, name: str, payload: Any = None, *, signal_id: str | None = None, learned: Appended | None
    ) -> Appended:
        known = "?" if learned is None else learned.event.replay_key or "?"
        key = known.rpartition(f"signal.{name}:")[2] if signal_id is None else signal_id
        return self._mark(process_id, f"signal.{name}", payload, f"signal.{name}:{key}", learned=learned)

    def _mark(
        self,
        process_id: str,
        event_type: str,
        payload: Any,
        key: str,
        lease: Lease | None = None,
        *,
        learned: Appended | None = None,
        fenced: bool = False,
    ) -> Appended:
        key = f"process:{process_id}:{key}"
        short = key if len(key.encode()) <= 200 else f"key:sha256:{hashed(key)}"
        draft = EventDraft(event_type=event_type, payload=payload, replay_key=short)
        return self._append(process_id, [draft], lease, learned=() if learned is None else (learned,), fenced=fenced)[0]

    def wait_signal(
        self, process_id: str, name: str, *, ordinal: int, timeout_ms: int, lease: Lease | None = None
    ) -> Event | None:
        """With no time to wait: the signal if it is there, otherwise the wait is shown."""
        assert timeout_ms == 0
        mark, key = {"signal": name, "ordinal": ordinal}, f"signal.{name}:{ordinal}"
        self._mark(process_id, "process.waiting", mark, f"waiting:{key}", lease, fenced=True)
        came = self.events(process_id, types=[f"signal.{name}"])[ordinal - 1 : ordinal]
        if not came:
            self.set_wait(process_id, Wait(name=name, ordinal=ordinal), lease=lease)
            return None
        shown = self._state.processes[process_id]
        if shown.wait is not None and (shown.wait.name, shown.wait.ordinal) == (name, ordinal):
            self.clear_wait(process_id)
        self._mark(process_id, "process.resumed", mark, f"resumed:{key}", lease, fenced=True)
        return came[0]

    # --- leases ---------------------------------------------------------------------------------------------------------

    def claim(
        self,
        process_id: str,
        owner: str,
        *,
        incarnation: str,
        lease_ms: int,
        token: str | None = None,
        learned: Lease | None,
    ) -> Lease:
        process, now_ms = self._state.there(process_id), self._state.now_ms
        held = process.lease if process.leased(now_ms) else None
        if held is not None and (held.owner, held.incarnation) != (owner, incarnation):
            raise LeaseHeld(process_id, owner=held.owner, expires_ms=held.expires_ms)
        if held is not None and held.token == token:
            return held
        minted = "?" if learned is None else learned.token
        return self._lease(process, owner, incarnation, token or minted, lease_ms)

    def _lease(self, process: Running, owner: str, incarnation: str, token: str, lease_ms: int) -> Lease:
        now_ms = self._state.now_ms
        process.fence += 1
        process.lease = Lease(
            process_id=process.process_id,
            owner=owner,
            incarnation=incarnation,
            token=token,
            fence=process.fence,
            claimed_ms=now_ms,
            expires_ms=now_ms + lease_ms,
        )
        process.runnable_ms = None if process.runnable_ms is None else now_ms + lease_ms
        return process.lease

    def claim_next(
        self,
        owner: str,
        *,
        incarnation: str,
        lease_ms: int,
        kinds: Sequence[str] | None = None,
        limit: int = 1,
        learned: Sequence[Leased] | None,
    ) -> tuple[Leased, ...]:
        waiting = [
            (process.runnable_ms, process_id, process)
            for process_id, process in self._state.processes.items()
            if process.runnable_ms is not None and process.runnable_ms <= self._state.now_ms
            if kinds is None or process.registration.input.kind in kinds
        ]
        tokens = [*(each.lease.token for each in learned or ()), *["?"] * limit]
        chosen = [process for _, _, process in sorted(waiting, key=lambda each: each[:2])][:limit]
        return tuple(
            Leased(process=process.shown(), lease=self._lease(process, owner, incarnation, token, lease_ms))
            for process, token in zip(chosen, tokens, strict=False)
        )

    def renew(self, lease: Lease, *, lease_ms: int) -> Lease:
        process, now_ms = self._state.there(lease.process_id), self._state.now_ms
        process.require(lease, now_ms)
        assert process.lease is not None
        process.lease = replace(process.lease, expires_ms=now_ms + lease_ms)
        process.runnable_ms = None if process.runnable_ms is None else now_ms + lease_ms
        return replace(lease, expires_ms=now_ms + lease_ms)

    def release(self, lease: Lease) -> bool:
        process = self._state.processes[lease.process_id]
        if process.lease is None or (process.lease.token, process.fence) != (lease.token, lease.fence):
            return False
        process.free(self._state.now_ms)
        return True

    def break_lease(self, process_id: str) -> int:
        process = self._state.there(process_id)
        process.fence += 1
        process.free(self._state.now_ms)
        return process.fence

    # --- pruning --------------------------------------------------------------------------------------------------------

    def prune(self, *, older_than_ms: int, dry_run: bool = False) -> PruneReport:
        now_ms = self._state.now_ms
        ended = [p for p in self._state.processes.values() if p.state is not RUNNING and not p.pruned]
        gone = [p for p in ended if p.updated_ms <= now_ms - older_than_ms and not p.leased(now_ms)]
        report = PruneReport(processes=len(gone), events=sum(p.last_sequence for p in gone), complete=True)
        for process in () if dry_run else gone:
            process.pruned, process.events = True, []
            process.output = process.wait = process.external_ref = process.wake = process.lease = None
            for key in [key for key in self._state.grants if key[2] == process.process_id]:
                del self._state.grants[key]
        return report


def _said(event: Event) -> str:
    return canonical([event.event_type, event.payload])


def _matches(process: Running, where: dict[str, Any]) -> bool:
    said, wake = process.registration, process.wake
    actual = {
        "state": process.state,
        "kind": said.input.kind,
        "waiting": process.wait is not None,
        "originator_session_id": None if said.originator is None else said.originator.session_id,
        "wake_session_id": None if wake is None else wake.session_id,
        "definition": canonical(process.identity.definition),
    }
    wanted = {**where, "state": where.get("state", ProcessState.RUNNING)}
    if "definition" in wanted:
        wanted["definition"] = canonical(wanted["definition"])
    return all(value is None or actual[name] == value for name, value in wanted.items())
