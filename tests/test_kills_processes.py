"""kill -9, SIGSTOP and waits across processes: no wake, delivery or ending is lost or doubled, and no sleeper sleeps on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from lash_store import AsyncStore, Lease, Success
from lash_store.notify.listen import channel_name
from lash_store.testing import Backend
from tests.support import process_audit
from tests.support.actor import Actor, Word
from tests.support.effort import effort
from tests.support.ground import ENGINES, Ground, ground_of
from tests.support.process_audit import Tables
from tests.support.process_hunt import KEYS, SESSIONS, History
from tests.support.process_scene import (
    HOUR_MS,
    NOTHING,
    OF_PROCESSES,
    WHOLE,
    WITH_FUNCTION,
    Deed,
    Kind,
    answer_of,
    arranged,
    job_of,
    put_away,
    trace_of,
)
from tests.support.process_waits import KINDS, LOG, SESSION
from tests.support.seeds import seed_of_run
from tests.support.ways import WAYS, Way

pytestmark = pytest.mark.faults

VICTIM, WAITS, FORGE = (f"tests.support.process_{name}" for name in ("victim", "waits", "forge"))
KILLS_PER_ROUND = 150
CONTROL_ROUNDS, CONTROL_KILLS = 10, 20
PATIENT_MS = 30_000  # far beyond any honest wait; reaching it is a failure
IMPATIENT_MS = 1_000  # for controls, in which it is reached
TABLES = ("processes", "events", "batches", "grants", "settled_keys")


class Site(Ground, frozen=True):
    """A fresh database, and the process that forks others to work on it."""

    forge: Actor

    async def fork(self, do: str, **job: Any) -> Word:
        """Let a forked process do something here, and wait for its end."""
        return await asyncio.to_thread(self.forge.ask, do=do, **job, **self.place)

    async def start(self, do: str, **job: Any) -> int:
        """The same without waiting: its pid. What `fork` returns is heard from the forge when it has ended."""
        return (await self.fork(do, announce=True, **job))["pid"]

    def run(self, work: Callable[[AsyncStore], Coroutine[Any, Any, None]]) -> None:
        """Run with a store of the test's own, and close everything."""

        async def whole() -> None:
            try:
                await work(await self.backend.open())
            finally:
                await self.backend.close()

        asyncio.run(whole())


@pytest.fixture(scope="module")
def forge() -> Iterator[Actor]:
    with Actor(FORGE, "forge") as actor:
        yield actor


@pytest.fixture(params=ENGINES)
def site(request: pytest.FixtureRequest, forge: Actor, tmp_path: Path) -> Site:
    return site_of(request.param, request, forge, tmp_path)


@pytest.fixture
def pg_site(request: pytest.FixtureRequest, forge: Actor, tmp_path: Path) -> Site:
    return site_of("postgresql", request, forge, tmp_path)


def site_of(engine: str, request: pytest.FixtureRequest, forge: Actor, folder: Path) -> Site:
    ground = ground_of(engine, request, folder)
    return Site(ground.url, ground.schema, ground.backend, forge)


class Clock:
    """How far the database's clock was moved: processes on SQLite move their own."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.offset_ms = 0

    async def advance(self, ms: int) -> None:
        self.offset_ms += ms
        await self._backend.advance(ms)


# --- killed between any two statements ----------------------------------------------------------------------------------------


CASES: list[tuple[str, Way, Kind]] = [
    *(("sqlite", "long", kind) for kind in OF_PROCESSES),
    *(("postgresql", "long", kind) for kind in OF_PROCESSES),
    *(("postgresql", "wrapped", kind) for kind in WITH_FUNCTION),
    *(("postgresql", "short", kind) for kind in WITH_FUNCTION),
]
LONG_ON_BOTH = [("sqlite", "long"), ("postgresql", "long")]


@pytest.mark.parametrize(("site", "way", "kind"), CASES, indirect=["site"])
def test_a_call_killed_at_any_point_happened_whole_or_not_at_all_and_its_repetition_converges(
    site: Site, way: Way, kind: Kind
) -> None:
    async def scenario(store: AsyncStore) -> None:
        found, points = await kill_at_every_point(site, store, kind, way)
        assert found == []
        assert not missing(points, way, kind, site.backend.engine), points
        if kind in OF_PROCESSES:
            assert process_audit.breaches(await process_audit.read(site.backend)) == []

    site.run(scenario)


def missing(points: Sequence[str], way: Way, kind: Kind, engine: str) -> set[str]:
    """What a call of this kind has to pass on this way, and did not."""
    function = f"{kind.removesuffix('-many')}_v1"
    around_call = set[str]() if way == "long" else {f"before {function}", f"after {function}"}
    around_commit = set[str]() if way == "short" else {"before commit", "after commit"}
    sent = {"commit sent"} if engine == "postgresql" and way != "short" else set[str]()
    rest = {"other statements"} if way == "long" and len(points) < 7 else set[str]()
    others = {point for point in points if point.endswith(("_v1", "declined"))} - around_call
    return ((around_call | around_commit | sent) - set(points)) | rest | others


def test_a_wake_in_a_second_transaction_would_be_caught(site: Site) -> None:
    """Negative control: whoever dies between the two leaves an event whose wake never comes."""

    async def scenario(store: AsyncStore) -> None:
        found, _ = await kill_at_every_point(site, store, "append", "long", plants=["wake_in_a_second_transaction"])
        assert any("half done" in each for each in found)
        assert any("does not converge" in each for each in found)
        assert any("is lost" in each for each in process_audit.breaches(await process_audit.read(site.backend)))

    site.run(scenario)


def test_events_that_are_appended_one_by_one_would_be_caught(pg_site: Site) -> None:
    """Negative control: whoever dies in between leaves some of them."""

    async def scenario(store: AsyncStore) -> None:
        found, _ = await kill_at_every_point(pg_site, store, "append-many", "short", plants=["events_one_by_one"])
        assert any("half done" in each for each in found)

    pg_site.run(scenario)


@pytest.mark.parametrize(
    ("site", "way", "kind"),
    [(*case, "complete") for case in LONG_ON_BOTH] + [("postgresql", "short", "append")],
    indirect=["site"],
)
def test_an_answer_before_commit_would_be_caught(site: Site, way: Way, kind: Kind) -> None:
    """Negative control: what was acknowledged is not there."""

    async def scenario(store: AsyncStore) -> None:
        found, _ = await kill_at_every_point(site, store, kind, way, plants=["answer_before_commit"])
        assert any("acknowledged" in each for each in found)

    site.run(scenario)


async def kill_at_every_point(
    site: Site, store: AsyncStore, kind: Kind, way: Way, *, plants: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """What went wrong, and the points a victim passed that was not killed. Heirs come by all ways, unless bugs are planted."""
    clock, found, point = Clock(site.backend), list[str](), 0
    while True:
        point += 1
        deed = await arranged(clock, store, kind, f"{kind} {point}")
        job = {"deed": msgspec.to_builtins(deed), "offset_ms": clock.offset_ms, "plants": plants}
        victim = await site.fork("victim", point=point, way=way, **job)
        assert victim["status"] in (0, -signal.SIGKILL), "a victim failed"
        found += [f"point {point}: {each}" for each in await halves(site.backend, deed, victim["words"])]
        heir = await site.fork("victim", point=None, way=way if plants else WAYS[point % len(WAYS)], **job)
        found += [f"point {point}: {each}" for each in await differences(site.backend, deed, heir)]
        await put_away(store, deed)
        if victim["status"] == 0:
            return found, victim["words"][-1]["points"]


async def halves(backend: Backend, deed: Deed, answers: Sequence[Any]) -> list[str]:
    """After the kill: all or nothing, and all if somebody was told so."""
    trace = await trace_of(backend, deed)
    if answers and trace != WHOLE[deed.kind]:
        return [f"{deed.kind} was acknowledged and is lost: {trace}"]
    return [] if trace in (NOTHING[deed.kind], WHOLE[deed.kind]) else [f"{deed.kind} is half done: {trace}"]


async def differences(backend: Backend, deed: Deed, heir: Word) -> list[str]:
    """After the repetition: all, once, and the answer is the one everybody gets."""
    trace = await trace_of(backend, deed)
    if heir["status"] != 0 or heir["words"][-1]["answer"] != answer_of(deed):
        return [f"{deed.kind} was answered with {heir}"]
    return [] if trace == WHOLE[deed.kind] else [f"{deed.kind} does not converge: {trace}"]


# --- killed while the server works on the call --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WITH_FUNCTION)
@pytest.mark.parametrize("way", WAYS)
def test_a_call_killed_while_the_server_works_on_it_happened_whole_or_not_at_all_and_its_repetition_converges(
    pg_site: Site, way: Way, kind: Kind
) -> None:
    async def scenario(store: AsyncStore) -> None:
        for unread in (False, True):
            deed = await arranged(Clock(pg_site.backend), store, kind, f"{kind} {unread}")
            job = {"deed": msgspec.to_builtins(deed), "point": None, "plants": []}
            assert await killed_at_a_lock(pg_site, deed, job, way, unread=unread) == []
            heir = await pg_site.fork("victim", way=WAYS[unread - 1], **job)
            assert await differences(pg_site.backend, deed, heir) == []

    pg_site.run(scenario)


async def killed_at_a_lock(site: Site, deed: Deed, job: dict[str, Any], way: Way, *, unread: bool) -> list[str]:
    """Kill it while the server waits for the session's row in its name, or when the server has answered and it has not read."""
    async with connected(site) as watcher:
        async with held(site, deed.session_id) as holder:
            pid = await site.start("victim", way=way, **job)
            backend = await waiting_for(watcher, holder)
            os.kill(pid, signal.SIGSTOP if unread else signal.SIGKILL)
            while unread and not stands(pid):
                pass
            assert await trace_of(site.backend, deed) == NOTHING[deed.kind]
        if unread:
            await until(watcher, backend, "state <> 'active'")
            os.kill(pid, signal.SIGKILL)
        victim = await asyncio.to_thread(site.forge.hear)
        assert (victim["status"], victim["words"]) == (-signal.SIGKILL, [])
        await until(watcher, backend, "false")
    if unread or way != "short":  # a function whose caller is gone may run to its end, or may be ended
        assert await trace_of(site.backend, deed) == (WHOLE if way == "short" else NOTHING)[deed.kind]
    return await halves(site.backend, deed, [])


@asynccontextmanager
async def connected(site: Site) -> AsyncGenerator[Any]:
    connection: Any = await asyncpg.connect(site.url)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def held(site: Site, session_id: str) -> AsyncGenerator[int]:
    """The row of a session, locked by the backend of this pid."""
    async with connected(site) as connection, connection.transaction():
        await connection.execute(f"SELECT 1 FROM {site.backend.table('sessions')} WHERE session_id = $1 FOR UPDATE", session_id)
        yield connection.get_server_pid()


async def waiting_for(watcher: Any, holder: int) -> int:
    """The backend that waits for a lock of another, as soon as there is one."""
    found: int | None = None
    while found is None:
        found = await watcher.fetchval("SELECT pid FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))", holder)
    return found


def stands(pid: int) -> bool:
    """Whether SIGSTOP has reached every thread. One of them takes the signal, and until it runs the others go on."""
    states = [path.read_text().rpartition(") ")[2][0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


async def until(watcher: Any, backend: int, state: str) -> None:
    """Wait until a backend is in a state, or gone."""
    while await watcher.fetchval(f"SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND NOT ({state})", backend):
        pass


# --- killed at random moments -------------------------------------------------------------------------------------------------


def test_workers_killed_at_random_end_every_process_once_and_lose_nothing(site: Site) -> None:
    async def scenario(store: AsyncStore) -> None:
        kills = effort(test=KILLS_PER_ROUND, faults=5_000)
        for n in range(-(-kills // KILLS_PER_ROUND)):
            history, found = await hunted(site, store, f"r{n}", kills=KILLS_PER_ROUND)
            assert found == []
            assert history.kills >= KILLS_PER_ROUND
            assert history.in_call >= KILLS_PER_ROUND / 3, "too few kills fell into a call"
            assert {each.call for each in history.answers} == {"claim", "register", "append", "renew", "complete"}

    site.run(scenario)


def test_random_kills_would_find_a_wake_in_a_second_transaction(site: Site) -> None:
    """Negative control."""

    async def scenario(store: AsyncStore) -> None:
        for n in range(CONTROL_ROUNDS):
            _, found = await hunted(
                site, store, f"c{n}", kills=CONTROL_KILLS, ways=["long"], plants=["wake_in_a_second_transaction"]
            )
            if any("is lost" in each for each in found):
                return
        pytest.fail("the planted bug was not found")

    site.run(scenario)


async def hunted(
    site: Site, store: AsyncStore, name: str, *, kills: int, ways: Sequence[Way] = WAYS, plants: Sequence[str] = ()
) -> tuple[History, list[str]]:
    """Kill, let the last one finish, and hold what was said against the database."""
    for session_id in SESSIONS:
        await store.sessions.create(session_id)
    job = {"name": name, "kills": kills, "seed": f"{seed_of_run()} {name}", "ways": ways, "plants": plants}
    [word] = (await site.fork("hunt", **job))["words"]
    history = msgspec.convert(word["history"], History)
    tables = await process_audit.read(site.backend)
    return history, [*history.failures, *process_audit.breaches(tables), *broken_words(history, tables)]


def broken_words(history: History, tables: Tables) -> Iterator[str]:
    """What was acknowledged and is not so."""
    events = {(event.process_id, event.replay_key): event.sequence for event in tables.events}
    holders: dict[tuple[str, int], set[str]] = {}
    for said in history.answers:
        line = tables.processes.get(said.process_id)
        if line is None:
            yield f"{said.call} of {said.process_id} was acknowledged, and there is no such process"
        elif said.call == "append" and events.get((said.process_id, said.key)) != said.sequence:
            yield f"{said} was acknowledged, and is stored at {events.get((said.process_id, said.key))}"
        elif said.call == "complete" and line.state != "completed":
            yield f"{said.process_id} was completed, and is {line.state}"
        elif said.call == "claim":
            holders.setdefault((said.process_id, said.fence), set()).add(said.token)
    yield from unfinished(history, tables)
    for (process_id, fence), tokens in holders.items():
        if len(tokens) > 1 or fence > tables.processes[process_id].lease_fence:
            yield f"fence {fence} of {process_id} was given to {sorted(tokens)}"


def unfinished(history: History, tables: Tables) -> Iterator[str]:
    """Every process has ended with all its events, woken its session through three batches, and is granted to it."""
    keys: dict[str, set[str]] = {}
    batches: dict[str, set[str]] = {}
    granted = {process_id for _, process_id in tables.grants}
    for event in tables.events:
        keys.setdefault(event.process_id, set()).add(event.replay_key)
        batches.setdefault(event.process_id, set()).update([event.wake_batch_id] if event.wake_batch_id else [])
    for process_id in {said.process_id for said in history.said if said.call == "register"}:
        if keys.get(process_id) != {*KEYS, f"process:{process_id}:terminal:process.completed"}:
            yield f"{process_id} did not end as it should: {keys.get(process_id)}"
        elif len(batches[process_id]) != 3:  # two steps, and nags that became one
            yield f"{process_id} woke its session with {len(batches[process_id])} batches"
        if process_id not in granted:
            yield f"{process_id} is not granted to its session"


# --- stopped past the lease ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", ["between-calls", "within-a-call"])
@pytest.mark.parametrize("finished", [False, True], ids=["heir-holds", "heir-is-done"])
def test_a_worker_stopped_past_its_lease_changes_nothing_and_its_heir_finishes(site: Site, finished: bool, stopped: str) -> None:
    async def scenario(store: AsyncStore) -> None:
        rounds = effort(test=3, faults=300)
        within = stopped == "within-a-call"
        outcomes, changed = await stopped_past_the_lease(site, store, rounds=rounds, finished=finished, within=within)
        assert changed == []
        for append, renew, *endings, release in outcomes:
            assert (append, renew, release) == ("LeaseLost", "LeaseLost", "accepted")  # a release says that it changed nothing
            # Where the process has ended already, an ending may be refused for that.
            assert set(endings) <= {"LeaseLost", *(["ReplayConflict", "AlreadyTerminal"] if finished else [])}

    site.run(scenario)


def test_leases_that_nobody_checks_would_be_caught(site: Site) -> None:
    """Negative control: whoever once held the lease gets through."""

    async def scenario(store: AsyncStore) -> None:
        plants = ["leases_are_not_checked"]
        outcomes, changed = await stopped_past_the_lease(site, store, rounds=1, finished=False, within=False, plants=plants)
        assert outcomes[0][0] == "accepted"
        assert changed

    site.run(scenario)


async def stopped_past_the_lease(
    site: Site, store: AsyncStore, *, rounds: int, finished: bool, within: bool, plants: Sequence[str] = ()
) -> tuple[list[list[str]], list[str]]:
    """Each round: a worker claims and is stopped, time passes, an heir claims, the worker goes on. What it got and changed."""
    clock, outcomes, changed = Clock(site.backend), list[list[str]](), list[str]()
    await store.sessions.create(SESSION)
    with Actor(VICTIM, "zombie", plants=plants, **site.place) as worker:
        for n in range(rounds):
            process_id = f"p {n}"
            await store.processes.register(job_of(process_id, SESSION))
            held = (await asyncio.to_thread(worker.ask, claim=process_id))["lease"]
            act = {"lease": held, "stop": within, "offset_ms": clock.offset_ms + (0 if within else HOUR_MS + 1)}
            await asyncio.to_thread(stop, worker, act, within=within)
            await clock.advance(HOUR_MS + 1)
            heir = await inherited(store, process_id, held)
            if finished:
                await store.processes.complete(process_id, Success("heir"), lease=heir)
            before = await all_rows(site.backend)
            worker.resume()
            outcomes.append((await asyncio.to_thread(worker.hear))["outcomes"])
            changed += [f"round {n}: {table}" for table, rows in (await all_rows(site.backend)).items() if rows != before[table]]
            if not plants:
                await finish(store, heir)
    return outcomes, changed


def stop(worker: Actor, act: dict[str, Any], *, within: bool) -> None:
    """Stop it before it hears what to do, or let it begin and stop itself after the first statement."""
    if not within:
        worker.stop()
    worker.tell(**act)
    if within:
        worker.await_stop()


async def inherited(store: AsyncStore, process_id: str, held: dict[str, Any]) -> Lease:
    [leased] = await store.processes.claim_next("heir", incarnation="1", lease_ms=HOUR_MS)
    assert leased.process.process_id == process_id
    assert leased.lease.fence > held["fence"]
    return leased.lease


async def finish(store: AsyncStore, heir: Lease) -> None:
    """The heir does what is left, or says again what it has said."""
    process = await store.processes.complete(heir.process_id, Success("heir"), lease=heir)
    assert process.output == Success("heir")
    assert [event.event_type for event in await store.processes.recent(heir.process_id)] == ["process.completed"]


async def all_rows(backend: Backend) -> dict[str, list[tuple[Any, ...]]]:
    return {table: sorted(await backend.raw(f"SELECT * FROM {backend.table(table)}"), key=repr) for table in TABLES}


# --- waiting for another process ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_no_wake_up_is_lost_between_processes(site: Site, kind: str) -> None:
    """Without the slow look: every round must be ended by a signal."""
    assert lost_round(site, kind, rounds=effort(test=200, faults=1_000), timeout_ms=PATIENT_MS) is None


@pytest.mark.parametrize(
    ("site", "way", "kind"),
    [
        *((*case, kind) for case in LONG_ON_BOTH for kind in KINDS),
        ("postgresql", "wrapped", "wait_event"),
        ("postgresql", "short", "wait_event"),
        ("postgresql", "short", "follow"),
    ],
    indirect=["site"],
)
def test_a_ring_before_the_commit_would_be_caught(site: Site, way: Way, kind: str) -> None:
    """Negative control: who looks too early sleeps on."""
    assert lost_round(site, kind, rounds=20, timeout_ms=IMPATIENT_MS, ways=[way], plants=["ring_before_commit"]) is not None


def lost_round(
    site: Site, kind: str, *, rounds: int, timeout_ms: int, ways: Sequence[Way] = WAYS, plants: Sequence[str] = ()
) -> int | None:
    """The round in which one process waited in vain for another, if any."""
    lost: list[int | None] = []

    async def scenario(store: AsyncStore) -> None:
        await prepared_waits(store, outputs=rounds if kind == "await_output" else 0)
        job = {"kind": kind, "rounds": rounds, "timeout_ms": timeout_ms, "ways": ways, "plants": plants, "seed": seed_of_run()}
        ended = await site.fork("rounds", **job)
        assert ended["status"] == 0
        lost.append(ended["words"][-1]["lost"])

    site.run(scenario)
    return lost[0]


async def prepared_waits(store: AsyncStore, *, outputs: int) -> None:
    """A session, a process whose log is watched, and some whose output is; no worker may run them."""
    await store.sessions.create(SESSION)
    watched = (LOG, *(f"waits {n}" for n in range(outputs)))
    await asyncio.gather(*(store.processes.register(job_of(process_id, SESSION, kind="external")) for process_id in watched))


@pytest.mark.parametrize("plants", [[], ["no_new_listener"]], ids=["reconnects", "stays-deaf"])
def test_waiters_return_although_their_listen_connection_is_killed(pg_site: Site, plants: list[str]) -> None:
    assert returned_after_a_cut(pg_site, plants, timeout_ms=PATIENT_MS) == dict.fromkeys(KINDS, True)


def test_it_is_the_slow_look_that_saves_deaf_waiters(pg_site: Site) -> None:
    """Negative control: without it nobody returns before the timeout."""
    returned = returned_after_a_cut(pg_site, ["no_new_listener", "no_slow_look"], timeout_ms=IMPATIENT_MS)
    assert returned == dict.fromkeys(KINDS, False)


def returned_after_a_cut(site: Site, plants: Sequence[str], *, timeout_ms: int) -> dict[str, bool]:
    """Let a process wait in all ways, kill its LISTEN connection, then do what it waits for. Which waits ended by that."""
    returned: dict[str, bool] = {}

    async def scenario(store: AsyncStore) -> None:
        await prepared_waits(store, outputs=1)
        with Actor(WAITS, "together", plants=plants, timeout_ms=timeout_ms, **site.place) as waiter:
            assert await asyncio.to_thread(waiter.hear) == {"waiting": True}
            await kill_listeners(site)
            await store.processes.complete("waits 0", Success(0))
            await store.processes.append(LOG, "note", 0)
            await store.processes.register(job_of("runnable 0", SESSION))
            returned.update((await asyncio.to_thread(waiter.ask))["returned"])

    site.run(scenario)
    return returned


async def kill_listeners(site: Site) -> None:
    """Terminate the backend that listens for this schema, as soon as there is one, and see it gone."""
    listening = f'LISTEN "{channel_name(site.schema)}"%'
    async with connected(site) as connection:
        pids: list[int] = []
        while not pids:
            pids = [row[0] for row in await connection.fetch("SELECT pid FROM pg_stat_activity WHERE query LIKE $1", listening)]
        for pid in pids:
            assert await connection.fetchval("SELECT pg_terminate_backend($1, 10000)", pid)
