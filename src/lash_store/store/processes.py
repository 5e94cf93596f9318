"""Processes for the host: register, append, wait, lease, grant, prune."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from lash_store.encode import mint, stable_hash
from lash_store.errors import AlreadyTerminal, Busy, InvalidArgument, LeaseLost, Unstorable
from lash_store.model.limits import COLLECT_ROWS_PER_TRANSACTION, INT_MAX
from lash_store.model.process import (
    Appended,
    Cancelled,
    Descriptor,
    Event,
    EventDraft,
    EventPage,
    ExternalRef,
    Failure,
    Grant,
    GrantEntry,
    GrantPage,
    Lease,
    Leased,
    Output,
    Process,
    ProcessPage,
    ProcessState,
    PruneReport,
    Registration,
    Scope,
    StartGrant,
    Success,
    Wait,
)
from lash_store.ops import events, grants, leases, processes, pruning, semantics, shortcuts, starts, wakes
from lash_store.ops.events import Appending, StaleRegistration, TargetMoved
from lash_store.ops.leases import Wanted
from lash_store.ops.processes import ProcessFilter, ProcessRow
from lash_store.ops.statement import alone
from lash_store.store.keys import keyed
from lash_store.store.runtime import AsyncRuntime, AsyncTransactionRuntime

RESTARTS_MAX = 16  # times an append starts again because its wake target moved under it
EVENTS_PER_APPEND_MAX = 1_000  # events of one append: it is one transaction


log = logging.getLogger("lash_store")


look = alone(processes.get)  # one statement, and one round trip


class AsyncProcesses:
    """What the store knows of processes, for the host. A session reaches them through its handle, with a grant."""

    def __init__(self, runtime: AsyncRuntime | AsyncTransactionRuntime) -> None:
        self._runtime = runtime
        self._encoder = runtime.encoder

    # --- registering ------------------------------------------------------------------------------------------------------

    async def register(self, registration: Registration, *, grant: StartGrant | None = None) -> Process:
        """Register a process, and grant it, in one transaction. The same registration again returns it as it is now."""
        return await self.start(registration, grant, None)

    async def start(self, registration: Registration, grant: StartGrant | None, incarnation: int | None) -> Process:
        """`register` for a session handle, which knows the incarnation it grants to."""
        prepared = processes.prepare_registration(registration, self._encoder, self._runtime.schemas)
        if grant is not None and not isinstance(grant, StartGrant):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Unstorable("grant", f"must be a StartGrant, got {type(grant).__name__}")
        granted = None if grant is None else self._grant(grant.scope, prepared.process_id, grant.descriptor)
        row = await self._runtime.write(starts.register, prepared, granted, incarnation)
        return processes.verified(row, registration)

    async def get(self, process_id: str) -> Process:
        """A process as it is now."""
        return processes.verified(await self._row(process_id))

    async def list(
        self,
        *,
        state: ProcessState | str | None = ProcessState.RUNNING,
        kind: str | None = None,
        waiting: bool | None = None,
        definition: Any = UNSET,
        originator_session_id: str | None = None,
        wake_session_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> ProcessPage:
        """A page of processes by id: the running ones unless `state` says otherwise (None: all)."""
        where = ProcessFilter(
            state=None if state is None else _state(state),
            kind=self._encoder.optional_id(kind, "kind"),
            waiting=self._flag(waiting, "waiting"),
            definition_hash=None if isinstance(definition, UnsetType) else self._definition(definition),
            originator_session_id=self._encoder.optional_id(originator_session_id, "originator_session_id"),
            wake_session_id=self._encoder.optional_id(wake_session_id, "wake_session_id"),
        )
        limit, after = self._limit(limit), self._after(cursor)
        rows = await self._runtime.read(processes.page, where, limit=limit, after=after)
        found = tuple(processes.verified(row) for row in rows)
        return ProcessPage(processes=found, cursor=found[-1].process_id if len(found) == limit else None)

    async def non_terminal(self, *, limit: int = 100, cursor: str | None = None) -> ProcessPage:
        """A page of the processes that have not ended: the durable work list."""
        return await self.list(state=ProcessState.RUNNING, limit=limit, cursor=cursor)

    async def set_external_ref(self, process_id: str, ref: ExternalRef) -> Process:
        """Say where the work lives in another system."""
        if not isinstance(ref, ExternalRef):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
            raise Unstorable("ref", f"must be an ExternalRef, got {type(ref).__name__}")
        self._encoder.json(ref.metadata, "ref.metadata")
        text = self._encoder.json(msgspec.to_builtins(processes.fitting(ref, ExternalRef, "ref")), "ref")
        return processes.verified(await self._runtime.write(processes.set_external_ref, self._id(process_id), text))

    async def set_wait(self, process_id: str, wait: Wait) -> Process:
        """Say what a running process waits for."""
        if not isinstance(wait, Wait):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
            raise Unstorable("wait", f"must be a Wait, got {type(wait).__name__}")
        semantics.signal_type(self._encoder.id(wait.name, "wait.name"))
        self._encoder.counter(wait.ordinal, "wait.ordinal", minimum=1)
        return processes.verified(await self._runtime.write(processes.set_wait, self._id(process_id), wait))

    async def clear_wait(self, process_id: str) -> Process:
        """The process waits for nothing any more."""
        return processes.verified(await self._runtime.write(processes.clear_wait, self._id(process_id)))

    # --- events -----------------------------------------------------------------------------------------------------------

    async def append(
        self,
        process_id: str,
        event_type: str,
        payload: Any = None,
        *,
        replay_key: str | None = None,
        lease: Lease | None = None,
    ) -> Appended:
        """Append one event, once per replay key; a wake it asks for is enqueued in the same transaction."""
        draft = EventDraft(event_type=event_type, payload=payload, replay_key=replay_key)
        return (await self._append(self._id(process_id), [draft], lease))[0]

    async def append_many(
        self, process_id: str, drafts: Sequence[EventDraft], *, lease: Lease | None = None, key: str | None = None
    ) -> tuple[Appended, ...]:
        """Append several events of one process in one transaction: all or none, in order.

        Events without a replay key get one from `key`, which is minted when absent and named by Disconnected.
        """
        given = self._encoder.items(drafts, "drafts")
        self._encoder.counter(len(given), "drafts", maximum=EVENTS_PER_APPEND_MAX, limit="EVENTS_PER_APPEND_MAX")
        return await self._append(self._id(process_id), given, lease, key=self._encoder.optional_id(key, "key"))

    async def _append(
        self,
        process_id: str,
        drafts: Sequence[EventDraft],
        lease: Lease | None,
        *,
        key: str | None = None,
        fence_replays: bool = False,
    ) -> tuple[Appended, ...]:
        if not drafts:
            return ()
        lone: str | None = getattr(drafts[0], "replay_key", None) if len(drafts) == 1 else None
        base = mint("e:") if key is None and lone is None else key or lone
        for _ in range(RESTARTS_MAX):
            registration, registration_hash = await self._registration(process_id)
            prepared = tuple(
                events.prepare_event(
                    registration, draft, self._encoder, self._runtime.schemas, f"drafts[{i}]", spare_key=f"{base}:{i}"
                )
                for i, draft in enumerate(drafts)
            )
            cause = registration.caused_by
            call = Appending(
                process_id=process_id,
                registration_hash=registration_hash,
                caused_by=None if cause is None else self._encoder.json(cause, "caused_by"),
                events=prepared,
                wake_target=registration.wake_target,
                lease=_lease(lease),
                fence_replays=fence_replays,
            )
            try:
                with keyed(lone or base):
                    rows = await self._runtime.write(shortcuts.append, call)
            except StaleRegistration:
                self._runtime.registrations.drop(process_id)
            except TargetMoved:
                continue
            else:
                return tuple(Appended(event=events.verified(row), replayed=replayed) for row, replayed in rows)
        raise Busy(f"the wake target of process {process_id!r} kept moving")

    async def _registration(self, process_id: str) -> tuple[Registration, bytes]:
        """The registration, which never changes, from memory or from the store."""
        held = self._runtime.registrations.get(process_id)
        if held is None:
            row = await self._runtime.read(look, process_id)
            held = (processes.stored_registration(row), bytes(row.registration_hash))
            self._runtime.registrations.put(process_id, held)
        return held

    async def events(self, process_id: str, *, after: int = 0, types: Sequence[str] | None = None, limit: int = 100) -> EventPage:
        """Events after a sequence, in order; of some types, or of all."""
        process_id = self._id(process_id)
        wanted = None if types is None else [self._encoder.id(t, "types") for t in self._encoder.items(types, "types")]
        sequence = min(self._encoder.counter(after, "after", maximum=INT_MAX, limit="INT_MAX"), INT_MAX)
        limit = self._limit(limit)
        rows = await self._runtime.read(events.after, process_id, sequence=sequence, types=wanted, limit=limit)
        found = tuple(events.verified(row) for row in rows)
        return EventPage(events=found, cursor=found[-1].sequence if len(found) == limit else None)

    async def recent(self, process_id: str, *, limit: int = 32) -> tuple[Event, ...]:
        """The last events, in order."""
        process_id = self._id(process_id)
        rows = await self._runtime.read(events.recent, process_id, self._limit(limit))
        return tuple(events.verified(row) for row in rows)

    async def count_through(self, process_id: str, event_type: str, sequence: int) -> int:
        """How many events of a type there are up to a sequence."""
        process_id = self._id(process_id)
        bound = self._encoder.counter(sequence, "sequence", maximum=INT_MAX, limit="INT_MAX")
        return await self._runtime.read(events.count_through, process_id, self._encoder.id(event_type, "event_type"), bound)

    async def wake_events(self, process_id: str, *, after: int = 0, limit: int = 100) -> tuple[Event, ...]:
        """Events that asked for a wake and were not acknowledged."""
        sequence = self._encoder.counter(after, "after", maximum=INT_MAX, limit="INT_MAX")
        rows = await self._runtime.read(
            wakes.unacknowledged_wakes, self._id(process_id), sequence=sequence, limit=self._limit(limit)
        )
        return tuple(events.verified(row) for row in rows)

    async def ack_wake(self, process_id: str, sequence: int) -> bool:
        """Acknowledge a wake; false when it was acknowledged before."""
        number = self._encoder.counter(sequence, "sequence", minimum=1, maximum=INT_MAX, limit="INT_MAX")
        return await self._runtime.write(wakes.ack_wake, self._id(process_id), number)

    async def woken_by(self, process_id: str, batch_id: str) -> tuple[Event, ...]:
        """The events of a process that a wake in a session's inbox stands for."""
        own = self._encoder.id(batch_id, "batch_id")
        rows = await self._runtime.read(wakes.woken_by, self._id(process_id), own)
        return tuple(events.verified(row) for row in rows)

    # --- ending -----------------------------------------------------------------------------------------------------------

    async def complete(self, process_id: str, output: Output, *, lease: Lease | None = None) -> Process:
        """End a process with its output. With a lease: the check, the event and the release are one transaction.

        Without one it is refused while any lease is live. The same output again changes nothing.
        """
        process_id = self._id(process_id)
        if not isinstance(output, Success | Failure | Cancelled):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Unstorable("output", f"must be Success, Failure or Cancelled, got {type(output).__name__}")
        for field in msgspec.structs.fields(type(output)):
            self._encoder.json(getattr(output, field.name), f"output.{field.name}")
        output = processes.fitting(output, type(output), "output")
        name = f"process.{semantics.output_state(output)}"
        draft = EventDraft(
            event_type=name,
            payload={"output": msgspec.to_builtins(output)},
            replay_key=_short(f"process:{process_id}:terminal:{name}"),
        )
        await self._append(process_id, [draft], lease)
        return await self.get(process_id)

    async def cancel(self, process_id: str, *, reason: str | None = None) -> Process:
        """Ask a process to end: a request its worker sees, not a state. The same reason again changes nothing."""
        process_id = self._id(process_id)
        payload = {"reason": self._encoder.optional_text(reason, "reason")}
        key = semantics.payload_hash("process.cancel_requested", payload)
        draft = EventDraft(
            event_type="process.cancel_requested",
            payload=payload,
            replay_key=_short(f"process:{process_id}:cancel_requested:{key}"),
        )
        await self._append(process_id, [draft], None)
        return await self.get(process_id)

    # --- signals ----------------------------------------------------------------------------------------------------------

    async def signal(self, process_id: str, name: str, payload: Any = None, *, signal_id: str | None = None) -> Appended:
        """Send a named, typed signal; the same signal id again changes nothing."""
        process_id = self._id(process_id)
        event_type = semantics.signal_type(name)
        own = mint("s:") if signal_id is None else self._encoder.id(signal_id, "signal_id")
        draft = EventDraft(event_type=event_type, payload=payload, replay_key=_short(f"process:{process_id}:{event_type}:{own}"))
        return (await self._append(process_id, [draft], None))[0]

    async def wait_signal(
        self, process_id: str, name: str, *, ordinal: int, timeout_ms: int | None = None, lease: Lease | None = None
    ) -> Event | None:
        """The `ordinal`-th signal of a name, whenever it was sent; None at the timeout. The wait stays shown until then."""
        process_id = self._id(process_id)
        event_type = semantics.signal_type(name)
        number = self._encoder.counter(ordinal, "ordinal", minimum=1)
        key = f"{event_type}:{number}"
        mark = {"signal": name, "ordinal": number}
        waiting = EventDraft(event_type="process.waiting", payload=mark, replay_key=_short(f"process:{process_id}:waiting:{key}"))
        await self._append(process_id, [waiting], lease, fence_replays=True)
        found = await self._nth(process_id, event_type, number)
        wait, held = Wait(name=name, ordinal=number), _lease(lease)
        if found is None:
            await self._runtime.write(processes.set_wait, process_id, wait, held)
            found = await self._sleep(process_id, event_type, number, timeout_ms, held)
            if found is None:
                return None
        # Also when it was there at once: an earlier wait for it may still be shown.
        await self._runtime.write(processes.clear_wait, process_id, wait, held)
        resumed = EventDraft(event_type="process.resumed", payload=mark, replay_key=_short(f"process:{process_id}:resumed:{key}"))
        await self._append(process_id, [resumed], lease, fence_replays=True)
        return found

    async def _sleep(
        self, process_id: str, event_type: str, number: int, timeout_ms: int | None, lease: Lease | None
    ) -> Event | None:
        deadline = self._deadline(timeout_ms)
        with self._runtime.subscribe("process", process_id) as subscription:
            while True:
                row = await self._runtime.read(processes.get_state, process_id)
                subscription.seen = row.last_sequence
                found = await self._nth(process_id, event_type, number)
                if found is not None or _passed(deadline):
                    return found
                if row.state != ProcessState.RUNNING:
                    raise AlreadyTerminal(process_id, state=row.state)
                if lease is not None and (row.lease_token, row.lease_fence) != (lease.token, lease.fence):
                    raise LeaseLost(process_id, held_fence=lease.fence, actual_fence=row.lease_fence)
                await subscription.wait(_remaining_ms(deadline))

    async def _nth(self, process_id: str, event_type: str, number: int) -> Event | None:
        row = await self._runtime.read(events.nth, process_id, event_type, number)
        return None if row is None else events.verified(row)

    # --- waiting ----------------------------------------------------------------------------------------------------------

    async def await_output(self, process_id: str, *, timeout_ms: int | None = None) -> Output | None:
        """The output of a process, once it has ended; None at the timeout."""
        process_id = self._id(process_id)
        deadline = self._deadline(timeout_ms)
        with self._runtime.subscribe("process", process_id) as subscription:
            while True:
                row = await self._runtime.read(processes.get_state, process_id)
                subscription.seen = row.last_sequence
                if row.state != ProcessState.RUNNING:
                    return (await self.get(process_id)).output
                if _passed(deadline):
                    return None
                await subscription.wait(_remaining_ms(deadline))

    async def wait_event(
        self, process_id: str, event_type: str, *, after: int = 0, timeout_ms: int | None = None
    ) -> Event | None:
        """The first event of a type after a sequence; None at the timeout."""
        process_id = self._id(process_id)
        wanted = [self._encoder.id(event_type, "event_type")]
        sequence = self._encoder.counter(after, "after", maximum=INT_MAX, limit="INT_MAX")
        deadline = self._deadline(timeout_ms)
        with self._runtime.subscribe("process", process_id) as subscription:
            while True:
                row = await self._runtime.read(processes.get_state, process_id)
                subscription.seen = row.last_sequence
                rows = await self._runtime.read(events.after, process_id, sequence=sequence, types=wanted, limit=1)
                if rows:
                    return events.verified(rows[0])
                if _passed(deadline):
                    return None
                await subscription.wait(_remaining_ms(deadline))

    async def follow(self, process_id: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Events as they happen, up to and including the one that ends the process."""
        seen = self._encoder.counter(after, "after", maximum=INT_MAX, limit="INT_MAX")
        with self._runtime.subscribe("process", self._id(process_id), seen) as subscription:
            while True:
                row = await self._row(process_id)
                page = await self.events(process_id, after=seen)
                for event in page.events:
                    seen = subscription.seen = event.sequence
                    yield event
                if page.cursor is None and row.state != ProcessState.RUNNING and seen >= row.last_sequence:
                    return
                if page.cursor is None:
                    await subscription.wait(None)

    async def wait_runnable(self, *, timeout_ms: int, kinds: Sequence[str] | None = None) -> bool:
        """Sleep until some process, or one of these kinds, can be claimed; False at the timeout."""
        names = self._kinds(kinds)
        deadline = self._deadline(timeout_ms)
        with self._runtime.subscribe("runnable", None) as subscription:
            while True:
                due_ms, now_ms = await self._runtime.read(processes.next_runnable, names)
                if due_ms is not None and due_ms <= now_ms:
                    return True
                if _passed(deadline):
                    return False
                pause = _remaining_ms(deadline)
                await subscription.wait(pause if due_ms is None or pause is None else min(pause, due_ms - now_ms))

    # --- leases -----------------------------------------------------------------------------------------------------------

    async def claim(self, process_id: str, owner: str, *, incarnation: str, lease_ms: int, token: str | None = None) -> Lease:
        """Lease a process. Another owner's, or another incarnation's, live lease refuses it. Repeating a token returns it."""
        wanted = self._wanted(owner, incarnation, lease_ms, token)
        with keyed(wanted.token):
            _, lease = await self._runtime.write(leases.claim, self._id(process_id), wanted)
        return lease

    async def claim_next(
        self, owner: str, *, incarnation: str, lease_ms: int, kinds: Sequence[str] | None = None, limit: int = 1
    ) -> tuple[Leased, ...]:
        """Lease up to `limit` processes that nobody holds, the longest runnable first; `external` ones never."""
        count = self._encoder.counter(
            limit, "limit", minimum=1, maximum=self._runtime.limits.claim_batches, limit="claim_batches"
        )
        names = self._kinds(kinds)
        wanted = [self._wanted(owner, incarnation, lease_ms, None) for _ in range(count)]
        wait_for_locks = False
        while True:
            found = await self._runtime.write(leases.claim_next, wanted, names, wait_for_locks=wait_for_locks)
            if found is None:
                return ()
            for name in found.corrupt:
                log.error("the registration of process %r does not match its digest; it is set aside until break_lease", name)
            if found.leased:
                return tuple(Leased(process=processes.verified(row), lease=lease) for row, lease in found.leased)
            wait_for_locks = not found.corrupt

    async def renew(self, lease: Lease, *, lease_ms: int) -> Lease:
        """Extend a live lease; a passed or superseded one is LeaseLost."""
        own = self._held(lease)
        return await self._runtime.write(leases.renew, own, self._encoder.duration(lease_ms, "lease_ms"))

    async def release(self, lease: Lease) -> bool:
        """Give a process back; false when the lease was not the present one any more."""
        return await self._runtime.write(leases.release, self._held(lease))

    async def break_lease(self, process_id: str) -> int:
        """Take a process from whoever holds it; the fence rises and the old holder is refused. The new fence."""
        return await self._runtime.write(leases.break_lease, self._id(process_id))

    def _kinds(self, kinds: Sequence[str] | None) -> Sequence[str] | None:
        return None if kinds is None else [self._encoder.id(kind, "kinds") for kind in self._encoder.items(kinds, "kinds")]

    def _wanted(self, owner: str, incarnation: str, lease_ms: int, token: str | None) -> Wanted:
        return Wanted(
            owner=self._encoder.id(owner, "owner"),
            incarnation=self._encoder.id(incarnation, "incarnation"),
            token=mint("l:") if token is None else self._encoder.id(token, "token"),
            lease_ms=self._encoder.duration(lease_ms, "lease_ms"),
        )

    def _held(self, lease: object) -> Lease:
        own = _lease(lease)
        if own is None:
            raise Unstorable("lease", "must be a Lease, got None")
        return own

    # --- grants -----------------------------------------------------------------------------------------------------------

    async def grant(self, scope: Scope, process_id: str, *, descriptor: Descriptor | None = None) -> Grant:
        """Let a session see and use a process."""
        own = Descriptor() if descriptor is None else descriptor
        return await self._runtime.write(grants.grant, self._grant(scope, self._id(process_id), own))

    async def revoke(self, scope: Scope, process_id: str) -> bool:
        """Take one scope's grant away; false when it had none."""
        return await self._runtime.write(grants.revoke, self._scope(scope, "scope"), self._id(process_id))

    async def transfer(self, source: Scope, target: Scope, process_ids: Sequence[str]) -> int:
        """Move grants from one scope to another, all or none."""
        given = self._encoder.items(process_ids, "process_ids")
        ids = [self._encoder.id(process_id, f"process_ids[{i}]") for i, process_id in enumerate(given)]
        if len(set(ids)) != len(ids):
            raise InvalidArgument("process_ids", "names a process twice")
        return await self._runtime.write(grants.transfer, self._scope(source, "source"), self._scope(target, "target"), ids)

    async def list_grants(
        self, scope: Scope, *, live_only: bool = False, limit: int = 100, cursor: str | None = None
    ) -> GrantPage:
        """The grants of exactly this scope, each with its process; only of running ones with `live_only`."""
        limit, after = self._limit(limit), self._after(cursor)
        rows = await self._runtime.read(grants.page, self._scope(scope, "scope"), live_only=live_only, limit=limit, after=after)
        entries = tuple(GrantEntry(grant=grant, process=processes.verified(row)) for grant, row in rows)
        return GrantPage(entries=entries, cursor=entries[-1].process.process_id if len(entries) == limit else None)

    async def has_grant(self, scope: Scope, process_id: str) -> bool:
        """Whether exactly this scope holds the process."""
        return await self._runtime.read(grants.has, self._scope(scope, "scope"), self._id(process_id))

    async def grants_for(self, process_id: str) -> tuple[Grant, ...]:
        """Every grant on a process."""
        return await self._runtime.read(grants.for_process, self._id(process_id))

    # --- pruning ----------------------------------------------------------------------------------------------------------

    async def prune(self, *, older_than_ms: int, dry_run: bool = False) -> PruneReport:
        """Remove processes that ended this long ago, with their logs, in bounded steps; a late register finds them ended."""
        age_ms = self._encoder.duration(older_than_ms, "older_than_ms")
        if dry_run:
            found = await self._runtime.read(pruning.prunable, older_than_ms=age_ms)
            return PruneReport(processes=found["processes"], events=found["events"], complete=True)
        removed = log = 0
        while True:
            step = await self._runtime.write(pruning.prune_step, older_than_ms=age_ms, limit=COLLECT_ROWS_PER_TRANSACTION)
            removed, log = removed + step.processes, log + step.events
            if step.complete:
                return PruneReport(processes=removed, events=log, complete=True)

    # --- small things -----------------------------------------------------------------------------------------------------

    async def _row(self, process_id: str) -> ProcessRow:
        process_id = self._id(process_id)
        return await self._runtime.read(look, process_id)

    def _grant(self, scope: Scope, process_id: str, descriptor: Descriptor) -> grants.PreparedGrant:
        if not isinstance(descriptor, Descriptor):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
            raise Unstorable("descriptor", f"must be a Descriptor, got {type(descriptor).__name__}")
        self._encoder.optional_text(descriptor.kind, "descriptor.kind")
        self._encoder.optional_text(descriptor.label, "descriptor.label")
        return grants.prepared(self._scope(scope, "scope"), process_id, descriptor)

    def _scope(self, scope: object, path: str) -> Scope:
        if not isinstance(scope, Scope):
            raise Unstorable(path, f"must be a Scope, got {type(scope).__name__}")
        processes.check_scope(scope, self._encoder, path)
        return scope

    def _definition(self, definition: Any) -> bytes:
        self._encoder.json(definition, "definition")
        return bytes.fromhex(stable_hash(definition))

    def _flag(self, value: object, path: str) -> bool | None:
        if value is not None and not isinstance(value, bool):
            raise Unstorable(path, f"must be True, False or None, got {type(value).__name__}")
        return value

    def _deadline(self, timeout_ms: int | None) -> float | None:
        if timeout_ms is None:
            return None
        return time.monotonic() + self._encoder.duration(timeout_ms, "timeout_ms") / 1000

    def _after(self, cursor: str | None) -> str:
        return "" if cursor is None else self._encoder.text(cursor, "cursor")

    def _id(self, process_id: str) -> str:
        return self._encoder.id(process_id, "process_id")

    def _limit(self, limit: int) -> int:
        return self._encoder.counter(limit, "limit", minimum=1, maximum=self._runtime.limits.page_rows, limit="page_rows")


def _state(state: object) -> str:
    if not isinstance(state, str) or state not in ProcessState._value2member_map_:
        raise InvalidArgument("state", f"must be one of {', '.join(ProcessState)}, or None")
    return str(ProcessState(state))


def _lease(lease: object) -> Lease | None:
    if lease is not None and not isinstance(lease, Lease):
        raise Unstorable("lease", f"must be a Lease, got {type(lease).__name__}")
    return lease


def _short(key: str) -> str:
    """A replay key that fits an id: derived keys hold ids of their own, which may be long."""
    return key if len(key.encode()) <= 200 else f"key:sha256:{stable_hash(key)}"


def _passed(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def _remaining_ms(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
