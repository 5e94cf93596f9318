"""Opening a database: new, old, newer, shared by many, and without rights. On both engines."""

from __future__ import annotations

import asyncio
import multiprocessing
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, LiteralString, Protocol, TypeVar

import asyncpg
import pytest

from lash_store.db.dialect import TABLES, Dialect
from lash_store.db.driver import Call, Mode, StatementEvent
from lash_store.db.migrate import Found, bring_up, lock_key, look, needs_migration, open_postgres, open_sqlite
from lash_store.db.postgres import PostgresDriver
from lash_store.db.scripts import Step, functions, library_version, parse_step, split, steps
from lash_store.db.shape import check_schema, shipped_shape
from lash_store.db.sqlite import SqliteDriver
from lash_store.errors import Corrupt, NotPermitted, SchemaMismatch
from lash_store.ops.statement import Op, execute, fetch

T = TypeVar("T")
PROCESSES = 16


class Engine(Protocol):
    """A database of one engine, opened and asked in the same words."""

    events: list[StatementEvent]

    async def open(self, *, migrate: bool = True, shipped: Sequence[Step] | None = None) -> int: ...
    async def run(self, call: Call[T], mode: Mode) -> T: ...
    async def close(self) -> None: ...
    @property
    def dialect(self) -> Dialect: ...


class Postgres:
    def __init__(self, url: str, schema: str) -> None:
        self.events: list[StatementEvent] = []
        self._url, self._schema = url, schema
        self._driver: PostgresDriver | None = None

    async def open(self, *, migrate: bool = True, shipped: Sequence[Step] | None = None) -> int:
        await self.close()
        self._driver = await PostgresDriver.open(self._url, schema=self._schema, on_statement=self.events.append)
        return await open_postgres(self._driver, migrate=migrate, shipped=shipped)

    async def run(self, call: Call[T], mode: Mode) -> T:
        assert self._driver is not None
        return await self._driver.run(call, mode)

    @property
    def dialect(self) -> Dialect:
        assert self._driver is not None
        return self._driver.dialect

    async def close(self) -> None:
        if self._driver is not None:
            await self._driver.close()


class Sqlite:
    def __init__(self, path: Path) -> None:
        self.events: list[StatementEvent] = []
        self._path = path
        self._driver: SqliteDriver | None = None

    async def open(self, *, migrate: bool = True, shipped: Sequence[Step] | None = None) -> int:
        await self.close()
        self._driver = SqliteDriver.open(self._path, ring=no_ring, on_statement=self.events.append)
        return open_sqlite(self._driver, migrate=migrate, shipped=shipped)

    async def run(self, call: Call[T], mode: Mode) -> T:
        assert self._driver is not None
        return self._driver.submit(call, mode).result()

    @property
    def dialect(self) -> Dialect:
        assert self._driver is not None
        return self._driver.dialect

    async def close(self) -> None:
        if self._driver is not None:
            self._driver.close()


def no_ring(rings: object) -> None:
    """Nobody waits."""


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if request.param == "sqlite":
        return Sqlite(tmp_path / "agent.db")
    return Postgres(request.getfixturevalue("pg_url"), request.getfixturevalue("pg_schema"))


def on(engine: Engine, scenario: Callable[[], Any]) -> None:
    async def whole() -> None:
        try:
            await scenario()
        finally:
            await engine.close()

    asyncio.run(whole())


def second_step(sql: str = "ALTER TABLE {sessions} ADD COLUMN colour TEXT", *, compatible_from: int) -> tuple[Step, ...]:
    """The shipped migrations and one of tomorrow."""
    number = library_version() + 1
    return (*steps(), parse_step(number, f"-- compatible_from: {compatible_from}\n{sql};"))


def meta() -> Op[list[tuple[Any, ...]]]:
    rows = yield from fetch("SELECT version, compatible_from, migrated_ms > 0 FROM {meta}")
    return [tuple(row) for row in rows]


def columns_of_sessions() -> Op[None]:
    yield from fetch("SELECT session_id, colour FROM {sessions}")


# --- opening ---


def test_a_new_database_gets_every_table_in_one_transaction(engine: Engine) -> None:
    async def scenario() -> None:
        assert await engine.open() == library_version()
        for table in TABLES:
            sql: Any = f"SELECT count(*) FROM {{{table}}}"
            assert (await engine.run(partial(fetch, sql), Mode.READ))[0][0] == (table == "meta")
        assert await engine.run(meta, Mode.READ) == [(library_version(), steps()[-1].compatible_from, True)]

    on(engine, scenario)


@pytest.mark.parametrize("migrate", [True, False])
def test_a_database_that_is_up_to_date_sees_only_selects(engine: Engine, migrate: bool) -> None:
    async def scenario() -> None:
        await engine.open()
        engine.events.clear()
        assert await engine.open(migrate=migrate) == library_version()
        assert [event.operation for event in engine.events] == ["look", "look"]
        assert all(event.sql.strip().startswith("SELECT") for event in engine.events)

    on(engine, scenario)


def test_without_migrate_an_empty_database_is_refused_and_left_alone(engine: Engine) -> None:
    async def scenario() -> None:
        with pytest.raises(SchemaMismatch, match="migrate=True") as caught:
            await engine.open(migrate=False)
        assert (caught.value.found, caught.value.expected) == (0, library_version())
        assert await engine.run(partial(look, engine.dialect), Mode.READ) == Found(0, 0)

    on(engine, scenario)


def test_an_older_database_is_brought_forward(engine: Engine) -> None:
    async def scenario() -> None:
        await engine.open()
        tomorrow = second_step(compatible_from=1)
        with pytest.raises(SchemaMismatch, match="migrate=True") as caught:
            await engine.open(migrate=False, shipped=tomorrow)
        assert (caught.value.found, caught.value.expected) == (library_version(), library_version() + 1)
        assert await engine.open(shipped=tomorrow) == library_version() + 1
        await engine.run(columns_of_sessions, Mode.READ)

    on(engine, scenario)


def test_a_migration_that_fails_leaves_the_old_version(engine: Engine) -> None:
    async def scenario() -> None:
        await engine.open()
        broken = second_step(
            "ALTER TABLE {sessions} ADD COLUMN colour TEXT; INSERT INTO {meta} (no_such_column) VALUES (1)", compatible_from=1
        )
        with pytest.raises(SchemaMismatch):
            await engine.open(shipped=broken)
        assert await engine.open() == library_version()
        with pytest.raises(SchemaMismatch):
            await engine.run(columns_of_sessions, Mode.READ)

    on(engine, scenario)


def test_a_newer_database_that_is_compatible_opens(engine: Engine) -> None:
    async def scenario() -> None:
        await engine.open(shipped=second_step(compatible_from=library_version()))
        engine.events.clear()
        assert await engine.open() == library_version() + 1
        assert all(event.sql.strip().startswith("SELECT") for event in engine.events)
        assert await engine.run(partial(check_schema, engine.dialect), Mode.READ) == ()

    on(engine, scenario)


@pytest.mark.parametrize("migrate", [True, False])
def test_a_newer_database_that_is_not_compatible_is_refused(engine: Engine, migrate: bool) -> None:
    async def scenario() -> None:
        newer = library_version() + 1
        await engine.open(shipped=second_step(compatible_from=newer))
        with pytest.raises(SchemaMismatch, match=rf"version {newer}, library at {newer - 1}.*version {newer} on") as caught:
            await engine.open(migrate=migrate)
        assert (caught.value.found, caught.value.expected) == (newer, newer - 1)

    on(engine, scenario)


def test_a_lost_version_is_corruption_and_not_an_empty_database(engine: Engine) -> None:
    async def scenario() -> None:
        await engine.open()
        await engine.run(partial(execute, "DELETE FROM {meta}"), Mode.WRITE)
        with pytest.raises(Corrupt, match="meta"):
            await engine.open()

    on(engine, scenario)


def test_the_loser_of_a_race_finds_the_work_done(engine: Engine) -> None:
    async def scenario() -> None:
        await engine.open()
        engine.events.clear()
        assert await engine.run(partial(bring_up, engine.dialect, steps()), Mode.WRITE) == library_version()
        assert all(event.sql.strip().startswith("SELECT") for event in engine.events)

    on(engine, scenario)


# --- sixteen at once ---


def open_postgres_together(url: str, schema: str, start: Barrier) -> int:
    async def whole() -> int:
        driver = await PostgresDriver.open(url, schema=schema, pool_size=1)
        start.wait(60)
        try:
            return await open_postgres(driver, migrate=True)
        finally:
            await driver.close()

    return asyncio.run(whole())


def open_sqlite_together(path: str, _: str, start: Barrier) -> int:
    start.wait(60)
    driver = SqliteDriver.open(path, ring=no_ring, readers=1)
    try:
        return open_sqlite(driver, migrate=True)
    finally:
        driver.close()


def all_at_once(target: Callable[[str, str, Barrier], int], place: str, schema: str) -> list[int]:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        start: Any = manager.Barrier(PROCESSES)
        with context.Pool(PROCESSES) as pool:
            return pool.starmap(target, [(place, schema, start)] * PROCESSES, chunksize=1)


def test_sixteen_processes_open_a_new_postgresql_schema_at_once(pg_url: str, pg_schema: str) -> None:
    assert all_at_once(open_postgres_together, pg_url, pg_schema) == [library_version()] * PROCESSES


def test_sixteen_processes_open_a_new_sqlite_file_at_once(tmp_path: Path) -> None:
    assert all_at_once(open_sqlite_together, str(tmp_path / "agent.db"), "") == [library_version()] * PROCESSES


# --- rights ---


@asynccontextmanager
async def role(url: str, tcp_url: str, *, grants: str = "SELECT 1") -> AsyncGenerator[str, None]:
    """The URL of a new role that may do nothing but what it is granted."""
    name, password = f"r_{secrets.token_hex(6)}", secrets.token_hex(8)
    admin = await asyncpg.connect(url)
    try:
        await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        await admin.execute(grants.format(role=name))
        place = tcp_url.partition("@")[2]
        yield f"postgresql://{name}:{password}@{place}"
    finally:
        await admin.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")
        await admin.close()


def test_a_role_without_rights_cannot_create_the_schema(pg_url: str, pg_tcp_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with role(pg_url, pg_tcp_url) as url:
            engine = Postgres(url, pg_schema)
            with pytest.raises(NotPermitted, match="42501"):
                await engine.open()
            await engine.close()

    asyncio.run(scenario())


def test_a_role_that_may_only_use_the_tables_opens_with_migrate(pg_url: str, pg_tcp_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        owner = Postgres(pg_url, pg_schema)
        await owner.open()
        await owner.close()
        grants = (
            f'GRANT USAGE ON SCHEMA "{pg_schema}" TO {{role}};'
            f' GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{pg_schema}" TO {{role}}'
        )
        async with role(pg_url, pg_tcp_url, grants=grants) as url:
            user = Postgres(url, pg_schema)
            assert await user.open(migrate=True) == library_version()
            assert await user.run(partial(check_schema, user.dialect), Mode.READ) == ()
            with pytest.raises(NotPermitted):
                await user.open(shipped=second_step(compatible_from=1))
            await user.close()

    asyncio.run(scenario())


def test_a_role_that_owns_an_empty_schema_needs_no_right_on_the_database(pg_url: str, pg_tcp_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        grants = f'CREATE SCHEMA "{pg_schema}" AUTHORIZATION {{role}}'
        async with role(pg_url, pg_tcp_url, grants=grants) as url:
            engine = Postgres(url, pg_schema)
            assert await engine.open() == library_version()
            await engine.close()

    asyncio.run(scenario())


def test_a_schema_with_other_peoples_tables_is_refused(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        admin = await asyncpg.connect(pg_url)
        await admin.execute(f'CREATE SCHEMA "{pg_schema}"; CREATE TABLE "{pg_schema}".sessions (n int)')
        await admin.close()
        engine = Postgres(pg_url, pg_schema)
        with pytest.raises(SchemaMismatch, match="choose another schema"):
            await engine.open()
        await engine.close()

    asyncio.run(scenario())


# --- the shape ---

DAMAGE: list[tuple[LiteralString, str]] = [
    ("DROP TABLE {digests}", "table digests is missing"),
    ("ALTER TABLE {sessions} DROP COLUMN cwd", "column sessions.cwd is missing, expected text"),
    ("ALTER TABLE {sessions} ADD COLUMN colour TEXT", "column sessions.colour is unknown to this library"),
    ("CREATE UNIQUE INDEX extra ON {sessions} (name)", "unique index extra on sessions is unknown to this library"),
]


def test_a_fresh_database_has_the_shipped_shape(engine: Engine) -> None:
    async def scenario() -> None:
        await engine.open()
        assert await engine.run(partial(check_schema, engine.dialect), Mode.READ) == ()

    on(engine, scenario)


@pytest.mark.parametrize(("sql", "difference"), DAMAGE)
def test_a_difference_is_named(engine: Engine, sql: LiteralString, difference: str) -> None:
    async def scenario() -> None:
        await engine.open()
        await engine.run(partial(execute, sql), Mode.WRITE)
        assert difference in await engine.run(partial(check_schema, engine.dialect), Mode.READ)

    on(engine, scenario)


POSTGRES_DAMAGE: list[tuple[LiteralString, str]] = [
    ("ALTER TABLE {sessions} ALTER COLUMN fence TYPE int", "column sessions.fence is integer not null, expected bigint not null"),
    ('ALTER TABLE {nodes} ALTER COLUMN parent_id TYPE TEXT COLLATE "POSIX"', "column nodes.parent_id is text, expected key"),
    ("ALTER TABLE {sessions} ALTER COLUMN fence DROP NOT NULL", "column sessions.fence is bigint, expected bigint not null"),
    ("DROP INDEX {schema}.lash_nodes_by_id", "index lash_nodes_by_id on nodes is missing"),
    ("DROP FUNCTION {schema}.now_ms()", "function now_ms() is missing"),
    ("DROP FUNCTION {schema}.commit_v1", "function commit_v1() is missing"),
]


@pytest.mark.parametrize(("sql", "difference"), POSTGRES_DAMAGE)
def test_a_difference_only_postgresql_can_have_is_named(pg_url: str, pg_schema: str, sql: LiteralString, difference: str) -> None:
    engine = Postgres(pg_url, pg_schema)

    async def scenario() -> None:
        await engine.open()
        await engine.run(partial(execute, sql), Mode.WRITE)
        assert await engine.run(partial(check_schema, engine.dialect), Mode.READ) == (difference,)

    on(engine, scenario)


def test_the_shape_of_an_empty_database(engine: Engine) -> None:
    async def scenario() -> None:
        with pytest.raises(SchemaMismatch):
            await engine.open(migrate=False)
        assert await engine.run(partial(check_schema, engine.dialect), Mode.READ) == ("the database has no schema of the store",)

    on(engine, scenario)


def test_the_shipped_shape_names_every_table() -> None:
    assert {table for table, _ in shipped_shape().columns} == set(TABLES)
    assert shipped_shape().primary_keys["nodes"] == ("session_id", "branch", "depth")


# --- the files ---


def test_scripts_are_split_where_statements_end() -> None:
    text = """
    -- a comment; with a semicolon
    SELECT 'a;b'; SELECT ";" ;
    CREATE FUNCTION f() AS $$ BEGIN; END $$;
    """
    assert split(text) == ["SELECT 'a;b'", 'SELECT ";"', "CREATE FUNCTION f() AS $$ BEGIN; END $$"]


def test_a_migration_is_incompatible_unless_it_says_otherwise() -> None:
    assert parse_step(7, "SELECT 1").compatible_from == 7
    assert parse_step(7, "-- compatible_from: 5\nSELECT 1").compatible_from == 5


def test_a_function_file_holds_one_statement() -> None:
    assert all(len(split(text)) == 1 for text in functions())


@pytest.mark.parametrize(
    ("found", "migrate", "expected"),
    [
        (Found(0, 0), True, True),
        (Found(3, 1), True, False),
        (Found(3, 3), False, False),
        (Found(4, 3), True, False),
        (Found(2, 2), True, True),
    ],
)
def test_when_a_migration_is_needed(found: Found, migrate: bool, expected: bool) -> None:
    assert needs_migration(found, 3, migrate=migrate) is expected


def test_schemas_have_locks_of_their_own() -> None:
    keys = {lock_key(f"schema {n}") for n in range(1000)}
    assert len(keys) == 1000
    assert all(-(2**63) <= key < 2**63 for key in keys)
