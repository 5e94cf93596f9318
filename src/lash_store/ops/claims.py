"""Claims on the inbox: choosing a prefix of ready work, leasing it, and settling it at most once."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, itemgetter

from msgspec import Struct
from msgspec.structs import replace

from lash_store.errors import ClaimLost, Corrupt
from lash_store.model.queue import Boundary, Completion, Delivery, Slot
from lash_store.ops.heads import LIVE, Head, lock_session, lock_sessions, refresh_ready
from lash_store.ops.queue import StoredBatch, batches_by_id, check_row
from lash_store.ops.statement import Op, database_now, execute, execute_many, fetch, fetch_one, ring


class Claimed(Struct, frozen=True, kw_only=True):
    """A claim as it was written; the caller verifies the rows' payloads."""

    session_id: str
    claim_id: str
    owner: str
    token: str
    fence: int
    claimed_ms: int
    expires_ms: int
    rows: tuple[StoredBatch, ...]


class LookAgain(Struct, frozen=True):
    """This look found nothing to hand out where it was promised; the next one may. `corrupt` was taken out of delivery."""

    corrupt: tuple[str, ...] = ()


def select_prefix(ready: Sequence[StoredBatch], boundary: Boundary, max_batches: int) -> tuple[StoredBatch, ...]:
    """The longest run from the head of the queue that may be handed out together.

    The head decides: at a checkpoint of a running turn it must be deliverable there, an exclusive head goes alone, a joinable
    one takes along its neighbours with the same delivery and merge key.
    """
    if not ready or max_batches <= 0:
        return ()
    head = ready[0]
    if boundary is Boundary.ACTIVE_TURN_CHECKPOINT and head.delivery != Delivery.EARLIEST_SAFE_BOUNDARY:
        return ()
    if head.slot == Slot.EXCLUSIVE:
        return (head,)
    chosen: list[StoredBatch] = []
    for batch in ready[:max_batches]:
        if (batch.slot, batch.delivery, batch.merge_key) != (Slot.JOIN, head.delivery, head.merge_key):
            break
        chosen.append(batch)
    return tuple(chosen)


def claim(
    session_id: str,
    owner: str,
    *,
    boundary: Boundary,
    lease_ms: int,
    max_batches: int,
    token: str,
    repeated: bool = False,
    incarnation: int | None = None,
) -> Op[Claimed | None]:
    """Lease the longest prefix of ready batches that may run together, or None. A re-claim raises the fence."""
    head = yield from lock_session(session_id, incarnation)
    now_ms = yield from database_now()
    before = (yield from _claim_of_token(session_id, token)) if repeated else None
    if before is not None:
        return before
    chosen = yield from _choose(session_id, boundary, max_batches, now_ms)
    if not chosen:
        return None
    return (yield from _stamp(head, chosen, owner=owner, token=token, lease_ms=lease_ms, now_ms=now_ms))


def claim_exact(
    session_id: str,
    owner: str,
    batch_ids: Sequence[str],
    *,
    boundary: Boundary,
    lease_ms: int,
    token: str,
    repeated: bool = False,
    incarnation: int | None = None,
) -> Op[Claimed | None]:
    """Lease exactly these batches if they are what a claim would choose, in this order; otherwise nothing happens."""
    head = yield from lock_session(session_id, incarnation)
    now_ms = yield from database_now()
    before = (yield from _claim_of_token(session_id, token)) if repeated else None
    if before is not None:
        return before
    chosen = yield from _choose(session_id, boundary, len(batch_ids), now_ms)
    if not chosen or [row.batch_id for row in chosen] != list(batch_ids):
        return None
    return (yield from _stamp(head, chosen, owner=owner, token=token, lease_ms=lease_ms, now_ms=now_ms))


def claim_next(
    owner: str, *, lease_ms: int, max_batches: int, concurrent: bool, token: str, wait_for_locks: bool
) -> Op[Claimed | LookAgain | None]:
    """Lease work of the session that has been ready longest.

    The first look passes over sessions somebody is just working on. Only a look that waits for them may say None.
    """
    now_ms = yield from database_now()
    session_id = yield from (_next_open if concurrent else _next_ready)(now_ms, wait_for_locks)
    if session_id is None:
        return None
    head = (yield from lock_sessions([session_id])).get(session_id)
    now_ms = yield from database_now()
    if head is None or head.state != LIVE or not (yield from _still_due(session_id, concurrent, now_ms)):
        return LookAgain()
    chosen = yield from _choose(session_id, Boundary.IDLE, max_batches, now_ms, check=False)
    damaged = [row for row in chosen if _is_damaged(row)]
    if damaged:
        # One damaged row must not stop every worker of every session: it is parked, where operators look.
        yield from _park_damaged(session_id, damaged, now_ms)
        return LookAgain(tuple(f"{session_id}/{row.batch_id}" for row in damaged))
    if not chosen:
        # Nothing to hand out although the row says so: bring it in line, or the next look finds it again.
        yield from refresh_ready([session_id])
        return LookAgain()
    return (yield from _stamp(head, chosen, owner=owner, token=token, lease_ms=lease_ms, now_ms=now_ms))


def _still_due(session_id: str, concurrent: bool, now_ms: int) -> Op[bool]:
    """Whether the session, now that it is locked, is still one this look may take."""
    row = yield from fetch_one(
        "SELECT ready_ms, open_ms FROM {sessions} WHERE session_id = :session_id",
        session_id=session_id,
    )
    due_ms = None if row is None else row[1] if concurrent else row[0]
    return due_ms is not None and due_ms <= now_ms


# The look that waits takes no lock itself: a lock statement that searches would hold one session while it waits for the
# next, out of order, and would miss a session that became ready while it waited.


def _next_ready(now_ms: int, wait_for_locks: bool) -> Op[str | None]:
    if wait_for_locks:
        row = yield from fetch_one(
            """
            SELECT session_id FROM {sessions}
            WHERE ready_ms <= :now_ms AND state = 'live'
            ORDER BY ready_ms, session_id LIMIT 1
            """,
            now_ms=now_ms,
        )
    else:
        row = yield from fetch_one(
            """
            SELECT session_id FROM {sessions}
            WHERE ready_ms <= :now_ms AND state = 'live'
            ORDER BY ready_ms, session_id LIMIT 1 {skip_locked}
            """,
            now_ms=now_ms,
        )
    return None if row is None else row[0]


def _next_open(now_ms: int, wait_for_locks: bool) -> Op[str | None]:
    if wait_for_locks:
        row = yield from fetch_one(
            """
            SELECT session_id FROM {sessions}
            WHERE open_ms <= :now_ms AND state = 'live'
            ORDER BY open_ms, session_id LIMIT 1
            """,
            now_ms=now_ms,
        )
    else:
        row = yield from fetch_one(
            """
            SELECT session_id FROM {sessions}
            WHERE open_ms <= :now_ms AND state = 'live'
            ORDER BY open_ms, session_id LIMIT 1 {skip_locked}
            """,
            now_ms=now_ms,
        )
    return None if row is None else row[0]


def claim_of_token_anywhere(token: str) -> Op[Claimed | None]:
    """The claim a lost answer of `claim_next` had made, wherever it was."""
    row = yield from fetch_one(
        "SELECT session_id FROM {batches} WHERE token = :token ORDER BY session_id LIMIT 1",
        token=token,
    )
    if row is None:
        return None
    head = (yield from lock_sessions([row[0]])).get(row[0])
    if head is None or head.state != LIVE:
        return None
    return (yield from _claim_of_token(row[0], token))


def _claim_of_token(session_id: str, token: str) -> Op[Claimed | None]:
    """What this token holds already: the caller repeats a claim whose answer it lost."""
    rows = yield from fetch(
        """
        SELECT session_id, enqueue_seq, batch_id, source_key, delivery, slot, merge_key, payloads, digest, intent, available_ms,
               enqueued_ms, attempts, max_attempts, fence, parked_ms, parked_reason, token, expires_ms,
               claim_id, owner, claimed_ms
        FROM {batches}
        WHERE session_id = :session_id AND token = :token
        """,
        session_id=session_id,
        token=token,
    )
    if not rows:
        return None
    rows = sorted(rows, key=itemgetter(1))  # here: an ORDER BY would tempt SQLite to read the whole inbox in order
    first = rows[0]
    return Claimed(
        session_id=session_id,
        claim_id=first[19],
        owner=first[20],
        token=token,
        fence=first[14],
        claimed_ms=first[21],
        expires_ms=min(row[18] for row in rows),
        rows=tuple(StoredBatch(*row[:19]) for row in rows),
    )


def _is_damaged(row: StoredBatch) -> bool:
    try:
        check_row(row)
    except Corrupt:
        return True
    return False


def _park_damaged(session_id: str, rows: Sequence[StoredBatch], now_ms: int) -> Op[None]:
    count = yield from execute(
        """
        UPDATE {batches}
        SET parked_ms = :now_ms, parked_reason = 'corrupt', claim_id = NULL, owner = NULL, token = NULL, claimed_ms = NULL,
            expires_ms = NULL
        WHERE session_id = :session_id AND enqueue_seq {any_int:seqs}
        """,
        session_id=session_id,
        seqs=[row.enqueue_seq for row in rows],
        now_ms=now_ms,
    )
    assert count == len(rows), "a batch of the locked session vanished"
    yield from refresh_ready([session_id])


def _choose(
    session_id: str, boundary: Boundary, max_batches: int, now_ms: int, *, check: bool = True
) -> Op[tuple[StoredBatch, ...]]:
    ready = yield from _ready(session_id, max_batches, now_ms)
    if any(_exhausted(row) for row in ready):
        yield from _park_exhausted(session_id, now_ms)
        ready = yield from _ready(session_id, max_batches, now_ms)
    chosen = select_prefix(ready, boundary, max_batches)
    for row in chosen if check else ():
        # A claim that cannot be read must not cost an attempt: refuse before anything is written.
        check_row(row)
    return chosen


def _exhausted(row: StoredBatch) -> bool:
    return row.max_attempts is not None and row.attempts >= row.max_attempts


def _ready(session_id: str, limit: int, now_ms: int) -> Op[list[StoredBatch]]:
    """What can be claimed now, in order: batches nobody holds, and those whose lease has passed. Held ones are not read."""
    rows = yield from fetch(
        """
        SELECT o.session_id, o.enqueue_seq, o.batch_id, o.source_key, o.delivery, o.slot, o.merge_key, o.payloads, o.digest,
               o.intent, o.available_ms, o.enqueued_ms, o.attempts, o.max_attempts, o.fence, o.parked_ms, o.parked_reason,
               o.token, o.expires_ms
        FROM (SELECT b.session_id, b.enqueue_seq, b.batch_id, b.source_key, b.delivery, b.slot, b.merge_key, b.payloads,
                     b.digest, b.intent, b.available_ms, b.enqueued_ms, b.attempts, b.max_attempts, b.fence, b.parked_ms,
                     b.parked_reason, b.token, b.expires_ms
              FROM {batches} b
              WHERE b.session_id = :session_id AND b.parked_ms IS NULL AND b.token IS NULL AND +b.available_ms <= :now_ms
              ORDER BY b.enqueue_seq
              LIMIT :limit) AS o
        UNION ALL
        SELECT b.session_id, b.enqueue_seq, b.batch_id, b.source_key, b.delivery, b.slot, b.merge_key, b.payloads, b.digest,
               b.intent, b.available_ms, b.enqueued_ms, b.attempts, b.max_attempts, b.fence, b.parked_ms, b.parked_reason,
               b.token, b.expires_ms
        FROM {batches} b
        WHERE b.session_id = :session_id AND b.token IS NOT NULL AND b.expires_ms <= :now_ms AND b.parked_ms IS NULL
          AND b.available_ms <= :now_ms
        """,
        session_id=session_id,
        now_ms=now_ms,
        limit=limit,
    )
    return sorted((StoredBatch(*row) for row in rows), key=attrgetter("enqueue_seq"))[:limit]


def _park_exhausted(session_id: str, now_ms: int) -> Op[None]:
    """Take everything that used up its attempts out of delivery, in one statement."""
    yield from execute(
        """
        UPDATE {batches}
        SET parked_ms = :now_ms, parked_reason = 'max_attempts', claim_id = NULL, owner = NULL, token = NULL,
            claimed_ms = NULL, expires_ms = NULL
        WHERE session_id = :session_id AND parked_ms IS NULL AND available_ms <= :now_ms
          AND (token IS NULL OR expires_ms <= :now_ms) AND attempts >= max_attempts
        """,
        session_id=session_id,
        now_ms=now_ms,
    )
    yield from refresh_ready([session_id])


def _stamp(head: Head, chosen: Sequence[StoredBatch], *, owner: str, token: str, lease_ms: int, now_ms: int) -> Op[Claimed]:
    """Write the lease. The session's fence only grows, so every claim of the session has a higher one than all before it."""
    fence = head.fence + 1
    claimed = Claimed(
        session_id=head.session_id,
        claim_id=f"qwc:{chosen[0].enqueue_seq}:{fence}",
        owner=owner,
        token=token,
        fence=fence,
        claimed_ms=now_ms,
        expires_ms=now_ms + lease_ms,
        rows=tuple(
            replace(row, attempts=row.attempts + 1, fence=fence, token=token, expires_ms=now_ms + lease_ms) for row in chosen
        ),
    )
    count = yield from execute(
        """
        UPDATE {batches}
        SET claim_id = :claim_id, owner = :owner, token = :token, fence = :fence, attempts = attempts + 1,
            claimed_ms = :now_ms, expires_ms = :expires_ms
        WHERE session_id = :session_id AND enqueue_seq {any_int:seqs}
          AND parked_ms IS NULL AND (token IS NULL OR expires_ms <= :now_ms)
        """,
        session_id=head.session_id,
        seqs=[row.enqueue_seq for row in chosen],
        claim_id=claimed.claim_id,
        owner=owner,
        token=token,
        fence=fence,
        now_ms=now_ms,
        expires_ms=claimed.expires_ms,
    )
    assert count == len(chosen), "a chosen batch of the locked session was taken"
    yield from execute(
        "UPDATE {sessions} SET fence = :fence WHERE session_id = :session_id",
        session_id=head.session_id,
        fence=fence,
    )
    yield from refresh_ready([head.session_id])
    return claimed


# --- holding and letting go -----------------------------------------------------------------------------------------------


def require_owned(session_id: str, completions: Sequence[Completion]) -> Op[list[StoredBatch]]:
    """Every listed batch must still be held by its token; the first that is not is named in the refusal."""
    wanted = {batch_id: completion for completion in completions for batch_id in completion.batch_ids}
    if not wanted:
        return []
    found = yield from batches_by_id(session_id, wanted)
    for batch_id, completion in wanted.items():
        row = found.get(batch_id)
        if row is None or (row.token, row.fence) != (completion.token, completion.fence):
            actual = None if row is None else row.fence
            raise ClaimLost(session_id, batch_id=batch_id, held_fence=completion.fence, actual_fence=actual)
    return [found[batch_id] for batch_id in wanted]


def still_owned(session_id: str, completions: Sequence[Completion]) -> Op[list[StoredBatch]]:
    """The listed batches their token still holds; lost ones are left out."""
    wanted = {batch_id: completion for completion in completions for batch_id in completion.batch_ids}
    if not wanted:
        return []
    found = yield from batches_by_id(session_id, wanted)
    return [row for batch_id, row in found.items() if (row.token, row.fence) == (wanted[batch_id].token, wanted[batch_id].fence)]


def settle_rows(session_id: str, rows: Sequence[StoredBatch], now_ms: int) -> Op[None]:
    """Remove settled work and remember its keys, under the session lock."""
    if not rows:
        return
    count = yield from execute_many(
        """
        DELETE FROM {batches}
        WHERE session_id = :session_id
          AND (batch_id, token) IN (SELECT rows.batch_id, rows.token FROM {rows(batch_id text, token text)})
        """,
        [{"batch_id": row.batch_id, "token": row.token} for row in rows],
        session_id=session_id,
    )
    if count != len(rows):
        lost = rows[0]
        raise ClaimLost(session_id, batch_id=lost.batch_id, held_fence=lost.fence, actual_fence=None)
    yield from execute_many(
        """
        INSERT INTO {settled_keys} (session_id, source_key, batch_id, enqueue_seq, intent, settled_ms)
        SELECT CAST(:session_id AS TEXT), rows.source_key, rows.batch_id, rows.enqueue_seq, rows.intent, CAST(:now_ms AS {int})
        FROM {rows(source_key text, batch_id text, enqueue_seq int, intent bytes)}
        WHERE true
        ON CONFLICT (session_id, source_key) DO UPDATE
        SET batch_id = excluded.batch_id, enqueue_seq = excluded.enqueue_seq, intent = excluded.intent,
            settled_ms = excluded.settled_ms
        """,
        [{"source_key": row.key, "batch_id": row.batch_id, "enqueue_seq": row.enqueue_seq, "intent": row.intent} for row in rows],
        session_id=session_id,
        now_ms=now_ms,
    )
    yield from refresh_ready([session_id])
    yield from ring("inbox", session_id)


def settle(completion: Completion, incarnation: int | None = None) -> Op[int]:
    """Settle work outside a commit: all of it, or ClaimLost and nothing."""
    yield from lock_session(completion.session_id, incarnation)
    now_ms = yield from database_now()
    rows = yield from require_owned(completion.session_id, [completion])
    yield from settle_rows(completion.session_id, rows, now_ms)
    return len(rows)


def renew(completion: Completion, *, lease_ms: int, incarnation: int | None = None) -> Op[int]:
    """Extend the lease of every batch of a claim, or of none: the new expiry. Refused once the token was superseded."""
    yield from lock_session(completion.session_id, incarnation)
    now_ms = yield from database_now()
    rows = yield from require_owned(completion.session_id, [completion])
    count = yield from execute(
        """
        UPDATE {batches} SET expires_ms = :expires_ms
        WHERE session_id = :session_id AND token = :token AND batch_id {any_text:batch_ids}
        """,
        session_id=completion.session_id,
        token=completion.token,
        batch_ids=list(completion.batch_ids),
        expires_ms=now_ms + lease_ms,
    )
    assert count == len(rows), "an owned batch of the locked session vanished"
    yield from refresh_ready([completion.session_id])
    return now_ms + lease_ms


def abandon(completion: Completion, incarnation: int | None = None) -> Op[int]:
    """Give work back at once; what the token no longer holds is left alone. The fence stays where it is."""
    yield from lock_session(completion.session_id, incarnation)
    count = yield from execute(
        """
        UPDATE {batches}
        SET claim_id = NULL, owner = NULL, token = NULL, claimed_ms = NULL, expires_ms = NULL
        WHERE session_id = :session_id AND token = :token AND batch_id {any_text:batch_ids}
        """,
        session_id=completion.session_id,
        token=completion.token,
        batch_ids=list(completion.batch_ids),
    )
    yield from refresh_ready([completion.session_id])
    if count:
        yield from ring("inbox", completion.session_id)
    return count
