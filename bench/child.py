"""The harness's side of a subject: start it, ask it, end it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.subject import Answer

PROJECT = Path(__file__).resolve().parent.parent
LINE_MAX = 1 << 24
PATIENCE_S = 180.0


class Absent(Exception):
    """The subject has no such operation, or cannot be had."""


class Failed(Exception):
    """The subject raised."""


@dataclass(frozen=True)
class Member:
    """One who is measured: a name, the engine, and how its process is started."""

    name: str
    engine: str
    module: str
    role: str
    python: str = sys.executable
    arguments: tuple[str, ...] = ()
    semantics: dict[str, str] = field(default_factory=dict[str, str])


class Child:
    """A running subject."""

    def __init__(self, member: Member, process: asyncio.subprocess.Process, place: str) -> None:
        self.member = member
        self.place = place
        self._process = process
        self.versions: dict[str, str] = {}
        self.can: frozenset[str] = frozenset()

    @classmethod
    async def start(cls, member: Member, place: str, pool: int) -> Child:
        """Start the process and open its store at a url or path."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        process = await asyncio.create_subprocess_exec(
            member.python,
            "-m",
            member.module,
            *member.arguments,
            cwd=PROJECT,
            env=environment | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(PROJECT)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL if not os.environ.get("LASH_STORE_BENCH_NOISE") else None,
            limit=LINE_MAX,
        )
        child = cls(member, process, place)
        try:
            opened = await child.ask("open", url=place, pool=pool)
        except BaseException:
            await child.kill()
            raise
        child.versions, child.can = opened["versions"], frozenset(opened["can"])
        return child

    async def ask(self, do: str, **arguments: Any) -> Answer:
        """One request. Absent and Failed say what went wrong, and the subject can be asked again."""
        if self._process.returncode is not None:
            raise Failed(f"{self.member.name} ended with code {self._process.returncode}")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        await self._process.stdin.drain()
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_S)
        except TimeoutError:
            await self.kill()
            raise Failed(f"{self.member.name}, {do}: no answer within {PATIENCE_S:.0f} s") from None
        if not line:
            raise Failed(f"{self.member.name} ended with code {await self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "absent" in answer:
            raise Absent(answer["absent"])
        if "error" in answer:
            raise Failed(f"{self.member.name}, {do}: {answer['error']}\n{answer['trace']}")
        return answer["ok"]

    async def call(self, name: str, *arguments: Any) -> Answer:
        """One primitive."""
        return await self.ask("call", name=name, arguments=list(arguments))

    async def close(self) -> None:
        """Let it end; a process that does not is killed."""
        try:
            await asyncio.wait_for(self.ask("close"), 30)
            assert self._process.stdin is not None
            self._process.stdin.close()
            await asyncio.wait_for(self._process.wait(), 15)
        except (TimeoutError, Failed, OSError):
            await self.kill()

    async def kill(self) -> None:
        """End it now."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class Proxy:
    """A wire proxy in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.port = port

    @classmethod
    async def start(cls, host: str, port: int) -> Proxy:
        """A wire to that server."""
        command = [sys.executable, "-m", "bench.proxy", host, str(port)]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=PROJECT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        return cls(process, int(await process.stdout.readline()))

    async def counters(self, delay_ms: float | None = None) -> dict[str, int]:
        """Round trips and bytes so far; the delay from now on."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n" if delay_ms is None else f"{delay_ms}\n".encode())
        await self._process.stdin.drain()
        return json.loads(await self._process.stdout.readline())

    async def close(self) -> None:
        """End it."""
        self._process.kill()
        await self._process.wait()
