"""The two engines as the model of processes drives them: two doors to one database, a clock that stands still, raw rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import apsw
import asyncpg
from msgspec import Struct

from lash_store import AsyncStore, Store
from lash_store.testing.backend import PROCESS_TABLES

TABLES = ("sessions", "batches", "settled_keys", *PROCESS_TABLES)  # all that these histories write


class Outcome(Struct):
    """What a call did: a value, or the error it raised."""

    value: Any = None
    error: Exception | None = None


class Call(Struct):
    """A verb of the store, `noun.verb`, and its arguments."""

    verb: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}


class StandingStill(int):
    """A clock offset that cancels the clock: whatever the host's time is, the sum is this number."""

    def __radd__(self, other: int) -> int:
        return int(self)


class Engine(Protocol):
    """One database behind both doors: an async and a sync store, each with its own connections and memory."""

    name: str
    before_call: Callable[[], None]

    def call(self, door: int, call: Call) -> Outcome: ...
    def on_handle(self, handle: Any, call: Call) -> Outcome: ...
    def handle(self, door: int, session_id: str) -> Any: ...
    def set_clock(self, now_ms: int) -> None: ...
    def rows(self) -> dict[str, list[tuple[Any, ...]]]: ...
    def execute(self, sql: str) -> list[tuple[Any, ...]]: ...
    def table(self, name: str) -> str: ...
    def wipe(self) -> None: ...
    def close(self) -> None: ...


class _Doors:
    """Calls through the async store on a loop that runs only then, or through the sync one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stores: tuple[AsyncStore, Store]) -> None:
        self._loop = loop
        self.stores: tuple[Any, Any] = stores
        self.before_call: Callable[[], None] = lambda: None

    def call(self, door: int, call: Call) -> Outcome:
        return self.on_handle(self.stores[door], call)

    def on_handle(self, handle: Any, call: Call) -> Outcome:
        self.before_call()
        for name in call.verb.split("."):
            handle = getattr(handle, name)
        try:
            answer = handle(*call.args, **call.kwargs)
            return Outcome(self._loop.run_until_complete(answer) if asyncio.iscoroutine(answer) else answer)
        except Exception as error:  # noqa: BLE001 - an error is an outcome; which one is compared
            return Outcome(error=error)

    def handle(self, door: int, session_id: str) -> Any:
        return self.stores[door].session(session_id)

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every raw row, read outside the store."""
        return {name: sorted(self.execute(f"SELECT * FROM {self.table(name)}"), key=repr) for name in TABLES}

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def table(self, name: str) -> str:
        raise NotImplementedError

    def close(self) -> None:
        self._loop.run_until_complete(self.stores[0].close())
        self.stores[1].close()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


class SqliteEngine(_Doors):
    """A SQLite file. Its clock is the drivers' offset."""

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        loop = asyncio.new_event_loop()
        options: dict[str, Any] = {"durability": "relaxed"}  # no power is lost in this test
        super().__init__(loop, (loop.run_until_complete(_opened(path, options)), Store.open(path, **options)))
        self._raw = apsw.Connection(str(path))
        self._raw.set_busy_timeout(10_000)

    def set_clock(self, now_ms: int) -> None:
        for store in self.stores:
            store._runtime.driver.clock_offset_ms = StandingStill(now_ms)

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._raw.execute(sql)]

    def table(self, name: str) -> str:
        return f"lash_{name}"

    def wipe(self) -> None:
        with self._raw:
            for name in TABLES:
                self.execute(f"DELETE FROM {self.table(name)}")

    def close(self) -> None:
        self._raw.close()
        super().close()


class PostgresEngine(_Doors):
    """A PostgreSQL schema. Its clock function reads a table of the test's."""

    name = "postgresql"

    def __init__(self, url: str, schema: str) -> None:
        loop = asyncio.new_event_loop()
        options: dict[str, Any] = {"schema": schema, "pool_size": 2}
        relaxed = f"{url}{'&' if '?' in url else '?'}synchronous_commit=off"  # no power is lost in this test
        super().__init__(loop, (loop.run_until_complete(_opened(relaxed, options)), Store.open(relaxed, **options)))
        self._schema = schema
        self._raw: Any = loop.run_until_complete(asyncpg.connect(relaxed, server_settings={"search_path": schema}))
        self.execute("CREATE TABLE model_clock AS SELECT 0::bigint AS at_ms")
        self.execute(
            f'CREATE OR REPLACE FUNCTION "{schema}".now_ms() RETURNS BIGINT LANGUAGE sql VOLATILE PARALLEL SAFE '
            f'AS $$ SELECT at_ms FROM "{schema}".model_clock $$'
        )

    def set_clock(self, now_ms: int) -> None:
        self.execute(f"UPDATE model_clock SET at_ms = {now_ms}")

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._loop.run_until_complete(self._raw.fetch(sql))]

    def table(self, name: str) -> str:
        return f'"{self._schema}".{name}'

    def wipe(self) -> None:
        deletes = "; ".join(f"DELETE FROM {self.table(name)}" for name in TABLES)
        self._loop.run_until_complete(self._raw.execute(deletes))

    def close(self) -> None:
        self._loop.run_until_complete(self._raw.close())
        super().close()


async def _opened(url: str | Path, options: dict[str, Any]) -> AsyncStore:
    return await AsyncStore.open(url, **options)
