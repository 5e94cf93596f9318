"""W4 fork, W5 several writers on one session, W6 many sessions at once, W10 pruning and deleting, W11 listing."""

from __future__ import annotations

import asyncio
from functools import partial
from statistics import median

from bench.child import Absent, Child, Failed
from bench.load import CHAT
from bench.stage import OURS, OURS_SQLITE, PORT, POSTGRES, SQLITE, Member, Stage
from bench.workloads.w3_growth import size_of

WRITERS, EACH = 8, 12
FORKED_TURNS = 200


async def fork(stage: Stage) -> None:
    """W4: a session of 200 turns is forked in the middle."""
    members = [OURS, OURS_SQLITE, *stage.peers("turns", POSTGRES), *stage.peers("turns", SQLITE)]
    async with stage.children(
        [member for member in members if "delta" not in member.name and "exit" not in member.name]
    ) as children:
        for child in children:
            if "fork" not in child.can:
                continue
            await child.ask("grow", session="trunk", shape=CHAT, turns=FORKED_TURNS)
            for repeat in range(stage.effort.repeats):
                before = await size_of(stage, child)
                answer = await child.call("fork", "trunk", f"fork-{repeat}", FORKED_TURNS // 2)
                added = await size_of(stage, child) - before
                name, engine = child.member.name, child.member.engine
                stage.results.note("W4", name, engine, "fork of 100 turns", "ms", answer["ms"])
                stage.results.note("W4", name, engine, "fork of 100 turns", "bytes added", added)


async def race(stage: Stage) -> None:
    """W5: eight writers; a refused one looks again and repeats. What was acknowledged must be there, once."""
    for engine, own in ((POSTGRES, [OURS, PORT]), (SQLITE, [OURS_SQLITE])):
        members = [member for member in stage.peers("turns", engine) if member.name.split()[-1] not in ("exit", "delta")]
        async with stage.children([*own, *members]) as children:
            for child in children:
                for repeat in range(1 if stage.effort.quick else stage.effort.repeats):
                    try:
                        await one_race(stage, child, repeat)
                    except (Absent, Failed) as error:
                        stage.absent(f"{child.member.name}, W5", error)
                        break


async def one_race(stage: Stage, child: Child, repeat: int) -> None:
    """One session."""
    session = f"race-{repeat}"
    await child.call("add", session, "first", "first")
    answer = await child.ask("race", session=session, writers=WRITERS, turns=EACH)
    note = partial(stage.results.note, "W5", child.member.name, child.member.engine, f"{WRITERS} writers")
    for metric in ("lost", "doubled", "refused"):
        note(metric, answer[metric])
    note("accepted/s", answer["accepted"] / answer["seconds"])
    stage.say(f"  {child.member.name}: of {answer['accepted']} lost {answer['lost']}, doubled {answer['doubled']}")


async def many(stage: Stage) -> None:
    """W6: sessions at once, in one process and in two; one session is the single caller of W1."""
    peers = [member for member in stage.peers("turns", POSTGRES) if member.name == "LangGraph" and not stage.effort.quick]
    for member in [OURS, PORT, *peers]:
        async with stage.child(member) as first, stage.child(member, first.place) as second:
            for sessions in (16, 64, 200) if not stage.effort.quick else (64,):
                await at_once(stage, [first], sessions, "one process")
                await at_once(stage, [first, second], sessions, "two processes")


async def at_once(stage: Stage, children: list[Child], sessions: int, where: str) -> None:
    """All processes at the same time, each with its share."""
    callers = sessions // len(children)
    for repeat in range(-1, stage.effort.repeats):
        asks = [
            child.ask(
                "turns", prefix=f"{where[:3]}-{number}-{sessions}", callers=callers, shape=CHAT, seconds=stage.effort.seconds / 2
            )
            for number, child in enumerate(children)
        ]
        answers = await asyncio.gather(*asks)
        if repeat >= 0:
            rate = sum(answer["count"] / answer["seconds"] for answer in answers)
            stage.results.note("W6", children[0].member.name, POSTGRES, f"{sessions} sessions, {where}", "turns/s", rate)


async def prune(stage: Stage) -> None:
    """W10: forget the past of a session, then delete sessions, while another session goes on."""
    for member in [OURS, OURS_SQLITE, *(each for each in stage.peers("turns", POSTGRES) if each.name == "LangGraph")]:
        async with stage.child(member) as child, stage.child(member, child.place) as writer:
            try:
                await one_prune(stage, child, writer)
            except (Absent, Failed) as error:
                stage.absent(f"{member.name}, W10", error)


async def one_prune(stage: Stage, child: Child, writer: Child) -> None:
    """The longest turn of the writer beside it is the longest it was blocked."""
    # A thousand turns of a peer that writes everything again would take minutes.
    turns = stage.effort.pick(1_000, 200) if child.member.role == "own" else 200
    sessions = stage.effort.pick(1_000, 100)
    await child.ask("grow", session="long", shape=CHAT, turns=turns)
    await child.ask("turns", prefix="short", callers=sessions, shape=CHAT, count=sessions)
    writing = asyncio.ensure_future(writer.ask("turns", prefix="beside", callers=1, shape=CHAT, seconds=stage.effort.pick(4, 2)))
    await asyncio.sleep(0.5)
    note = partial(stage.results.note, "W10", child.member.name, child.member.engine)
    try:
        note(f"prune {turns:,} turns", "ms", (await child.call("prune", "long"))["ms"])
        deleted = await child.ask("each", name="delete", prefix="short", count=sessions)
        note(f"delete {sessions:,} sessions", "ms", deleted["seconds"] * 1000)
    finally:
        beside = await writing
    note("a writer beside", "turn p50 ms", beside["p50_ms"])
    note("a writer beside", "longest turn ms", beside["max_ms"])


async def listing(stage: Stage) -> None:
    """W11: the 50 newest of many sessions."""
    peers: list[Member] = [member for member in stage.peers("turns", POSTGRES) if member.name == "Google ADK"]
    for member in [OURS, OURS_SQLITE, *peers]:
        count = stage.effort.pick(10_000 if member.role == "own" else 1_000, 500)
        async with stage.child(member) as child:
            await child.ask("each", name="create", prefix="listed", count=count)
            for repeat in range(-1, stage.effort.repeats):
                times = (await child.ask("times", name="recent", count=10))["latencies_ms"]
                if repeat >= 0:
                    stage.results.note(
                        "W11", member.name, member.engine, f"50 of {count:,} sessions", "p50 ms", median(times), times
                    )
