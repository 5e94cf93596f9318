"""What may be stored, its text and its digests."""

from __future__ import annotations

import enum
import json
import math
import os
import re
import sys
import threading
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lash_store.encode import _READER, Encoder, canonical, check, decode, derived_node_id, digest, mint, quick_decode  # pyright: ignore[reportPrivateUsage]
from lash_store.errors import Corrupt, LimitExceeded, Refused, Unstorable
from lash_store.model.limits import COUNTER_MAX, DURATION_MAX_MS, INT_MAX, Limits
from lash_store.ops.graph import node_digest

ENCODER = Encoder(Limits())


def small(**limits: int) -> Encoder:
    return Encoder(Limits(**limits))


def back(text: str) -> Any:
    return decode(text, table="nodes", row="n1")


# Lone surrogates belong to it; a high one followed by a low one does not, and has its own test.
text = st.text(st.characters(codec=None)).filter(lambda value: not re.search("[\ud800-\udbff][\udc00-\udfff]", value))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=30)


def same(left: Any, right: Any) -> bool:
    """Equal in value, type, sign of zero, and order of keys."""
    if type(left) is not type(right):
        return False
    if type(left) is dict:
        ours = cast("dict[str, Any]", left)
        return list(ours) == list(right) and all(same(ours[key], right[key]) for key in ours)
    if type(left) is list:
        items = cast("list[Any]", left)
        return len(items) == len(right) and all(map(same, items, right))
    if type(left) is float:
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return left == right


@given(values)
def test_what_is_stored_comes_back_with_its_types_and_key_order(value: Any) -> None:
    stored = ENCODER.json(value, "body")
    stored.encode()
    assert same(back(stored), value)


def reordered(item: Any) -> Any:
    if type(item) is dict:
        fields = cast("dict[str, Any]", item)
        return {key: reordered(fields[key]) for key in reversed(list(fields))}
    return [reordered(inner) for inner in cast("list[Any]", item)] if type(item) is list else item


@given(values)
def test_the_canonical_form_is_one_for_every_key_order(value: Any) -> None:
    assert canonical(value) == canonical(reordered(value)) == canonical(back(ENCODER.json(value, "body")))


def test_text_stays_raw_and_only_what_must_be_escaped_is() -> None:
    value = {"z": "é漢😀/\u2028\x7f", "a": '\x00\x1f\n"\\', "s": "\ud800x\udfff"}
    assert ENCODER.json(value, "body") == ('{"z":"é漢😀/\u2028\x7f","a":"\\u0000\\u001f\\n\\"\\\\","s":"\\ud800x\\udfff"}')


def test_canonical_golden_vectors() -> None:
    assert canonical({"b": [1, 1.0, -0.0, True, None], "a": "é\ud800"}) == '{"a":"\\u00e9\\ud800","b":[1,1.0,-0.0,true,null]}'
    assert canonical({"é": 1, "z": 2, "Z": 3}) == '{"Z":3,"z":2,"\\u00e9":1}'


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Text(str):
    __slots__ = ()


class Table(dict[str, int]):
    pass


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"tool": [math.nan]}, "nodes[2].body.tool[0]"),
        ({"tool": [{"x": math.inf}]}, "nodes[2].body.tool[0].x"),
        ([[], [-math.inf]], "nodes[2].body[1][0]"),
        (math.nan, "nodes[2].body"),
        ((1, 2), "nodes[2].body"),
        ({"a": {1, 2}}, "nodes[2].body.a"),
        ({"a": b"x"}, "nodes[2].body.a"),
        ({"a": Colour.RED}, "nodes[2].body.a"),
        ({"a": Level.HIGH}, "nodes[2].body.a"),
        ({"a": Text("x")}, "nodes[2].body.a"),
        ({"a": Table(x=1)}, "nodes[2].body.a"),
        ({"a": object()}, "nodes[2].body.a"),
        ({"a": {1: 2}}, "nodes[2].body.a"),
        ({"a": [{Text("k"): 2}]}, "nodes[2].body.a[0]"),
        ({None: 1}, "nodes[2].body"),
        ({"a b": {"ü": [1j]}}, 'nodes[2].body["a b"]["\\u00fc"][0]'),
        ({"k" * 100: [1j]}, f'nodes[2].body["{"k" * 64}\\u2026"][0]'),
        ({"a": ["\ud83d\ude00"]}, "nodes[2].body.a[0]"),
        ({"a": {"\ud83d\ude00": 1}}, 'nodes[2].body.a["\\ud83d\\ude00"]'),
    ],
)
def test_what_would_come_back_changed_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(Unstorable) as caught:
        ENCODER.json(value, "nodes[2].body")
    assert caught.value.path == path


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_bounded_and_cycles_end_there() -> None:
    assert back(ENCODER.json(nested(64), "body")) == nested(64)
    looped: dict[str, Any] = {}
    looped["again"] = looped
    twice: list[Any] = []
    twice += [twice, twice]
    for value in (nested(65), nested(100_000), looped, twice):
        with pytest.raises(LimitExceeded) as caught:
            ENCODER.json(value, "body")
        assert caught.value.limit == "json_depth"


def test_a_too_deep_value_names_the_place() -> None:
    with pytest.raises(LimitExceeded) as caught:
        small(json_depth=2).json({"a": [[1]]}, "body")
    assert caught.value.path == "body.a[0]"


def test_a_small_value_with_a_huge_text_is_refused_without_writing_it() -> None:
    value: Any = "x"
    for _ in range(60):
        value = [value, value]
    with pytest.raises(LimitExceeded) as caught:
        small(json_bytes=100_000).json(value, "body")
    assert caught.value.limit == "json_bytes"


@given(values)
def test_the_early_size_check_never_refuses_what_fits(value: Any) -> None:
    stored = ENCODER.json(value, "body")
    size = len(stored.encode())
    assert small(json_bytes=size).json(value, "body") == stored
    if size > 1:
        with pytest.raises(LimitExceeded):
            small(json_bytes=size - 1).json(value, "body")


def test_the_byte_limit_counts_utf8_and_escapes() -> None:
    assert small(json_bytes=6).json("éé", "body") == '"éé"'
    for value in ("ééé", "\x00\x00", "\ud800"):
        with pytest.raises(LimitExceeded):
            small(json_bytes=6).json(value, "body")


def test_integers_are_exact_to_the_digit_limit() -> None:
    for value in (2**63, -(2**63), 2**64, 10**4300 - 1, 1 - 10**4300):
        assert back(ENCODER.json([value], "body")) == [value]
    for value in (10**4300, -(10**4300), 1 << 1_000_000):
        with pytest.raises(LimitExceeded) as caught:
            ENCODER.json([value], "body")
        assert (caught.value.limit, caught.value.path) == ("integer_digits", "body[0]")


def test_a_process_with_a_lower_digit_limit_is_told_so() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(700)
    try:
        with pytest.raises(LimitExceeded) as caught:
            ENCODER.json([10**1000], "body")
        assert caught.value.maximum == 700
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("stored", ["", "{", "NaN", "[Infinity]", "1e400", "-1e999", '{"a":1}x', "[" * 100_000, "'a'"])
def test_text_that_is_not_ours_is_corrupt_and_not_quoted(stored: str) -> None:
    with pytest.raises(Corrupt) as caught:
        back(stored)
    assert (caught.value.table, caught.value.row) == ("nodes", "n1")
    assert caught.value.__cause__ is None


# Ids and texts


@pytest.mark.parametrize(
    "value", ["a", "x" * 200, "é" * 100, "😀" * 50, "../..", "\u202ertl", " a ", "a'; DROP TABLE", "e\u0301"]
)
def test_ids_are_kept_byte_for_byte(value: str) -> None:
    assert ENCODER.id(value, "session_id") is value


@pytest.mark.parametrize("value", ["", "a\x00", "\n", "a\x7f", "\x80", "\x9f", "\ud800", None, 1, b"a", Colour.RED, Text("a")])
def test_ids_that_are_no_names_are_unstorable(value: object) -> None:
    with pytest.raises(Unstorable) as caught:
        ENCODER.id(value, "session_id")
    assert caught.value.path == "session_id"


@pytest.mark.parametrize("value", ["x" * 201, "é" * 101, "x" * 10_000_000])
def test_ids_beyond_the_limit_are_refused(value: str) -> None:
    with pytest.raises(LimitExceeded) as caught:
        ENCODER.id(value, "session_id")
    assert (caught.value.limit, caught.value.maximum) == ("id_bytes", 200)
    assert len(str(caught.value)) < 200


@given(st.text(st.characters(codec=None)))
def test_an_id_is_accepted_exactly_when_both_engines_can_hold_it(value: str) -> None:
    bad = not value or any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in value)
    try:
        assert ENCODER.id(value, "id") == value
        assert not bad
    except Unstorable:
        assert bad
    except LimitExceeded:
        assert len(value.encode("utf-8", "surrogatepass")) > 200


def test_texts_may_be_empty_and_hold_lines_but_no_nul() -> None:
    assert ENCODER.text("", "name") == ""
    assert ENCODER.text("a\n\tb", "name") == "a\n\tb"
    assert ENCODER.optional_text(None, "name") is None
    assert ENCODER.optional_id(None, "name") is None
    for value in ("a\x00", "\udfff", None, 3, Colour.RED):
        with pytest.raises(Unstorable):
            ENCODER.text(value, "name")
    with pytest.raises(LimitExceeded):
        ENCODER.text("x" * 4097, "name")


# The quick reader

_SNIPPETS = (
    *("{", "}", "[", "]", ":", ",", '"', "\\", "\\u", "\\ud800", "\\udc00", "null", "true", "NaN", "-", "0", "7", ".", "e", "E+"),
    *("é", "Infinity", "1e999", '"a"', '{"a":', "[[", "]]", "-0.0", "1.5e-320", "9" * 25, "\ud800", "\t", " ", "\x00", "\ufeff"),
)


@given(st.lists(st.sampled_from(_SNIPPETS), max_size=8).map("".join))
def test_what_the_quick_reader_accepts_is_what_the_exact_one_reads(text: str) -> None:
    try:
        quick = quick_decode(text)
    except ValueError:
        return
    assert repr(quick) == repr(_READER.decode(text))


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_the_quick_reader_reads_numbers_to_the_last_bit(value: float) -> None:
    quick = quick_decode(ENCODER.json([value], "v"))[0]
    assert (type(quick), repr(quick)) == (type(value), repr(value))


@pytest.mark.parametrize("text", [None, b"\xff", 7, "[" * 100_000])
def test_the_quick_reader_gives_way(text: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        quick_decode(text)
    with pytest.raises(Corrupt):
        decode(text, table="nodes", row="n1")


# Numbers and bytes


def test_counters_stay_in_their_range() -> None:
    assert ENCODER.counter(COUNTER_MAX, "n") == COUNTER_MAX
    assert ENCODER.counter(INT_MAX, "n", maximum=INT_MAX) == INT_MAX
    assert ENCODER.counter(-5, "n", minimum=-5) == -5
    for value in (COUNTER_MAX + 1, -1, 10**6000, -(10**6000)):
        with pytest.raises(LimitExceeded):
            ENCODER.counter(value, "n")
    for value in (True, 1.0, "1", None, Level.HIGH):
        with pytest.raises(Unstorable):
            ENCODER.counter(value, "n")


def test_durations_end_at_ten_years() -> None:
    assert ENCODER.duration(DURATION_MAX_MS, "lease_ms") == DURATION_MAX_MS
    for value, minimum in ((DURATION_MAX_MS + 1, 0), (0, 1)):
        with pytest.raises(LimitExceeded) as caught:
            ENCODER.duration(value, "lease_ms", minimum=minimum)
        assert caught.value.limit == "DURATION_MAX_MS"


def test_data_becomes_bytes_of_our_own() -> None:
    buffer = bytearray(b"abc")
    kept = ENCODER.data(buffer, "c", limit="component_bytes")
    buffer[0] = 0
    assert (type(kept), kept) == (bytes, b"abc")
    assert ENCODER.data(memoryview(b"abcdef")[::2], "c", limit="component_bytes") == b"ace"
    whole = b"abc"
    assert ENCODER.data(whole, "c", limit="component_bytes") is whole
    with pytest.raises(LimitExceeded) as caught:
        small(component_bytes=2).data(b"abc", "c", limit="component_bytes")
    assert caught.value.limit == "component_bytes"
    with pytest.raises(Unstorable):
        ENCODER.data("abc", "c", limit="component_bytes")


class Liar(bytearray):
    """Four bytes that claim to be none, and to be more."""

    def __len__(self) -> int:
        return 0

    def __bytes__(self) -> bytes:
        return b"a longer text"


class LiarBytes(bytes):
    __len__, __bytes__ = Liar.__len__, Liar.__bytes__  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


@pytest.mark.parametrize("liar", [Liar(b"abcd"), LiarBytes(b"abcd")], ids=["bytearray", "bytes"])
def test_bytes_are_what_the_buffer_holds_whatever_a_subclass_says(liar: object) -> None:
    assert small(component_bytes=4).data(liar, "c", limit="component_bytes") == b"abcd"
    with pytest.raises(LimitExceeded):
        small(component_bytes=3).data(liar, "c", limit="component_bytes")


# Digests and minted ids


def test_digest_golden_vectors() -> None:
    assert digest("t").hex() == "72d3dd3fcd52af7403c46787d38bde9273efbebaadf86fc6784cd36722c7f49c"
    assert digest("t", b"a", "a", -12, None, "é").hex() == "f920e44a5c6d295685786d4b8192dbb9771ac1ddbe618b6f0a1d21d98b1abe00"


fields = st.lists(st.none() | st.integers() | st.text(st.characters(codec="utf-8")) | st.binary(), max_size=4)


@given(fields, fields)
def test_different_fields_have_different_digests(left: list[Any], right: list[Any]) -> None:
    equal = list(map(repr, left)) == list(map(repr, right))
    assert (digest("t", *left) == digest("t", *right)) == equal
    assert digest("t", *left) != digest("u", *left)


utf8 = st.text(st.characters(codec="utf-8"), max_size=8)


@given(utf8, st.none() | utf8, utf8, utf8, st.sampled_from([0, 4095, 4096, 70_000]), st.none() | utf8, st.none() | utf8)
def test_a_node_has_the_digest_of_its_fields(
    node_id: str, parent_id: str | None, kind: str, body: str, more: int, frame_id: str | None, caused_by: str | None
) -> None:
    fields = (node_id, parent_id, kind, body + "x" * more, frame_id, caused_by)
    assert node_digest(*fields) == digest("node/1", *fields)


def test_fields_do_not_run_into_each_other() -> None:
    assert digest("t", "ab", "c") != digest("t", "a", "bc") != digest("t", "abc")
    assert len({digest("t", "1"), digest("t", 1), digest("t", b"1"), digest("t", None), digest("t", ""), digest("t1")}) == 6


def test_check_names_the_row_and_shows_no_content() -> None:
    check(b"a", b"a", table="nodes", row="n1")
    with pytest.raises(Corrupt) as caught:
        check(b"secret", b"b", table="nodes", row="n1")
    assert "secret" not in str(caught.value)


def test_derived_node_ids_are_pinned() -> None:
    assert derived_node_id("s", "t", 0) == "n:c3570a87a3ac26f587c8b4849fbad3e1"
    assert derived_node_id("s", "t", 0) != derived_node_id("s", "t", 1) != derived_node_id("st", "", 1)


UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def test_minted_ids_are_uuid7_and_only_grow() -> None:
    minted = [mint() for _ in range(20_000)]
    assert all(map(UUID7.fullmatch, minted))
    assert minted == sorted(set(minted))
    assert UUID7.fullmatch(mint("b:").removeprefix("b:"))


def test_a_clock_that_jumps_back_does_not_turn_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    before = mint()
    monkeypatch.setattr("lash_store.encode.time.time_ns", lambda: 1)
    assert before < mint() < mint()


def test_threads_never_mint_the_same_id() -> None:
    minted: list[list[str]] = [[] for _ in range(4)]

    def work(out: list[str]) -> None:
        out.extend(mint() for _ in range(2_000))

    threads = [threading.Thread(target=work, args=(out,)) for out in minted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for out in minted for one in out}) == 8_000


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # other tests left idle threads behind
def test_a_forked_child_mints_other_ids() -> None:
    mint()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps([mint() for _ in range(50)]).encode())
        os._exit(0)
    mine = {mint() for _ in range(50)}
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert mine.isdisjoint(json.load(pipe))


def test_every_refusal_is_a_refusal() -> None:
    assert issubclass(Unstorable, Refused)
    assert issubclass(LimitExceeded, Refused)
