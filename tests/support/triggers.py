"""Small steps that tests of triggers share."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from lash_store import (
    AsyncStore,
    EmitReport,
    EventBinding,
    OccurrenceRequest,
    Outcome,
    ProcessInput,
    Scope,
    Subscription,
    SubscriptionDraft,
)
from lash_store.ops.statement import Op
from lash_store.testing import Backend

BUTTON = "ui.button.pressed"
BLUE = "button:blue"
TABLES = (
    "counters",
    "subscriptions",
    "schedules",
    "occurrences",
    "deliveries",
    "processes",
    "registrations",
    "grants",
    "sessions",
    "batches",
)


class Killed(Exception):
    """The process ended here."""


def wish(**fields: Any) -> SubscriptionDraft:
    """A draft for the blue button, with whatever is different."""
    chosen: dict[str, Any] = {
        "source_type": BUTTON,
        "source_key": BLUE,
        "target": ProcessInput("job", {}),
        "input_template": {"event": EventBinding()},
        **fields,
    }
    return SubscriptionDraft(**chosen)


async def subscribed(store: AsyncStore, session_id: str | None = None, **fields: Any) -> Subscription:
    """A subscription of a session, which is created if it is not there, or of the host."""
    if session_id is not None:
        await store.sessions.create(session_id)
        fields = {"registrant": Scope(session_id), **fields}
    return await store.triggers.subscribe(wish(**fields))


def pressed(key: str = "press-1", **fields: Any) -> OccurrenceRequest:
    """The blue button is pressed."""
    chosen: dict[str, Any] = {
        "source_type": BUTTON,
        "source_key": BLUE,
        "idempotency_key": key,
        "payload": {"button": "Blue"},
        **fields,
    }
    return OccurrenceRequest(**chosen)


def outcomes_of(report: EmitReport) -> list[tuple[str, Outcome]]:
    """Which subscription got which outcome, in order."""
    return [(each.delivery.subscription_id, each.outcome) for each in report.outcomes]


async def rows_of(backend: Backend, table: str, columns: str) -> list[tuple[Any, ...]]:
    """Raw columns of all rows, sorted."""
    return sorted(await backend.raw(f"SELECT {columns} FROM {backend.table(table)}"))


async def size_of(backend: Backend, table: str) -> int:
    """How many rows a table has."""
    return len(await rows_of(backend, table, "1"))


@contextmanager
def replaced(module: Any, name: str, change: Callable[[Callable[..., Op[Any]]], Callable[..., Op[Any]]]) -> Generator[None]:
    """An operation with a change, for all stores of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, change(getattr(module, name)))
        yield


def killed_at(step: int) -> Callable[[Callable[..., Op[Any]]], Callable[..., Op[Any]]]:
    """An operation that dies before its statement number `step`; step n of n is after the last one, before the commit."""

    def change(operation: Callable[..., Op[Any]]) -> Callable[..., Op[Any]]:
        def dying(*args: Any, **kwargs: Any) -> Op[Any]:
            statements, answer, done = operation(*args, **kwargs), None, 0
            while True:
                try:
                    statement = statements.send(answer)
                except StopIteration as end:
                    if done == step:
                        raise Killed from None
                    return end.value
                if done == step:
                    statements.close()
                    raise Killed
                answer = yield statement
                done += 1

        return dying

    return change
