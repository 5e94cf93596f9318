"""PgQueuer: one entrypoint, run by a queue manager in the same process."""

# It runs in an environment of its own, so that ours knows none of its packages.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from bench.load import random_text
from bench.subject import Place, Subject, serve

NAME = "PgQueuer"
REQUIREMENTS = ("pgqueuer", "asyncpg")
VARIANTS = {"PgQueuer": {"engine": "PostgreSQL", "arguments": [], "role": "jobs"}}
SEMANTICS = {
    "stores": "jobs; finished ones become a log",
    "atomic": "claims by batch; the ends of jobs are buffered and written together, after the jobs ran",
    "compare_and_set": "a picked job is retried when its heartbeat stops; no fence",
    "idempotent": "dedupe_key per waiting job",
}


class PgQueuer(Subject):
    """Over an asyncpg pool."""

    async def open(self, place: Place) -> dict[str, str]:
        """Install its tables."""
        import asyncpg
        from pgqueuer.db import AsyncpgPoolDriver
        from pgqueuer.queries import Queries

        self._pool: Any = await asyncpg.create_pool(place.url, min_size=place.pool, max_size=place.pool)
        self._driver = AsyncpgPoolDriver(self._pool)
        self._queries = Queries(self._driver)
        await self._queries.install()
        return {name: version(name) for name in ("pgqueuer", "asyncpg")}

    async def enqueue(self, number: int) -> None:
        """Store one job."""
        await self._queries.enqueue("job", random_text(400).encode(), 0)

    async def enqueue_many(self, count: int) -> None:
        """Store many in one call."""
        await self._queries.enqueue(["job"] * count, [random_text(400).encode() for _ in range(count)], [0] * count)

    async def work(self, done: Callable[[], bool], ran: Callable[[], None], workers: int) -> None:
        """One job per claim: what is called batched elsewhere is in `work_many`."""
        await self._run(done, ran, 1)

    async def work_many(self, done: Callable[[], bool], ran: Callable[[], None]) -> None:
        """A hundred jobs per claim."""
        await self._run(done, ran, 100)

    async def _run(self, done: Callable[[], bool], ran: Callable[[], None], batch: int) -> None:
        from pgqueuer.qm import QueueManager

        manager = QueueManager(self._queries)

        @manager.entrypoint("job")
        async def job(job: Any) -> None:
            ran()

        running = asyncio.ensure_future(manager.run(batch_size=batch))
        while not done() and not running.done():
            await asyncio.sleep(0.002)
        manager.shutdown.set()
        await running

    async def close(self) -> None:
        """Close the pool."""
        await self._pool.close()


if __name__ == "__main__":
    serve(PgQueuer())
