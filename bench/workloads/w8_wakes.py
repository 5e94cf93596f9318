"""W8: how fast a waiter in another process is woken, and what waiting costs while nothing happens.

Ours: a second process waits (`wait_ready`, `await_output`), this one writes (`enqueue`, `complete`). The time runs from the call
of the write to the return of the wait; both read the clock of the host. Between rounds the writer rests, so that the waiter
sleeps when the write comes. Peers: an idle worker, from the call that stores a job to the start of its run, in one process.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from statistics import median

from bench.child import PROJECT, Absent, Child, Failed
from bench.stage import OURS, OURS_SQLITE, PORT, POSTGRES, SQLITE, Stage
from bench.subject import quantiles
from bench.waiter import PREPARE, WAIT, WRITE
from lash_store import AsyncStore, StatementEvent

W = "W8"
REST_S = 0.02  # between two rounds: enough for the waiter to fall asleep
WAITERS = 1_000
SETTLE_S = 8  # until the looks of patient waiters have slowed down
PATIENCE_S = 60


async def run(stage: Stage) -> None:
    """Wake-ups first, then silence."""
    for engine in (SQLITE, POSTGRES):
        for what in PREPARE:
            await wakes(stage, engine, what)
    await peers(stage)
    # They all only wait, so they can wait at the same time.
    await asyncio.gather(*(idle(stage, engine, what) for engine in (SQLITE, POSTGRES) for what in PREPARE))


async def wakes(stage: Stage, engine: str, what: str) -> None:
    """Rounds in three repeats of equal length, one process after the other asleep."""
    url = await stage.place(engine)
    per_repeat = stage.effort.pick(80, 25)
    rounds = per_repeat * stage.effort.repeats
    async with AsyncStore.open(url) as store:
        await PREPARE[what](store, rounds)
        waiter = await start(what, url, rounds)
        for repeat in range(stage.effort.repeats):
            woken: list[float] = []
            written: list[float] = []
            for number in range(repeat * per_repeat, (repeat + 1) * per_repeat):
                wake, write = await one(store, waiter, what, number)
                woken.append(wake)
                written.append(write)
            note(stage, engine, what, woken, written)
        await waiter.wait()


def note(stage: Stage, engine: str, what: str, woken: list[float], written: list[float]) -> None:
    """The figures of one repeat."""
    subject = OURS.name
    for metric, value in quantiles(woken).items():
        stage.results.note(
            W, subject, engine, what, f"wake {metric.replace('_', ' ')}", value, woken[:100] if "50" in metric else ()
        )
    stage.results.note(W, subject, engine, what, "wake slowest ms", max(woken))
    stage.results.note(W, subject, engine, what, "write p50 ms", median(written))
    stage.say(f"  {engine} {what}: wake p50 {median(woken):.2f} ms, write p50 {median(written):.2f} ms")


async def one(store: AsyncStore, waiter: asyncio.subprocess.Process, what: str, number: int) -> tuple[float, float]:
    """One wake-up: from the call of the write to the return of the wait, and to the return of the write."""
    await line_of(waiter)
    await asyncio.sleep(REST_S)
    began = time.monotonic_ns()
    await WRITE[what](store, number)
    written = time.monotonic_ns()
    woken = int(await line_of(waiter))
    return (woken - began) / 1e6, (written - began) / 1e6


async def start(what: str, url: str, rounds: int) -> asyncio.subprocess.Process:
    """The other process. It ends when its rounds are over."""
    command = [sys.executable, "-m", "bench.waiter", what, url, str(rounds)]
    return await asyncio.create_subprocess_exec(*command, cwd=PROJECT, stdout=subprocess.PIPE)


async def line_of(waiter: asyncio.subprocess.Process) -> str:
    """What it says next."""
    assert waiter.stdout is not None
    line = await asyncio.wait_for(waiter.stdout.readline(), PATIENCE_S)
    if not line:
        raise RuntimeError(f"the waiter ended early, with code {await waiter.wait()}")
    return line.decode()


async def idle(stage: Stage, engine: str, what: str) -> None:
    """Statements per second of one store with a thousand waiters for which nothing happens, without BEGIN and COMMIT."""
    count = 0

    def counted(_: StatementEvent) -> None:
        nonlocal count
        count += 1

    async with AsyncStore.open(await stage.place(engine), on_statement=counted) as store:
        await PREPARE[what](store, WAITERS)
        tasks = [asyncio.ensure_future(WAIT[what](store, number)) for number in range(WAITERS)]
        await asyncio.sleep(SETTLE_S)
        before, began = count, time.monotonic()
        await asyncio.sleep(stage.effort.pick(20, 6))
        per_second = (count - before) / (time.monotonic() - began)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    stage.results.note(W, OURS.name, engine, f"1,000 waiters in {what}", "statements/s", per_second)


# --- workers of others ----------------------------------------------------------------------------------------------------


async def peers(stage: Stage) -> None:
    """An idle worker of each, ours among them: how fast it starts, and what it asks while it has nothing to do."""
    for member in [OURS, OURS_SQLITE, PORT, *stage.peers("jobs", POSTGRES)]:
        try:
            async with stage.child(member) as child:
                answer = await child.ask("wakes", count=stage.effort.pick(30, 6), rest_s=0.1)
                times = answer["latencies_ms"]
                for metric, value in quantiles(times).items():
                    stage.results.note(
                        W, member.name, member.engine, "idle worker", f"start {metric.replace('_', ' ')}", value, times
                    )
                stage.say(f"  idle worker: {member.name}: start p50 {median(times):.2f} ms")
                if member.engine == POSTGRES:
                    await silence(stage, child)
        except (Absent, Failed) as error:
            stage.absent(f"{member.name}, {W}", error)


async def silence(stage: Stage, child: Child) -> None:
    """What the server is asked while a worker has nothing to do."""
    settle_s, count_s = 2, stage.effort.pick(5, 3)
    waiting = asyncio.ensure_future(child.ask("idle", seconds=settle_s + count_s + 1))
    await asyncio.sleep(settle_s)
    before, began = await stage.server.statements(child.place), time.monotonic()
    await asyncio.sleep(count_s)
    spent = (await stage.server.statements(child.place)).since(before)
    stage.results.note(W, child.member.name, POSTGRES, "idle worker", "statements/s", spent.calls / (time.monotonic() - began))
    await waiting
