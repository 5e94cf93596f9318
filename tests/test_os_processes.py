"""Several processes on one database: concurrent commits, torn reads, paused workers, a server that is restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lash_store import Append, AsyncStore, Commit, NodeDraft
from lash_store.testing import Backend, PostgresBackend
from tests.support.cluster import Cluster
from tests.support.effort import effort
from tests.support.ground import ENGINES, Ground, ground_of
from tests.support.program import Program, Word
from tests.support.programs import LEASE_MS, SESSION
from tests.support.seeds import seed_of_run

pytestmark = pytest.mark.faults

PROCESSES = 8
ACKS_AFTER_RESTART = 5


@pytest.fixture(params=ENGINES)
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return ground_of(request.param, request, tmp_path)


def run(backend: Backend, work: Coroutine[Any, Any, None]) -> None:
    """Run, and close what was opened."""

    async def whole() -> None:
        try:
            await work
        finally:
            await backend.close()

    asyncio.run(whole())


# --- commits and a reader -------------------------------------------------------------------------------------------------------


def commit_together(ground: Ground, *, turns: int, careless: bool = False) -> tuple[list[Word], Word]:
    """What eight committers were told, and what a ninth process saw meanwhile."""
    seed = seed_of_run()
    jobs = [{"name": f"w{n}", "expecting": n % 2 == 0, "turns": turns, "seed": f"{seed} {n}"} for n in range(PROCESSES)]
    with ExitStack() as stack:
        reader = stack.enter_context(Program("watch", careless=careless, **ground.place))
        committers = [stack.enter_context(Program("commit_turns", **job, **ground.place)) for job in jobs]
        for program in (reader, *committers):
            program.next(0)
        for program in (reader, *committers):
            program.tell()
        words = [word for program in committers for word in program.end() if "turn" in word]
        return words, reader.end()[-1]


def test_turns_of_eight_processes_are_there_once_and_no_reader_sees_a_torn_state(ground: Ground) -> None:
    turns = effort(test=15, faults=300)
    words, seen = commit_together(ground, turns=turns)
    assert seen["torn"] == []
    assert seen["revisions"] >= 10, "the reader saw too little to say anything"
    run(ground.backend, each_turn_is_there_once(ground.backend, words))
    assert len({word["turn"] for word in words}) == PROCESSES * turns + turns


async def each_turn_is_there_once(backend: Backend, words: Sequence[Word]) -> None:
    """Every acknowledgement of a turn names the one revision at which it is stored, and nothing else is stored."""
    stored = await history(await backend.open())
    assert [revision for revision, _ in stored] == list(range(1, len(stored) + 1))
    assert len({turn for _, turn in stored}) == len(stored)
    assert {(word["revision"], word["turn"]) for word in words} == set(stored)
    assert all(word["replayed"] for word in words if "replayed" in word)


async def history(store: AsyncStore) -> list[tuple[int, str | None]]:
    """All commits of the session, in their order."""
    found: list[tuple[int, str | None]] = []
    cursor: str | None = "0"
    while cursor is not None:
        page = await store.sessions.commits(SESSION, after=int(cursor), limit=1000)
        found += [(commit.revision, commit.turn_id) for commit in page.commits]
        cursor = page.cursor
    return found


def test_a_reader_that_looks_twice_is_caught(ground: Ground) -> None:
    """Negative control: the head of one look with the nodes of another is a torn state."""
    _, seen = commit_together(ground, turns=15, careless=True)
    assert seen["torn"]


# --- a paused worker ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finished", [False, True], ids=["heir-holds", "heir-is-done"])
def test_a_paused_worker_can_do_nothing_after_its_heir_claimed(ground: Ground, finished: bool) -> None:
    async def scenario() -> None:
        rounds = effort(test=5, faults=500)
        outcomes = await paused_past_the_lease(ground, rounds=rounds, finished=finished, token=None)
        assert outcomes == [["ClaimLost"] * 3] * rounds

    run(ground.backend, scenario())


def test_a_token_shared_by_owner_would_be_caught(ground: Ground) -> None:
    """Negative control: if the owner's name proved ownership, the paused worker would get through."""

    async def scenario() -> None:
        outcomes = await paused_past_the_lease(ground, rounds=1, finished=False, token="worker")
        assert outcomes == [["accepted", "accepted", "ClaimLost"]]

    run(ground.backend, scenario())


async def paused_past_the_lease(ground: Ground, *, rounds: int, finished: bool, token: str | None) -> list[Any]:
    """Each round: a worker claims and is stopped, time passes, an heir claims, the worker goes on. What the worker got."""
    store = await ground.backend.open()
    await store.sessions.create(SESSION)
    outcomes: list[Any] = []
    with Program("hold", token=token, **ground.place) as worker:
        for n in range(rounds):
            await store.queue.enqueue(SESSION, [n])
            worker.tell("claim")
            held = await asyncio.to_thread(worker.next, 2 * n)
            worker.pause()
            worker.tell("act")
            await ground.backend.advance(LEASE_MS + 1)
            heir = await store.queue.claim(SESSION, "worker", lease_ms=LEASE_MS, token=token)
            assert heir is not None
            assert token or heir.fence > held["fence"]
            turn = Commit(expected_revision=n, turn_id=f"heir {n}", graph=Append([NodeDraft(body=n)]), completes=[heir])
            if finished:
                await store.sessions.commit(SESSION, turn)
            worker.resume()
            outcomes.append((await asyncio.to_thread(worker.next, 2 * n + 1))["outcomes"])
            if token is None:
                await store.sessions.commit(SESSION, turn)
                assert (await store.sessions.get(SESSION)).revision == n + 1
                assert (await store.queue.list(SESSION)).batches == ()
            await ground.backend.advance(-LEASE_MS - 1)  # a SQLite worker's own clock was not moved
        worker.end()
    return outcomes


# --- a server that is restarted -------------------------------------------------------------------------------------------------


def test_restarts_of_postgresql_under_load_lose_nothing(pg_cluster: Cluster) -> None:
    place = {"url": pg_cluster.url, "schema": "lash_store"}
    with ExitStack() as stack:
        programs = [stack.enter_context(Program("persist", name=f"w{n}", **place)) for n in range(3)]
        goal = await_progress(programs, 0)
        for _ in range(effort(test=3, faults=100)):
            pg_cluster.crash()
            pg_cluster.start()
            goal = await_progress(programs, goal)
        for program in programs:
            program.tell("stop")
        words = [word for program in programs for word in program.end()]
    errors = {name for word in words for name in word.get("errors", ())}
    assert errors, "no restart was felt"
    assert errors <= {"Unavailable", "Busy", "Disconnected"}
    backend = PostgresBackend(pg_cluster.url, schema="lash_store")
    run(backend, each_turn_is_there_once(backend, [word for word in words if "turn" in word]))


def await_progress(programs: Sequence[Program], goal: int) -> int:
    """Wait until each of them has some more acknowledgements than it had, and return the most that any has."""
    goal += ACKS_AFTER_RESTART
    return max(len(program.until(lambda words: len(words) >= goal)) for program in programs)
