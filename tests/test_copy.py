"""Copying between stores: everything arrives as it was, but for leases; broken off anywhere, the same call goes on."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from lash_store import (
    Append,
    AsyncStore,
    ClaimLost,
    Commit,
    CopyOutcome,
    CopyPhase,
    CopyProgress,
    Corrupt,
    Diverged,
    LeaseLost,
    NodeDraft,
    ProcessInput,
    Scope,
    Store,
    SubscriptionDraft,
    Success,
)
from lash_store.db.dialect import TABLES
from lash_store.db.shape import shipped_shape
from lash_store.model.limits import MIB
from lash_store.ops import transfer
from lash_store.ops.statement import Op, execute_many, ring
from lash_store.ops.transfer import Kind
from lash_store.ops.transfer_session_tables import SESSION
from lash_store.ops.transfer_table import Table, Values
from lash_store.ops.transfer_tables import ELSEWHERE, PROCESS, SHARED
from lash_store.store.bundle import Bundle
from tests.conftest import drop_schema, note_postgres
from tests.support.copies import HOUR_MS, Place, Rows, expected, fill, sqlite_place
from tests.support.effort import effort

PROJECT = Path(__file__).resolve().parents[1]
BY_BYTES = "chunks"  # written by the byte stores, whichever kind each store has


@pytest.fixture
def new_place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str], Place]]:
    """Makes places nobody has used."""
    made: list[Place] = []

    def make(engine: str) -> Place:
        if engine == "sqlite":
            return sqlite_place(tmp_path / f"{secrets.token_hex(4)}.db")
        note_postgres(request.node)
        made.append(Place("postgresql", request.getfixturevalue("pg_url"), f"t_{secrets.token_hex(8)}"))
        return made[-1]

    yield make
    for place in made:
        asyncio.run(drop_schema(place.url, place.schema))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file that has something in every table; copy it, do not change it."""
    folder = tmp_path_factory.mktemp("filled")
    with sqlite_place(folder / "filled.db").open() as store:
        fill(store)
    return folder


@pytest.fixture
def full(filled: Path, tmp_path: Path) -> Place:
    """The same, to be changed."""
    shutil.copytree(filled, tmp_path / "full")
    return sqlite_place(tmp_path / "full" / "filled.db")


def without_chunks(rows: Rows) -> Rows:
    return {name: each for name, each in rows.items() if name != BY_BYTES}


def assert_copied(source: Rows, target: Rows) -> None:
    """The target's rows are the source's, but for leases; bytes that nobody holds stay behind."""
    held = {row["attachment_id"] for row in target["attachments"]}
    found = {**target, "digests": [row for row in target["digests"] if row["attachment_id"] in held]}
    for name, rows in without_chunks(expected(source)).items():
        assert found[name] == rows, name


# --- every table ----------------------------------------------------------------------------------------------------------


def test_every_table_travels() -> None:
    travelling = [table.name for table in (*SESSION, *PROCESS, *SHARED)]
    assert sorted([*travelling, *ELSEWHERE]) == sorted(TABLES)


@pytest.mark.parametrize("table", [*SESSION, *PROCESS, *SHARED], ids=lambda table: table.name)
def test_every_column_travels(table: Table) -> None:
    shape = shipped_shape()
    kinds = {"key": "text", "text": "text", "bigint": "int", "bytea": "bytes"}
    columns = {name: column for (owner, name), column in shape.columns.items() if owner == table.name}
    assert table.types == {name: kinds[column.type] for name, column in columns.items()}
    assert set(table.nulls.split()) == {name for name, column in columns.items() if not column.required}
    assert tuple(table.page.split(" FROM ")[0].removeprefix("SELECT ").split(", ")) == table.columns
    owner = {"digests": ()}.get(table.name, ("session_id",) if table in SESSION else ("process_id",) if table in PROCESS else ())
    assert set(table.key) | set(owner) == set(shape.primary_keys[table.name])


def test_the_store_that_is_copied_has_something_in_every_table(full: Place) -> None:
    with Store.open(full.url, blobs="database") as store:
        store.attachments.put("bare", b"in the database", media_type="text/plain")
    assert [name for name, rows in full.rows().items() if not rows] == []


# --- copies ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target_engine", ["sqlite", "postgresql"])
@pytest.mark.parametrize("source_engine", ["sqlite", "postgresql"])
def test_a_copy_has_every_row_as_it_was(new_place: Callable[[str], Place], source_engine: str, target_engine: str) -> None:
    source, target = new_place(source_engine), new_place(target_engine)
    told: list[CopyProgress] = []
    with source.open() as store, target.open() as other:
        fill(store)
        before = source.rows()
        report = store.transfer.copy_to(other, progress=told.append)
        assert source.rows() == before
        assert_copied(before, target.rows())
        assert (report.equal, report.forwarded, report.unchanged, report.only_in_target) == (True, 0, 0, 0)
        assert (report.attachments, report.attachment_bytes) == (2, 1_400_000)
        again = store.transfer.copy_to(other)
        assert (again.copied, again.forwarded, again.unchanged, again.rows, again.equal) == (0, 0, report.copied, 0, True)
        assert other.attachments.get("chat", other.attachments.list("chat").entries[0].ref.attachment_id) is not None
        assert other.maintenance.check_schema() == ()
    assert [each.phase for each in told] == sorted(each.phase for each in told)
    assert [(each.done, each.total) for each in told if each.phase is CopyPhase.VERIFY][-1] == (report.copied, report.copied)


def test_the_async_store_copies_too(full: Place, tmp_path: Path) -> None:
    target = sqlite_place(tmp_path / "target.db")

    async def copy() -> None:
        async with AsyncStore.open(full.url) as store, AsyncStore.open(target.url) as other:
            assert (await store.transfer.copy_to(other)).equal

    asyncio.run(copy())
    assert_copied(full.rows(), target.rows())


@pytest.mark.parametrize("page_rows", [1, 2, 3])
def test_pages_of_any_size_bring_the_same(full: Place, tmp_path: Path, page_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PAGE_ROWS", page_rows)
    monkeypatch.setattr(transfer, "PAGE_BYTES", 1)
    target = sqlite_place(tmp_path / "target.db")
    with full.open() as store, target.open() as other:
        assert store.transfer.copy_to(other).equal
    assert_copied(full.rows(), target.rows())


def test_a_page_ends_before_it_is_too_large_and_has_at_least_one_row() -> None:
    half = transfer.PAGE_BYTES // 2
    assert [transfer.fitting(sizes) for sizes in ([], [half], [half, half, 1], [9 * half], [1, 9 * half])] == [0, 1, 2, 1, 1]


def test_a_large_session_does_not_have_to_fit_into_memory(tmp_path: Path) -> None:
    source, target = sqlite_place(tmp_path / "a.db"), sqlite_place(tmp_path / "b.db")
    with source.open() as store, target.open() as other:
        store.sessions.create("large")
        for turn in range(12):
            nodes = [NodeDraft(body=f"{turn}-{n}" * 150_000) for n in range(4)]
            store.sessions.commit("large", Commit(expected_revision=turn, graph=Append(nodes)))
        size = sum(len(row["body"]) for row in source.rows()["nodes"])
        tracemalloc.start()
        try:
            assert store.transfer.copy_to(other).equal
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < size * 3 // 4, f"{peak // MIB} MiB for a session of {size // MIB} MiB"


# --- leases ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target_engine", ["sqlite", "postgresql"])
def test_what_was_held_is_ready_again_and_its_old_holder_is_refused(
    new_place: Callable[[str], Place], target_engine: str
) -> None:
    source, target = new_place("sqlite"), new_place(target_engine)
    with source.open() as store, target.open() as other:
        store.sessions.create("s")
        store.queue.enqueue("s", ["work"])
        claim = store.queue.claim("s", "worker", lease_ms=HOUR_MS)
        assert claim is not None
        store.session("s").processes.start(_registration("p"))
        lease = store.processes.claim("p", "worker", incarnation="1", lease_ms=HOUR_MS)
        store.transfer.copy_to(other)
        with pytest.raises(ClaimLost):
            other.queue.settle(claim)
        with pytest.raises(LeaseLost):
            other.processes.complete("p", Success(1), lease=lease)
        again = other.queue.claim("s", "new", lease_ms=HOUR_MS)
        assert again is not None
        assert again.fence > claim.fence
        [leased] = other.processes.claim_next("new", incarnation="1", lease_ms=HOUR_MS)
        assert leased.lease.fence > lease.fence


def _registration(process_id: str) -> Any:
    from lash_store import Registration

    return Registration(process_id=process_id, input=ProcessInput("job", None))


# --- going on -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target_engine", ["sqlite", "postgresql"])
def test_an_earlier_state_is_brought_forward(full: Place, new_place: Callable[[str], Place], target_engine: str) -> None:
    target = new_place(target_engine)
    with full.open() as store, target.open() as other:
        store.transfer.copy_to(other)
        _go_on(store)
        report = store.transfer.copy_to(other)
        assert report.equal
        assert report.forwarded > 5
        assert_copied(full.rows(), target.rows())
        assert report.only_in_target == 0


def _go_on(store: Store) -> None:
    """Change everything that can change."""
    revision = store.sessions.get("chat").revision
    more = Append([NodeDraft(body="more", parent_id="n3")])
    store.sessions.commit("chat", Commit(expected_revision=revision, graph=more, checkpoint={"memory": b"other", "new": b"1"}))
    store.sessions.vacuum("chat")
    store.maintenance.collect()
    store.sessions.update_meta("bare", name="renamed")
    store.queue.enqueue("bare", ["new"])
    parked = next(batch for batch in store.queue.list("chat").batches if batch.parked_reason)
    store.queue.discard("chat", parked.batch_id)
    store.attachments.forget("chat", store.attachments.list("chat").entries[0].ref.attachment_id)
    store.sessions.delete("fork")
    store.sessions.delete("again")
    store.sessions.create("again", name="third life")
    store.sessions.create("late")
    store.processes.append("running", "found", {"text": "more"})
    store.processes.revoke(Scope("chat"), "waiting")
    store.processes.prune(older_than_ms=0)
    store.triggers.redrive()
    store.artifacts.put("raw", b"other", ref="raw/1")
    for each in store.triggers.list().subscriptions:
        store.triggers.cancel("chat", each.handle)


def test_a_session_that_was_deleted_and_made_again_takes_its_subscriptions_along(tmp_path: Path) -> None:
    source, target = sqlite_place(tmp_path / "a.db"), sqlite_place(tmp_path / "b.db")
    draft = SubscriptionDraft(
        registrant=Scope("s"), registration_key="k", source_type="t", source_key="s", target=ProcessInput("j", {})
    )
    with source.open() as store, target.open() as other:
        store.sessions.create("s")
        store.triggers.subscribe(draft)
        store.transfer.copy_to(other)
        store.sessions.delete("s")
        store.sessions.create("s")
        store.triggers.subscribe(draft)
        assert store.transfer.copy_to(other).only_in_target == 0
    assert_copied(source.rows(), target.rows())


@pytest.mark.faults
@pytest.mark.timeout(effort(test=300, faults=0))
def test_a_random_history_can_be_copied_at_any_moment(tmp_path: Path) -> None:
    for seed in range(effort(test=4, faults=200)):
        source, target = sqlite_place(tmp_path / f"{seed}a.db"), sqlite_place(tmp_path / f"{seed}b.db")
        dice = random.Random(seed)
        with source.open() as store, target.open() as other:
            for _ in range(6):
                for _ in range(dice.randrange(12)):
                    _something(store, dice)
                assert store.transfer.copy_to(other).equal, f"seed {seed}"
                assert_copied(source.rows(), target.rows())


def _something(store: Store, dice: random.Random) -> None:
    """One step of a history, which may be refused."""
    from lash_store import StoreError

    session, process = dice.choice("abc"), dice.choice("pqr")
    steps: list[Callable[[], object]] = [
        lambda: store.sessions.create(session, config=dice.choice([None, {"n": dice.random()}])),
        lambda: store.sessions.delete(session),
        lambda: store.sessions.commit(session, _turn(store, session, dice)),
        lambda: store.sessions.commit(session, _turn(store, session, dice)),
        lambda: store.sessions.tombstone(session, [dice.choice(store.sessions.load(session).nodes).node_id]),
        lambda: store.sessions.vacuum(session),
        lambda: store.sessions.fork(session, dice.choice("abc")),
        lambda: store.maintenance.collect(keep_checkpoints=dice.randrange(1, 3)),
        lambda: store.queue.enqueue(session, [dice.random()], source_key=dice.choice([None, "k"])),
        lambda: store.queue.settle(_claimed(store, session)),
        lambda: store.queue.abandon(_claimed(store, session)),
        lambda: store.queue.park(session, dice.choice(store.queue.list(session).batches).batch_id, reason="why"),
        lambda: store.queue.cancel(session, dice.choice(store.queue.list(session).batches).batch_id),
        lambda: store.attachments.put(session, dice.randbytes(dice.randrange(3)), media_type="text/plain"),
        lambda: store.session(session).processes.start(_registration(process)),
        lambda: store.processes.claim(process, "w", incarnation=str(dice.random()), lease_ms=1),
        lambda: store.processes.signal(process, "s", dice.random()),
        lambda: store.processes.cancel(process, reason=str(dice.random())),
        lambda: store.processes.complete(process, Success(dice.random())),
        lambda: store.processes.prune(older_than_ms=0),
        lambda: store.artifacts.put("raw", dice.randbytes(5), ref="r"),
    ]
    try:
        dice.choice(steps)()
    except (StoreError, IndexError):
        return


def _claimed(store: Store, session: str) -> Any:
    claim = store.queue.claim(session, "w", lease_ms=1)
    if claim is None:
        raise IndexError
    return claim


def _turn(store: Store, session: str, dice: random.Random) -> Commit:
    return Commit(
        expected_revision=store.sessions.get(session).revision,
        graph=Append([NodeDraft(body=dice.random())]),
        checkpoint={dice.choice("xy"): dice.choice([None, dice.randbytes(50)])},
    )


# --- divergence -----------------------------------------------------------------------------------------------------------

WORKED_ON: dict[str, Callable[[Store], object]] = {
    "commit": lambda store: store.sessions.commit("bare", Commit(expected_revision=0)),
    "message": lambda store: store.queue.enqueue("bare", ["own"]),
    "claim": lambda store: store.queue.claim("chat", "w", lease_ms=HOUR_MS),
    "cancelled": lambda store: store.queue.cancel("chat", store.queue.list("chat").batches[0].batch_id),
    "name": lambda store: store.sessions.update_meta("bare", name="own"),
    "deletion": lambda store: store.sessions.delete("bare"),
    "next life": lambda store: (store.sessions.delete("bare"), store.sessions.create("bare")),
    "event": lambda store: store.processes.append("running", "found", {"text": "own"}),
    "end": lambda store: store.processes.complete("waiting", Success(2)),
    "lease": lambda store: store.processes.break_lease("waiting"),
    "prune": lambda store: store.processes.prune(older_than_ms=0),
    "occurrence": lambda store: store.triggers.redrive(),
    "subscription": lambda store: store.triggers.subscribe(_own_subscription()),
    "cancel": lambda store: store.triggers.cancel_host("trigger:2"),
    "artifact": lambda store: store.artifacts.put("raw", b"own", ref="raw/1"),
}


def _own_subscription() -> SubscriptionDraft:
    return SubscriptionDraft(source_type="own", source_key="own", target=ProcessInput("own", {}))


@pytest.mark.parametrize("change", WORKED_ON)
def test_a_target_that_was_worked_on_is_refused(full: Place, tmp_path: Path, change: str) -> None:
    target = sqlite_place(tmp_path / "target.db")
    with full.open() as store, target.open() as other:
        store.transfer.copy_to(other)
        WORKED_ON[change](other)
        before = target.rows()
        with pytest.raises(Diverged) as caught:
            store.transfer.copy_to(other)
        assert caught.value.why
        assert target.rows() == before


def test_the_same_revision_with_another_commit_is_refused(tmp_path: Path) -> None:
    source, target = sqlite_place(tmp_path / "a.db"), sqlite_place(tmp_path / "b.db")
    with source.open() as store, target.open() as other:
        store.sessions.create("s")
        store.transfer.copy_to(other)
        other.sessions.commit("s", Commit(expected_revision=0, graph=Append([NodeDraft(body="theirs")])))
        for revision in range(2):
            store.sessions.commit("s", Commit(expected_revision=revision, graph=Append([NodeDraft(body="ours")])))
        with pytest.raises(Diverged, match="its revision 1 is another commit"):
            store.transfer.copy_to(other)


def test_a_message_that_both_got_is_refused(tmp_path: Path) -> None:
    source, target = sqlite_place(tmp_path / "a.db"), sqlite_place(tmp_path / "b.db")
    with source.open() as store, target.open() as other:
        store.sessions.create("s")
        store.transfer.copy_to(other)
        other.queue.enqueue("s", ["theirs"])
        store.queue.enqueue("s", ["ours"])
        store.queue.enqueue("s", ["ours, too"])
        with pytest.raises(Diverged, match="its message 1 is another one"):
            store.transfer.copy_to(other)


def test_back_and_forth(tmp_path: Path, full: Place) -> None:
    target = sqlite_place(tmp_path / "target.db")
    with full.open() as store, target.open() as other:
        store.transfer.copy_to(other)
        _go_on(other)
        with pytest.raises(Diverged):
            store.transfer.copy_to(other)
        assert other.transfer.copy_to(store).equal
    assert_copied(target.rows(), full.rows())


# --- damage ---------------------------------------------------------------------------------------------------------------

DAMAGE = {
    "sessions": "UPDATE lash_sessions SET name = 'x' WHERE session_id = 'chat'",
    "nodes": "UPDATE lash_nodes SET body = '7' WHERE node_id = 'n1' AND session_id = 'chat'",
    "a node is missing": "DELETE FROM lash_nodes WHERE node_id = 'aside'",
    "commits": "UPDATE lash_commits SET result = '{}' WHERE revision = 1 AND session_id = 'chat'",
    "a commit is missing": "DELETE FROM lash_commits WHERE revision = 2 AND session_id = 'chat'",
    "the last commit is missing": "DELETE FROM lash_commits WHERE revision = 5 AND session_id = 'chat'",
    "configs": "UPDATE lash_configs SET body = '7' WHERE session_id = 'chat'",
    "frames": "UPDATE lash_frames SET state = x'00' WHERE frame_id = 'f'",
    "versions": "UPDATE lash_versions SET frame = zeroblob(9) WHERE component = 'memory' AND revision = 1",
    "a version is missing": "DELETE FROM lash_versions WHERE component = 'memory' AND revision = 1",
    "a component is missing": "DELETE FROM lash_components WHERE component = 'memory'",
    "batches": "UPDATE lash_batches SET payloads = '[7]' WHERE source_key = 'held'",
    "processes": "UPDATE lash_processes SET output = '7' WHERE process_id = 'ended'",
    "registrations": "UPDATE lash_registrations SET body = '7' WHERE process_id = 'ended'",
    "a registration is missing": "DELETE FROM lash_registrations WHERE process_id = 'ended'",
    "events": "UPDATE lash_events SET payload = '7' WHERE process_id = 'running'",
    "an event is missing": "DELETE FROM lash_events WHERE process_id = 'running'",
    "deliveries": "UPDATE lash_deliveries SET snapshot = '7'",
    "occurrences": "UPDATE lash_occurrences SET body = '7'",
    "subscriptions": "UPDATE lash_subscriptions SET body = '7'",
    "artifacts": "UPDATE lash_artifacts SET data = x'00' WHERE namespace = 'module'",
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_not_copied(full: Place, tmp_path: Path, what: str) -> None:
    _raw(full, DAMAGE[what])
    target = sqlite_place(tmp_path / "target.db")
    with full.open() as store, target.open() as other, pytest.raises(Corrupt) as caught:
        store.transfer.copy_to(other)
    table = caught.value.table
    assert table in DAMAGE[what] or what == "a component is missing"
    damaged = {"chat", "ended" if "ended" in DAMAGE[what] else "running"}
    heads = target.rows()["sessions"] if table in {each.name for each in SESSION} else target.rows()["processes"]
    if table not in {each.name for each in SHARED}:
        assert damaged.isdisjoint(row.get("process_id", row.get("session_id")) for row in heads)
    else:
        assert target.rows()[table] == []


def test_missing_bytes_are_damage(full: Place, tmp_path: Path) -> None:
    shutil.rmtree(f"{full.url}.attachments")
    target = sqlite_place(tmp_path / "target.db")
    with full.open() as store, target.open() as other, pytest.raises(Corrupt, match="its bytes are missing"):
        store.transfer.copy_to(other)
    assert "chat" not in {row["session_id"] for row in target.rows()["sessions"]}


def _raw(place: Place, sql: str) -> None:
    connection = apsw.Connection(place.url)
    try:
        connection.execute(sql)
        assert connection.changes() > 0
    finally:
        connection.close()


LATER = {
    "a row is missing": "DELETE FROM lash_usage_entries",
    "a number is another": "UPDATE lash_usage_totals SET input = input + 1",
    "a session is missing": "DELETE FROM lash_sessions WHERE session_id = 'bare'",
    "a grant is missing": "DELETE FROM lash_grants WHERE process_id = 'running'",
    "a schedule is missing": "DELETE FROM lash_schedules",
}


@pytest.mark.parametrize("what", LATER)
def test_the_comparison_finds_what_is_not_the_same(full: Place, tmp_path: Path, what: str) -> None:
    target = sqlite_place(tmp_path / "target.db")

    def tell(now: CopyProgress) -> None:
        # The last row is written: whatever happens from here on, only the comparison can find.
        if now.phase is CopyPhase.VERIFY and now.done == 1:
            _raw(target, LATER[what])

    with full.open() as store, target.open() as other:
        report = store.transfer.copy_to(other, progress=tell)
    assert not report.equal
    assert report.different >= 1
    assert report.differences[0].why in ("it is missing", "it is not the same")


def test_damage_in_the_target_is_found_by_the_comparison(full: Place, tmp_path: Path) -> None:
    target = sqlite_place(tmp_path / "target.db")
    with full.open() as store, target.open() as other:
        store.transfer.copy_to(other, verify=False)
        shutil.rmtree(f"{target.url}.attachments")
        report = store.transfer.copy_to(other)
    assert [(each.kind, each.id) for each in report.differences] == [("session", "chat")]


# --- one snapshot ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_a_session_is_read_as_of_one_moment(
    new_place: Callable[[str], Place], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = new_place(engine), new_place("sqlite")
    add = Bundle.add
    with source.open() as store, target.open() as other, source.open(in_loop=True) as busy:
        store.sessions.create("s")
        store.sessions.commit("s", _counted(1))
        before = source.rows()

        def disturbed(bundle: Bundle, table: Table, rows: list[Any]) -> None:
            if table.name in ("sessions", "nodes"):
                busy.sessions.commit("s", _counted(busy.sessions.get("s").revision + 1))
                busy.queue.enqueue("s", ["meanwhile"])
            add(bundle, table, rows)

        monkeypatch.setattr(Bundle, "add", disturbed)
        report = store.transfer.copy_to(other, verify=False)
        monkeypatch.undo()
        assert report.copied == 1
        assert_copied(before, target.rows())
        assert store.transfer.copy_to(other).equal


def _counted(revision: int) -> Commit:
    return Commit(
        expected_revision=revision - 1,
        graph=Append([NodeDraft(body=revision)]),
        checkpoint={"n": str(revision).encode()},
    )


# --- broken off -----------------------------------------------------------------------------------------------------------

CHILD = """
import os, signal, sys
from lash_store import Store
source, target, schema, at, how = sys.argv[1:]
seen = 0
def hook(event):
    global seen
    seen += 1
    if seen == int(at):
        os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGINT)
options = {"durability": "relaxed"} if "://" not in target else {"pool_size": 2}
with Store.open(source) as store, Store.open(target, schema=schema, on_statement=hook, **options) as other:
    seen = 0
    store.transfer.copy_to(other, verify=False)
print("done", seen)
"""


@pytest.mark.faults
@pytest.mark.timeout(effort(test=300, faults=0))
@pytest.mark.parametrize(("engine", "how"), [("sqlite", "kill"), ("sqlite", "interrupt"), ("postgresql", "kill")])
def test_a_copy_that_was_broken_off_goes_on(full: Place, new_place: Callable[[str], Place], engine: str, how: str) -> None:
    """Ended in mid-statement again and again. Whatever is there is whole; the last run finishes; nothing is there twice."""
    target = new_place(engine)
    target.open().close()
    wanted = expected(full.rows())
    dice = random.Random(f"{engine} {how}")
    for _ in range(effort(test=2, faults=100)):
        ended = _child(full, target, at=dice.randrange(3, 250), how=how)
        if ended.returncode == 0:  # what was left took fewer statements: begin anew
            assert_copied(full.rows(), target.rows())
            target = new_place(engine)
            target.open().close()
            continue
        assert ended.returncode in ((-signal.SIGKILL,) if how == "kill" else (-signal.SIGINT, 1)), ended.stderr
        _assert_whole(wanted, target.rows())
    finished = _child(full, target, at=0, how=how)
    assert finished.stdout.startswith("done"), finished.stderr
    assert_copied(full.rows(), target.rows())


def _child(source: Place, target: Place, *, at: int, how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, source.url, target.url, target.schema, str(at), how],
        cwd=PROJECT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _assert_whole(wanted: Rows, found: Rows) -> None:
    """Every session and process that is there has all its rows, and none without its head."""
    for owner, head, tables in (("session_id", "sessions", SESSION), ("process_id", "processes", PROCESS)):
        there = {row[owner] for row in found[head]}
        for table in tables:
            if owner in table.columns:
                assert found[table.name] == [row for row in wanted[table.name] if row[owner] in there], table.name


# --- planted bugs ---------------------------------------------------------------------------------------------------------


def _as_it_is(_: Table, row: Values) -> Values:
    return row


def _lossy(table: Table, rows: Sequence[Values]) -> Op[None]:
    if table.name != "usage_totals":
        yield from execute_many(table.insert, rows)


def _kept(_: Kind, __: str) -> Op[None]:
    yield from ring("inbox", "nobody")


PLANTED: dict[str, tuple[str, Callable[..., Any]]] = {
    "leases come along": ("settled", _as_it_is),
    "a table is left out": ("insert", _lossy),
    "what was there stays": ("clear", _kept),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_noticed(full: Place, tmp_path: Path, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, *PLANTED[bug])
    target = sqlite_place(tmp_path / "target.db")
    with full.open() as store, target.open() as other, pytest.raises((AssertionError, apsw.ConstraintError)):
        assert store.transfer.copy_to(other).equal
        assert_copied(full.rows(), target.rows())
        _go_on(store)
        store.transfer.copy_to(other)


def test_a_progress_that_raises_ends_the_copy(full: Place, tmp_path: Path) -> None:
    target = sqlite_place(tmp_path / "target.db")

    def tell(now: CopyProgress) -> None:
        assert now.outcome is CopyOutcome.COPIED
        if now.done == 2:
            raise KeyboardInterrupt

    with full.open() as store, target.open() as other:
        with pytest.raises(KeyboardInterrupt):
            store.transfer.copy_to(other, progress=tell)
        assert len(target.rows()["sessions"]) == 2
        assert store.transfer.copy_to(other).unchanged == 2
