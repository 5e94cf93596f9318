"""Payload schemas: real JSON Schema, checked when declared, never fetched, linear, bounded."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from lash_store import payload_schema
from lash_store.errors import InvalidArgument, InvalidPayload, LimitExceeded
from lash_store.payload_schema import COMPILED_MAX, DRAFT, SCHEMA_BYTES_MAX, Schemas


@pytest.fixture
def schemas() -> Schemas:
    return Schemas()


def fits(schemas: Schemas, schema: Any, payload: Any) -> bool:
    schemas.check(schema, "schema")
    try:
        schemas.validate(schema, payload, "what")
    except InvalidPayload:
        return False
    return True


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (True, [None, 1, "x", {}], []),
        ({}, [None, 1, "x", {}], []),
        (False, [], [None, 1]),
        ({"type": "integer"}, [1, 1.0, 2**70, -1], [1.5, True, "1", None]),
        ({"type": ["string", "null"]}, ["x", None], [1, []]),
        ({"minimum": 2**70}, [2**70, 2**71, "text"], [2**70 - 1]),
        ({"enum": ["a", 1]}, ["a", 1], ["b", True]),
        ({"const": {"a": 1}}, [{"a": 1}], [{"a": 2}, {}]),
        ({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}, [{"a": "x", "b": 1}], [{}, {"a": 1}]),
        ({"properties": {"a": {}}, "additionalProperties": False}, [{}, {"a": 1}], [{"b": 1}]),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 2.5], [3, 1.5]),
        ({"anyOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 3], [1.5]),
        ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, [1, 2], [0, 3]),
        ({"not": {"type": "string"}}, [1], ["x"]),
        ({"if": {"type": "string"}, "then": {"minLength": 2}}, ["ab", 1], ["a"]),
        ({"maxLength": 1}, ["😀", "é"], ["ab"]),
        ({"prefixItems": [{"type": "integer"}], "items": False}, [[1], []], [[1, 2], ["x"]]),
        ({"contains": {"const": 1}, "minContains": 2}, [[1, 1]], [[1]]),
        ({"dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 1}, {}], [{"a": 1}]),
        ({"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False}, [{"a": 1}], [{"b": 1}]),
        ({"$defs": {"a": {"type": "string"}}, "$ref": "#/$defs/a"}, ["x"], [1]),
        ({"$defs": {"n": {"$anchor": "n", "type": "integer"}}, "items": {"$ref": "#n"}}, [[1]], [["x"]]),
        ({"$schema": DRAFT, "type": "string"}, ["x"], [1]),
        ({"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}, [{"next": {}}], [{"x": 1}]),
    ],
)
def test_draft_2020_12_is_meant_seriously(schemas: Schemas, schema: Any, good: list[Any], bad: list[Any]) -> None:
    assert [payload for payload in good if not fits(schemas, schema, payload)] == []
    assert [payload for payload in bad if fits(schemas, schema, payload)] == []


def test_formats_are_notes_not_rules(schemas: Schemas) -> None:
    assert fits(schemas, {"format": "date"}, "no date")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "objekt"},
        {"minLength": -1},
        {"required": "a"},
        {"properties": []},
        {"items": 5},
        {"$ref": "#/$defs/none"},
        {"pattern": "("},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"$schema": 5},
        [],
        "x",
        None,
        5,
    ],
)
def test_what_is_no_schema_is_refused_where_it_is_declared(schemas: Schemas, schema: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        schemas.check(schema, "registration.event_types[0].schema")
    assert caught.value.argument.startswith("registration.event_types[0].schema")


@pytest.mark.parametrize(
    "reference",
    [
        "https://example.com/schema",
        "http://127.0.0.1:1/x",
        "file:///etc/passwd",
        "other.json",
        "//host/x",
        "urn:x:y",
        "ftp://x/y",
    ],
)
@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef"])
def test_no_other_document_is_ever_fetched(
    schemas: Schemas, reference: str, keyword: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(InvalidArgument):
        schemas.check({"properties": {"a": {keyword: reference}}}, "schema")


@pytest.mark.parametrize("pattern", ["(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b", r"(a)\1", "((a{1000}){1000}){1000}"])
@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_patterns_of_unbounded_cost_are_refused(schemas: Schemas, pattern: str, keyword: str) -> None:
    with pytest.raises(InvalidArgument):
        schemas.check({keyword: pattern if keyword == "pattern" else {pattern: True}}, "schema")


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(a|aa)+$", "(.*)*x", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_patterns_match_in_linear_time(schemas: Schemas, pattern: str) -> None:
    """Each of these takes a backtracking engine longer than anybody waits, at this length."""
    schemas.check({"pattern": pattern}, "schema")
    started = time.monotonic()
    assert not fits(schemas, {"pattern": pattern}, "a" * 20_000 + "!\n")
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}]
)
def test_a_schema_that_refers_to_itself_comes_to_an_end(schemas: Schemas, schema: Any) -> None:
    assert fits(schemas, schema, {"a": 1})


def test_a_schema_has_a_size(schemas: Schemas) -> None:
    with pytest.raises(LimitExceeded) as caught:
        schemas.check({"enum": ["x" * SCHEMA_BYTES_MAX]}, "schema")
    assert (caught.value.limit, caught.value.path) == ("SCHEMA_BYTES_MAX", "schema")
    schemas.check({"enum": ["x" * (SCHEMA_BYTES_MAX - 100)]}, "schema")


@pytest.mark.parametrize(
    ("schema", "payload", "path"),
    [
        ({"type": "object"}, "secret", ""),
        ({"properties": {"a": {"items": {"type": "integer"}}}}, {"a": [1, "secret"]}, ".a[1]"),
        ({"properties": {"a": {"const": 1}}}, {"a": {"secret": "secret"}}, ".a"),
        ({"maxLength": 3}, "secret", ""),
    ],
)
def test_an_error_names_the_place_and_not_the_content(schemas: Schemas, schema: Any, payload: Any, path: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        schemas.validate(schema, payload, "event 'x'")
    assert (caught.value.what, caught.value.path) == ("event 'x'", path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("payload", [{"a": "\ud800"}, {"a": "\u0000"}, {"a": 10**400}, {"a": -0.0}, {"a": 1e308}])
def test_every_storable_payload_can_be_validated(schemas: Schemas, payload: Any) -> None:
    assert fits(schemas, {"type": "object", "properties": {"a": {"type": ["string", "number"]}}}, payload)


def test_a_schema_is_compiled_once(schemas: Schemas, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    original = payload_schema.jsonschema_rs.Draft202012Validator

    def counted(schema: Any, **options: Any) -> Any:
        compiled.append(schema)
        return original(schema, **options)

    monkeypatch.setattr(payload_schema.jsonschema_rs, "Draft202012Validator", counted)
    for n in range(10):
        assert fits(schemas, {"type": "integer", "title": "x"} if n % 2 else {"title": "x", "type": "integer"}, n)
    assert len(compiled) == 1


def test_the_compiled_schemas_are_bounded_and_the_used_ones_stay(schemas: Schemas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_schema, "COMPILED_MAX", 8)
    for n in range(50):
        schemas.check({"const": n}, "schema")
        schemas.validate({"const": 0}, 0, "what")
    held = schemas._compiled  # pyright: ignore[reportPrivateUsage]
    assert len(held) == 8
    assert COMPILED_MAX >= 100
    assert payload_schema.stable_hash({"const": 0}) in held


def test_threads_share_the_compiled_schemas(schemas: Schemas) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        numbers = [(seed + n) % 20 for n in range(200)]
        wrong.extend(number for number in numbers if not fits(schemas, {"const": number}, number))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
