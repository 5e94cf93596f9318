"""Forks victims from a warm process without threads, kills them at random moments, and writes down what they said.

`python -m tests.support.killer`, with a `Hunt` as JSON on standard input, prints a `History`. The process never opens a store.
"""

from __future__ import annotations

import gc
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from tests.support.deeds import Answer, Deed
from tests.support.victim import Life, Role, live
from tests.support.ways import WAYS, Way

PROJECT = Path(__file__).resolve().parents[2]
ALIVE = 3  # victims at a time: enough to collide, few enough for two cores
REDO = 4  # doubtful deeds one successor begins with
BLIND = 0.2  # of the kills fall anywhere in a short life, while the store opens too
BLIND_MAX_S = 0.06
DEEDS_MAX = 5  # a life lasts until the first statement of at most this many deeds, and a random moment more


class Hunt(Struct, frozen=True, kw_only=True):
    """How many to kill, and what they work on."""

    name: str
    kills: int
    seed: str
    url: str
    schema: str
    sessions: list[str]
    hasty: bool = False
    ways: Sequence[Way] = WAYS  # each life takes one of them


class History(Struct, kw_only=True):
    """All that was ever said by victims. Deeds and answers are in the order in which they were heard."""

    kills: int = 0
    in_window: int = 0  # killed between the first statement, or the call of a function, and the answer of a deed
    begun: list[Deed] = field(default_factory=list[Deed])
    answers: list[Answer] = field(default_factory=list[Answer])
    failures: list[str] = field(default_factory=list[str])


def hunt(order: Hunt) -> History:
    """Run a hunt in a process of its own, and wait for it."""
    command = [sys.executable, "-m", "tests.support.killer"]
    done = subprocess.run(command, cwd=PROJECT, input=msgspec.json.encode(order), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.json.decode(done.stdout, type=History)


class Prey:
    """A living victim: its pipe, what it said, and when it dies."""

    def __init__(self, life: Life, chance: random.Random, window_s: float) -> None:
        self.redo = list(life.redo)
        self.pending: Deed | None = None
        self.in_window = False
        self.windows_ns: list[int] = []
        self.deadline = time.monotonic() + chance.uniform(0, BLIND_MAX_S) if chance.random() < BLIND else None
        self._deeds_left = chance.randint(1, DEEDS_MAX)
        self._delay_s = chance.uniform(0, 2 * window_s)
        self._first_ns = 0
        self._rest = b""
        self.pid, self.pipe = fork(life)

    def read(self, history: History) -> bool:
        """Hear what it says; False when it has ended."""
        chunk = os.read(self.pipe, 1 << 16)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._hear(line[:1], line[1:], history)
        return bool(chunk)

    def _hear(self, kind: bytes, text: bytes, history: History) -> None:
        if kind == b"b":
            self.pending = msgspec.json.decode(text, type=Deed)
            history.begun.append(self.pending)
        elif kind == b"f":
            self.in_window, self._first_ns = True, int(text)
            self._doom()
        elif kind == b"a":
            self._answered(text, history)
        else:
            history.failures.append(text.decode())

    def _answered(self, text: bytes, history: History) -> None:
        when, _, said = text.partition(b" ")
        answer = msgspec.json.decode(said, type=Answer)
        self.windows_ns.append(int(when) - self._first_ns)
        self.redo = [deed for deed in self.redo if deed.key != answer.key]
        self.pending, self.in_window = None, False
        history.answers.append(answer)

    def _doom(self) -> None:
        self._deeds_left -= 1
        if self._deeds_left <= 0 and self.deadline is None:
            self.deadline = time.monotonic() + self._delay_s

    def kill(self, history: History) -> list[Deed]:
        """Kill it, hear the rest, and return the deeds that are in doubt."""
        os.kill(self.pid, signal.SIGKILL)
        return self.bury(history)

    def bury(self, history: History) -> list[Deed]:
        _, status = os.waitpid(self.pid, 0)
        while self.read(history):
            pass
        os.close(self.pipe)
        if os.waitstatus_to_exitcode(status) == -signal.SIGKILL:
            history.kills += 1
            history.in_window += self.in_window
        pending = [] if self.pending is None else [self.pending]
        return pending + [deed for deed in self.redo if deed not in pending]


def fork(life: Life) -> tuple[int, int]:
    """A child that lives this life, and the end of the pipe to hear it by."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            live(life, theirs)
            status = 0
        finally:
            os._exit(status)  # nothing of the parent is run or flushed
    os.close(theirs)
    return pid, ours


class Killer:
    """Keeps some victims alive and kills them one after another; the last one is an heir who clears all doubts."""

    def __init__(self, order: Hunt) -> None:
        self._order = order
        self._chance = random.Random(order.seed)
        self._history = History()
        self._alive: dict[int, Prey] = {}
        self._doubts: list[Deed] = []
        self._born = 0
        self._parent = os.getppid()
        self._window_s = 0.002  # learnt while it runs

    def run(self) -> History:
        gc.freeze()  # the collector of a child would touch, and so copy, every page it shares with us
        try:
            self._hunt()
        finally:
            for prey in list(self._alive.values()):
                self._forget(prey, prey.kill(self._history))
        while self._doubts and not self._history.failures:
            self._inherit()
        return self._history

    def _hunt(self) -> None:
        while self._history.kills < self._order.kills and not self._history.failures:
            while len(self._alive) < ALIVE:
                self._give_birth()
            self._listen()
            self._kill_due()

    def _give_birth(self) -> None:
        role: Role = "writer" if self._chance.random() < 0.5 else "claimer"
        redo, self._doubts = self._doubts[:REDO], self._doubts[REDO:]
        prey = Prey(self._life(role, redo), self._chance, self._window_s)
        self._alive[prey.pipe] = prey

    def _life(self, role: Role, redo: list[Deed]) -> Life:
        self._born += 1
        order, name = self._order, f"{self._order.name}.{self._born}"
        return Life(
            name=name,
            role=role,
            seed=f"{order.seed} {name}",
            url=order.url,
            schema=order.schema,
            sessions=order.sessions,
            redo=redo,
            hasty=order.hasty,
            way=self._chance.choice(order.ways),
        )

    def _listen(self) -> None:
        deadlines = [prey.deadline for prey in self._alive.values() if prey.deadline is not None]
        patience_s = max(0.0, min([*deadlines, time.monotonic() + 1]) - time.monotonic())
        assert os.getppid() == self._parent, "whoever ordered this hunt is gone"
        readable, _, _ = select.select(list(self._alive), [], [], patience_s)
        for pipe in readable:
            prey = self._alive[pipe]
            if not prey.read(self._history):
                self._forget(prey, prey.bury(self._history))

    def _kill_due(self) -> None:
        now = time.monotonic()
        for prey in [prey for prey in self._alive.values() if prey.deadline is not None and prey.deadline <= now]:
            self._forget(prey, prey.kill(self._history))

    def _forget(self, prey: Prey, doubts: list[Deed]) -> None:
        del self._alive[prey.pipe]
        self._doubts.extend(doubts)
        for window_ns in prey.windows_ns:
            self._window_s += (window_ns / 1e9 - self._window_s) / 20

    def _inherit(self) -> None:
        redo, self._doubts = self._doubts, []
        heir = Prey(self._life("heir", redo), self._chance, self._window_s)
        while heir.read(self._history):
            pass
        self._doubts = heir.bury(self._history)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(Killer(msgspec.json.decode(sys.stdin.buffer.read(), type=Hunt)).run()))
