"""The floor of the library's own statements: asyncpg sends what the library sends, with arguments that are ready.

Real commits are made once while their statements and arguments are written down; then the same calls are made on a second, empty
schema, where they have the same effect. What is missing is everything the library does around them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import asyncpg

from bench.load import SHAPES, Talk, Turn
from bench.ours import Ours
from bench.subject import Place, Subject, serve

RECORDED, REPLAYED = "bench_recorded", "bench_replayed"
Call = tuple[str, str, tuple[Any, ...]]
METHODS = ("fetch", "execute")


# Each caller has a list of its own: a commit runs in the task that asked for it.
INTO: ContextVar[list[Call] | None] = ContextVar("INTO", default=None)


class Recorder:
    """Writes down what is asked of any connection in a context that has a list for it."""

    def __init__(self) -> None:
        for method in METHODS:
            self._wrap(method)

    def _wrap(self, method: str) -> None:
        original: Callable[..., Awaitable[Any]] = getattr(asyncpg.Connection, method)

        async def recorded(connection: Any, query: str, *args: Any, **options: Any) -> Any:
            into = INTO.get()
            if into is not None and not query.startswith("NOTIFY"):
                into.append((method, query, args))
            return await original(connection, query, *args, **options)

        setattr(asyncpg.Connection, method, recorded)


class Ready(Subject):
    """Replays commits."""

    def __init__(self) -> None:
        Recorder()
        self._calls: dict[str, deque[list[Call]]] = {}

    async def open(self, place: Place) -> dict[str, str]:
        """Two schemas of the library, and connections of our own to the second."""
        self._ours = Ours(schema=RECORDED)
        versions = await self._ours.open(place)
        second = Ours(schema=REPLAYED)
        await second.open(place)
        await second.close()
        self._slots = asyncio.Semaphore(place.pool)  # fair: who asked first is first
        self._idle = [await asyncpg.connect(place.url, statement_cache_size=512) for _ in range(place.pool)]
        return {"asyncpg": versions["asyncpg"]}

    async def prepare(self, prefix: str, callers: int, turns: int, shape: str) -> None:
        """Make the commits of every caller's session once, and write them down."""
        await asyncio.gather(*(self._record(f"{prefix}-{number}", turns, shape) for number in range(callers)))
        await self._first(prefix, callers)

    async def _record(self, session: str, turns: int, shape: str) -> None:
        talk = Talk(SHAPES[shape])
        self._calls[session] = deque()
        for _ in range(turns):
            calls: list[Call] = []
            INTO.set(calls)
            await self._ours.turn(session, talk.turn())
            INTO.set(None)
            self._calls[session].append([(method, query.replace(RECORDED, REPLAYED), args) for method, query, args in calls])

    async def _first(self, prefix: str, callers: int) -> None:
        # The first commit of a session creates it; the measured ones find it there.
        for number in range(callers):
            await self.turn(f"{prefix}-{number}", Turn(0, "", (), ""))

    async def turn(self, session: str, turn: Turn) -> None:
        """The calls of the session's next commit."""
        async with self._slots:
            connection = self._idle.pop()
            for method, query, args in self._calls[session].popleft():
                await getattr(connection, method)(query, *args)
            self._idle.append(connection)

    async def close(self) -> None:
        """Close both."""
        for connection in self._idle:
            await connection.close()
        await self._ours.close()


if __name__ == "__main__":
    serve(Ready())
