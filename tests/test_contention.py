"""Many callers at once on real PostgreSQL: no deadlock, every outcome typed, every acknowledged turn there once."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import asyncpg
import pytest

from lash_store import AsyncStore
from lash_store.errors import Busy
from lash_store.model.commit import Commit, Receipt
from lash_store.model.graph import Append, NodeDraft
from lash_store.model.process import Event
from lash_store.ops import commits
from lash_store.ops.heads import Head, lock_sessions
from lash_store.ops.statement import Op
from tests.support.effort import effort
from tests.support.mix import CALLS, PATIENT_MS, SESSIONS, Worker, mix
from tests.support.process_mix import PROCESS_CALLS, ProcessWorker
from tests.support.seeds import seed_of_run

MIX_S = effort(test=12, faults=600)
TASKS = 32
RACERS = 8
ROUNDS = effort(test=30, faults=2_000)
ALL_CALLS = (*CALLS, *PROCESS_CALLS)
CONTROL_ROUNDS = 10  # of a second each, until the planted deadlock is counted


@pytest.fixture
def own_database(pg_url: str) -> Iterator[str]:
    """A database of the test's own, whose deadlocks nobody else causes and which are noticed after 50 ms."""
    name = f"t_{secrets.token_hex(8)}"
    asyncio.run(_administer(pg_url, f"CREATE DATABASE {name}", f"ALTER DATABASE {name} SET deadlock_timeout = '50ms'"))
    yield urlsplit(pg_url)._replace(path=f"/{name}").geturl()
    asyncio.run(_administer(pg_url, f"DROP DATABASE {name} WITH (FORCE)"))


async def _administer(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def deadlocks(url: str) -> int:
    """How many the server has counted in this database; connections report theirs when they end."""
    connection = await asyncpg.connect(url)
    try:
        count = await connection.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(count)
    finally:
        await connection.close()


@pytest.mark.faults
def test_a_random_mix_of_all_calls_never_deadlocks(own_database: str) -> None:
    seed = seed_of_run()
    calls, refusals = asyncio.run(_mixed(own_database, seed))
    print(f"{sum(calls.values())} calls: {dict(calls)}, refused: {dict(refusals)}")
    assert asyncio.run(deadlocks(own_database)) == 0
    assert set(calls) == {call.__name__ for call in ALL_CALLS}


async def _mixed(url: str, seed: int) -> tuple[Counter[str], Counter[str]]:
    patience = dict.fromkeys(("acquire_ms", "lock_ms", "statement_ms"), PATIENT_MS)
    async with AsyncStore.open(url, blobs="database", **patience) as store:
        workers = await mix(store, ProcessWorker, ALL_CALLS, tasks=TASKS, seconds=MIX_S, seed=seed)
        await _check_acknowledged(store, workers)
        await _check_appended(store, workers)
    return sum((worker.calls for worker in workers), Counter()), sum((worker.refusals for worker in workers), Counter())


async def _check_acknowledged(store: AsyncStore, workers: Sequence[Worker]) -> None:
    """Revisions of the living sessions are gapless, and every turn that was acknowledged in them is there, once."""
    for session_id in SESSIONS:
        living = await store.sessions.create(session_id)
        history: dict[str | None, int] = {}
        after: int | None = 0
        while after is not None:
            page = await store.sessions.commits(session_id, after=after)
            history |= {record.turn_id: record.revision for record in page.commits}
            after = None if page.cursor is None else int(page.cursor)
        mine = [known for worker in workers for known in worker.acknowledged if known[:2] == (session_id, living.incarnation)]
        assert {turn: revision for _, _, revision, turn in mine}.items() <= history.items()
        assert sorted(history.values()) == list(range(living.revision - len(history) + 1, living.revision + 1))
        await store.sessions.load(session_id)


async def _check_appended(store: AsyncStore, workers: Sequence[Worker]) -> None:
    """Logs of processes that were not pruned have no gap, and every event that was acknowledged is in them, once."""
    acknowledged = sorted(known for worker in workers for known in worker.appended)
    cursor: str | None = ""
    while cursor is not None:
        page = await store.processes.list(state=None, cursor=cursor)
        for process in page.processes:
            log = {event.sequence: event.replay_key for event in await _log(store, process.process_id)}
            assert sorted(log) == list(range(1, process.last_sequence + 1))
            mine = {sequence: key for process_id, sequence, key in acknowledged if process_id == process.process_id}
            assert mine.items() <= log.items()
        cursor = page.cursor


async def _log(store: AsyncStore, process_id: str) -> list[Event]:
    log: list[Event] = []
    after: int | None = 0
    while after is not None:
        page = await store.processes.events(process_id, after=after)
        log += page.events
        after = page.cursor
    return log


def test_the_mix_notices_an_operation_that_locks_in_another_order(own_database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "lock_sessions", _in_any_order)
    for seed in range(CONTROL_ROUNDS):
        asyncio.run(_brief(own_database, seed))
        if asyncio.run(deadlocks(own_database)):
            return
    pytest.fail("locks were taken in any order, and no deadlock was counted")


async def _brief(url: str, seed: int) -> None:
    async with AsyncStore.open(url, blobs="database") as store:
        with suppress(Busy):  # the driver repeats what was in a deadlock, but not for ever
            await mix(store, Worker, CALLS, tasks=TASKS, seconds=1, seed=seed)


def _in_any_order(session_ids: Sequence[str]) -> Op[dict[str, Head]]:
    heads: dict[str, Head] = {}
    for session_id in random.sample(list(session_ids), len(session_ids)):
        heads |= yield from lock_sessions([session_id])
    return heads


@pytest.mark.faults
def test_retries_of_one_turn_that_arrive_together_are_one_commit(pg_url: str, pg_schema: str) -> None:
    async def race() -> None:
        async with AsyncStore.open(pg_url, schema=pg_schema, pool_size=RACERS) as store:
            for number in range(ROUNDS):
                # Every second round is the first of a new session.
                session_id, turn = f"s{number // 2}", f"turn {number}"
                given = Commit(expected_revision=number % 2, turn_id=turn, graph=Append([NodeDraft(body=turn)]))
                receipts = await asyncio.gather(*(store.sessions.commit(session_id, given) for _ in range(RACERS)))
                assert Counter(receipt.replayed for receipt in receipts) == {False: 1, True: RACERS - 1}
                assert len({_without_replayed(receipt) for receipt in receipts}) == 1
                assert receipts[0].revision == number % 2 + 1

    asyncio.run(race())


def _without_replayed(receipt: Receipt) -> tuple[object, ...]:
    return receipt.session_id, receipt.revision, receipt.turn_id, receipt.leaf_id, receipt.node_ids, receipt.committed_ms


@pytest.mark.faults
def test_one_key_enqueued_by_many_at_once_is_one_batch(pg_url: str, pg_schema: str) -> None:
    async def race() -> None:
        async with AsyncStore.open(pg_url, schema=pg_schema, pool_size=RACERS) as store:
            await store.sessions.create("s")
            for number in range(ROUNDS):
                calls = (store.queue.enqueue("s", ["same"], source_key=f"key {number}") for _ in range(RACERS))
                assert len({batch.batch_id for batch in await asyncio.gather(*calls)}) == 1
            assert (await store.queue.depth("s")).ready == ROUNDS

    asyncio.run(race())


@pytest.mark.faults
def test_work_is_claimed_by_one_of_many_at_once(pg_url: str, pg_schema: str) -> None:
    async def race() -> None:
        async with AsyncStore.open(pg_url, schema=pg_schema, pool_size=RACERS) as store:
            for number in range(ROUNDS):
                await store.sessions.create(f"s{number}")
                await store.queue.enqueue(f"s{number}", ["work"])
                calls = (store.queue.claim_next(f"w{racer}", lease_ms=60_000) for racer in range(RACERS))
                claims = [claim for claim in await asyncio.gather(*calls) if claim is not None]
                assert [claim.session_id for claim in claims] == [f"s{number}"]

    asyncio.run(race())
