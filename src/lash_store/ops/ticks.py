"""Ticks: due schedules, and the firing of their instants, each exactly once whoever looks at the clock."""

from __future__ import annotations

from msgspec import Struct

from lash_store.ops import schedules
from lash_store.ops.deliveries import Done, Plan, candidate_of, live_targets, lock_deliveries, lock_targets, register, settle
from lash_store.ops.occurrences import PreparedOccurrence, StaleMatch, record
from lash_store.ops.statement import Op, database_now, fetch, fetch_one
from lash_store.ops.triggers import StoredSubscription


class DueSchedule(Struct, frozen=True, kw_only=True):
    """A subscription, not yet verified, whose schedule is due since `next_ms`."""

    next_ms: int
    row: StoredSubscription

    @property
    def subscription_id(self) -> str:
        """Whose schedule it is."""
        return self.row.subscription_id


class Due(Struct, frozen=True, kw_only=True):
    """Due schedules in the order they became due, at an instant of the database's clock."""

    schedules: tuple[DueSchedule, ...]
    live: frozenset[str]
    now_ms: int


class Firing(Struct, frozen=True, kw_only=True):
    """The instants of one schedule to fire, and where it stands afterwards."""

    subscription_id: str
    before_ms: int
    next_ms: int | None
    done_ms: int
    occurrences: tuple[PreparedOccurrence, ...]
    plan: Plan


def due(*, after: tuple[int, str], limit: int) -> Op[Due]:
    """Schedules that are due now, of subscriptions that are enabled and whose session is there."""
    now_ms = yield from database_now()
    rows = yield from fetch(
        """
        SELECT c.next_ms, s.subscription_id, s.number, s.registrant_session_id, s.registrant_frame_id, s.registration_key,
               s.name, s.source_type, s.source_key, s.env_ref, s.enabled, s.body, s.intent, s.digest, s.created_ms,
               s.updated_ms
        FROM {schedules} c
        JOIN {subscriptions} s ON s.subscription_id = c.subscription_id
        WHERE c.next_ms <= :now_ms
          AND (c.next_ms, c.subscription_id) > (CAST(:after_ms AS {int}), CAST(:after_id AS TEXT))
          AND s.enabled = 1
          AND (s.registrant_session_id = ''
               OR EXISTS (SELECT 1 FROM {sessions} r WHERE r.session_id = s.registrant_session_id AND r.state = 'live'))
        ORDER BY c.next_ms, c.subscription_id
        LIMIT :limit
        """,
        now_ms=now_ms,
        after_ms=after[0],
        after_id=after[1],
        limit=limit,
    )
    found = tuple(DueSchedule(next_ms=row[0], row=StoredSubscription(*row[1:])) for row in rows)
    live = yield from live_targets(candidate_of(each.row) for each in found)
    return Due(schedules=found, live=live, now_ms=now_ms)


def fire(firing: Firing) -> Op[list[Done] | None]:
    """Record the instants, start their processes and move the schedule on, in one transaction.

    None when another worker has the schedule or has moved it.
    """
    yield from lock_targets(firing.plan)
    if not (yield from schedules.take(firing.subscription_id, firing.before_ms)):
        return None
    now_ms = yield from database_now()
    done: list[Done] = []
    if firing.occurrences:
        yield from record(firing.occurrences, now_ms)
        made = yield from register(firing.plan.starts, now_ms)
        fresh = yield from _lock_enabled(firing.subscription_id)
        stored = yield from lock_deliveries([start.process_id for start in firing.plan.starts])
        done = yield from settle(firing.plan.starts, stored, made, fresh=fresh, now_ms=now_ms)
    yield from schedules.advance(
        firing.subscription_id, before_ms=firing.before_ms, next_ms=firing.next_ms, done_ms=firing.done_ms
    )
    return done


def _lock_enabled(subscription_id: str) -> Op[set[str]]:
    row = yield from fetch_one(
        "SELECT subscription_id FROM {subscriptions} WHERE subscription_id = :subscription_id AND enabled = 1 {for_update}",
        subscription_id=subscription_id,
    )
    if row is None:
        raise StaleMatch
    return {subscription_id}
