"""The instants of a schedule: pure calendar arithmetic. Time zones come from the system or tzdata, cron from `cronsim`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import chain, islice, takewhile
from typing import Any, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct

from lash_store.errors import InvalidArgument
from lash_store.model.trigger import Cron, Interval, Missed, Schedule

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MS = 253_402_214_400_000  # 9999-12-31T00:00Z: beyond it no calendar of ours has dates
PASSED_OVER_COUNTED_MAX = 1_000  # instants a cron schedule is counted through; more are passed over uncounted
NEVER_SINCE = datetime(2000, 1, 1, tzinfo=UTC)  # an expression without an instant in the 50 years from here has none ever


class DueInstants(Struct, frozen=True, kw_only=True):
    """What a schedule owes at one moment: instants to fire, how many to pass over, and where it stands afterwards."""

    fire: tuple[int, ...]
    passed_over: int
    done_ms: int
    next_ms: int | None
    more: bool


class Line(Protocol):
    """A schedule as a line of instants, in milliseconds."""

    def after(self, instant_ms: int) -> int | None: ...
    def newest(self, start_ms: int, until_ms: int) -> int: ...
    def count(self, start_ms: int, until_ms: int) -> int: ...


def check(schedule: Schedule) -> None:
    """Refuse an expression that is none or has no instant ever, and a zone nobody knows."""
    if isinstance(schedule, Interval):
        return
    line = CronLine(schedule)
    if line.after((NEVER_SINCE - EPOCH) // timedelta(milliseconds=1)) is None:
        raise InvalidArgument("schedule.expression", f"{schedule.expression!r} never comes")


def first(schedule: Schedule, now_ms: int) -> int | None:
    """The first instant after now; None when there is none."""
    if isinstance(schedule, Cron):
        return CronLine(schedule).after(now_ms)
    if schedule.anchor_ms is None:
        return _reachable(now_ms + schedule.every_ms)
    if schedule.anchor_ms > now_ms:
        return _reachable(schedule.anchor_ms)
    return IntervalLine(schedule.every_ms, schedule.anchor_ms).after(now_ms)


def due(schedule: Schedule, *, next_ms: int, now_ms: int, limit: int) -> DueInstants:
    """What to do about the instants from `next_ms` until now, by the schedule's policy, firing at most `limit`."""
    now_ms = min(now_ms, LAST_MS)  # a clock may be later than every calendar
    line: Line = CronLine(schedule) if isinstance(schedule, Cron) else IntervalLine(schedule.every_ms, next_ms)
    start_ms = _start(schedule, line, next_ms, now_ms)
    fire: list[int] = []
    at_ms = start_ms
    while at_ms is not None and at_ms <= now_ms and len(fire) < limit:
        fire.append(at_ms)
        at_ms = line.after(at_ms)
    passed_until_ms = now_ms + 1 if start_ms is None else start_ms
    return DueInstants(
        fire=tuple(fire),
        passed_over=line.count(next_ms, passed_until_ms),
        done_ms=fire[-1] if fire else line.newest(next_ms, passed_until_ms - 1),
        next_ms=at_ms,
        more=at_ms is not None and at_ms <= now_ms,
    )


def _start(schedule: Schedule, line: Line, next_ms: int, now_ms: int) -> int | None:
    """The oldest instant that is still to be fired; those before it are passed over."""
    if schedule.missed == Missed.ALL:
        return next_ms
    if schedule.missed == Missed.ONCE:
        return line.newest(next_ms, now_ms)
    in_time_ms = now_ms - schedule.grace_ms
    return next_ms if next_ms >= in_time_ms else line.after(in_time_ms - 1)


def written(schedule: Schedule, instant_ms: int) -> str:
    """An instant as RFC 3339 text, in the schedule's zone."""
    zone = _zone(schedule.timezone) if isinstance(schedule, Cron) else UTC
    return (EPOCH + timedelta(milliseconds=instant_ms)).astimezone(zone).isoformat()


def _reachable(instant_ms: int) -> int | None:
    return instant_ms if instant_ms <= LAST_MS else None


class IntervalLine:
    """Instants at equal distances, through one of them."""

    def __init__(self, every_ms: int, through_ms: int) -> None:
        self._every_ms = every_ms
        self._through_ms = through_ms

    def after(self, instant_ms: int) -> int | None:
        """The first instant after this one."""
        steps = (instant_ms - self._through_ms) // self._every_ms + 1
        return _reachable(self._through_ms + steps * self._every_ms)

    def newest(self, start_ms: int, until_ms: int) -> int:
        """The last instant from `start_ms`, which is one, until `until_ms`."""
        return start_ms + (until_ms - start_ms) // self._every_ms * self._every_ms

    def count(self, start_ms: int, until_ms: int) -> int:
        """How many instants from `start_ms`, which is one, to before `until_ms`."""
        return -((start_ms - until_ms) // self._every_ms)


class CronLine:
    """Instants of a cron expression. A time the clocks skip comes when they have skipped; one they repeat comes once."""

    def __init__(self, schedule: Cron) -> None:
        self._zone = _zone(schedule.timezone)
        self._expression = schedule.expression
        self._simulate = _cronsim()
        self._simulation(NEVER_SINCE)

    def _simulation(self, start: datetime) -> Any:
        module = self._simulate
        try:
            return module.CronSim(self._expression, start)
        except module.CronSimError as error:
            raise InvalidArgument("schedule.expression", f"{self._expression!r} is no cron expression: {error}") from None

    def after(self, instant_ms: int) -> int | None:
        """The first instant after this one."""
        return next(self._walk(instant_ms), None)

    def _walk(self, instant_ms: int) -> Iterator[int]:
        """The instants after this one, in order, to the end of the calendar."""
        last_ms = instant_ms
        try:
            for found in self._simulation((EPOCH + timedelta(milliseconds=instant_ms)).astimezone(self._zone)):
                at_ms = (found - EPOCH) // timedelta(milliseconds=1)
                if at_ms > LAST_MS:
                    return
                # In a repeated hour the walk over wall times can start with one that is over.
                if at_ms > last_ms:
                    last_ms = at_ms
                    yield at_ms
        except (OverflowError, ValueError):
            return  # no date of ours is that late

    def newest(self, start_ms: int, until_ms: int) -> int:
        """The last instant from `start_ms`, which is one, until `until_ms`."""
        low, high = start_ms - 1, until_ms
        while high - low > 1:
            middle = (low + high) // 2
            found = self.after(middle)
            low, high = (middle, high) if found is not None and found <= until_ms else (low, middle)
        found = self.after(low)
        assert found is not None
        return found

    def count(self, start_ms: int, until_ms: int) -> int:
        """How many instants from `start_ms`, which is one, to before `until_ms`; counted up to a bound."""
        walk = chain([start_ms], self._walk(start_ms))
        return sum(1 for _ in islice(takewhile(lambda at_ms: at_ms < until_ms, walk), PASSED_OVER_COUNTED_MAX))


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidArgument("schedule.timezone", f"{name!r} is no time zone this machine knows") from None


def _cronsim() -> Any:
    try:
        import cronsim
    except ImportError:
        raise InvalidArgument("schedule", "cron expressions need an extra: pip install 'lash-store[cron]'") from None
    return cronsim
