"""Schedules: which instants there are, and that each fires exactly once, whoever looks at the clock."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lash_store import (
    AsyncStore,
    Cron,
    Interval,
    InvalidArgument,
    LimitExceeded,
    Missed,
    OccurrenceRequest,
    Outcome,
    Scope,
    Subscription,
    Unstorable,
)
from lash_store.ops import ticks
from lash_store.ops.statement import Op
from lash_store.ops.ticks import Due
from lash_store.store import instants
from lash_store.testing import Backend, SqliteBackend, keep
from lash_store.testing.steps import refused, stored, watched
from tests.support.backends import VARIANTS, Clock, backend_of, kept
from tests.support.triggers import TABLES, Killed, killed_at, replaced, rows_of, size_of, subscribed

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
YEAR_MS = 365 * DAY_MS
BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


@pytest.fixture(params=VARIANTS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return backend_of(request, tmp_path)


def at(text: str) -> int:
    """An instant from its UTC text."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def told(*instants_ms: int) -> list[str]:
    """Instants as UTC texts, to the minute."""
    return [datetime.fromtimestamp(each / 1000, UTC).strftime("%Y-%m-%dT%H:%M") for each in instants_ms]


def line(schedule: Cron | Interval, start: str, count: int) -> list[str]:
    """The first instants after a start."""
    found: list[int] = []
    now_ms = at(start)
    while len(found) < count:
        next_ms = instants.first(schedule, now_ms)
        assert next_ms is not None
        found.append(next_ms)
        now_ms = next_ms
    return told(*found)


# --- the calendar ---------------------------------------------------------------------------------------------------------


def test_cron_follows_the_wall_clock_of_its_zone() -> None:
    daily = "0 8 * * *"
    assert line(Cron(daily), "2026-01-15T12:00", 2) == ["2026-01-16T08:00", "2026-01-17T08:00"]
    assert line(Cron(daily, BERLIN), "2026-01-15T12:00", 1) == ["2026-01-16T07:00"]
    assert line(Cron(daily, BERLIN), "2026-07-15T12:00", 1) == ["2026-07-16T06:00"]
    assert line(Cron(daily, NEW_YORK), "2026-07-15T12:00", 1) == ["2026-07-16T12:00"]
    assert line(Cron(daily, "Asia/Kathmandu"), "2026-07-15T12:00", 1) == ["2026-07-16T02:15"]


@pytest.mark.parametrize(
    ("zone", "before", "skipped", "day_after"),
    [
        (BERLIN, "2026-03-28T12:00", "2026-03-29T01:00", "2026-03-30T00:30"),
        (NEW_YORK, "2026-03-07T12:00", "2026-03-08T07:00", "2026-03-09T06:30"),
    ],
)
def test_a_time_the_clocks_skip_comes_right_after(zone: str, before: str, skipped: str, day_after: str) -> None:
    assert line(Cron("30 2 * * *", zone), before, 2) == [skipped, day_after]


@pytest.mark.parametrize(
    ("zone", "before", "once", "day_after", "inside"),
    [
        (BERLIN, "2026-10-24T12:00", "2026-10-25T00:30", "2026-10-26T01:30", "2026-10-25T01:15"),
        (NEW_YORK, "2026-10-31T12:00", "2026-11-01T05:30", "2026-11-02T06:30", "2026-11-01T06:15"),
    ],
)
def test_a_time_the_clocks_repeat_comes_once(zone: str, before: str, once: str, day_after: str, inside: str) -> None:
    hour = 2 if zone == BERLIN else 1
    daily = Cron(f"30 {hour} * * *", zone)
    assert line(daily, before, 2) == [once, day_after]
    assert line(daily, inside, 1) == [day_after]  # never an instant that is over


@pytest.mark.parametrize(
    ("zone", "start"),
    [
        (BERLIN, "2026-03-29T00:00"),
        (BERLIN, "2026-10-25T00:00"),
        (NEW_YORK, "2026-03-08T06:00"),
        (NEW_YORK, "2026-11-01T05:00"),
    ],
)
def test_every_half_hour_is_every_half_hour_when_the_clocks_change(zone: str, start: str) -> None:
    steps = [at(start) + n * 30 * MINUTE_MS for n in range(1, 7)]
    assert line(Cron("*/30 * * * *", zone), start, 6) == told(*steps)


def test_intervals_count_from_their_anchor() -> None:
    now = "2026-01-01T00:00"
    assert line(Interval(HOUR_MS), now, 2) == ["2026-01-01T01:00", "2026-01-01T02:00"]
    anchored = Interval(HOUR_MS, anchor_ms=at("2025-06-01T00:15"))
    assert line(anchored, now, 2) == ["2026-01-01T00:15", "2026-01-01T01:15"]
    future = Interval(HOUR_MS, anchor_ms=at("2026-02-01T00:00"))
    assert line(future, now, 2) == ["2026-02-01T00:00", "2026-02-01T01:00"]


@pytest.mark.parametrize("schedule", [Interval(MINUTE_MS), Cron("* * * * *")])
def test_missed_instants_follow_the_policy(schedule: Cron | Interval) -> None:
    """Ten minutes late by half a minute: eleven instants, the last of them in time."""
    first_ms = at("2026-01-01T00:00")
    now_ms = first_ms + 10 * MINUTE_MS + 30 * SECOND_MS
    newest_ms = first_ms + 10 * MINUTE_MS

    def owed(missed: Missed, limit: int = 100) -> instants.DueInstants:
        chosen: Any = type(schedule)
        fields: dict[str, Any] = {"missed": missed, "grace_ms": MINUTE_MS}
        head = schedule.every_ms if isinstance(schedule, Interval) else schedule.expression
        return instants.due(chosen(head, **fields), next_ms=first_ms, now_ms=now_ms, limit=limit)

    skip = owed(Missed.SKIP)
    assert (skip.fire, skip.passed_over) == ((newest_ms,), 10)
    once = owed(Missed.ONCE)
    assert (once.fire, once.passed_over) == ((newest_ms,), 10)
    every = owed(Missed.ALL)
    assert (every.fire[0], every.fire[-1], len(every.fire), every.passed_over) == (first_ms, newest_ms, 11, 0)
    for each in (skip, once, every):
        assert (each.done_ms, each.next_ms, each.more) == (newest_ms, newest_ms + MINUTE_MS, False)
    few = owed(Missed.ALL, limit=4)
    assert (len(few.fire), few.next_ms, few.more) == (4, first_ms + 4 * MINUTE_MS, True)


def test_a_worker_that_is_too_late_passes_over_and_goes_on() -> None:
    """Nothing within the grace: nothing fires, and the schedule waits for its next instant."""
    first_ms = at("2026-01-01T00:00")
    for schedule in (Interval(HOUR_MS, grace_ms=MINUTE_MS), Cron("0 * * * *", grace_ms=MINUTE_MS)):
        owed = instants.due(schedule, next_ms=first_ms, now_ms=first_ms + 5 * HOUR_MS + 30 * MINUTE_MS, limit=100)
        assert owed == instants.DueInstants(
            fire=(), passed_over=6, done_ms=first_ms + 5 * HOUR_MS, next_ms=first_ms + 6 * HOUR_MS, more=False
        )


def test_a_far_future_clock_costs_no_walk_through_the_past() -> None:
    """A thousand years of minutes: counted up to a bound, and the newest is found at once."""
    first_ms = at("2026-01-01T00:00")
    now_ms = first_ms + 1000 * YEAR_MS
    cron = instants.due(Cron("* * * * *", BERLIN, Missed.ONCE), next_ms=first_ms, now_ms=now_ms, limit=1)
    assert (cron.fire, cron.passed_over) == ((now_ms,), instants.PASSED_OVER_COUNTED_MAX)
    interval = instants.due(Interval(SECOND_MS, missed=Missed.ONCE), next_ms=first_ms, now_ms=now_ms, limit=1)
    assert (interval.fire, interval.passed_over) == ((now_ms,), 1000 * YEAR_MS // SECOND_MS)


@pytest.mark.parametrize("missed", list(Missed))
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_the_calendar_ends_and_schedules_with_it(zone: str, missed: Missed) -> None:
    """Beyond the year 9999 nothing is due any more, and nobody stumbles."""
    last_day_ms = instants.LAST_MS - DAY_MS
    for schedule in (Cron("0 * * * *", zone, missed), Interval(HOUR_MS, missed=missed)):
        next_ms = instants.first(schedule, last_day_ms)
        assert next_ms is not None
        owed = instants.due(schedule, next_ms=next_ms, now_ms=instants.LAST_MS + 1000 * YEAR_MS, limit=100)
        assert owed.next_ms is None
        assert not owed.more
        assert all(instants.written(schedule, each) for each in owed.fire)
        assert instants.first(schedule, instants.LAST_MS + YEAR_MS) is None


@pytest.mark.parametrize(
    "schedule",
    [
        Cron("never"),
        Cron("* * * *"),
        Cron("61 * * * *"),
        Cron("* * * * * * *"),
        Cron("0 0 30 2 *"),
        Cron("0 0 31 2,4 *"),
        Cron("0 8 * * *", "Mars/Olympus"),
        Cron("0 8 * * *", "../../etc/passwd"),
        Cron("0 8 * * *", "Europe"),
        Cron("0 8 * * *", "/usr/share/zoneinfo/UTC"),
    ],
)
def test_an_expression_or_zone_that_means_nothing_is_refused(schedule: Cron) -> None:
    with pytest.raises(InvalidArgument, match="schedule"):
        instants.check(schedule)


# --- subscribing ----------------------------------------------------------------------------------------------------------


async def scheduled(store: AsyncStore, schedule: Cron | Interval, **fields: Any) -> Subscription:
    """A host's subscription with a schedule, and a source of its own."""
    return await subscribed(store, source_type="timer", source_key=None, schedule=schedule, **fields)


@kept
async def test_bad_schedules_are_refused_before_any_statement(backend: Backend) -> None:
    """Expressions, zones and numbers are checked on the client."""
    store, statements = await watched(backend)
    statements.clear()
    bad: list[tuple[type[BaseException], Any]] = [
        (InvalidArgument, Cron("nonsense")),
        (InvalidArgument, Cron("0 8 * * *", "Nowhere/Land")),
        (Unstorable, Cron("")),
        (Unstorable, Interval(1.5)),  # pyright: ignore[reportArgumentType]
        (LimitExceeded, Interval(0)),
        (LimitExceeded, Interval(999)),
        (LimitExceeded, Interval(-HOUR_MS)),
        (LimitExceeded, Interval(HOUR_MS, grace_ms=-1)),
        (LimitExceeded, Interval(HOUR_MS, anchor_ms=2**63)),
        (InvalidArgument, Interval(HOUR_MS, missed="sometimes")),  # pyright: ignore[reportArgumentType]
    ]
    for error, schedule in bad:
        with refused(error):
            await scheduled(store, schedule)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cronsim", None)
        with refused(InvalidArgument) as caught:
            await scheduled(store, Cron("0 8 * * *"))
    assert "lash-store[cron]" in str(caught.error)
    assert statements == []


@kept
async def test_a_schedule_is_its_own_source(backend: Backend) -> None:
    """Without a source the schedule is the source: equal schedules have equal keys, and come back equal."""
    store = await backend.open()
    first = await scheduled(store, Cron("0 8 * * *", BERLIN))
    again = await scheduled(store, Cron("0 8 * * *", BERLIN))
    other = await scheduled(store, Cron("0 9 * * *", BERLIN))
    assert first.source_key == again.source_key != other.source_key
    assert (await store.triggers.get(first.handle)).schedule == Cron("0 8 * * *", BERLIN)
    named = await scheduled(store, Interval(HOUR_MS), source={"name": "hourly"})
    assert named.source == {"name": "hourly"}


# --- ticking --------------------------------------------------------------------------------------------------------------


@kept
async def test_a_tick_fires_what_is_due_by_the_databases_clock(backend: Backend) -> None:
    """Not before, once, with the instant as the payload, written in the schedule's zone."""
    store, clock = await backend.open(), Clock(backend)
    await store.sessions.create("s")
    await clock.set(at("2026-07-01T05:59:30"))
    subscription = await scheduled(store, Cron("0 8 * * *", BERLIN), registrant=Scope("s"), wake_target=Scope("s"))
    assert (await store.triggers.tick()).fired == 0
    await clock.set(at("2026-07-01T06:00:05"))
    report = await store.triggers.tick()
    assert (report.fired, report.passed_over, report.more) == (1, 0, False)
    (outcome,) = report.outcomes
    assert outcome.outcome is Outcome.STARTED
    assert outcome.delivery.subscription_id == subscription.subscription_id
    occurrence = await store.triggers.occurrence(outcome.delivery.occurrence_id)
    instant_ms = at("2026-07-01T06:00")
    assert occurrence.payload == {"instant_ms": instant_ms, "scheduled": "2026-07-01T08:00:00+02:00"}
    assert occurrence.idempotency_key == f"schedule:subscription:1:{instant_ms}"
    process = await store.processes.get(report.started[0])
    assert process.input.payload == {"args": {"event": occurrence.payload}}
    assert (process.originator, process.wake_target) == (Scope("s"), Scope("s"))
    assert await rows_of(backend, "grants", "session_id, process_id") == [("s", process.process_id)]
    assert (await store.triggers.tick()).fired == 0
    assert await rows_of(backend, "schedules", "next_ms, done_ms") == [(at("2026-07-02T06:00"), instant_ms)]


@kept
async def test_eight_workers_fire_each_instant_exactly_once(backend: Backend) -> None:
    """Five schedules, ten instants each, eight ticks at once until nothing is due."""
    stores = [await backend.open() for _ in range(4)]
    await stores[0].sessions.create("s")
    for _ in range(5):
        await scheduled(stores[0], Interval(MINUTE_MS, missed=Missed.ALL), wake_target=Scope("s"))
    await backend.advance(10 * MINUTE_MS + 30 * SECOND_MS)
    reports = await asyncio.gather(*(_tick_until_done(stores[i % 4]) for i in range(8)))
    assert sum(fired for fired, _ in reports) == 50
    started = [process_id for _, processes in reports for process_id in processes]
    assert len(started) == len(set(started)) == 50
    assert [await size_of(backend, table) for table in ("occurrences", "deliveries", "processes")] == [50, 50, 50]


async def _tick_until_done(store: AsyncStore) -> tuple[int, list[str]]:
    fired, processes, more = 0, list[str](), True
    while more:
        report = await store.triggers.tick(limit=7)
        fired, more = fired + report.fired, report.more
        processes += report.started
    return fired, processes


@kept
async def test_a_tick_fires_at_most_a_hundred_and_says_that_more_are_due(backend: Backend) -> None:
    """The next ticks go on where it ended, and nothing is lost or doubled."""
    store = await backend.open()
    await scheduled(store, Interval(MINUTE_MS, missed=Missed.ALL))
    await backend.advance(250 * MINUTE_MS + 30 * SECOND_MS)
    reports = [await store.triggers.tick() for _ in range(4)]
    assert [(report.fired, report.more) for report in reports] == [(100, True), (100, True), (50, False), (0, False)]
    moments = sorted(row[0] for row in await rows_of(backend, "occurrences", "idempotency_key"))
    assert len(set(moments)) == 250
    with refused(LimitExceeded, limit="TICK_MAX"):
        await store.triggers.tick(limit=101)


@kept
async def test_a_tick_moves_at_most_a_limit_of_schedules_and_says_that_more_are_due(backend: Backend) -> None:
    """Schedules that only pass over are bounded too."""
    store = await backend.open()
    for _ in range(5):
        await scheduled(store, Interval(HOUR_MS, grace_ms=0))
    await backend.advance(90 * MINUTE_MS)
    reports = [await store.triggers.tick(limit=2) for _ in range(3)]
    assert [(report.fired, report.passed_over, report.more) for report in reports] == [(0, 2, True), (0, 2, True), (0, 1, False)]


@kept
async def test_missed_policies_hold_for_stored_schedules(backend: Backend) -> None:
    """Late by a day: skip passes over, once fires the newest, all fires every one."""
    store, clock = await backend.open(), Clock(backend)
    await clock.set(at("2026-01-01T00:30"))
    handles = {missed: (await scheduled(store, Cron("0 * * * *", missed=missed))).subscription_id for missed in Missed}
    await clock.set(at("2026-01-02T00:30"))
    report = await store.triggers.tick()
    fired = [each.delivery.subscription_id for each in report.outcomes]
    assert {missed: fired.count(handles[missed]) for missed in Missed} == {Missed.SKIP: 0, Missed.ONCE: 1, Missed.ALL: 24}
    assert (report.fired, report.passed_over, report.more) == (25, 24 + 23, False)


@pytest.mark.parametrize(
    ("zone", "first", "last", "expected"),
    [
        (BERLIN, "2026-03-27T12:00", "2026-03-30T12:00", ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"]),
        (BERLIN, "2026-10-23T12:00", "2026-10-26T12:00", ["2026-10-24T00:30", "2026-10-25T00:30", "2026-10-26T01:30"]),
        (NEW_YORK, "2026-03-06T12:00", "2026-03-09T12:00", ["2026-03-07T07:30", "2026-03-08T07:00", "2026-03-09T06:30"]),
        (NEW_YORK, "2026-10-30T12:00", "2026-11-02T12:00", ["2026-10-31T06:30", "2026-11-01T07:30", "2026-11-02T07:30"]),
    ],
)
def test_a_nightly_job_runs_once_a_night_when_the_clocks_change(
    zone: str, first: str, last: str, expected: list[str], tmp_path: Path
) -> None:
    """A worker that ticks every half hour fires three nights three times, in the calendar's order."""

    async def law(backend: Backend) -> None:
        store, clock = await backend.open(), Clock(backend)
        await clock.set(at(first))
        await scheduled(store, Cron("30 2 * * *", zone))
        seen: list[int] = []
        for now_ms in range(at(first), at(last), 30 * MINUTE_MS):
            await clock.set(now_ms + SECOND_MS)
            fired = (await store.triggers.tick()).outcomes
            found = [await store.triggers.occurrence(each.delivery.occurrence_id) for each in fired]
            seen += [each.payload["instant_ms"] for each in found]
        assert told(*seen) == expected

    keep(law, SqliteBackend(tmp_path / "store.db"))


@kept
async def test_a_far_future_clock_passes_over_and_goes_on(backend: Backend) -> None:
    """A database that believes it is 2300 fires the newest instant, and later ones in their time."""
    store, clock = await backend.open(), Clock(backend)
    await clock.set(at("2026-01-01T00:00:30"))
    await scheduled(store, Cron("* * * * *", NEW_YORK, Missed.ONCE))
    await scheduled(store, Interval(MINUTE_MS))
    await clock.set(at("2300-01-01T00:00:20"))
    report = await store.triggers.tick()
    assert report.fired == 2
    assert report.passed_over > instants.PASSED_OVER_COUNTED_MAX
    assert not report.more
    await clock.set(at("2300-01-01T00:01:40"))
    assert (await store.triggers.tick()).fired == 2


@kept
async def test_a_tick_that_dies_between_two_statements_leaves_nothing(backend: Backend) -> None:
    """The instant, its process and the move of the schedule are one: all of it or nothing, at every statement."""
    store = await backend.open()
    await store.sessions.create("s")
    await scheduled(store, Interval(MINUTE_MS), wake_target=Scope("s"))
    await backend.advance(MINUTE_MS + SECOND_MS)
    before = await stored(backend, *TABLES)
    for step in range(100):
        try:
            with replaced(ticks, "fire", killed_at(step)):
                report = await store.triggers.tick()
        except Killed:
            assert await stored(backend, *TABLES) == before, f"step {step} left something behind"
        else:
            assert (report.fired, step > 8) == (1, True)
            return
    raise AssertionError("the tick never ended")


@kept
async def test_a_cancelled_schedule_and_one_of_a_deleted_session_fire_no_more(backend: Backend) -> None:
    """From the moment the call returns; also while a deletion is under way."""
    store = await backend.open()
    for session_id in ("deleted", "fenced"):
        await store.sessions.create(session_id)
        await scheduled(store, Interval(MINUTE_MS), registrant=Scope(session_id, "frame"))
    cancelled = await scheduled(store, Interval(MINUTE_MS))
    alive = await scheduled(store, Interval(MINUTE_MS))
    assert await store.triggers.cancel_host(cancelled.handle)
    await store.sessions.delete("deleted")
    await backend.raw(f"UPDATE {backend.table('sessions')} SET state = 'purging' WHERE session_id = 'fenced'")
    await backend.advance(MINUTE_MS + SECOND_MS)
    report = await store.triggers.tick()
    assert [each.delivery.subscription_id for each in report.outcomes] == [alive.subscription_id]
    ids = [row[0] for row in await rows_of(backend, "schedules", "subscription_id")]
    assert "subscription:1" not in ids


@kept
async def test_a_cancel_that_overtakes_a_tick_wins(backend: Backend) -> None:
    """A tick that looked before the cancel finds out under its locks, whether the cancel came to the schedule yet or not."""
    store = await backend.open()
    cancelled, disabled = [await scheduled(store, Interval(MINUTE_MS)) for _ in range(2)]
    await backend.advance(MINUTE_MS + SECOND_MS)
    looks: list[Due] = []
    with replaced(ticks, "due", _looking(looks, remembered=False)), replaced(ticks, "fire", killed_at(0)), refused(Killed):
        await store.triggers.tick()
    await store.triggers.cancel_host(cancelled.handle)
    await backend.raw(f"UPDATE {backend.table('subscriptions')} SET enabled = 0 WHERE number = $1", disabled.number)
    with replaced(ticks, "due", _looking(looks, remembered=True)):
        report = await store.triggers.tick()
    assert (report.fired, report.more) == (0, True)
    assert [await size_of(backend, table) for table in ("occurrences", "processes")] == [0, 0]
    assert (await store.triggers.tick()).fired == 0


def _looking(looks: list[Due], *, remembered: bool) -> Callable[[Callable[..., Op[Any]]], Callable[..., Op[Any]]]:
    """A look that is remembered, or one that sees what was seen before."""

    def change(operation: Callable[..., Op[Any]]) -> Callable[..., Op[Any]]:
        def looking(**kwargs: Any) -> Op[Any]:
            found = yield from operation(**kwargs)
            if remembered:
                return looks.pop()
            looks.append(found)
            return found

        return looking

    return change


@kept
async def test_an_instant_is_for_its_own_subscription(backend: Backend) -> None:
    """Two subscriptions with one schedule fire once each; a host's occurrence of that source reaches both."""
    store = await backend.open()
    first, second = [await scheduled(store, Interval(MINUTE_MS)) for _ in range(2)]
    await backend.advance(MINUTE_MS + SECOND_MS)
    report = await store.triggers.tick()
    assert [each.delivery.subscription_id for each in report.outcomes] == [first.subscription_id, second.subscription_id]
    for each in report.outcomes:
        assert await store.triggers.reserve(each.delivery.occurrence_id) == ()
    manual = OccurrenceRequest(source_type="timer", source_key=first.source_key, idempotency_key="run now")
    assert len((await store.triggers.emit(manual)).started) == 2


@kept
async def test_a_schedule_nobody_can_read_hinders_no_other(backend: Backend) -> None:
    """A missing extra or a damaged row is reported, stays due, and the rest fires."""
    store = await backend.open()
    cron = await scheduled(store, Cron("* * * * *", missed=Missed.ALL))
    damaged = await scheduled(store, Interval(MINUTE_MS))
    fine = await scheduled(store, Interval(MINUTE_MS))
    await backend.raw(f"UPDATE {backend.table('subscriptions')} SET body = '{{}}' WHERE number = $1", damaged.number)
    await backend.advance(MINUTE_MS + SECOND_MS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cronsim", None)
        report = await store.triggers.tick()
    assert [each.delivery.subscription_id for each in report.outcomes] == [fine.subscription_id]
    assert {each.subscription_id for each in report.broken} == {cron.subscription_id, damaged.subscription_id}
    later = await store.triggers.tick()
    assert {each.delivery.subscription_id for each in later.outcomes} == {cron.subscription_id}


@kept
async def test_an_instant_its_schema_refuses_fails_and_the_schedule_goes_on(backend: Backend) -> None:
    """Reported with its reason; the next instant is its own."""
    store = await backend.open()
    await scheduled(store, Interval(MINUTE_MS), payload_schema={"required": ["colour"]})
    for _ in range(2):
        await backend.advance(MINUTE_MS + SECOND_MS)
        (outcome,) = (await store.triggers.tick()).outcomes
        assert outcome.outcome is Outcome.FAILED
        assert "required" in str(outcome.delivery.error)


@kept
async def test_a_clock_that_went_back_fires_nothing_twice(backend: Backend) -> None:
    """What was fired stays fired; the schedule waits until the clock is there again."""
    store = await backend.open()
    await scheduled(store, Interval(HOUR_MS, missed=Missed.ALL))
    await backend.advance(HOUR_MS + MINUTE_MS)
    assert (await store.triggers.tick()).fired == 1
    await backend.advance(-HOUR_MS)
    assert (await store.triggers.tick()).fired == 0
    await backend.advance(HOUR_MS)
    assert (await store.triggers.tick()).fired == 0
    await backend.advance(HOUR_MS)
    assert (await store.triggers.tick()).fired == 1
