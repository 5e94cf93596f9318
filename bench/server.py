"""The PostgreSQL of one measurement: its own cluster with printed settings, and one empty database for each who is measured."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from tests.support.cluster import Cluster
from tests.support.postgres import Run, own_cluster

# The same for everybody. fsync, synchronous_commit and full_page_writes stay on; checkpoints come between measurements.
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}
REPORT_S = 10.5  # a backend that rests for ten seconds reports the rows it wrote; earlier it may keep some to itself
STATISTICS = {"shared_preload_libraries": "pg_stat_statements"}
SHOWN = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "autovacuum",
)


@dataclass
class Server:
    """A running cluster. `statistics` says whether it counts statements."""

    cluster: Cluster
    statistics: bool

    def __post_init__(self) -> None:
        self._numbers = itertools.count(1)

    @property
    def url(self) -> str:
        return self.cluster.tcp_url

    async def fresh(self) -> str:
        """The url of a new, empty database. Its order of texts is the plain one of bytes, so that no peer pays for another."""
        name = f"bench_{next(self._numbers)}"
        await self.ask(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' {self._provider()}"
        )
        return at(self.url, name)

    def _provider(self) -> str:
        return "LOCALE_PROVIDER libc" if int(self.cluster.binaries.version.split(".")[0]) >= 15 else ""

    async def drop(self, url: str) -> None:
        """Remove a database."""
        await self.ask(f"DROP DATABASE IF EXISTS {name_of(url)} WITH (FORCE)")

    async def ask(self, sql: str, *values: object, url: str | None = None) -> Any:
        """One value."""
        connection = await asyncpg.connect(url or self.url)
        try:
            return await connection.fetchval(sql, *values)
        finally:
            await connection.close()

    async def settings(self) -> dict[str, str]:
        """What the figures depend on."""
        shown = {name: str(await self.ask(f"SHOW {name}")) for name in SHOWN}
        return shown | {"pg_stat_statements": "on" if self.statistics else "not there"}

    async def statements(self, url: str) -> Statements:
        """What the server counted in one database so far."""
        if not self.statistics:
            return Statements(0, 0.0, 0)
        connection = await asyncpg.connect(self.url)
        try:
            row = await connection.fetchrow(
                "SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(total_exec_time), 0)::float8, "
                "coalesce(sum(calls) FILTER (WHERE query ILIKE '%pg_notify(%'), 0)::bigint FROM pg_stat_statements s "
                "JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = $1",
                name_of(url),
            )
        finally:
            await connection.close()
        return Statements(*row)

    async def rows(self, url: str) -> int:
        """Rows written in one database so far, of user tables, as far as its backends have reported them."""
        sql = "SELECT coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables"
        return int(await self.ask(sql, url=url))

    async def wal(self) -> int:
        """Bytes of log written so far."""
        return int(await self.ask("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"))

    async def size(self, url: str) -> int:
        """Bytes of the user tables of a database with their indexes."""
        return int(
            await self.ask(
                "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c JOIN pg_namespace n "
                "ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'm') "
                "AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg_toast%'",
                url=url,
            )
        )


@dataclass(frozen=True)
class Statements:
    """A count of statements, and the time the server spent in them."""

    calls: int
    milliseconds: float
    notifications: int

    def since(self, before: Statements) -> Statements:
        """What came between two looks."""
        return Statements(
            self.calls - before.calls, self.milliseconds - before.milliseconds, self.notifications - before.notifications
        )


def at(url: str, database: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def through(url: str, port: int) -> str:
    """The same database behind a port of this host."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}"))


def name_of(url: str) -> str:
    """The name of the database."""
    return urlsplit(url).path.lstrip("/")


@contextmanager
def served() -> Generator[Server]:
    """A cluster of our own, gone afterwards however the measurement ends."""
    run = Run()
    try:
        cluster = own_cluster()
        statistics = asyncio.run(configure(cluster))
        yield Server(cluster, statistics)
        cluster.stop()
    finally:
        run.end()


async def configure(cluster: Cluster) -> bool:
    """Apply the settings; whether statements are counted. A server without that extension is measured without it."""
    await alter(cluster, SETTINGS)
    has_statistics = await alter(cluster, STATISTICS, needs="pg_stat_statements")
    cluster.stop()
    cluster.start()
    if has_statistics:
        connection = await asyncpg.connect(cluster.tcp_url)
        await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        await connection.close()
    return has_statistics


async def alter(cluster: Cluster, settings: dict[str, str], needs: str | None = None) -> bool:
    """Write settings for the next start, if the extension they need is there."""
    connection = await asyncpg.connect(cluster.tcp_url)
    try:
        if needs is not None and not await connection.fetchval("SELECT 1 FROM pg_available_extensions WHERE name = $1", needs):
            return False
        for name, value in settings.items():
            await connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        return True
    finally:
        await connection.close()
