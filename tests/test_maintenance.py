"""Looking after a store, on both engines: who holds what, what grows, what is wrong, a backup, and opening only to read."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest
from msgspec.structs import replace

from lash_store import (
    Append,
    AsyncStore,
    ClaimLost,
    Commit,
    Cron,
    HeldLease,
    InvalidArgument,
    LeaseKind,
    LeaseLost,
    Misuse,
    NodeDraft,
    NotFound,
    SchemaMismatch,
    Severity,
    Stats,
    Store,
    schema_sql,
)
from lash_store.db.health import Facts, risks
from lash_store.db.scripts import library_version
from lash_store.model.maintenance import Finding, InboxStats, ProcessStats
from lash_store.store.advice import PATIENCE_MS, advice
from tests.support.cli_place import Place, chat, job, place_of, sqlite_place, subscription
from tests.support.roles import role

HOUR_MS = 3_600_000
READ_TABLES = 'GRANT USAGE ON SCHEMA "{schema}" TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO {role}'


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store of each engine."""
    return place_of(request.param, request, tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> Place:
    """An empty SQLite store."""
    return sqlite_place(tmp_path)


def busy(store: Store) -> None:
    """Two claims in one session, one in another, and a leased process."""
    for session_id in ("a", "b"):
        store.sessions.create(session_id)
        store.queue.enqueue(session_id, [1])
        store.queue.enqueue(session_id, [2])
    store.queue.claim("a", "w1", lease_ms=HOUR_MS)
    store.queue.claim("a", "w2", lease_ms=1)
    store.queue.claim("b", "w1", lease_ms=HOUR_MS, max_batches=2)
    store.processes.register(job("job-1"))
    store.processes.register(job("job-2"))
    store.processes.claim("job-1", "w3", incarnation="i", lease_ms=HOUR_MS)


def all_leases(store: Store, *, limit: int) -> list[HeldLease]:
    found: list[HeldLease] = []
    cursor: str | None = None
    while True:
        page = store.maintenance.leases(limit=limit, cursor=cursor)
        assert len(page.leases) <= limit
        found += page.leases
        cursor = page.cursor
        if cursor is None:
            return found


# --- leases ---------------------------------------------------------------------------------------------------------------


def test_leases_are_listed_once_each_whatever_the_size_of_a_page(place: Place) -> None:
    with place.store() as store:
        busy(store)
        found = all_leases(store, limit=100)
        assert all(all_leases(store, limit=limit) == found for limit in (1, 2, 3, 4))
        assert sorted((lease.kind, lease.session_id, lease.owner) for lease in found[:3]) == [
            ("claim", "a", "w1"),
            ("claim", "a", "w2"),
            ("claim", "b", "w1"),
        ]
        assert [(lease.kind, lease.id, lease.owner, lease.claim) for lease in found[3:]] == [
            (LeaseKind.PROCESS, "job-1", "w3", None)
        ]
        assert len({(lease.session_id, lease.id) for lease in found}) == 4
        assert [len(lease.claim.batch_ids) for lease in found if lease.claim is not None and lease.session_id == "b"] == [2]


def test_a_lease_whose_time_has_passed_is_listed_as_such(place: Place) -> None:
    with place.store() as store:
        store.sessions.create("s")
        store.queue.enqueue("s", [1])
        store.queue.claim("s", "w", lease_ms=HOUR_MS)
        assert [lease.live for lease in store.maintenance.leases().leases] == [True]
        with store.transaction() as tx:
            tx.execute(f"UPDATE {place.table('batches')} SET expires_ms = 1")
        assert [lease.live for lease in store.maintenance.leases().leases] == [False]


def test_what_the_list_says_of_a_claim_gives_it_back_and_its_holder_is_refused(place: Place) -> None:
    with place.store() as store:
        store.sessions.create("s")
        store.queue.enqueue("s", [1])
        held = store.queue.claim("s", "w", lease_ms=HOUR_MS)
        assert held is not None
        (lease,) = store.maintenance.leases().leases
        assert lease.claim is not None
        assert store.queue.abandon(lease.claim) == 1
        assert store.maintenance.leases().leases == ()
        with pytest.raises(ClaimLost):
            store.queue.settle(held)
        assert store.queue.claim("s", "other", lease_ms=HOUR_MS) is not None


def test_a_cursor_of_another_list_is_refused(local: Place) -> None:
    with local.store() as store:
        for cursor in ("", "7", '["claim", 1, "x"]', '["batch", "a", "b"]', "[", '["claim", "a"]'):
            with pytest.raises(InvalidArgument):
                store.maintenance.leases(cursor=cursor)


def test_a_broken_lease_of_a_process_is_gone_from_the_list(place: Place) -> None:
    with place.store() as store:
        store.processes.register(job())
        leased = store.processes.claim("job", "w", incarnation="i", lease_ms=HOUR_MS)
        (lease,) = store.maintenance.leases().leases
        assert (lease.id, lease.fence) == ("job", leased.fence)
        store.processes.break_lease(lease.id)
        assert store.maintenance.leases().leases == ()
        with pytest.raises(LeaseLost):
            store.processes.renew(leased, lease_ms=1)


# --- stats ----------------------------------------------------------------------------------------------------------------


def test_stats_count_what_there_is(place: Place) -> None:
    with place.store() as store:
        busy(store)
        chat(store)
        store.sessions.create("gone")
        store.sessions.delete("gone")
        store.queue.enqueue("chat", [1])
        store.queue.enqueue("chat", [2], delay_ms=HOUR_MS)
        store.queue.park("chat", store.queue.enqueue("chat", [3]).batch_id, reason="odd")
        store.sessions.tombstone("chat", ["n19"])
        expire_claims_of(store, place, "w2")
        found = store.maintenance.stats()
    assert (found.engine, found.sessions_live, found.sessions_purging) == (place.engine, 3, 0)
    assert (found.inbox.batches, found.inbox.ready, found.inbox.delayed, found.inbox.parked) == (7, 1, 1, 1)
    assert (found.inbox.claimed, found.inbox.expired) == (3, 1)
    assert (found.processes.running, found.processes.leased, found.processes.waiting, found.processes.ended) == (2, 1, 0, 0)
    assert found.nodes_tombstoned == 1
    rows = {table.table: table.rows for table in found.tables}
    assert (rows["sessions"], rows["nodes"], rows["batches"], rows["processes"]) == (4, 22, 7, 2)
    assert all(table.size is not None and table.size > 0 for table in found.tables)
    assert found.size >= sum(table.size or 0 for table in found.tables)


def expire_claims_of(store: Store, place: Place, owner: str) -> None:
    with store.transaction() as tx:
        tx.execute(f"UPDATE {place.table('batches')} SET expires_ms = 1 WHERE owner = '{owner}'")


def test_stats_know_how_old_things_are(place: Place) -> None:
    with place.store() as store:
        busy(store)
        store.queue.enqueue("a", [3])
        store.triggers.subscribe(subscription(schedule=Cron("* * * * *")))
        ready = store.maintenance.stats()
        with store.transaction() as tx:
            tx.execute(f"UPDATE {place.table('batches')} SET claimed_ms = 77 WHERE session_id = 'b'")
            tx.execute(f"UPDATE {place.table('processes')} SET created_ms = 78")
            tx.execute(f"UPDATE {place.table('batches')} SET available_ms = 79 WHERE token IS NULL")
            tx.execute(f"UPDATE {place.table('schedules')} SET next_ms = 80")
        found = store.maintenance.stats()
    assert ready.oldest_lease_ms is not None
    assert ready.inbox.oldest_ready_ms is not None
    assert ready.now_ms - ready.inbox.oldest_ready_ms < HOUR_MS
    assert (found.oldest_lease_ms, found.processes.oldest_running_ms, found.inbox.oldest_ready_ms) == (77, 78, 79)
    assert (found.schedules_overdue, found.oldest_due_ms) == (1, 80)


def test_no_count_goes_beyond_its_bound(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lash_store.ops.stats.COUNT_MAX", 2)
    with place.store() as store:
        chat(store)
        for n in range(3):
            store.queue.enqueue("chat", [n])
        found = store.maintenance.stats()
    assert found.counted_to == 2
    assert found.inbox.batches == 2
    assert max(table.rows for table in found.tables) == 2


def test_a_large_file_is_measured_without_reading_all_of_it(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lash_store.db.health.DBSTAT_PAGES_MAX", 1)
    with local.store() as store:
        found = store.maintenance.stats()
    assert {table.size for table in found.tables} == {None}
    assert found.size > 0


# --- examine --------------------------------------------------------------------------------------------------------------


def test_a_sound_store_has_no_problem_and_is_verified(place: Place) -> None:
    with place.store() as store:
        chat(store)
        store.queue.enqueue("chat", [1])
        store.processes.register(job())
        store.artifacts.put("raw", b"data", ref="r")
        found = store.maintenance.examine()
    assert found.healthy, found.findings
    assert (found.engine, found.schema_version) == (place.engine, store_version(place))
    assert found.engine_version[0].isdigit()
    expected = {"sessions": 1, "nodes": 13, "components": 2, "batches": 1, "processes": 1, "events": 0, "artifacts": 1}
    assert found.verified == expected


def store_version(place: Place) -> int:
    with place.store() as store:
        return store.maintenance.schema_version()


DAMAGE = {
    "nodes": "UPDATE {nodes} SET body = '{{}}' WHERE node_id = 'b1'",
    "batches": "UPDATE {batches} SET payloads = '[7]'",
    "registrations": "UPDATE {registrations} SET body = '{{}}'",
    "artifacts": "UPDATE {artifacts} SET digest = {bytes}",
}


def test_damage_in_the_sample_is_a_problem_that_names_the_row(place: Place) -> None:
    names = {name: place.table(name) for name in DAMAGE}
    with place.store() as store:
        chat(store)
        store.sessions.create("mail")
        store.queue.enqueue("mail", [1])
        store.processes.register(job())
        store.artifacts.put("raw", b"data", ref="r")
        with store.transaction() as tx:
            for sql in DAMAGE.values():
                tx.execute(sql.format(**names, bytes="x'00'" if place.engine == "sqlite" else "'\\x00'"))
        found = store.maintenance.examine()
        assert store.maintenance.examine(sample=0).healthy
    assert not found.healthy
    problems = [finding for finding in found.findings if finding.severity is Severity.PROBLEM]
    assert sorted(problem.what.partition(" ")[0] for problem in problems) == sorted(DAMAGE)
    assert all(problem.advice for problem in problems)


def test_a_missing_index_is_a_problem(place: Place) -> None:
    with place.store() as store:
        with store.transaction() as tx:
            prefix = "" if place.engine == "sqlite" else f'"{place.schema}".'
            tx.execute(f"DROP INDEX {prefix}lash_commits_by_turn")
        found = store.maintenance.examine()
    assert [finding.severity for finding in found.findings if "lash_commits_by_turn" in finding.what] == [Severity.PROBLEM]


def test_an_examination_changes_nothing_in_a_file_not_even_a_byte(local: Place) -> None:
    with local.store() as store:
        chat(store)
        busy(store)
    before = content(Path(local.url))
    with Store.open(local.url, read_only=True) as store:
        assert store.maintenance.examine().healthy
        store.maintenance.stats()
        store.maintenance.leases()
    assert content(Path(local.url)) == before


def test_an_examination_leaves_the_log_of_a_crashed_writer_as_it_is(local: Place, tmp_path: Path) -> None:
    crashed = tmp_path / "crashed.db"
    with local.store() as store:
        chat(store)
        for suffix in ("", "-wal"):  # as a crash would leave them: the log is not folded back
            crashed.with_name(f"crashed.db{suffix}").write_bytes(copied(f"{local.url}{suffix}"))
    before = content(crashed), content(tmp_path / "crashed.db-wal")
    assert before[1][1] > 0
    with Store.open(crashed, read_only=True) as store:
        assert store.maintenance.examine().verified["sessions"] == 1
    assert (content(crashed), content(tmp_path / "crashed.db-wal")) == before


def copied(path: str) -> bytes:
    """A file's bytes, read by another process: a close in this one would drop SQLite's locks."""
    return subprocess.run(["cat", path], capture_output=True, check=True).stdout


def content(path: Path) -> tuple[str, int, int]:
    status = path.stat()
    return hashlib.sha256(path.read_bytes()).hexdigest(), status.st_size, status.st_mtime_ns


def test_a_role_that_may_only_read_can_examine(pg_url: str, pg_tcp_url: str, pg_schema: str) -> None:
    place = Place(pg_url, pg_schema, "postgresql")
    with place.store() as store:
        chat(store)
        busy(store)

    async def scenario() -> None:
        async with (
            role(pg_url, pg_tcp_url, schema=pg_schema, grants=READ_TABLES) as url,
            AsyncStore.open(url, schema=pg_schema, read_only=True) as store,
        ):
            found = await store.maintenance.examine()
            assert found.healthy, found.findings
            assert found.verified["sessions"] == 3
            assert (await store.maintenance.stats()).sessions_live == 3
            assert len((await store.maintenance.leases()).leases) == 4

    asyncio.run(scenario())


# --- risks and advice -----------------------------------------------------------------------------------------------------

POSTGRES = {"server_version_num": "150018", "fsync": "on", "synchronous_commit": "on", "server_encoding": "UTF8"}
SQLITE = {"journal_mode": "wal", "pages": "10", "free_pages": "0"}


@pytest.mark.parametrize(
    ("setting", "value", "severity"),
    [
        ("server_version_num", "130009", Severity.PROBLEM),
        ("server_version_num", "140003", Severity.WARNING),
        ("fsync", "off", Severity.PROBLEM),
        ("synchronous_commit", "off", Severity.PROBLEM),
        ("full_page_writes", "off", Severity.WARNING),
        ("server_encoding", "SQL_ASCII", Severity.PROBLEM),
        ("in_recovery", "on", Severity.NOTE),
        ("default_transaction_read_only", "on", Severity.PROBLEM),
        ("data_checksums", "off", Severity.NOTE),
    ],
)
def test_a_risky_setting_of_postgresql_is_found(setting: str, value: str, severity: Severity) -> None:
    assert list(risks("postgresql", Facts(version="x", settings=POSTGRES), None)) == []
    found = list(risks("postgresql", Facts(version="x", settings=POSTGRES | {setting: value}), None))
    assert [finding.severity for finding in found] == [severity]


def sqlite_risks(path: Path | None = None, version: str = "3.54.1", **settings: str) -> list[Finding]:
    return list(risks("sqlite", Facts(version=version, settings=SQLITE | settings), None if path is None else str(path)))


def test_a_risky_sqlite_is_found() -> None:
    assert sqlite_risks() == []
    assert [found.severity for found in sqlite_risks(version="3.50.4")] == [Severity.PROBLEM]
    assert [found.severity for found in sqlite_risks(journal_mode="delete")] == [Severity.WARNING]
    assert [found.severity for found in sqlite_risks(pages="2000", free_pages="1500")] == [Severity.NOTE]


def test_a_file_that_others_may_read_or_that_has_two_names_is_found(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    path.write_bytes(b"")
    path.chmod(0o600)
    assert sqlite_risks(path) == []
    path.chmod(0o640)
    (readable,) = sqlite_risks(path)
    assert "640" in readable.what
    path.chmod(0o600)
    os.link(path, tmp_path / "second.db")
    assert [found.severity for found in sqlite_risks(path)] == [Severity.PROBLEM]


def test_a_log_that_is_not_folded_back_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lash_store.db.health.WAL_LARGE_BYTES", 10)
    path = tmp_path / "agent.db"
    path.touch(0o600)
    (tmp_path / "agent.db-wal").write_bytes(b"x" * 11)
    assert [found.severity for found in sqlite_risks(path)] == [Severity.WARNING]


def numbers(**more: Any) -> Stats:
    inbox = InboxStats(batches=0, ready=0, delayed=0, claimed=0, expired=0, parked=0, oldest_ready_ms=None)
    processes = ProcessStats(running=0, waiting=0, leased=0, expired=0, ended=0, oldest_running_ms=None, oldest_ended_ms=None)
    names: dict[str, Any] = {name: None if name.endswith("_ms") else 0 for name in Stats.__struct_fields__}
    known: dict[str, Any] = {"engine": "sqlite", "now_ms": PATIENCE_MS * 2, "tables": (), "inbox": inbox, "processes": processes}
    return Stats(**{**names, **known, **more})


@pytest.mark.parametrize(
    ("stats", "command"),
    [
        (numbers(sessions_purging=1), "gc"),
        (numbers(oldest_due_ms=1, schedules_overdue=1), "trigger tick"),
        (numbers(oldest_undelivered_ms=1, undelivered=1), "trigger redrive"),
        (numbers(inbox=replace(numbers().inbox, parked=2)), "inbox unpark"),
        (numbers(inbox=replace(numbers().inbox, ready=2, oldest_ready_ms=1)), "lease list"),
        (numbers(processes=replace(numbers().processes, expired=1)), "workers run"),
    ],
)
def test_what_lies_around_is_advised_on(stats: Stats, command: str) -> None:
    assert list(advice(numbers())) == []
    (found,) = advice(stats)
    assert found.severity is Severity.WARNING
    assert command in found.advice


def test_what_is_young_is_left_alone() -> None:
    assert list(advice(numbers(oldest_due_ms=PATIENCE_MS + 1, oldest_undelivered_ms=PATIENCE_MS + 1))) == []


# --- opening only to read -------------------------------------------------------------------------------------------------

WRITES: tuple[Callable[[Store], object], ...] = (
    lambda store: store.sessions.create("s"),
    lambda store: store.queue.enqueue("chat", [1]),
    lambda store: store.queue.claim_next("w", lease_ms=1),
    lambda store: store.attachments.put("chat", b"x", media_type="text/plain"),
    lambda store: store.processes.register(job()),
    lambda store: store.maintenance.collect(),
    lambda store: store.transaction().__enter__(),
)


def test_a_store_open_for_reading_reads_and_refuses_to_write(place: Place) -> None:
    with place.store() as store:
        chat(store)
    with Store.open(place.url, schema=place.schema, read_only=True) as store:
        assert store.sessions.get("chat").revision == 2
        assert len(store.sessions.load("chat").nodes) == 22
        assert store.maintenance.collect(dry_run=True).sessions_scanned == 1
        for write in WRITES:
            with pytest.raises(Misuse, match="read_only") as caught:
                write(store)
            assert caught.value.reason == "read-only"


def test_reading_sees_what_another_store_commits(place: Place) -> None:
    with place.store() as writer, Store.open(place.url, schema=place.schema, read_only=True) as reader:
        writer.sessions.create("s")
        assert reader.sessions.get("s").revision == 0
        draft = NodeDraft(body={"text": "hello"})
        writer.session("s").commit(Commit(expected_revision=0, graph=Append([draft])))
        assert reader.sessions.get("s").revision == 1


def test_opening_to_read_creates_and_migrates_nothing(tmp_path: Path, pg_url: str, pg_schema: str) -> None:
    with pytest.raises(NotFound):
        Store.open(tmp_path / "none.db", read_only=True)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SchemaMismatch) as caught:
        Store.open(pg_url, schema=pg_schema, read_only=True)
    assert caught.value.found == 0
    with pytest.raises(InvalidArgument):
        Store.open(":memory:", read_only=True)


# --- the schema as a script -----------------------------------------------------------------------------------------------


def test_the_script_makes_the_schema_that_opening_makes(tmp_path: Path, pg_url: str, pg_schema: str) -> None:
    path = tmp_path / "made.db"
    connection = apsw.Connection(str(path))
    connection.execute(schema_sql("sqlite"))
    connection.close()
    asyncio.run(run_script(pg_url, schema_sql("postgresql", schema=pg_schema)))
    for place in (Place(str(path), "", "sqlite"), Place(pg_url, pg_schema, "postgresql")):
        with Store.open(place.url, schema=place.schema or "lash_store", migrate=False) as store:
            assert store.maintenance.check_schema() == ()
            chat(store)
            assert store.maintenance.examine().healthy


async def run_script(url: str, script: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(script)
    finally:
        await connection.close()


def test_the_script_since_a_version_brings_an_older_database_up(tmp_path: Path, pg_url: str, pg_schema: str) -> None:
    """The older database is made from the first migration alone."""
    whole, later = (schema_sql("postgresql", schema=pg_schema, since=since) for since in (0, 1))
    asyncio.run(run_script(pg_url, older(whole, later)))
    asyncio.run(run_script(pg_url, later))
    with Store.open(pg_url, schema=pg_schema, migrate=False) as store:
        assert store.maintenance.check_schema() == ()
        assert store.maintenance.schema_version() == library_version()
    connection = apsw.Connection(str(tmp_path / "made.db"))
    connection.execute(older(schema_sql("sqlite"), schema_sql("sqlite", since=1)))
    connection.execute(schema_sql("sqlite", since=1))
    connection.close()
    with Store.open(tmp_path / "made.db", migrate=False) as store:
        assert store.maintenance.check_schema() == ()
    assert schema_sql("sqlite", since=library_version()) == ""


def older(whole: str, later: str) -> str:
    """The script of version 1: what the whole one has and the later one has not, with that version written down."""
    known = set(later.split("\n\n"))
    statements = [part for part in whole.split("\n\n") if part not in known and not part.startswith("INSERT INTO")]
    recorded = next(part for part in whole.split("\n\n") if part.startswith("INSERT INTO"))
    head, _, values = recorded.partition("VALUES")
    return "\n".join([*statements, f"{head} VALUES (1, 1, 1, {values.split(', ', 3)[3]}"])


def test_a_script_for_nothing_known_is_refused() -> None:
    since: Any
    for engine, since in (("mysql", 0), ("sqlite", -1), ("sqlite", "1")):
        with pytest.raises(InvalidArgument):
            schema_sql(engine, since=since)
