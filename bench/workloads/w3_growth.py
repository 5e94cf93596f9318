"""W3: what history costs. A session grows turn by turn: the time of a turn and of a resume at each depth, and the disk."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import apsw

from bench.child import Absent, Child, Failed
from bench.load import CHAT, MEMORY_TURNS
from bench.stage import OURS, OURS_SQLITE, PORT, POSTGRES, SQLITE, Member, Stage

W = "W3"
DEPTHS = (10, 100, 1_000)
DEEP = 10_000
DEEPEST = 100_000
TURNS = {10: 12, 100: 12, 1_000: 8, DEEP: 2}  # measured at each depth, per repeat
GROWN = "session"
SLOW = ("Google ADK", "LangGraph exit", "LangGraph SQLite exit")  # a thousand turns one by one would take minutes
PATIENCE_S = 150  # for the growth of one session


async def run(stage: Stage) -> None:
    """Both engines, then ours alone where it is flat."""
    await grow_all(stage, POSTGRES, [OURS, PORT, *stage.peers("turns", POSTGRES)])
    await grow_all(stage, SQLITE, [OURS_SQLITE, *stage.peers("turns", SQLITE)])
    for member in (OURS, OURS_SQLITE):
        await flat(stage, member)


def case(depth: int) -> str:
    """The name of a case."""
    return f"depth {depth:,}"


async def grow_all(stage: Stage, engine: str, members: list[Member]) -> None:
    """Everybody to each depth, then turns and reads there, in turns."""
    async with stage.children(members) as children:
        growing = list(children)
        for depth in DEPTHS:
            reached = [(child, await reach(stage, child, depth)) for child in growing]
            await sample(stage, engine, [(child, session) for child, session in reached if session], depth)
            growing = [child for child, session in reached if session == GROWN]
            for child in growing:
                await disk(stage, child, case(depth))
        await deep(stage, engine, children)
    for child in children:
        if child.member.role == "own":
            await collected(stage, child.member)


async def deep(stage: Stage, engine: str, children: list[Child]) -> None:
    """Ten thousand turns, for those who get there."""
    if not stage.effort.quick:
        reached = [(child, await deepen(stage, child, DEEP)) for child in children if child.member.name not in SLOW]
        await sample(stage, engine, [(child, session) for child, session in reached if session], DEEP)


async def reach(stage: Stage, child: Child, depth: int) -> str | None:
    """Bring a session to a depth, turn by turn; its name. Who is too slow, and a quick run, takes a short way to the last."""
    slow = child.member.name in SLOW or (stage.effort.quick and child.member.role != "own")
    return await (deepen if slow and depth == DEPTHS[-1] else grow)(stage, child, depth)


async def grow(stage: Stage, child: Child, depth: int) -> str | None:
    """Turn by turn, as long as patience lasts."""
    began = time.monotonic()
    try:
        for step in range(depth // 10, depth + 1, max(1, depth // 10)):
            await child.ask("grow", session=GROWN, shape=CHAT, turns=step)
            if time.monotonic() - began > PATIENCE_S and step < depth:
                stage.results.absent[f"{child.member.name}, {W} {case(depth)}"] = (
                    f"after {PATIENCE_S} s it had grown to {step:,} turns"
                )
                return None
    except (Absent, Failed) as error:
        stage.absent(f"{child.member.name}, {W} {case(depth)}", error)
        return None
    stage.say(f"  {child.member.name} grew to {depth:,} in {time.monotonic() - began:.1f} s")
    return GROWN


async def deepen(stage: Stage, child: Child, depth: int) -> str | None:
    """By the shortest way: a few large writes."""
    session = f"deep-{depth}"
    try:
        await child.ask("deepen", session=session, turns=depth, shape=CHAT)
    except (Absent, Failed) as error:
        stage.absent(f"{child.member.name}, {W} {case(depth)}", error)
        return None
    return session


async def sample(stage: Stage, engine: str, sessions: list[tuple[Child, str]], depth: int) -> None:
    """Some turns at that depth, and some reads. The session grows a little while it is measured."""
    turns = TURNS[depth]
    for repeat in range(stage.effort.repeats):
        for child, session in sessions:
            answer = await child.ask("grow", session=session, shape=CHAT, turns=depth + turns * (repeat + 1))
            times = answer["latencies_ms"]
            stage.results.note(W, child.member.name, engine, case(depth), "turn p50 ms", median(times), times)
            stage.say(f"  {engine} {case(depth)}: {child.member.name}: turn p50 {median(times):.2f} ms")
            reads = await child.ask("resume", session=session, count=3)
            stage.results.note(W, child.member.name, engine, case(depth), "resume p50 ms", median(reads["latencies_ms"]))


# --- disk -----------------------------------------------------------------------------------------------------------------


async def disk(stage: Stage, child: Child, name: str, metric: str = "disk bytes") -> None:
    """What the database holds, beside the bytes of the messages themselves."""
    size = await size_of(stage, child)
    stage.results.note(W, child.member.name, child.member.engine, name, metric, size)


async def size_of(stage: Stage, child: Child) -> int:
    """Tables and indexes on PostgreSQL; the file and its log on SQLite."""
    if child.member.engine == POSTGRES:
        return await stage.server.size(child.place)
    # Not the doorbell, and not -shm: it is memory that processes share, and is gone when the last one closes.
    files = Path(child.place).parent.glob("bench.db*")
    return sum(path.stat().st_size for path in files if not path.name.endswith(("-bell", "-shm")))


async def collected(stage: Stage, member: Member) -> None:
    """A database with one session of 1,000 turns: empty, as it is, and after the past of its checkpoint was collected."""
    async with stage.child(member) as fresh:
        await disk(stage, fresh, "1,000 turns", "disk bytes empty")
        await fresh.ask("grow", session=GROWN, shape=CHAT, turns=DEPTHS[-1])
        await vacuum(stage, fresh)
        await disk(stage, fresh, "1,000 turns", "disk bytes uncollected")
        await fresh.call("prune", GROWN)
        await vacuum(stage, fresh)
        await disk(stage, fresh, "1,000 turns", "disk bytes collected")
        bodies = (await fresh.call("body_bytes", GROWN))["value"]
    stage.results.note(W, member.name, member.engine, "1,000 turns", "node bytes", bodies)


async def vacuum(stage: Stage, child: Child) -> None:
    """The engine's own."""
    if child.member.engine == POSTGRES:
        await stage.server.ask("VACUUM FULL", url=child.place)
        return
    connection = apsw.Connection(child.place)
    connection.set_busy_timeout(10_000)
    connection.execute("VACUUM")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


# --- flat -----------------------------------------------------------------------------------------------------------------


async def flat(stage: Stage, member: Member) -> None:
    """Commits at depth 10 and at depth 100,000, in turns. Each look has a memory of the same size."""
    deepest = stage.effort.pick(DEEPEST, DEEP)
    async with stage.child(member) as ours:
        await ours.ask("deepen", session="deepest", turns=deepest, shape=CHAT)
        shallow = "shallow"
        await ours.ask("deepen", session=shallow, turns=10, shape=CHAT)
        reached = {shallow: 10, "deepest": deepest}
        for repeat in range(-1, stage.effort.repeats * 2):
            for session in reached:
                reached[session] += MEMORY_TURNS
                times = (await ours.ask("grow", session=session, shape=CHAT, turns=reached[session]))["latencies_ms"]
                name = f"flat, {'shallow' if session == shallow else f'depth {deepest:,}'}"
                if repeat >= 0:
                    stage.results.note(W, member.name, member.engine, name, "turn p50 ms", median(times), times)
