"""Workers that claim, append, renew and complete until they are killed at a random moment, and what they said before."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from lash_store import Lease, LeaseLost, Scope, StartGrant, Store, Success, Unavailable
from tests.support.actor import Word
from tests.support.process_plants import plant
from tests.support.process_scene import job_of
from tests.support.process_victim import Tell, fork, opened
from tests.support.ways import Way, go

ALIVE = 3  # workers at a time: enough to collide, few enough for two cores
BLIND = 0.2  # of the kills fall anywhere in a short life, while the store opens too
BLIND_MAX_S = 0.08
WORDS_MAX = 30  # a life lasts until at most this many words were heard, and a random moment more
CALL_S = 0.004  # about what a call takes; learnt while it runs, because a loaded machine takes far longer
LEASE_MIN_MS = 60
LEASE_CALLS = 15  # so many calls a lease lasts: so few that leases of the living pass too and their zombies are fenced
STALLED_LEASES = 1.3  # past the lease
SESSIONS = ("hunt a", "hunt b")
KEYS = ("step 0", "nag 1", "step 2", "nag 3")  # the events of every process, in their order
OUTPUT = {"steps": len(KEYS)}


class Said(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that was begun, or with `done` the answer to it."""

    call: str
    process_id: str
    done: bool = False
    key: str = ""
    sequence: int = 0
    fence: int = 0
    token: str = ""
    refused: str = ""
    at_ns: int = 0  # on the clock all processes share


class History(Struct, kw_only=True):
    """All that was ever said by workers, in the order in which it was heard."""

    kills: int = 0
    in_call: int = 0  # killed between the beginning and the answer of a call
    said: list[Said] = field(default_factory=list[Said])
    failures: list[str] = field(default_factory=list[str])

    @property
    def answers(self) -> Iterator[Said]:
        """The answers that said yes."""
        return (each for each in self.said if each.done and not each.refused)


# --- a worker -----------------------------------------------------------------------------------------------------------------


class Life(Struct, frozen=True, kw_only=True):
    """What a worker is born with. `redo` are registrations whose answers others did not live to hear."""

    name: str
    seed: str
    job: Word
    way: Way
    lease_ms: int
    redo: Sequence[str] = ()
    last: bool = False


class Worker:
    """An endless loop of claims; the last worker ends when no process is left, and registers none."""

    def __init__(self, life: Life, store: Store, pipe: int) -> None:
        self._life, self._store, self._pipe = life, store, pipe
        self._chance = random.Random(life.seed)
        self._born = 0

    def work(self) -> None:
        for process_id in self._life.redo:
            self._register(process_id)
        while True:
            self._patiently(self._claim)
            if self._life.last and not self._store.processes.non_terminal(limit=1).processes:
                return

    def _claim(self) -> None:
        name, limit = self._life.name, self._chance.randint(1, 2)
        handed = self._store.processes.claim_next("worker", incarnation=name, lease_ms=self._life.lease_ms, limit=limit)
        for each in handed:
            lease = each.lease
            self._say(Said(call="claim", process_id=lease.process_id, done=True, fence=lease.fence, token=lease.token))
        for each in handed:
            self._run(each.lease)
        if not handed and self._life.last:
            self._store.processes.wait_runnable(timeout_ms=2 * self._life.lease_ms)
        elif not handed:
            self._born += 1
            self._register(f"{name}.{self._born}")

    def _register(self, process_id: str) -> None:
        scope = Scope(SESSIONS[len(process_id) % len(SESSIONS)])
        self._say(Said(call="register", process_id=process_id))
        registration = job_of(process_id, scope.session_id)
        self._patiently(lambda: self._store.processes.register(registration, grant=StartGrant(scope=scope)))
        self._say(Said(call="register", process_id=process_id, done=True))

    def _run(self, lease: Lease) -> None:
        """From the beginning, whatever others have done: what is there under its key is only told again."""
        try:
            for key in KEYS:
                self._append(lease, key)
                if self._chance.random() < 0.25:
                    lease = self._renew(lease)
                elif self._chance.random() < 0.03:
                    # This decides nothing: the lease may pass meanwhile, or may not.
                    time.sleep(STALLED_LEASES * self._life.lease_ms / 1000)
            self._complete(lease)
        except LeaseLost as lost:
            self._say(Said(call="lost", process_id=lease.process_id, done=True, refused=type(lost).__name__))

    def _append(self, lease: Lease, key: str) -> None:
        process_id, event_type = lease.process_id, key.split()[0]
        payload = {"text": f"{process_id} {key}", "about": process_id}
        self._say(Said(call="append", process_id=process_id, key=key))
        done = self._patiently(lambda: self._store.processes.append(process_id, event_type, payload, replay_key=key, lease=lease))
        self._say(Said(call="append", process_id=process_id, key=key, done=True, sequence=done.event.sequence))

    def _renew(self, lease: Lease) -> Lease:
        self._say(Said(call="renew", process_id=lease.process_id))
        renewed: Lease = self._patiently(lambda: self._store.processes.renew(lease, lease_ms=self._life.lease_ms))
        self._say(Said(call="renew", process_id=lease.process_id, done=True, fence=renewed.fence))
        return renewed

    def _complete(self, lease: Lease) -> None:
        self._say(Said(call="complete", process_id=lease.process_id))
        self._patiently(lambda: self._store.processes.complete(lease.process_id, Success(OUTPUT), lease=lease))
        self._say(Said(call="complete", process_id=lease.process_id, done=True))

    def _patiently(self, call: Any) -> Any:
        """What is unavailable is repeated with the same keys, as applications do."""
        while True:
            try:
                return call()
            except Unavailable:
                continue

    def _say(self, said: Said) -> None:
        line = msgspec.json.encode(replace(said, at_ns=time.monotonic_ns()))
        os.write(self._pipe, line + b"\n")  # one short write: a kill does not tear it


def live(life: Life, pipe: int) -> None:
    """Open the store after the fork, as everybody must, and work."""
    try:
        go(life.way)
        plant(life.job["plants"])
        with opened_patiently(life.job) as store:
            Worker(life, store, pipe).work()
    except BaseException as error:
        os.write(pipe, b"!" + f"{type(error).__name__}: {error}".replace("\n", " ")[:1000].encode() + b"\n")
        raise


def opened_patiently(job: Word) -> Store:
    while True:
        try:
            return opened(job)
        except Unavailable:
            continue  # others who open at the same moment finish in bounded time


# --- those who kill -----------------------------------------------------------------------------------------------------------


class Prey:
    """A living worker: its pipe, what it said, and when it dies."""

    def __init__(self, life: Life, chance: random.Random, call_s: float) -> None:
        self.life = life
        self.unanswered: Said | None = None
        self.calls_s: list[float] = []
        self.deadline = time.monotonic() + chance.uniform(0, BLIND_MAX_S) if chance.random() < BLIND else None
        self._words_left = chance.randint(1, WORDS_MAX)
        self._delay_s = chance.uniform(0, call_s)
        self._rest = b""
        self.pipe, theirs = os.pipe()
        self.pid = fork(lambda: live(life, theirs))
        os.close(theirs)

    def read(self, history: History) -> bool:
        """Hear what it says; False when it has ended."""
        chunk = os.read(self.pipe, 1 << 16)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._hear(line, history)
        return bool(chunk)

    def _hear(self, line: bytes, history: History) -> None:
        if line.startswith(b"!"):
            history.failures.append(line[1:].decode())
            return
        said = msgspec.json.decode(line, type=Said)
        history.said.append(said)
        if said.done and self.unanswered is not None:
            self.calls_s.append((said.at_ns - self.unanswered.at_ns) / 1e9)
        self.unanswered = None if said.done else said
        self._words_left -= 1
        if self._words_left <= 0 and self.deadline is None:
            self.deadline = time.monotonic() + self._delay_s

    def kill(self, history: History) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.bury(history)

    def bury(self, history: History) -> None:
        """Hear the rest, and count it if it was killed."""
        _, status = os.waitpid(self.pid, 0)
        while self.read(history):
            pass
        os.close(self.pipe)
        if os.waitstatus_to_exitcode(status) == -signal.SIGKILL:
            history.kills += 1
            history.in_call += self.unanswered is not None

    @property
    def doubts(self) -> list[str]:
        """Registrations nobody heard the end of."""
        mine = [self.unanswered.process_id] if self.unanswered is not None and self.unanswered.call == "register" else []
        return sorted({*mine, *self.life.redo})


class Hunter:
    """Keeps some workers alive and kills them one after another; the last one finishes everything."""

    def __init__(self, job: Word) -> None:
        self._job = job
        self._chance = random.Random(job["seed"])
        self._history = History()
        self._alive: dict[int, Prey] = {}
        self._doubts: list[str] = []
        self._born = 0
        self._call_s = CALL_S

    def run(self) -> History:
        try:
            self._hunt()
        finally:
            for prey in list(self._alive.values()):
                prey.kill(self._history)
                self._forget(prey)
        if not self._history.failures:
            self._finish()
        return self._history

    def _hunt(self) -> None:
        while self._history.kills < self._job["kills"] and not self._history.failures:
            while len(self._alive) < ALIVE:
                self._give_birth()
            self._listen()
            self._kill_due()

    def _give_birth(self, *, last: bool = False) -> Prey:
        self._born += 1
        name = f"{self._job['name']}.{self._born}"
        redo, self._doubts = self._doubts, []
        way: Way = self._chance.choice(self._job["ways"])
        seed, lease_ms = f"{self._job['seed']} {name}", max(LEASE_MIN_MS, int(LEASE_CALLS * self._call_s * 1000))
        life = Life(name=name, seed=seed, job=self._job, way=way, lease_ms=lease_ms, redo=redo, last=last)
        prey = Prey(life, self._chance, self._call_s)
        self._alive[prey.pipe] = prey
        return prey

    def _listen(self) -> None:
        deadlines = [prey.deadline for prey in self._alive.values() if prey.deadline is not None]
        patience_s = max(0.0, min([*deadlines, time.monotonic() + 1]) - time.monotonic())
        readable, _, _ = select.select(list(self._alive), [], [], patience_s)
        for pipe in readable:
            prey = self._alive[pipe]
            if not prey.read(self._history):
                prey.bury(self._history)
                self._forget(prey)

    def _kill_due(self) -> None:
        now = time.monotonic()
        for prey in [prey for prey in self._alive.values() if prey.deadline is not None and prey.deadline <= now]:
            prey.kill(self._history)
            self._forget(prey)

    def _forget(self, prey: Prey) -> None:
        del self._alive[prey.pipe]
        self._doubts.extend(prey.doubts)
        for call_s in prey.calls_s:
            self._call_s += (call_s - self._call_s) / 20

    def _finish(self) -> None:
        heir = self._give_birth(last=True)
        while heir.read(self._history):
            pass
        heir.bury(self._history)


def hunt(job: Word, tell: Tell) -> None:
    """Hunt in a process without threads, and tell what was heard."""
    tell(history=msgspec.to_builtins(Hunter(job).run()))
