"""The slow look: one statement per kind that tells which of all waiters have something to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lash_store.model.limits import INT_MAX
from lash_store.ops.heads import look_session
from lash_store.ops.statement import Op, database_now, fetch

Waiting = Sequence[tuple[str | None, int]]


def moved_heads(waiting: Waiting) -> Op[set[str | None]]:
    """Sessions whose revision is past what their waiters have seen."""
    rows = yield from fetch(
        "SELECT session_id, revision FROM {sessions} WHERE session_id {any_text:session_ids}",
        session_ids=sorted({session_id for session_id, _ in waiting if session_id is not None}),
    )
    revisions: dict[str, int] = {row[0]: row[1] for row in rows}
    return {session_id for session_id, seen in waiting if session_id is not None and revisions.get(session_id, 0) > seen}


def ready_inboxes(waiting: Waiting) -> Op[set[str | None]]:
    """Sessions among these whose inbox has work now; None when a waiter takes any session and some session has work."""
    now_ms = yield from database_now()
    rows = yield from fetch(
        """
        SELECT session_id FROM {sessions}
        WHERE session_id {any_text:session_ids} AND (open_ms <= :now_ms OR state <> 'live')
        UNION ALL
        SELECT '' WHERE EXISTS (SELECT 1 FROM {sessions} WHERE ready_ms <= :now_ms)
        """,
        session_ids=sorted({session_id for session_id, _ in waiting if session_id is not None}),
        now_ms=now_ms,
    )
    return {row[0] or None for row in rows}


def next_due(session_id: str | None, incarnation: int | None = None) -> Op[tuple[int | None, int]]:
    """When the inbox (None: the first of all inboxes) next has work, and the database's clock; None when it has none."""
    if session_id is not None:
        yield from look_session(session_id, incarnation)
        rows = yield from fetch("SELECT open_ms FROM {sessions} WHERE session_id = :session_id", session_id=session_id)
    else:
        rows = yield from fetch("SELECT MIN(ready_ms) FROM {sessions} WHERE ready_ms IS NOT NULL")
    now_ms = yield from database_now()
    return rows[0][0], now_ms


def grown_logs(waiting: Waiting) -> Op[set[str | None]]:
    """Processes whose log is past what their waiters have seen."""
    rows = yield from fetch(
        "SELECT process_id, last_sequence, pruned_ms FROM {processes} WHERE process_id {any_text:process_ids}",
        process_ids=sorted({process_id for process_id, _ in waiting if process_id is not None}),
    )
    logs: dict[str, int] = {row[0]: row[1] if row[2] is None else INT_MAX for row in rows}
    return {process_id for process_id, seen in waiting if process_id is not None and logs.get(process_id, 0) > seen}


def runnable_processes(waiting: Waiting) -> Op[set[str | None]]:
    """None when some process can be claimed now."""
    now_ms = yield from database_now()
    rows = yield from fetch("SELECT 1 FROM {processes} WHERE runnable_ms <= :now_ms ORDER BY runnable_ms LIMIT 1", now_ms=now_ms)
    return {None} if rows and waiting else set()


PROBES: Mapping[str, Callable[[Waiting], Op[set[str | None]]]] = {
    "commits": moved_heads,
    "inbox": ready_inboxes,
    "process": grown_logs,
    "runnable": runnable_processes,
}
