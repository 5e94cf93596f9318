"""What every workload stands on: the server, the members, their processes, the effort, and where figures are noted."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.child import Absent, Child, Failed, Member
from bench.results import Results
from bench.server import Server
from bench.subject import Answer

POOL = 16
POSTGRES, SQLITE = "PostgreSQL", "SQLite"
OURS = Member("lash-store", POSTGRES, "bench.ours", "own")
OURS_RELAXED = Member("lash-store relaxed", SQLITE, "bench.ours", "own", arguments=("relaxed",))
OURS_SQLITE = Member("lash-store", SQLITE, "bench.ours", "own")
PORT = Member("straight port", POSTGRES, "bench.port.port", "port")
READY = Member("floor: ready arguments", POSTGRES, "bench.floors.ready", "floor")
RAW = Member("floor: raw apsw", SQLITE, "bench.floors.raw_sqlite", "floor")
SCAN = Member("floor: same scan", POSTGRES, "bench.floors.scan", "floor")
PGBENCH = "floor: pgbench"

Take = Callable[..., Awaitable[Answer]]


@dataclass(frozen=True)
class Effort:
    """How long and how often."""

    quick: bool = False
    repeats: int = 3
    seconds: float = 1.2
    warm_up_s: float = 0.4

    def pick(self, full: int, quick: int) -> int:
        """A number that is smaller in a quick run."""
        return quick if self.quick else full


@dataclass
class Stage:
    """One run."""

    server: Server
    folder: Path
    effort: Effort
    results: Results
    members: list[Member] = field(default_factory=list[Member])

    def peers(self, role: str, engine: str) -> list[Member]:
        """The peers that can be had; a quick run leaves one variant of LangGraph out."""
        found = [member for member in self.members if member.role == role and member.engine == engine]
        return [member for member in found if not (self.effort.quick and member.name.endswith("exit"))]

    async def place(self, engine: str) -> str:
        """A new database."""
        if engine == POSTGRES:
            return await self.server.fresh()
        return str(Path(tempfile.mkdtemp(dir=self.folder)) / "bench.db")

    @asynccontextmanager
    async def child(self, member: Member, place: str | None = None) -> AsyncGenerator[Child]:
        """A running subject, at a new place unless one is given."""
        where = place or await self.place(member.engine)
        child = await Child.start(member, where, POOL)
        self.results.surroundings.setdefault("versions", {}).update(child.versions)
        try:
            yield child
        finally:
            await child.close()
            if place is None and member.engine == POSTGRES:
                await self.server.drop(where)

    @asynccontextmanager
    async def children(self, members: list[Member]) -> AsyncGenerator[list[Child]]:
        """Several, each at a place of its own; one that does not start is noted as absent."""
        async with AsyncExitStack() as stack:
            started: list[Child] = []
            for member in members:
                try:
                    started.append(await stack.enter_async_context(self.child(member)))
                except (Absent, Failed) as error:
                    self.absent(member.name, error)
            yield started

    def absent(self, name: str, error: Exception) -> None:
        """Note who could not take part, and why."""
        self.results.absent[name] = str(error).splitlines()[0][:300]
        self.say(f"  absent: {name}: {error}")

    def say(self, text: str) -> None:
        """Tell whoever waits."""
        print(text, file=sys.stderr, flush=True)

    async def interleave(
        self, workload: str, engine: str, case: str, takes: dict[str, Take], *, unit: str, warm: bool = True
    ) -> None:
        """Everybody once to warm up, then everybody once per repeat, in turns."""
        present = dict(takes)
        for repeat in range(-1 if warm else 0, self.effort.repeats):
            for name in list(present):
                shorter = {"seconds": self.effort.warm_up_s} if repeat < 0 and is_timed(present[name]) else {}
                try:
                    answer = await present[name](**shorter)
                except (Absent, Failed) as error:
                    self.absent(f"{name}, {workload} {case}", error)
                    del present[name]
                    continue
                if repeat >= 0:
                    self.note_loop(workload, name, engine, case, answer, unit)

    def note_loop(self, workload: str, name: str, engine: str, case: str, answer: Answer, unit: str) -> None:
        """The figures of a closed loop."""
        rate = answer["count"] / answer["seconds"]
        self.results.note(workload, name, engine, case, f"{unit}/s", rate)
        self.results.note(workload, name, engine, case, "p50 ms", answer["p50_ms"], answer["latencies_ms"])
        self.results.note(workload, name, engine, case, "p95 ms", answer["p95_ms"])
        self.say(f"  {engine} {case}: {name}: {rate:.0f} {unit}/s, p50 {answer['p50_ms']:.2f} ms")


def is_timed(take: Take) -> bool:
    """Whether it runs for a time, which can be shorter, and not for a count."""
    return isinstance(take, partial) and "seconds" in take.keywords
