"""The story: acts in their order. Each tells workers what to do, shows what they tell, and looks at the rows after a kill."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec

from lash_store import (
    Batch,
    Commit,
    Interval,
    Missed,
    ProcessInput,
    Receipt,
    Scope,
    Store,
    Subscription,
    SubscriptionDraft,
    Unchanged,
    active_path,
)
from lash_store.cli.demo import agent, model
from lash_store.cli.demo.agent import Served
from lash_store.cli.demo.crew import Crew, Member
from lash_store.cli.demo.ledger import (
    ADAS_MAIL,
    MAILS,
    RACE,
    SECOND_THOUGHT,
    TRIP,
    WITH_ADA,
    Acknowledged,
    Claim,
    Killed,
    Ledger,
    Raced,
)
from lash_store.cli.demo.show import Show
from lash_store.cli.demo.worker import Order
from lash_store.cli.output import counted

DOOMED_MS = 700  # the lease of a worker that is going to be killed: how long its work stays its own after its death
WORKERS = 6  # one that lives through everything, four that are killed, one to race with
RACES = 20
EVERY_MS = 1_000
TICKS_S = 20  # for an instant to come; far beyond the interval


EVERY_SECOND = SubscriptionDraft(
    registrant=Scope(TRIP),
    registration_key="reminder",  # subscribing again, after a restart, is the same subscription
    source_type="timer",
    target=ProcessInput("reminder", {}),
    event_types=[agent.REMINDED],
    wake_target=Scope(TRIP),
    schedule=Interval(EVERY_MS, missed=Missed.ONCE),
)


class Story:
    """The store as the demo's own process sees it, the workers, the screen, and the ledger."""

    def __init__(self, store: Store, crew: Crew, show: Show, *, pace_ms: int) -> None:
        self.store, self.crew, self.show, self.pace_ms = store, crew, show, pace_ms
        self.ledger = Ledger()
        self.claims: list[Claim] = []
        self.began = time.monotonic()
        self.rows = crew.observer("rows")
        self.steady = crew.hire()  # the worker that lives through everything

    @cached_property
    def schedule(self) -> Subscription:
        """A reminder every second; nobody ticks it until its act."""
        return self.store.triggers.subscribe(EVERY_SECOND)

    @cached_property
    def pair(self) -> tuple[Member, Member]:
        """The steady worker and a rival."""
        return self.steady, self.crew.hire()

    def claim(self, sentence: str, holds: bool) -> None:
        """Check something on the spot, and say so."""
        self.claims.append(Claim(sentence, holds))
        self.show.claim(self.claims[-1])

    def look(self) -> Any:
        """The rows as another process sees them, without the store."""
        return self.rows.ask("look")

    def now_s(self) -> float:
        """Seconds since the story began."""
        return time.monotonic() - self.began

    def deliver(self, session_id: str, key: str, text: str, **more: Any) -> Batch:
        """A message comes in."""
        batch = self.store.queue.enqueue(session_id, [{"text": text, **more}], source_key=key)
        self.ledger.delivered.append((session_id, key))
        self.show.line("you", f"“{text}”")
        return batch

    def acknowledged(self, worker: str, receipt: Receipt) -> None:
        """Somebody got a receipt: from now on this must be in the database."""
        assert receipt.turn_id is not None
        self.ledger.turns.append(
            Acknowledged(
                session_id=receipt.session_id,
                turn_id=receipt.turn_id,
                revision=receipt.revision,
                node_ids=receipt.node_ids,
                at_s=round(self.now_s(), 3),
                worker=worker,
            )
        )


ACTS: list[Callable[[Story], None]] = []


def act(tell: Callable[[Story], None]) -> Callable[[Story], None]:
    """An act of the story; they are played in the order they are written."""
    ACTS.append(tell)
    return tell


def play(story: Story) -> None:
    """All acts."""
    for tell in ACTS:
        tell(story)


# --- the acts -------------------------------------------------------------------------------------------------------------


@act
def a_turn(story: Story) -> None:
    story.show.act("An agent answers", "message, tool calls, answer, memory and tokens: one commit")
    story.store.sessions.create(TRIP, name="A trip to Lisbon", model=model.MODEL)
    first = story.deliver(TRIP, "mail-1", MAILS["mail-1"])
    again = story.store.queue.enqueue(TRIP, [{"text": MAILS["mail-1"]}], source_key="mail-1")
    story.claim("a message that is delivered twice is stored once", first.batch_id == again.batch_id)
    serve(story, story.steady)
    story.show.line("schedule", f"a reminder every {EVERY_MS / 1000:g} s: {story.schedule.handle}. Nobody ticks it yet")


@act
def background_work(story: Story) -> None:
    story.show.act("Work that outlives its turn", "a process with an event log; its worker is killed half-way")
    story.deliver(TRIP, "mail-2", MAILS["mail-2"])
    served = serve(story, story.steady)
    story.ledger.bookings.append(f"booking:{served.receipt.turn_id}")
    doomed = story.crew.hire()
    doomed.order(Order(do="job", lease_ms=DOOMED_MS, stop_at=model.STEPS[1]))
    watch_job(story, doomed)
    kill(story, doomed, "in background work")
    story.claim("the steps it took are in the log", story.look()["steps"] == [*model.STEPS[:2]])
    story.steady.order(Order(do="job"))
    with story.show.waiting(f"{title(story.steady)} waits for the lease of the dead"):
        note = story.steady.hear()
    show_job(story, story.steady, note)
    watch_job(story, story.steady)
    story.show.line("inbox", "the last event and a message to the session were one transaction: the session wakes up")
    serve(story, story.steady)


@act
def killed_mid_turn(story: Story) -> None:
    story.show.act("kill -9 in mid-turn", "the work was claimed, the model was thinking")
    before = killed_at(story, "mail-3", "thinking", "in mid-turn")
    after = story.look()
    owner = after["inbox"].get("mail-3")
    story.claim("nothing was written, and the message is still in the inbox", before == after["written"] and owner is not None)
    served = heir(story)
    story.claim("another worker answered it, as attempt 2 under a higher fence", served.attempts == 2)
    story.show.line("note", "the tool ran twice: what a turn does outside the store happens at least once")


@act
def killed_inside_commit(story: Story) -> None:
    story.show.act("kill -9 inside the commit", "nodes, usage and receipt were inserted, COMMIT was not reached")
    before = killed_at(story, "mail-4", "committing", "inside a commit")
    after = story.look()
    story.claim("not one of those rows is there, the message is", before == after["written"] and "mail-4" in after["inbox"])
    served = heir(story)
    story.claim("another worker committed it, once", not served.receipt.replayed)


@act
def killed_after_commit(story: Story) -> None:
    story.show.act("kill -9 after COMMIT", "it is done, and nobody was told")
    batch = story.deliver(TRIP, "mail-5", MAILS["mail-5"])
    revision = story.store.sessions.get(TRIP).revision
    doom(story, "committed", "after COMMIT")
    after = story.look()
    story.claim("the turn is there and its message is settled", "answer:mail-5" in after["turns"] and not after["inbox"])
    receipt = retry(story, batch, revision)
    story.claim("whoever asks again gets the first receipt, and writes nothing", receipt.replayed and after == story.look())
    story.acknowledged("retry", receipt)


@act
def a_race(story: Story) -> None:
    story.show.act("Two workers, one turn", f"both commit the same turn at the same moment, {RACES} times")
    story.store.sessions.create(RACE, name="Two workers, one turn")
    racers = story.pair
    with story.show.waiting(f"{title(racers[0])} and {title(racers[1])} race"):
        for number in range(RACES):
            race_once(story, racers, number)
    wins = [sum(not race.replayed[place] for race in story.ledger.races) for place in (0, 1)]
    story.show.line(title(racers[0]), f"wrote {wins[0]} of {RACES} turns, and got the other's receipt for {RACES - wins[0]}")
    story.show.line(title(racers[1]), f"wrote {wins[1]} of {RACES} turns, and got the other's receipt for {RACES - wins[1]}")
    same = all(race.revisions[0] == race.revisions[1] and race.node_ids[0] == race.node_ids[1] for race in story.ledger.races)
    story.claim(f"{2 * RACES} commits, {RACES} turns: both always hold the same receipt", same and sum(wins) == RACES)


@act
def by_the_clock(story: Story) -> None:
    story.show.act("By the clock", "a schedule that both workers tick")
    story.show.line("schedule", "what nobody fired in time is made up for once")
    with story.show.waiting("both workers tick until an instant has come"):
        reports = tick(story.pair)
    story.store.triggers.cancel(TRIP, story.schedule.handle)
    started = [process for report in reports for process in report["started"]]
    for worker, report in zip(story.pair, reports, strict=True):
        story.show.line(title(worker), f"tick: fired {report['fired']}, started {len(report['started'])}")
    story.ledger.reminders += started
    story.claim("no instant fired twice", len(started) == len({*started}) >= 1)
    for _ in started:
        story.steady.order(Order(do="job"))
        watch_job(story, story.steady)
        serve(story, story.steady)


@act
def branch_and_fork(story: Story) -> None:
    story.show.act("A branch and a fork", "going back to the first answer; a second session over the same path")
    session = story.store.session(TRIP)
    main = session.load(active_path())
    first_answer = next(node for node in main.nodes if node.body["role"] == "agent")
    story.deliver(TRIP, SECOND_THOUGHT, model.SHIP, reply_to=first_answer.node_id)
    story.ledger.branch_leaf = serve(story, story.steady).receipt.leaf_id or ""
    back = Commit(
        expected_revision=session.get().revision,
        turn_id="back-to-the-main-line",
        graph=Unchanged(leaf=main.leaf_id),
        checkpoint=main.checkpoint,
    )
    story.acknowledged("you", session.commit(back))
    story.show.line("you", "back to the main line, with the memory it had")
    fork = session.fork(WITH_ADA, name="The same trip, with Ada")
    story.show.line("you", f"fork {TRIP} into {fork.session_id}: {counted(fork.node_count, 'nodes')} of its own")
    story.deliver(WITH_ADA, ADAS_MAIL, model.ADA)
    serve(story, story.steady)
    story.claim("the session that was forked did not move", session.load(active_path()).nodes == main.nodes)


# --- what the acts are made of --------------------------------------------------------------------------------------------


def title(worker: Member) -> str:
    """A worker as people read it."""
    return f"worker {worker.name}"


def serve(story: Story, worker: Member) -> Served:
    """Let a worker answer one message, and show how."""
    worker.order(Order(do="serve", pace_ms=story.pace_ms))
    return shown_turn(story, worker)


def heir(story: Story) -> Served:
    """The steady worker gets what the dead one left, when its lease has passed."""
    story.steady.order(Order(do="serve", pace_ms=story.pace_ms))
    with story.show.waiting(f"{title(story.steady)} waits for the lease of the dead"):
        note = story.steady.hear()
    show_turn(story, story.steady, note)
    return shown_turn(story, story.steady)


def shown_turn(story: Story, worker: Member) -> Served:
    """A turn to its end. It is acknowledged now."""
    note: dict[str, Any] = {}
    for note in worker.notes_until("served"):
        show_turn(story, worker, note)
    served = msgspec.convert(note["served"], Served)
    story.acknowledged(worker.name, served.receipt)
    return served


def show_turn(story: Story, worker: Member, note: dict[str, Any]) -> None:
    """One note of a worker that answers."""
    match note["kind"]:
        case "claimed":
            what = "a wake" if (note["key"] or "").startswith("wake:") else note["key"]
            story.show.line(
                title(worker),
                f"claims {what}, attempt {note['attempts']}, fence {note['fence']}, lease {note['lease_ms'] / 1000:g} s",
            )
        case "thought" if note["role"] == "call":
            story.show.line("model", f"calls {note['text']}({', '.join(f'{k}={v!r}' for k, v in note['data'].items())})")
        case "thought" if note["role"] == "tool":
            story.show.line("tool", ", ".join(f"{key} {value}" for key, value in note["data"].items()))
        case "thought":
            story.show.line("model", f"“{note['text']}”")
        case "served":
            story.show.line(title(worker), receipt_line(msgspec.convert(note["served"], Served)))
        case _:
            pass


def receipt_line(served: Served) -> str:
    """What a commit did, in a line."""
    receipt, turn = served.receipt, served.turn
    parts = [counted(len(receipt.node_ids), "nodes"), "memory", f"{turn.tokens.input + turn.tokens.output} tokens"]
    parts += [f"{len(turn.files)} file"] if turn.files else []
    parts += [f"{len(turn.jobs)} process"] if turn.jobs else []
    return f"commits revision {receipt.revision}: {', '.join(parts)}, message settled"


def killed_at(story: Story, key: str, point: str, moment: str) -> Any:
    """Deliver a message, and kill the worker that answers it at a point. What was written before."""
    story.deliver(TRIP, key, MAILS[key])
    before = story.look()["written"]
    doom(story, point, moment)
    return before


def doom(story: Story, point: str, moment: str) -> None:
    """A worker answers, comes to the point, and is killed there."""
    doomed = story.crew.hire()
    doomed.order(Order(do="serve", lease_ms=DOOMED_MS, stop_at=point, pace_ms=story.pace_ms))
    for note in doomed.notes_until("point"):
        show_turn(story, doomed, note)
    kill(story, doomed, moment)


def kill(story: Story, worker: Member, moment: str) -> None:
    """A real SIGKILL, and how the operating system reports it."""
    code = worker.kill()
    story.ledger.kills.append(Killed(worker=worker.name, pid=worker.pid, code=code, moment=moment, at_s=round(story.now_s(), 3)))
    story.show.kill(title(worker), f"kill -9 {worker.pid} {moment}")
    if code != -signal.SIGKILL:
        story.claim(f"worker {worker.name} was ended by signal 9", False)


def retry(story: Story, batch: Batch, revision: int) -> Receipt:
    """The sender heard nothing: the mail is delivered again, and the turn is committed again with the same content."""
    store = story.store
    delivered = store.queue.enqueue(TRIP, batch.payloads, source_key=batch.source_key)
    assert delivered.batch_id == batch.batch_id
    history = agent.messages_of(store.sessions.load(TRIP, active_path(), at_revision=revision).nodes)
    turn = model.whole_turn(history, agent.heard(batch))
    return store.sessions.commit(TRIP, agent.drafted(batch, turn, history, revision=revision, files=[], completes=[]))


def watch_job(story: Story, worker: Member) -> None:
    """A background process, up to its end or to the point of a kill."""
    for note in worker.notes_until("worked", "point"):
        show_job(story, worker, note)


def show_job(story: Story, worker: Member, note: dict[str, Any]) -> None:
    """One note of a worker that runs a process."""
    match note["kind"]:
        case "leased":
            story.show.line(title(worker), f"leases the {note['kind_of']} process, fence {note['fence']}")
        case "stepped":
            time.sleep(story.pace_ms / 1000)
            known = " (already in the log, not written again)" if note["replayed"] else ""
            story.show.line("process", f"event {note['sequence']}: {note['step']}{known}")
        case "ended":
            story.show.line("process", "ends, and wakes its session")
        case _:
            pass


def race_once(story: Story, racers: tuple[Member, Member], number: int) -> None:
    """Both are told in the same moment; both answer."""
    for racer in racers if number % 2 else racers[::-1]:
        racer.order(Order(do="race", session_id=RACE, turn_id=f"race-{number + 1}", revision=number))
    one, two = (msgspec.convert(racer.hear()["receipt"], Receipt) for racer in racers)
    winner = two if one.replayed else one
    story.acknowledged(racers[winner is two].name, winner)
    story.ledger.races.append(
        Raced(
            turn_id=f"race-{number + 1}",
            revisions=(one.revision, two.revision),
            node_ids=(one.node_ids, two.node_ids),
            replayed=(one.replayed, two.replayed),
        )
    )


def tick(workers: tuple[Member, Member]) -> list[dict[str, Any]]:
    """Both tick in the same moment, again and again, until the clock has come to an instant."""
    deadline = time.monotonic() + TICKS_S
    while True:
        for worker in workers:
            worker.order(Order(do="tick"))
        reports = [worker.hear() for worker in workers]
        if any(report["fired"] for report in reports) or time.monotonic() > deadline:
            return reports
        time.sleep(0.05)
