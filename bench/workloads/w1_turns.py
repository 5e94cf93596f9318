"""W1: persist turns. Each caller has a session of its own; a turn is two messages of 400 B and a memory that grows from 12 KB."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from urllib.parse import urlsplit

from bench.child import Absent, Child, Failed, Proxy
from bench.floors.pgbench import Pgbench, program
from bench.load import CHAT, SHAPES
from bench.server import REPORT_S, at, name_of, through
from bench.stage import OURS, OURS_RELAXED, OURS_SQLITE, PGBENCH, PORT, POSTGRES, RAW, READY, SQLITE, Member, Stage, Take
from bench.subject import Answer

W = "W1"
CALLERS = (1, 16, 64)
DELAY_MS = 0.5
REPLAYS = {1: 200, 16: 600, 64: 1_000}  # commits the floor of ready arguments makes per repeat
FULL_FRAME = 17  # the revision of a sampled session whose checkpoint is a full frame again
DELTA_FRAME = 12


def case(shape: str, callers: int, delay_ms: float = 0) -> str:
    """The name of a case."""
    return f"{shape}, {callers} callers" + (f", +{delay_ms} ms" if delay_ms else "")


async def run(stage: Stage) -> None:
    """Throughput and latency, then counts, then a longer wire."""
    await postgres(stage)
    await sqlite(stage)
    await wire(stage)


def peers(stage: Stage, engine: str) -> list[Member]:
    """Who persists turns; a quick run leaves variants of the same peer out."""
    found = stage.peers("turns", engine)
    return [member for member in found if not member.name.endswith("delta")] if stage.effort.quick else found


async def postgres(stage: Stage) -> None:
    """Everybody on PostgreSQL."""
    async with stage.children([OURS, PORT, *peers(stage, POSTGRES)]) as children, stage.child(READY) as ready:
        floors = {shape: await pgbench_floor(stage, children[0], shape) for shape in SHAPES}
        for shape in SHAPES:
            for callers in CALLERS if shape == CHAT or not stage.effort.quick else CALLERS[1:2]:
                # A quick run has no time for the long tail of sixty-four callers of a slow peer.
                alone = shape != CHAT or (stage.effort.quick and callers > 16)
                takes = turns_of(children[:2] if alone else children, stage.effort.seconds, callers, shape)
                takes[READY.name] = await replays(stage, ready, callers, shape)
                floor = floors[shape]
                if floor is not None:
                    takes[PGBENCH] = partial(floor.turns, callers=callers, seconds=stage.effort.seconds)
                await stage.interleave(W, POSTGRES, case(shape, callers), takes, unit="turns")


def turns_of(children: Sequence[Child], seconds: float, callers: int, shape: str) -> dict[str, Take]:
    """A closed loop for each."""
    return {
        child.member.name: partial(
            child.ask, "turns", prefix=f"{shape[0]}-{callers}", callers=callers, shape=shape, seconds=seconds
        )
        for child in children
    }


async def replays(stage: Stage, ready: Child, callers: int, shape: str) -> Take:
    """Commits that were written down before."""
    count = REPLAYS[callers] if not stage.effort.quick else REPLAYS[callers] // 2
    prefix = f"{shape[0]}-{callers}"
    each = (count // callers + 1) * (stage.effort.repeats + 1)
    await ready.call("prepare", prefix, callers, each + 1, shape)
    return partial(ready.ask, "turns", prefix=prefix, callers=callers, shape=CHAT, count=count)


async def pgbench_floor(stage: Stage, ours: Child, shape: str) -> Pgbench | None:
    """The rows of two real commits, one with a difference and one with a full frame, as often as they come."""
    if program() is None:
        stage.results.absent[PGBENCH] = "the server's programs have no pgbench beside them"
        return None
    session = f"a-sample-session-{shape[0]}"
    await ours.ask("grow", session=session, shape=shape, turns=FULL_FRAME)
    return await Pgbench.of_turns(ours.place, session, {DELTA_FRAME: 15, FULL_FRAME: 1})


async def sqlite(stage: Stage) -> None:
    """Everybody on SQLite. The raw floor has one caller: a file has one writer."""
    async with stage.children([OURS_SQLITE, OURS_RELAXED, RAW, *peers(stage, SQLITE)]) as children:
        for callers in CALLERS:
            measured = [child for child in children if callers == 1 or child.member.role != "floor"]
            takes = turns_of(measured, stage.effort.seconds, callers, CHAT)
            await stage.interleave(W, SQLITE, case(CHAT, callers), takes, unit="turns")


# --- counts and delay -----------------------------------------------------------------------------------------------------


async def wire(stage: Stage) -> None:
    """Through a proxy: what one turn costs exactly, and how fast it is when the way is half a millisecond longer."""
    target = urlsplit(stage.server.url)
    members = [OURS, PORT, *peers(stage, POSTGRES)]
    async with AsyncExitStack() as stack:
        pairs: list[tuple[Child, Proxy]] = []
        for member in members:
            proxy = await Proxy.start(str(target.hostname), target.port or 5432)
            stack.push_async_callback(proxy.close)
            place = await stage.server.fresh()
            try:
                pairs.append((await stack.enter_async_context(stage.child(member, through(place, proxy.port))), proxy))
            except (Absent, Failed) as error:
                stage.absent(member.name, error)
        await counts(stage, pairs)
        for _, proxy in pairs:
            await proxy.counters(DELAY_MS)
        for callers in CALLERS[: stage.effort.pick(2, 1)]:
            takes = turns_of([child for child, _ in pairs], stage.effort.seconds / 2, callers, CHAT)
            await stage.interleave(W, POSTGRES, case(CHAT, callers, DELAY_MS), takes, unit="turns")


async def counts(stage: Stage, pairs: Sequence[tuple[Child, Proxy]], turns: int = 20) -> None:
    """Exact counts of a warm turn, by one caller."""
    asks = {child: partial(child.ask, "turns", prefix="count", callers=1, shape=CHAT) for child, _ in pairs}
    for ask in asks.values():
        await ask(count=turns * 3)
    before = await rows(stage, asks)
    for child, proxy in pairs:
        await counted(stage, W, child, proxy, "chat turn", turns, asks[child])
    after = await rows(stage, asks)
    for child in asks:
        note_rows(stage, W, child, "chat turn", after[child] - before[child], turns)


async def rows(stage: Stage, children: Iterable[Child]) -> dict[Child, int]:
    """The rows each has written, once the server has heard of all of them."""
    await asyncio.sleep(REPORT_S)
    return {child: await stage.server.rows(at(stage.server.url, name_of(child.place))) for child in children}


def note_rows(stage: Stage, workload: str, child: Child, what: str, written: int, times: int) -> None:
    """What one of the calls of `counted` wrote."""
    stage.results.note(workload, child.member.name, POSTGRES, what, "rows written", written / (2 * times))


async def counted(
    stage: Stage, workload: str, child: Child, proxy: Proxy, what: str, times: int, ask: Callable[..., Awaitable[Answer]]
) -> Answer:
    """Do something `times` times, because everybody may have rested, and as often again while everything is counted."""
    await ask(count=times)
    before = await counters(stage, child, proxy)
    answer = await ask(count=times)
    after = await counters(stage, child, proxy)
    noted = {metric: (after[metric] - before[metric]) / times for metric in after}
    for metric, value in noted.items():
        stage.results.note(workload, child.member.name, POSTGRES, what, metric, value)
    stage.say(
        f"  {what}: {child.member.name}: {noted['round trips']:.2f} round trips, {noted['notifications']:.2f} notifications"
    )
    return answer


QUIET_S = 0.2  # until the notifications of the last call have left; a connection that rests for a second is tried first again


async def counters(stage: Stage, child: Child, proxy: Proxy) -> dict[str, int]:
    """What crossed the wire, and what the server counted, also of what is sent after the answers."""
    await asyncio.sleep(QUIET_S)
    wire = await proxy.counters()
    statements = await stage.server.statements(child.place)
    return {
        "round trips": wire["round_trips"],
        "bytes sent": wire["sent"],
        "bytes received": wire["received"],
        "statements": statements.calls,
        "notifications": statements.notifications,
        "bytes of log": await stage.server.wal(),
    }
