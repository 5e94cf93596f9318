"""What a disagreement with a model says: first who says what, then how to repeat it, then the steps that led to it.

A log is often cut, and the cause must be in what is left of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

STEPS_TOLD = 15
STEP_CHARS = 400


class Called(Protocol):
    """A verb of the store and its arguments."""

    verb: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Answered(Protocol):
    """A value, or the error that was raised."""

    value: Any
    error: Exception | None


def disagreement(name: str, said: Answered, expected: Answered, trace: Sequence[tuple[Called, Answered]], replay: str) -> str:
    """The whole message. The last call of the trace is the one that is disagreed about."""
    told = "".join(f"\n  {line}" for line in _told(trace[:-1]))
    return (
        f"{name} and the model disagree about {shown(trace[-1][0])}\n"
        f"  {name} says {answer(said)}\n  the model says {answer(expected)}\nReplay: {replay}\n"
        f"after {len(trace) - 1} steps, of which the last were{told}"
    )


def _told(trace: Sequence[tuple[Called, Answered]]) -> list[str]:
    first = max(0, len(trace) - STEPS_TOLD)
    lines = [f"{i}. {shown(call)} -> {answer(done)}" for i, (call, done) in enumerate(trace[first:], first + 1)]
    return [line if len(line) <= STEP_CHARS else f"{line[:STEP_CHARS]}…" for line in lines]


def shown(call: Called) -> str:
    """The call as it would be written."""
    args = [repr(arg) for arg in call.args] + [f"{name}={value!r}" for name, value in call.kwargs.items()]
    return f"{call.verb}({', '.join(args)})"


def answer(outcome: Answered) -> str:
    """What came back, or which refusal."""
    if outcome.error is None:
        return repr(outcome.value)
    return f"{type(outcome.error).__name__}: {outcome.error}"
