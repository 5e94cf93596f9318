"""Somebody who is measured, in an operating system process of its own. Standard library only: peers import it.

The harness writes one request per line to its standard input, a JSON object {"do": name, …}, and reads one answer per line.
A subject is a class with the primitives it has; the loops, clocks and counters around them are the same for everybody.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from bench.load import SHAPES, Talk, Turn, random_text

KEPT = 100  # latencies of one repeat that are written down
Answer = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where to store: the url of an empty database or the path of a file, and how many connections are allowed."""

    url: str
    pool: int


class Subject:
    """The primitives. What a subject does not have, it does not override."""

    async def open(self, place: Place) -> dict[str, str]:
        """Open the store and make its tables; the versions of what does the work."""
        raise NotImplementedError

    async def close(self) -> None:
        """Let go of everything."""

    async def turn(self, session: str, turn: Turn) -> None:
        """Persist one turn."""
        raise NotImplementedError

    async def deepen(self, session: str, turns: int) -> None:
        """Bring a new session to the depth of so many turns by the fastest way there is."""
        raise NotImplementedError

    async def resume(self, session: str) -> int:
        """Read what is needed to go on; the number of messages."""
        raise NotImplementedError

    async def tail(self, session: str) -> int:
        """Read the last 50 messages; their number."""
        raise NotImplementedError

    async def fork(self, session: str, new: str, turns: int) -> None:
        """A new session with the first turns of another."""
        raise NotImplementedError

    async def add(self, session: str, key: str, text: str) -> bool:
        """One writer of several: look, then persist a turn of one message that names `key`. False: refused."""
        raise NotImplementedError

    async def texts(self, session: str) -> list[str]:
        """Every message of the session."""
        raise NotImplementedError

    async def recent(self) -> int:
        """List the 50 newest sessions; their number."""
        raise NotImplementedError

    async def prune(self, session: str) -> None:
        """Forget the past of a session, keep what it needs to go on."""
        raise NotImplementedError

    async def delete(self, session: str) -> None:
        """Delete a session."""
        raise NotImplementedError

    async def enqueue(self, number: int) -> None:
        """Store one job."""
        raise NotImplementedError

    async def enqueue_many(self, count: int) -> None:
        """Store many jobs in one call."""
        raise NotImplementedError

    async def work(self, done: Callable[[], bool], ran: Callable[[], None], workers: int) -> None:
        """Run jobs one by one, `workers` at a time, until `done`; call `ran` when one starts."""
        raise NotImplementedError

    async def work_many(self, done: Callable[[], bool], ran: Callable[[], None]) -> None:
        """The same, claiming and settling several jobs per call."""
        raise NotImplementedError


class Host:
    """Answers the harness with the primitives of one subject."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._talks: dict[str, Talk] = {}

    async def open(self, *, url: str, pool: int) -> Answer:
        """Open, and say what the subject can do."""
        versions = await self.subject.open(Place(url, pool))
        return {"versions": versions, "can": self._can()}

    def _can(self) -> list[str]:
        own, base = type(self.subject), Subject
        return [name for name in vars(base) if callable(getattr(base, name)) and getattr(own, name) is not getattr(base, name)]

    async def close(self) -> Answer:
        """Close the store; the process ends after it."""
        await self.subject.close()
        return {}

    def _talk(self, session: str, shape: str) -> Talk:
        if session not in self._talks:
            self._talks[session] = Talk(SHAPES[shape])
        return self._talks[session]

    async def turns(self, *, prefix: str, callers: int, shape: str, seconds: float = 0, count: int = 0) -> Answer:
        """Closed loop: each caller persists turn after turn in a session of its own, for a time or for a count of turns."""

        async def one(number: int) -> None:
            await self.subject.turn(f"{prefix}-{number}", self._talk(f"{prefix}-{number}", shape).turn())

        return await closed_loop(one, callers=callers, seconds=seconds, count=count)

    async def grow(self, *, session: str, shape: str, turns: int) -> Answer:
        """One session, turn after turn, until it has had so many."""
        talk = self._talk(session, shape)
        times: list[float] = []
        while talk.number < turns:
            times.append(await timed(self.subject.turn(session, talk.turn())))
        return {"latencies_ms": times}

    async def deepen(self, *, session: str, turns: int, shape: str) -> Answer:
        """A deep session, made quickly."""
        await self.subject.deepen(session, turns)
        self._talks[session] = Talk(SHAPES[shape], number=turns)
        return {}

    async def resume(self, *, session: str, count: int, what: str = "resume") -> Answer:
        """Read a session again and again."""
        messages = 0
        times: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            messages = await getattr(self.subject, what)(session)
            times.append((time.perf_counter() - began) * 1000)
        return {"latencies_ms": times, "messages": messages}

    async def call(self, *, name: str, arguments: list[Any]) -> Answer:
        """One primitive, timed."""
        began = time.perf_counter()
        value = await getattr(self.subject, name)(*arguments)
        return {"ms": (time.perf_counter() - began) * 1000, "value": value}

    async def loop(self, *, name: str, prefix: str, callers: int, seconds: float = 0, count: int = 0) -> Answer:
        """Closed loop over a primitive that takes one name; each caller has its own."""
        one = getattr(self.subject, name)
        return await closed_loop(lambda caller: one(f"{prefix}-{caller}"), callers=callers, seconds=seconds, count=count)

    async def each(self, *, name: str, prefix: str, count: int) -> Answer:
        """A primitive for each of many names, sixteen at a time."""
        one = getattr(self.subject, name)
        numbers = iter(range(count))
        return await closed_loop(lambda _: one(f"{prefix}-{next(numbers)}"), callers=16, count=count)

    async def each_number(self, *, name: str, count: int) -> Answer:
        """A primitive that takes a number, one call after the other."""
        one = getattr(self.subject, name)
        numbers = iter(range(count))
        return await closed_loop(lambda _: one(next(numbers)), callers=1, count=count)

    async def times(self, *, name: str, count: int, settle: str = "") -> Answer:
        """A primitive without arguments, again and again; another one after each, untimed."""
        taken: list[float] = []
        for _ in range(count):
            taken.append(await timed(getattr(self.subject, name)()))
            if settle:
                await getattr(self.subject, settle)()
        return {"latencies_ms": taken}

    async def race(self, *, session: str, writers: int, turns: int) -> Answer:
        """Writers on one session, each repeating a refused turn until it is taken. What was acknowledged, and what is there."""
        refused = 0

        async def write(writer: int) -> None:
            nonlocal refused
            for number in range(turns):
                key = f"key-{writer}-{number};"
                while not await self._taken(session, key):
                    refused += 1
                    await asyncio.sleep(0)

        began = time.perf_counter()
        await asyncio.gather(*(write(writer) for writer in range(writers)))
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "refused": refused, **counted(await self.subject.texts(session), writers, turns)}

    async def _taken(self, session: str, key: str) -> bool:
        return await self.subject.add(session, key, key + random_text(400))

    async def jobs(self, *, count: int, callers: int, batched: bool = False) -> Answer:
        """Store jobs one per call, then run them all; both timed."""
        began = time.perf_counter()
        if batched:
            await self.subject.enqueue_many(count)
        else:
            numbers = itertools.count()
            await closed_loop(lambda _: self.subject.enqueue(next(numbers)), callers=callers, count=count)
        stored = time.perf_counter()
        ran = 0

        def one() -> None:
            nonlocal ran
            ran += 1

        work = (
            self.subject.work_many(lambda: ran >= count, one)
            if batched
            else self.subject.work(lambda: ran >= count, one, callers)
        )
        await work
        ended = time.perf_counter()
        return {"enqueue_s": stored - began, "work_s": ended - stored, "ran": ran}

    async def wakes(self, *, count: int, rest_s: float) -> Answer:
        """An idle worker; from the call that stores a job to the start of its run."""
        times: list[float] = []
        woken = asyncio.Event()
        began = 0.0
        over = False

        def ran() -> None:
            times.append((time.perf_counter() - began) * 1000)
            woken.set()

        worker = asyncio.ensure_future(self.subject.work(lambda: over, ran, 1))
        await asyncio.sleep(2.0)  # until the worker is at rest; peers start up slowly
        for number in range(count):
            woken.clear()
            began = time.perf_counter()
            await self.subject.enqueue(number)
            await asyncio.wait_for(woken.wait(), 30)
            await asyncio.sleep(rest_s)
        over = True
        await asyncio.wait_for(worker, 30)
        return {"latencies_ms": times}

    async def idle(self, *, seconds: float) -> Answer:
        """A worker that has nothing to do, for a time."""
        until = time.monotonic() + seconds
        worker = asyncio.ensure_future(self.subject.work(lambda: time.monotonic() > until, lambda: None, 1))
        await asyncio.sleep(seconds)
        await self.subject.enqueue(0)
        await asyncio.wait_for(worker, 60)
        return {}


def counted(texts: list[str], writers: int, turns: int) -> Answer:
    """How many of the turns that were acknowledged are there not at all, and how many more than once."""
    seen = [text.split(";")[0] + ";" for text in texts if text.startswith("key-")]
    wanted = {f"key-{writer}-{number};" for writer in range(writers) for number in range(turns)}
    return {"accepted": len(wanted), "lost": len(wanted - set(seen)), "doubled": len(seen) - len(set(seen))}


async def timed(work: Awaitable[object]) -> float:
    """How long it took, in milliseconds."""
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1000


async def closed_loop(one: Callable[[int], Awaitable[object]], *, callers: int, seconds: float = 0, count: int = 0) -> Answer:
    """`callers` tasks call `one` again and again, each as soon as its last call returned: for a time, or `count` in all."""
    times: list[float] = []
    began = time.perf_counter()

    async def caller(number: int) -> None:
        left = count // callers + (number < count % callers)
        while left > 0 if count else time.perf_counter() - began < seconds:
            left -= 1
            times.append(await timed(one(number)))

    await asyncio.gather(*(caller(number) for number in range(callers)))
    seconds = time.perf_counter() - began
    return {"count": len(times), "seconds": seconds, "max_ms": max(times), "latencies_ms": thinned(times)} | quantiles(times)


def quantiles(times: list[float]) -> dict[str, float]:
    """p50 and p95 by nearest rank."""
    ordered = sorted(times)
    return {f"p{percent}_ms": ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] for percent in (50, 95)}


def thinned(times: list[float]) -> list[float]:
    """At most KEPT of the latencies, evenly over their order in time."""
    step = max(1, len(times) // KEPT)
    return [round(value, 3) for value in times[::step][:KEPT]]


def serve(subject: Subject) -> NoReturn:
    """The life of a subject: answer until standard input ends."""
    asyncio.run(_serve(Host(subject)))
    sys.stdout.flush()
    sys.exit(0)


async def _serve(host: Host) -> None:
    out = sys.stdout
    sys.stdout = sys.stderr  # a library that prints must not speak for us
    while line := await asyncio.to_thread(sys.stdin.readline):
        answer = await _answer(host, json.loads(line))
        out.write(json.dumps(answer) + "\n")
        out.flush()


async def _answer(host: Host, request: dict[str, Any]) -> Answer:
    verb = getattr(host, request.pop("do"))
    try:
        return {"ok": await verb(**request)}
    except NotImplementedError:
        return {"absent": "it has no such operation"}
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is reported, not lost
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
