"""Absurd: one task without steps, spawned and run by a worker in the same process."""

# It runs in an environment of its own, so that ours knows none of its packages.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from bench.load import random_text
from bench.subject import Place, Subject, serve

NAME = "Absurd"
REQUIREMENTS = ("absurd-sdk", "absurdctl", "psycopg[binary]")
VARIANTS = {"Absurd": {"engine": "PostgreSQL", "arguments": [], "role": "jobs"}}
SEMANTICS = {
    "stores": "tasks, runs and checkpoints of steps; finished ones stay",
    "atomic": "each step of a task's life",
    "compare_and_set": "a run belongs to one claim until its timeout",
    "idempotent": "idempotency_key per task",
}


class Absurd(Subject):
    """A client has one connection, so there are as many clients as the pool is large."""

    async def open(self, place: Place) -> dict[str, str]:
        """Its schema, a queue, and the clients."""
        import psycopg
        from absurd_sdk import AsyncAbsurd
        from absurdctl import BUNDLED_SCHEMA_SQL

        async with await psycopg.AsyncConnection.connect(place.url, autocommit=True) as connection:
            await connection.execute(BUNDLED_SCHEMA_SQL)
        self._ran: Callable[[], None] = lambda: None
        self._clients = [AsyncAbsurd(place.url) for _ in range(place.pool)]
        await self._clients[0].create_queue("default")
        for client in self._clients:
            client.register_task("job")(self._job)
        self._free: asyncio.LifoQueue[Any] = asyncio.LifoQueue()
        for client in self._clients[1:]:
            self._free.put_nowait(client)
        return {name: version(name) for name in ("absurd-sdk", "psycopg")}

    async def _job(self, params: Any, context: Any) -> None:
        self._ran()

    async def enqueue(self, number: int) -> None:
        """Spawn one task on a client nobody uses now."""
        client = await self._free.get()
        try:
            await client.spawn("job", {"text": random_text(400)})
        finally:
            self._free.put_nowait(client)

    async def work(self, done: Callable[[], bool], ran: Callable[[], None], workers: int) -> None:
        """As many workers as asked for, each on a connection of its own, one task per claim."""
        self._ran = ran
        clients = self._clients[: min(workers, len(self._clients))]
        running = [asyncio.ensure_future(client.start_worker(concurrency=1)) for client in clients]
        while not done():
            await asyncio.sleep(0.002)
        for client in clients:
            client.stop_worker()
        await asyncio.gather(*running)

    async def close(self) -> None:
        """Close the clients."""
        for client in self._clients:
            await client.close()


if __name__ == "__main__":
    serve(Absurd())
