"""From numbers to what an operator should do. Pure: it decides, and looks at nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from lash_store.model.maintenance import Finding, Severity, Stats

PATIENCE_MS = 300_000  # five minutes: what waits longer than any lease or tick should need has been forgotten


def advice(stats: Stats) -> Iterator[Finding]:
    """What lies around and waits for somebody."""
    yield from _inbox(stats)
    yield from _processes(stats)
    if stats.sessions_purging:
        yield _warning(f"{stats.sessions_purging} deleted sessions are not removed completely", "Run `lash-store gc`.")


def _inbox(stats: Stats) -> Iterator[Finding]:
    if stats.inbox.parked:
        yield _warning(
            f"{stats.inbox.parked} batches are parked: nobody gets them until they are unparked or cancelled",
            "Look with `lash-store inbox list SESSION`, then `inbox unpark` or `inbox cancel`.",
        )
    if _waits(stats, stats.inbox.oldest_ready_ms):
        yield _warning(
            f"{stats.inbox.ready} batches are ready, the oldest since more than five minutes",
            "See that workers run; `lash-store lease list` shows who holds what.",
        )


def _processes(stats: Stats) -> Iterator[Finding]:
    if stats.processes.expired:
        yield _warning(
            f"{stats.processes.expired} running processes have a lease whose time has passed: their workers died or hang",
            "A worker that claims takes them over. See that workers run.",
        )
    if _waits(stats, stats.oldest_due_ms):
        yield _warning(
            f"{stats.schedules_overdue} schedules are overdue: nobody ticks",
            "Run `lash-store trigger tick`, and see that a worker calls store.triggers.tick().",
        )
    if _waits(stats, stats.oldest_undelivered_ms):
        yield _warning(f"{stats.undelivered} deliveries were promised and not started", "Run `lash-store trigger redrive`.")


def _waits(stats: Stats, since_ms: int | None) -> bool:
    return since_ms is not None and stats.now_ms - since_ms > PATIENCE_MS


def _warning(what: str, advice: str) -> Finding:
    return Finding(severity=Severity.WARNING, what=what, advice=advice)
