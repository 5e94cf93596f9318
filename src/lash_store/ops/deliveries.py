"""Deliveries: one occurrence for one subscription, from the reservation to the process it starts.

Whoever adds deliveries to an occurrence holds its row. Locks: sessions, occurrences, processes, subscriptions, deliveries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from lash_store.encode import Encoder, check, digest, stable_hash
from lash_store.errors import Corrupt, InvalidArgument, LimitExceeded, NotFound, Refused
from lash_store.model.process import Descriptor, ProcessInput, Registration
from lash_store.model.trigger import (
    DeliveryOutcome,
    DeliveryPage,
    DeliveryState,
    Outcome,
    Subscription,
    TriggerDelivery,
)
from lash_store.ops import triggers
from lash_store.ops.drafts import fill
from lash_store.ops.grants import PreparedGrant, insert_grants, prepared
from lash_store.ops.heads import LIVE, lock_sessions
from lash_store.ops.occurrences import PreparedOccurrence, StaleMatch, StoredOccurrence, addressee, lock, record
from lash_store.ops.processes import PreparedProcess, insert_processes, prepare_registration
from lash_store.ops.statement import Op, Row, database_now, execute_many, fetch
from lash_store.ops.triggers import StoredSubscription
from lash_store.payload_schema import Schemas

FANOUT_MAX = 1_000  # deliveries of one transaction: an emit is all or nothing
ERROR_MAX_CHARS = 500  # a reason is a sentence

RESERVED, STARTED, FAILED = DeliveryState.RESERVED, DeliveryState.STARTED, DeliveryState.FAILED


class StoredDelivery(Struct, frozen=True):
    """A row as it is stored, not yet verified."""

    occurrence_id: str
    subscription_id: str
    number: int
    process_id: str
    state: str
    error: str | None
    snapshot: str
    digest: bytes
    created_ms: int
    updated_ms: int


class Candidate(Struct, frozen=True, kw_only=True):
    """A subscription that is to get a delivery: as it is now, or as a reserved delivery kept it. None: it is damaged."""

    subscription_id: str
    number: int
    snapshot: str
    subscription: Subscription | None
    error: str | None


class Match(Struct, frozen=True, kw_only=True):
    """What an emit finds before it locks anything: who is to get a delivery, and which sessions they wake are there."""

    candidates: tuple[Candidate, ...]
    live: frozenset[str]


class Start(Struct, frozen=True, kw_only=True):
    """One delivery, prepared: the process to register, or why there is none."""

    occurrence_id: str
    subscription_id: str
    number: int
    process_id: str
    snapshot: str
    process: PreparedProcess | None
    grant: PreparedGrant | None
    error: str | None


class Plan(Struct, frozen=True, kw_only=True):
    """Deliveries to make, and the sessions to lock for them, with what is believed of each."""

    starts: tuple[Start, ...]
    targets: tuple[str, ...]
    live: frozenset[str]


Done = tuple[StoredDelivery, Outcome]


# --- preparing ------------------------------------------------------------------------------------------------------------


def delivery_process_id(occurrence_id: str, subscription_id: str) -> str:
    """The process of a delivery: the same pair is the same process, whoever starts it."""
    return f"process:trigger:{stable_hash([occurrence_id, subscription_id])}"


def prepare_plan(wanted: Sequence[tuple[Candidate, str, Any]], live: frozenset[str], encoder: Encoder, schemas: Schemas) -> Plan:
    """Prepare the process of each (candidate, occurrence id, payload). One that cannot start says why; the others start."""
    starts = tuple(
        _start(candidate, occurrence_id, payload, live, encoder, schemas) for candidate, occurrence_id, payload in wanted
    )
    size = sum(len(start.process.body) for start in starts if start.process is not None)
    if size > encoder.limits.commit_bytes:
        raise LimitExceeded("commit_bytes", maximum=encoder.limits.commit_bytes, actual=size, path="deliveries")
    targets = {session_id for candidate, _, _ in wanted if (session_id := _wakes(candidate)) is not None}
    return Plan(starts=starts, targets=tuple(sorted(targets)), live=live & targets)


def _wakes(candidate: Candidate) -> str | None:
    target = None if candidate.subscription is None else candidate.subscription.wake_target
    return None if target is None else target.session_id


def _start(
    candidate: Candidate, occurrence_id: str, payload: Any, live: frozenset[str], encoder: Encoder, schemas: Schemas
) -> Start:
    process_id = delivery_process_id(occurrence_id, candidate.subscription_id)
    process, grant, error = None, None, candidate.error
    if candidate.subscription is not None:
        wake = _wakes(candidate) in live
        try:
            process = _process(candidate.subscription, occurrence_id, payload, wake, encoder, schemas)
            grant = _grant(candidate.subscription, process_id) if wake else None
        except Refused as refusal:
            error = _sentence(refusal)
    return Start(
        occurrence_id=occurrence_id,
        subscription_id=candidate.subscription_id,
        number=candidate.number,
        process_id=process_id,
        snapshot=candidate.snapshot,
        process=process,
        grant=grant,
        error=error,
    )


def _process(
    subscription: Subscription, occurrence_id: str, payload: Any, wake: bool, encoder: Encoder, schemas: Schemas
) -> PreparedProcess:
    schemas.validate(subscription.payload_schema, payload, f"trigger {subscription.handle!r}")
    registration = Registration(
        process_id=delivery_process_id(occurrence_id, subscription.subscription_id),
        input=ProcessInput(subscription.target.kind, fill(subscription, payload)),
        identity=subscription.identity,
        event_types=list(subscription.event_types),
        originator=subscription.registrant,
        caused_by={"type": "trigger_occurrence", "occurrence_id": occurrence_id},
        env_ref=subscription.env_ref,
        wake_target=subscription.wake_target if wake else None,
    )
    return prepare_registration(registration, encoder, schemas)


def _grant(subscription: Subscription, process_id: str) -> PreparedGrant | None:
    if subscription.wake_target is None:
        return None
    label = subscription.label if subscription.label is not None else subscription.identity.label
    return prepared(subscription.wake_target, process_id, Descriptor(kind=subscription.identity.kind, label=label))


def _sentence(error: Exception) -> str:
    return str(error)[:ERROR_MAX_CHARS]


# --- matching -------------------------------------------------------------------------------------------------------------


def match(request: PreparedOccurrence) -> Op[Match]:
    """Who is to get a delivery of this occurrence: matching subscriptions without one, and those whose one is unfinished."""
    fresh = yield from _unreserved(request)
    rows = yield from _of_occurrence(request.occurrence_id)
    if len(fresh) + len(rows) > FANOUT_MAX:
        raise LimitExceeded(
            "FANOUT_MAX",
            maximum=FANOUT_MAX,
            actual=f"more than {FANOUT_MAX} deliveries (record the occurrence, then reserve and redrive in steps)",
            path="request",
        )
    candidates = [candidate_of(row) for row in fresh]
    candidates += [_reserved(row) for row in rows if row.state == RESERVED]
    return Match(candidates=tuple(candidates), live=(yield from live_targets(candidates)))


def candidate_of(row: StoredSubscription) -> Candidate:
    """A subscription that is to get a delivery; a damaged one gets a failed one, and hinders no other."""
    subscription, error, kept = None, None, "null"
    try:
        subscription, kept = triggers.verified(row), triggers.snapshot(row)
    except Corrupt as damage:
        error = _sentence(damage)
    return Candidate(
        subscription_id=row.subscription_id, number=row.number, snapshot=kept, subscription=subscription, error=error
    )


def _reserved(row: StoredDelivery) -> Candidate:
    subscription, error = None, None
    try:
        subscription = verified(row).subscription
    except Corrupt as damage:
        error = _sentence(damage)
    return Candidate(
        subscription_id=row.subscription_id,
        number=row.number,
        snapshot=row.snapshot,
        subscription=subscription,
        error=error if subscription is None else None,
    )


def live_targets(candidates: Iterable[Candidate]) -> Op[frozenset[str]]:
    """Of the sessions these would wake, the ones that are there."""
    session_ids = sorted({session_id for each in candidates if (session_id := _wakes(each)) is not None})
    if not session_ids:
        return frozenset()
    rows = yield from fetch(
        "SELECT session_id FROM {sessions} WHERE session_id {any_text:session_ids} AND state = 'live'", session_ids=session_ids
    )
    return frozenset(row[0] for row in rows)


def _unreserved(request: PreparedOccurrence | StoredOccurrence) -> Op[list[StoredSubscription]]:
    rows = yield from fetch(UNRESERVED, **_matching(request))
    return [StoredSubscription(*row) for row in rows]


def _matching(request: PreparedOccurrence | StoredOccurrence) -> dict[str, Any]:
    return {
        "occurrence_id": request.occurrence_id,
        "source_type": request.source_type,
        "source_key": request.source_key,
        "only": addressee(request.idempotency_key),
        "limit": FANOUT_MAX + 1,
    }


# The subscriptions of a deleted session start nothing, also before its rows are gone.
UNRESERVED = """
    SELECT s.subscription_id, s.number, s.registrant_session_id, s.registrant_frame_id, s.registration_key, s.name,
           s.source_type, s.source_key, s.env_ref, s.enabled, s.body, s.intent, s.digest, s.created_ms, s.updated_ms
    FROM {subscriptions} s
    WHERE s.source_type = :source_type AND s.source_key = :source_key AND s.enabled = 1
      AND (CAST(:only AS TEXT) IS NULL OR s.subscription_id = :only)
      AND (s.registrant_session_id = ''
           OR EXISTS (SELECT 1 FROM {sessions} r WHERE r.session_id = s.registrant_session_id AND r.state = 'live'))
      AND NOT EXISTS (SELECT 1 FROM {deliveries} d
                      WHERE d.occurrence_id = :occurrence_id AND d.subscription_id = s.subscription_id)
    ORDER BY s.number
    LIMIT :limit
    """

UNRESERVED_LOCKED = UNRESERVED + " {for_update}"


def _of_occurrence(occurrence_id: str) -> Op[list[StoredDelivery]]:
    rows = yield from fetch(OF_OCCURRENCE, occurrence_id=occurrence_id, after=0, limit=FANOUT_MAX + 1)
    return [StoredDelivery(*row) for row in rows]


OF_OCCURRENCE = """
    SELECT occurrence_id, subscription_id, number, process_id, state, error, snapshot, digest, created_ms, updated_ms
    FROM {deliveries}
    WHERE occurrence_id = :occurrence_id AND number > :after
    ORDER BY number
    LIMIT :limit
    """

OF_OCCURRENCE_LOCKED = OF_OCCURRENCE + " {for_update}"


# --- delivering -----------------------------------------------------------------------------------------------------------


class Emitted(Struct, frozen=True):
    """An occurrence with all its deliveries, each with what this call did about it."""

    occurrence: StoredOccurrence
    done: tuple[Done, ...]


def emit(request: PreparedOccurrence, plan: Plan) -> Op[Emitted]:
    """Record an occurrence, reserve its deliveries, register their processes and grant them: all of it or nothing."""
    yield from lock_targets(plan)
    now_ms = yield from database_now()
    occurrence = (yield from record([request], now_ms))[request.occurrence_id]
    made = yield from register(plan.starts, now_ms)
    fresh = {row[0] for row in (yield from fetch(UNRESERVED_LOCKED, **_matching(request)))}
    if fresh - {start.subscription_id for start in plan.starts}:
        raise StaleMatch  # somebody subscribed since the look
    rows = yield from fetch(OF_OCCURRENCE_LOCKED, occurrence_id=request.occurrence_id, after=0, limit=FANOUT_MAX + 1)
    stored = {row[3]: StoredDelivery(*row) for row in rows}
    done = yield from settle(plan.starts, stored, made, fresh=fresh, now_ms=now_ms)
    planned = {start.process_id for start in plan.starts}
    others = [row for row in stored.values() if row.process_id not in planned]
    if any(row.state == RESERVED for row in others):
        raise StaleMatch
    return Emitted(occurrence, tuple(sorted([*done, *((row, Outcome.ALREADY) for row in others)], key=_in_order)))


def _in_order(done: Done) -> tuple[str, int]:
    return done[0].occurrence_id, done[0].number


def lock_targets(plan: Plan) -> Op[None]:
    """Lock the sessions to be woken. One that came or went since the look changes what is to be registered."""
    if not plan.targets:
        return
    heads = yield from lock_sessions(plan.targets)
    if frozenset(head.session_id for head in heads.values() if head.state == LIVE) != plan.live:
        raise StaleMatch


def register(starts: Sequence[Start], now_ms: int) -> Op[dict[str, str]]:
    """Register the processes that can be, and grant them to the sessions they wake."""
    processes = [start.process for start in starts if start.process is not None]
    if not processes:
        return {}
    made = yield from insert_processes(processes, now_ms)
    # Only what is new is granted: a handle that was given up since does not come back.
    grants = [start.grant for start in starts if start.grant is not None and made[start.process_id] == "created"]
    yield from insert_grants(grants, now_ms)
    return made


def settle(
    starts: Sequence[Start],
    stored: Mapping[str, StoredDelivery],
    made: Mapping[str, str],
    *,
    fresh: set[str],
    now_ms: int,
) -> Op[list[Done]]:
    """Write what became of each start, under the locks of its occurrence or its row. `stored` is keyed by process id."""
    inserts: list[Done] = []
    updates: list[Done] = []
    finished: list[Done] = []
    for start in starts:
        before = stored.get(start.process_id)
        created = made.get(start.process_id) == "created"
        if before is None and start.subscription_id not in fresh:
            raise StaleMatch  # its subscription was cancelled or deleted since the look
        if before is None:
            inserts.append(_settled(start, made, created_ms=now_ms, now_ms=now_ms))
        elif before.state == RESERVED:
            updates.append(_settled(start, made, created_ms=before.created_ms, now_ms=now_ms))
        elif created and before.state == FAILED:
            raise StaleMatch  # another worker has judged it; what it wrote stands
        else:
            finished.append((before, Outcome.ALREADY))
    yield from insert([row for row, _ in inserts])
    yield from _update([row for row, _ in updates])
    return [*inserts, *updates, *finished]


def _settled(start: Start, made: Mapping[str, str], *, created_ms: int, now_ms: int) -> Done:
    outcome, error = _judge(start, made)
    state = FAILED if outcome is Outcome.FAILED else STARTED
    return stored_delivery(start, state, error, created_ms=created_ms, now_ms=now_ms), outcome


def _judge(start: Start, made: Mapping[str, str]) -> tuple[Outcome, str | None]:
    if start.process is None:
        return Outcome.FAILED, start.error
    became = made[start.process_id]
    if became == "conflict":
        return Outcome.FAILED, f"process {start.process_id!r} is registered with other content."
    return (Outcome.STARTED if became == "created" else Outcome.ALREADY), None


def stored_delivery(start: Start, state: str, error: str | None, *, created_ms: int, now_ms: int) -> StoredDelivery:
    """The row of a delivery."""
    row = StoredDelivery(
        start.occurrence_id,
        start.subscription_id,
        start.number,
        start.process_id,
        state,
        error,
        start.snapshot,
        b"",
        created_ms,
        now_ms,
    )
    return msgspec.structs.replace(row, digest=_digest(row))


def _digest(row: StoredDelivery) -> bytes:
    return digest("delivery/1", row.occurrence_id, row.subscription_id, row.number, row.process_id, row.snapshot)


def insert(rows: Sequence[StoredDelivery]) -> Op[None]:
    """Write new deliveries."""
    yield from execute_many(
        """
        INSERT INTO {deliveries} (
            occurrence_id, subscription_id, number, process_id, state, error, snapshot, digest, created_ms, updated_ms)
        SELECT rows.occurrence_id, rows.subscription_id, rows.number, rows.process_id, rows.state, rows.error, rows.snapshot,
               rows.digest, rows.created_ms, rows.updated_ms
        FROM {rows(occurrence_id text, subscription_id text, number int, process_id text, state text, error text,
                   snapshot text, digest bytes, created_ms int, updated_ms int)}
        """,
        [_columns(row) for row in rows],
    )


def _columns(row: StoredDelivery) -> dict[str, Any]:
    return {**msgspec.structs.asdict(row), "state": str(row.state)}


def _update(rows: Sequence[StoredDelivery]) -> Op[None]:
    count = yield from execute_many(
        """
        UPDATE {deliveries} SET state = rows.state, error = rows.error, updated_ms = rows.updated_ms
        FROM {rows(occurrence_id text, subscription_id text, state text, error text, updated_ms int)}
        WHERE {deliveries}.occurrence_id = rows.occurrence_id AND {deliveries}.subscription_id = rows.subscription_id
          AND {deliveries}.state = 'reserved'
        """,
        [
            {
                "occurrence_id": row.occurrence_id,
                "subscription_id": row.subscription_id,
                "state": str(row.state),
                "error": row.error,
                "updated_ms": row.updated_ms,
            }
            for row in rows
        ],
    )
    assert count == len(rows), "a locked delivery was finished by another"


# --- reserving ------------------------------------------------------------------------------------------------------------


def reserve(occurrence_id: str) -> Op[list[StoredDelivery]]:
    """Promise a delivery to every matching subscription that has none yet; only the new ones are returned."""
    occurrence = (yield from lock([occurrence_id])).get(occurrence_id)
    if occurrence is None:
        raise NotFound("occurrence", occurrence_id)
    rows = yield from fetch(UNRESERVED_LOCKED, **{**_matching(occurrence), "limit": FANOUT_MAX})
    now_ms = yield from database_now()
    made = [_promise(candidate_of(StoredSubscription(*row)), occurrence_id, now_ms) for row in rows]
    yield from insert(made)
    return made


def _promise(candidate: Candidate, occurrence_id: str, now_ms: int) -> StoredDelivery:
    start = Start(
        occurrence_id=occurrence_id,
        subscription_id=candidate.subscription_id,
        number=candidate.number,
        process_id=delivery_process_id(occurrence_id, candidate.subscription_id),
        snapshot=candidate.snapshot,
        process=None,
        grant=None,
        error=candidate.error,
    )
    state = RESERVED if candidate.error is None else FAILED
    return stored_delivery(start, state, candidate.error, created_ms=now_ms, now_ms=now_ms)


class LeftBehind(Struct, frozen=True, kw_only=True):
    """Unfinished deliveries, oldest first, each with the occurrence it is for."""

    rows: tuple[tuple[Candidate, StoredOccurrence], ...]
    live: frozenset[str]


def left_behind(limit: int) -> Op[LeftBehind]:
    """What a crash or a bare reserve left to start."""
    rows = yield from fetch(
        """
        SELECT d.occurrence_id, d.subscription_id, d.number, d.process_id, d.state, d.error, d.snapshot, d.digest,
               d.created_ms, d.updated_ms,
               o.occurrence_id, o.source_type, o.source_key, o.idempotency_key, o.request_hash, o.body, o.digest, o.occurred_ms
        FROM {deliveries} d
        JOIN {occurrences} o ON o.occurrence_id = d.occurrence_id
        WHERE d.state = 'reserved'
        ORDER BY d.created_ms, d.occurrence_id, d.subscription_id
        LIMIT :limit
        """,
        limit=limit,
    )
    found = [(_reserved(StoredDelivery(*row[:10])), StoredOccurrence(*row[10:])) for row in rows]
    return LeftBehind(rows=tuple(found), live=(yield from live_targets([candidate for candidate, _ in found])))


def redrive(plan: Plan) -> Op[list[Done]]:
    """Start reserved deliveries. One that another worker finished meanwhile is left as it is."""
    yield from lock_targets(plan)
    now_ms = yield from database_now()
    made = yield from register(plan.starts, now_ms)
    stored = yield from lock_deliveries([start.process_id for start in plan.starts])
    return (yield from settle(plan.starts, stored, made, fresh=set(), now_ms=now_ms))


def lock_deliveries(process_ids: Sequence[str]) -> Op[dict[str, StoredDelivery]]:
    """Lock deliveries by the processes they start, in the order all operations use."""
    rows = yield from fetch(
        """
        SELECT occurrence_id, subscription_id, number, process_id, state, error, snapshot, digest, created_ms, updated_ms
        FROM {deliveries}
        WHERE process_id {any_text:process_ids}
        ORDER BY occurrence_id, number
        {for_update}
        """,
        process_ids=list(process_ids),
    )
    return {row[3]: StoredDelivery(*row) for row in rows}


# --- looking --------------------------------------------------------------------------------------------------------------


def verified(row: StoredDelivery) -> TriggerDelivery:
    """A delivery whose stored bytes match their digest."""
    name = f"{row.occurrence_id!r}/{row.subscription_id!r}"
    check(bytes(row.digest), _digest(row), table="deliveries", row=name)
    return TriggerDelivery(
        occurrence_id=row.occurrence_id,
        subscription_id=row.subscription_id,
        process_id=row.process_id,
        state=DeliveryState(row.state),
        error=row.error,
        subscription=triggers.of_snapshot(row.snapshot, table="deliveries", row=name),
        created_ms=row.created_ms,
        updated_ms=row.updated_ms,
    )


def outcomes(done: Iterable[Done]) -> tuple[DeliveryOutcome, ...]:
    """What was done, as values."""
    return tuple(DeliveryOutcome(outcome=outcome, delivery=verified(row)) for row, outcome in done)


def of_occurrence(occurrence_id: str, *, limit: int, after: int) -> Op[DeliveryPage]:
    """The deliveries of an occurrence, in the order of their subscriptions."""
    rows = yield from fetch(OF_OCCURRENCE, occurrence_id=occurrence_id, after=after, limit=limit)
    found = [StoredDelivery(*row) for row in rows]
    cursor = str(found[-1].number) if len(found) == limit else None
    return DeliveryPage(deliveries=tuple(verified(row) for row in found), cursor=cursor)


def undelivered(*, limit: int, after: tuple[int, str, str]) -> Op[DeliveryPage]:
    """Unfinished deliveries, oldest first."""
    created_ms, occurrence_id, subscription_id = after
    rows = yield from fetch(
        """
        SELECT occurrence_id, subscription_id, number, process_id, state, error, snapshot, digest, created_ms, updated_ms
        FROM {deliveries}
        WHERE state = 'reserved'
          AND (created_ms, occurrence_id, subscription_id)
            > (CAST(:created_ms AS {int}), CAST(:occurrence_id AS TEXT), CAST(:subscription_id AS TEXT))
        ORDER BY created_ms, occurrence_id, subscription_id
        LIMIT :limit
        """,
        created_ms=created_ms,
        occurrence_id=occurrence_id,
        subscription_id=subscription_id,
        limit=limit,
    )
    return DeliveryPage(
        deliveries=tuple(verified(StoredDelivery(*row)) for row in rows),
        cursor=_cursor(rows[-1]) if len(rows) == limit else None,
    )


def _cursor(row: Row) -> str:
    return f"{row[8]}|{row[0]}|{row[1]}"


def undelivered_cursor(cursor: str | None) -> tuple[int, str, str]:
    """Where a page of unfinished deliveries ended."""
    if cursor is None:
        return 0, "", ""
    created_ms, *ids = cursor.split("|") if isinstance(cursor, str) else ("",)  # pyright: ignore[reportUnnecessaryIsInstance]
    if len(ids) != 2 or not created_ms.isascii() or not created_ms.isdigit() or len(created_ms) > 18:
        raise InvalidArgument("cursor", "is not one this list returned")
    return int(created_ms), ids[0], ids[1]
