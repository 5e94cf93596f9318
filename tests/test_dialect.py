"""One SQL text, two spellings."""

from __future__ import annotations

import pytest

from lash_store.db.dialect import TABLES, Dialect, PostgresDialect, SqliteDialect
from lash_store.errors import InvalidArgument

POSTGRES = PostgresDialect("agents")
SQLITE = SqliteDialect()
BOTH: list[Dialect] = [POSTGRES, SQLITE]


def test_a_parameter_used_twice_is_one_parameter() -> None:
    sql = "SELECT :b, :a, :b"
    assert POSTGRES.compile(sql).text == "SELECT $1, $2, $1"
    assert SQLITE.compile(sql).text == "SELECT ?1, ?2, ?1"
    assert POSTGRES.compile(sql).arguments({"a": 1, "b": 2}) == [2, 1]
    assert SQLITE.compile(sql).json_arguments({"a": 1, "b": 2}) == [2, 1]


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT x::text",
        "SELECT ':name {nothing}'",
        "SELECT 'it''s :here'",
        'SELECT ":name"',
        "-- why :this {is} left\nSELECT 1",
        "SELECT a := 1",
    ],
)
def test_casts_literals_names_and_comments_stay(dialect: Dialect, sql: str) -> None:
    compiled = dialect.compile(sql)
    assert compiled.text == sql
    assert compiled.order == ()


def test_tables_are_qualified_or_prefixed() -> None:
    for name in TABLES:
        sql = f"{{{name}}}.session_id"
        assert POSTGRES.compile(sql).text == f'"agents".{name}.session_id'
        assert SQLITE.compile(sql).text == f"lash_{name}.session_id"


def test_ddl_types() -> None:
    sql = "CREATE TABLE {nodes} (a {key}, b {int}, c {bytes}, d {body}){strict}"
    assert POSTGRES.compile(sql).text == (
        'CREATE TABLE "agents".nodes (a TEXT COLLATE "C", b BIGINT, c BYTEA, d TEXT COMPRESSION lz4)'
    )
    assert SQLITE.compile(sql).text == "CREATE TABLE lash_nodes (a TEXT, b INTEGER, c BLOB, d TEXT) STRICT"
    keyed = "CREATE TABLE {digests} (a {key} PRIMARY KEY){strict_keyed}"
    assert POSTGRES.compile(keyed).text == 'CREATE TABLE "agents".digests (a TEXT COLLATE "C" PRIMARY KEY)'
    assert SQLITE.compile(keyed).text == "CREATE TABLE lash_digests (a TEXT PRIMARY KEY) STRICT, WITHOUT ROWID"


def test_locks_and_clock() -> None:
    sql = "SELECT {now_ms} {for_update} {skip_locked}"
    assert POSTGRES.compile(sql).text == 'SELECT "agents".now_ms() FOR UPDATE FOR UPDATE SKIP LOCKED'
    assert SQLITE.compile(sql).text == "SELECT lash_now_ms()  "


def test_a_list_is_an_array_or_json() -> None:
    sql = "SELECT 1 WHERE a = :a AND id {any_text:ids} AND n {any_int:numbers}"
    assert POSTGRES.compile(sql).text == "SELECT 1 WHERE a = $1 AND id = ANY($2::text[]) AND n = ANY($3::bigint[])"
    assert SQLITE.compile(sql).text == (
        "SELECT 1 WHERE a = ?1 AND id IN (SELECT value FROM json_each(?2)) AND n IN (SELECT value FROM json_each(?3))"
    )
    params = {"a": 1, "ids": ["x", "ü"], "numbers": (1, 2**62)}
    assert POSTGRES.compile(sql).arguments(params) == [1, ["x", "ü"], (1, 2**62)]
    assert SQLITE.compile(sql).json_arguments(params) == [1, '["x", "\\u00fc"]', f"[1, {2**62}]"]


def test_rows_are_arrays_or_one_execution_each() -> None:
    sql = "INSERT INTO {nodes} SELECT :session_id, rows.a, rows.b, rows.c FROM {rows(a text, b int, c bytes)}"
    rows = [{"a": "x", "b": 1, "c": b"1"}, {"a": "y", "b": 2, "c": None}]
    postgres, sqlite = POSTGRES.compile(sql), SQLITE.compile(sql)
    assert postgres.text.endswith("FROM unnest($2::text[], $3::bigint[], $4::bytea[]) AS rows(a, b, c)")
    assert sqlite.text == "INSERT INTO lash_nodes SELECT ?1, ?2, ?3, ?4 "
    assert postgres.arrays(rows, {"session_id": "s"}) == ["s", ["x", "y"], [1, 2], [b"1", None]]
    assert sqlite.each(rows, {"session_id": "s"}) == [["s", "x", 1, b"1"], ["s", "y", 2, None]]


def test_rows_can_be_joined_and_need_not_be_used() -> None:
    sql = "SELECT rows.b, m.x FROM {rows(a text, b int)} JOIN {meta} m ON m.x = rows.b"
    assert SQLITE.compile(sql).text == "SELECT ?1, m.x FROM (SELECT 1) AS rows JOIN lash_meta m ON m.x = ?1"
    assert SQLITE.compile(sql).each([{"a": "unused", "b": 7}], {}) == [[7]]
    assert "FROM unnest($1::text[], $2::bigint[]) AS rows(a, b) JOIN" in POSTGRES.compile(sql).text


def test_a_lookup_is_never_a_scan() -> None:
    sql = "SELECT n.x FROM run CROSS JOIN {lookup}{meta} n WHERE n.x = run.x {end_lookup:n}"
    assert SQLITE.compile(sql).text == "SELECT n.x FROM run CROSS JOIN lash_meta n WHERE n.x = run.x "
    assert POSTGRES.compile(sql).text == (
        'SELECT n.x FROM run CROSS JOIN LATERAL (SELECT * FROM "agents".meta n WHERE n.x = run.x  OFFSET 0) n'
    )


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT {unknown}",
        "SELECT {end_lookup}",
        "SELECT {}",
        "SELECT 1 WHERE a {any_bytes:xs}",
        "SELECT 1 FROM {rows(a blob)}",
        "SELECT 1 FROM {rows()}",
        "SELECT :a FROM {rows(a text)}",
        "SELECT rows.b FROM {rows(a text)}",
        "SELECT rows.a",
        "SELECT 1, {rows(a text)}",
    ],
)
def test_a_mistake_is_an_error_when_the_text_is_compiled(dialect: Dialect, sql: str) -> None:
    with pytest.raises(ValueError, match="SELECT"):
        dialect.compile(sql)


def test_a_text_is_compiled_once() -> None:
    assert POSTGRES.compile("SELECT :x") is POSTGRES.compile("SELECT :x")


def test_a_schema_name_cannot_leave_its_quotes() -> None:
    assert PostgresDialect('a"; DROP').compile("{meta}").text == '"a""; DROP".meta'


@pytest.mark.parametrize("schema", ["", "x" * 64, "a\0b", "a\nb"])
def test_a_schema_name_the_engine_would_change_is_refused(schema: str) -> None:
    with pytest.raises(InvalidArgument):
        PostgresDialect(schema)
