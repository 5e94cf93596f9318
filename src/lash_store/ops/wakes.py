"""Wakes as the log keeps them: what asked for one, which events one stands for, and what was acknowledged."""

from __future__ import annotations

from lash_store.errors import NotFound
from lash_store.ops.events import EventRow
from lash_store.ops.processes import get_state, lock_process
from lash_store.ops.statement import Op, database_now, execute, fetch, fetch_one


def unacknowledged_wakes(process_id: str, *, sequence: int, limit: int) -> Op[list[EventRow]]:
    """Events after a sequence that asked for a wake and were not acknowledged."""
    yield from get_state(process_id)
    rows = yield from fetch(
        """
        SELECT process_id, sequence, event_type, payload, payload_hash, replay_key, terminal_state, wake_id, wake_dedupe_key,
               wake_input, wake_session_id, wake_frame_id, wake_batch_id, wake_coalesced, occurred_ms, digest
        FROM {events}
        WHERE process_id = :process_id AND sequence > :sequence AND wake_id IS NOT NULL AND wake_acked_ms IS NULL
        ORDER BY sequence
        LIMIT :limit
        """,
        process_id=process_id,
        sequence=sequence,
        limit=limit,
    )
    return [EventRow(*row) for row in rows]


def woken_by(process_id: str, batch_id: str) -> Op[list[EventRow]]:
    """The events of a process that a wake in a session's inbox stands for: the first, and those coalesced with it."""
    yield from get_state(process_id)
    rows = yield from fetch(
        """
        SELECT process_id, sequence, event_type, payload, payload_hash, replay_key, terminal_state, wake_id, wake_dedupe_key,
               wake_input, wake_session_id, wake_frame_id, wake_batch_id, wake_coalesced, occurred_ms, digest
        FROM {events}
        WHERE process_id = :process_id AND wake_batch_id = :batch_id AND wake_id IS NOT NULL
        ORDER BY sequence
        """,
        process_id=process_id,
        batch_id=batch_id,
    )
    return [EventRow(*row) for row in rows]


def ack_wake(process_id: str, sequence: int) -> Op[bool]:
    """Acknowledge a wake; false when it was acknowledged before. An event that asked for none is refused."""
    yield from lock_process(process_id)
    now_ms = yield from database_now()
    count = yield from execute(
        """
        UPDATE {events} SET wake_acked_ms = :now_ms
        WHERE process_id = :process_id AND sequence = :sequence AND wake_id IS NOT NULL AND wake_acked_ms IS NULL
        """,
        process_id=process_id,
        sequence=sequence,
        now_ms=now_ms,
    )
    if count == 1:
        return True
    row = yield from fetch_one(
        "SELECT 1 FROM {events} WHERE process_id = :process_id AND sequence = :sequence AND wake_id IS NOT NULL",
        process_id=process_id,
        sequence=sequence,
    )
    if row is None:
        raise NotFound("wake", f"{process_id}#{sequence}")
    return False
