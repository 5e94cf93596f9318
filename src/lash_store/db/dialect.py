"""Spells one SQL text for each engine. Tokens substitute, they never branch.

    :name                          a parameter: $1, $2 … or ?1, ?2 …; a name used twice is one parameter
    {sessions} {nodes} …           a table
    {key} {int} {bytes} {body}     column types; {strict} ends a CREATE TABLE
    {strict_keyed}                 the same for short rows, which SQLite then keeps in the primary key and not beside it
    {for_update} {skip_locked}     row locks, which SQLite neither has nor needs
    {now_ms}                       the database's clock
    {any_text:ids} {any_int:xs}    membership in a list parameter, written after the column
    CROSS JOIN {lookup}{t} x WHERE … {end_lookup:x}
                                   few rows on the left, each with a search by key on the right: never a scan of {t}
    FROM {rows(a text, b int)}     the rows of an ExecuteMany: `rows.a` is a column of a table, or a value of the one row

String literals, quoted names, comments and `::` stay as they are. An unknown token is an error when the text is compiled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from lash_store.errors import InvalidArgument

TABLES = (
    "sessions",
    "branches",
    "nodes",
    "commits",
    "configs",
    "frames",
    "components",
    "versions",
    "usage_entries",
    "usage_totals",
    "batches",
    "settled_keys",
    "attachments",
    "digests",
    "chunks",
    "meta",
    "processes",
    "registrations",
    "events",
    "grants",
    "counters",
    "subscriptions",
    "occurrences",
    "deliveries",
    "schedules",
    "artifacts",
)

SQLITE_PREFIX = "lash_"  # our tables share the file with the application's own
IDENTIFIER_MAX_BYTES = 63  # PostgreSQL cuts longer names off without a word

_LEXEME = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | :: | :(?P<name>[A-Za-z_]\w*) | \{(?P<token>[^{}]*)\}
      | \bFROM\s+\{(?P<rows>rows\([^{}]*)\}(?P<joined>(?=\s+JOIN\b))? | \brows\.(?P<column>[A-Za-z_]\w*)""",
    re.VERBOSE,
)
_END_LOOKUP = re.compile(r"end_lookup:(?P<alias>[a-z]\w*)")
_LIST = re.compile(r"any_(?P<type>text|int):(?P<name>[A-Za-z_]\w*)")
_ROWS = re.compile(r"rows\((?P<columns>[^()]*)\)")
_COLUMN = re.compile(r"\s*(?P<name>[A-Za-z_]\w*) (?P<type>text|int|bytes)\s*")
_ARRAYS = {"text": "text[]", "int": "bigint[]", "bytes": "bytea[]"}


class Compiled(Struct, frozen=True):
    """A text for one engine, and the names of its parameters in their order."""

    text: str
    order: tuple[str, ...]
    columns: frozenset[str]  # of {rows(…)}: these parameters come from the rows of an ExecuteMany
    lists: frozenset[str]  # parameters that are lists

    def arguments(self, params: Mapping[str, Any]) -> list[Any]:
        """The values in the order of the text."""
        return [params[name] for name in self.order]

    def arrays(self, rows: Iterable[Mapping[str, Any]], params: Mapping[str, Any]) -> list[Any]:
        """PostgreSQL: one array per column of the rows, and the other values as they are."""
        rows = list(rows)
        return [[row[name] for row in rows] if name in self.columns else params[name] for name in self.order]

    def json_arguments(self, params: Mapping[str, Any]) -> list[Any]:
        """SQLite: lists travel as JSON text."""
        if not self.lists:
            return self.arguments(params)
        return [_json(params[name]) if name in self.lists else params[name] for name in self.order]

    def each(self, rows: Iterable[Mapping[str, Any]], params: Mapping[str, Any]) -> list[list[Any]]:
        """SQLite: the values of one execution per row."""
        same = {name: _json(params[name]) if name in self.lists else params[name] for name in self.order if name in params}
        return [[same[name] if name in same else row[name] for name in self.order] for row in rows]


def _json(values: Iterable[Any]) -> str:
    return json.dumps(list(values))


class Dialect:
    """The spelling of one engine. One per driver, because it knows the schema."""

    engine: str
    schema: str
    _mark = "?"
    _member = ""  # of a list: the place of the parameter, and its array type
    _end_lookup = ""  # of the table that is looked up: its alias

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._tokens = dict(tokens)
        self._compiled: dict[str, Compiled] = {}  # bounded: operations only hold constants

    def compile(self, sql: str) -> Compiled:
        """The text for this engine."""
        compiled = self._compiled.get(sql)
        if compiled is None:
            compiled = self._compiled[sql] = self._compile(sql)
        return compiled

    def _compile(self, sql: str) -> Compiled:
        places = _Places(self._mark)
        text = _LEXEME.sub(lambda lexeme: self._spell(lexeme, places, sql), sql)
        shared = places.declared & places.outside
        if shared:
            raise ValueError(f"{sorted(shared)} name both a column of {{rows(…)}} and a parameter: {sql}")
        unknown = places.used - places.declared
        if unknown:
            raise ValueError(f"{sorted(unknown)} are no columns of {{rows(…)}}: {sql}")
        return Compiled(text, tuple(places.numbers), frozenset(places.columns), frozenset(places.lists))

    def _spell(self, lexeme: re.Match[str], places: _Places, sql: str) -> str:
        name, token = lexeme["name"], lexeme["token"]
        if name is not None:
            return places.parameter(name)
        if lexeme["column"] is not None:
            places.used.add(lexeme["column"])
            return self._value(lexeme["column"], places)
        if lexeme["rows"] is not None:
            columns = _columns(lexeme["rows"], sql)
            places.declared.update(name for name, _ in columns)
            return self._rows(columns, places, joined=lexeme["joined"] is not None)
        if token is None:
            return lexeme[0]
        if token in self._tokens:
            return self._tokens[token]
        if found := _END_LOOKUP.fullmatch(token):
            return self._end_lookup.format(found["alias"])
        if found := _LIST.fullmatch(token):
            return self._member.format(places.list(found["name"]), _ARRAYS[found["type"]])
        raise ValueError(f"unknown token {{{token}}} for {self.engine} in: {sql}")

    def _rows(self, columns: list[tuple[str, str]], places: _Places, *, joined: bool) -> str:
        raise NotImplementedError

    def _value(self, column: str, places: _Places) -> str:
        raise NotImplementedError


class PostgresDialect(Dialect):
    """PostgreSQL: every table is qualified by its schema."""

    engine = "postgresql"
    _mark = "$"
    _member = "= ANY({}::{})"
    _end_lookup = " OFFSET 0) {}"  # which keeps the planner from taking the subquery apart, and joining by a scan

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._calls: dict[str, str] = {}
        prefix = quoted(schema)
        super().__init__(
            {name: f"{prefix}.{name}" for name in TABLES}
            | {"schema": prefix, "strict": "", "strict_keyed": "", "key": 'TEXT COLLATE "C"', "int": "BIGINT", "bytes": "BYTEA"}
            | {"body": "TEXT COMPRESSION lz4"}
            | {"lookup": "LATERAL (SELECT * FROM "}
            | {"for_update": "FOR UPDATE", "skip_locked": "FOR UPDATE SKIP LOCKED", "now_ms": f"{prefix}.now_ms()"}
        )

    def function_call(self, function: str, arguments: int) -> str:
        """The statement that calls a function of the schema."""
        text = self._calls.get(function)
        if text is None:
            places = ", ".join(f"${i}" for i in range(1, arguments + 1))
            text = self._calls[function] = f"SELECT * FROM {quoted(self.schema)}.{function}({places})"
        return text

    def _rows(self, columns: list[tuple[str, str]], places: _Places, *, joined: bool) -> str:
        arrays = ", ".join(f"{places.column(name)}::{_ARRAYS[type_name]}" for name, type_name in columns)
        return f"FROM unnest({arrays}) AS rows({', '.join(name for name, _ in columns)})"

    def _value(self, column: str, places: _Places) -> str:
        return f"rows.{column}"


class SqliteDialect(Dialect):
    """SQLite: our tables carry a prefix; the driver registers lash_now_ms()."""

    engine = "sqlite"
    schema = "main"
    _mark = "?"
    _member = "IN (SELECT value FROM json_each({}))"

    def __init__(self) -> None:
        super().__init__(
            {name: SQLITE_PREFIX + name for name in TABLES}
            | {"key": "TEXT", "int": "INTEGER", "bytes": "BLOB", "body": "TEXT"}
            | {"strict": " STRICT", "strict_keyed": " STRICT, WITHOUT ROWID"}
            | {"lookup": ""}  # it loops over a CROSS JOIN from left to right
            | {"for_update": "", "skip_locked": "", "now_ms": "lash_now_ms()"}
        )

    def _rows(self, columns: list[tuple[str, str]], places: _Places, *, joined: bool) -> str:
        # Each row is an execution of its own. As a table of one row, an UPDATE FROM would copy it first, at 20 times the cost.
        return "FROM (SELECT 1) AS rows" if joined else ""

    def _value(self, column: str, places: _Places) -> str:
        return places.column(column)


class _Places:
    """Numbers the parameters of one text in the order they appear."""

    def __init__(self, mark: str) -> None:
        self.numbers: dict[str, int] = {}
        self.columns: set[str] = set()
        self.lists: set[str] = set()
        self.outside: set[str] = set()
        self.declared: set[str] = set()
        self.used: set[str] = set()
        self._mark = mark

    def parameter(self, name: str) -> str:
        self.outside.add(name)
        return self._place(name)

    def list(self, name: str) -> str:
        self.lists.add(name)
        return self.parameter(name)

    def column(self, name: str) -> str:
        self.columns.add(name)
        return self._place(name)

    def _place(self, name: str) -> str:
        return f"{self._mark}{self.numbers.setdefault(name, len(self.numbers) + 1)}"


def quoted(schema: str) -> str:
    """A schema name as an SQL identifier."""
    if not schema or not schema.isprintable() or len(schema.encode()) > IDENTIFIER_MAX_BYTES:
        raise InvalidArgument("schema", f"must be 1 to {IDENTIFIER_MAX_BYTES} bytes of printable text")
    doubled = schema.replace('"', '""')
    return f'"{doubled}"'


def _columns(token: str, sql: str) -> list[tuple[str, str]]:
    found = _ROWS.fullmatch(token)
    if found is None:
        raise ValueError(f"unknown token {{{token}}} in: {sql}")
    return [_column(part, sql) for part in found["columns"].split(",")]


def _column(part: str, sql: str) -> tuple[str, str]:
    column = _COLUMN.fullmatch(part)
    if column is None:
        raise ValueError(f"{part!r} is not `name text`, `name int` or `name bytes` in: {sql}")
    return column["name"], column["type"]
