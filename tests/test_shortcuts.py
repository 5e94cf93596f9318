"""The shortcuts of PostgreSQL are the operations, compiled: the same histories, with and without them, give the same answers
and leave the same rows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import asyncpg
import pytest
from msgspec.structs import replace

from lash_store import (
    Append,
    AsyncStore,
    BatchDraft,
    Busy,
    Commit,
    Completion,
    Corrupt,
    Disconnected,
    EventType,
    NodeDraft,
    ProcessInput,
    Registration,
    Usage,
)
from lash_store.db.postgres import PostgresDriver
from lash_store.db.postgres_session import Session
from lash_store.db.scripts import function_text, functions
from lash_store.delta import Held
from lash_store.encode import derived_node_id
from lash_store.model.limits import COUNTER_MAX
from lash_store.testing.backend import PROCESS_TABLES, STATE_TABLES
from tests import test_model as of_sessions
from tests import test_model_processes as of_processes
from tests.conftest import drop_schema
from tests.support import model_engines, model_steps, pmodel_engines, pmodel_steps
from tests.support.cluster import Cluster
from tests.support.effort import effort
from tests.support.model_engines import Call
from tests.support.process_scene import job_of
from tests.support.ways import FOREVER_MS

# Both count whom they ended. In a transaction pg_stat_activity shows the backends of its first look, and none that came later.
KILL_WAITING = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"
KILL_RESTING = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1 AND state = 'idle'"

TABLES = (*STATE_TABLES, *PROCESS_TABLES)

session_bounds = of_sessions.small_bounds
process_bounds = of_processes.small_bounds

T = TypeVar("T")
Open = Callable[[str], Any]


class Taken:
    """Which shortcuts were asked, and what they answered: the outcome they name, or that they declined."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Session, "publish", self._noting(Session.publish))
        monkeypatch.setattr(Session, "call", self._noting(Session.call))

    def _noting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def noted(session: Session, running: Any, shortcut: Any) -> Any:
            rows = await method(session, running, shortcut)
            said = "declined" if rows is None else rows[0][0] if isinstance(rows[0][0], str) else "done"
            self.answers[f"{shortcut.function} {said}"] += 1
            return rows

        return noted


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    made = Taken()
    made.watch(monkeypatch)
    return made


@pytest.fixture
def schemas(pg_url: str, pg_schema: str) -> Iterator[tuple[str, str]]:
    """Two schemas: one with shortcuts, one without."""
    plain = f"{pg_schema}_plain"
    yield pg_schema, plain
    asyncio.run(drop_schema(pg_url, plain))


def both_ways(schemas: tuple[str, str], open: Open) -> list[Any]:
    """An engine that takes the shortcuts, and one that goes the long way."""
    engines = [open(schema) for schema in schemas]
    engines[1].name = "postgresql without shortcuts"
    for store in engines[1].stores:
        driver = store._runtime.driver
        assert isinstance(driver, PostgresDriver)
        driver.shortcuts = False
    return engines


def close(engines: Sequence[Any]) -> None:
    for engine in engines:
        engine.close()


@pytest.mark.faults
def test_sessions_are_the_same_with_and_without(pg_url: str, schemas: tuple[str, str], taken: Taken) -> None:
    engines = both_ways(schemas, lambda schema: model_engines.PostgresEngine(pg_url, schema, of_sessions.OPTIONS))
    try:
        world = model_steps.World(engines)
        world.at_end = lambda: of_sessions.compare_rows(engines)
        of_sessions.run(world, examples=effort(test=12, faults=1_000))
    finally:
        close(engines)
    assert set(taken.answers) >= {
        f"{function} {answer}"
        for function, answers in {
            "commit_v1": ("done", "declined"),
            "enqueue_v1": ("fresh", "declined"),
            "claim_v1": ("claimed", "nothing", "declined"),
            "settle_v1": ("done",),
        }.items()
        for answer in answers
    }, taken.answers


@pytest.mark.faults
def test_processes_are_the_same_with_and_without(pg_url: str, schemas: tuple[str, str], taken: Taken) -> None:
    engines = both_ways(schemas, lambda schema: pmodel_engines.PostgresEngine(pg_url, schema))
    try:
        world = pmodel_steps.World(engines)
        world.at_end = lambda: of_processes.compare_rows(engines)
        of_processes.run(world, examples=effort(test=8, faults=1_000))
    finally:
        close(engines)
    assert set(taken.answers) >= {"append_v1 done", "append_v1 declined", "claim_v1 claimed"}, taken.answers


def turn(turn_id: str, revision: int | None, text: str, **more: Any) -> Call:
    """A commit of one node."""
    graph = Append([NodeDraft(kind="user", body={"text": text}, **more.pop("node", {}))], **more.pop("append", {}))
    return Call("sessions.commit", ("s", Commit(expected_revision=revision, graph=graph, turn_id=turn_id, **more)))


def work(**more: Any) -> Call:
    return Call("queue.enqueue", ("s", [more.pop("payload", 1)]), more)


def held(batch_id: str, fence: int) -> Completion:
    return Completion(session_id="s", claim_id="qwc:1:1", token="T", fence=fence, batch_ids=(batch_id,))


def noted(key: str, payload: object) -> Call:
    """An event that wakes nobody."""
    return Call("processes.append", ("p", "note", payload), {"replay_key": key})


# A name the function cannot spell: the caller spells it, if it knows the checkpoint before.
FOREIGN = "commit_v1 done, or declined"
# What is done, and what the shortcut says to it; None: it is not even asked.
SCRIPT: tuple[tuple[Call, str | None], ...] = (
    (turn("t1", None, "the session is not there"), "commit_v1 declined"),
    (turn("t2", 1, "straight", checkpoint={"a": b"1" * 400}, usage=[Usage(source="x", model="m", input=1)]), "commit_v1 done"),
    (
        turn("t2", 1, "straight", checkpoint={"a": b"1" * 400}, usage=[Usage(source="x", model="m", input=1)]),
        "commit_v1 replayed",
    ),
    (turn("t2", 1, "other content"), "commit_v1 declined"),
    (turn("t3", 1, "stale"), "commit_v1 moved"),
    (turn("t4", 2, "a delta", checkpoint={"a": b"1" * 400 + b"2"}), "commit_v1 done"),
    (turn("t5", 3, "a fork", node={"parent_id": derived_node_id("s", "t1", 0)}), "commit_v1 done"),
    (turn("t6", 4, "a root", node={"parent_id": None}, append={"leaf": derived_node_id("s", "t2", 0)}), "commit_v1 done"),
    (turn("t7", 5, "no such parent", node={"parent_id": "nobody"}), "commit_v1 declined"),
    (turn("t8", 5, "no such leaf", append={"leaf": "nobody"}), "commit_v1 declined"),
    (turn("t9", 5, "straight", node={"node_id": derived_node_id("s", "t2", 0)}), "commit_v1 declined"),
    (turn("t10", 6, "a name beyond ASCII", checkpoint={"ä": b"1"}), FOREIGN),
    (turn("t11", 7, "also when it is removed", checkpoint={"ä": None}), FOREIGN),
    (turn("t12", 8, "too much", usage=[Usage(source="x", model="m", input=COUNTER_MAX)]), "commit_v1 declined"),
    (turn("t13", 8, "rare", config={"a": 1}), None),
    (turn("t14", 9, "work", enqueues=[BatchDraft(payloads=[1], batch_id="qwb:0")]), None),
    (turn("t15", 10, "a frame", current_frame_id="f", checkpoint={"a": None, "b": b"2", "A": b"3"}), "commit_v1 done"),
    (turn("t16", 11, "no intent", attachments=["0" * 64]), "commit_v1 declined"),
    (work(batch_id="qwb:1", source_key="k"), "enqueue_v1 fresh"),
    (work(batch_id="qwb:2", source_key="k"), "enqueue_v1 stored"),
    (work(batch_id="qwb:2", source_key="k", payload=2), "enqueue_v1 declined"),
    (work(batch_id="qwb:0", source_key="k"), "enqueue_v1 declined"),
    (work(batch_id="qwb:1"), "enqueue_v1 declined"),
    (work(batch_id="qwb:3", merge_key="m", max_attempts=1), "enqueue_v1 fresh"),
    (Call("queue.claim", ("s", "w"), {"lease_ms": 1000, "token": "T"}), "claim_v1 claimed"),
    (Call("queue.claim", ("s", "w"), {"lease_ms": 1000, "token": "T"}), "claim_v1 declined"),
    (Call("queue.settle", (held("qwb:0", 9),)), "settle_v1 declined"),
    (Call("queue.settle", (held("qwb:0", 1),)), "settle_v1 done"),
    (Call("queue.settle", (held("qwb:0", 1),)), "settle_v1 declined"),
    (work(batch_id="qwb:0"), "enqueue_v1 declined"),
    (Call("queue.claim", ("s", "w"), {"lease_ms": 0, "token": "U", "max_batches": 9}), "claim_v1 claimed"),
    (Call("queue.claim_next", ("w",), {"lease_ms": 1000, "max_batches": 9, "token": "V"}), "claim_v1 claimed"),
    (turn("t17", None, "settles", completes=[held("qwb:1", 2)]), "commit_v1 declined"),
    (turn("t18", None, "settles", completes=[replace(held("qwb:1", 3), token="V")]), "commit_v1 done"),
    (turn("t18", None, "settles", completes=[replace(held("qwb:1", 3), token="V")]), "commit_v1 declined"),
    (Call("queue.claim", ("s", "w"), {"lease_ms": 1000, "token": "W"}), "claim_v1 claimed"),
    (Call("queue.claim", ("s", "w"), {"lease_ms": 1000, "token": "X"}), "claim_v1 nothing"),
    (Call("queue.claim", ("nobody", "w"), {"lease_ms": 1000, "token": "X"}), "claim_v1 declined"),
    (Call("processes.register", (job_of("p", "s"),)), None),
    (noted("one", 1), "append_v1 done"),
    (noted("two", 2), "append_v1 done"),
    (noted("one", 1), "append_v1 stored"),
    (noted("one", 2), "append_v1 declined"),
)


@pytest.mark.parametrize("knows", [True, False], ids=["known head", "unknown head"])
@pytest.mark.parametrize("pooler", [False, True], ids=["alone", "in a transaction"])
def test_each_answer_is_the_operations_own(
    pg_url: str, schemas: tuple[str, str], taken: Taken, monkeypatch: pytest.MonkeyPatch, pooler: bool, knows: bool
) -> None:
    if not knows:
        monkeypatch.setattr(Held, "left", lambda held, session_id: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    engines = both_ways(schemas, lambda schema: model_engines.PostgresEngine(pg_url, schema, {"pooler": pooler}))
    try:
        for engine in engines:
            engine.set_clock(1_000)
        for call, answer in SCRIPT:
            taken.answers.clear()
            compare(engines, call)
            expected = f"commit_v1 {'done' if knows else 'declined'}" if answer == FOREIGN else answer
            assert list(taken.answers) == ([] if expected is None else [expected]), call
    finally:
        close(engines)


def compare(engines: Sequence[Any], call: Call) -> None:
    """Both give the same answer, or the same refusal, and leave the same rows."""
    one, other = (engine.call(model_engines.ASYNC, call) for engine in engines)
    assert (one.value, type(one.error), str(one.error)) == (other.value, type(other.error), str(other.error)), call
    assert rows(engines[0]) == rows(engines[1]), call


def rows(engine: Any) -> list[tuple[str, str]]:
    """Every raw row of every table, as text, read outside the store."""
    looks = [f"SELECT '{table}', t::text FROM {engine.table(table)} t" for table in TABLES]
    return sorted(engine.execute(" UNION ALL ".join(looks)))


class Bug(NamedTuple):
    """A function with another text than was written."""

    name: str
    function: str
    written: str
    planted: str

    def text(self) -> str:
        correct = function_text(self.function)
        assert correct.count(self.written) == 1, self
        return correct.replace(self.written, self.planted)


BUGS = (
    Bug("nodes are not counted", "commit_v1", "node_count = s.node_count + node_total", "node_count = s.node_count"),
    Bug("usage is not kept", "commit_v1", "IF p_sources IS NOT NULL THEN", "IF false THEN"),
    Bug("a stale turn is committed", "commit_v1", "IF head.revision <> p_expected THEN", "IF false THEN"),
    Bug("the given leaf is not taken", "commit_v1", "WHEN p_leaf_given THEN p_leaf_id WHEN", "WHEN"),
    Bug("a receipt's digest is of another one", "commit_v1", "frame_int(revision_after)", "frame_int(head.revision)"),
    Bug("a settled key is the batch's id", "commit_v1", "COALESCE(b.source_key, b.batch_id) AS key", "b.batch_id AS key"),
    Bug("a settled key is not kept", "settle_v1", "settled := counted;", "settled := counted; DELETE FROM {settled_keys};"),
    Bug("the inbox is not ready again", "settle_v1", "SET ready_ms = i.ready_ms, ", "SET "),
    Bug("a place in the inbox stays empty", "enqueue_v1", "head.next_enqueue_seq + 1", "head.next_enqueue_seq + 2"),
    Bug("a key stands for any content", "enqueue_v1", " AND waiting.intent = p_intent", ""),
    Bug("the fence is not raised", "claim_v1", "SET fence = fence_after, ready_ms", "SET ready_ms"),
    Bug("an attempt is not counted", "claim_v1", "attempts = b.attempts + 1", "attempts = b.attempts"),
    Bug(
        "the log does not advance",
        "append_v1",
        "{processes} p SET last_sequence = process.last_sequence +",
        "{processes} p SET last_sequence =",
    ),
    Bug("an event's digest is of another one", "append_v1", "frame_int(process.last_sequence + i)", "frame_int(i)"),
)


def test_a_function_that_does_something_else_is_caught(pg_url: str, schemas: tuple[str, str]) -> None:
    """Negative control."""
    engines = both_ways(schemas, lambda schema: model_engines.PostgresEngine(pg_url, schema, {}))
    try:
        for engine in engines:
            engine.set_clock(1_000)
        for bug in BUGS:
            define(engines[0], bug.text())
            assert difference(engines) is not None, f"nobody sees that {bug.name}"
            define(engines[0], function_text(bug.function))
        assert difference(engines) is None
    finally:
        close(engines)


def define(engine: Any, function: str) -> None:
    engine.execute(engine.stores[model_engines.ASYNC]._runtime.dialect.compile(function).text)


def difference(engines: Sequence[Any]) -> AssertionError | None:
    """What the script finds, beginning with nothing."""
    for engine in engines:
        for table in TABLES:
            engine.execute(f"DELETE FROM {engine.table(table)}")
    try:
        for call, _ in SCRIPT:
            compare(engines, call)
    except AssertionError as error:
        return error
    return None


def test_a_base_that_was_replaced_is_told_in_one_round_trip(pg_url: str, schemas: tuple[str, str], taken: Taken) -> None:
    engines = both_ways(schemas, lambda schema: model_engines.PostgresEngine(pg_url, schema, {}))
    try:
        for engine in engines:
            engine.set_clock(1_000)
        for revision, door in enumerate((model_engines.ASYNC, model_engines.SYNC, model_engines.ASYNC)):
            call = turn(f"t{revision}", revision, "x", checkpoint={"a": b"x" * 500 + b"%d" % revision})
            one, other = (engine.call(door, call) for engine in engines)
            assert one.error is None
            assert one.value == other.value
        of_sessions.compare_rows(engines)
    finally:
        close(engines)
    assert taken.answers == {"commit_v1 declined": 1, "commit_v1 done": 2, "commit_v1 full": 1}


def test_a_key_that_is_remembered_and_waits_again_is_a_settled_one(pg_url: str, schemas: tuple[str, str], taken: Taken) -> None:
    """A store that remembers for longer than the one that took the key again still says that it was done."""
    options = {"settled_key_retention_ms": 1_000}
    engines = both_ways(schemas, lambda schema: model_engines.PostgresEngine(pg_url, schema, options))
    calls = (
        (1_000, turn("t", None, "x")),
        (1_000, work(batch_id="qwb:1", source_key="k")),
        (1_000, Call("queue.claim", ("s", "w"), {"lease_ms": 1000, "token": "T"})),
        (1_000, Call("queue.settle", (held("qwb:1", 1),))),
        (3_000, work(batch_id="qwb:2", source_key="k")),
        (1_500, work(batch_id="qwb:3", source_key="k")),
    )
    try:
        for now_ms, call in calls:
            for engine in engines:
                engine.set_clock(now_ms)
            one, other = (engine.call(model_engines.ASYNC, call) for engine in engines)
            assert (one.value, one.error) == (other.value, None), call
        of_sessions.compare_rows(engines)
    finally:
        close(engines)
    assert taken.answers == {
        "commit_v1 declined": 1,
        "enqueue_v1 fresh": 2,
        "claim_v1 claimed": 1,
        "settle_v1 done": 1,
        "enqueue_v1 declined": 1,
    }


def test_bulk_goes_the_long_way(pg_url: str, pg_schema: str, taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lash_store.ops.shortcuts.NODES_MAX", 2)
    monkeypatch.setattr("lash_store.ops.shortcuts.COMPONENTS_MAX", 2)

    async def scene(store: AsyncStore, side: Any) -> None:
        for revision, count in enumerate((2, 3, 2), start=1):
            nodes = [NodeDraft(kind="user", body=i) for i in range(count)]
            await store.sessions.commit("s", Commit(expected_revision=revision, graph=Append(nodes)))
        for revision, count in enumerate((2, 3, 2), start=4):
            checkpoint = {f"{revision}-{i}": b"1" for i in range(count)}
            await store.sessions.commit("s", Commit(expected_revision=revision, graph=Append([]), checkpoint=checkpoint))

    asyncio.run(beside(scene, pg_url, pg_schema))
    assert taken.answers == {"commit_v1 declined": 1, "commit_v1 done": 4}


def test_a_checkpoint_of_very_many_components_is_one_call_too(pg_url: str, pg_schema: str, taken: Taken) -> None:
    async def scene(store: AsyncStore, side: Any) -> None:
        many = {f"{i:03}": b"1" for i in range(500)}
        for revision, checkpoint in enumerate((many, {"more": b"1"}, {"more": b"2"}), start=1):
            await store.sessions.commit("s", Commit(expected_revision=revision, graph=Append([]), checkpoint=checkpoint))
        assert len((await store.sessions.load("s")).checkpoint) == 501

    asyncio.run(beside(scene, pg_url, pg_schema))
    assert taken.answers == {"commit_v1 declined": 1, "commit_v1 done": 2}


@pytest.mark.parametrize("suffix", ["$$", " \"q\" 'a' {x} %s :y ; --"])
def test_a_schema_may_have_any_name(pg_url: str, pg_schema: str, taken: Taken, suffix: str) -> None:
    async def scene(store: AsyncStore, side: Any) -> None:
        assert (await store.sessions.commit("s", blind("t2"))).revision == 2

    named = pg_schema + suffix
    try:
        asyncio.run(beside(scene, pg_url, named))
    finally:
        asyncio.run(drop_schema(pg_url, named.replace('"', '""')))
    assert taken.answers["commit_v1 done"] == 1


def test_digests_do_not_depend_on_how_the_server_reads_backslashes(pg_url: str, pg_schema: str, taken: Taken) -> None:
    async def scene(store: AsyncStore, side: Any) -> None:
        await store.sessions.commit("s", blind("t2"))
        assert [record.turn_id for record in (await store.sessions.commits("s")).commits] == ["t1", "t2"]

    separator = "&" if "?" in pg_url else "?"
    asyncio.run(beside(scene, f"{pg_url}{separator}standard_conforming_strings=off", pg_schema))
    assert taken.answers["commit_v1 done"] == 1


def test_a_young_database_reads_no_history(pg_cluster: Cluster) -> None:
    """Plans that were made when the tables were empty, and no statistics since, look up what they need and nothing else.

    On a server of its own: a transaction of another test would keep dead rows, and those are counted when they are passed.
    """
    calls = asyncio.run(beside(grow, pg_cluster.url, "young", pool_size=1))
    assert asyncio.run(index_rows(pg_cluster.url, "young", commits=TIMES + 1)) < calls * ROWS_PER_CALL


TIMES = 200
ROWS_PER_CALL = 15  # what a call needs; a look along the history would read a hundred on average


async def grow(store: AsyncStore, side: Any) -> int:
    """One session, inbox and log that grow call by call, over one connection: how many calls there were."""
    await store.processes.register(Registration(process_id="p", input=ProcessInput("job"), event_types=[EventType(name="e")]))
    for i in range(TIMES):
        await store.sessions.commit(
            "s", Commit(expected_revision=i + 1, graph=Append([NodeDraft(body=i)]), checkpoint={"a": b"%d" % i})
        )
        await store.queue.enqueue("s", [i], source_key=f"k{i}")
        await store.processes.append("p", "e", i, replay_key=f"k{i}")
    for i in range(TIMES):  # retries
        await store.queue.enqueue("s", [i], source_key=f"k{i}")
        await store.processes.append("p", "e", i, replay_key=f"k{i}")
    for _ in range(TIMES // 2):
        claim = await store.queue.claim_next("w", lease_ms=60_000)
        assert claim is not None
        await store.queue.settle(claim)
    return TIMES * 6


async def index_rows(url: str, schema: str, *, commits: int) -> int:
    """The rows that were found along indexes, once the server has heard of all."""
    side = await asyncpg.connect(url)
    try:
        seen = f"SELECT n_tup_ins FROM pg_stat_user_tables WHERE schemaname = '{schema}' AND relname = 'commits'"
        while await side.fetchval(seen) != commits:
            pass
        return await side.fetchval("SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE schemaname = $1", schema)
    finally:
        await side.close()


def test_a_damaged_batch_is_not_handed_out(pg_url: str, schemas: tuple[str, str], taken: Taken) -> None:
    engine = both_ways(schemas, lambda schema: model_engines.PostgresEngine(pg_url, schema, {}))
    try:
        for each in engine:
            each.call(model_engines.ASYNC, turn("t", None, "x"))
            each.call(model_engines.ASYNC, work(batch_id="qwb:1"))
            each.execute(f"UPDATE {each.table('batches')} SET payloads = '[2]'")
            refused = each.call(model_engines.ASYNC, Call("queue.claim", ("s", "w"), {"lease_ms": 1000}))
            assert isinstance(refused.error, Corrupt)
            assert each.execute(f"SELECT attempts FROM {each.table('batches')}") == [(0,)]
    finally:
        close(engine)
    assert taken.answers["claim_v1 declined"] == 1


def test_a_lost_answer_leaves_the_outcome_open(pg_url: str, pg_schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that is a transaction of its own may have committed when its connection breaks."""

    async def scene(store: AsyncStore, side: Any) -> None:
        monkeypatch.setattr("lash_store.db.pool.LATELY_MS", FOREVER_MS)
        async with side.transaction():
            await side.execute(f'SELECT 1 FROM "{pg_schema}".sessions FOR UPDATE')
            committing = asyncio.create_task(store.sessions.commit("s", blind("t2")))
            while not await side.fetchval(KILL_WAITING):
                assert not committing.done(), "the turn did not wait for the lock"
        with pytest.raises(Disconnected) as lost:
            await committing
        assert lost.value.key == "t2"
        assert (await store.sessions.commit("s", blind("t2"))).revision == 2

    asyncio.run(beside(scene, pg_url, pg_schema))


def test_a_lock_that_is_not_had_in_time_is_busy(pg_url: str, pg_schema: str) -> None:
    async def scene(store: AsyncStore, side: Any) -> None:
        async with side.transaction():
            await side.execute(f'SELECT 1 FROM "{pg_schema}".sessions FOR UPDATE')
            with pytest.raises(Busy):
                await store.sessions.commit("s", blind("t2"))
        assert (await store.sessions.commit("s", blind("t2"))).revision == 2

    asyncio.run(beside(scene, pg_url, pg_schema, lock_ms=50))


def test_a_connection_that_rested_is_tried_before_something_is_at_stake(
    pg_url: str, pg_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have died unnoticed; the turn is then committed on another one, without a doubt."""

    async def scene(store: AsyncStore, side: Any) -> None:
        monkeypatch.setattr("lash_store.db.pool.LATELY_MS", 0)
        while not await side.fetchval(KILL_RESTING, pg_schema):  # it may be sending a notification just now
            pass
        assert (await store.sessions.commit("s", blind("t2"))).revision == 2

    asyncio.run(beside(scene, pg_url, pg_schema, pool_size=1))


def blind(turn_id: str) -> Commit:
    """A turn of one node that expects no revision."""
    return Commit(expected_revision=None, graph=Append([NodeDraft(kind="user", body=1)]), turn_id=turn_id)


async def beside(scene: Callable[[AsyncStore, Any], Awaitable[T]], url: str, schema: str, **options: Any) -> T:
    """A store with a session, and a connection beside it."""
    side = await asyncpg.connect(url)
    try:
        named = f"{url}{'&' if '?' in url else '?'}application_name={schema}"
        async with AsyncStore.open(named, schema=schema, **options) as store:
            await store.sessions.commit("s", blind("t1"))
            return await scene(store, side)
    finally:
        await side.close()


def test_every_function_is_named_by_its_version() -> None:
    """An older library calls the function it was written with, also after a newer one has brought the schema up."""
    names = [text.partition("{schema}.")[2].partition("(")[0] for text in functions()]
    assert {"commit_v1", "append_v1", "enqueue_v1", "claim_v1", "settle_v1"} <= set(names)
