"""Laws of values: what goes in comes back bit by bit, or is refused before any SQL, the same on every engine."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from lash_store.errors import InvalidArgument, LimitExceeded, Refused, Unstorable
from lash_store.model.commit import Commit
from lash_store.model.graph import Append, NodeDraft, active_path
from lash_store.model.limits import DURATION_MAX_MS, INT_MAX, Limits
from lash_store.model.queue import BatchDraft
from lash_store.model.usage import Usage
from lash_store.testing.backend import Backend
from lash_store.testing.steps import append, claimed, commit, draft, nothing_changes, refused, say, watched

STORABLE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    2**53,
    2**63 - 1,
    -(2**63),
    2**63,
    2**64 + 1,
    10**40,
    0.1,
    -0.0,
    1e308,
    5e-324,
    1e16,
    "",
    "\u0000",
    "line\nbreak\ttab\x1f\x7f",
    "\ud800 lone \udfff",
    "é e\u0301 😀 \u2028 \ufeff \uffff",
    '"quotes" and \\ backslash',
    [],
    {},
    [[], {}, [[]]],
    {"": 1, "z": 1, "a": {"y": None, "b": []}, "\u0000": 0},
    {"role": "user", "parts": [{"id": "m.p0", "content": "hi", "node_id": "x", "timestamp": 1}]},
)

UNSTORABLE: tuple[Any, ...] = (
    math.nan,
    math.inf,
    -math.inf,
    {1, 2},
    (1, 2),
    b"bytes",
    bytearray(b"x"),
    object(),
    {1: "integer key"},
    {None: 1},
    [{"deep": [math.nan]}],
    1j,
)


async def json_comes_back_as_it_went_in(backend: Backend) -> None:
    """Bodies, causes, configs and payloads keep types, exact integers, key order and every character."""
    store = await backend.open()
    await commit(store, "s", 0, graph=Append([NodeDraft(body=value, caused_by=value) for value in STORABLE]))
    await commit(store, "s", 1, config=list(STORABLE))
    batch = await store.queue.enqueue("s", list(STORABLE))
    other = await backend.open()
    snapshot = await other.sessions.load("s")
    for node, value in zip(snapshot.nodes, STORABLE, strict=True):
        assert _same(node.body, value), f"{value!r} came back as {node.body!r}"
        assert _same(node.caused_by, value)
    assert _same(snapshot.config, list(STORABLE))
    assert _same(list((await other.queue.list("s")).batches[0].payloads), list(STORABLE))
    assert _same(list(batch.payloads), list(STORABLE))


async def what_has_no_faithful_form_is_refused_before_any_sql(backend: Backend) -> None:
    """NaN, sets, bytes, tuples and keys that are not text are Unstorable, with the path, in every argument that takes JSON."""
    store, statements = await watched(backend)
    await say(store, "s", "a")
    statements.clear()
    for value in UNSTORABLE:
        with refused(Unstorable):
            await commit(store, "s", None, graph=Append([NodeDraft(body=value)]))
        with refused(Unstorable):
            await commit(store, "s", 1, config=value)
        with refused(Unstorable):
            await store.queue.enqueue("s", [value])
        with refused(Unstorable):
            await commit(store, "s", 1, enqueues=[BatchDraft(payloads=[{"x": value}])])
    assert statements == []


async def a_refusal_names_the_place_inside_the_value(backend: Backend) -> None:
    """The path of an Unstorable leads to the bad element."""
    store = await backend.open()
    with refused(Unstorable) as caught:
        await commit(store, "s", None, graph=Append([draft("a"), NodeDraft(body={"parts": [0, {"x": math.nan}]})]))
    assert "parts" in caught.error.path
    assert "x" in caught.error.path


async def bad_ids_are_refused_the_same_everywhere(backend: Backend) -> None:
    """Empty, too long, with control characters, or not text: refused before any SQL, in every argument that takes an id."""
    store, statements = await watched(backend)
    await say(store, "s", "a")
    statements.clear()
    bad: tuple[Any, ...] = ("", "x" * 201, "é" * 101, "nul\x00", "line\n", "\x7f", "\x85", "\ud800", None, 1, b"s", ["s"])
    for value in bad:
        with refused(Refused):
            await store.sessions.create(value)
        with refused(Refused):
            await store.sessions.get(value)
        with refused(Refused):
            await store.sessions.node("s", value)
        with refused(Refused):
            await store.queue.claim("s", value, lease_ms=1000)
        with refused(Refused):
            await store.queue.cancel("s", value)
        with refused(Refused):
            await store.sessions.tombstone("s", [value])
        if value is not None:
            with refused(Refused):
                await commit(store, "s", None, graph=append("b"), turn_id=value)
            with refused(Refused):
                await commit(store, "s", None, graph=Append([NodeDraft(body=1, node_id=value)]))
            with refused(Refused):
                await store.queue.enqueue("s", [1], source_key=value)
            with refused(Refused):
                await store.sessions.load("s", active_path(value))
    assert statements == []


async def numbers_outside_their_range_are_refused_before_any_sql(backend: Backend) -> None:
    """Revisions, durations and limits near and beyond 64 bits are typed refusals, never wrapped."""
    store, statements = await watched(backend)
    await say(store, "s", "a")
    statements.clear()
    for number in (-1, INT_MAX + 1, 2**64, -(2**63) - 1):
        with refused(LimitExceeded):
            await commit(store, "s", number, graph=append("b"))
        with refused(LimitExceeded):
            await store.sessions.load("s", at_revision=number)
        with refused(LimitExceeded):
            await store.queue.claim("s", "w", lease_ms=number)
        with refused(LimitExceeded):
            await store.queue.enqueue("s", [1], delay_ms=number)
        with refused(LimitExceeded):
            await store.attachments.sweep(older_than_ms=number)
    with refused(LimitExceeded):
        await store.queue.enqueue("s", [1], delay_ms=DURATION_MAX_MS + 1)
    for number in (True, 1.0, "1"):
        with refused(Unstorable):
            await commit(store, "s", number, graph=append("b"))  # pyright: ignore[reportArgumentType]
    assert statements == []


async def depth_and_size_have_limits_that_can_be_lowered(backend: Backend) -> None:
    """A body too deep or too large, a component too large, a commit with too many rows: LimitExceeded before any SQL."""
    store, statements = await watched(backend, limits=Limits(json_bytes=1000, json_depth=5, component_bytes=1000, commit_rows=10))
    await say(store, "s", "a")
    statements.clear()
    deep: Any = 1
    for _ in range(6):
        deep = [deep]
    bad: list[tuple[str, dict[str, Any]]] = [
        ("json_depth", {"config": deep}),
        ("json_bytes", {"config": "x" * 1000}),
        ("component_bytes", {"checkpoint": {"c": b"x" * 1001}}),
        ("commit_rows", {"graph": append(*(str(n) for n in range(11)))}),
        ("commit_rows", {"usage": [Usage(source="s", model="m", input=1)] * 11}),
    ]
    for limit, fields in bad:
        with refused(LimitExceeded, limit=limit):
            await commit(store, "s", 1, **fields)
    assert statements == []
    await commit(store, "s", 1, config=deep[0], checkpoint={"c": b"x" * 1000})


async def arguments_of_another_type_are_refused_before_any_sql(backend: Backend) -> None:
    """A value of the wrong type is a typed refusal in every argument: no AttributeError, and no text taken for a list."""
    store, statements = await watched(backend)
    await say(store, "s", "a", "b")
    await store.queue.enqueue("s", [1])
    claim = await claimed(store, "s")
    statements.clear()
    sessions, queue, attachments = cast("Any", store.sessions), cast("Any", store.queue), cast("Any", store.attachments)
    calls: list[Callable[[], Awaitable[object]]] = [
        partial(sessions.commit, "s", {}),
        partial(sessions.commit, "s", None),
        *(partial(sessions.commit, "s", bad) for bad in _misshapen_commits()),
        partial(sessions.tombstone, "s", "ab"),
        partial(sessions.tombstone, "s", None),
        partial(sessions.create, "x", relation="parent"),
        partial(sessions.fork, "s", "x", at=1.5),
        partial(sessions.load, "s", None),
        partial(sessions.children, "s", None, cursor=5),
        partial(queue.list, "s", cursor=5),
        partial(queue.claim_exact, "s", "w", "ab", lease_ms=1000),
        partial(queue.claim_exact, "s", "w", None, lease_ms=1000),
        partial(queue.enqueue, "s", "text"),
        partial(queue.settle, None),
        partial(queue.renew, claim.completion(), lease_ms=1000),
        partial(attachments.entry, "s", 5),
        partial(attachments.commit_refs, "s", None),
        partial(attachments.commit_refs, "s", "f" * 64),
        partial(attachments.list_uncommitted, cursor=5),
        partial(attachments.record_intent, "s", {}),
        partial(attachments.put, "s", "text", media_type="a/b"),
    ]
    for call in calls:
        with refused(Refused):
            await call()
    assert statements == []


async def limits_can_only_be_lowered(backend: Backend) -> None:
    """A limit above the default, or zero, is InvalidArgument at open."""
    for limits in (Limits(json_depth=65), Limits(page_rows=0), Limits(id_bytes=-1)):
        with refused(InvalidArgument):
            await backend.open(limits=limits)


async def page_sizes_and_cursors_are_checked(backend: Backend) -> None:
    """A page of nothing or of too much, and a cursor the store did not make, are refused."""
    store = await backend.open()
    await say(store, "s", "a")
    for size in (0, -1, 1001):
        with refused(LimitExceeded):
            await store.sessions.list(limit=size)
        with refused(LimitExceeded):
            await store.queue.list("s", limit=size)
    async with nothing_changes(backend):
        for cursor in ("nonsense", "-1;", "9" * 40):
            with refused(Refused):
                await store.queue.list("s", cursor=cursor)
            with refused(Refused):
                await store.sessions.list(cursor=cursor)


async def a_string_is_stored_as_its_text(backend: Backend) -> None:
    """Names and labels keep newlines and any script; NUL and lone surrogates in them are refused."""
    store = await backend.open()
    name = "two\nlines\té😀"
    assert (await store.sessions.create("s", name=name)).name == name
    for bad in ("nul\x00", "\ud800", "x" * 5000):
        with refused(Refused):
            await store.sessions.update_meta("s", name=bad)
    assert (await store.sessions.get("s")).name == name


async def a_commit_for_nothing_still_takes_a_revision(backend: Backend) -> None:
    """The empty commit is a commit: the smallest value has the same meaning as any other."""
    store = await backend.open()
    receipt = await store.sessions.commit("s", Commit(expected_revision=0))
    assert (receipt.revision, receipt.node_ids, receipt.leaf_id) == (1, (), None)


def _misshapen_commits() -> list[Commit]:
    loose: Any = Commit
    fields: list[dict[str, Any]] = [
        {"graph": None},
        {"graph": Append(cast("Any", None))},
        {"graph": Append(cast("Any", [{}]))},
        {"usage": None},
        {"usage": [{}]},
        {"frames": [{}]},
        {"completes": None},
        {"completes": [{}]},
        {"enqueues": [{}]},
        {"checkpoint": None},
        {"checkpoint": [b"x"]},
        {"checkpoint": {"c": "text"}},
        {"attachments": "f" * 64},
        {"attachments": [1]},
    ]
    return [loose(expected_revision=1, **bad) for bad in fields]


def _same(actual: Any, expected: Any) -> bool:
    """Equal in value, type, key order and sign of zero."""
    if type(actual) is not type(expected):
        return False
    if isinstance(expected, dict):
        return list(actual) == list(expected) and all(_same(actual[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(actual) == len(expected) and all(_same(a, e) for a, e in zip(actual, expected, strict=True))
    if isinstance(expected, float):
        return math.copysign(1, actual) == math.copysign(1, expected) and actual == expected
    return bool(actual == expected)
