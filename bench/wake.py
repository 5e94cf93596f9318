"""How fast a waiter in another process is woken, and what a thousand idle waiters cost. On SQLite and on PostgreSQL.

    make bench

Wake-ups: a second process waits (`wait_ready` on an inbox, `await_output` of a process), this one writes (`enqueue`, `complete`).
The time runs from the call of the write to the return of the wait; both processes read the same clock of the host. Between rounds
the writer rests, so that the waiter sleeps when the write comes.

Idle cost: a thousand waiters of one store, nothing happens, and its statements are counted (without BEGIN and COMMIT).

PostgreSQL is the one of LASH_STORE_TEST_POSTGRES_URL, or found and started like that of the tests. The numbers are printed and
written to bench/results/wake.json, from which docs/performance.md takes its tables.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg

from lash_store import AsyncStore, ProcessInput, Registration, StatementEvent, Success, __version__
from tests.support.postgres import Run, provide

RESULTS = Path(__file__).resolve().parent / "results" / "wake.json"
PROJECT = RESULTS.parents[2]
ROUNDS = int(os.environ.get("LASH_STORE_BENCH_ROUNDS", "300"))
REST_S = 0.02  # between two rounds: enough for the waiter to fall asleep
WAITERS = 1_000
SETTLE_S = 8  # until the looks of patient waiters have slowed down
COUNT_S = 20
PATIENCE_MS = 30_000
SCHEMA = f"lash_bench_{os.getpid()}"


# --- wake-ups -------------------------------------------------------------------------------------------------------------


async def latency(url: str, what: str) -> dict[str, float]:
    """Times of `ROUNDS` wake-ups across two processes, in milliseconds."""
    async with opened(url) as store:
        await PREPARE[what](store, ROUNDS)
        waiter = await start_waiter(url, what)
        wakes: list[float] = []
        writes: list[float] = []
        for number in range(ROUNDS):
            await line_of(waiter)
            await asyncio.sleep(REST_S)
            began = time.monotonic_ns()
            await WRITE[what](store, number)
            written = time.monotonic_ns()
            woken = int(await line_of(waiter))
            wakes.append((woken - began) / 1e6)
            writes.append((written - began) / 1e6)
        await waiter.wait()
    return {
        "wake_p50_ms": percentile(wakes, 50),
        "wake_p95_ms": percentile(wakes, 95),
        "wake_max_ms": percentile(wakes, 100),
        "write_p50_ms": percentile(writes, 50),
        "write_p95_ms": percentile(writes, 95),
    }


async def start_waiter(url: str, what: str) -> asyncio.subprocess.Process:
    """The other process. It ends when its rounds are over."""
    command = [sys.executable, "-m", "bench.wake", what, url, SCHEMA, str(ROUNDS)]
    return await asyncio.create_subprocess_exec(*command, cwd=PROJECT, stdout=subprocess.PIPE)


async def line_of(waiter: asyncio.subprocess.Process) -> str:
    assert waiter.stdout is not None
    line = await asyncio.wait_for(waiter.stdout.readline(), PATIENCE_MS / 1000)
    if not line:
        raise RuntimeError(f"the waiter ended early, with code {await waiter.wait()}")
    return line.decode()


async def wait_rounds(what: str, url: str, schema: str, rounds: str) -> None:
    """The life of the waiter: say that it waits, wait, say when it was woken."""
    async with opened(url, schema=schema) as store:
        for number in range(int(rounds)):
            print("waiting", flush=True)
            await WAIT[what](store, number)
            print(time.monotonic_ns(), flush=True)


async def make_sessions(store: AsyncStore, count: int) -> None:
    for number in range(count):
        await store.sessions.create(f"session-{number}")


async def make_processes(store: AsyncStore, count: int) -> None:
    for number in range(count):
        await store.processes.register(Registration(process_id=f"process-{number}", input=ProcessInput("bench")))


async def enqueue(store: AsyncStore, number: int) -> None:
    await store.queue.enqueue(f"session-{number}", ["work"])


async def complete(store: AsyncStore, number: int) -> None:
    await store.processes.complete(f"process-{number}", Success("done"))


async def wait_inbox(store: AsyncStore, number: int) -> None:
    assert await store.queue.wait_ready(f"session-{number}", timeout_ms=PATIENCE_MS)


async def wait_output(store: AsyncStore, number: int) -> None:
    assert await store.processes.await_output(f"process-{number}", timeout_ms=PATIENCE_MS) is not None


PREPARE: dict[str, Callable[[AsyncStore, int], Awaitable[None]]] = {"wait_ready": make_sessions, "await_output": make_processes}
WRITE: dict[str, Callable[[AsyncStore, int], Awaitable[None]]] = {"wait_ready": enqueue, "await_output": complete}
WAIT: dict[str, Callable[[AsyncStore, int], Awaitable[None]]] = {"wait_ready": wait_inbox, "await_output": wait_output}


# --- idle waiters ---------------------------------------------------------------------------------------------------------


async def idle_cost(url: str, what: str) -> float:
    """Statements per second of one store with `WAITERS` waiters for which nothing happens."""
    count = 0

    def counted(_: StatementEvent) -> None:
        nonlocal count
        count += 1

    async with opened(url, on_statement=counted) as store:
        await PREPARE[what](store, WAITERS)
        tasks = [asyncio.ensure_future(WAIT[what](store, number)) for number in range(WAITERS)]
        await asyncio.sleep(SETTLE_S)
        before, began = count, time.monotonic()
        await asyncio.sleep(COUNT_S)
        per_second = (count - before) / (time.monotonic() - began)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return round(per_second, 2)


# --- the engines ----------------------------------------------------------------------------------------------------------


def opened(
    url: str, *, schema: str = SCHEMA, on_statement: Callable[[StatementEvent], None] | None = None
) -> AbstractAsyncContextManager[AsyncStore]:
    """A store on either engine; a SQLite file has no schemas."""
    if url.startswith("postgresql:"):
        return AsyncStore.open(url, schema=schema, on_statement=on_statement)
    return AsyncStore.open(url, on_statement=on_statement)


@contextmanager
def databases() -> Generator[dict[str, Callable[[], str]]]:
    """A new database for each measurement, by engine; gone afterwards."""
    run = Run()
    try:
        with tempfile.TemporaryDirectory(prefix="lash-store-bench-") as folder:
            server = provide()
            yield {
                "SQLite": lambda: str(Path(tempfile.mkdtemp(dir=folder)) / "bench.db"),
                "PostgreSQL": lambda: emptied(server.tcp_url),
            }
            emptied(server.tcp_url)
    finally:
        run.end()


def emptied(url: str) -> str:
    # In a loop of its own: measurements own the running one.
    asyncio.run(ask(url, f'DROP SCHEMA IF EXISTS "{SCHEMA}" CASCADE'))
    return url


async def ask(url: str, sql: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


def surroundings(url: str) -> dict[str, Any]:
    """Versions and settings that the numbers depend on."""
    shown = {name: asyncio.run(ask(url, f"SHOW {name}")) for name in ("server_version", "fsync", "synchronous_commit")}
    return {
        "taken": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "lash_store": __version__,
        "apsw": apsw.apsw_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "sqlite_durability": "full",
        "asyncpg": asyncpg.__version__,
        "postgresql": shown["server_version"],
        "postgresql_fsync": shown["fsync"],
        "postgresql_synchronous_commit": shown["synchronous_commit"],
        "postgresql_reached_by": "TCP on loopback",
    }


# --- results --------------------------------------------------------------------------------------------------------------


def percentile(values: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile, to a hundredth of a millisecond."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return round(ordered[rank - 1], 2)


def tables(results: dict[str, Any]) -> str:
    """The numbers as docs/performance.md shows them."""
    wakes = [
        f"| {each['engine']} | `{each['what']}` | {each['wake_p50_ms']} ms | {each['wake_p95_ms']} ms | {each['wake_max_ms']} ms "
        f"| {each['write_p50_ms']} ms | {each['write_p95_ms']} ms |"
        for each in results["wakes"]
    ]
    idle = [f"| {each['engine']} | `{each['what']}` | {each['statements_per_second']} |" for each in results["idle"]]
    around = [f"| {name.replace('_', ' ')} | {value} |" for name, value in results["surroundings"].items()]
    return "\n".join(
        [
            "| engine | wait | wake p50 | wake p95 | slowest | write p50 | write p95 |",
            "|---|---|---|---|---|---|---|",
            *wakes,
            "",
            "| engine | 1,000 waiters in | statements per second |",
            "|---|---|---|",
            *idle,
            "",
            "| surroundings | |",
            "|---|---|",
            *around,
        ]
    )


def measure() -> dict[str, Any]:
    """All measurements, one after the other."""
    wakes: list[dict[str, Any]] = []
    idle: list[dict[str, Any]] = []
    with databases() as fresh:
        around = surroundings(provide().tcp_url)
        for engine, database in fresh.items():
            for what in PREPARE:
                print(f"{engine}, {what} ...", file=sys.stderr, flush=True)
                wakes.append({"engine": engine, "what": what, **asyncio.run(latency(database(), what))})
                cost = asyncio.run(idle_cost(database(), what))
                idle.append({"engine": engine, "what": what, "statements_per_second": cost})
    around["rounds"] = ROUNDS
    around["load_after"] = round(os.getloadavg()[0], 1)
    return {"surroundings": around, "wakes": wakes, "idle": idle}


def main(arguments: list[str]) -> int:
    """Measure, print and write; or be the waiter of a measurement."""
    if arguments:
        asyncio.run(wait_rounds(*arguments))
        return 0
    results = measure()
    print(tables(results))
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\nwritten to {RESULTS.relative_to(PROJECT)}; docs/performance.md shows what is there")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
