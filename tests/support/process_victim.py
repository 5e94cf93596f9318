"""A process that kills itself with SIGKILL at a chosen moment of a call, and one that is stopped in the middle of its work."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from lash_store import Lease, Refused, StatementEvent, Store, Success
from lash_store.db import postgres_session, sqlite_writer
from tests.support.actor import Word, perform, say, told
from tests.support.process_plants import change, plant
from tests.support.process_scene import HOUR_MS, Deed, do
from tests.support.ways import go

HASTY = "answer_before_commit"  # a plant that needs the victim's voice
LAST_MOMENTS = {"before commit", "before append_v1"}  # in which nothing is published yet


class Tell(Protocol):
    """How a forked process says a word."""

    def __call__(self, **word: Any) -> None: ...


def opened(job: Word, **options: Any) -> Store:
    """A store at the moved clock. PostgreSQL's clock was moved in the database; that of SQLite belongs to each process."""
    store = Store.open(job["url"], schema=job["schema"], pool_size=2, **options)
    shift_clock(store, job.get("offset_ms", 0))
    return store


def shift_clock(store: Store, offset_ms: int) -> None:
    """Move this process's clock of a SQLite file."""
    runtime: Any = vars(store)["_runtime"]
    if store.engine == "sqlite":
        runtime.driver.clock_offset_ms = offset_ms


# --- killed at a point of a call ----------------------------------------------------------------------------------------------


class Points:
    """The moments a call passes: after each statement, around each COMMIT and around each function. It dies at the chosen one."""

    def __init__(self, fatal: int | None, hasty: Callable[[], None] | None) -> None:
        self.passed: list[str] = []
        self._fatal = fatal
        self._hasty = hasty
        self._armed = False
        self._lock = threading.Lock()

    def arm(self) -> None:
        self._armed = True

    def disarm(self) -> None:
        """From here on nobody dies: the call has answered. A thread that is just passing a point is waited for."""
        with self._lock:
            self._armed = False

    def statement(self, event: StatementEvent) -> None:
        self.at(f"after {event.operation}")

    def at(self, point: str) -> None:
        with self._lock:
            if not self._armed:
                return
            self.passed.append(point)
            if self._hasty is not None and point in LAST_MOMENTS:
                self._hasty()
            if len(self.passed) == self._fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    def plant(self) -> None:
        """Put the points around COMMIT into both drivers of this process, and those around functions into PostgreSQL's."""
        commit = postgres_session.Session.commit
        call: Callable[..., Coroutine[Any, Any, list[Any]]] = vars(postgres_session.Session)["_call"]

        def fault(_: sqlite_writer.Writer, point: str) -> None:
            self.at(point.replace("-", " "))

        async def watched(session: postgres_session.Session) -> None:
            self.at("before commit")
            # Runs when the task gives way for the first time: COMMIT is on its way to the server, the answer is not here.
            asyncio.get_running_loop().call_soon(self.at, "commit sent")
            await commit(session)
            self.at("after commit")

        async def called(session: postgres_session.Session, running: Any, shortcut: Any) -> list[Any]:
            self.at(f"before {shortcut.function}")
            rows = await call(session, running, shortcut)
            self.at(f"after {shortcut.function}" if rows else f"{shortcut.function} declined")
            return rows

        change(sqlite_writer.Writer, "_fault", fault)
        change(postgres_session.Session, "_call", called)
        change(postgres_session.Session, "commit", watched)


def victim(job: Word, tell: Tell) -> None:
    """Do the deed, and die at the given point if it comes that far."""
    go(job["way"])
    hasty = HASTY in job["plants"]
    plant([name for name in job["plants"] if name != HASTY])
    points = Points(job["point"], (lambda: tell(answer="too early")) if hasty else None)
    points.plant()
    with opened(job, on_statement=points.statement) as store:
        points.arm()
        answer = do(store, msgspec.convert(job["deed"], Deed))
        points.disarm()
        tell(answer=answer, points=points.passed)


def fork(work: Callable[[], None]) -> int:
    """A child that does this and ends, without running or flushing anything of its parent."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - shown, and told by the status
        traceback.print_exc()
    finally:
        os._exit(status)


# --- stopped past its lease ---------------------------------------------------------------------------------------------------


def zombie(job: Word) -> None:
    """At each `claim`, claim. At each `act`, try everything a holder may do; with `stop`, stop in the middle of the first."""
    plant(job["plants"])
    stopping = threading.Event()

    def stop(_: StatementEvent) -> None:
        if stopping.is_set():
            stopping.clear()
            signal.raise_signal(signal.SIGSTOP)  # to this thread: one sent to the process may find another, and this one goes on

    with opened(job, on_statement=stop) as store:
        while (order := told()) is not None:
            if "claim" in order:
                lease = store.processes.claim(order["claim"], "worker", incarnation="1", lease_ms=HOUR_MS)
                say(lease=msgspec.to_builtins(lease))
                continue
            shift_clock(store, order["offset_ms"])
            if order["stop"]:
                stopping.set()
            say(outcomes=[_outcome(act, store, msgspec.convert(order["lease"], Lease)) for act in ACTS])


def _outcome(act: Callable[[Store, Lease], object], store: Store, lease: Lease) -> str:
    try:
        act(store, lease)
    except (Refused, AssertionError) as refusal:  # some writes are guarded twice
        return type(refusal).__name__
    return "accepted"


def _append(store: Store, lease: Lease) -> None:
    store.processes.append(lease.process_id, "step", {"text": "zombie"}, replay_key="zombie", lease=lease)


def _renew(store: Store, lease: Lease) -> None:
    store.processes.renew(lease, lease_ms=HOUR_MS)


def _complete(store: Store, lease: Lease) -> None:
    store.processes.complete(lease.process_id, Success("zombie"), lease=lease)


def _finish(store: Store, lease: Lease) -> None:
    store.processes.append(lease.process_id, "done", "zombie", replay_key="zombie's end", lease=lease)


def _release(store: Store, lease: Lease) -> None:
    assert not store.processes.release(lease), "a lease that is lost was released"


ACTS = (_append, _renew, _complete, _finish, _release)

if __name__ == "__main__":
    perform({"zombie": zombie})
