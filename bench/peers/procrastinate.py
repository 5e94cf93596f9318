"""Procrastinate: one task, deferred and run by a worker in the same process."""

# It runs in an environment of its own, so that ours knows none of its packages.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from bench.load import random_text
from bench.subject import Place, Subject, serve

NAME = "Procrastinate"
REQUIREMENTS = ("procrastinate", "psycopg[binary,pool]")
VARIANTS = {"Procrastinate": {"engine": "PostgreSQL", "arguments": [], "role": "jobs"}}
SEMANTICS = {
    "stores": "jobs; finished ones stay",
    "atomic": "each step of a job's life",
    "compare_and_set": "a job is run by one worker; stalled ones are found by heartbeat",
    "idempotent": "queueing_lock per waiting job",
}


class Procrastinate(Subject):
    """Its own connector over psycopg."""

    async def open(self, place: Place) -> dict[str, str]:
        """The app with its tables."""
        import procrastinate

        connector = procrastinate.PsycopgConnector(conninfo=place.url, min_size=place.pool, max_size=place.pool)
        self._app: Any = procrastinate.App(connector=connector)
        self._ran: Callable[[], None] = lambda: None

        @self._app.task(name="job")
        async def job(text: str) -> None:
            self._ran()

        self._task = job
        await self._app.open_async()
        await self._app.schema_manager.apply_schema_async()
        return {name: version(name) for name in ("procrastinate", "psycopg")}

    async def enqueue(self, number: int) -> None:
        """Defer one job."""
        await self._task.defer_async(text=random_text(400))

    async def enqueue_many(self, count: int) -> None:
        """Defer many in one call."""
        await self._task.batch_defer_async(*({"text": random_text(400)} for _ in range(count)))

    async def work(self, done: Callable[[], bool], ran: Callable[[], None], workers: int) -> None:
        """A worker with that concurrency."""
        self._ran = ran
        worker = asyncio.ensure_future(self._app.run_worker_async(concurrency=workers, wait=True, install_signal_handlers=False))
        while not done() and not worker.done():
            await asyncio.sleep(0.002)
        if worker.done():
            worker.result()
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

    async def close(self) -> None:
        """Close the connector."""
        await self._app.close_async()


if __name__ == "__main__":
    serve(Procrastinate())
