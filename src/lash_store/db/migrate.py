"""Brings a database to the library's schema: forward only, one transaction, one migrator at a time.

The decision and the work are operations, so both engines run the same code. On a database that is up to date
nothing but one SELECT is issued: no right to create anything is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, LiteralString, cast

from msgspec import Struct

from lash_store.db.dialect import SQLITE_PREFIX, Dialect
from lash_store.db.driver import Mode, ThreadDriver
from lash_store.db.scripts import Step, functions, steps
from lash_store.errors import Corrupt, SchemaMismatch
from lash_store.ops.statement import Op, database_now, execute, fetch, fetch_one

if TYPE_CHECKING:  # asyncpg is an extra; SQLite works without it
    from lash_store.db.postgres import PostgresDriver

META: LiteralString = """
CREATE TABLE {meta} (
    only_row {int} PRIMARY KEY NOT NULL CHECK (only_row = 1),
    version {int} NOT NULL,
    compatible_from {int} NOT NULL,
    migrated_ms {int} NOT NULL
){strict}
"""


class Found(Struct, frozen=True):
    """What a database says about itself; version 0 is a database without our tables."""

    version: int
    compatible_from: int


EMPTY = Found(0, 0)


async def open_postgres(driver: PostgresDriver, *, migrate: bool, shipped: Sequence[Step] | None = None) -> int:
    """Check the schema, and bring it up to date when `migrate` is true. Its version."""
    known = tuple(shipped or steps())
    found = await driver.run(partial(look, driver.dialect), Mode.READ)
    driver.know_versions(found=found.version, expected=known[-1].version)
    if not needs_migration(found, known[-1].version, migrate=migrate):
        return found.version
    version = await driver.run(partial(bring_up, driver.dialect, known), Mode.WRITE, unbounded=True)
    driver.know_versions(found=version, expected=known[-1].version)
    return version


def open_sqlite(driver: ThreadDriver, *, migrate: bool, shipped: Sequence[Step] | None = None) -> int:
    """The same for SQLite. Waits for the driver's threads, so it belongs into a thread when called from a loop."""
    known = tuple(shipped or steps())
    found = driver.submit(partial(look, driver.dialect), Mode.READ).result()
    driver.know_versions(found=found.version, expected=known[-1].version)
    if not needs_migration(found, known[-1].version, migrate=migrate):
        return found.version
    version = driver.submit(partial(bring_up, driver.dialect, known), Mode.WRITE).result()
    driver.know_versions(found=version, expected=known[-1].version)
    return version


def needs_migration(found: Found, expected: int, *, migrate: bool) -> bool:
    """Whether the schema is behind and we may change it. SchemaMismatch when it is behind and we may not, or too far ahead."""
    if found.compatible_from > expected:
        why = f"it only works with libraries from schema version {found.compatible_from} on. Upgrade lash-store"
        raise SchemaMismatch(why, found=found.version, expected=expected)
    if found.version >= expected:
        return False
    if not migrate:
        why = "migrate=False. Open it once with migrate=True, with a role that may create tables"
        raise SchemaMismatch(why, found=found.version, expected=expected)
    return True


def look(dialect: Dialect) -> Op[Found]:
    """The version of the schema."""
    exists = yield from _HAS_META[dialect.engine](dialect)
    if not exists:
        return EMPTY
    row = yield from fetch_one("SELECT version, compatible_from FROM {meta}")
    if row is None:
        raise Corrupt("meta", "1", "the row that holds the schema's version is missing")
    return Found(row[0], row[1])


def bring_up(dialect: Dialect, known: Sequence[Step]) -> Op[int]:
    """Run what is missing, and say so. Look again under the lock: another process may have done it meanwhile."""
    yield from _LOCK[dialect.engine](dialect)
    found = yield from look(dialect)
    if not needs_migration(found, known[-1].version, migrate=True):
        return found.version
    if found == EMPTY:
        yield from _CREATE[dialect.engine](dialect)
    for step in known[found.version :]:
        for statement in step.statements:
            yield from _ddl(dialect, statement)
    yield from _FUNCTIONS[dialect.engine]()
    return (yield from _record(found, known))


def _record(found: Found, known: Sequence[Step]) -> Op[int]:
    now_ms = yield from database_now()
    version = known[-1].version
    compatible_from = max(found.compatible_from, *(step.compatible_from for step in known[found.version :]))
    yield from execute(
        """
        INSERT INTO {meta} (only_row, version, compatible_from, migrated_ms)
        VALUES (1, :version, :compatible_from, :now_ms)
        ON CONFLICT (only_row) DO UPDATE
        SET version = excluded.version, compatible_from = excluded.compatible_from, migrated_ms = excluded.migrated_ms
        """,
        version=version,
        compatible_from=compatible_from,
        now_ms=now_ms,
    )
    return version


def lock_key(schema: str) -> int:
    """The advisory lock of a schema: a 64-bit number nobody else is likely to choose."""
    return int.from_bytes(hashlib.sha256(f"lash-store migration of {schema}".encode()).digest()[:8], "big", signed=True)


def _nothing(*_: Dialect) -> Op[None]:
    yield from ()


def _lock_postgres(dialect: Dialect) -> Op[None]:
    yield from fetch("SELECT pg_advisory_xact_lock(CAST(:key AS BIGINT))", key=lock_key(dialect.schema))


def _has_meta_postgres(dialect: Dialect) -> Op[bool]:
    row = yield from fetch_one(
        """
        SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = CAST(:schema AS TEXT) AND c.relname = 'meta'
        """,
        schema=dialect.schema,
    )
    return row is not None


def _has_meta_sqlite(_: Dialect) -> Op[bool]:
    row = yield from fetch_one("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name", name=f"{SQLITE_PREFIX}meta")
    return row is not None


def _create_postgres(dialect: Dialect) -> Op[None]:
    # IF NOT EXISTS would ask for the right to create schemas even where the schema exists.
    exists = yield from fetch_one(
        "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = CAST(:schema AS TEXT)", schema=dialect.schema
    )
    if exists is None:
        yield from execute("CREATE SCHEMA {schema}")
    yield from execute(META)


def _create_sqlite(_: Dialect) -> Op[None]:
    yield from execute(META)


def _ddl(dialect: Dialect, statement: str) -> Op[None]:
    if "{body}" in statement and dialect.engine == "postgresql":
        statement = yield from _without_lz4(statement)
    # The text is a shipped file: as constant as any.
    yield from execute(cast("LiteralString", statement))


def _without_lz4(statement: str) -> Op[str]:
    supported = yield from fetch_one(
        "SELECT 1 FROM pg_catalog.pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY(enumvals)"
    )
    return statement if supported is not None else statement.replace("{body}", "TEXT")


def _functions_postgres() -> Op[None]:
    for text in functions():
        yield from execute(cast("LiteralString", text))


# What only one engine has: schemas, advisory locks, functions. SQLite's write transaction is its lock.
_HAS_META: dict[str, Callable[[Dialect], Op[bool]]] = {"postgresql": _has_meta_postgres, "sqlite": _has_meta_sqlite}
_LOCK: dict[str, Callable[[Dialect], Op[None]]] = {"postgresql": _lock_postgres, "sqlite": _nothing}
_CREATE: dict[str, Callable[[Dialect], Op[None]]] = {"postgresql": _create_postgres, "sqlite": _create_sqlite}
_FUNCTIONS: dict[str, Callable[[], Op[None]]] = {"postgresql": _functions_postgres, "sqlite": _nothing}
