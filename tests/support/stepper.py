"""Runs operations side by side on PostgreSQL, one statement at a time, in an order the test chooses.

Every side has a connection of its own. BEGIN, each statement, COMMIT and ROLLBACK are steps, and only one side is told to step
at a time. Whether a step waits for a lock of another side is the server's answer (`pg_blocking_pids`), never a matter of time.
A side that waits cannot be chosen, so orders that differ only while a side waits are one order.

What is allowed is computed, too: the same sides are run with their transactions one after the other, in every order.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import asyncpg

from lash_store.db.dialect import TABLES, Dialect, PostgresDialect
from lash_store.db.migrate import open_postgres
from lash_store.db.postgres import PostgresDriver
from tests.support.player import SETUP, Player, Script, normal

SCHEDULE_VARIABLE = "LASH_STORE_SCHEDULE"
LOOK_S = 0.002  # how long a step may take before the server is asked whether it waits; the server's answer decides
FRESH_TABLES_EVERY = 100  # schedules: dead rows would slow the scans of the next ones
SETTINGS = {"deadlock_timeout": "10ms", "statement_timeout": "30s", "synchronous_commit": "off", "jit": "off"}
OWNED = tuple(name for name in TABLES if name != "meta")


# --- the orders -----------------------------------------------------------------------------------------------------------


@dataclass
class _Fork:
    """A point of the tree of orders: which sides could go on, and which of those ways are explored to their end."""

    ways: dict[str, _Fork] = field(default_factory=dict[str, "_Fork"])
    explored: bool = False


class Orders:
    """Walks through every order once, at random, until there is none left or the caller has enough."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._root = _Fork()
        self._path: list[_Fork] = []

    @property
    def exhausted(self) -> bool:
        return self._root.explored

    def begin(self) -> None:
        """Start a new order."""
        self._path = [self._root]

    def choose(self, names: Sequence[str]) -> str:
        """A way nobody has gone to its end yet."""
        here = self._path[-1]
        for name in names:
            here.ways.setdefault(name, _Fork())
        name = self._chance.choice([name for name in names if not here.ways[name].explored] or list(names))
        self._path.append(here.ways[name])
        return name

    def end(self) -> None:
        """The order is complete; so is every point all of whose ways are."""
        self._path[-1].explored = True
        for point in reversed(self._path[:-1]):
            point.explored = all(way.explored for way in point.ways.values())


class Given:
    """The one order a failure printed."""

    def __init__(self, schedule: str) -> None:
        self._schedule = schedule
        self._rest: list[str] = []
        self.exhausted = False

    def begin(self) -> None:
        self._rest = list(self._schedule)

    def choose(self, names: Sequence[str]) -> str:
        name = self._rest.pop(0) if self._rest else names[0]
        assert name in names, f"{name} cannot go on here; the order is of another version"
        return name

    def end(self) -> None:
        self.exhausted = True


# --- the stage ------------------------------------------------------------------------------------------------------------


@dataclass
class Ending:
    """What one order led to."""

    schedule: str
    outcomes: dict[str, dict[str, Any]]
    rows: dict[str, list[dict[str, Any]]]
    waits: int

    @property
    def failures(self) -> list[str]:
        """What no order may lead to: errors that are not refusals, and clocks that were read before the lock."""
        failed = [f"{name}: {outcome['failed']}" for name, outcome in self.outcomes.items() if "failed" in outcome]
        return (
            failed
            + _backwards(self.rows, "commits", "session_id", "revision", "committed_ms")
            + _backwards(self.rows, "batches", "session_id", "enqueue_seq", "enqueued_ms")
            + _backwards(self.rows, "events", "process_id", "sequence", "occurred_ms")
        )

    @property
    def meaning(self) -> str:
        """Results, refusals and rows, without instants."""
        rows = {
            table: sorted(json.dumps(_row(table, row), sort_keys=True) for row in found) for table, found in self.rows.items()
        }
        return json.dumps({"outcomes": self.outcomes, "rows": rows}, sort_keys=True)


DATED = ("commits", "events", "deliveries")  # tables whose digests cover instants


def _row(table: str, row: dict[str, Any]) -> str:
    if table in DATED:
        row = {name: value for name, value in row.items() if name != "digest"}
    if table == "deliveries":
        row = row | {"snapshot": normal(json.loads(row["snapshot"]))}
    # When a schedule is next due is no instant of the run: it follows from where the schedule began.
    kept = row if table == "schedules" else {}
    return json.dumps(normal(row) | kept, sort_keys=True)


def _backwards(rows: dict[str, list[dict[str, Any]]], table: str, owner: str, number: str, instant: str) -> list[str]:
    ordered = sorted(rows.get(table, []), key=lambda row: (row[owner], row[number]))
    return [
        f"{table} {after[number]} of {after[owner]} has an earlier instant than {before[number]}"
        for before, after in pairwise(ordered)
        if before[owner] == after[owner] and before[instant] >= after[instant]
    ]


class Stage:
    """A schema whose clock ticks once per look, with connections for the sides and one for the test."""

    def __init__(self, schema: str, connections: Sequence[Any], observer: Any) -> None:
        self.schema = schema
        self.dialect: Dialect = PostgresDialect(schema)
        self.bytes: set[str] = set()
        self._connections = connections
        self._observer = observer
        self._saved_bytes: frozenset[str] = frozenset()
        self._restored = 0

    async def play(self, script: Script) -> Any:
        """Run a side alone, for the setup; its result. A refusal of a setup is a mistake of the test."""
        player = Player(SETUP, self._connections[0], self.dialect, self.bytes)
        await self._perform([player], [script], Orders(random.Random(0)), whole=True)
        assert "result" in player.outcome, player.outcome
        return player.result

    async def advance(self, ms: int) -> None:
        """Move the clock."""
        await self._observer.execute(f"SELECT setval('{self.schema}.ticks', nextval('{self.schema}.ticks') + {ms})")

    async def empty(self) -> None:
        """Start a scenario from nothing."""
        tables = ", ".join(f'"{self.schema}".{name}' for name in OWNED)
        await self._observer.execute(f"TRUNCATE {tables}")
        self.bytes.clear()

    async def save(self) -> None:
        """Remember the present rows: every order starts from them."""
        await self._observer.execute(f"SELECT {self.schema}.save()")
        self._saved_bytes = frozenset(self.bytes)

    async def _restore(self) -> None:
        self._restored += 1
        if self._restored % FRESH_TABLES_EVERY == 0:
            await self.empty()
        await self._observer.execute(f"SELECT {self.schema}.restore()")
        self.bytes.clear()
        self.bytes.update(self._saved_bytes)

    async def run(self, scripts: Sequence[Script], orders: Orders | Given, *, whole: bool = False) -> Ending:
        """Run the sides from the saved rows in one order."""
        await self._restore()
        names = "abcdefgh"[: len(scripts)]
        players = [Player(name, own, self.dialect, self.bytes) for name, own in zip(names, self._connections, strict=False)]
        schedule, waits = await self._perform(players, scripts, orders, whole=whole)
        rows: dict[str, list[dict[str, Any]]] = json.loads(await self._observer.fetchval(f"SELECT {self.schema}.rows()"))
        rows["bytes"] = [{"attachment_id": name} for name in sorted(self.bytes)]
        return Ending(schedule, {player.name: player.outcome for player in players}, rows, waits)

    async def _perform(
        self, players: Sequence[Player], scripts: Sequence[Script], orders: Orders | Given, *, whole: bool
    ) -> tuple[str, int]:
        tasks = [player.start(script, whole=whole) for player, script in zip(players, scripts, strict=True)]
        schedule, waits = "", 0
        orders.begin()
        try:
            for player in players:
                await player.arrived.wait()
            while not all(player.finished for player in players):
                ready = {player.name: player for player in players if not player.blocked and not player.finished}
                if not ready:
                    await self._deadlocked(players)
                    continue
                chosen = ready[orders.choose(sorted(ready))]
                schedule += chosen.name
                chosen.go()
                await self._settle([chosen], players)
                waits += chosen.blocked
                if chosen.ended or chosen.finished:
                    await self._settle([player for player in players if player.blocked], players)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        orders.end()
        return schedule, waits

    async def _settle(self, moving: Sequence[Player], players: Sequence[Player]) -> None:
        """Wait until each of these has taken its step, or the server says that it waits for a lock of another side."""
        for player in moving:
            player.blocked = False
        while True:
            moving = [player for player in moving if not player.arrived.is_set()]
            if not moving or all([await self._waits(player, players) for player in moving]):
                break
            await _first(moving, LOOK_S)
        for player in moving:
            player.blocked = not player.arrived.is_set()

    async def _waits(self, player: Player, players: Sequence[Player]) -> bool:
        if await _first([player], LOOK_S):
            return False
        others = [other.pid for other in players if other is not player]
        return bool(await self._observer.fetchval("SELECT pg_blocking_pids($1) && $2::int[]", player.pid, others))

    async def _deadlocked(self, players: Sequence[Player]) -> None:
        """All wait for each other: the server will refuse one of them."""
        waiting = [player for player in players if player.blocked]
        while not await _first(waiting, 1):
            pass
        await self._settle(waiting, players)


async def _first(players: Sequence[Player], patience_s: float) -> bool:
    """Wait a little for one of these to arrive; whether one has."""
    if len(players) == 1:
        if players[0].arrived.is_set():
            return True
        try:
            async with asyncio.timeout(patience_s):
                await players[0].arrived.wait()
        except TimeoutError:
            return False
        return True
    waits = [asyncio.create_task(player.arrived.wait()) for player in players]
    done, pending = await asyncio.wait(waits, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return bool(done)


async def build(url: str, schema: str) -> None:
    """A migrated schema with what a stage needs beside the tables."""
    driver = await PostgresDriver.open(url, schema=schema, pool_size=1)
    await open_postgres(driver, migrate=True)
    await driver.close()
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(_equipment(schema))
    finally:
        await connection.close()


def _equipment(schema: str) -> str:
    """A clock that ticks at every look; saving, restoring and showing all rows, one call each."""
    saves = [f"CREATE TABLE {schema}.saved_{name} (LIKE {schema}.{name});" for name in OWNED]
    save = [f"TRUNCATE {schema}.saved_{name}; INSERT INTO {schema}.saved_{name} TABLE {schema}.{name};" for name in OWNED]
    load = [f"DELETE FROM {schema}.{name}; INSERT INTO {schema}.{name} TABLE {schema}.saved_{name};" for name in OWNED]
    shown = ", ".join(f"'{name}', (SELECT COALESCE(jsonb_agg(to_jsonb(t)), '[]') FROM {schema}.{name} t)" for name in OWNED)
    return f"""
        CREATE SEQUENCE {schema}.ticks;
        CREATE TABLE {schema}.saved_ticks (at_tick BIGINT);
        {" ".join(saves)}
        CREATE OR REPLACE FUNCTION {schema}.now_ms() RETURNS BIGINT LANGUAGE sql VOLATILE
        AS $$ SELECT 1700000000000 + CASE current_setting('transaction_read_only')
            WHEN 'on' THEN (SELECT last_value FROM {schema}.ticks) ELSE nextval('{schema}.ticks') END $$;
        CREATE FUNCTION {schema}.save() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
            {" ".join(save)}
            DELETE FROM {schema}.saved_ticks;
            INSERT INTO {schema}.saved_ticks SELECT last_value FROM {schema}.ticks;
        END $$;
        CREATE FUNCTION {schema}.restore() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
            {" ".join(load)}
            PERFORM setval('{schema}.ticks', at_tick) FROM {schema}.saved_ticks;
        END $$;
        CREATE FUNCTION {schema}.rows() RETURNS text LANGUAGE sql AS $$ SELECT jsonb_build_object({shown})::text $$;
    """


@asynccontextmanager
async def stage(url: str, schema: str, sides: int = 2) -> AsyncGenerator[Stage, None]:
    """An empty stage on a built schema."""
    connections = [await asyncpg.connect(url, server_settings=SETTINGS) for _ in range(sides + 1)]
    try:
        made = Stage(schema, connections[:-1], connections[-1])
        await made.empty()
        yield made
    finally:
        for connection in connections:
            await connection.close()


# --- exploring ------------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """How many orders were run, whether those were all, how many made a side wait, and the first forbidden ending."""

    schedules: int
    complete: bool
    waited: int
    serial: int
    violation: str | None


async def explore(made: Stage, scripts: Sequence[Script], *, most: int, box_s: float, seed: int, serial: bool = True) -> Report:
    """Run up to `most` orders of the sides, as many as the time allows; stop at the first ending no serial order has.

    The time decides how many orders are run, never what one of them means. Without `serial` every ending is allowed
    that is not a failure.
    """
    await made.save()
    allowed = await serial_endings(made, scripts) if serial else None
    given = os.environ.get(SCHEDULE_VARIABLE)
    orders = Orders(random.Random(seed)) if given is None else Given(given)
    report = Report(0, False, 0, len(allowed or ()), None)
    until = time.monotonic() + box_s
    while not orders.exhausted and report.schedules < most and time.monotonic() < until:
        ending = await made.run(scripts, orders)
        report.schedules += 1
        report.waited += ending.waits > 0
        report.violation = forbidden(ending, allowed)
        if report.violation is not None:
            return report
    report.complete = orders.exhausted
    return report


async def serial_endings(made: Stage, scripts: Sequence[Script]) -> set[str]:
    """What the sides lead to when their transactions never overlap."""
    orders, allowed = Orders(random.Random(0)), set[str]()
    while not orders.exhausted:
        ending = await made.run(scripts, orders, whole=True)
        assert not ending.failures, f"without any overlap, in the order {ending.schedule}: {ending.failures}"
        allowed.add(ending.meaning)
    return allowed


def forbidden(ending: Ending, allowed: set[str] | None) -> str | None:
    """Why an ending is not one of the allowed ones, with the order that replays it; None when it is."""
    if not ending.failures and (allowed is None or ending.meaning in allowed):
        return None
    why = "; ".join(ending.failures) or f"an ending no serial order has: {_difference(ending.meaning, allowed or set())}"
    return f"{why}\noutcomes: {json.dumps(ending.outcomes)}\nreplay it with {SCHEDULE_VARIABLE}={ending.schedule}"


def _difference(meaning: str, allowed: set[str]) -> str:
    """The parts that differ from the nearest allowed ending."""
    found = json.loads(meaning)
    flat = _flat(found)
    nearest = min((_flat(json.loads(other)) for other in allowed), key=lambda other: len(flat ^ other))
    return f"has {sorted(flat - nearest)}, lacks {sorted(nearest - flat)}"


def _flat(meaning: dict[str, Any]) -> set[str]:
    outcomes = {f"{name}: {json.dumps(outcome, sort_keys=True)}" for name, outcome in meaning["outcomes"].items()}
    return outcomes | {f"{table}: {row}" for table, rows in meaning["rows"].items() for row in rows}
