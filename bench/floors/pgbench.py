"""The floor of a write on PostgreSQL: pgbench inserts the same rows with one prepared statement and no checks.

The rows are read from a database in which the library did the operation, and inserted into copies of its tables with all their
indexes. Texts and bytes travel as parameters, as for everybody else. Of sixteen commits one holds a full checkpoint frame.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import re
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from bench.child import Failed
from bench.floors.rows import EVENT, TURN, Written, key_of, select, written
from bench.subject import Answer, quantiles, thinned
from tests.support.binaries import find_binaries

SCHEMA = "floor"
RUNS = itertools.count(1)  # each run has keys of its own, also where floors share their tables
FIRST = 20  # transactions per client of the first run
INLINE_BYTES = 24  # shorter texts are part of the statement


def program() -> Path | None:
    """Where pgbench is, if the server came with it."""
    beside = find_binaries().folder / "pgbench"
    return beside if beside.exists() else None


class Pgbench:
    """One floor in one database. Weights say how often each of its scripts runs."""

    def __init__(self, url: str, scripts: list[tuple[str, int]], variables: dict[str, str]) -> None:
        self._url = urlsplit(url)
        self._scripts = scripts
        self._variables = variables
        self._rates: dict[int, float] = {}
        self.pgbench = program()

    @classmethod
    async def of_turns(cls, url: str, session: str, revisions: dict[int, int]) -> Pgbench:
        """The floor of commits: the revisions whose rows are written, with their weights."""
        return await cls._of(url, TURN, session, revisions)

    @classmethod
    async def of_events(cls, url: str, process: str, sequence: int) -> Pgbench:
        """The floor of appending one event."""
        return await cls._of(url, EVENT, process, {sequence: 1})

    @classmethod
    async def _of(cls, url: str, tables: dict[str, str | None], key: str, picks: dict[int, int]) -> Pgbench:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(copies(list(tables)))
            scripts: list[tuple[str, int]] = []
            variables: dict[str, str] = {}
            for pick, weight in picks.items():
                rows = await read(connection, tables, key, pick)
                scripts.append((script(rows, variables), weight))
            return cls(url, scripts, variables)
        finally:
            await connection.close()

    async def turns(self, *, callers: int, seconds: float, **_: Any) -> Answer:
        """Run it; the answer is that of a closed loop. A first, short run says how many transactions fill the time."""
        if callers not in self._rates:
            await self._take(callers, FIRST)
        return await self._take(callers, max(FIRST, round(self._rates[callers] * seconds / callers)))

    async def _take(self, callers: int, each: int) -> Answer:
        with tempfile.TemporaryDirectory() as folder:
            said = await self._run(Path(folder), callers, each)
            times = [int(line.split()[2]) / 1000 for log in Path(folder).glob("log*") for line in log.read_text().splitlines()]
        rate = re.search(r"tps = ([\d.]+) \(without", said)
        if rate is None:
            raise Failed(f"pgbench said: {said}")
        self._rates[callers] = float(rate[1])
        return {"count": len(times), "seconds": len(times) / float(rate[1]), "latencies_ms": thinned(times)} | quantiles(times)

    async def _run(self, folder: Path, callers: int, each: int) -> str:
        arguments = [*self._files(folder), *(f"-D{name}={value}" for name, value in self._variables.items())]
        command = [str(self.pgbench), "-n", "-Mprepared", f"-c{callers}", f"-j{min(callers, os.cpu_count() or 1)}", f"-t{each}"]
        command += ["-l", f"--log-prefix={folder / 'log'}", f"-Drev={next(RUNS) * 10_000_000}", *arguments]
        environment = os.environ | {
            "PGHOST": str(self._url.hostname),
            "PGPORT": str(self._url.port),
            "PGUSER": str(self._url.username),
            "PGPASSWORD": str(self._url.password),
            "PGDATABASE": self._url.path.lstrip("/"),
        }
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        out, _ = await process.communicate()
        if process.returncode != 0:
            raise Failed(f"pgbench failed: {out.decode()[-2000:]}")
        return out.decode()

    def _files(self, folder: Path) -> list[str]:
        arguments: list[str] = []
        for number, (text, weight) in enumerate(self._scripts):
            path = folder / f"script-{number}.sql"
            path.write_text(text)
            arguments.append(f"-f{path}@{weight}")
        return arguments


def copies(tables: list[str]) -> str:
    """Empty copies of the library's tables, with their indexes and checks."""
    made = [f"CREATE TABLE IF NOT EXISTS {SCHEMA}.{table} (LIKE lash_store.{table} INCLUDING ALL)" for table in tables]
    return ";\n".join([f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}", *made])


async def read(connection: Any, tables: dict[str, str | None], key: str, pick: int) -> list[Written]:
    """The rows the operation wrote."""
    found: list[Written] = []
    column = key_of(tables)
    for table, chosen in tables.items():
        sql = select(tables, table, column, lambda name: f"lash_store.{name}", "$")
        rows = await connection.fetch(sql, key, *([pick] if chosen else []))
        found.append(written(table, column, list(rows[0].keys()), [tuple(row.values()) for row in rows]))
    return found


def script(tables: list[Written], variables: dict[str, str]) -> str:
    """One statement that inserts all rows: a chain of CTEs, one round trip, one implicit transaction."""
    inserts = [insert(each, variables) for each in tables]
    chain = ",\n".join(f"  part{number} AS ({text})" for number, text in enumerate(inserts[:-1]))
    return f"\\set rev :rev + 1\nWITH\n{chain}\n{inserts[-1]};\n"


def insert(each: Written, variables: dict[str, str]) -> str:
    """One INSERT with fresh keys."""
    rows = ", ".join(
        "(" + ", ".join(cell(each, name, value, variables) for name, value in zip(each.columns, row, strict=True)) + ")"
        for row in each.rows
    )
    return f"INSERT INTO {SCHEMA}.{each.table} ({', '.join(each.columns)}) VALUES {rows}"


def cell(each: Written, column: str, value: object, variables: dict[str, str]) -> str:
    """One value: the fresh key, a number, a short text, or a parameter."""
    if column == each.key:
        return f"lpad(concat(:client_id::text, '-', :rev::text), {len(str(value))}, '0')"
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str) and len(value) <= INLINE_BYTES:
        return "'" + value.replace("'", "''") + "'"
    name = f"v{len(variables)}"
    variables[name] = value if isinstance(value, str) else base64.b64encode(bytes(value)).decode()  # pyright: ignore[reportArgumentType]
    return f":{name}::text" if isinstance(value, str) else f"decode(:{name}::text, 'base64')"
