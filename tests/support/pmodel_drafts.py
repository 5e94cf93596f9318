"""What the model of processes says to the store: small pools of names and values, so that histories meet themselves again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

from hypothesis import strategies as st

from lash_store import (
    Cancelled,
    Const,
    EventBinding,
    EventDraft,
    EventType,
    Failure,
    FixedBinding,
    Interval,
    Missed,
    OccurrenceRequest,
    Output,
    Payload,
    Pointer,
    Present,
    ProcessIdentity,
    ProcessInput,
    ProcessState,
    Registration,
    Scope,
    SubscriptionDraft,
    Success,
    Template,
    Terminal,
    Wake,
)
from tests.support.pmodel_meaning import hashed

T = TypeVar("T")

OWNERS = ("anna", "bert")
LIVES = ("1", "1", "2")
LEASES_MS = (1000, 20, 0)
KEYS = ("k1", "k2", "ключ")
FRAMES = (None, None, "f1")
NUMBER = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
LOUD = Wake(input=Template("{who} says {all}", {"who": Pointer("/who"), "all": Payload()}), when=Pointer("/loud"))

NOTE = EventType(name="note")
TYPES = (
    NOTE,
    EventType(name="count", schema=NUMBER),
    EventType(name="tell", wake=Wake(input=Payload())),
    EventType(name="ping", wake=Wake(input=Pointer("/text"), when=Present("/text"), dedupe=Const("ping"))),
    EventType(name="call", wake=Wake(input=LOUD.input, when=LOUD.when, dedupe=Pointer("/who"))),
    EventType(name="done", terminal=Terminal(state=ProcessState.COMPLETED)),
    EventType(
        name="broke", terminal=Terminal(state=ProcessState.FAILED, output=Pointer("/why")), wake=Wake(input=Const({"b": [1]}))
    ),
    EventType(
        name="gone",
        terminal=Terminal(state=ProcessState.CANCELLED, output=Template("by {who} {x}", {"who": Pointer("/who")})),
    ),
    EventType(name="signal.go", schema={"type": "integer"}),
)
# What each type is mostly said with; the first is the plainest, the last does not fit where something can be wrong.
SAID: dict[str, tuple[Any, ...]] = {
    "note": (None, {"b": 1, "a": [True, 1.0, "ü"]}, "text"),
    "count": ({"n": 1}, {"n": 2, "m": None}, {"n": "one"}),
    "tell": ("hi", {"b": 1, "a": "{who}"}, 0),
    "ping": ({"text": "hi"}, {"text": ""}, {"text": {"x": 1}}, {}, None),
    "call": ({"who": "x", "loud": 0}, {"who": "x", "loud": True}, {"who": "{all}", "loud": 1}, {"who": "x", "loud": ""}, {}),
    "done": (1, {"type": "success", "value": 7}, {"x": 1}),
    "broke": ({"why": "no"}, {"why": {"type": "failure", "code": "c", "message": "m"}}, {}),
    "gone": ({"who": "me"}, {"who": None}, 3),
    "signal.go": (1, 2, "x"),
    "process.waiting": (None,),
    "process.completed": ({"output": {"type": "success"}}, {}),
    "nobody.declares": (None,),
}
OUTPUTS: tuple[Output, ...] = (
    Success({"x": 1}),
    Success("other"),
    Failure(code="c", message="m", kind="timeout"),
    Cancelled(message="stopped", raw=[1]),
)
# Declarations that could not work.
BROKEN: tuple[Sequence[EventType], ...] = (
    (NOTE, NOTE),
    (EventType(name="process.waiting"),),
    (EventType(name="x", terminal=Terminal(state=ProcessState.RUNNING)),),
    (EventType(name="x", terminal=Terminal(state=ProcessState.FAILED)),),
)
SPECS: tuple[Any, ...] = ({"env": 1}, {"env": 2, "a": "ü"}, [])
ENVS = tuple(f"process-env:sha256:{hashed(spec)}" for spec in SPECS)
PAYLOADS: tuple[Any, ...] = ({"n": 1}, {"n": 2}, "text", None)
INTERVALS = tuple(
    Interval(every_ms, anchor_ms=anchor_ms, missed=missed, grace_ms=grace_ms)
    for every_ms, anchor_ms in ((1000, None), (1500, 1_700_000_001_000), (1000, 1_699_999_999_100))
    for missed, grace_ms in ((Missed.ALL, 0), (Missed.SKIP, 0), (Missed.ONCE, 0), (Missed.SKIP, 2500))
)


@cache
def _below(n: int) -> st.SearchStrategy[int]:
    return st.integers(0, n - 1)


class Draw:
    """Choices of one step. The simplest choice is always the first, so that a failing history shrinks to plain steps."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def below(self, n: int) -> int:
        return self._data.draw(_below(n)) if n > 1 else 0

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def rarely(self, one_in: int) -> bool:
        return self.below(one_in) == one_in - 1

    def recent(self, options: Sequence[T]) -> T:
        """One of the last few; the very last is the simplest."""
        return options[-1 - self.below(min(len(options), 3))]

    def most(self, options: Sequence[T]) -> list[T]:
        """One or two of them."""
        return [self.pick(options) for _ in range(1 + self.below(2))]


def plain_registration(process_id: str, target: Scope) -> Registration:
    """A process that can do everything."""
    return Registration(process_id=process_id, input=ProcessInput("job", [1]), event_types=TYPES, wake_target=target)


def draw_registration(draw: Draw, process_id: str, scopes: Sequence[Scope]) -> Registration:
    """A process that mostly wakes a session and mostly can run."""
    kind = draw.pick(("job", "job", "mail", "external", "engine"))
    env_ref = draw.pick(ENVS) if kind == "engine" or draw.rarely(6) else None
    named = draw.rarely(3)
    return Registration(
        process_id=process_id,
        input=ProcessInput(kind, {"label": "a label", "b": 1}),
        identity=ProcessIdentity(kind="named", label="me", definition=draw.pick(({"v": 1}, None))) if named else None,
        event_types=draw.pick(BROKEN) if draw.rarely(12) else TYPES,
        originator=draw.pick(scopes) if draw.rarely(3) else None,
        caused_by=draw.pick((None, {"z": 1, "a": 2})),
        env_ref=None if kind == "engine" and draw.rarely(6) else env_ref,
        wake_target=None if draw.rarely(5) else draw.pick(scopes),
    )


def draw_event(draw: Draw, *, ends: bool = True) -> EventDraft:
    """An event that mostly fits its declaration; one that ends its process only rarely."""
    names = ("ping", "note", "tell", "ping", "call", "count", "signal.go")
    if ends and draw.rarely(5):
        names = ("done", "broke", "gone", "process.completed", "nobody.declares")
    name = draw.pick(names)
    keyed = draw.rarely(2) or (name in ("done", "broke", "gone", "process.completed") and not draw.rarely(6))
    return EventDraft(event_type=name, payload=draw.pick(SAID[name]), replay_key=draw.pick(KEYS) if keyed else None)


def draw_subscription(draw: Draw, source: str, scopes: Sequence[Scope]) -> SubscriptionDraft:
    """A wish of the host or of a session, for a source or for a schedule."""
    scheduled = draw.rarely(2)
    kind = draw.pick(("job", "external", "job"))
    return SubscriptionDraft(
        source_type=source,
        target=ProcessInput(kind, 1 if draw.rarely(12) else {"label": "x", "args": 0}),
        registrant=draw.pick((None, *scopes)),
        registration_key=draw.pick(KEYS) if draw.rarely(3) else None,
        name=draw.pick((None, "name")),
        source_key=None if scheduled else draw.pick(("s1", "s1", "s2")),
        payload_schema=draw.pick((True, True, NUMBER)),
        identity=ProcessIdentity(kind="made", definition=[1]) if draw.rarely(3) else None,
        event_types=TYPES if draw.rarely(2) else (),
        input_template={"what": EventBinding(), "how": FixedBinding({"x": 1})} if draw.rarely(2) else {},
        env_ref=draw.pick(ENVS) if kind == "job" and draw.rarely(3) else None,
        wake_target=draw.pick((*scopes, None)),
        label=draw.pick((None, "label")),
        schedule=draw.pick(INTERVALS) if scheduled else None,
    )


def draw_occurrence(draw: Draw, source: str) -> OccurrenceRequest:
    """Something that happened, rarely under a key that is not for callers."""
    return OccurrenceRequest(
        source_type=source,
        source_key=draw.pick(("s1", "s1", "s2")),
        idempotency_key="schedule:subscription:1:5" if draw.rarely(20) else draw.pick(("i1", "i2", "i3", "i4")),
        payload=draw.pick(PAYLOADS),
        source=draw.pick((None, None, None, {"s": 1})),
    )
