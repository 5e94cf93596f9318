"""DBOS: one workflow without steps, enqueued on a queue whose dispatcher runs in the same process."""

# It runs in an environment of its own, so that ours knows none of its packages.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from bench.load import random_text
from bench.subject import Place, Subject, serve

NAME = "DBOS"
REQUIREMENTS = ("dbos",)
VARIANTS = {"DBOS": {"engine": "PostgreSQL", "arguments": [], "role": "jobs"}}
SEMANTICS = {
    "stores": "workflows and the results of their steps; finished ones stay",
    "atomic": "each step",
    "compare_and_set": "one executor per workflow",
    "idempotent": "workflow ids",
}

RAN: list[Callable[[], None]] = []


class DBOSPeer(Subject):
    """Its default polling; the dispatcher runs from launch to the end."""

    async def open(self, place: Place) -> dict[str, str]:
        """Launch it on an empty database."""
        from dbos import DBOS

        DBOS(
            config={
                "name": "bench",
                "system_database_url": place.url,
                "sys_db_pool_size": place.pool,
                "run_admin_server": False,
                "log_level": "ERROR",
            }
        )

        @DBOS.workflow(name="job")
        async def job(text: str) -> None:
            if RAN:
                RAN[-1]()
            else:
                self._early += 1

        self._job = job
        self._early = 0  # jobs that ran before anybody asked for it
        self._dbos = DBOS
        DBOS.launch()
        self._queue: Any = await asyncio.to_thread(DBOS.register_queue, "jobs")
        return {"dbos": version("dbos")}

    async def enqueue(self, number: int) -> None:
        """Enqueue one workflow."""
        await self._queue.enqueue_async(self._job, random_text(400))

    async def work(self, done: Callable[[], bool], ran: Callable[[], None], workers: int) -> None:
        """It works by itself; wait until it has."""
        loop = asyncio.get_running_loop()
        early, self._early = self._early, 0
        for _ in range(early):
            ran()
        RAN.append(lambda: loop.call_soon_threadsafe(ran) and None)
        while not done():
            await asyncio.sleep(0.002)
        RAN.pop()

    async def close(self) -> None:
        """Stop it."""
        await asyncio.to_thread(self._dbos.destroy)


if __name__ == "__main__":
    serve(DBOSPeer())
