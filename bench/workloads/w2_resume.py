"""W2: read a session back. A path of 1,000 nodes in a session of 100,000, and the last 50 messages at any depth."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any

from bench.child import Child
from bench.load import CHAT
from bench.stage import OURS, OURS_SQLITE, POSTGRES, SCAN, Member, Stage

W = "W2"
TRUNK, LENGTH = 500, 500
READS = 20


async def run(stage: Stage) -> None:
    """Ours against the same scan, on both engines."""
    for member in (OURS, OURS_SQLITE):
        await paths(stage, member)
        await tails(stage, member)


async def paths(stage: Stage, member: Member) -> None:
    """The active path of a small and of a large session, and the floor: the same rows, their digests and their JSON."""
    floor = Member(SCAN.name, member.engine, SCAN.module, SCAN.role)
    sizes = {"1,000 of 1,000 nodes": 1, "1,000 of 100,000 nodes": stage.effort.pick(199, 39)}
    if stage.effort.quick:
        sizes = {name.replace("100,000", "20,000"): branches for name, branches in sizes.items()}
    async with stage.child(member) as ours:
        for branches in sizes.values():
            await ours.call("plant", f"tree-{branches}", TRUNK, branches, LENGTH)
        await settled(stage, ours.place, member.engine)
        async with stage.child(floor, ours.place) as scan:
            for case, branches in sizes.items():
                await compare(stage, member.engine, case, f"tree-{branches}", ours, scan)


async def settled(stage: Stage, place: str, engine: str) -> None:
    """Statistics and visibility as they are after a while."""
    if engine == POSTGRES:
        await stage.server.ask("VACUUM ANALYZE", url=place)


async def compare(stage: Stage, engine: str, case: str, session: str, ours: Child, scan: Child) -> None:
    """Reads in turns; the server's own time beside."""
    reads = {
        (ours.member.name, "resume"): partial(ours.ask, "resume", session=session, count=READS),
        (scan.member.name, "resume"): partial(scan.ask, "resume", session=session, count=READS),
        (scan.member.name, "plain"): partial(scan.ask, "resume", session=session, count=READS, what="plain"),
    }
    for repeat in range(-1, stage.effort.repeats):
        for (name, what), read in reads.items():
            before = await stage.server.statements(ours.place) if engine == POSTGRES else None
            answer = await read()
            if repeat < 0:
                continue
            metric = "read p50 ms" if what == "resume" else "scan p50 ms"
            note_times(stage, name, engine, case, metric, answer)
            if before is not None:
                spent = (await stage.server.statements(ours.place)).since(before)
                stage.results.note(W, name, engine, case, metric.replace("p50", "database"), spent.milliseconds / READS)


def note_times(stage: Stage, name: str, engine: str, case: str, metric: str, answer: dict[str, Any]) -> None:
    """The median of one repeat."""
    value = median(answer["latencies_ms"])
    stage.results.note(W, name, engine, case, metric, value, answer["latencies_ms"])
    stage.say(f"  {engine} {case}: {name}: {metric} {value:.2f} ({answer['messages']} messages)")


async def tails(stage: Stage, member: Member) -> None:
    """The last 50 of a short and of a very long session."""
    async with stage.child(member) as ours:
        depths = {"100": 100, "100,000": stage.effort.pick(100_000, 10_000)}
        for depth in depths.values():
            await ours.ask("deepen", session=f"deep-{depth}", turns=depth, shape=CHAT)
        await settled(stage, ours.place, member.engine)
        for repeat in range(-1, stage.effort.repeats):
            for depth in depths.values():
                answer = await ours.ask("resume", session=f"deep-{depth}", count=READS, what="tail")
                if repeat >= 0:
                    note_times(stage, member.name, member.engine, f"last 50 at depth {depth:,}", "read p50 ms", answer)
