"""Programs that tests run as processes: `python -m tests.support.programs NAME JOB`. They say JSON lines, and hear lines."""

from __future__ import annotations

import json
import os
import random
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from msgspec import structs

from lash_store import (
    Append,
    Busy,
    Claim,
    Commit,
    NodeDraft,
    NotFound,
    Receipt,
    Refused,
    RevisionConflict,
    Snapshot,
    StorageFull,
    Store,
    Unavailable,
    Usage,
    active_path,
)

SESSION = "s"
LEASE_MS = 60_000
OPENING_S = 0.04  # about what opening a new database takes
Job = dict[str, Any]


def say(**word: Any) -> None:
    print(json.dumps(word), flush=True)


def told() -> str:
    """The next line, or nothing at the end."""
    return sys.stdin.readline().strip()


def opened(job: Job) -> Store:
    return Store.open(job["url"], schema=job["schema"], pool_size=2)


# --- many processes commit to one session -----------------------------------------------------------------------------------


def counted(turn: str, *, revision: int | None) -> Commit:
    """A turn of one node and one token. One that expects a revision writes the next one into its node and the checkpoint."""
    count = None if revision is None else revision + 1
    return Commit(
        expected_revision=revision,
        turn_id=turn,
        graph=Append([NodeDraft(body={"turn": turn, "count": count})]),
        checkpoint={} if count is None else {"count": str(count).encode()},
        usage=[Usage(source="s", model="m", input=1)],
    )


def commit_turns(job: Job) -> None:
    """Commit turns of one's own and, without expecting a revision, those all others commit too; repeat some of them."""
    chance = random.Random(job["seed"])
    with opened(job) as store:
        say(ready=True)
        told()
        turns = [f"{job['name']}.{n}" for n in range(job["turns"])]
        shared = [] if job["expecting"] else [f"all.{n}" for n in range(job["turns"])]
        for turn in [*turns, *shared]:
            commit, receipt = _commit_expecting(store, turn) if job["expecting"] else _commit_any(store, turn)
            say(turn=turn, revision=receipt.revision)
            while chance.random() < 0.4:
                again = _committed(store, commit)
                say(turn=turn, revision=again.revision, replayed=again.replayed)


def _commit_any(store: Store, turn: str) -> tuple[Commit, Receipt]:
    commit = counted(turn, revision=None)
    return commit, _committed(store, commit)


def _committed(store: Store, commit: Commit) -> Receipt:
    """On a machine whose disk stalls the lock may be busy for long; nothing was written, and repeating is what Busy asks for."""
    while True:
        try:
            return store.sessions.commit(SESSION, commit)
        except Busy:
            continue


def _commit_expecting(store: Store, turn: str) -> tuple[Commit, Receipt]:
    while True:
        try:
            revision = store.sessions.load(SESSION, active_path(last=1)).revision
        except NotFound:
            revision = 0
        commit = counted(turn, revision=revision)
        try:
            return commit, _committed(store, commit)
        except RevisionConflict:
            continue


def watch(job: Job) -> None:
    """Load the session over and over until told to stop. A careless watcher pairs the head of one look with another look."""
    torn: list[str] = []
    revisions: set[int] = set()
    looks = 0
    with opened(job) as store:
        say(ready=True)
        told()
        while not select.select([sys.stdin], [], [], 0)[0]:
            snapshot = _look(store, careless=job["careless"])
            if snapshot is not None:
                looks += 1
                revisions.add(snapshot.revision)
                torn.extend(disagreements(snapshot))
    say(looks=looks, revisions=len(revisions), torn=torn[:10])


def _look(store: Store, *, careless: bool) -> Snapshot | None:
    try:
        earlier = store.sessions.get(SESSION).revision
        snapshot = store.sessions.load(SESSION, active_path())
    except NotFound:
        return None
    return structs.replace(snapshot, revision=earlier) if careless else snapshot


def disagreements(snapshot: Snapshot) -> Iterator[str]:
    """Where parts of one snapshot speak of different revisions: every commit adds one node and one token."""
    revision, nodes = snapshot.revision, snapshot.nodes
    if len(nodes) != revision or [node.position for node in nodes] != sorted({node.position for node in nodes}):
        yield f"revision {revision} with {len(nodes)} nodes"
    if (snapshot.leaf_id or "") != (nodes[-1].node_id if nodes else ""):
        yield f"revision {revision} with the leaf {snapshot.leaf_id}"
    if sum(total.input for total in snapshot.usage) != revision:
        yield f"revision {revision} with usage {snapshot.usage}"
    counts = [(n, node.body["count"]) for n, node in enumerate(nodes, 1) if node.body["count"] is not None]
    if any(n != count for n, count in counts):
        yield f"nodes out of their place: {counts}"
    expected = {"count": str(counts[-1][1]).encode()} if counts else {}
    if snapshot.checkpoint != expected:
        yield f"checkpoint {snapshot.checkpoint}, the nodes say {expected}"


# --- a worker that is paused past its lease ---------------------------------------------------------------------------------


def hold(job: Job) -> None:
    """At each line `claim`, claim. At each line `act`, try everything a claim's holder may do."""
    claim: Claim | None = None
    with opened(job) as store:
        while line := told():
            if line == "claim":
                claim = store.queue.claim(SESSION, "worker", lease_ms=LEASE_MS, token=job["token"])
                assert claim is not None
                say(fence=claim.fence)
            elif claim is not None:
                say(outcomes=[_outcome(act, store, claim) for act in (_renew, _settle, _finish)])


def _outcome(act: Callable[[Store, Claim], object], store: Store, claim: Claim) -> str:
    try:
        act(store, claim)
    except Refused as refusal:
        return type(refusal).__name__
    return "accepted"


def _renew(store: Store, claim: Claim) -> None:
    store.queue.renew(claim, lease_ms=LEASE_MS)


def _settle(store: Store, claim: Claim) -> None:
    store.queue.settle(claim)


def _finish(store: Store, claim: Claim) -> None:
    turn = Append([NodeDraft(body="zombie")])
    store.sessions.commit(SESSION, Commit(expected_revision=None, turn_id=f"zombie {claim.fence}", graph=turn, completes=[claim]))


# --- a server that goes away ------------------------------------------------------------------------------------------------


def persist(job: Job) -> None:
    """Commit turn after turn until told to stop, repeating each until it is acknowledged; only Unavailable is expected."""
    errors: set[str] = set()
    n = 0
    with opened(job) as store:
        while not select.select([sys.stdin], [], [], 0)[0]:
            turn = f"{job['name']}.{n}"
            say(turn=turn, revision=_persistently(store, counted(turn, revision=None), errors))
            n += 1
    say(errors=sorted(errors))


def _persistently(store: Store, commit: Commit, errors: set[str]) -> int:
    while True:
        try:
            return store.sessions.commit(SESSION, commit).revision
        except Unavailable as error:
            errors.add(type(error).__name__)
            time.sleep(0.01)  # a server that restarts needs the processor more than we do


# --- opening ----------------------------------------------------------------------------------------------------------------


def open_together(job: Job) -> None:
    """Fork many processes that open a database at the same moment, which may not exist yet, and use it."""
    gate, latch = os.pipe()
    children = [_fork(partial(_open_at_once, job, f"p{n}", gate, latch)) for n in range(job["processes"])]
    os.close(latch)  # the last of all to close it opens the gate, so that nobody starts before everybody is there
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert statuses == [0] * len(children), statuses


def _fork(work: Callable[[], None]) -> int:
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


def _open_at_once(job: Job, name: str, gate: int, latch: int) -> None:
    os.close(latch)
    os.read(gate, 1)
    with opened(job) as store:
        revision = store.sessions.commit(SESSION, counted(name, revision=None)).revision
        say(version=store.maintenance.schema_version(), differences=store.maintenance.check_schema(), revision=revision)


def open_killed(job: Job) -> None:
    """In each place, kill a process at a random moment while it opens a new database, and let another one finish."""
    chance, killed = random.Random(job["seed"]), 0
    for place in job["places"]:
        victim = _fork(partial(_open_and_use, place))
        time.sleep(chance.uniform(0, OPENING_S))  # chooses the moment, decides nothing
        os.kill(victim, signal.SIGKILL)
        killed += os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1]) == -signal.SIGKILL
        heir = _fork(partial(_open_and_use, place))
        assert os.waitstatus_to_exitcode(os.waitpid(heir, 0)[1]) == 0
    say(killed=killed)


def _open_and_use(place: Job) -> None:
    with opened(place) as store:
        assert store.maintenance.check_schema() == ()
        store.sessions.commit(SESSION, counted("turn", revision=None))


# --- no room left -----------------------------------------------------------------------------------------------------------


def outgrow(job: Job) -> None:
    """Write until the system's file-size limit stops it, look, and write on when the limit is lifted."""
    with opened(job) as store:
        store.sessions.commit(SESSION, counted("before", revision=None))
        _limit_files(job["limit"])
        written, refused = _until_full(store)
        readable = store.sessions.load(SESSION).revision
        _limit_files(resource.RLIM_INFINITY)
        receipt = store.sessions.commit(SESSION, _large(written))
        say(refused=refused, written=written, readable=readable, replayed=receipt.replayed, revision=receipt.revision)


def _until_full(store: Store) -> tuple[int, str]:
    for n in range(10_000):
        try:
            store.sessions.commit(SESSION, _large(n))
        except StorageFull as error:
            return n, type(error).__name__
    raise AssertionError("the limit was never reached")


def _large(n: int) -> Commit:
    return Commit(expected_revision=None, turn_id=f"large {n}", graph=Append([NodeDraft(body="x" * 20_000)]))


def _limit_files(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


PROGRAMS = {program.__name__: program for program in (commit_turns, watch, hold, persist, open_together, open_killed, outgrow)}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](json.loads(sys.argv[2]))
