"""The session's inbox: what is written when work arrives, and how it is looked at. Claims live in `claims`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from lash_store.encode import check, decode, digest
from lash_store.errors import Corrupt, NotFound, ReplayConflict
from lash_store.model.queue import Batch, BatchPage, BatchState, Delivery, Depth, Slot
from lash_store.ops.heads import Head, lock_session, look_session, refresh_ready
from lash_store.ops.statement import Op, Row, database_now, execute, execute_many, fetch, fetch_one, ring


class PreparedBatch(Struct, frozen=True, kw_only=True):
    """A draft after the walk. `intent` is the hash of its content; `key` finds it again after it was settled."""

    session_id: str
    batch_id: str
    source_key: str | None
    delivery: str
    slot: str
    merge_key: str
    payloads: str
    delay_ms: int
    max_attempts: int | None
    intent: bytes

    @property
    def key(self) -> str:
        """What a retry repeats: the source key, or the id the client minted."""
        return self.batch_id if self.source_key is None else self.source_key


class StoredBatch(Struct, frozen=True):
    """A row of the inbox as it is stored, not yet verified."""

    session_id: str
    enqueue_seq: int
    batch_id: str
    source_key: str | None
    delivery: str
    slot: str
    merge_key: str
    payloads: str
    digest: bytes
    intent: bytes
    available_ms: int
    enqueued_ms: int
    attempts: int
    max_attempts: int | None
    fence: int
    parked_ms: int | None
    parked_reason: str | None
    token: str | None
    expires_ms: int | None

    @property
    def key(self) -> str:
        """What a retry repeats: the source key, or the id the client minted."""
        return self.batch_id if self.source_key is None else self.source_key

    def held(self, now_ms: int) -> bool:
        """Whether a live claim holds the batch."""
        return self.token is not None and self.expires_ms is not None and self.expires_ms > now_ms


def batch_digest(batch_id: str, source_key: str | None, *, delivery: str, slot: str, merge_key: str, payloads: str) -> bytes:
    """The digest that ties a batch's content to its id."""
    return digest("batch-row/1", batch_id, source_key, delivery, slot, merge_key, payloads)


# --- arriving -------------------------------------------------------------------------------------------------------------


class Enqueued(Struct, frozen=True):
    """What an enqueue found: stored rows by key (old and new), and settled ones it must not run again."""

    stored: tuple[StoredBatch, ...]
    settled: tuple[Batch, ...]
    now_ms: int


def enqueue(batch: PreparedBatch, *, retention_ms: int, incarnation: int | None = None) -> Op[Enqueued]:
    """Store a batch, or return what its key stored before. Other content under the same key is refused."""
    head = yield from lock_session(batch.session_id, incarnation)
    now_ms = yield from database_now()
    return (yield from insert_batches([batch], {batch.session_id: head}, now_ms=now_ms, retention_ms=retention_ms))


def insert_batches(
    batches: Sequence[PreparedBatch], heads: Mapping[str, Head], *, now_ms: int, retention_ms: int | None
) -> Op[Enqueued]:
    """Store the batches whose keys are new, in order, under the locks of their sessions.

    Without a retention, settled keys are not looked at: the same work may happen again.
    """
    found = yield from _stored_by_key(batches)
    _refuse_reused_ids(batches, found)
    known = {(row.session_id, row.key): row for row in found}
    settled = {} if retention_ms is None else (yield from _settled_by_key(batches, now_ms - retention_ms))
    fresh: list[tuple[PreparedBatch, int]] = []
    next_seq = {session_id: head.next_enqueue_seq for session_id, head in heads.items()}
    for batch in batches:
        before = known.get((batch.session_id, batch.key))
        intent = before.intent if before is not None else settled.get((batch.session_id, batch.key), (None, b""))[1]
        if before is None and (batch.session_id, batch.key) not in settled:
            fresh.append((batch, next_seq[batch.session_id]))
            next_seq[batch.session_id] += 1
        elif bytes(intent) != batch.intent:
            raise ReplayConflict("source key", key=batch.key, owner=batch.session_id)
    yield from _insert(fresh, now_ms)
    yield from _advance(fresh, next_seq)
    stored = [*(row for row in known.values()), *(as_stored(batch, seq, now_ms) for batch, seq in fresh)]
    return Enqueued(tuple(stored), tuple(batch for batch, _ in settled.values()), now_ms)


def _refuse_reused_ids(batches: Sequence[PreparedBatch], found: Sequence[StoredBatch]) -> None:
    """A batch id names one batch: it cannot come back under another key, stored or in the same call."""
    keys = {(row.session_id, row.batch_id): row.key for row in found}
    for batch in batches:
        if keys.setdefault((batch.session_id, batch.batch_id), batch.key) != batch.key:
            raise ReplayConflict("batch", key=batch.batch_id, owner=batch.session_id)


def _stored_by_key(batches: Sequence[PreparedBatch]) -> Op[list[StoredBatch]]:
    # Two searches: of one with OR, SQLite would make a scan of the inbox.
    rows = yield from fetch(
        """
        SELECT session_id, enqueue_seq, batch_id, source_key, delivery, slot, merge_key, payloads, digest, intent, available_ms,
               enqueued_ms, attempts, max_attempts, fence, parked_ms, parked_reason, token, expires_ms
        FROM {batches}
        WHERE session_id {any_text:session_ids} AND source_key {any_text:keys}
        UNION ALL
        SELECT session_id, enqueue_seq, batch_id, source_key, delivery, slot, merge_key, payloads, digest, intent, available_ms,
               enqueued_ms, attempts, max_attempts, fence, parked_ms, parked_reason, token, expires_ms
        FROM {batches}
        WHERE session_id {any_text:session_ids} AND batch_id {any_text:ids}
          AND NOT (source_key IS NOT NULL AND source_key {any_text:keys})
        """,
        session_ids=sorted({batch.session_id for batch in batches}),
        keys=sorted({batch.key for batch in batches}),
        ids=sorted({batch.batch_id for batch in batches}),
    )
    return [StoredBatch(*row) for row in rows]


def _settled_by_key(batches: Sequence[PreparedBatch], not_before_ms: int) -> Op[dict[tuple[str, str], tuple[Batch, bytes]]]:
    rows = yield from fetch(
        """
        SELECT session_id, source_key, batch_id, enqueue_seq, intent, settled_ms
        FROM {settled_keys}
        WHERE session_id {any_text:session_ids} AND source_key {any_text:keys} AND settled_ms > :not_before_ms
        """,
        session_ids=sorted({batch.session_id for batch in batches}),
        keys=sorted({batch.key for batch in batches}),
        not_before_ms=not_before_ms,
    )
    wanted = {(batch.session_id, batch.key): batch for batch in batches}
    return {(row[0], row[1]): (_settled(row, wanted[row[0], row[1]]), row[4]) for row in rows if (row[0], row[1]) in wanted}


def _settled(row: Row, asked: PreparedBatch) -> Batch:
    session_id, _, batch_id, enqueue_seq, _, settled_ms = row
    return Batch(
        batch_id=batch_id,
        session_id=session_id,
        enqueue_seq=enqueue_seq,
        source_key=asked.source_key,
        delivery=Delivery(asked.delivery),
        slot=Slot(asked.slot),
        merge_key=asked.merge_key,
        payloads=(),
        available_ms=settled_ms,
        enqueued_ms=settled_ms,
        attempts=0,
        max_attempts=asked.max_attempts,
        fence=0,
        state=BatchState.SETTLED,
    )


def as_stored(batch: PreparedBatch, seq: int, now_ms: int) -> StoredBatch:
    """The row a new batch becomes."""
    return StoredBatch(
        batch.session_id,
        seq,
        batch.batch_id,
        batch.source_key,
        batch.delivery,
        batch.slot,
        batch.merge_key,
        batch.payloads,
        digest_of(batch),
        batch.intent,
        now_ms + batch.delay_ms,
        now_ms,
        0,
        batch.max_attempts,
        0,
        None,
        None,
        None,
        None,
    )


def digest_of(batch: PreparedBatch) -> bytes:
    """The digest of its row."""
    return batch_digest(
        batch.batch_id,
        batch.source_key,
        delivery=batch.delivery,
        slot=batch.slot,
        merge_key=batch.merge_key,
        payloads=batch.payloads,
    )


def _insert(fresh: Sequence[tuple[PreparedBatch, int]], now_ms: int) -> Op[None]:
    yield from execute_many(
        """
        INSERT INTO {batches} (session_id, enqueue_seq, batch_id, source_key, delivery, slot, merge_key, payloads, digest,
                               intent, available_ms, enqueued_ms, attempts, max_attempts, fence)
        SELECT rows.session_id, rows.enqueue_seq, rows.batch_id, rows.source_key, rows.delivery, rows.slot, rows.merge_key,
               rows.payloads, rows.digest, rows.intent, rows.available_ms, CAST(:now_ms AS {int}), 0, rows.max_attempts, 0
        FROM {rows(session_id text, enqueue_seq int, batch_id text, source_key text, delivery text, slot text, merge_key text,
                   payloads text, digest bytes, intent bytes, available_ms int, max_attempts int)}
        """,
        [
            {
                "session_id": batch.session_id,
                "enqueue_seq": seq,
                "batch_id": batch.batch_id,
                "source_key": batch.source_key,
                "delivery": batch.delivery,
                "slot": batch.slot,
                "merge_key": batch.merge_key,
                "payloads": batch.payloads,
                "digest": digest_of(batch),
                "intent": batch.intent,
                "available_ms": now_ms + batch.delay_ms,
                "max_attempts": batch.max_attempts,
            }
            for batch, seq in fresh
        ],
        now_ms=now_ms,
    )


def _advance(fresh: Sequence[tuple[PreparedBatch, int]], next_seq: Mapping[str, int]) -> Op[None]:
    """Move the counters of the sessions that got work, and wake who waits for it."""
    touched = sorted({batch.session_id for batch, _ in fresh})
    if not touched:
        return
    count = yield from execute_many(
        """
        UPDATE {sessions} SET next_enqueue_seq = rows.next_enqueue_seq
        FROM {rows(session_id text, next_enqueue_seq int)}
        WHERE {sessions}.session_id = rows.session_id
        """,
        [{"session_id": session_id, "next_enqueue_seq": next_seq[session_id]} for session_id in touched],
    )
    assert count == len(touched), "a locked session vanished"
    yield from refresh_ready(touched)
    for session_id in touched:
        yield from ring("inbox", session_id)


# --- looking --------------------------------------------------------------------------------------------------------------


def check_row(row: StoredBatch) -> None:
    """Corrupt unless the stored bytes match their digest."""
    actual = batch_digest(
        row.batch_id,
        row.source_key,
        delivery=row.delivery,
        slot=row.slot,
        merge_key=row.merge_key,
        payloads=row.payloads,
    )
    check(bytes(row.digest), actual, table="batches", row=f"{row.session_id!r}/{row.batch_id!r}")


def verified(row: StoredBatch, now_ms: int) -> Batch:
    """A batch whose stored bytes match their digest, in the state it has at this instant."""
    name = f"{row.session_id!r}/{row.batch_id!r}"
    check_row(row)
    payloads = decode(row.payloads, table="batches", row=name)
    if not isinstance(payloads, list):
        raise Corrupt("batches", name, "its payloads are not a list")
    return Batch(
        batch_id=row.batch_id,
        session_id=row.session_id,
        enqueue_seq=row.enqueue_seq,
        source_key=row.source_key,
        delivery=Delivery(row.delivery),
        slot=Slot(row.slot),
        merge_key=row.merge_key,
        payloads=tuple(payloads),  # pyright: ignore[reportUnknownArgumentType]
        available_ms=row.available_ms,
        enqueued_ms=row.enqueued_ms,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        fence=row.fence,
        state=_state(row, now_ms),
        parked_reason=row.parked_reason,
    )


def _state(row: StoredBatch, now_ms: int) -> BatchState:
    if row.parked_ms is not None:
        return BatchState.PARKED
    if row.held(now_ms):
        return BatchState.CLAIMED
    return BatchState.READY if row.available_ms <= now_ms else BatchState.DELAYED


def page(
    session_id: str, *, pending: bool, limit: int, after: int, incarnation: int | None = None
) -> Op[tuple[list[StoredBatch], int]]:
    """A keyset page in enqueue order: all batches, or those no live claim holds and nobody parked."""
    yield from look_session(session_id, incarnation)
    now_ms = yield from database_now()
    rows = yield from fetch(
        """
        SELECT session_id, enqueue_seq, batch_id, source_key, delivery, slot, merge_key, payloads, digest, intent, available_ms,
               enqueued_ms, attempts, max_attempts, fence, parked_ms, parked_reason, token, expires_ms
        FROM {batches}
        WHERE session_id = :session_id AND enqueue_seq > :after
          AND (CAST(:pending AS {int}) = 0 OR (parked_ms IS NULL AND (token IS NULL OR expires_ms <= :now_ms)))
        ORDER BY enqueue_seq
        LIMIT :limit
        """,
        session_id=session_id,
        after=after,
        pending=int(pending),
        now_ms=now_ms,
        limit=limit,
    )
    return [StoredBatch(*row) for row in rows], now_ms


def batch_page(rows: Sequence[StoredBatch], *, now_ms: int, limit: int) -> BatchPage:
    """The rows as a page of verified batches."""
    cursor = str(rows[-1].enqueue_seq) if len(rows) == limit else None
    return BatchPage(batches=tuple(verified(row, now_ms) for row in rows), cursor=cursor)


def get(session_id: str, batch_id: str, incarnation: int | None = None) -> Op[tuple[StoredBatch, int]]:
    """One batch, whoever holds it."""
    yield from look_session(session_id, incarnation)
    now_ms = yield from database_now()
    row = (yield from batches_by_id(session_id, [batch_id])).get(batch_id)
    if row is None:
        raise NotFound("batch", batch_id, within=session_id)
    return row, now_ms


def depth(session_id: str, incarnation: int | None = None) -> Op[Depth]:
    """How many batches wait in each state."""
    yield from look_session(session_id, incarnation)
    now_ms = yield from database_now()
    row = yield from fetch_one(
        """
        SELECT COUNT(CASE WHEN parked_ms IS NULL AND (token IS NULL OR expires_ms <= :now_ms) AND available_ms <= :now_ms
                          THEN 1 END),
               COUNT(CASE WHEN parked_ms IS NULL AND (token IS NULL OR expires_ms <= :now_ms) AND available_ms > :now_ms
                          THEN 1 END),
               COUNT(CASE WHEN parked_ms IS NULL AND token IS NOT NULL AND expires_ms > :now_ms THEN 1 END),
               COUNT(CASE WHEN parked_ms IS NOT NULL THEN 1 END)
        FROM {batches}
        WHERE session_id = :session_id
        """,
        session_id=session_id,
        now_ms=now_ms,
    )
    assert row is not None
    return Depth(ready=row[0], delayed=row[1], claimed=row[2], parked=row[3])


def batches_by_id(session_id: str, batch_ids: Iterable[str]) -> Op[dict[str, StoredBatch]]:
    """These batches, as far as they exist."""
    rows = yield from fetch(
        """
        SELECT session_id, enqueue_seq, batch_id, source_key, delivery, slot, merge_key, payloads, digest, intent, available_ms,
               enqueued_ms, attempts, max_attempts, fence, parked_ms, parked_reason, token, expires_ms
        FROM {batches}
        WHERE session_id = :session_id AND batch_id {any_text:batch_ids}
        """,
        session_id=session_id,
        batch_ids=sorted(set(batch_ids)),
    )
    return {row[2]: StoredBatch(*row) for row in rows}


# --- levers ---------------------------------------------------------------------------------------------------------------


def cancel(session_id: str, batch_id: str, incarnation: int | None = None) -> Op[tuple[StoredBatch, int] | None]:
    """Remove a batch no live claim holds and return it; its source key is free again. None when it is held or gone."""
    yield from lock_session(session_id, incarnation)
    now_ms = yield from database_now()
    row = (yield from batches_by_id(session_id, [batch_id])).get(batch_id)
    if row is None or row.held(now_ms):
        return None
    check_row(row)
    yield from _remove(session_id, batch_id)
    return row, now_ms


def discard(session_id: str, batch_id: str, incarnation: int | None = None) -> Op[bool]:
    """Remove a batch no live claim holds without reading it: the way out for a damaged one."""
    yield from lock_session(session_id, incarnation)
    now_ms = yield from database_now()
    row = (yield from batches_by_id(session_id, [batch_id])).get(batch_id)
    if row is None or row.held(now_ms):
        return False
    yield from _remove(session_id, batch_id)
    return True


def _remove(session_id: str, batch_id: str) -> Op[None]:
    count = yield from execute(
        "DELETE FROM {batches} WHERE session_id = :session_id AND batch_id = :batch_id",
        session_id=session_id,
        batch_id=batch_id,
    )
    assert count == 1, "a batch of the locked session vanished"
    yield from refresh_ready([session_id])
    yield from ring("inbox", session_id)


def park(session_id: str, batch_id: str, reason: str, incarnation: int | None = None) -> Op[tuple[StoredBatch, int]]:
    """Take a batch out of delivery until it is unparked. A claim that holds it loses it."""
    yield from lock_session(session_id, incarnation)
    now_ms = yield from database_now()
    count = yield from execute(
        """
        UPDATE {batches}
        SET parked_ms = :now_ms, parked_reason = :reason, claim_id = NULL, owner = NULL, token = NULL, claimed_ms = NULL,
            expires_ms = NULL
        WHERE session_id = :session_id AND batch_id = :batch_id
        """,
        session_id=session_id,
        batch_id=batch_id,
        reason=reason,
        now_ms=now_ms,
    )
    if count != 1:
        raise NotFound("batch", batch_id, within=session_id)
    return (yield from _after_lever(session_id, batch_id, now_ms))


def unpark(session_id: str, batch_id: str, incarnation: int | None = None) -> Op[tuple[StoredBatch, int]]:
    """Put a parked batch back in its place, with all its attempts. One that is not parked stays as it is."""
    yield from lock_session(session_id, incarnation)
    now_ms = yield from database_now()
    yield from execute(
        """
        UPDATE {batches} SET parked_ms = NULL, parked_reason = NULL, attempts = 0
        WHERE session_id = :session_id AND batch_id = :batch_id AND parked_ms IS NOT NULL
        """,
        session_id=session_id,
        batch_id=batch_id,
    )
    return (yield from _after_lever(session_id, batch_id, now_ms))


def _after_lever(session_id: str, batch_id: str, now_ms: int) -> Op[tuple[StoredBatch, int]]:
    row = (yield from batches_by_id(session_id, [batch_id])).get(batch_id)
    if row is None:
        raise NotFound("batch", batch_id, within=session_id)
    check_row(row)
    yield from refresh_ready([session_id])
    yield from ring("inbox", session_id)
    return row, now_ms
