"""Several operations, and the application's own SQL, in one transaction."""

from __future__ import annotations

from typing import Any

from lash_store.store.artifacts import AsyncArtifacts
from lash_store.store.attachments import AsyncAttachments
from lash_store.store.handle import AsyncSessionHandle
from lash_store.store.processes import AsyncProcesses
from lash_store.store.queue import AsyncQueue
from lash_store.store.runtime import AsyncTransactionRuntime
from lash_store.store.sessions import AsyncSessions
from lash_store.store.triggers import AsyncTriggers


class AsyncTransaction:
    """The store's nouns inside one open transaction. A refusal leaves it usable; leaving the block commits."""

    def __init__(self, runtime: AsyncTransactionRuntime) -> None:
        self._runtime = runtime
        self.sessions = AsyncSessions(runtime)
        self.queue = AsyncQueue(runtime)
        self.attachments = AsyncAttachments(runtime)
        self.processes = AsyncProcesses(runtime)
        self.triggers = AsyncTriggers(runtime)
        self.artifacts = AsyncArtifacts(runtime)

    def session(self, session_id: str) -> AsyncSessionHandle:
        """A handle bound to one session, inside this transaction."""
        return AsyncSessionHandle(self._runtime, session_id)

    async def execute(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """Run the application's own SQL: `?` parameters on SQLite, `$1` on PostgreSQL. A failed statement is undone alone."""
        return await self._runtime.execute(sql, *params)
