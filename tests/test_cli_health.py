"""Health from the command line, on both engines: lease, doctor, migrate, sql, stats, gc, backup."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path

import asyncpg
import pytest

from lash_store import Append, Commit, LeaseLost, Store
from lash_store.db.scripts import library_version
from tests.support.cli import run
from tests.support.cli_place import Place, chat, job, node, place_of, sqlite_place
from tests.support.roles import role

HOUR_MS = 3_600_000
READ_TABLES = 'GRANT USAGE ON SCHEMA "{schema}" TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO {role}'


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty store of each engine."""
    return place_of(request.param, request, tmp_path)


@pytest.fixture
def local(tmp_path: Path) -> Place:
    """An empty SQLite store, for what does not depend on the engine."""
    return sqlite_place(tmp_path)


def claimed(place: Place) -> None:
    with place.store() as store:
        store.sessions.create("s")
        store.queue.enqueue("s", [1])
        store.queue.claim("s", "w", lease_ms=HOUR_MS)


def held(place: Place) -> int:
    with place.store() as store:
        return len(store.maintenance.leases().leases)


# --- leases ---------------------------------------------------------------------------------------------------------------


def test_lease_list_shows_claims_and_processes_page_by_page_and_no_token(place: Place) -> None:
    claimed(place)
    with place.store() as store:
        store.processes.register(job())
        store.processes.claim("job", "w2", incarnation="i", lease_ms=HOUR_MS)
    first = place.json("lease", "list", "--limit", "1")
    second = place.json("lease", "list", "--limit", "1", "--cursor", first["cursor"])
    assert [(item["kind"], item["owner"], item["live"]) for item in first["items"] + second["items"]] == [
        ("claim", "w", True),
        ("process", "w2", True),
    ]
    assert "token" not in json.dumps(first)
    assert "qwt:" not in json.dumps(first)
    assert [row[3] for row in place.ok("lease", "list").rows()] == ["w", "w2"]
    assert place.run("lease", "list", "--cursor", "nonsense").code == 2


def test_lease_break_takes_a_process_from_its_worker(place: Place) -> None:
    with place.store() as store:
        store.processes.register(job())
        lease = store.processes.claim("job", "w", incarnation="i", lease_ms=HOUR_MS)
        assert place.ok("lease", "break", "job", "--yes").out == "Took process job from w.\n"
        with pytest.raises(LeaseLost):
            store.processes.renew(lease, lease_ms=1)


def test_lease_break_asks_which_when_two_sessions_have_the_same_claim_id(local: Place) -> None:
    with local.store() as store:
        for session_id in ("a", "b"):
            store.sessions.create(session_id)
            store.queue.enqueue(session_id, [1])
            store.queue.claim(session_id, f"w-{session_id}", lease_ms=HOUR_MS)
    asked = local.run("lease", "break", "qwc:1:1", "--yes")
    assert asked.code == 2
    assert "--session" in asked.err
    assert local.json("lease", "break", "qwc:1:1", "--session", "b", "--yes")["lease"]["owner"] == "w-b"
    assert held(local) == 1


# --- doctor ---------------------------------------------------------------------------------------------------------------


def test_doctor_says_that_a_sound_store_is_sound(place: Place) -> None:
    with place.store() as store:
        chat(store)
    found = place.json("doctor")
    assert (found["healthy"], found["engine"], found["schema_version"]) == (True, place.engine, library_version())
    assert found["verified"]["nodes"] == 13
    plain = place.ok("doctor")
    assert ["schema", str(library_version())] in plain.rows()
    assert "Nothing is wrong." in plain.err


def test_doctor_finds_damage_and_exits_with_1(place: Place) -> None:
    with place.store() as store:
        chat(store)
        with store.transaction() as tx:
            tx.execute(f"UPDATE {place.table('nodes')} SET body = '7' WHERE node_id = 'b1'")
    found = place.run("doctor", "--json")
    assert (found.code, found.json()["healthy"]) == (1, False)
    plain = place.run("doctor")
    assert plain.code == 1
    assert [row[0] for row in plain.rows() if len(row) == 3 and "digest" in row[1]] == ["problem"]


def test_doctor_warns_of_parked_work_and_that_is_no_failure(local: Place) -> None:
    with local.store() as store:
        store.sessions.create("s")
        store.queue.park("s", store.queue.enqueue("s", [1]).batch_id, reason="odd")
    done = local.run("doctor")
    assert done.code == 0
    assert any("parked" in row[1] and "inbox unpark" in row[2] for row in done.rows() if len(row) == 3)


def test_doctor_and_every_look_leave_each_byte_of_a_file_as_it_was(local: Place, tmp_path: Path) -> None:
    claimed(local)
    before = digest(local.url)
    for arguments in (("doctor",), ("stats",), ("lease", "list"), ("gc", "--dry-run"), ("migrate", "--plan")):
        local.ok(*arguments)
    local.ok("backup", str(tmp_path / "copy.db"))
    assert digest(local.url) == before


def digest(path: str) -> tuple[str, int]:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest(), os.stat(path).st_mtime_ns  # noqa: PTH116 - one line


def test_a_role_that_may_only_read_is_enough_for_every_look(pg_url: str, pg_tcp_url: str, pg_schema: str) -> None:
    place = Place(pg_url, pg_schema, "postgresql")
    claimed(place)

    async def scenario() -> None:
        async with role(pg_url, pg_tcp_url, schema=pg_schema, grants=READ_TABLES) as url:
            reader = Place(url, pg_schema, "postgresql")
            for arguments in (("doctor",), ("stats",), ("lease", "list"), ("gc", "--dry-run"), ("migrate", "--plan")):
                done = await asyncio.to_thread(reader.run, *arguments)
                assert done.code == 0, done
                assert url.partition("@")[0].rpartition(":")[2] not in done.out + done.err
            refused = await asyncio.to_thread(reader.run, "gc", "--yes")
            assert refused.code == 3

    asyncio.run(scenario())


# --- migrate and sql ------------------------------------------------------------------------------------------------------


def test_migrate_makes_what_its_plan_says_and_then_has_nothing_to_do(tmp_path: Path, pg_url: str, pg_schema: str) -> None:
    for place in (Place(str(tmp_path / "new.db"), "lash_store", "sqlite"), Place(pg_url, pg_schema, "postgresql")):
        plan = place.ok("migrate", "--plan")
        assert plan.out.startswith("BEGIN;")
        assert "CREATE TABLE" in plan.out
        assert not (tmp_path / "new.db").exists() or place.engine == "postgresql"
        assert place.run("stats").code == (4 if place.engine == "sqlite" else 6)
        done = place.json("migrate")
        assert (done["from"], done["to"]) == (0, library_version())
        assert place.json("migrate") == done | {"from": library_version()}
        assert place.json("migrate", "--plan")["sql"] == ""
        assert place.ok("migrate", "--plan").out == ""
        assert place.ok("doctor").code == 0


def test_sql_prints_a_script_that_makes_a_store(tmp_path: Path, pg_url: str, pg_schema: str) -> None:
    assert run("sql", "--engine", "sqlite").out.count("CREATE TABLE lash_") > 20
    assert run("--schema", pg_schema, "sql").out == run("sql", "--schema", pg_schema).out
    assert run("sql", "--since", "1", "--json").json()["since"] == 1

    async def made() -> None:
        connection = await asyncpg.connect(pg_url)
        await connection.execute(run("sql", "--schema", pg_schema).out)
        await connection.close()

    asyncio.run(made())
    assert Place(pg_url, pg_schema, "postgresql").ok("doctor").code == 0


# --- stats, gc, backup ----------------------------------------------------------------------------------------------------


def test_stats_tell_depths_ages_and_what_grows(place: Place) -> None:
    claimed(place)
    with place.store() as store:
        chat(store)
        store.queue.enqueue("chat", [1])
    found = place.json("stats")
    assert (found["sessions_live"], found["inbox"]["ready"], found["inbox"]["claimed"]) == (2, 1, 1)
    assert found["oldest_lease_ms"] > 0
    rows = {row[0]: row[1:] for row in place.ok("stats").rows()}
    assert rows["inbox claimed"] == ["1"]
    assert int(rows["oldest lease"][0]) < HOUR_MS
    assert rows["versions"][0] == "2"
    assert "gc" in rows["versions"][2]
    assert int(rows["size"][0]) > 0


def test_gc_keeps_the_newest_states_and_a_dry_run_keeps_all(place: Place) -> None:
    with place.store() as store:
        store.sessions.create("s")
        for n in range(4):
            store.session("s").commit(
                Commit(expected_revision=n, graph=Append([node(f"n{n}")]), checkpoint={"c": bytes([n]) * 99})
            )
    assert place.json("gc", "--dry-run")["report"]["versions_deleted"] == 3
    assert place.json("gc", "--keep-checkpoints", "2", "--yes")["report"]["versions_deleted"] == 2
    assert place.run("gc").code == 2
    with place.store() as store:
        assert store.sessions.load("s", at_revision=3).checkpoint == {"c": bytes([2]) * 99}
        assert store.sessions.load("s").checkpoint == {"c": bytes([3]) * 99}


def test_gc_on_a_terminal_asks_and_shows_a_table(local: Place) -> None:
    with local.terminal("gc") as screen:
        screen.wait_for("[y/N]")
        screen.type("y\n")
        assert screen.wait() == 0
    assert "sessions scanned" in screen.seen


def test_backup_copies_a_file_and_says_where_attachments_are(local: Place, tmp_path: Path) -> None:
    with local.store() as store:
        chat(store)
        store.attachments.put("chat", b"bytes", media_type="text/plain")
        done = local.run("backup", str(tmp_path / "copy.db"))
    assert done.code == 0
    assert f"cp -r {local.url}.attachments {tmp_path / 'copy.db'}.attachments" in done.err
    with Store.open(tmp_path / "copy.db", migrate=False) as copy:
        assert copy.sessions.get("chat").revision == 2
    assert local.run("backup", str(tmp_path / "copy.db"), "--json").error()["type"] == "InvalidArgument"


def test_backup_of_postgresql_says_what_to_use(pg_url: str, pg_schema: str, tmp_path: Path) -> None:
    place = Place(pg_url, pg_schema, "postgresql")
    place.store().close()
    done = place.run("backup", str(tmp_path / "copy.db"))
    assert done.code == 2
    assert "pg_dump" in done.err
    assert "pg_basebackup" in done.err
