"""Bugs to plant into a process: a test of kills, pauses and wake-ups that does not notice them proves nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from lash_store.db import postgres, postgres_session, sqlite_writer
from lash_store.notify import hub, listen
from lash_store.ops import events, leases
from lash_store.ops.heads import Head, lock_sessions
from lash_store.ops.queue import PreparedBatch, insert_batches
from lash_store.ops.statement import Op, database_now
from lash_store.store._sync.processes import Processes
from tests.support.hasty import commit_shortcuts_late

SLOW_COMMIT_S = 0.05  # stretches the moment in which the ring is out and the commit is not
NEVER_S = 86_400.0


def change(owner: Any, name: str, value: object) -> None:
    """Replace an attribute, private ones too."""
    assert hasattr(owner, name), f"there is no {name} to replace"
    setattr(owner, name, value)


def wake_in_a_second_transaction() -> None:
    """Log and state are committed first, the wake after it. A function cannot do that: this is a bug of the long way."""
    held: list[PreparedBatch] = []

    def keep(batches: Sequence[PreparedBatch], heads: Mapping[str, Head], **options: Any) -> Op[None]:
        yield from ()
        held.extend(batches)

    def enqueue(batches: Sequence[PreparedBatch]) -> Op[None]:
        heads = yield from lock_sessions(sorted({batch.session_id for batch in batches}))
        now_ms = yield from database_now()
        yield from insert_batches(batches, heads, now_ms=now_ms, retention_ms=None)

    append: Callable[..., Any] = vars(Processes)["_append"]

    def append_then_wake(self: Processes, *args: Any, **options: Any) -> Any:
        held.clear()
        answer = append(self, *args, **options)
        if held:
            runtime: Any = vars(self)["_runtime"]
            runtime.write(enqueue, list(held))
        return answer

    change(events, "insert_batches", keep)
    change(Processes, "_append", append_then_wake)


def events_one_by_one() -> None:
    """Events that belong together are appended by one call each."""
    append: Callable[..., Any] = vars(Processes)["_append"]

    def one_by_one(self: Processes, process_id: str, drafts: Sequence[Any], *args: Any, key: str | None = None) -> Any:
        return tuple(append(self, process_id, [draft], *args, key=f"{key} {i}")[0] for i, draft in enumerate(drafts))

    change(Processes, "_append", one_by_one)


def leases_are_not_checked() -> None:
    """Whoever has ever held a lease may write."""
    change(events, "require_live", _nothing)
    change(leases, "require_live", _nothing)


def _nothing(*_: object) -> None:
    return None


def ring_before_commit() -> None:
    """Waiters are woken, look and see nothing; then comes the commit."""
    end: Callable[..., bool] = vars(sqlite_writer.Writer)["_end"]
    ring: Callable[..., None] = vars(sqlite_writer.Writer)["_ring"]

    def hasty_end(writer: sqlite_writer.Writer, ran: list[sqlite_writer.Work], *, alone: bool) -> bool:
        ring(writer, [each for work in ran for each in work.rings])
        for work in ran:
            work.rings = []
        time.sleep(SLOW_COMMIT_S)
        return end(writer, ran, alone=alone)

    change(sqlite_writer.Writer, "_end", hasty_end)
    _ring_before_commit_on_postgres()
    commit_shortcuts_late(SLOW_COMMIT_S)


def _ring_before_commit_on_postgres() -> None:
    attempt: Callable[..., Coroutine[Any, Any, Any]] = vars(postgres.PostgresDriver)["_in_transaction"]
    step: Callable[..., Coroutine[Any, Any, Any]] = postgres_session.Session.run

    async def attempt_known(driver: postgres.PostgresDriver, session: Any, running: Any, *args: Any) -> None:
        running.driver = driver
        await attempt(driver, session, running, *args)

    async def step_then_ring(session: postgres_session.Session, running: Any, *args: Any) -> Any:
        result = await step(session, running, *args)
        if running.rings:
            running.driver.deliver(list(running.rings))
            running.rings.clear()
            await asyncio.sleep(SLOW_COMMIT_S)
        return result

    change(postgres.PostgresDriver, "_in_transaction", attempt_known)
    change(postgres_session.Session, "run", step_then_ring)


def no_slow_look() -> None:
    """Not a bug but a blindfold: without the slow look a lost signal stays lost, and is seen."""
    change(hub, "FIRST_LOOK_S", NEVER_S)
    change(hub, "SLOWEST_LOOK_S", NEVER_S)


def no_new_listener() -> None:
    """A LISTEN connection that is lost stays lost."""
    change(listen, "RETRY_FIRST_S", NEVER_S)
    change(listen, "RETRY_MAX_S", NEVER_S)


PLANTS = {
    plant.__name__: plant
    for plant in (
        wake_in_a_second_transaction,
        events_one_by_one,
        leases_are_not_checked,
        ring_before_commit,
        no_slow_look,
        no_new_listener,
    )
}


def plant(names: Sequence[str]) -> None:
    """Plant what is named, in this process."""
    for name in names:
        PLANTS[name]()
