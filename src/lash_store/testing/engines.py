"""The two shipped engines as backends, each with the async store or the sync one behind the same shape."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lash_store.testing import sync_adapter

if TYPE_CHECKING:
    from lash_store import AsyncStore


class SqliteBackend:
    """A SQLite file. `sync` puts the sync store behind the async shape."""

    engine = "sqlite"

    def __init__(self, path: Path, *, sync: bool = False) -> None:
        self._path = path
        self._sync = sync
        self._offset_ms = 0
        self._opened: list[Any] = []

    async def open(self, **options: Any) -> AsyncStore:
        """A new handle on the file, at the shifted clock."""
        store = await _open(str(self._path), sync=self._sync, options=options)
        _driver(store).clock_offset_ms = self._offset_ms
        self._opened.append(store)
        return store

    async def advance(self, ms: int) -> None:
        """Shift the clock of every handle, and of those to come."""
        self._offset_ms += ms
        for store in self._opened:
            _driver(store).clock_offset_ms = self._offset_ms

    async def raw(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """Through a connection of its own, of the same SQLite library: another library would drop the store's locks."""
        return await asyncio.to_thread(self._raw, sql, params)

    def _raw(self, sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        import apsw

        connection = apsw.Connection(str(self._path))
        try:
            connection.set_busy_timeout(10_000)
            return [tuple(row) for row in connection.execute(sql, params)]
        finally:
            connection.close()

    def table(self, name: str) -> str:
        """Prefixed, because a SQLite file has no schemas."""
        return f"lash_{name}"

    async def close(self) -> None:
        """Close every handle."""
        while self._opened:
            await self._opened.pop().close()


class PostgresBackend:
    """A schema of a PostgreSQL database; the caller creates the name and drops the schema afterwards."""

    engine = "postgresql"

    def __init__(self, url: str, *, schema: str, sync: bool = False, pool_size: int = 4) -> None:
        self._url = url
        self._schema = schema
        self._sync = sync
        self._pool_size = pool_size
        self._offset_ms = 0
        self._opened: list[Any] = []
        self._control: Any = None
        self._connection: Any = None
        self._raw_lock = asyncio.Lock()

    async def open(self, **options: Any) -> AsyncStore:
        """A new handle with a pool of its own."""
        options = {"schema": self._schema, "pool_size": self._pool_size, **options}
        store = await _open(self._url, sync=self._sync, options=options)
        self._opened.append(store)
        return store

    async def advance(self, ms: int) -> None:
        """Shift the schema's own clock function, through a handle no law uses."""
        if self._control is None:
            self._control = await _open(self._url, sync=False, options={"schema": self._schema, "pool_size": 1})
        self._offset_ms += ms
        await _driver(self._control).set_clock_offset(self._offset_ms)

    async def raw(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """Through a connection of its own, one statement at a time."""
        async with self._raw_lock:
            if self._connection is None:
                import asyncpg

                self._connection = await asyncpg.connect(self._url)
            return [tuple(row) for row in await self._connection.fetch(sql, *params)]

    def table(self, name: str) -> str:
        """Qualified by the schema."""
        return f'"{self._schema}".{name}'

    async def close(self) -> None:
        """Close every handle and the raw connection."""
        while self._opened:
            await self._opened.pop().close()
        if self._control is not None:
            await self._control.close()
        if self._connection is not None:
            await self._connection.close()


async def _open(url: str, *, sync: bool, options: dict[str, Any]) -> AsyncStore:
    if sync:
        return await sync_adapter.open_store(url, **options)
    from lash_store import AsyncStore

    return await AsyncStore.open(url, **options)


def _driver(store: Any) -> Any:
    # The clock is moved below the public surface: no application should be able to.
    level = store._runtime
    while not hasattr(level, "driver"):
        level = level._engine
    return level.driver
