"""Doing one thing to the store and to the model, and comparing the answers; what every part of the machine stands on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant
from msgspec import Struct

from lash_store import Claim, Commit, Corrupt, StoreError
from tests.support.model import Model
from tests.support.model_drafts import SESSIONS, Draw
from tests.support.model_engines import Call, Engine, Outcome, wipe
from tests.support.model_report import disagreement

START_MS = 1_700_000_000_000
RETENTION_MS = 10_000
WORDS = frozenset({"why", "path", "actual", "what", "table", "row"})  # fields that are texts, compared by nobody

Expect = Callable[[Any], Any]


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
        self.steps = 0
        self.done: Counter[str] = Counter()
        self.dirty = False
        self.at_end: Callable[[], None] = lambda: None
        for engine in engines:
            engine.before_call = self.mint.rewind


class Bound(Struct):
    """A handle that met an incarnation, on each engine."""

    session_id: str
    incarnation: int
    handles: list[Any]


class Steps(RuleBasedStateMachine):
    """One example: fresh session ids, an empty model, fifty steps, and an audit of everything at the end."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        world = self.world
        if world.dirty:
            for engine in world.engines:
                wipe(engine)
        world.dirty = True
        world.examples += 1
        self.ids = tuple(f"x{world.examples:06d}-{name}" for name in SESSIONS)
        self.model = Model(START_MS, retention_ms=RETENTION_MS)
        self.claims: list[Claim] = []
        self.said: list[tuple[str, Commit]] = []
        self.bound: list[Bound] = []
        self.trace: list[tuple[Call, Outcome]] = []
        self.door = 0
        self.in_step = False
        world.mint.base = 0
        self.tick(0)
        for session_id in self.ids[:3]:
            self.same("sessions.create", session_id)

    # --- doing and comparing --------------------------------------------------------------------------------------------

    def begin(self, data: st.DataObject) -> Draw:
        """Start a step: the clock moves on a little, and one of the two doors is chosen."""
        draw = Draw(data)
        self.in_step = True
        self.door = draw.below(2)
        self.world.steps += 1
        self.tick(1)
        return draw

    @invariant()
    def end(self) -> None:
        """The step came to its end; an example that broke off inside one is not audited."""
        self.in_step = False

    def tick(self, ms: int) -> None:
        self.model.now_ms += ms
        for engine in self.world.engines:
            engine.set_clock(self.model.now_ms)

    def session_id(self, draw: Draw) -> str:
        """Mostly a session that is there."""
        live = [i for i in self.ids if i in self.model.sessions and not self.model.sessions[i].deleted]
        if live and draw.below(2) == 0:
            return live[0]
        return draw.pick(live) if live and not draw.rarely(5) else draw.pick(self.ids)

    def step(self, call: Call, expect: Expect) -> Any:
        """Do it on every engine and in the model. The value all agree on, None when all refused."""
        return self.agree(call, [engine.call(self.door, call) for engine in self.world.engines], expect)

    def same(self, verb: str, *args: Any, learn: bool = False, **kwargs: Any) -> Any:
        """A step whose verb has the same name and arguments in the model."""
        method = getattr(self.model, verb.partition(".")[2])

        def expect(learned: Any) -> Any:
            return method(*args, **kwargs, learned=learned) if learn else method(*args, **kwargs)

        return self.step(Call(verb, args, kwargs), expect)

    def agree(self, call: Call, outcomes: Sequence[Outcome], expect: Expect) -> Any:
        """Compare the answers of the engines with the model's."""
        self.world.mint.go_on()
        expected = self.expected(expect, outcomes[0].value)
        self.trace.append((call, expected))
        self.world.done[f"{call.verb} {'done' if expected.error is None else type(expected.error).__name__}"] += 1
        for engine, outcome in zip(self.world.engines, outcomes, strict=True):
            if not alike(outcome, expected):
                self.fail(engine, outcome, expected)
        return expected.value

    def expected(self, expect: Expect, learned: Any) -> Outcome:
        try:
            return Outcome(expect(learned))
        except StoreError as error:
            return Outcome(error=error)

    def fail(self, engine: Engine, outcome: Outcome, expected: Outcome) -> None:
        text = disagreement(engine.name, outcome, expected, self.trace, self.world.replay)
        raise AssertionError(text) from outcome.error

    def pages(self, verb: str, field: str, *args: Any, expect: Callable[[], Sequence[Any]] | None = None, **kwargs: Any) -> None:
        """A listing, page by page, is what the model lists at once."""
        call = Call(verb, args, kwargs)
        outcomes = [self.all_pages(engine, call, field) for engine in self.world.engines]
        if expect is None:
            self.agree(call, outcomes, lambda _: list(getattr(self.model, verb.partition(".")[2])(*args, **kwargs)))
        else:
            self.agree(call, outcomes, lambda _: list(expect()))

    def all_pages(self, engine: Engine, call: Call, field: str) -> Outcome:
        found: list[Any] = []
        cursor = None
        while True:
            outcome = engine.call(self.door, Call(call.verb, call.args, {**call.kwargs, "limit": 3, "cursor": cursor}))
            if outcome.error is not None:
                return outcome
            found.extend(getattr(outcome.value, field))
            cursor = outcome.value.cursor
            if cursor is None:
                return Outcome(found)


def alike(outcome: Outcome, expected: Outcome) -> bool:
    """The same value to the last character, or the same refusal with the same facts."""
    if outcome.error is None or expected.error is None:
        return outcome.error is expected.error and repr(outcome.value) == repr(expected.value)
    if type(outcome.error) is not type(expected.error):
        return False
    return isinstance(outcome.error, Corrupt) or facts(outcome.error) == facts(expected.error)


def facts(error: Exception) -> dict[str, object]:
    """The fields of a refusal that are not texts."""
    assert isinstance(error, StoreError)
    return {name: value for name, value in error.fields().items() if name not in WORDS}
