"""Pruning: a process that ended goes with its log, in bounded steps; its id, hash and last sequence stay."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from lash_store.ops.processes import lock_processes
from lash_store.ops.statement import Op, database_now, execute, fetch_one, ring


class Pruned(Struct, frozen=True):
    """What one bounded step of a prune removed, and whether it reached the end."""

    processes: int
    events: int
    complete: bool


def prunable(*, older_than_ms: int) -> Op[Mapping[str, int]]:
    """How many ended processes, with how many events, are of this age."""
    now_ms = yield from database_now()
    row = yield from fetch_one(
        """
        SELECT COUNT(*), CAST(COALESCE(SUM(last_sequence), 0) AS {int}) FROM {processes}
        WHERE state <> 'running' AND pruned_ms IS NULL AND updated_ms <= :cutoff_ms
          AND (lease_expires_ms IS NULL OR lease_expires_ms <= :now_ms)
        """,
        cutoff_ms=now_ms - older_than_ms,
        now_ms=now_ms,
    )
    assert row is not None
    return {"processes": row[0], "events": row[1]}


def prune_step(*, older_than_ms: int, limit: int) -> Op[Pruned]:
    """Make one ended process invisible, or remove a bounded piece of the log of one that is; id, hash and sequence stay."""
    # The searches take no lock: one that waits while it searches would hold rows out of order.
    left = yield from fetch_one("SELECT process_id FROM {processes} WHERE prune_pending = 1 ORDER BY process_id LIMIT 1")
    if left is not None:
        yield from lock_processes([left[0]])
        return (yield from _prune_log(left[0], limit))
    now_ms = yield from database_now()
    candidate = yield from _ended(now_ms, now_ms - older_than_ms, None)
    if candidate is None:
        return Pruned(0, 0, True)
    yield from lock_processes([candidate])
    if (yield from _ended(now_ms, now_ms - older_than_ms, candidate)) is None:
        return Pruned(0, 0, False)
    yield from _hide(candidate, now_ms)
    return Pruned(1, 0, False)


def _ended(now_ms: int, cutoff_ms: int, process_id: str | None) -> Op[str | None]:
    """The process that ended longest ago and nobody holds, or whether this one is such a process."""
    row = yield from fetch_one(
        """
        SELECT process_id FROM {processes}
        WHERE state <> 'running' AND pruned_ms IS NULL AND updated_ms <= :cutoff_ms
          AND (lease_expires_ms IS NULL OR lease_expires_ms <= :now_ms)
          AND (CAST(:process_id AS TEXT) IS NULL OR process_id = :process_id)
        ORDER BY updated_ms, process_id LIMIT 1
        """,
        cutoff_ms=cutoff_ms,
        now_ms=now_ms,
        process_id=process_id,
    )
    return None if row is None else row[0]


def _hide(process_id: str, now_ms: int) -> Op[None]:
    yield from execute("DELETE FROM {grants} WHERE process_id = :process_id", process_id=process_id)
    yield from execute("DELETE FROM {registrations} WHERE process_id = :process_id", process_id=process_id)
    count = yield from execute(
        """
        UPDATE {processes}
        SET pruned_ms = :now_ms, prune_pending = 1, output = NULL, output_digest = NULL, external_ref = NULL,
            external_ref_digest = NULL, wake_session_id = NULL, wake_frame_id = NULL, env_ref = NULL, runnable_ms = NULL,
            lease_owner = NULL, lease_incarnation = NULL, lease_token = NULL, lease_claimed_ms = NULL, lease_expires_ms = NULL
        WHERE process_id = :process_id AND pruned_ms IS NULL
        """,
        process_id=process_id,
        now_ms=now_ms,
    )
    assert count == 1, "the locked process vanished"
    yield from ring("process", process_id)


def _prune_log(process_id: str, limit: int) -> Op[Pruned]:
    events = yield from execute(
        """
        DELETE FROM {events} WHERE (process_id, sequence) IN (
            SELECT process_id, sequence FROM {events} WHERE process_id = :process_id ORDER BY sequence LIMIT :limit)
        """,
        process_id=process_id,
        limit=limit,
    )
    if events < limit:
        yield from execute("UPDATE {processes} SET prune_pending = NULL WHERE process_id = :process_id", process_id=process_id)
    return Pruned(0, events, False)
