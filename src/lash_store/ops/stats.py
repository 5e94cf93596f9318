"""How much there is and how old it is. Every statement stops counting at a bound, so that looking never costs much."""

from __future__ import annotations

from typing import Any, LiteralString

from msgspec import Struct

from lash_store.model.maintenance import InboxStats, ProcessStats
from lash_store.ops.statement import Op, Row, database_now, fetch_one

COUNT_MAX = 100_000  # rows one count looks at: beyond it, "at least" is all an operator needs


class Counted(Struct, frozen=True, kw_only=True):
    """Everything that is counted the same way on both engines."""

    now_ms: int
    sessions_live: int
    sessions_purging: int
    inbox: InboxStats
    processes: ProcessStats
    oldest_lease_ms: int | None
    undelivered: int
    oldest_undelivered_ms: int | None
    schedules_overdue: int
    oldest_due_ms: int | None
    nodes_tombstoned: int
    attachments_uncommitted: int
    oldest_uncommitted_ms: int | None
    attachments_released: int
    oldest_settled_key_ms: int | None


SESSIONS_LIVE: LiteralString = "SELECT count(*) FROM (SELECT 1 FROM {sessions} WHERE state = 'live' LIMIT :cap) AS counted"
SESSIONS_PURGING: LiteralString = "SELECT count(*) FROM (SELECT 1 FROM {sessions} WHERE state = 'purging' LIMIT :cap) AS counted"
TOMBSTONED: LiteralString = (
    "SELECT count(*) FROM (SELECT 1 FROM {nodes} WHERE tombstone_revision IS NOT NULL LIMIT :cap) AS counted"
)
RELEASED: LiteralString = "SELECT count(*) FROM (SELECT 1 FROM {digests} WHERE released_ms IS NOT NULL LIMIT :cap) AS counted"
UNDELIVERED: LiteralString = """
SELECT count(*), min(created_ms)
FROM (SELECT created_ms FROM {deliveries} WHERE state = 'reserved' ORDER BY created_ms LIMIT :cap) AS counted
"""
OVERDUE: LiteralString = """
SELECT count(*), min(next_ms)
FROM (SELECT next_ms FROM {schedules} WHERE next_ms <= :now_ms ORDER BY next_ms LIMIT :cap) AS counted
"""
UNCOMMITTED: LiteralString = """
SELECT count(*), min(intent_ms)
FROM (SELECT intent_ms FROM {attachments} WHERE committed_ms IS NULL ORDER BY intent_ms LIMIT :cap) AS counted
"""
OLDEST_KEY: LiteralString = "SELECT min(settled_ms) FROM {settled_keys}"


def counted(cap: int = COUNT_MAX) -> Op[Counted]:
    """All counts, on one snapshot."""
    now_ms = yield from database_now()
    inbox, inbox_lease_ms = yield from _inbox(now_ms, cap)
    processes, process_lease_ms = yield from _processes(now_ms, cap)
    undelivered, overdue, uncommitted = (
        (yield from _row(UNDELIVERED, cap=cap)),
        (yield from _row(OVERDUE, cap=cap, now_ms=now_ms)),
        (yield from _row(UNCOMMITTED, cap=cap)),
    )
    return Counted(
        now_ms=now_ms,
        sessions_live=(yield from _row(SESSIONS_LIVE, cap=cap))[0],
        sessions_purging=(yield from _row(SESSIONS_PURGING, cap=cap))[0],
        inbox=inbox,
        processes=processes,
        oldest_lease_ms=min((ms for ms in (inbox_lease_ms, process_lease_ms) if ms is not None), default=None),
        undelivered=undelivered[0],
        oldest_undelivered_ms=undelivered[1],
        schedules_overdue=overdue[0],
        oldest_due_ms=overdue[1],
        nodes_tombstoned=(yield from _row(TOMBSTONED, cap=cap))[0],
        attachments_uncommitted=uncommitted[0],
        oldest_uncommitted_ms=uncommitted[1],
        attachments_released=(yield from _row(RELEASED, cap=cap))[0],
        oldest_settled_key_ms=(yield from _row(OLDEST_KEY))[0],
    )


def _row(sql: LiteralString, **params: Any) -> Op[Row]:
    row = yield from fetch_one(sql, **params)
    assert row is not None, "an aggregate always has a row"
    return row


def _inbox(now_ms: int, cap: int) -> Op[tuple[InboxStats, int | None]]:
    """The inboxes, and since when the claim that has been held longest is held."""
    row = yield from fetch_one(
        """
        SELECT count(*),
               count(CASE WHEN parked_ms IS NULL AND token IS NULL AND available_ms <= :now_ms THEN 1 END),
               count(CASE WHEN parked_ms IS NULL AND token IS NULL AND available_ms > :now_ms THEN 1 END),
               count(CASE WHEN parked_ms IS NULL AND expires_ms > :now_ms THEN 1 END),
               count(CASE WHEN parked_ms IS NULL AND expires_ms <= :now_ms THEN 1 END),
               count(parked_ms),
               min(CASE WHEN parked_ms IS NULL AND token IS NULL AND available_ms <= :now_ms THEN available_ms END),
               min(CASE WHEN expires_ms > :now_ms THEN claimed_ms END)
        FROM (SELECT parked_ms, token, available_ms, expires_ms, claimed_ms FROM {batches} LIMIT :cap) AS counted
        """,
        now_ms=now_ms,
        cap=cap,
    )
    assert row is not None
    batches, ready, delayed, claimed, expired, parked, oldest_ready_ms, lease_ms = row
    stats = InboxStats(
        batches=batches,
        ready=ready,
        delayed=delayed,
        claimed=claimed,
        expired=expired,
        parked=parked,
        oldest_ready_ms=oldest_ready_ms,
    )
    return stats, lease_ms


def _processes(now_ms: int, cap: int) -> Op[tuple[ProcessStats, int | None]]:
    """The processes, and since when the lease that has been held longest is held."""
    row = yield from fetch_one(
        """
        SELECT count(*), count(wait_name),
               count(CASE WHEN lease_expires_ms > :now_ms THEN 1 END),
               count(CASE WHEN lease_expires_ms <= :now_ms THEN 1 END),
               min(created_ms),
               min(CASE WHEN lease_expires_ms > :now_ms THEN lease_claimed_ms END)
        FROM (
            SELECT wait_name, lease_expires_ms, lease_claimed_ms, created_ms FROM {processes}
            WHERE state = 'running' AND pruned_ms IS NULL LIMIT :cap
        ) AS counted
        """,
        now_ms=now_ms,
        cap=cap,
    )
    ended = yield from fetch_one(
        """
        SELECT count(*), min(updated_ms) FROM (
            SELECT updated_ms FROM {processes} WHERE state <> 'running' AND pruned_ms IS NULL ORDER BY updated_ms LIMIT :cap
        ) AS counted
        """,
        cap=cap,
    )
    assert row is not None
    assert ended is not None
    running, waiting, leased, expired, oldest_running_ms, lease_ms = row
    stats = ProcessStats(
        running=running,
        waiting=waiting,
        leased=leased,
        expired=expired,
        ended=ended[0],
        oldest_running_ms=oldest_running_ms,
        oldest_ended_ms=ended[1],
    )
    return stats, lease_ms
