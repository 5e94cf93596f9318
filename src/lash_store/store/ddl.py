"""The shipped schema as one script, for those who let a database administrator run it."""

from __future__ import annotations

from collections.abc import Iterator

from lash_store.db.dialect import Dialect, PostgresDialect, SqliteDialect
from lash_store.db.migrate import META
from lash_store.db.scripts import functions, library_version, steps
from lash_store.errors import InvalidArgument
from lash_store.store.url import DEFAULT_SCHEMA

# The driver's own clock is not there when another program runs the script.
NOW_MS = {
    "postgresql": "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    "sqlite": "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
}


def schema_sql(engine: str, *, schema: str = DEFAULT_SCHEMA, since: int = 0) -> str:
    """The SQL that brings a database from schema version `since` to this library's; 0 is a database without our tables.

    It is one transaction, for `psql` or `sqlite3`. It does what opening with migrate=True does, so that afterwards
    migrate=False is enough. At the library's version or a later one, it is empty.
    """
    dialect = _dialect(engine, schema)
    if not isinstance(since, int) or since < 0:  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
        raise InvalidArgument("since", "must be a schema version: 0, 1, 2 …")
    if since >= library_version():
        return ""
    return "\n\n".join(["BEGIN;", *(f"{statement.strip()};" for statement in _statements(dialect, since)), "COMMIT;"]) + "\n"


def _dialect(engine: str, schema: str) -> Dialect:
    if engine == "postgresql":
        return PostgresDialect(schema)
    if engine == "sqlite":
        return SqliteDialect()
    raise InvalidArgument("engine", 'must be "postgresql" or "sqlite"')


def _statements(dialect: Dialect, since: int) -> Iterator[str]:
    if since == 0 and dialect.engine == "postgresql":
        yield dialect.compile("CREATE SCHEMA IF NOT EXISTS {schema}").text
    if since == 0:
        yield dialect.compile(META).text
    for step in steps()[since:]:
        for statement in step.statements:
            yield dialect.compile(statement).text
    if dialect.engine == "postgresql":
        yield from (dialect.compile(text).text.rstrip().rstrip(";") for text in functions())
    yield _record(dialect, since)


def _record(dialect: Dialect, since: int) -> str:
    version, oldest = library_version(), max(step.compatible_from for step in steps()[since:])
    table, now_ms = dialect.compile("{meta}").text, NOW_MS[dialect.engine]
    if since == 0:
        return f"INSERT INTO {table} (only_row, version, compatible_from, migrated_ms)\nVALUES (1, {version}, {oldest}, {now_ms})"
    return (
        f"UPDATE {table}\nSET version = {version}, compatible_from = max(compatible_from, {oldest}), migrated_ms = {now_ms}"
        if dialect.engine == "sqlite"
        else f"UPDATE {table}\n"
        f"SET version = {version}, compatible_from = greatest(compatible_from, {oldest}), migrated_ms = {now_ms}"
    )
