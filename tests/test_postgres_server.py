"""The PostgreSQL the tests run on is real, of this run only, and durable."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from tests.support.cluster import Cluster


def test_the_server_answers_over_its_socket(pg_url: str) -> None:
    assert ask(pg_url, "SELECT 1") == 1


def test_the_server_answers_over_tcp_with_a_password(pg_tcp_url: str) -> None:
    assert ask(pg_tcp_url, "SELECT 1") == 1


def test_durability_settings_are_those_of_production(pg_url: str) -> None:
    assert [ask(pg_url, f"SHOW {name}") for name in ("fsync", "synchronous_commit", "full_page_writes")] == ["on", "on", "on"]


def test_a_cluster_of_its_own_survives_a_crash(pg_cluster: Cluster) -> None:
    ask(pg_cluster.url, "CREATE TABLE kept AS SELECT 7 AS n")
    pg_cluster.crash()
    pg_cluster.start()
    assert ask(pg_cluster.url, "SELECT n FROM kept") == 7


def ask(url: str, sql: str) -> Any:
    """The first value of the first row, over a connection of its own."""

    async def once() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(once())
