"""The event log of a process: planned by a pure function, appended once per key, with the wake in the same transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lash_store.encode import Encoder, canonical, check, decode, digest, mint, stable_hash
from lash_store.errors import (
    AlreadyTerminal,
    Corrupt,
    InvalidArgument,
    LeaseHeld,
    ReplayConflict,
    UndeclaredEvent,
    Unstorable,
)
from lash_store.model.process import (
    Event,
    EventDraft,
    EventType,
    Lease,
    ProcessState,
    Registration,
    Scope,
    WakeDelivery,
)
from lash_store.model.queue import Delivery, Slot
from lash_store.ops import semantics
from lash_store.ops.heads import LIVE, Head, lock_sessions
from lash_store.ops.processes import ProcessRow, find_state, get_state, lock_state, require_live
from lash_store.ops.queue import PreparedBatch, insert_batches
from lash_store.ops.statement import Op, database_now, execute, execute_many, fetch, fetch_one, ring
from lash_store.payload_schema import Schemas


class PreparedEvent(Struct, frozen=True, kw_only=True):
    """An event validated against its declaration. What the database assigns (sequence, time, wake id) is not in it."""

    event_type: str
    payload: str
    payload_hash: bytes
    replay_key: str | None
    terminal: str | None = None
    output: str | None = None
    wake_input: str | None = None
    wake_dedupe: str | None = None
    wake_batch_id: str | None = None


class StaleRegistration(Exception):
    """The event was validated against another registration than the stored one. Read it again."""


class TargetMoved(Exception):
    """The wake target changed between the look and the lock. Start again."""


def prepare_event(
    registration: Registration, draft: object, encoder: Encoder, schemas: Schemas, path: str, *, spare_key: str | None = None
) -> PreparedEvent:
    """Validate a draft against the process's declarations and work out what it means; nothing here asks the database.

    The spare key is for an event that came without one and needs none: a call whose answer is lost can be repeated with it.
    """
    if not isinstance(draft, EventDraft):
        raise Unstorable(path, f"must be an EventDraft, got {type(draft).__name__}")
    name = encoder.id(draft.event_type, f"{path}.event_type")
    replay_key = encoder.optional_id(draft.replay_key, f"{path}.replay_key")
    payload = encoder.json(draft.payload, f"{path}.payload")
    declared = declaration(registration, name)
    what = f"event {name!r} of process {registration.process_id!r}"
    if replay_key is None and (declared.terminal is not None or name in semantics.KEYED_NAMES):
        raise InvalidArgument(f"{path}.replay_key", f"is required for {name!r}, which must be repeatable without effect")
    schemas.validate(declared.schema, draft.payload, what)
    output = semantics.terminal_output(declared, draft.payload, what)
    wake = semantics.wake_input(declared, draft.payload, what)
    return PreparedEvent(
        event_type=name,
        payload=payload,
        payload_hash=bytes.fromhex(semantics.payload_hash(name, draft.payload)),
        replay_key=spare_key if replay_key is None else replay_key,
        terminal=None if declared.terminal is None else str(declared.terminal.state),
        output=None if output is None else encoder.json(msgspec.to_builtins(output), f"{path}.payload"),
        wake_input=wake,
        wake_dedupe=None if wake is None else semantics.wake_dedupe(declared, draft.payload, what),
        wake_batch_id=None if wake is None else mint("qwb:"),
    )


def declaration(registration: Registration, name: str) -> EventType:
    """The declared type of an event, core types included."""
    for declared in (*semantics.CORE_EVENT_TYPES, *registration.event_types):
        if declared.name == name:
            return declared
    raise UndeclaredEvent(registration.process_id, event_type=name)


# --- deciding -------------------------------------------------------------------------------------------------------------


class EventRow(Struct, frozen=True):
    """An event as it is stored, not yet verified."""

    process_id: str
    sequence: int
    event_type: str
    payload: str
    payload_hash: bytes
    replay_key: str | None
    terminal_state: str | None
    wake_id: str | None
    wake_dedupe_key: str | None
    wake_input: str | None
    wake_session_id: str | None
    wake_frame_id: str | None
    wake_batch_id: str | None
    wake_coalesced: int | None
    occurred_ms: int
    digest: bytes


class EventPlan(Struct, frozen=True, kw_only=True):
    """What an append does: rows to insert, rows it found instead, and the state the process ends in, if it ends."""

    inserts: tuple[EventRow, ...]
    results: tuple[tuple[EventRow, bool], ...]
    ended: PreparedEvent | None


def plan_append(
    row: ProcessRow, drafts: Sequence[PreparedEvent], stored: Mapping[str, EventRow], target: Scope | None, now_ms: int
) -> EventPlan:
    """Replay what is stored under its key, insert the rest in order. A process ends once; after it only facts are added."""
    seen = dict(stored)
    inserts: list[EventRow] = []
    results: list[tuple[EventRow, bool]] = []
    terminal = row.state != ProcessState.RUNNING
    ended: PreparedEvent | None = None
    for draft in drafts:
        before = None if draft.replay_key is None else seen.get(draft.replay_key)
        if before is not None:
            if bytes(before.payload_hash) != draft.payload_hash:
                raise ReplayConflict("event", key=draft.replay_key or "", owner=row.process_id)
            results.append((before, True))
            # The log says the process ended: a state that does not is brought in line.
            ended = draft if before.terminal_state is not None and not terminal else ended
        else:
            if draft.terminal is not None and terminal:
                raise AlreadyTerminal(row.process_id, state=row.state if ended is None else str(ended.terminal))
            event = _event_row(row.process_id, row.last_sequence + len(inserts) + 1, draft, target, now_ms)
            inserts.append(event)
            results.append((event, False))
            ended = draft if draft.terminal is not None else ended
            if draft.replay_key is not None:
                seen[draft.replay_key] = event
        terminal = terminal or ended is not None
    return EventPlan(inserts=tuple(inserts), results=tuple(results), ended=ended)


def _event_row(process_id: str, sequence: int, draft: PreparedEvent, target: Scope | None, now_ms: int) -> EventRow:
    dedupe = draft.wake_dedupe if draft.wake_dedupe is not None else f"{process_id}:{sequence}"
    woken = draft.wake_input is not None
    # Without a target the wake is recorded under the process's own name: nobody is to be woken, but it happened.
    wake_id = semantics.wake_id(target or Scope(""), dedupe) if woken else None
    return sealed(
        EventRow(
            process_id,
            sequence,
            draft.event_type,
            draft.payload,
            draft.payload_hash,
            draft.replay_key,
            draft.terminal,
            wake_id,
            canonical(dedupe) if woken else None,
            canonical(draft.wake_input) if woken else None,
            target.session_id if woken and target is not None else None,
            target.frame_id if woken and target is not None else None,
            draft.wake_batch_id if woken and target is not None else None,
            0 if woken else None,
            now_ms,
            b"",
        )
    )


def sealed(row: EventRow) -> EventRow:
    """The row with the digest of its content."""
    return replace(row, digest=_digest_of(row))


def _digest_of(row: EventRow) -> bytes:
    return digest(
        "event/1",
        row.process_id,
        row.sequence,
        row.event_type,
        row.payload,
        bytes(row.payload_hash),
        row.replay_key,
        row.terminal_state,
        row.wake_id,
        row.wake_dedupe_key,
        row.wake_input,
        row.wake_session_id,
        row.wake_frame_id,
        row.wake_batch_id,
        row.wake_coalesced,
        row.occurred_ms,
    )


# --- appending ------------------------------------------------------------------------------------------------------------


class Appending(Struct, frozen=True, kw_only=True):
    """One append: events of one process, what they were validated against, and the lease that permits them, if any."""

    process_id: str
    registration_hash: bytes
    caused_by: str | None
    events: tuple[PreparedEvent, ...]
    wake_target: Scope | None = None  # as registered; the stored one decides
    lease: Lease | None = None
    fence_replays: bool = False


def append(call: Appending) -> Op[list[tuple[EventRow, bool]]]:
    """Append events in one transaction: log, state, wake and release of the lease, or nothing. True marks a replay."""
    target, heads = yield from _lock_target(call)
    row = yield from lock_state(call.process_id)
    if bytes(row.registration_hash) != call.registration_hash:
        raise StaleRegistration
    if any(event.wake_input is not None for event in call.events) and _target_of(row) != target:
        raise TargetMoved
    now_ms = yield from database_now()
    stored = yield from _by_keys(call)
    if call.lease is not None and not _all_stored(call, stored):
        # A holder whose lease is gone hears that first, whatever else would be wrong with its event.
        require_live(row, call.lease, now_ms)
    awake = target if target is not None and _is_live(heads, target) else None
    plan = plan_append(row, call.events, stored, awake, now_ms)
    _check_lease(row, call, plan, now_ms)
    if not plan.inserts and plan.ended is None:
        return list(plan.results)
    inserts = yield from _wake(call, plan.inserts, heads, now_ms)
    yield from _insert(inserts)
    yield from _advance(row, call, plan, now_ms)
    yield from ring("process", call.process_id)
    final = {event.sequence: event for event in inserts}
    return [(final.get(event.sequence, event), replayed) for event, replayed in plan.results]


def _lock_target(call: Appending) -> Op[tuple[Scope | None, Mapping[str, Head]]]:
    """Sessions are locked before processes: the target is looked up without a lock, and checked again under it."""
    if all(event.wake_input is None for event in call.events):
        return None, {}
    row = yield from find_state(call.process_id)
    target = None if row is None else _target_of(row)
    if target is None:
        return None, {}
    return target, (yield from lock_sessions([target.session_id]))


def _target_of(row: ProcessRow) -> Scope | None:
    return None if row.wake_session_id is None else Scope(row.wake_session_id, row.wake_frame_id)


def _is_live(heads: Mapping[str, Head], target: Scope) -> bool:
    head = heads.get(target.session_id)
    return head is not None and head.state == LIVE


def _by_keys(call: Appending) -> Op[dict[str, EventRow]]:
    keys = sorted({event.replay_key for event in call.events if event.replay_key is not None})
    if not keys:
        return {}
    rows = yield from fetch(
        """
        SELECT process_id, sequence, event_type, payload, payload_hash, replay_key, terminal_state, wake_id, wake_dedupe_key,
               wake_input, wake_session_id, wake_frame_id, wake_batch_id, wake_coalesced, occurred_ms, digest
        FROM {events}
        WHERE process_id = :process_id AND replay_key {any_text:keys}
        """,
        process_id=call.process_id,
        keys=keys,
    )
    stored = {row[5]: EventRow(*row) for row in rows}
    for event in stored.values():
        # A damaged row is corrupt, not a conflict.
        check_row(event)
    return stored


def _all_stored(call: Appending, stored: Mapping[str, EventRow]) -> bool:
    """Whether this is a retry of what the log has already: the answer was lost after the lease was given back."""
    found = [(event, stored.get(event.replay_key or "")) for event in call.events]
    return all(before is not None and bytes(before.payload_hash) == event.payload_hash for event, before in found)


def _check_lease(row: ProcessRow, call: Appending, plan: EventPlan, now_ms: int) -> None:
    """A pure replay needs no lease: the answer was lost after the lease was given back. Everything else is fenced."""
    if not plan.inserts and not call.fence_replays:
        return
    if call.lease is not None:
        require_live(row, call.lease, now_ms)
    elif plan.ended is not None and row.leased(now_ms):
        raise LeaseHeld(row.process_id, owner=row.lease_owner or "", expires_ms=row.lease_expires_ms or 0)


def _wake(call: Appending, inserts: Sequence[EventRow], heads: Mapping[str, Head], now_ms: int) -> Op[list[EventRow]]:
    """Enqueue each wake into its session; one whose id is still pending there is coalesced with it."""
    wakes = [event for event in inserts if event.wake_session_id is not None]
    if not wakes:
        return list(inserts)
    pending, taken = yield from _pending_wakes(wakes)
    batches: list[PreparedBatch] = []
    written: list[EventRow] = []
    for event in inserts:
        if event.wake_session_id is None or event.wake_id is None:
            written.append(event)
        elif event.wake_id in pending:
            first = pending[event.wake_id]
            written.append(sealed(replace(event, wake_batch_id=first, wake_coalesced=1)))
        else:
            # A worker has read the one of this id already: the event must not be lost in it, so it waits under a name beside.
            beside = stable_hash([event.process_id, event.sequence])[:32]
            key = f"{event.wake_id}:{beside}" if event.wake_id in taken else event.wake_id
            batches.append(_wake_batch(call, event, key))
            pending[event.wake_id] = event.wake_batch_id or ""
            written.append(event)
    # A settled wake may happen again: only a pending one holds the next one back.
    yield from insert_batches(batches, heads, now_ms=now_ms, retention_ms=None)
    return written


def _pending_wakes(wakes: Sequence[EventRow]) -> Op[tuple[dict[str, str], set[str]]]:
    """The wakes of these ids that wait to be claimed, by id, and the ids of which some wake is claimed or parked.

    A claim settles its work even after its lease, until somebody else claims it: it is not pending before that.
    """
    wake_ids = sorted({event.wake_id or "" for event in wakes})
    rows = yield from fetch(
        """
        SELECT SUBSTR(source_key, 1, 69), batch_id, token, parked_ms FROM {batches}
        WHERE session_id = :session_id AND source_key >= :first AND source_key < :last || ';'
          AND SUBSTR(source_key, 1, 69) {any_text:wake_ids}
        ORDER BY enqueue_seq
        """,
        session_id=wakes[0].wake_session_id,
        first=wake_ids[0],
        last=wake_ids[-1],
        wake_ids=wake_ids,
    )
    pending: dict[str, str] = {}
    for wake_id, batch_id, token, parked_ms in rows:
        if token is None and parked_ms is None:
            pending.setdefault(wake_id, batch_id)
    return pending, {row[0] for row in rows if row[2] is not None or row[3] is not None}


def wake_payloads(call: Appending, event_type: str, wake_input: str, frame_id: str | None) -> str:
    """What the woken session reads."""
    payload = {
        "type": "process_wake",
        "process_id": call.process_id,
        "event_type": event_type,
        "input": decode(wake_input, table="events", row=call.process_id),
        "frame_id": frame_id,
        "caused_by": None if call.caused_by is None else decode(call.caused_by, table="registrations", row=call.process_id),
    }
    return canonical([payload])


def _wake_batch(call: Appending, event: EventRow, key: str) -> PreparedBatch:
    text = wake_payloads(call, event.event_type, event.wake_input or "", event.wake_frame_id)
    assert event.wake_session_id is not None
    assert event.wake_batch_id is not None
    return PreparedBatch(
        session_id=event.wake_session_id,
        batch_id=event.wake_batch_id,
        source_key=key,
        delivery=str(Delivery.EARLIEST_SAFE_BOUNDARY),
        slot=str(Slot.EXCLUSIVE),
        merge_key="never",
        payloads=text,
        delay_ms=0,
        max_attempts=None,
        intent=digest("wake-batch/1", key, text),
    )


def _insert(events: Sequence[EventRow]) -> Op[None]:
    count = yield from execute_many(
        """
        INSERT INTO {events} (
            process_id, sequence, event_type, payload, payload_hash, replay_key, terminal_state, wake_id, wake_dedupe_key,
            wake_input, wake_session_id, wake_frame_id, wake_batch_id, wake_coalesced, occurred_ms, digest)
        SELECT rows.process_id, rows.sequence, rows.event_type, rows.payload, rows.payload_hash, rows.replay_key,
               rows.terminal_state, rows.wake_id, rows.wake_dedupe_key, rows.wake_input, rows.wake_session_id,
               rows.wake_frame_id, rows.wake_batch_id, rows.wake_coalesced, rows.occurred_ms, rows.digest
        FROM {rows(process_id text, sequence int, event_type text, payload text, payload_hash bytes, replay_key text,
                   terminal_state text, wake_id text, wake_dedupe_key text, wake_input text, wake_session_id text,
                   wake_frame_id text, wake_batch_id text, wake_coalesced int, occurred_ms int, digest bytes)}
        """,
        [msgspec.structs.asdict(event) for event in events],
    )
    assert count == len(events), "an event was not written"


def _advance(row: ProcessRow, call: Appending, plan: EventPlan, now_ms: int) -> Op[None]:
    """Move the small state row: the sequence, and at the end of the process its state, output, wait and lease."""
    ended = plan.ended
    count = yield from execute(
        """
        UPDATE {processes}
        SET last_sequence = :after, updated_ms = :now_ms
        WHERE process_id = :process_id AND last_sequence = :before
        """,
        process_id=row.process_id,
        before=row.last_sequence,
        after=row.last_sequence + len(plan.inserts),
        now_ms=now_ms,
    )
    assert count == 1, "the locked process moved"
    if ended is None or ended.output is None:
        return
    yield from execute(
        """
        UPDATE {processes}
        SET state = :state, output = :output, output_digest = :output_digest, wait_name = NULL, wait_ordinal = NULL,
            wait_since_ms = NULL, runnable_ms = NULL, lease_owner = NULL, lease_incarnation = NULL, lease_token = NULL,
            lease_claimed_ms = NULL, lease_expires_ms = NULL
        WHERE process_id = :process_id AND state = 'running'
        """,
        process_id=row.process_id,
        state=ended.terminal,
        output=ended.output,
        output_digest=digest("output/1", row.process_id, ended.output),
    )


# --- looking --------------------------------------------------------------------------------------------------------------


def check_row(row: EventRow) -> None:
    """Corrupt unless the stored bytes match their digest."""
    check(bytes(row.digest), _digest_of(row), table="events", row=f"{row.process_id!r}#{row.sequence}")


def verified(row: EventRow) -> Event:
    """An event whose stored bytes match their digest."""
    name = f"{row.process_id!r}#{row.sequence}"
    check_row(row)
    return Event(
        process_id=row.process_id,
        sequence=row.sequence,
        event_type=row.event_type,
        payload=decode(row.payload, table="events", row=name),
        replay_key=row.replay_key,
        terminal=None if row.terminal_state is None else ProcessState(row.terminal_state),
        wake=_delivery(row),
        occurred_ms=row.occurred_ms,
    )


def _delivery(row: EventRow) -> WakeDelivery | None:
    if row.wake_id is None or row.wake_dedupe_key is None or row.wake_input is None:
        return None
    name = f"{row.process_id!r}#{row.sequence}"
    return WakeDelivery(
        wake_id=row.wake_id,
        dedupe_key=decode(row.wake_dedupe_key, table="events", row=name),
        input=decode(row.wake_input, table="events", row=name),
        target=None if row.wake_session_id is None else Scope(row.wake_session_id, row.wake_frame_id),
        batch_id=row.wake_batch_id,
        coalesced=bool(row.wake_coalesced),
    )


def after(process_id: str, *, sequence: int, types: Sequence[str] | None, limit: int) -> Op[list[EventRow]]:
    """Events after a sequence, in order; of some types, or of all."""
    process = yield from get_state(process_id)
    rows = yield from fetch(
        """
        SELECT process_id, sequence, event_type, payload, payload_hash, replay_key, terminal_state, wake_id, wake_dedupe_key,
               wake_input, wake_session_id, wake_frame_id, wake_batch_id, wake_coalesced, occurred_ms, digest
        FROM {events}
        WHERE process_id = :process_id AND sequence > :sequence
          AND (CAST(:every AS {int}) = 1 OR event_type {any_text:types})
        ORDER BY sequence
        LIMIT :limit
        """,
        process_id=process_id,
        sequence=sequence,
        every=int(types is None),
        types=list(types or ()),
        limit=limit,
    )
    found = [EventRow(*row) for row in rows]
    if types is None:
        _check_gapless(process, found, first=sequence + 1, last=min(sequence + limit, process.last_sequence))
    return found


def _check_gapless(process: ProcessRow, found: Sequence[EventRow], *, first: int, last: int) -> None:
    """A hole in the log is damage, not a shorter log."""
    if [event.sequence for event in found] == list(range(first, last + 1)):
        return
    there = {event.sequence for event in found}
    missing = next((number for number in range(first, last + 1) if number not in there), last + 1)
    raise Corrupt("events", f"{process.process_id!r}#{missing}", "the row is missing, or is one too many")


def recent(process_id: str, limit: int) -> Op[list[EventRow]]:
    """The last events, in order."""
    process = yield from get_state(process_id)
    rows = yield from fetch(
        """
        SELECT process_id, sequence, event_type, payload, payload_hash, replay_key, terminal_state, wake_id, wake_dedupe_key,
               wake_input, wake_session_id, wake_frame_id, wake_batch_id, wake_coalesced, occurred_ms, digest
        FROM {events}
        WHERE process_id = :process_id
        ORDER BY sequence DESC
        LIMIT :limit
        """,
        process_id=process_id,
        limit=limit,
    )
    found = [EventRow(*row) for row in reversed(rows)]
    first = max(1, process.last_sequence - limit + 1)
    _check_gapless(process, found, first=first, last=process.last_sequence)
    return found


def count_through(process_id: str, event_type: str, sequence: int) -> Op[int]:
    """How many events of a type there are up to a sequence."""
    yield from get_state(process_id)
    row = yield from fetch_one(
        """
        SELECT COUNT(*) FROM {events}
        WHERE process_id = :process_id AND event_type = :event_type AND sequence <= :sequence
        """,
        process_id=process_id,
        event_type=event_type,
        sequence=sequence,
    )
    assert row is not None
    return row[0]


def nth(process_id: str, event_type: str, ordinal: int) -> Op[EventRow | None]:
    """The `ordinal`-th event of a type: what the `ordinal`-th wait on it is satisfied by."""
    yield from get_state(process_id)
    row = yield from fetch_one(
        """
        SELECT process_id, sequence, event_type, payload, payload_hash, replay_key, terminal_state, wake_id, wake_dedupe_key,
               wake_input, wake_session_id, wake_frame_id, wake_batch_id, wake_coalesced, occurred_ms, digest
        FROM {events}
        WHERE process_id = :process_id AND event_type = :event_type
        ORDER BY sequence
        LIMIT 1 OFFSET :skipped
        """,
        process_id=process_id,
        event_type=event_type,
        skipped=ordinal - 1,
    )
    return None if row is None else EventRow(*row)
