"""The bars: what the library sets out to reach, measured against a floor or a peer in the same run. Told, never asserted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.load import CHAT
from bench.results import Results
from bench.stage import OURS, PGBENCH, PORT, POSTGRES, RAW, READY, SCAN, SQLITE
from bench.workloads.w1_turns import CALLERS, DELAY_MS, case

NAME = OURS.name
JOB_PEERS = ("DBOS", "Absurd", "Procrastinate", "PgQueuer")
LANGGRAPH = {POSTGRES: "LangGraph", SQLITE: "LangGraph SQLite"}
Value = Callable[[Results], "float | None"]


@dataclass(frozen=True)
class Bar:
    """One line: what, the limit, and the value of a run."""

    what: str
    sense: str  # "≥" or "≤"
    limit: float
    value: Value
    unit: str = ""
    smaller: str = ""  # what a quick run measures instead

    def met(self, value: float) -> bool:
        """Whether the value, as it is shown, is on the right side."""
        return round(value, 2) >= self.limit if self.sense == "≥" else round(value, 2) <= self.limit


@dataclass(frozen=True)
class Verdict:
    """A bar and what was measured; None: it was not."""

    bar: Bar
    value: float | None
    quick: bool = False

    @property
    def what(self) -> str:
        return f"{self.bar.what} (quick run: {self.bar.smaller})" if self.quick and self.bar.smaller else self.bar.what

    @property
    def word(self) -> str:
        if self.value is None:
            return "not measured"
        return "met" if self.bar.met(self.value) else "**missed**"


def verdicts(results: Results) -> list[Verdict]:
    """Every bar, in order."""
    quick = bool(results.surroundings.get("quick"))
    return [Verdict(bar, bar.value(results), quick) for bar in bars()]


def ratio(above: Value, below: Value) -> Value:
    """One value over another; None when either is missing."""

    def divided(results: Results) -> float | None:
        top, bottom = above(results), below(results)
        return None if top is None or not bottom else top / bottom

    return divided


def figure(workload: str, subject: str, engine: str, cases: str | tuple[str, ...], metric: str) -> Value:
    """The median of a figure: of the first case that was measured, since quick runs are smaller."""
    named = (cases,) if isinstance(cases, str) else cases

    def found(results: Results) -> float | None:
        values = (results.median(workload, subject, engine, name, metric) for name in named)
        return next((value for value in values if value is not None), None)

    return found


def bars() -> list[Bar]:
    """All of them."""
    return [*commits(), *round_trips(), *sqlite(), *depth(), *reading(), *disk(), *work(), *wakes(), *writers()]


def turns(subject: str, callers: int, engine: str = POSTGRES, delay_ms: float = 0) -> Value:
    """Turns per second of W1."""
    return figure("W1", subject, engine, case(CHAT, callers, delay_ms), "turns/s")


def commits() -> list[Bar]:
    """PostgreSQL commits against the floors and the port."""
    found: list[Bar] = []
    for name, floor, limit in (("pgbench floor", PGBENCH, 0.6), ("asyncpg with ready arguments", READY.name, 0.75)):
        for callers in CALLERS:
            what = f"PostgreSQL commit ÷ {name}, {callers} caller{'s' * (callers > 1)}"
            found.append(Bar(what, "≥", limit, ratio(turns(NAME, callers), turns(floor, callers))))
    found.append(Bar("PostgreSQL commit ÷ straight port, 16 callers", "≥", 2, ratio(turns(NAME, 16), turns(PORT.name, 16))))
    slow = ratio(turns(NAME, 1, delay_ms=DELAY_MS), turns(PORT.name, 1, delay_ms=DELAY_MS))
    found.append(Bar(f"the same, 1 caller, +{DELAY_MS} ms of network", "≥", 5, slow))
    return found


def round_trips() -> list[Bar]:
    """Warm, own pool. Who waits elsewhere is notified afterwards, by a statement of its own that nobody waits for."""
    cases = {"commit": ("W1", "chat turn")} | {name: ("W7", name) for name in ("append", "enqueue", "claim", "settle")}
    return [
        Bar(f"round trips of a warm {name}, notifications aside", "≤", 1, waited_for(workload, what))
        for name, (workload, what) in cases.items()
    ]


def waited_for(workload: str, what: str) -> Value:
    """Round trips without the notifications that left in the same time."""

    def value(results: Results) -> float | None:
        trips, notes = (results.median(workload, NAME, POSTGRES, what, each) for each in ("round trips", "notifications"))
        return None if trips is None or notes is None else round(trips - notes, 2)

    return value


def sqlite() -> list[Bar]:
    """SQLite commits."""
    one, many = turns(NAME, 1, SQLITE), turns(NAME, 64, SQLITE)
    return [
        Bar("SQLite commit (FULL), 1 caller ÷ raw apsw", "≥", 0.5, ratio(one, turns(RAW.name, 1, SQLITE))),
        Bar("SQLite commit (FULL), 64 callers ÷ 1 caller", "≥", 2, ratio(many, one)),
    ]


def depth() -> list[Bar]:
    """Turns at depth, against LangGraph and against ourselves."""
    found: list[Bar] = []
    for engine, peer in LANGGRAPH.items():
        for turns_deep, limit in ((10, 4), (100, 8), (1_000, 30)):
            name = f"depth {turns_deep:,}"
            value = ratio(figure("W3", peer, engine, name, "turn p50 ms"), figure("W3", NAME, engine, name, "turn p50 ms"))
            found.append(Bar(f"{engine}: a turn is faster than LangGraph's default saver, {name}", "≥", limit, value, "×"))
    for engine in LANGGRAPH:
        deep = figure("W3", NAME, engine, ("flat, depth 100,000", "flat, depth 10,000"), "turn p50 ms")
        value = ratio(deep, figure("W3", NAME, engine, "flat, shallow", "turn p50 ms"))
        found.append(Bar(f"{engine}: commit p50 at depth 100,000 ÷ depth 10", "≤", 1.2, value, smaller="10,000 ÷ 10"))
    return found


def reading() -> list[Bar]:
    """Paths and tails."""
    cases = ("1,000 of 100,000 nodes", "1,000 of 20,000 nodes")
    found: list[Bar] = []
    for engine in (POSTGRES, SQLITE):
        own, floor = (figure("W2", name, engine, cases, "read p50 ms") for name in (NAME, SCAN.name))
        found.append(
            Bar(
                f"{engine}: active path, 1,000 of 100,000 nodes ÷ the same scan, digest and decode",
                "≤",
                1.5,
                ratio(own, floor),
                smaller="of 20,000",
            )
        )
    spent = figure("W2", NAME, POSTGRES, cases, "read database ms")
    plain = figure("W2", SCAN.name, POSTGRES, cases, "scan database ms")
    found.append(Bar("PostgreSQL: database time of that path ÷ plain scan", "≤", 1.8, ratio(spent, plain), smaller="of 20,000"))
    for engine in (POSTGRES, SQLITE):
        deep = figure("W2", NAME, engine, ("last 50 at depth 100,000", "last 50 at depth 10,000"), "read p50 ms")
        value = ratio(deep, figure("W2", NAME, engine, "last 50 at depth 100", "read p50 ms"))
        found.append(Bar(f"{engine}: last 50 nodes at depth 100,000 ÷ depth 100", "≤", 1.2, value, smaller="10,000 ÷ 100"))
    return found


def disk() -> list[Bar]:
    """What a thousand turns take, empty tables included."""
    return [
        Bar(f"{engine}: disk ÷ node bodies at 1,000 turns, collected", "≤", 3, disk_ratio(engine, "collected"))
        for engine in (POSTGRES, SQLITE)
    ]


def disk_ratio(engine: str, state: str) -> Value:
    """Disk of a thousand turns over the bytes of their messages."""

    def value(results: Results) -> float | None:
        disk, bodies = (
            results.median("W3", NAME, engine, "1,000 turns", metric) for metric in (f"disk bytes {state}", "node bytes")
        )
        return None if disk is None or not bodies else disk / bodies

    return value


def work() -> list[Bar]:
    """Events, jobs and claims."""
    events = "event append, 16 callers"
    own = figure("W7", NAME, POSTGRES, events, "events/s")
    found = [
        Bar("event append ÷ pgbench floor, 16 callers", "≥", 0.6, ratio(own, figure("W7", PGBENCH, POSTGRES, events, "events/s")))
    ]
    own = figure("W7", NAME, POSTGRES, "one job per call", "jobs/s")
    found.append(Bar("enqueue + claim + settle, one job per call ÷ best peer", "≥", 2, ratio(own, best_peer)))
    for engine in (POSTGRES, SQLITE):
        many = figure("W7", NAME, engine, ("claim_next, 100,000 busy sessions", "claim_next, 10,000 busy sessions"), "p50 ms")
        value = ratio(many, figure("W7", NAME, engine, "claim_next, 10 busy sessions", "p50 ms"))
        found.append(Bar(f"{engine}: claim_next at 100,000 busy sessions ÷ at 10", "≤", 1.2, value, smaller="10,000 ÷ 10"))
    return found


def best_peer(results: Results) -> float | None:
    """The fastest of the others, one job per call."""
    values = [results.median("W7", name, POSTGRES, "one job per call", "jobs/s") for name in JOB_PEERS]
    return max((value for value in values if value is not None), default=None)


def wakes() -> list[Bar]:
    """Across processes, and in silence."""
    found: list[Bar] = []
    for engine, limit in ((POSTGRES, 5), (SQLITE, 2)):
        value = figure("W8", NAME, engine, "wait_ready", "wake p50 ms")
        found.append(Bar(f"{engine}: wake p50 across processes", "≤", limit, value, "ms"))
    for engine in (POSTGRES, SQLITE):
        value = figure("W8", NAME, engine, "1,000 waiters in wait_ready", "statements/s")
        found.append(Bar(f"{engine}: statements per second with 1,000 idle waiters", "≤", 5, value))
    return found


def writers() -> list[Bar]:
    """Eight writers on one session."""

    def wrong(engine: str) -> Value:
        def value(results: Results) -> float | None:
            found = [results.find("W5", NAME, engine, "8 writers", metric) for metric in ("lost", "doubled")]
            return None if None in found else sum(max(each.values) for each in found if each is not None)

        return value

    return [
        Bar(f"{engine}: 8 writers on one session, lost or doubled turns", "≤", 0, wrong(engine)) for engine in (POSTGRES, SQLITE)
    ]
