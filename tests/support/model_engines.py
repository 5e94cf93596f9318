"""The two engines as the model test drives them: two doors to one database, a clock that stands still, and raw rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import apsw
import asyncpg
from msgspec import Struct

from lash_store import AsyncStore, Store
from lash_store.testing.backend import STATE_TABLES

PATIENT_MS = 60_000  # for a transaction: no engine may be too slow for what the other does
ASYNC, SYNC = 0, 1  # the doors: each is a store of its own, with its own connections and caches


class Outcome(Struct):
    """What a call did: a value, or the error it raised."""

    value: Any = None
    error: Exception | None = None


class Call(Struct):
    """A verb of the store, `noun.verb`, and its arguments."""

    verb: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}


class RolledBack(Exception):
    """The reason a transaction of the test is given up."""


class StandingStill(int):
    """A clock offset that cancels the clock: whatever the host's time is, the sum is this number."""

    def __radd__(self, other: int) -> int:
        return int(self)


class Engine(Protocol):
    """One database behind both doors."""

    name: str
    before_call: Callable[[], None]

    def call(self, door: int, call: Call) -> Outcome: ...
    def on_handle(self, handle: Any, call: Call) -> Outcome: ...
    def handle(self, door: int, session_id: str) -> Any: ...
    def together(self, door: int, calls: Sequence[Call], *, rollback: bool) -> list[Outcome]: ...
    def set_clock(self, now_ms: int) -> None: ...
    def rows(self) -> dict[str, list[tuple[Any, ...]]]: ...
    def execute(self, sql: str) -> list[tuple[Any, ...]]: ...
    def table(self, name: str) -> str: ...
    def close(self) -> None: ...


class _Doors:
    """Calls through the async store on a loop that runs only then, or through the sync one."""

    name: str

    def __init__(self, loop: asyncio.AbstractEventLoop, stores: tuple[AsyncStore, Store]) -> None:
        self._loop = loop
        self.stores: tuple[Any, Any] = stores
        self.before_call: Callable[[], None] = lambda: None

    def call(self, door: int, call: Call) -> Outcome:
        self.before_call()
        return self._outcome(self.stores[door], call)

    def on_handle(self, handle: Any, call: Call) -> Outcome:
        self.before_call()
        return self._outcome(handle, call)

    def handle(self, door: int, session_id: str) -> Any:
        return self.stores[door].session(session_id)

    def _outcome(self, place: Any, call: Call) -> Outcome:
        try:
            answer = _method(place, call.verb)(*call.args, **call.kwargs)
            return Outcome(self._loop.run_until_complete(answer) if asyncio.iscoroutine(answer) else answer)
        except Exception as error:  # noqa: BLE001 - an error is an outcome; which one is compared
            return Outcome(error=error)

    def together(self, door: int, calls: Sequence[Call], *, rollback: bool) -> list[Outcome]:
        """Several calls in one transaction, which is committed or given up."""
        outcomes: list[Outcome] = []
        self.before_call()
        try:
            if door == ASYNC:
                self._loop.run_until_complete(self._together_async(calls, outcomes, rollback=rollback))
            else:
                self._together_sync(calls, outcomes, rollback=rollback)
        except RolledBack:
            pass
        return outcomes

    async def _together_async(self, calls: Sequence[Call], outcomes: list[Outcome], *, rollback: bool) -> None:
        async with self.stores[ASYNC].transaction(max_ms=PATIENT_MS) as transaction:
            for call in calls:
                try:
                    outcomes.append(Outcome(await _method(transaction, call.verb)(*call.args, **call.kwargs)))
                except Exception as error:  # noqa: BLE001 - as above
                    outcomes.append(Outcome(error=error))
            if rollback:
                raise RolledBack

    def _together_sync(self, calls: Sequence[Call], outcomes: list[Outcome], *, rollback: bool) -> None:
        with self.stores[SYNC].transaction(max_ms=PATIENT_MS) as transaction:
            outcomes.extend(self._outcome(transaction, call) for call in calls)
            if rollback:
                raise RolledBack

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every raw row, read outside the store."""
        return {name: sorted(self.execute(f"SELECT * FROM {self.table(name)}"), key=repr) for name in STATE_TABLES}

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def table(self, name: str) -> str:
        raise NotImplementedError

    def close(self) -> None:
        self._loop.run_until_complete(self.stores[ASYNC].close())
        self.stores[SYNC].close()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


def _method(place: Any, verb: str) -> Callable[..., Any]:
    for name in verb.split("."):
        place = getattr(place, name)
    return place


class SqliteEngine(_Doors):
    """A SQLite file. Its clock is the drivers' offset."""

    name = "sqlite"

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        loop = asyncio.new_event_loop()
        options = {"durability": "relaxed", **options}  # no power is lost in this test
        stores = loop.run_until_complete(_opened(path, options)), Store.open(path, **options)
        super().__init__(loop, stores)
        self._raw = apsw.Connection(str(path))
        self._raw.set_busy_timeout(10_000)

    def set_clock(self, now_ms: int) -> None:
        for store in self.stores:
            store._runtime.driver.clock_offset_ms = StandingStill(now_ms)

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._raw.execute(sql)]

    def table(self, name: str) -> str:
        return f"lash_{name}"

    def close(self) -> None:
        self._raw.close()
        super().close()


class PostgresEngine(_Doors):
    """A PostgreSQL schema. Its clock function reads a table of the test's."""

    name = "postgresql"

    def __init__(self, url: str, schema: str, options: dict[str, Any]) -> None:
        loop = asyncio.new_event_loop()
        options = {"schema": schema, "pool_size": 2, **options}
        relaxed = f"{url}{'&' if '?' in url else '?'}synchronous_commit=off"  # no power is lost in this test
        stores = loop.run_until_complete(_opened(relaxed, options)), Store.open(relaxed, **options)
        super().__init__(loop, stores)
        self._schema = schema
        self._raw: Any = loop.run_until_complete(
            asyncpg.connect(url, server_settings={"synchronous_commit": "off", "search_path": schema})
        )
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

    def close(self) -> None:
        self._loop.run_until_complete(self._raw.close())
        super().close()


async def _opened(url: str | Path, options: dict[str, Any]) -> AsyncStore:
    return await AsyncStore.open(url, **options)


def wipe(engine: Engine) -> None:
    """Make the database empty, after an example that broke off."""
    for name in STATE_TABLES:
        engine.execute(f"DELETE FROM {engine.table(name)}")


def leftovers(engine: Engine) -> dict[str, int]:
    """How many rows each table holds beside the tombstones of deleted sessions."""
    counts = " UNION ALL ".join(
        f"SELECT '{name}', COUNT(*) FROM {engine.table(name)}"
        + (" WHERE state <> 'deleted' OR ready_ms IS NOT NULL OR node_count <> 0" if name == "sessions" else "")
        for name in STATE_TABLES
    )
    return {name: count for name, count in engine.execute(counts) if count}
