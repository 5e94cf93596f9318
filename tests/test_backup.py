"""A backup of a SQLite store: one moment, complete or not there, checked before it gets its name."""

from __future__ import annotations

import asyncio
import stat
import threading
from pathlib import Path

import pytest

from lash_store import Append, AsyncStore, Commit, Corrupt, InvalidArgument, Misuse, Store
from lash_store.db.sqlite_connection import PAGE_BYTES
from tests.support.cli_place import Place, chat, node, sqlite_place


@pytest.fixture
def local(tmp_path: Path) -> Place:
    """An empty SQLite store."""
    return sqlite_place(tmp_path)


def test_a_backup_is_a_store_with_everything_in_it(local: Place, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with local.store() as store:
        chat(store)
        report = store.maintenance.backup(tmp_path / "copy.db", progress=lambda done, pages: seen.append((done, pages)))
        store.sessions.create("later")
    assert report.path == str(tmp_path / "copy.db")
    assert report.size == (tmp_path / "copy.db").stat().st_size
    assert seen[-1][0] == seen[-1][1] > 0
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    with Store.open(tmp_path / "copy.db", migrate=False) as copy:
        assert len(copy.sessions.load("chat").nodes) == 22
        assert [session.session_id for session in copy.sessions.list().sessions] == ["chat"]
        assert copy.maintenance.examine().healthy
        copy.session("chat").commit(Commit(expected_revision=2, graph=Append([node("after")])))
    assert {file.name for file in tmp_path.iterdir()} - {"copy.db-bell", "agent.db-bell"} == {"agent.db", "copy.db"}


def test_a_backup_taken_while_others_commit_is_one_moment(local: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer commits between any two steps; the copy neither starts again nor mixes what was with what came."""
    monkeypatch.setattr("lash_store.db.sqlite_backup.STEP_PAGES", 1)
    with local.store() as store, local.store() as other:
        chat(store)

        def commit(done: int, pages: int) -> None:
            if done <= 20:
                other.session("chat").commit(Commit(expected_revision=None, graph=Append([node(f"during-{done}")])))

        store.maintenance.backup(tmp_path / "copy.db", progress=commit)
        assert other.sessions.get("chat").revision == 22
    with Store.open(tmp_path / "copy.db", migrate=False) as copy:
        assert copy.sessions.get("chat").revision == 2
        assert copy.maintenance.examine().healthy


def test_a_backup_overwrites_nothing_and_leaves_nothing_behind_when_it_fails(local: Place, tmp_path: Path) -> None:
    (tmp_path / "taken.db").write_text("precious")
    (tmp_path / "link.db").symlink_to(tmp_path / "nowhere")

    def give_up(done: int, pages: int) -> None:
        raise KeyboardInterrupt

    with local.store() as store:
        before = {file.name for file in tmp_path.iterdir()}
        for name in ("taken.db", "link.db", "agent.db"):
            with pytest.raises(InvalidArgument):
                store.maintenance.backup(tmp_path / name)
        with pytest.raises(InvalidArgument):
            store.maintenance.backup(tmp_path / "no" / "folder.db")
        with pytest.raises(KeyboardInterrupt):
            store.maintenance.backup(tmp_path / "copy.db", progress=give_up)
        assert {file.name for file in tmp_path.iterdir()} == before
        store.sessions.create("works")
    assert (tmp_path / "taken.db").read_text() == "precious"


def test_a_backup_of_a_damaged_file_is_no_backup(local: Place, tmp_path: Path) -> None:
    with local.store() as store:
        chat(store)
        with store.transaction() as tx:
            ((root,),) = tx.execute("SELECT rootpage FROM sqlite_master WHERE name = 'lash_nodes'")
    path = Path(local.url)
    data = bytearray(path.read_bytes())
    data[(root - 1) * PAGE_BYTES : root * PAGE_BYTES] = b"\xff" * PAGE_BYTES
    path.write_bytes(bytes(data))
    with Store.open(path, read_only=True) as store, pytest.raises(Corrupt):
        store.maintenance.backup(tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


def test_a_backup_from_a_loop_holds_up_nobody(local: Place, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncStore.open(local.url) as store:
            loop, here = asyncio.get_running_loop(), threading.get_ident()
            asked = asyncio.Event()
            threads: set[int] = set()

            def progress(done: int, pages: int) -> None:
                threads.add(threading.get_ident())
                loop.call_soon_threadsafe(asked.set)

            await store.maintenance.backup(tmp_path / "copy.db", progress=progress)
            assert asked.is_set()
            assert here not in threads

    asyncio.run(scenario())


def test_postgresql_and_memory_have_no_backup_here(pg_url: str, pg_schema: str, tmp_path: Path) -> None:
    with Store.open(pg_url, schema=pg_schema) as store, pytest.raises(Misuse, match=f"pg_dump.*{pg_schema}.*pg_basebackup"):
        store.maintenance.backup(tmp_path / "copy.db")
    with Store.open(":memory:") as store, pytest.raises(Misuse, match="memory"):
        store.maintenance.backup(tmp_path / "copy.db")
    assert list(tmp_path.iterdir()) == []
