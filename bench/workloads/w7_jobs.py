"""W7: store, claim and settle jobs one per call; several per call beside. Events. Claims among many busy sessions."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from statistics import median
from urllib.parse import urlsplit

from bench.child import Absent, Child, Failed, Proxy
from bench.floors.pgbench import Pgbench, program
from bench.server import through
from bench.stage import OURS, OURS_SQLITE, PGBENCH, PORT, POSTGRES, Member, Stage, Take
from bench.workloads.w1_turns import counted, note_rows, rows

W = "W7"
CALLERS = 16
SLOW = ("DBOS", "Absurd", "straight port")
CLAIMS = 60


async def run(stage: Stage) -> None:
    """Everything about work."""
    await jobs(stage)
    await counts(stage)
    await events(stage)
    for member in (OURS, OURS_SQLITE):
        await claims(stage, member)


async def jobs(stage: Stage) -> None:
    """One job per call, then several."""
    async with stage.children([OURS, PORT, *stage.peers("jobs", POSTGRES), OURS_SQLITE]) as children:
        for repeat in range(-1, stage.effort.repeats):
            for child in children:
                await one(stage, child, repeat, batched=False)
        for repeat in range(stage.effort.repeats):
            for child in children:
                if "enqueue_many" in child.can:
                    await one(stage, child, repeat, batched=True)


async def one(stage: Stage, child: Child, repeat: int, *, batched: bool) -> None:
    """Store them all, run them all."""
    name, engine = child.member.name, child.member.engine
    count = stage.effort.pick(150 if name in SLOW else 600, 60 if name in SLOW else 200)
    count = 30 if repeat < 0 else count * (3 if batched and "work_many" in child.can else 1)
    case = "several jobs per call" if batched else "one job per call"
    own_batches = batched and "work_many" in child.can
    try:
        if batched and not own_batches:
            taken = await child.call("enqueue_many", count)
            stage.results.note(W, name, engine, case, "enqueues/s", count / taken["ms"] * 1000)
            await child.ask("jobs", count=1, callers=1)
            return
        answer = await child.ask("jobs", count=count, callers=CALLERS, batched=batched)
    except (Absent, Failed) as error:
        stage.absent(f"{name}, {W} {case}", error)
        return
    if repeat < 0:
        return
    stage.results.note(W, name, engine, case, "jobs/s", count / (answer["enqueue_s"] + answer["work_s"]))
    stage.results.note(W, name, engine, case, "enqueues/s", count / answer["enqueue_s"])
    stage.results.note(W, name, engine, case, "claims and settles/s", count / answer["work_s"])
    stage.say(f"  {engine} {case}: {name}: {count / (answer['enqueue_s'] + answer['work_s']):.0f} jobs/s")


# --- counts ---------------------------------------------------------------------------------------------------------------


async def counts(stage: Stage, times: int = 20) -> None:
    """Exact counts of ours, warm: enqueue, claim, settle, append."""
    target = urlsplit(stage.server.url)
    async with AsyncExitStack() as stack:
        proxy = await Proxy.start(str(target.hostname), target.port or 5432)
        stack.push_async_callback(proxy.close)
        place = through(await stage.server.fresh(), proxy.port)
        ours = await stack.enter_async_context(stage.child(OURS, place))
        await ours.call("register", "process-0")
        calls = {
            "enqueue": partial(ours.ask, "each_number", name="enqueue"),
            "claim": partial(ours.ask, "times", name="claim"),
            "settle": partial(ours.ask, "times", name="settle"),
            "append": partial(ours.ask, "loop", name="event", prefix="process", callers=1),
        }
        # Every connection prepares every statement once.
        for call in calls.values():
            await call(count=times * 2)
        before = await rows(stage, [ours])
        for name, call in calls.items():
            await counted(stage, W, ours, proxy, name, times, call)
            after = await rows(stage, [ours])
            note_rows(stage, W, ours, name, after[ours] - before[ours], times)
            before = after


# --- events ---------------------------------------------------------------------------------------------------------------


async def events(stage: Stage) -> None:
    """Append one event per call, each caller to a process of its own."""
    async with stage.children([OURS, PORT, OURS_SQLITE]) as children:
        for child in children:
            for number in range(CALLERS):
                await child.call("register", f"process-{number}")
        takes: dict[str, Take] = {
            child.member.name: partial(
                child.ask, "loop", name="event", prefix="process", callers=CALLERS, seconds=stage.effort.seconds
            )
            for child in children[:2]
        }
        await children[0].call("register", "a-sample-process-of-the-floor")
        await children[0].call("event", "a-sample-process-of-the-floor")
        if program() is not None:
            floor = await Pgbench.of_events(children[0].place, "a-sample-process-of-the-floor", 1)
            takes[PGBENCH] = partial(floor.turns, callers=CALLERS, seconds=stage.effort.seconds)
        await stage.interleave(W, POSTGRES, f"event append, {CALLERS} callers", takes, unit="events")
        lite = children[2]
        take: Take = partial(lite.ask, "loop", name="event", prefix="process", callers=CALLERS, seconds=stage.effort.seconds)
        await stage.interleave(W, lite.member.engine, f"event append, {CALLERS} callers", {lite.member.name: take}, unit="events")


# --- claims ---------------------------------------------------------------------------------------------------------------


async def claims(stage: Stage, member: Member) -> None:
    """claim_next when ten sessions have work, and when a hundred thousand have."""
    for busy in (10, stage.effort.pick(100_000, 10_000)):
        async with stage.child(member) as ours:
            await ours.call("crowd", busy)
            for repeat in range(-1, stage.effort.repeats):
                times = (await ours.ask("times", name="claim", count=CLAIMS, settle="settle"))["latencies_ms"]
                if repeat >= 0:
                    stage.results.note(
                        W, member.name, member.engine, f"claim_next, {busy:,} busy sessions", "p50 ms", median(times), times
                    )
            stage.say(f"  {member.engine}: claim_next among {busy:,}")
