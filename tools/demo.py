"""A scripted agent whose workers are killed with SIGKILL at the worst moments, and what its file holds afterwards.

    make demo

Everything happens in one SQLite file in a temporary folder. The workers are real processes; their model is a function of the
question, so that this program knows what every answer must be. Each claim is printed as it is checked; one that does not hold
makes the exit code 1.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import apsw

from lash_store import Append, Claim, Commit, Node, NodeDraft, Receipt, StatementEvent, Store, Unchanged, Usage, active_path

PROJECT = Path(__file__).resolve().parents[1]
SESSION = "trip"
LEASE_MS = 800  # short, so that the next worker need not wait long for a dead one's work
WAIT_MS = 20_000  # for work to become free; far beyond a lease
RACES = 10
DEADLINE_S = 60  # of the whole demo: a hang is a failure

QUESTIONS = {
    "mail-1": "find a train to Lisbon",
    "mail-2": "book a hotel near the river",
    "mail-3": "invite Ada for dinner",
}
GREETING = "Where shall we go?"
SECOND_THOUGHT = "On second thought: a night train."


def think(question: str) -> str:
    """The agent's model: always the same answer to the same question."""
    return f"Done: {question}."


def main(arguments: list[str]) -> int:
    """Play the demo, or one of the roles it starts as processes."""
    if arguments:
        role, database, *rest = arguments
        ROLES[role](database, *rest)
        return 0
    with tempfile.TemporaryDirectory(prefix="lash-store-demo-") as folder, deadline():
        return play(str(Path(folder) / "agent.db"))


def play(database: str) -> int:
    """All acts in their order; 0 when every claim held."""
    began = time.monotonic()
    print(f"An agent that is killed and loses nothing.\nSQLite {apsw.sqlite_lib_version()}, file {database}")
    stage = Stage(database)
    for act in (set_up, killed_before_commit, killed_during_commit, killed_after_commit, race, branch, verify):
        act(stage)
    failed = [sentence for sentence, holds in stage.claims if not holds]
    print(f"\n{len(stage.claims) - len(failed)} of {len(stage.claims)} claims hold, {time.monotonic() - began:.1f} s.")
    for sentence in failed:
        print(f"DOES NOT HOLD: {sentence}")
    return 1 if failed else 0


class Stage:
    """The file, what was acknowledged so far, and the claims that were checked."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.claims: list[tuple[str, bool]] = []
        self.said = [GREETING]  # every text the session must hold, in order
        self.turns = ["turn-greeting"]  # every turn that was acknowledged, in order
        self._acts = 0

    def title(self, text: str) -> None:
        """Begin an act."""
        self._acts += 1
        print(f"\n{self._acts}. {text}")

    def claim(self, sentence: str, holds: bool) -> None:
        """Check one claim, and say so."""
        self.claims.append((sentence, holds))
        print(f"   {'ok    ' if holds else 'FAILED'}  {sentence}")

    def answered(self, key: str) -> None:
        """A question was answered: what the file must hold from now on."""
        self.said += [QUESTIONS[key], think(QUESTIONS[key])]
        self.turns.append(f"answer-{key}")


# --- the acts -------------------------------------------------------------------------------------------------------------


def set_up(stage: Stage) -> None:
    stage.title("A session, a first turn, and three messages in its inbox")
    with Store.open(stage.database) as store:
        greeting = Commit(expected_revision=0, turn_id="turn-greeting", graph=Append([NodeDraft(body=say("agent", GREETING))]))
        receipt = store.sessions.commit(SESSION, greeting)
        for key, question in QUESTIONS.items():
            store.queue.enqueue(SESSION, [question], source_key=key)
        again = store.queue.enqueue(SESSION, [QUESTIONS["mail-1"]], source_key="mail-1")
        depth = store.queue.depth(SESSION)
    stage.claim("the first turn made revision 1", receipt.revision == 1)
    stage.claim("a message delivered twice is stored once", depth.ready == 3 and again.enqueue_seq == 1)


def killed_before_commit(stage: Stage) -> None:
    stage.title("A worker is killed between its claim and its commit")
    before = raw(stage.database)
    kill_at(stage, "claimed")
    after = raw(stage.database)
    stage.claim("its work is still in the inbox, held by the lease of a dead process", after["held"] == 1)
    stage.claim("nothing else changed", before["revisions"] == after["revisions"] and before["texts"] == after["texts"])
    done = answer_next(stage)
    stage.claim("another worker got the same message when the lease had passed", done["turn_id"] == "answer-mail-1")
    stage.claim("as the second attempt, under a higher fence", done["attempts"] == 2 and done["fence"] == 2)
    stage.answered("mail-1")


def killed_during_commit(stage: Stage) -> None:
    stage.title("A worker is killed inside its commit, after its nodes and its receipt were written")
    before = raw(stage.database)
    kill_at(stage, "committing")
    after = raw(stage.database)
    stage.claim("nothing of the half-done commit is in the file", before["revisions"] == after["revisions"])
    stage.claim("not one of its nodes either", before["texts"] == after["texts"])
    stage.claim("its message is still in the inbox", after["inbox"] == ["mail-2", "mail-3"])
    done = answer_next(stage)
    stage.claim("another worker answered it, once", done["turn_id"] == "answer-mail-2" and not done["replayed"])
    stage.answered("mail-2")


def killed_after_commit(stage: Stage) -> None:
    stage.title("A worker is killed after its commit, before it could tell anybody")
    kill_at(stage, "committed")
    after = raw(stage.database)
    stage.claim("the turn is there, and its message is settled", len(after["revisions"]) == 4 and after["inbox"] == [])
    with Store.open(stage.database) as store:
        retried = store.sessions.commit(SESSION, answer(QUESTIONS["mail-3"], "mail-3", expected_revision=3))
    stage.claim("a retry of the turn gets the first receipt", retried.replayed and retried.revision == 4)
    stage.claim("and writes nothing", raw(stage.database) == after)
    stage.answered("mail-3")


def race(stage: Stage) -> None:
    stage.title(f"Two workers race for one turn, {RACES} times")
    racers = [start(stage, "race"), start(stage, "race")]
    results = [run_race(racers, number) for number in range(RACES)]
    for racer in racers:
        finish(racer)
    same = all(one["revision"] == two["revision"] and one["node_ids"] == two["node_ids"] for one, two in results)
    stage.claim("both always got the same receipt", same)
    stage.claim("exactly one of them wrote it", all(one["replayed"] != two["replayed"] for one, two in results))
    for number in range(RACES):
        stage.said.append(race_text(number))
        stage.turns.append(f"race-{number}")


def branch(stage: Stage) -> None:
    stage.title("The conversation goes back to its first message and takes another branch")
    with Store.open(stage.database) as store:
        session = store.session(SESSION)
        here = session.load(active_path())
        draft = NodeDraft(body=say("user", SECOND_THOUGHT), parent_id=here.nodes[0].node_id)
        turn = Commit(expected_revision=here.revision, turn_id="turn-branch", graph=Append([draft]))
        receipt = session.commit(turn)
        other = session.load(active_path())
        tips = session.branches().branches
        session.commit(Commit(expected_revision=receipt.revision, turn_id="turn-back", graph=Unchanged(leaf=here.leaf_id)))
        back = session.load(active_path())
    stage.claim("the new branch holds the first message and its own", texts_of(other.nodes) == [GREETING, SECOND_THOUGHT])
    stage.claim("the session has two tips", {tip.leaf_id for tip in tips} == {here.leaf_id, receipt.leaf_id})
    stage.claim("the old branch is whole, and is the active one again", back.nodes == here.nodes)
    stage.turns += ["turn-branch", "turn-back"]


def verify(stage: Stage) -> None:
    stage.title("What the file holds: through a fresh store, and as raw rows, each in a process of its own")
    seen, rows = run(stage, "look"), raw(stage.database)
    stage.claim("SQLite finds the file whole", rows["integrity"] == "ok")
    stage.claim("its tables are the shipped ones", seen["schema_differences"] == [])
    count = len(stage.turns)
    stage.claim(f"revisions 1 to {count} are there without a gap", rows["revisions"] == [*range(1, count + 1)])
    stage.claim("every acknowledged turn is there exactly once, in order", rows["turns"] == stage.turns == seen["turns"])
    stage.claim("the active path is the conversation, word for word", seen["texts"] == stage.said)
    stage.claim("the raw rows are these texts and the branch, no more", rows["texts"] == [*stage.said, SECOND_THOUGHT])
    stage.claim("the checkpoint is that of the last answer", seen["memory"] == {"answered": "mail-3"})
    stage.claim("three answers were counted, not four or five", seen["tokens"] == len(QUESTIONS) * 100)
    stage.claim("the inbox is empty and every key is remembered", rows["inbox"] == [] and rows["settled"] == sorted(QUESTIONS))


# --- starting and killing processes ---------------------------------------------------------------------------------------


def start(stage: Stage, role: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that plays a role. It ends when its standard input does, so that none outlives the demo."""
    command = [sys.executable, "-m", "tools.demo", role, stage.database, *arguments]
    return subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def heard(process: subprocess.Popen[str]) -> Any:
    """The next line of a process, which is JSON."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a process of the demo ended early, with code {process.wait()}")
    return json.loads(line)


def finish(process: subprocess.Popen[str]) -> None:
    """Close what the process listens to, and wait for its end."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.wait()
    process.stdout.close()


def run(stage: Stage, role: str) -> Any:
    """Play a role to its end; what it found."""
    process = start(stage, role)
    found = heard(process)
    finish(process)
    return found


def raw(database: str) -> Any:
    """The rows of the file as another process reads them, without the store."""
    return run(Stage(database), "rows")


def kill_at(stage: Stage, point: str) -> None:
    """Start a worker, wait until it has come to the point, and kill it there."""
    process = start(stage, "work", point)
    reached = heard(process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finish(process)
    killed = reached == point and process.returncode == -signal.SIGKILL
    stage.claim(f"worker {process.pid} came to the point '{point}' and was ended by signal 9", killed)


def answer_next(stage: Stage) -> Any:
    """Let a healthy worker answer the next message."""
    return run(stage, "work")


def run_race(racers: list[subprocess.Popen[str]], number: int) -> tuple[Any, Any]:
    """Both have loaded the session when both are told to commit."""
    expected = [heard(racer) for racer in racers]
    assert expected[0] == expected[1]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(f"{number}\n")
        racer.stdin.flush()
    one, two = racers
    return heard(one), heard(two)


@contextmanager
def deadline() -> Generator[None]:
    """End the demo when it hangs."""

    def late(*_: object) -> NoReturn:
        raise TimeoutError(f"the demo took longer than {DEADLINE_S} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(DEADLINE_S)
    try:
        yield
    finally:
        signal.alarm(0)


# --- the roles ------------------------------------------------------------------------------------------------------------


def work(database: str, stop_at: str | None = None) -> None:
    """Claim a message, answer it, tell how it went. Told to stop at a point, hang there until the kill."""

    def reach(point: str) -> None:
        if point == stop_at:
            tell(point)
            sys.stdin.read()
            os._exit(3)  # the demo itself is gone

    def on_statement(event: StatementEvent) -> None:
        # Runs on the thread that writes, inside the open transaction.
        if "INSERT INTO {commits}" in event.sql:
            reach("committing")

    with Store.open(database, on_statement=on_statement) as store:
        claim = claim_message(store)
        reach("claimed")
        receipt = commit_answer(store, claim)
        reach("committed")
        batch = claim.batches[0]
        tell({"turn_id": receipt.turn_id, "replayed": receipt.replayed, "attempts": batch.attempts, "fence": claim.fence})


def claim_message(store: Store) -> Claim:
    """Sleep until a session that nobody works on has a message, and take it: messages are answered in their order."""
    while store.queue.wait_ready(timeout_ms=WAIT_MS):
        claim = store.queue.claim_next(f"worker-{os.getpid()}", lease_ms=LEASE_MS)
        if claim is not None:
            return claim
    raise RuntimeError("no work came")


def commit_answer(store: Store, claim: Claim) -> Receipt:
    """One turn: question, answer, memory, usage, and the settled message, all or nothing."""
    batch = claim.batches[0]
    assert batch.source_key is not None
    revision = store.sessions.get(SESSION).revision
    return store.sessions.commit(SESSION, answer(batch.payloads[0], batch.source_key, expected_revision=revision, claim=claim))


def answer(question: str, key: str, *, expected_revision: int, claim: Claim | None = None) -> Commit:
    """The turn that answers a message. Its id follows from the message, so every retry of it is the same turn."""
    return Commit(
        expected_revision=expected_revision,
        turn_id=f"answer-{key}",
        graph=Append([NodeDraft(body=say("user", question)), NodeDraft(body=say("agent", think(question)))]),
        checkpoint={"memory": json.dumps({"answered": key}).encode()},
        usage=[Usage(source="answers", model="scripted", input=60, output=40)],
        completes=[] if claim is None else [claim],
    )


def say(role: str, text: str) -> dict[str, str]:
    """The body of a message."""
    return {"role": role, "text": text}


def texts_of(nodes: Sequence[Node]) -> list[str]:
    """The texts of messages."""
    return [node.body["text"] for node in nodes]


def race_text(number: int) -> str:
    """What both racers of a round want to say."""
    return f"both say {number}"


def race_along(database: str) -> None:
    """Load, wait for the word, commit the turn that the other one commits too."""
    with Store.open(database) as store:
        while True:
            revision = store.sessions.get(SESSION).revision
            tell(revision)
            number = sys.stdin.readline().strip()
            if not number:
                return
            draft = NodeDraft(body=say("agent", race_text(int(number))))
            turn = Commit(expected_revision=revision, turn_id=f"race-{number}", graph=Append([draft]))
            receipt = store.sessions.commit(SESSION, turn)
            tell({"revision": receipt.revision, "node_ids": receipt.node_ids, "replayed": receipt.replayed})


def look(database: str) -> None:
    """Tell what a store that was never open before finds in the file."""
    with Store.open(database, migrate=False) as store:
        loaded = store.sessions.load(SESSION, active_path())
        tell(
            {
                "texts": texts_of(loaded.nodes),
                "turns": [record.turn_id for record in store.sessions.commits(SESSION).commits],
                "memory": json.loads(loaded.checkpoint["memory"]),
                "tokens": sum(total.total for total in loaded.usage),
                "schema_differences": store.maintenance.check_schema(),
            }
        )


def rows(database: str) -> None:
    """Tell what the tables hold, without the store."""
    connection = apsw.Connection(database, flags=apsw.SQLITE_OPEN_READWRITE)
    connection.pragma("query_only", True)

    def column(sql: str) -> list[Any]:
        return [row[0] for row in connection.execute(sql)]

    tell(
        {
            "integrity": column("PRAGMA integrity_check")[0],
            "revisions": column("SELECT revision FROM lash_commits ORDER BY revision"),
            "turns": column("SELECT turn_id FROM lash_commits ORDER BY revision"),
            "texts": [json.loads(body)["text"] for body in column("SELECT body FROM lash_nodes ORDER BY position")],
            "inbox": column("SELECT source_key FROM lash_batches ORDER BY enqueue_seq"),
            "held": len(column("SELECT 1 FROM lash_batches WHERE token IS NOT NULL")),
            "settled": column("SELECT source_key FROM lash_settled_keys ORDER BY source_key"),
        }
    )
    connection.close()


def tell(found: object) -> None:
    """One line of JSON for the demo."""
    print(json.dumps(found), flush=True)


ROLES: dict[str, Callable[..., None]] = {"work": work, "race": race_along, "look": look, "rows": rows}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
