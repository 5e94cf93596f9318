"""An agent that leaves work to the background: it is woken when the work is done, hands it over, and works by the clock.

    python examples/background_agent.py

Everything happens in one SQLite file in a temporary folder; there is no network. The worker is another operating system process.
The "research" is a function of the question, so that the program knows what must come out. Each claim is printed as it is
checked; one that does not hold makes the exit code 1.
"""

from __future__ import annotations

import secrets
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from lash_store import (
    Append,
    Claim,
    Commit,
    EventType,
    Interval,
    Leased,
    Missed,
    NodeDraft,
    NotGranted,
    Pointer,
    ProcessInput,
    Registration,
    Scope,
    SessionHandle,
    Store,
    SubscriptionDraft,
    Success,
    Wake,
    active_path,
)

CHAT, ARCHIVE = "chat", "archive"
QUESTION = "How long is the night train to Lisbon?"
LEASE_MS = 10_000  # long against a step of the work, short against the patience of whoever waits for a dead worker's work
PATIENCE_MS = 20_000  # for everything that is waited for; reaching it is a failure
EVERY_MS = 1_000  # of the schedule; the shortest there is

# What the process may say. `found` is also put into the inbox of the session that is to be woken.
PROGRESS = EventType(name="research.progress", schema={"type": "object", "required": ["step"]})
FOUND = EventType(name="research.found", schema={"type": "object", "required": ["summary"]}, wake=Wake(input=Pointer("/summary")))


def main(arguments: list[str]) -> int:
    """Play the example, or be its worker."""
    if arguments:
        work(arguments[0])
        return 0
    with tempfile.TemporaryDirectory(prefix="lash-store-example-") as folder:
        return play(str(Path(folder) / "agent.db"))


def play(database: str) -> int:
    """All acts in their order; 0 when every claim held."""
    told = Told()
    with Store.open(database) as store, Worker(database):
        process_id = ask(store, told)
        claim = wake_up(store, process_id, told)
        answer(store, claim, told)
        hand_over(store, process_id, told)
        by_the_clock(store, told)
    print(f"\n{told.held} of {told.held + told.failed} claims hold.")
    return 1 if told.failed else 0


class Told:
    """What was claimed so far."""

    def __init__(self) -> None:
        self.held = self.failed = 0

    def claim(self, sentence: str, holds: bool) -> None:
        """Check one claim, and say so."""
        self.held += holds
        self.failed += not holds
        print(f"   {'ok    ' if holds else 'FAILED'}  {sentence}")


# --- the session ----------------------------------------------------------------------------------------------------------


def ask(store: Store, told: Told) -> str:
    """The turn that starts the process, and the process, are one transaction: there is never one without the other."""
    print("\n1. A session is asked something that takes a while, and starts a process for it")
    store.sessions.create(CHAT)
    research = Registration(
        process_id="research:turn-1",  # follows from the turn: a retry of the turn starts nothing twice
        input=ProcessInput("research", {"question": QUESTION}),
        event_types=[PROGRESS, FOUND],
    )
    turn = Commit(
        expected_revision=0,
        turn_id="turn-1",
        graph=Append([said("user", QUESTION), said("agent", "Let me see.")]),
    )
    with store.transaction() as tx:
        session = tx.session(CHAT)
        process = session.processes.start(research)
        session.commit(turn)
    told.claim("the process is registered, and the session is the one it wakes", process.wake_target == Scope(CHAT))
    told.claim("the turn is committed, and the session is free for others", store.sessions.get(CHAT).revision == 1)
    return process.process_id


def wake_up(store: Store, process_id: str, told: Told) -> Claim:
    """Nobody polls: the event and the message in the inbox were one transaction of the worker."""
    print("\n2. A worker in another process runs it, and the session is woken in its inbox")
    woken = store.queue.wait_ready(CHAT, timeout_ms=PATIENCE_MS)
    claim = store.queue.claim_next("agent", lease_ms=LEASE_MS)
    assert claim is not None, "woken without a message"
    batch = claim.batches[0]
    message = batch.payloads[0]
    events = store.processes.woken_by(process_id, batch.batch_id)
    told.claim("a message came, and it is a wake of that process", woken and message["process_id"] == process_id)
    told.claim("it stands for one event of its log", [event.event_type for event in events] == ["research.found"])
    output = store.session(CHAT).processes.await_output(process_id, timeout_ms=PATIENCE_MS)
    told.claim("the process ended with what the worker found", output == Success({"summary": summary_of(QUESTION)}))
    steps = store.session(CHAT).processes.events(process_id, types=["research.progress"]).events
    told.claim("its log tells how it went", [event.payload["step"] for event in steps] == ["searching", "reading"])
    return claim


def answer(store: Store, claim: Claim, told: Told) -> None:
    """The answer and the end of the message are one transaction."""
    print("\n3. The session answers")
    session = store.session(CHAT)
    batch = claim.batches[0]
    turn = Commit(
        expected_revision=session.get().revision,
        turn_id=f"answer:{batch.batch_id}",
        graph=Append([said("agent", batch.payloads[0]["input"])]),
        completes=[claim],
    )
    receipt = session.commit(turn)
    told.claim("the conversation has its answer", texts(session) == [QUESTION, "Let me see.", summary_of(QUESTION)])
    told.claim("the inbox is empty", session.depth().ready + session.depth().claimed == 0)
    told.claim("a retry of the turn gets the first receipt", session.commit(turn).revision == receipt.revision)


def hand_over(store: Store, process_id: str, told: Told) -> None:
    """A session sees only what it was granted; a transfer moves that, all or nothing."""
    print("\n4. The handle of the process goes to another session")
    store.sessions.create(ARCHIVE)
    giver, taker = store.session(CHAT), store.session(ARCHIVE)
    told.claim("before, the other session may not look", not may_look(taker, process_id))
    giver.processes.transfer(Scope(ARCHIVE), [process_id])
    told.claim("after, it may", may_look(taker, process_id))
    told.claim("and the first one may not any more", not may_look(giver, process_id))


def by_the_clock(store: Store, told: Told) -> None:
    """Any number of workers may tick; each instant starts one process."""
    print("\n5. A schedule starts another process")
    draft = SubscriptionDraft(
        registrant=Scope(CHAT),
        registration_key="digest",  # subscribing again, after a restart, is the same subscription
        source_type="timer",
        target=ProcessInput("digest", {"of": CHAT}),
        schedule=Interval(EVERY_MS, missed=Missed.ONCE),
    )
    subscription = store.triggers.subscribe(draft)
    started = tick_until_fired(store)
    told.claim("a tick fired one instant and started one process", len(started) == 1)
    output = store.processes.await_output(started[0], timeout_ms=PATIENCE_MS)
    told.claim("the worker ran it", output == Success({"messages": 3}))
    cause = store.processes.get(started[0]).caused_by
    told.claim("the process names the instant that caused it", cause["type"] == "trigger_occurrence")
    told.claim("subscribing again changes nothing", store.triggers.subscribe(draft) == subscription)
    told.claim("the session can cancel its schedule", store.triggers.cancel(CHAT, subscription.handle))


def tick_until_fired(store: Store) -> tuple[str, ...]:
    """What a worker does every few seconds, until an instant has come."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < deadline:
        report = store.triggers.tick()
        if report.fired:
            return report.started
        time.sleep(0.1)
    return ()


def may_look(session: SessionHandle, process_id: str) -> bool:
    """Whether a session may see a process."""
    try:
        session.processes.get(process_id)
    except NotGranted:
        return False
    return True


def said(role: str, text: str) -> NodeDraft:
    """A message."""
    return NodeDraft(body={"role": role, "text": text})


def texts(session: SessionHandle) -> list[str]:
    """The conversation."""
    return [node.body["text"] for node in session.load(active_path()).nodes]


# --- the worker -----------------------------------------------------------------------------------------------------------


class Worker:
    """The worker as an operating system process. It ends when its standard input does, so that it cannot outlive us."""

    def __init__(self, database: str) -> None:
        self._command = [sys.executable, __file__, database]

    def __enter__(self) -> None:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE)

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=PATIENCE_MS / 1000)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def work(database: str) -> None:
    """Run what can be run until we are told to stop."""
    incarnation = secrets.token_hex(8)  # this life of this worker: after a restart the old one's leases are not ours
    with Store.open(database) as store, StandardInput() as stdin:
        while not stdin.ended():
            store.processes.wait_runnable(timeout_ms=200)
            for leased in store.processes.claim_next("worker", incarnation=incarnation, lease_ms=LEASE_MS):
                RUN[leased.process.input.kind](store, leased)


def research(store: Store, leased: Leased) -> None:
    """Every event is under the lease: had we lost it, nothing would be written. The keys make a second run repeat nothing."""
    process_id, lease = leased.process.process_id, leased.lease
    summary = summary_of(leased.process.input.payload["question"])
    for step in ("searching", "reading"):
        store.processes.append(process_id, "research.progress", {"step": step}, replay_key=step, lease=lease)
        lease = store.processes.renew(lease, lease_ms=LEASE_MS)
    store.processes.append(process_id, "research.found", {"summary": summary}, replay_key="found", lease=lease)
    store.processes.complete(process_id, Success({"summary": summary}), lease=lease)


def digest(store: Store, leased: Leased) -> None:
    """Count what was said."""
    session_id = leased.process.input.payload["of"]
    count = store.sessions.get(session_id).node_count
    store.processes.complete(leased.process.process_id, Success({"messages": count}), lease=leased.lease)


def summary_of(question: str) -> str:
    """The research: always the same answer to the same question."""
    return f"About {len(question) // 4} hours."


RUN = {"research": research, "digest": digest}


class StandardInput:
    """Whether the process that started us still holds the other end."""

    def __enter__(self) -> Self:
        self._selector = selectors.DefaultSelector()
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        return self

    def ended(self) -> bool:
        """Nothing is ever written to it: readable means closed."""
        return bool(self._selector.select(timeout=0))

    def __exit__(self, *_: object) -> None:
        self._selector.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
