"""Compares the tables of a database with those the shipped migrations make. It only reads.

What the migrations make is found by running them in an empty in-memory SQLite, whose column types are mere words:
so the files are the only description of the schema, and both engines are held against the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache

import apsw
from msgspec import Struct

from lash_store.db.dialect import SQLITE_PREFIX, TABLES, Dialect
from lash_store.db.migrate import META, look
from lash_store.db.scripts import function_names, library_version, steps
from lash_store.ops.statement import Op, Row, fetch


class Column(Struct, frozen=True):
    """`type` is bigint, bytea, text, or key: text in byte order."""

    type: str
    required: bool


class Index(Struct, frozen=True):
    """The columns in their order."""

    columns: tuple[str, ...]
    unique: bool
    partial: bool


class Shape(Struct, frozen=True):
    """Tables with their columns and primary keys, and indexes. Names without schema or prefix."""

    columns: dict[tuple[str, str], Column]  # by (table, column)
    primary_keys: dict[str, tuple[str, ...]]
    indexes: dict[tuple[str, str], Index]  # by (table, index)


def check_schema(dialect: Dialect) -> Op[tuple[str, ...]]:
    """Every difference between the database and the shipped schema, in words; none is good."""
    found = yield from look(dialect)
    if found.version == 0:
        return ("the database has no schema of the store",)
    actual = yield from _READ[dialect.engine](dialect)
    missing = yield from _MISSING_FUNCTIONS[dialect.engine](dialect)
    expected = shipped_shape() if dialect.engine == "postgresql" else _without_collation(shipped_shape())
    newer = found.version > library_version()
    return (*differences(expected, actual, newer=newer), *missing)


def differences(expected: Shape, actual: Shape, *, newer: bool) -> Iterator[str]:
    """What is missing, and what is different. A newer compatible schema may have more than we know."""
    yield from _column_differences(expected, actual)
    for table, columns in expected.primary_keys.items():
        if table in actual.primary_keys and actual.primary_keys[table] != columns:
            yield f"table {table}: primary key is {actual.primary_keys[table]}, expected {columns}"
    yield from _index_differences(expected, actual)
    if not newer:
        yield from _surplus(expected, actual)


def _column_differences(expected: Shape, actual: Shape) -> Iterator[str]:
    tables = {table for table, _ in actual.columns}
    for table in dict.fromkeys(table for table, _ in expected.columns if table not in tables):
        yield f"table {table} is missing"
    for (table, name), column in expected.columns.items():
        found = actual.columns.get((table, name))
        if table not in tables or found == column:
            continue
        yield f"column {table}.{name} is {_described(found)}, expected {_described(column)}"


def _described(column: Column | None) -> str:
    return "missing" if column is None else f"{column.type}{' not null' if column.required else ''}"


def _index_differences(expected: Shape, actual: Shape) -> Iterator[str]:
    for (table, name), index in expected.indexes.items():
        found = actual.indexes.get((table, name))
        if found is None:
            yield f"index {name} on {table} is missing"
        elif found != index:
            yield f"index {name} on {table} is {found}, expected {index}"


def _surplus(expected: Shape, actual: Shape) -> Iterator[str]:
    known = {table for table, _ in expected.columns}
    for table, name in actual.columns.keys() - expected.columns.keys():
        if table in known:
            yield f"column {table}.{name} is unknown to this library"
    for (table, name), index in actual.indexes.items():
        # An index of the operator's own is welcome; one that refuses rows is not.
        if index.unique and (table, name) not in expected.indexes and table in known:
            yield f"unique index {name} on {table} is unknown to this library"


class _ShapeDialect(Dialect):
    engine = "shape"
    schema = "main"

    def __init__(self) -> None:
        types = {"key": "key", "int": "bigint", "bytes": "bytea", "body": "text", "strict": "", "strict_keyed": "", "now_ms": "0"}
        super().__init__({name: name for name in TABLES} | types)


@cache
def shipped_shape() -> Shape:
    """The shape after all shipped migrations."""
    dialect = _ShapeDialect()
    with closing(apsw.Connection(":memory:")) as connection:
        for statement in [META, *(statement for step in steps() for statement in step.statements)]:
            connection.execute(dialect.compile(statement).text)
        columns, indexes = list(connection.execute(_SQLITE_COLUMNS)), list(connection.execute(_SQLITE_INDEXES))
    return _assemble(columns, indexes, prefix="")


def _assemble(columns: Sequence[Row], indexes: Sequence[Row], *, prefix: str) -> Shape:
    """Rows of (table, column, type, required, place in the primary key) and (table, index, unique, partial, column)."""
    shape = Shape({}, {}, {})
    for table, name, type_name, required, _ in columns:
        shape.columns[table.removeprefix(prefix), name] = Column(_plain(type_name), bool(required))
    for table, name, _, _, place in sorted(columns, key=lambda row: (row[0], row[4])):
        if place:
            key = table.removeprefix(prefix)
            shape.primary_keys[key] = (*shape.primary_keys.get(key, ()), name)
    for table, index, unique, partial, column in indexes:
        place = (table.removeprefix(prefix), index)
        before = shape.indexes[place].columns if place in shape.indexes else ()
        shape.indexes[place] = Index((*before, column), bool(unique), bool(partial))
    return shape


def _without_collation(shape: Shape) -> Shape:
    # SQLite compares text byte by byte unless told otherwise.
    columns = {
        name: Column("text" if column.type == "key" else column.type, column.required) for name, column in shape.columns.items()
    }
    return Shape(columns, shape.primary_keys, shape.indexes)


def _plain(type_name: str) -> str:
    return {"INTEGER": "bigint", "BLOB": "bytea", "TEXT": "text"}.get(type_name, type_name)


_SQLITE_COLUMNS = """
SELECT t.name, c.name, c.type, c."notnull", c.pk
FROM sqlite_master t JOIN pragma_table_info(t.name) c
WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%'
ORDER BY t.name, c.cid
"""

_SQLITE_INDEXES = """
SELECT t.name, i.name, i."unique", i.partial, c.name
FROM sqlite_master t JOIN pragma_index_list(t.name) i JOIN pragma_index_info(i.name) c
WHERE t.type = 'table' AND i.origin = 'c'
ORDER BY t.name, i.name, c.seqno
"""

_POSTGRES_COLUMNS = """
SELECT t.relname, c.attname,
       CASE WHEN o.collname = 'C' THEN 'key' ELSE pg_catalog.format_type(c.atttypid, c.atttypmod) END,
       c.attnotnull, coalesce(pg_catalog.array_position(p.indkey::int2[], c.attnum) + 1, 0)
FROM pg_catalog.pg_class t
JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
JOIN pg_catalog.pg_attribute c ON c.attrelid = t.oid AND c.attnum > 0 AND NOT c.attisdropped
LEFT JOIN pg_catalog.pg_collation o ON o.oid = c.attcollation
LEFT JOIN pg_catalog.pg_index p ON p.indrelid = t.oid AND p.indisprimary
WHERE n.nspname = CAST(:schema AS TEXT) AND t.relkind IN ('r', 'p')
ORDER BY t.relname, c.attnum
"""

_POSTGRES_INDEXES = """
SELECT t.relname, i.relname, x.indisunique, x.indpred IS NOT NULL,
       pg_catalog.pg_get_indexdef(i.oid, k.place, true)
FROM pg_catalog.pg_index x
JOIN pg_catalog.pg_class t ON t.oid = x.indrelid
JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
CROSS JOIN LATERAL pg_catalog.generate_series(1, x.indnkeyatts) k(place)
WHERE n.nspname = CAST(:schema AS TEXT) AND NOT x.indisprimary AND x.indisvalid
ORDER BY t.relname, i.relname, k.place
"""


def _read_postgres(dialect: Dialect) -> Op[Shape]:
    columns = yield from fetch(_POSTGRES_COLUMNS, schema=dialect.schema)
    indexes = yield from fetch(_POSTGRES_INDEXES, schema=dialect.schema)
    return _assemble(columns, indexes, prefix="")


def _read_sqlite(_: Dialect) -> Op[Shape]:
    columns = yield from fetch(_SQLITE_COLUMNS)
    indexes = yield from fetch(_SQLITE_INDEXES)
    ours = tuple(SQLITE_PREFIX + name for name in TABLES)
    return _assemble([row for row in columns if row[0] in ours], [row for row in indexes if row[0] in ours], prefix=SQLITE_PREFIX)


def _missing_functions(dialect: Dialect) -> Op[tuple[str, ...]]:
    rows = yield from fetch(
        """
        SELECT p.proname FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = CAST(:schema AS TEXT)
        """,
        schema=dialect.schema,
    )
    there = {row[0] for row in rows}
    return tuple(f"function {name}() is missing" for name in function_names() if name not in there)


def _none_missing(_: Dialect) -> Op[tuple[str, ...]]:
    yield from ()
    return ()


_READ: dict[str, Callable[[Dialect], Op[Shape]]] = {"postgresql": _read_postgres, "sqlite": _read_sqlite}
_MISSING_FUNCTIONS: dict[str, Callable[[Dialect], Op[tuple[str, ...]]]] = {
    "postgresql": _missing_functions,
    "sqlite": _none_missing,
}
