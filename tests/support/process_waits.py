"""Processes that wait for what another process does."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import IO, Any, Literal, get_args

from lash_store import Event, StatementEvent, Store, Success
from lash_store.notify.hub import SyncSubscription
from lash_store.ops.watch import PROBES
from tests.support.actor import Word, perform, say, told
from tests.support.process_plants import change, plant
from tests.support.process_scene import HOUR_MS, job_of
from tests.support.process_victim import Tell, fork, opened
from tests.support.ways import go

SESSION = "waits"
LOG = "waits log"  # the process whose events are waited for
KINDS = ("await_output", "wait_event", "follow", "wait_runnable")
NOT_OF_THE_WAIT = {"notify", *(probe.__qualname__ for probe in PROBES.values())}  # what the store does by itself
DELAY_MAX_S = 0.002

Place = Literal["anywhere", "after-a-look", "before-the-sleep"]


# --- rounds -------------------------------------------------------------------------------------------------------------------


class Line:
    """The two ends of a conversation between two processes."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader: IO[str] = os.fdopen(reader)
        self._writer = writer

    def say(self, **word: Any) -> None:
        os.write(self._writer, json.dumps(word).encode() + b"\n")

    def hear(self) -> Word | None:
        line = self._reader.readline()
        return json.loads(line) if line else None


def rounds(job: Word, tell: Tell) -> None:
    """Wait for another process, again and again. What it does falls anywhere in the wait, the gap before the sleep included."""
    (a, b), (c, d) = os.pipe(), os.pipe()
    child = fork(lambda: _ring(job, Line(a, d), unused=(b, c)))
    os.close(a)
    os.close(d)
    plant(["no_slow_look"])
    lost = _wait(job, Line(c, b))
    os.close(b)
    tell(lost=lost)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _ring(job: Word, line: Line, *, unused: tuple[int, int]) -> None:
    """The other process: does what is asked, a random moment later, and says when it is committed."""
    for fd in unused:
        os.close(fd)
    plant(job["plants"])
    ways = job["ways"]
    chance = random.Random(job["seed"])
    with opened(job) as store:
        line.say(ready=True)
        while (order := line.hear()) is not None:
            if not order["now"]:
                time.sleep(chance.uniform(0, DELAY_MAX_S))  # chooses the moment, decides nothing
            go(ways[order["round"] // len(get_args(Place)) % len(ways)])
            _act(store, job["kind"], order["round"])
            line.say(done=order["round"])


def _act(store: Store, kind: str, n: int) -> None:
    if kind == "await_output":
        store.processes.complete(f"waits {n}", Success(n))
    elif kind == "wait_runnable":
        store.processes.register(job_of(f"runnable {n}", SESSION))
    else:
        store.processes.append(LOG, "note", n, replay_key=f"{n}")


class Gap:
    """Lets the other process act, and commit, within a wait: after its first look, or between its last look and its sleep."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._round = 0
        self._place: Place = "anywhere"

    def open(self, n: int, place: Place) -> None:
        self._round, self._place = n, place

    def statement(self, event: StatementEvent) -> None:
        if self._place == "after-a-look" and event.operation not in NOT_OF_THE_WAIT:
            self._act()

    def sleep(self) -> None:
        if self._place == "before-the-sleep":
            self._act()

    def _act(self) -> None:
        self._place = "anywhere"
        self._line.say(round=self._round, now=True)
        assert self._line.hear() == {"done": self._round}


def before_each_sleep(act: Callable[[], None]) -> None:
    """Call this when a waiting thread of this process has looked and is about to sleep."""
    wait = SyncSubscription.wait

    def watched(subscription: SyncSubscription, timeout_ms: float | None) -> bool:
        act()
        return wait(subscription, timeout_ms)

    change(SyncSubscription, "wait", watched)


def _wait(job: Word, line: Line) -> int | None:
    """The round that waited in vain, if any: it is the last one."""
    gap = Gap(line)
    before_each_sleep(gap.sleep)
    store = opened(job, on_statement=gap.statement)  # never closed: a thread may wait on it for ever
    waiting = Waiting(store, job)
    assert line.hear() == {"ready": True}
    for n in range(job["rounds"]):
        place = _place(job["kind"], n)
        gap.open(n, place)
        if place == "anywhere":
            line.say(round=n, now=False)
        if not waiting.wait(n):
            return n
        assert place != "anywhere" or line.hear() == {"done": n}
    return None


def _place(kind: str, n: int) -> Place:
    places = get_args(Place)
    place: Place = places[n % len(places)]
    # Who follows looks, yields, and sleeps when asked for more: no look comes before its sleep.
    return "anywhere" if kind == "follow" and place == "after-a-look" else place


class Waiting:
    """One kind of wait, round by round."""

    def __init__(self, store: Store, job: Word) -> None:
        self._store = store
        self._timeout_ms: int = job["timeout_ms"]
        self._followed: Iterator[Event] = store.processes.follow(LOG)
        waits: dict[str, Callable[[int], bool]] = {
            "await_output": self._await_output,
            "wait_event": self._wait_event,
            "follow": self._follow,
            "wait_runnable": self._wait_runnable,
        }
        self._wait = waits[job["kind"]]

    def wait(self, n: int) -> bool:
        """Whether it was woken. A wait that nobody wakes looks once more at its timeout, so that what it finds proves nothing."""
        deadline_s = time.monotonic() + self._timeout_ms / 1000
        return self._wait(n) and time.monotonic() < deadline_s

    def _await_output(self, n: int) -> bool:
        return self._store.processes.await_output(f"waits {n}", timeout_ms=self._timeout_ms) == Success(n)

    def _wait_event(self, n: int) -> bool:
        event = self._store.processes.wait_event(LOG, "note", after=n, timeout_ms=self._timeout_ms)
        return event is not None and event.payload == n

    def _follow(self, n: int) -> bool:
        next_event: Future[Event] = in_thread(lambda: next(self._followed))
        try:
            return next_event.result(self._timeout_ms / 1000).payload == n
        except TimeoutError:
            return False

    def _wait_runnable(self, n: int) -> bool:
        if not self._store.processes.wait_runnable(timeout_ms=self._timeout_ms):
            return False
        [leased] = self._store.processes.claim_next("worker", incarnation="1", lease_ms=HOUR_MS)
        return leased.process.process_id == f"runnable {n}"


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    """The answer of work that may never end."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is the answer
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer


# --- all waits at once ----------------------------------------------------------------------------------------------------------


def together(job: Word) -> None:
    """Wait in all four ways, say when everybody is about to sleep, and what they got when they return."""
    plant(job["plants"])
    asleep = threading.Semaphore(0)
    before_each_sleep(asleep.release)
    with opened(job) as store:
        waiting = {kind: Waiting(store, job | {"kind": kind}) for kind in KINDS}
        answers = {kind: in_thread(lambda each=each: each.wait(0)) for kind, each in waiting.items()}
        for _ in KINDS:
            asleep.acquire()
        say(waiting=True)
        told()
        say(returned={kind: answer.result() for kind, answer in answers.items()})


if __name__ == "__main__":
    perform({"together": together})
