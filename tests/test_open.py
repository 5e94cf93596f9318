"""Opening a store: many processes at once, other versions, roles with few rights, a pooler in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from lash_store import AsyncStore, NotPermitted, SchemaMismatch
from lash_store.db.scripts import library_version
from tests.support.effort import effort
from tests.support.ground import ENGINES, Ground, ground_of
from tests.support.pgbouncer import find_pgbouncer, pooled
from tests.support.program import Program
from tests.support.programs import SESSION
from tests.support.roles import USE_TABLES, role
from tests.support.seeds import seed_of_run
from tests.support.tour import tour

PROCESSES = 16
BOUNCER = find_pgbouncer()


@pytest.fixture(params=ENGINES)
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return ground_of(request.param, request, tmp_path)


def test_sixteen_processes_open_a_new_database_at_once(ground: Ground) -> None:
    with Program("open_together", processes=PROCESSES, **ground.place) as program:
        said = program.end()
    assert [word["version"] for word in said] == [library_version()] * PROCESSES
    assert [word["differences"] for word in said] == [[]] * PROCESSES
    assert sorted(word["revision"] for word in said) == list(range(1, PROCESSES + 1))
    asyncio.run(one_schema(ground))


async def one_schema(ground: Ground) -> None:
    backend = ground.backend
    assert await backend.raw(f"SELECT version FROM {backend.table('meta')}") == [(library_version(),)]
    store = await backend.open(migrate=False)
    assert (await store.sessions.get(SESSION)).revision == PROCESSES
    await backend.close()


@pytest.mark.faults
def test_an_opener_killed_at_any_moment_leaves_a_database_that_opens(ground: Ground) -> None:
    rounds = effort(test=15, faults=300)
    places = [{"url": place_in(ground, n), "schema": f"{ground.schema}_{n}"} for n in range(rounds)]
    try:
        with Program("open_killed", seed=seed_of_run(), places=places) as program:
            assert program.end()[-1]["killed"] >= rounds / 3, "too few were killed in time"
    finally:
        asyncio.run(forget(ground, [place["schema"] for place in places]))


def place_in(ground: Ground, n: int) -> str:
    return f"{ground.url}.{n}" if ground.backend.engine == "sqlite" else ground.url


async def forget(ground: Ground, schemas: Sequence[str]) -> None:
    for schema in schemas if ground.backend.engine == "postgresql" else ():
        await ground.backend.raw(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')
    await ground.backend.close()


@pytest.mark.parametrize("migrate", [True, False])
def test_a_database_of_a_newer_version_is_refused_and_left_alone(ground: Ground, migrate: bool) -> None:
    async def scenario() -> None:
        backend, newer = ground.backend, library_version() + 1
        await backend.open()
        await backend.raw(f"UPDATE {backend.table('meta')} SET version = {newer}, compatible_from = {newer} WHERE only_row = 1")
        with pytest.raises(SchemaMismatch, match=rf"version {newer}\b.*library at {library_version()}\b") as caught:
            await backend.open(migrate=migrate)
        assert (caught.value.found, caught.value.expected) == (newer, library_version())
        assert await backend.raw(f"SELECT version FROM {backend.table('meta')}") == [(newer,)]
        await backend.close()

    asyncio.run(scenario())


# --- rights ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("migrate", [True, False])
def test_a_role_without_the_right_to_create_does_everything_else(
    pg_url: str, pg_tcp_url: str, pg_schema: str, migrate: bool
) -> None:
    async def scenario() -> None:
        await (await AsyncStore.open(pg_url, schema=pg_schema)).close()
        async with (
            role(pg_url, pg_tcp_url, schema=pg_schema, grants=USE_TABLES) as url,
            AsyncStore.open(url, schema=pg_schema, migrate=migrate) as store,
        ):
            await tour(store, "s")

    asyncio.run(scenario())


def test_an_empty_schema_is_refused_to_a_role_without_the_right_to_create(pg_url: str, pg_tcp_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with role(pg_url, pg_tcp_url, schema=pg_schema) as url:
            with pytest.raises(SchemaMismatch, match=rf"version 0\b.*library at {library_version()}\b.*migrate=True"):
                await AsyncStore.open(url, schema=pg_schema, migrate=False)
            with pytest.raises(NotPermitted):
                await AsyncStore.open(url, schema=pg_schema)

    asyncio.run(scenario())


def test_a_role_that_may_not_write_is_told_so_and_may_read(pg_url: str, pg_tcp_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with AsyncStore.open(pg_url, schema=pg_schema) as owner:
            await owner.sessions.create("s")
        grants = USE_TABLES.replace("SELECT, INSERT, UPDATE, DELETE", "SELECT")
        async with (
            role(pg_url, pg_tcp_url, schema=pg_schema, grants=grants) as url,
            AsyncStore.open(url, schema=pg_schema, migrate=False) as store,
        ):
            assert (await store.sessions.get("s")).revision == 0
            with pytest.raises(NotPermitted):
                await store.queue.enqueue("s", ["work"])

    asyncio.run(scenario())


# --- a pooler: these tests do not exist where there is no PgBouncer -------------------------------------------------------------

if BOUNCER is not None:
    bouncer: str = BOUNCER

    @pytest.mark.faults
    def test_everything_works_through_pgbouncer_in_transaction_mode(pg_url: str, pg_schema: str) -> None:
        async def scenario(url: str) -> None:
            stores = [await AsyncStore.open(url, schema=pg_schema, pooler=True, pool_size=4) for _ in range(3)]
            for n in range(effort(test=2, faults=50)):
                await asyncio.gather(*(tour(stores[i % 3], f"{n}-{i}") for i in range(9)))
            for store in stores:
                await store.close()

        with pooled(bouncer, pg_url) as url:
            asyncio.run(scenario(url))
