"""Occurrences: what happened, recorded once under a key that belongs to its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from lash_store.encode import Encoder, check, decode, digest, stable_hash
from lash_store.errors import InvalidArgument, NotFound, OccurrenceConflict
from lash_store.model.trigger import Occurrence, OccurrenceRequest, Subscription
from lash_store.ops.drafts import named, prepare_source_type, require
from lash_store.ops.statement import Op, Row, database_now, execute, execute_many, fetch, fetch_one

SCHEDULED = "schedule:"  # keys of occurrences a tick makes


class StaleMatch(Exception):
    """What was prepared no longer fits what is stored: subscriptions or sessions came or went. Look and prepare again."""


class PreparedOccurrence(Struct, frozen=True, kw_only=True):
    """A request after the walk. Equal hashes under one key are one occurrence."""

    occurrence_id: str
    source_type: str
    source_key: str
    idempotency_key: str
    request_hash: bytes
    body: str
    payload: Any


class StoredOccurrence(Struct, frozen=True):
    """A row as it is stored, not yet verified."""

    occurrence_id: str
    source_type: str
    source_key: str
    idempotency_key: str
    request_hash: bytes
    body: str
    digest: bytes
    occurred_ms: int


# --- preparing ------------------------------------------------------------------------------------------------------------


def prepare_occurrence(request: OccurrenceRequest, encoder: Encoder) -> PreparedOccurrence:
    """Refuse blank names and values that cannot be stored; derive the id and the hash."""
    require(request, OccurrenceRequest, "request")
    source_type = prepare_source_type(request.source_type, encoder, "request.source_type")
    source_key = named(request.source_key, encoder, "request.source_key")
    key = named(request.idempotency_key, encoder, "request.idempotency_key")
    if key.startswith(SCHEDULED):
        raise InvalidArgument("request.idempotency_key", f"must not start with {SCHEDULED!r}, which names instants of schedules")
    return _prepared(source_type, source_key, key, payload=request.payload, source=request.source, encoder=encoder)


def prepare_instant(subscription: Subscription, instant_ms: int, scheduled: str, encoder: Encoder) -> PreparedOccurrence:
    """The occurrence of one instant of a subscription's own schedule."""
    return _prepared(
        subscription.source_type,
        subscription.source_key,
        f"{SCHEDULED}{subscription.subscription_id}:{instant_ms}",
        payload={"instant_ms": instant_ms, "scheduled": scheduled},
        source=subscription.source,
        encoder=encoder,
    )


def _prepared(source_type: str, source_key: str, key: str, *, payload: Any, source: Any, encoder: Encoder) -> PreparedOccurrence:
    body = encoder.json({"payload": payload, "source": source}, "request")
    return PreparedOccurrence(
        occurrence_id=f"trigger:{stable_hash([source_type, source_key, key])}",
        source_type=source_type,
        source_key=source_key,
        idempotency_key=key,
        request_hash=bytes.fromhex(stable_hash([source_type, source_key, payload, source])),
        body=body,
        payload=payload,
    )


def addressee(idempotency_key: str) -> str | None:
    """The one subscription an instant of a schedule is for; None when an occurrence is for all that match."""
    if not idempotency_key.startswith(SCHEDULED):
        return None
    return idempotency_key.removeprefix(SCHEDULED).rpartition(":")[0]


# --- recording ------------------------------------------------------------------------------------------------------------


def record_occurrence(request: PreparedOccurrence) -> Op[StoredOccurrence]:
    """Record an occurrence, or return the one its key recorded before, whoever was first."""
    now_ms = yield from database_now()
    return (yield from record([request], now_ms))[request.occurrence_id]


def record(requests: Sequence[PreparedOccurrence], now_ms: int) -> Op[dict[str, StoredOccurrence]]:
    """Insert those that are new, then lock and compare all. Holding the rows keeps a prune away from them."""
    yield from execute_many(
        """
        INSERT INTO {occurrences} (
            occurrence_id, source_type, source_key, idempotency_key, request_hash, body, digest, occurred_ms)
        SELECT rows.occurrence_id, rows.source_type, rows.source_key, rows.idempotency_key, rows.request_hash, rows.body,
               rows.digest, CAST(:now_ms AS {int})
        FROM {rows(occurrence_id text, source_type text, source_key text, idempotency_key text, request_hash bytes, body text,
                   digest bytes)}
        WHERE true
        ON CONFLICT (occurrence_id) DO NOTHING
        """,
        [_columns(request) for request in sorted(requests, key=lambda each: each.occurrence_id)],
        now_ms=now_ms,
    )
    found = yield from lock([request.occurrence_id for request in requests])
    for request in requests:
        row = found.get(request.occurrence_id)
        if row is None:
            raise StaleMatch  # pruned between the two statements
        if bytes(row.request_hash) != request.request_hash:
            raise OccurrenceConflict(
                source_type=request.source_type, source_key=request.source_key, idempotency_key=request.idempotency_key
            )
    return found


def _columns(request: PreparedOccurrence) -> dict[str, Any]:
    return {
        "occurrence_id": request.occurrence_id,
        "source_type": request.source_type,
        "source_key": request.source_key,
        "idempotency_key": request.idempotency_key,
        "request_hash": request.request_hash,
        "body": request.body,
        "digest": _digest(request),
    }


def _digest(row: PreparedOccurrence | StoredOccurrence) -> bytes:
    names = (row.occurrence_id, row.source_type, row.source_key, row.idempotency_key)
    return digest("occurrence/1", *names, bytes(row.request_hash), row.body)


def lock(occurrence_ids: Sequence[str]) -> Op[dict[str, StoredOccurrence]]:
    """Lock occurrences in ascending order: whoever adds deliveries to one holds its row."""
    rows = yield from fetch(
        """
        SELECT occurrence_id, source_type, source_key, idempotency_key, request_hash, body, digest, occurred_ms
        FROM {occurrences}
        WHERE occurrence_id {any_text:occurrence_ids}
        ORDER BY occurrence_id
        {for_update}
        """,
        occurrence_ids=sorted(set(occurrence_ids)),
    )
    return {row[0]: StoredOccurrence(*row) for row in rows}


# --- looking --------------------------------------------------------------------------------------------------------------


def get(occurrence_id: str) -> Op[StoredOccurrence]:
    """A recorded occurrence."""
    row = yield from fetch_one(
        """
        SELECT occurrence_id, source_type, source_key, idempotency_key, request_hash, body, digest, occurred_ms
        FROM {occurrences}
        WHERE occurrence_id = :occurrence_id
        """,
        occurrence_id=occurrence_id,
    )
    if row is None:
        raise NotFound("occurrence", occurrence_id)
    return StoredOccurrence(*row)


def verified(row: StoredOccurrence) -> Occurrence:
    """An occurrence whose stored bytes match their digest."""
    name = repr(row.occurrence_id)
    check(bytes(row.digest), _digest(row), table="occurrences", row=name)
    body = decode(row.body, table="occurrences", row=name)
    return Occurrence(
        occurrence_id=row.occurrence_id,
        source_type=row.source_type,
        source_key=row.source_key,
        idempotency_key=row.idempotency_key,
        payload=body["payload"],
        source=body["source"],
        occurred_ms=row.occurred_ms,
    )


# --- pruning --------------------------------------------------------------------------------------------------------------


class Pruned(Struct, frozen=True):
    """What one bounded step removed or counted, and where the next one goes on; None at the end."""

    occurrences: int
    deliveries: int
    after: tuple[int, str] | None


def prune_step(*, older_than_ms: int, after: tuple[int, str], limit: int, dry_run: bool) -> Op[Pruned]:
    """Remove occurrences older than that whose deliveries are all finished, up to about `limit` rows."""
    now_ms = yield from database_now()
    rows = yield from fetch(
        AGED if dry_run else AGED_LOCKED,
        until_ms=now_ms - older_than_ms,
        after_ms=after[0],
        after_id=after[1],
        limit=limit,
    )
    ids, last = _fitting(rows, (yield from _counts([row[1] for row in rows])), limit)
    chosen = [occurrence_id for occurrence_id, _ in ids]
    deliveries = sum(count for _, count in ids)
    if chosen and not dry_run:
        yield from fetch(
            """
            SELECT process_id FROM {deliveries}
            WHERE occurrence_id {any_text:occurrence_ids}
            ORDER BY occurrence_id, number
            {for_update}
            """,
            occurrence_ids=chosen,
        )
        deliveries = yield from execute(
            "DELETE FROM {deliveries} WHERE occurrence_id {any_text:occurrence_ids}", occurrence_ids=chosen
        )
        count = yield from execute(
            "DELETE FROM {occurrences} WHERE occurrence_id {any_text:occurrence_ids}", occurrence_ids=chosen
        )
        assert count == len(chosen), "a locked occurrence vanished"
    return Pruned(len(chosen), deliveries, last)


# Whoever reserves deliveries holds the row: those are passed over, and looked at by the next prune.
AGED_LOCKED = """
    SELECT occurred_ms, occurrence_id FROM {occurrences}
    WHERE occurred_ms <= :until_ms AND (occurred_ms, occurrence_id) > (CAST(:after_ms AS {int}), CAST(:after_id AS TEXT))
    ORDER BY occurred_ms, occurrence_id
    LIMIT :limit
    {skip_locked}
    """

AGED = """
    SELECT occurred_ms, occurrence_id FROM {occurrences}
    WHERE occurred_ms <= :until_ms AND (occurred_ms, occurrence_id) > (CAST(:after_ms AS {int}), CAST(:after_id AS TEXT))
    ORDER BY occurred_ms, occurrence_id
    LIMIT :limit
    """


def _counts(occurrence_ids: Sequence[str]) -> Op[dict[str, tuple[int, int]]]:
    """Of each occurrence that has any: how many deliveries, and how many of them are unfinished."""
    rows = yield from fetch(
        """
        SELECT occurrence_id, COUNT(*), COUNT(CASE WHEN state = 'reserved' THEN 1 END) FROM {deliveries}
        WHERE occurrence_id {any_text:occurrence_ids}
        GROUP BY occurrence_id
        """,
        occurrence_ids=list(occurrence_ids),
    )
    return {row[0]: (row[1], row[2]) for row in rows}


def _fitting(
    rows: Sequence[Row], counts: Mapping[str, tuple[int, int]], limit: int
) -> tuple[list[tuple[str, int]], tuple[int, str] | None]:
    """Finished occurrences in order until their deliveries fill one transaction, at least one; and where that ends."""
    chosen: list[tuple[str, int]] = []
    room = limit
    for occurred_ms, occurrence_id in rows:
        count, unfinished = counts.get(occurrence_id, (0, 0))
        if not unfinished:
            chosen.append((occurrence_id, count))
            room -= count
        if room <= 0:
            return chosen, (occurred_ms, occurrence_id)
    return chosen, (rows[-1][0], rows[-1][1]) if len(rows) == limit else None
