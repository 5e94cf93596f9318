"""The store: open it, and reach everything by its noun."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from lash_store.db.driver import StatementEvent as StatementEvent
from lash_store.db.driver import StatementHook
from lash_store.model.limits import DEFAULT_LIMITS, SETTLED_KEY_RETENTION_MS, Limits
from lash_store.ops.watch import PROBES
from lash_store.store.artifacts import AsyncArtifacts
from lash_store.store.attachments import AsyncAttachments
from lash_store.store.handle import AsyncSessionHandle
from lash_store.store.maintenance import AsyncMaintenance
from lash_store.store.opening import open_async_runtime
from lash_store.store.options import Durability, Options
from lash_store.store.processes import AsyncProcesses
from lash_store.store.queue import AsyncQueue
from lash_store.store.runtime import AsyncRuntime
from lash_store.store.sessions import AsyncSessions
from lash_store.store.transaction import AsyncTransaction
from lash_store.store.transfer import AsyncTransfer
from lash_store.store.triggers import AsyncTriggers
from lash_store.store.url import DEFAULT_SCHEMA


class AsyncStore:
    """The durable state of agents: sessions, their inboxes, checkpoints and attachments, in one database."""

    def __init__(self, runtime: AsyncRuntime) -> None:
        self._runtime = runtime
        self.sessions = AsyncSessions(runtime)
        self.queue = AsyncQueue(runtime)
        self.attachments = AsyncAttachments(runtime)
        self.processes = AsyncProcesses(runtime)
        self.triggers = AsyncTriggers(runtime)
        self.artifacts = AsyncArtifacts(runtime)
        self.maintenance = AsyncMaintenance(runtime)
        self.transfer = AsyncTransfer(runtime)

    # <async>
    @staticmethod
    def open(
        url: str | os.PathLike[str] | None = None,
        *,
        schema: str = DEFAULT_SCHEMA,
        migrate: bool = True,
        durability: Durability = "full",
        blobs: Any = None,
        on_statement: StatementHook | None = None,
        limits: Limits = DEFAULT_LIMITS,
        pool: Any = None,
        pool_size: int = 16,
        acquire_ms: int = 30_000,
        lock_ms: int = 10_000,
        statement_ms: int = 30_000,
        pooler: bool = False,
        listen_url: str | None = None,
        settled_key_retention_ms: int = SETTLED_KEY_RETENTION_MS,
        read_only: bool = False,
    ) -> Opening:
        """Open a path, `sqlite:///…`, `sqlite://:memory:` or `postgresql://…`: await it, or enter it with `async with`.

        `read_only`: nothing is created, migrated or written, a SQLite file keeps its bytes, and every write is Misuse.
        """
        return Opening(
            Options(
                url=url,
                schema=schema,
                migrate=migrate,
                durability=durability,
                blobs=blobs,
                on_statement=on_statement,
                limits=limits,
                pool=pool,
                pool_size=pool_size,
                acquire_ms=acquire_ms,
                lock_ms=lock_ms,
                statement_ms=statement_ms,
                pooler=pooler,
                listen_url=listen_url,
                settled_key_retention_ms=settled_key_retention_ms,
                read_only=read_only,
            )
        )

    # </async>
    # <sync>
    # @classmethod
    # def open(
    #     cls,
    #     url: str | os.PathLike[str] | None = None,
    #     *,
    #     schema: str = DEFAULT_SCHEMA,
    #     migrate: bool = True,
    #     durability: Durability = "full",
    #     blobs: Any = None,
    #     on_statement: StatementHook | None = None,
    #     limits: Limits = DEFAULT_LIMITS,
    #     pool_size: int = 16,
    #     acquire_ms: int = 30_000,
    #     lock_ms: int = 10_000,
    #     statement_ms: int = 30_000,
    #     pooler: bool = False,
    #     listen_url: str | None = None,
    #     settled_key_retention_ms: int = SETTLED_KEY_RETENTION_MS,
    #     in_loop: bool = False,
    #     read_only: bool = False,
    # ) -> Self:
    #     """Open a path, `sqlite:///…`, `sqlite://:memory:` or `postgresql://…`. `in_loop`: block here, as notebooks do.
    #
    #     `read_only`: nothing is created, migrated or written, a SQLite file keeps its bytes, and every write is Misuse.
    #     """
    #     options = Options(
    #         url=url,
    #         schema=schema,
    #         migrate=migrate,
    #         durability=durability,
    #         blobs=blobs,
    #         on_statement=on_statement,
    #         limits=limits,
    #         pool_size=pool_size,
    #         acquire_ms=acquire_ms,
    #         lock_ms=lock_ms,
    #         statement_ms=statement_ms,
    #         pooler=pooler,
    #         listen_url=listen_url,
    #         settled_key_retention_ms=settled_key_retention_ms,
    #         in_loop=in_loop,
    #         read_only=read_only,
    #     )
    #     return cls(open_sync_runtime(options, PROBES))
    # </sync>

    @property
    def engine(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._runtime.engine

    def session(self, session_id: str) -> AsyncSessionHandle:
        """A handle bound to one session. It remembers the incarnation it first meets."""
        return AsyncSessionHandle(self._runtime, session_id)

    @asynccontextmanager
    async def transaction(self, *, max_ms: int = 5_000, connection: Any = None) -> AsyncGenerator[AsyncTransaction]:
        """Several operations and the application's SQL, all or nothing. `connection`: the caller's asyncpg connection."""
        async with self._runtime.transaction(max_ms=max_ms, connection=connection) as runtime:
            yield AsyncTransaction(runtime)

    async def close(self) -> None:
        """Finish what was begun and let go of everything. Idempotent."""
        await self._runtime.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


# <async>
class Opening:
    """A store about to be opened: await it for the store, or enter it to have it closed at the end."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._store: AsyncStore | None = None

    async def _open(self) -> AsyncStore:
        return AsyncStore(await open_async_runtime(self._options, PROBES))

    def __await__(self) -> Any:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._store is not None:
            await self._store.close()


# </async>
