"""Reads a sample of everything the way applications do, so that each digest in it is compared."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from lash_store.errors import Corrupt, NotFound, SessionDeleted
from lash_store.model.artifact import Namespace
from lash_store.model.graph import active_path
from lash_store.model.maintenance import Finding, Severity
from lash_store.ops import sample
from lash_store.store.artifacts import AsyncArtifacts
from lash_store.store.processes import AsyncProcesses
from lash_store.store.queue import AsyncQueue
from lash_store.store.runtime import AsyncRuntime
from lash_store.store.sessions import AsyncSessions

ROWS = 50  # nodes, batches or events that are read of each
GONE = (NotFound, SessionDeleted)  # somebody deleted it meanwhile: that is no damage


class AsyncSample:
    """What was verified so far, and what was found damaged."""

    def __init__(self, runtime: AsyncRuntime) -> None:
        self.verified: dict[str, int] = {}
        self.findings: list[Finding] = []
        self._runtime = runtime
        self._sessions = AsyncSessions(runtime)
        self._queue = AsyncQueue(runtime)
        self._processes = AsyncProcesses(runtime)
        self._artifacts = AsyncArtifacts(runtime)

    async def take(self, count: int) -> None:
        """Verify `count` sessions and as many processes: half of them the newest, half from a moment chosen by chance."""
        share = random.random()
        for session_id in await self._runtime.read(sample.session_ids, count, share):
            await self._session(session_id)
        for process_id in await self._runtime.read(sample.process_ids, count, share):
            await self._process(process_id)
        for namespace in Namespace:
            await self._artifact(namespace, count)

    async def _session(self, session_id: str) -> None:
        try:
            loaded = await self._sessions.load(session_id, active_path(last=ROWS))
            self._count("sessions", [loaded])
            self._count("nodes", loaded.nodes)
            self._count("components", list(loaded.checkpoint))
            self._count("batches", (await self._queue.list(session_id, limit=ROWS)).batches)
        except Corrupt as error:
            self._damaged(error)
        except GONE:
            return

    async def _process(self, process_id: str) -> None:
        try:
            self._count("processes", [await self._processes.get(process_id)])
            self._count("events", (await self._processes.events(process_id, limit=ROWS)).events)
        except Corrupt as error:
            self._damaged(error)
        except GONE:
            return

    async def _artifact(self, namespace: Namespace, count: int) -> None:
        if not count:
            return
        for entry in (await self._artifacts.list(namespace, limit=count)).entries:
            try:
                await self._artifacts.get(namespace, entry.ref.ref)
                self._count("artifacts", [entry])
            except Corrupt as error:
                self._damaged(error)
            except GONE:
                continue

    def _count(self, what: str, rows: Sequence[Any]) -> None:
        self.verified[what] = self.verified.get(what, 0) + len(rows)

    def _damaged(self, error: Corrupt) -> None:
        self.findings.append(
            Finding(
                severity=Severity.PROBLEM,
                what=f"{error.table} row {error.row} does not match its digest",
                advice="Restore it from a backup, or delete what it belongs to. Check the disk, and verify more with --sample.",
            )
        )
