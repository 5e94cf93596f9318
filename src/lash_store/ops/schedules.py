"""Schedules: when a subscription is next due. The instants themselves are computed by the caller; firing is in `ticks`."""

from __future__ import annotations

from collections.abc import Sequence

from lash_store.ops.statement import Op, execute, fetch, fetch_one


def insert(subscription_id: str, *, next_ms: int | None, now_ms: int) -> Op[None]:
    """Note when a new subscription is first due; None is never."""
    yield from execute(
        "INSERT INTO {schedules} (subscription_id, next_ms, done_ms) VALUES (:subscription_id, :next_ms, :now_ms)",
        subscription_id=subscription_id,
        next_ms=next_ms,
        now_ms=now_ms,
    )


def take(subscription_id: str, next_ms: int) -> Op[bool]:
    """Lock a schedule that is still due at this instant. False when another worker has it, or has had it."""
    row = yield from fetch_one(
        """
        SELECT subscription_id FROM {schedules}
        WHERE subscription_id = :subscription_id AND next_ms = :next_ms
        {skip_locked}
        """,
        subscription_id=subscription_id,
        next_ms=next_ms,
    )
    return row is not None


def advance(subscription_id: str, *, before_ms: int, next_ms: int | None, done_ms: int) -> Op[None]:
    """Move a taken schedule on."""
    count = yield from execute(
        """
        UPDATE {schedules} SET next_ms = :next_ms, done_ms = :done_ms
        WHERE subscription_id = :subscription_id AND next_ms = :before_ms
        """,
        subscription_id=subscription_id,
        before_ms=before_ms,
        next_ms=next_ms,
        done_ms=done_ms,
    )
    assert count == 1, "the locked schedule moved"


def stop(subscription_id: str, registrant_session_id: str) -> Op[None]:
    """Let a schedule of this registrant never be due again."""
    yield from execute(
        """
        UPDATE {schedules} SET next_ms = NULL
        WHERE subscription_id = :subscription_id
          AND EXISTS (SELECT 1 FROM {subscriptions} s
                      WHERE s.subscription_id = {schedules}.subscription_id AND s.registrant_session_id = :registrant)
        """,
        subscription_id=subscription_id,
        registrant=registrant_session_id,
    )


def remove(subscription_ids: Sequence[str]) -> Op[None]:
    """Delete schedules, locked in ascending order."""
    yield from fetch(
        """
        SELECT subscription_id FROM {schedules}
        WHERE subscription_id {any_text:subscription_ids}
        ORDER BY subscription_id
        {for_update}
        """,
        subscription_ids=list(subscription_ids),
    )
    yield from execute(
        "DELETE FROM {schedules} WHERE subscription_id {any_text:subscription_ids}", subscription_ids=list(subscription_ids)
    )
