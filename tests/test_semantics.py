"""What events mean: selectors, outputs, wakes, the plan of an append, and identities against fixed vectors."""

from __future__ import annotations

from typing import Any

import pytest

from lash_store.encode import Encoder, stable_hash
from lash_store.errors import AlreadyTerminal, InvalidArgument, InvalidPayload, ReplayConflict
from lash_store.model.limits import Limits
from lash_store.model.process import (
    Cancelled,
    Const,
    EventDraft,
    EventType,
    Failure,
    Output,
    Payload,
    Pointer,
    Present,
    ProcessInput,
    ProcessState,
    Registration,
    Scope,
    Selector,
    Success,
    Template,
    Terminal,
    Wake,
)
from lash_store.ops import semantics
from lash_store.ops.events import EventPlan, EventRow, PreparedEvent, plan_append, prepare_event
from lash_store.ops.processes import ProcessRow, prepare_registration
from lash_store.payload_schema import Schemas

RFC_DOCUMENT: dict[str, Any] = {
    "foo": ["bar", "baz"],
    "": 0,
    "a/b": 1,
    "c%d": 2,
    "e^f": 3,
    "g|h": 4,
    "i\\j": 5,
    'k"l': 6,
    " ": 7,
    "m~n": 8,
}
ENCODER, SCHEMAS = Encoder(Limits()), Schemas()
NOW_MS = 1_700_000_000_000


# --- selectors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pointer", "expected"),
    [
        ("", RFC_DOCUMENT),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/foo/1", "baz"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
    ],
)
def test_a_pointer_finds_what_its_standard_says(pointer: str, expected: Any) -> None:
    assert semantics.select(Pointer(pointer), RFC_DOCUMENT, "x") == expected
    assert semantics.select(Present(pointer), RFC_DOCUMENT, "x") is True


@pytest.mark.parametrize(
    "pointer",
    [
        *("foo", "/bar", "//", "/a/b", "#/foo", " "),
        *("/foo/2", "/foo/00", "/foo/01", "/foo/+1", "/foo/-1", "/foo/-", "/foo/", "/foo/1e0", "/foo/٠", "/foo/0/x"),
        "/foo/" + "9" * 30,
    ],
)
def test_a_pointer_that_does_not_match_refuses_or_is_absent(pointer: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        semantics.select(Pointer(pointer), RFC_DOCUMENT, "what")
    assert caught.value.path == pointer
    assert semantics.select(Present(pointer), RFC_DOCUMENT, "what") is False


def test_tildes_are_unescaped_in_the_right_order() -> None:
    assert semantics.select(Pointer("/~01"), {"~1": "tilde one", "/": "slash"}, "x") == "tilde one"


def test_a_null_value_is_present() -> None:
    assert semantics.select(Present("/a"), {"a": None}, "x") is True
    assert semantics.select(Pointer("/a"), {"a": None}, "x") is None


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (Payload(), {"line": "done", "n": 7, "o": {"b": 1, "a": [None]}}),
        (Const([1]), [1]),
        (Const(None), None),
        (Template("line {line} #{n}", {"line": Pointer("/line"), "n": Pointer("/n")}), "line done #7"),
        (Template("{o}", {"o": Pointer("/o")}), '{"a":[null],"b":1}'),
        (Template("{p} {q}", {"p": Present("/line"), "q": Present("/none")}), "true false"),
        (Template("{unknown} {}", {}), "{unknown} {}"),
        (Template("{line}{line}", {"line": Pointer("/line")}), "donedone"),
    ],
)
def test_selectors_find_their_values(selector: Selector, expected: Any) -> None:
    payload = {"line": "done", "n": 7, "o": {"b": 1, "a": [None]}}
    assert semantics.select(selector, payload, "x") == expected


def test_a_filled_in_text_is_never_filled_in_again() -> None:
    template = Template("{a} {b}", {"a": Pointer("/a"), "b": Pointer("/b")})
    assert semantics.select(template, {"a": "{b}", "b": "{a}"}, "x") == "{b} {a}"


def test_a_template_whose_field_is_missing_refuses_the_event() -> None:
    with pytest.raises(InvalidPayload):
        semantics.select(Template("text", {"a": Pointer("/none")}), {}, "x")


@pytest.mark.parametrize(
    ("value", "expected"),
    [("text", "text"), ("", ""), (7, "7"), (1.5, "1.5"), (None, "null"), (True, "true"), ([1, "é"], '[1,"é"]'), ({}, "{}")],
)
def test_texts_stay_and_the_rest_is_compact_json(value: Any, expected: str) -> None:
    assert semantics.as_text(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, False),
        (False, False),
        ("", False),
        ([], False),
        ({}, False),
        (True, True),
        (0, True),
        (0.0, True),
        ("x", True),
        ([0], True),
        ({"a": None}, True),
    ],
)
def test_empty_things_are_false_and_every_number_is_true(value: Any, expected: bool) -> None:
    assert semantics.truthy(value) is expected


# --- outputs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "value", "expected"),
    [
        ("completed", {"a": 1}, Success({"a": 1})),
        ("completed", {"type": "success", "value": 1}, Success(1)),
        ("completed", {"type": "success", "value": 1, "control": {"x": 1}}, Success(1, {"x": 1})),
        ("completed", {"type": "success", "extra": 1}, Success()),
        ("completed", {"type": "failure"}, Success({"type": "failure"})),
        ("completed", {"type": "failure", "code": "c", "message": "m"}, Failure(code="c", message="m")),
        ("failed", "why", Failure(code="process_failed", message="why", raw="why")),
        ("failed", {"b": 1, "a": 2}, Failure(code="process_failed", message='{"a":2,"b":1}', raw={"b": 1, "a": 2})),
        ("failed", {"type": "success", "value": 1}, Success(1)),
        ("cancelled", 7, Cancelled(message="7", raw=7)),
        ("cancelled", {"type": "cancelled", "message": "m"}, Cancelled(message="m")),
        ("completed", None, Success(None)),
    ],
)
def test_an_output_is_read_or_wrapped(state: str, value: Any, expected: Output) -> None:
    declared = EventType(name="end", terminal=Terminal(state=ProcessState(state), output=Pointer("/x")))
    assert semantics.terminal_output(declared, {"x": value}, "what") == expected


def test_without_a_selector_the_whole_payload_is_the_output() -> None:
    declared = EventType(name="end", terminal=Terminal(state=ProcessState.COMPLETED))
    assert semantics.terminal_output(declared, {"a": 1}, "what") == Success({"a": 1})
    assert semantics.terminal_output(EventType(name="note"), {"a": 1}, "what") is None


def test_a_core_end_without_its_output_is_refused() -> None:
    completed = next(each for each in semantics.CORE_EVENT_TYPES if each.name == "process.completed")
    with pytest.raises(InvalidPayload):
        semantics.terminal_output(completed, {"value": 1}, "what")


@pytest.mark.parametrize(
    ("output", "state"),
    [(Success(), "completed"), (Failure(code="c", message="m"), "failed"), (Cancelled(message="m"), "cancelled")],
)
def test_an_output_implies_its_state(output: Output, state: str) -> None:
    assert semantics.output_state(output) == state


# --- wakes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wake", "expected"),
    [
        (None, (None, None)),
        (Wake(input=Payload()), ('{"d":"k","f":false,"t":"text"}', None)),
        (Wake(input=Pointer("/t")), ("text", None)),
        (Wake(input=Pointer("/t"), when=Pointer("/f")), (None, None)),
        (Wake(input=Pointer("/none"), when=Present("/none")), (None, None)),
        (Wake(input=Pointer("/t"), when=Present("/f"), dedupe=Pointer("/d")), ("text", "k")),
        (Wake(input=Const(1), dedupe=Const(["k"])), ("1", '["k"]')),
        (Wake(input=Const(""), dedupe=Const("")), ("", "")),
    ],
)
def test_a_wake_is_worked_out_from_the_payload(wake: Wake | None, expected: tuple[str | None, str | None]) -> None:
    declared, payload = EventType(name="e", wake=wake), {"t": "text", "f": False, "d": "k"}
    assert semantics.wake_input(declared, payload, "what") == expected[0]
    if expected[0] is not None:
        assert semantics.wake_dedupe(declared, payload, "what") == expected[1]


def test_a_condition_that_points_nowhere_refuses_the_event() -> None:
    declared = EventType(name="e", wake=Wake(input=Payload(), when=Pointer("/none")))
    with pytest.raises(InvalidPayload):
        semantics.wake_input(declared, {}, "what")


@pytest.mark.parametrize("name", ["go", "a-b_C9", "x" * 100])
def test_a_signal_name_makes_its_event_type(name: str) -> None:
    assert semantics.signal_type(name) == f"signal.{name}"


@pytest.mark.parametrize("name", ["", "a b", "a.b", "é", "a\n", "²"])
def test_other_signal_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        semantics.signal_type(name)


# --- identities -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event_type", "payload", "expected"),
    [
        (
            "process.cancel_requested",
            {"reason": "stop"},
            "85a6238fa9840bc3105d1a06ca03df61803080fefa838ab687d36662275be019",
        ),
        (
            "process.cancel_requested",
            {"reason": None},
            "5532b5f3befaa3efc27b125b501ee870e6405e058b099410f23165e543d2a782",
        ),
        ("b", {"z": 1, "a": [True, None, "é\n"]}, "1eed96e4d38fc4b9d87f9f78b7c6ce51450f01cd1d29f74ff02a5c540c806e83"),
        (
            "process.completed",
            {"await_output": {"type": "success", "value": {"ok": True}}},
            "282694fb3712c6d722645255f06498f6d8b14b9430973659f0352313744662ed",
        ),
    ],
)
def test_the_payload_hash_is_fixed(event_type: str, payload: Any, expected: str) -> None:
    assert semantics.payload_hash(event_type, payload) == expected


@pytest.mark.parametrize(
    ("scope", "dedupe_key", "expected"),
    [
        (Scope("session"), "proc-wake:1", "9139c975e42a7d703f7e1fae04306248789f18b2af461fea0c8af565c1b9a700"),
        (
            Scope("target-session", "target-frame"),
            "proc-provenance:1",
            "46cb109adef9ba0513a94be3a54c1a0adf5e05fcbbe38b46ba57e14f546b1e00",
        ),
    ],
)
def test_the_wake_id_is_fixed(scope: Scope, dedupe_key: str, expected: str) -> None:
    assert semantics.wake_id(scope, dedupe_key) == f"wake:{expected}"


def test_the_registration_hash_is_fixed() -> None:
    """It is stored with every process: another library version must compute the same for the same registration."""
    plain = Registration(process_id="proc-idempotent", input=ProcessInput("external"))
    full = Registration(
        process_id="p",
        input=ProcessInput("engine", {"z": [1, 2.5, "é"], "a": None}),
        event_types=[
            EventType(
                name="end",
                schema={"type": "object"},
                terminal=Terminal(state=ProcessState.FAILED, output=Pointer("/x")),
                wake=Wake(input=Template("{a}", {"a": Payload()}), when=Present("/a"), dedupe=Const("k")),
            )
        ],
        originator=Scope("s", "f"),
        caused_by={"type": "process", "process_id": "q"},
        env_ref="env",
        wake_target=Scope("s"),
    )
    hashes = [prepare_registration(each, ENCODER, SCHEMAS).hash.hex() for each in (plain, full)]
    assert hashes == [
        "69407b539cb408cd53362db6773f0af0a93a1bf814a97e3da069247278e24622",
        "4db0a8465e6e45f5dc51202da39b8b75f603ed521c46e70ffb7cd375211dd6f2",
    ]


def test_hashes_keep_types_apart() -> None:
    values: list[Any] = [1, 1.0, True, "1", None, [1], {"1": 1}, -0.0, 0.0, "", [], {}, "\ud800"]
    assert len({stable_hash(value) for value in values}) == len(values)


# --- planning an append ---------------------------------------------------------------------------------------------------

REGISTRATION = Registration(
    process_id="p",
    input=ProcessInput("job"),
    event_types=[
        EventType(name="note"),
        EventType(name="ping", wake=Wake(input=Payload())),
        EventType(name="fixed", wake=Wake(input=Payload(), dedupe=Const("k"))),
        EventType(name="end", terminal=Terminal(state=ProcessState.COMPLETED)),
        EventType(name="fail", terminal=Terminal(state=ProcessState.FAILED, output=Payload())),
    ],
)


def row(**fields: Any) -> ProcessRow:
    """A running process with three events, unless told otherwise."""
    values: dict[str, Any] = dict.fromkeys(ProcessRow.__struct_fields__)
    values |= {"process_id": "p", "registration_hash": b"", "kind": "job", "state": "running", "last_sequence": 3}
    values |= {"lease_fence": 0, "created_ms": 1, "updated_ms": 1, **fields}
    return ProcessRow(**values)


def event(event_type: str, payload: Any = None, key: str | None = None) -> PreparedEvent:
    """A prepared event of the registration above."""
    draft = EventDraft(event_type=event_type, payload=payload, replay_key=key)
    return prepare_event(REGISTRATION, draft, ENCODER, SCHEMAS, "drafts[0]")


def plan(*drafts: PreparedEvent, stored: tuple[EventRow, ...] = (), target: Scope | None = None, **fields: Any) -> EventPlan:
    """The plan for these drafts."""
    by_key = {each.replay_key: each for each in stored if each.replay_key is not None}
    return plan_append(row(**fields), drafts, by_key, target, NOW_MS)


def inserted(*drafts: PreparedEvent, sequence: int = 1) -> tuple[EventRow, ...]:
    """Rows as an earlier append stored them."""
    return plan(*drafts, last_sequence=sequence - 1).inserts


Shown = tuple[list[int], list[tuple[int, bool]], str | None]


def shown(made: EventPlan) -> Shown:
    """A plan in short: sequences to insert, results, and the state it ends in."""
    results = [(each.sequence, replayed) for each, replayed in made.results]
    return [each.sequence for each in made.inserts], results, None if made.ended is None else made.ended.terminal


NOTE_K, END_K = event("note", 1, "k"), event("end", {"ok": 1}, "end")


@pytest.mark.parametrize(
    ("drafts", "stored", "fields", "expected"),
    [
        pytest.param([], (), {}, ([], [], None), id="nothing"),
        pytest.param([event("note")], (), {}, ([4], [(4, False)], None), id="insert"),
        pytest.param([event("note"), event("note")], (), {}, ([4, 5], [(4, False), (5, False)], None), id="two keyless"),
        pytest.param([NOTE_K], inserted(NOTE_K, sequence=2), {}, ([], [(2, True)], None), id="replay"),
        pytest.param([NOTE_K, NOTE_K], (), {}, ([4], [(4, False), (4, True)], None), id="twice in one call"),
        pytest.param(
            [event("note"), NOTE_K, event("note")],
            inserted(NOTE_K, sequence=2),
            {},
            ([4, 5], [(4, False), (2, True), (5, False)], None),
            id="replay between inserts",
        ),
        pytest.param([END_K], (), {}, ([4], [(4, False)], "completed"), id="end"),
        pytest.param([END_K, event("note")], (), {}, ([4, 5], [(4, False), (5, False)], "completed"), id="fact after end"),
        pytest.param([event("note")], (), {"state": "failed"}, ([4], [(4, False)], None), id="fact on an ended process"),
        pytest.param([END_K], inserted(END_K), {"state": "completed"}, ([], [(1, True)], None), id="replayed end"),
        pytest.param([END_K], inserted(END_K), {}, ([], [(1, True)], "completed"), id="replayed end repairs the state"),
        pytest.param(
            [END_K, event("note")],
            inserted(END_K),
            {},
            ([4], [(1, True), (4, False)], "completed"),
            id="repair and append",
        ),
        pytest.param([NOTE_K], inserted(NOTE_K), {"state": "failed"}, ([], [(1, True)], None), id="replay on an ended process"),
        pytest.param([END_K, END_K], (), {}, ([4], [(4, False), (4, True)], "completed"), id="one end twice"),
    ],
)
def test_a_plan(drafts: list[PreparedEvent], stored: tuple[EventRow, ...], fields: dict[str, Any], expected: Shown) -> None:
    assert shown(plan(*drafts, stored=stored, **fields)) == expected


@pytest.mark.parametrize(
    ("drafts", "stored", "fields", "error"),
    [
        pytest.param([event("note", 2, "k")], inserted(NOTE_K), {}, ReplayConflict, id="other payload"),
        pytest.param([event("ping", 1, "k")], inserted(NOTE_K), {}, ReplayConflict, id="other type"),
        pytest.param([NOTE_K, event("note", 2, "k")], (), {}, ReplayConflict, id="one key for two in one call"),
        pytest.param([event("end", 1, "x")], (), {"state": "completed"}, AlreadyTerminal, id="second end"),
        pytest.param([event("fail", 1, "x")], (), {"state": "completed"}, AlreadyTerminal, id="other end"),
        pytest.param([END_K, event("fail", 1, "x")], (), {}, AlreadyTerminal, id="two ends in one call"),
        pytest.param([END_K, event("fail", 1, "x")], inserted(END_K), {}, AlreadyTerminal, id="end after a repair"),
        pytest.param([event("end", 2, "end")], inserted(END_K), {"state": "completed"}, ReplayConflict, id="other output"),
    ],
)
def test_a_plan_refused(
    drafts: list[PreparedEvent], stored: tuple[EventRow, ...], fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        plan(*drafts, stored=stored, **fields)


def test_a_repair_keeps_the_stored_event_and_its_time() -> None:
    stored = plan_append(row(last_sequence=0), [END_K], {}, None, 42).inserts
    made = plan_append(row(last_sequence=98), [END_K], {"end": stored[0]}, None, 100)
    ((found, replayed),) = made.results
    assert (found.sequence, found.occurred_ms, replayed) == (1, 42, True)
    assert made.ended is END_K


def test_a_wake_is_recorded_with_its_target_and_identity() -> None:
    target = Scope("s", "f")
    ping, fixed = plan(event("ping", "x"), event("fixed", "y"), event("note"), target=target).inserts[:2]
    assert (ping.wake_id, fixed.wake_id) == (semantics.wake_id(target, "p:4"), semantics.wake_id(target, "k"))
    assert (ping.wake_session_id, ping.wake_frame_id, ping.wake_coalesced) == ("s", "f", 0)
    assert ping.wake_batch_id is not None


def test_a_wake_without_a_target_is_recorded_for_nobody() -> None:
    (ping,) = plan(event("ping", "x")).inserts
    assert ping.wake_id is not None
    assert (ping.wake_session_id, ping.wake_batch_id) == (None, None)
    (note,) = plan(event("note"), target=Scope("s")).inserts
    assert (note.wake_id, note.wake_input, note.wake_coalesced) == (None, None, None)


def test_a_replay_is_not_recomputed_for_another_target() -> None:
    ping = event("ping", "x", "k")
    stored = plan(ping, target=Scope("s")).inserts
    ((found, replayed),) = plan(ping, stored=stored, target=Scope("t")).results
    assert replayed
    assert found is stored[0]
