"""Doing one thing to the store and to the model of processes, and comparing the answers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant
from msgspec import Struct
from msgspec.structs import fields, replace

from lash_store import (
    Claim,
    DeliveryOutcome,
    EmitReport,
    Lease,
    RedriveReport,
    Registration,
    Scope,
    StartGrant,
    StoreError,
    TickReport,
    TriggerDelivery,
)
from tests.support.model_report import disagreement
from tests.support.pmodel_drafts import Draw, plain_registration
from tests.support.pmodel_engines import Call, Engine, Outcome
from tests.support.pmodel_triggers import WHY, Handle, Model

START_MS = 1_700_000_000_000
WORDS = frozenset({"why", "path", "actual", "what", "argument"})  # fields that are texts, compared by nobody


class Mint:
    """Ids that are the same on every engine and in every replay: a counter that each engine counts up from the same number."""

    def __init__(self) -> None:
        self.base = self.count = 0

    def __call__(self, prefix: str = "") -> str:
        self.count += 1
        return f"{prefix}{self.count:06d}"

    def rewind(self) -> None:
        """Another engine does the same."""
        self.count = self.base

    def go_on(self) -> None:
        """All engines have done it."""
        self.base = self.count


class World:
    """What lives longer than an example: the open engines, the counts, and how to replay a failure."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = engines
        self.replay = ""
        self.mint = Mint()
        self.examples = 0
        self.rules: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.at_end: Callable[[], None] = lambda: None
        for engine in engines:
            engine.before_call = self.mint.rewind


class Bound(Struct):
    """A session's handle, on each engine and in the model."""

    model: Handle
    handles: list[Any]


class Steps(RuleBasedStateMachine):
    """One example: fresh ids in an empty database, an empty model, and an audit of everything at the end."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        world = self.world
        world.examples += 1
        world.mint.base = 0
        for engine in world.engines:
            engine.wipe()
        name = f"x{world.examples:06d}"
        self.ids = tuple(f"{name}-{session}" for session in ("a", "b", "c"))
        self.process_ids = tuple(f"{name}-p{i}" for i in range(9))
        self.source = f"{name}.hook"
        self.model = Model(START_MS)
        self.state = self.model.state
        self.claims: list[Claim] = []
        self.leases: list[Lease] = []
        self.said: dict[str, Registration] = {}
        self.bound: list[Bound] = []
        self.trace: list[tuple[Call, Outcome]] = []
        self.door = 0
        self.in_step = False
        self.tick(0)
        for session_id in self.ids[:2]:
            self.same("sessions.create", session_id)
        self.register_one(Scope(self.ids[0]), Scope(self.ids[0]))
        self.register_one(Scope(self.ids[0]), Scope(self.ids[1], "f1"))

    # --- doing and comparing --------------------------------------------------------------------------------------------

    def begin(self, data: st.DataObject) -> Draw:
        """Start a step of the rule that calls this: the clock moves on a little, and one of the two doors is chosen."""
        draw = Draw(data)
        self.in_step = True
        self.door = draw.below(2)
        self.world.rules[sys._getframe(1).f_code.co_name] += 1  # pyright: ignore[reportPrivateUsage]
        self.tick(1)
        return draw

    @invariant()
    def end(self) -> None:
        """The step came to its end; an example that broke off inside one is not audited."""
        self.in_step = False

    def tick(self, ms: int) -> None:
        self.state.now_ms += ms
        for engine in self.world.engines:
            engine.set_clock(self.state.now_ms)

    def same(self, verb: str, *args: Any, learn: bool = False, **kwargs: Any) -> Any:
        """Do it on every engine and in the model. The value all agree on, None when all refused."""
        call = Call(verb, args, kwargs)
        outcomes = [engine.call(self.door, call) for engine in self.world.engines]
        return self.agree(call, outcomes, self.model, learn=learn)

    def on_handle(self, bound: Bound, verb: str, *args: Any, learn: bool = False, **kwargs: Any) -> Any:
        """The same through a session's handle."""
        call = Call(f"processes.{verb}", args, kwargs)
        pairs = zip(self.world.engines, bound.handles, strict=True)
        outcomes = [engine.on_handle(handle, call) for engine, handle in pairs]
        return self.agree(Call(f"handle.{verb}", args, kwargs), outcomes, bound.model, learn=learn)

    def agree(self, call: Call, outcomes: Sequence[Outcome], place: Any, *, learn: bool = False) -> Any:
        """Compare the answers of the engines with the model's."""
        self.world.mint.go_on()
        expected = self.expected(call, place, {"learned": outcomes[0].value} if learn else {})
        self.trace.append((call, expected))
        self.world.done[f"{call.verb} {'done' if expected.error is None else type(expected.error).__name__}"] += 1
        for engine, outcome in zip(self.world.engines, outcomes, strict=True):
            if not alike(outcome, expected):
                self.fail(engine, outcome, expected)
        return expected.value

    def expected(self, call: Call, place: Any, learned: dict[str, Any]) -> Outcome:
        for name in call.verb.split(".")[isinstance(place, Handle) :]:
            place = getattr(place, name)
        try:
            return Outcome(place(*call.args, **call.kwargs, **learned))
        except StoreError as error:
            return Outcome(error=error)

    def fail(self, engine: Engine, outcome: Outcome, expected: Outcome) -> None:
        text = disagreement(engine.name, outcome, expected, self.trace, self.world.replay)
        raise AssertionError(text) from outcome.error

    def pages(self, verb: str, field: str, *args: Any, size: int = 50, **kwargs: Any) -> None:
        """A listing, page by page, is what the model lists at once."""
        call = Call(verb, args, kwargs)
        outcomes = [self.all_pages(engine, call, field, size) for engine in self.world.engines]
        self.agree(call, outcomes, self.model)

    def all_pages(self, engine: Engine, call: Call, field: str, size: int) -> Outcome:
        found: tuple[Any, ...] = ()
        name, cursor = ("after" if field == "events" else "cursor"), (0 if field == "events" else None)
        while True:
            outcome = engine.call(self.door, Call(call.verb, call.args, {**call.kwargs, "limit": size, name: cursor}))
            if outcome.error is not None:
                return outcome
            found += getattr(outcome.value, field)
            cursor = outcome.value.cursor
            if cursor is None:
                return Outcome(found)

    # --- choosing -------------------------------------------------------------------------------------------------------

    def session_id(self, draw: Draw) -> str:
        """Mostly a session that is there."""
        live = [each for each in self.ids if self.state.is_live(each)]
        return draw.pick(live) if live and not draw.rarely(10) else draw.pick(self.ids)

    def scope(self, draw: Draw) -> Scope:
        return Scope(self.session_id(draw), draw.pick((None, None, "f1")))

    def scopes(self, draw: Draw) -> tuple[Scope, ...]:
        """Two scopes of sessions that mostly are there."""
        return self.scope(draw), self.scope(draw)

    def running(self) -> list[str]:
        return [id for id, process in self.state.processes.items() if process.state == "running"]

    def process_id(self, draw: Draw) -> str:
        """Mostly a running process, which is registered if there is none; rarely one that ended, is pruned or unknown."""
        if draw.rarely(20):
            return draw.pick(self.process_ids)
        if not self.running():
            self.register_one(self.scope(draw), self.scope(draw))
        there = [id for id, process in self.state.processes.items() if not process.pruned]
        some = there if draw.rarely(5) else self.running()
        return draw.pick(some or self.process_ids)

    def register_one(self, target: Scope, holder: Scope) -> None:
        """A process that wakes one scope and is granted to another, if it can be."""
        unused = [each for each in self.process_ids if each not in self.state.processes]
        if unused:
            self.said[unused[0]] = plain_registration(unused[0], target)
            self.same("processes.register", self.said[unused[0]], grant=StartGrant(scope=holder))


def alike(outcome: Outcome, expected: Outcome) -> bool:
    """The same value to the last character, or the same refusal with the same facts."""
    if outcome.error is None or expected.error is None:
        return outcome.error is expected.error and repr(plain(outcome.value)) == repr(expected.value)
    return type(outcome.error) is type(expected.error) and facts(outcome.error) == facts(expected.error)


def plain(value: Any) -> Any:
    """The value with every reason of a failed delivery replaced: reasons are sentences."""
    if isinstance(value, TriggerDelivery):
        return replace(value, error=None if value.error is None else WHY)
    if isinstance(value, tuple):
        return tuple(plain(each) for each in value)
    if isinstance(value, DeliveryOutcome | EmitReport | RedriveReport | TickReport):
        return replace(value, **{field.name: plain(getattr(value, field.name)) for field in fields(value)})
    return value


def facts(error: Exception) -> dict[str, object]:
    """The fields of a refusal that are not texts."""
    assert isinstance(error, StoreError)
    return {name: value for name, value in error.fields().items() if name not in WORDS}
