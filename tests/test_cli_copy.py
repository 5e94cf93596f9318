"""Moving state from the command line: as a program with pipes, in a terminal, broken off, and with wrong arguments."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import apsw
import pytest

from lash_store import Append, Commit, NodeDraft
from tests.conftest import drop_schema
from tests.support.cli import CLI, clean_environment, run, run_process, terminal
from tests.support.copies import expected, fill, sqlite_place

SESSIONS = 20


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file that has something in every table."""
    path = tmp_path_factory.mktemp("filled") / "filled.db"
    with sqlite_place(path).open() as store:
        fill(store)
    return path


def same(source: Path, target: Path) -> bool:
    """Contents that nobody holds stay behind; everything else is there."""
    wanted, found = expected(sqlite_place(source).rows()), sqlite_place(target).rows()
    return all(found[name] == rows for name, rows in wanted.items() if name not in ("chunks", "digests"))


def test_a_store_is_copied_and_compared(filled: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    done = run("copy", filled, target)
    assert done.code == 0, done.err
    assert ["compared", "equal"] in done.rows()
    assert "Copying: " in done.err
    assert "Comparing: " in done.err
    assert same(filled, target)
    again = run("copy", filled, target, "--json")
    assert (again.code, again.json()["copied"], again.err) == (0, 0, "")
    unverified = run("copy", filled, target, "--no-verify")
    assert ["compared", "no"] in unverified.rows()


def test_to_postgresql_and_back_without_showing_the_password(
    filled: Path, tmp_path: Path, pg_tcp_url: str, pg_schema: str
) -> None:
    there = run("copy", filled, pg_tcp_url, "--target-schema", pg_schema)
    assert there.code == 0, there.err
    password = urlsplit(pg_tcp_url).password
    assert password
    assert password not in there.out + there.err
    back = run("copy", pg_tcp_url, tmp_path / "back.db", "--source-schema", pg_schema)
    assert back.code == 0, back.err
    assert same(filled, tmp_path / "back.db")
    other = f"{pg_schema}_2"
    try:
        assert run("copy", pg_tcp_url, pg_tcp_url, "--source-schema", pg_schema, "--target-schema", other).code == 0
    finally:
        asyncio.run(drop_schema(pg_tcp_url, other))


def test_a_pooler_is_for_the_side_that_has_a_server(filled: Path, tmp_path: Path, pg_tcp_url: str, pg_schema: str) -> None:
    there = run("copy", filled, pg_tcp_url, "--target-schema", pg_schema, "--pooler")
    assert there.code == 0, there.err
    back = run("--pooler", "copy", pg_tcp_url, tmp_path / "back.db", "--source-schema", pg_schema)
    assert back.code == 0, back.err
    assert same(filled, tmp_path / "back.db")
    assert run("copy", filled, tmp_path / "other.db", "--pooler").code == 2
    assert not (tmp_path / "other.db").exists()


def test_a_store_is_not_copied_onto_itself(filled: Path, tmp_path: Path) -> None:
    alias = tmp_path / "alias.db"
    alias.symlink_to(filled)
    for target in (filled, alias, f"{filled.parent}/./{filled.name}"):
        done = run("copy", filled, target)
        assert (done.code, "same store" in done.err) == (2, True)
    server = "postgresql://127.0.0.1:1/agents"
    assert run("copy", server, server).code == 2
    assert run("copy", server, server, "--target-schema", "other").code == 5


def test_what_cannot_be_copied_is_said_in_one_line(filled: Path, tmp_path: Path) -> None:
    assert run("copy", tmp_path / "nobody.db", tmp_path / "target.db").code == 4
    assert not (tmp_path / "target.db").exists()
    assert run("copy", filled).code == 2
    assert run("copy", filled, tmp_path).code == 2
    unreachable = run("copy", filled, "postgresql://user:secret@127.0.0.1:1/agents")
    assert (unreachable.code, "secret" in unreachable.err) == (5, False)
    target = tmp_path / "used.db"
    assert run("copy", filled, target).code == 0
    with sqlite_place(target).open() as store:
        store.queue.enqueue("bare", ["own"])
    refused = run("copy", filled, target, "--json")
    assert (refused.code, refused.error()["type"], refused.error()["fields"]["id"]) == (3, "Diverged", "bare")


def test_an_older_schema_is_not_migrated_by_a_copy(filled: Path, tmp_path: Path) -> None:
    target = tmp_path / "old.db"
    assert run("copy", filled, target).code == 0
    connection = apsw.Connection(str(target))
    connection.execute("UPDATE lash_meta SET version = 1")
    connection.close()
    refused = run("copy", filled, target)
    assert (refused.code, "lash-store migrate" in refused.err) == (6, True)


def test_differences_end_with_exit_code_1(filled: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    assert run("copy", filled, target).code == 0
    for path in (tmp_path / "target.db.attachments").rglob("*"):
        if path.is_file():
            path.unlink()
    differs = run("copy", filled, target)
    assert differs.code == 1
    assert "session  chat  the bytes of" in differs.err


def test_a_terminal_shows_a_bar(filled: Path, tmp_path: Path) -> None:
    with terminal("copy", filled, tmp_path / "target.db") as shown:
        assert shown.wait() == 0
    assert "Copying" in shown.seen
    assert "━" in shown.seen
    assert "equal" in shown.seen


def test_ctrl_c_in_mid_copy_and_the_same_command_goes_on(tmp_path: Path) -> None:
    source, target = tmp_path / "source.db", tmp_path / "target.db"
    add_sessions(source, range(1))
    assert run("copy", source, target).code == 0
    add_sessions(source, range(1, SESSIONS))
    # The first session is there already and is only looked at; with the second one the copy waits for the lock.
    with write_lock(target) as unlock, terminal("copy", source, target) as interrupted:
        interrupted.wait_for("Copying session")
        interrupted.type("\x03")
        interrupted.wait_for("^C")  # a terminal echoes it after it has sent the signal
        unlock()
        assert interrupted.wait() == 130, interrupted.seen
    assert "Traceback" not in interrupted.seen
    copied = len(sqlite_place(target).rows()["sessions"])
    assert copied < SESSIONS
    done = run("copy", source, target, "--json")
    assert (done.code, done.json()["unchanged"], done.json()["copied"]) == (0, copied, SESSIONS - copied)
    assert same(source, target)


def add_sessions(path: Path, numbers: range) -> None:
    with sqlite_place(path).open() as store, store.transaction(max_ms=60_000) as transaction:
        for n in numbers:
            transaction.sessions.create(f"s{n:04}")
            transaction.sessions.commit(f"s{n:04}", Commit(expected_revision=0, graph=Append([NodeDraft(body="hello")])))


@contextmanager
def write_lock(path: Path) -> Generator[Callable[[], object]]:
    """Keep every writer of a SQLite file waiting, until the end or until what is given is called."""
    connection = apsw.Connection(str(path))
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield lambda: connection.execute("ROLLBACK")
    finally:
        connection.close()


def test_a_session_goes_through_a_file_and_through_a_pipe(filled: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "chat.jsonl", tmp_path / "other.db"
    done = run("session", "export", "chat", file, "--url", filled, "--json")
    assert (done.code, done.json()["revision"]) == (0, 5), done.err
    assert run("session", "export", "chat", file, "--url", filled).code == 2
    assert run("session", "export", "chat", file, "--url", filled, "--force").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["chat.jsonl"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run("migrate", "--url", other).code == 0
    assert run("session", "import", file, "--url", other, "--json").json()["imported"] is True
    piped = subprocess.run(
        [*CLI, "session", "export", "chat", "-", "--url", str(filled)], env=clean_environment(), capture_output=True, check=False
    )
    assert piped.stdout == file.read_bytes()
    taken = subprocess.run(
        [*CLI, "session", "import", "-", "--url", str(other)],
        env=clean_environment(),
        input=piped.stdout,
        capture_output=True,
        check=False,
    )
    assert (taken.returncode, b"is there already" in taken.stdout) == (0, True), taken.stderr


def test_exports_and_imports_that_cannot_be(filled: Path, tmp_path: Path) -> None:
    assert run("session", "export", "nobody", tmp_path / "x", "--url", filled).code == 4
    assert list(tmp_path.iterdir()) == []
    assert run("session", "export", "chat", "-", "--url", filled, "--json").code == 2
    assert run("session", "export", "chat", "/dev/null", "--url", filled, "--force").code == 2
    assert Path("/dev/null").is_char_device()
    with terminal("session", "export", "chat", "--url", filled) as screen:
        assert screen.wait() == 2
    assert "terminal" in screen.seen
    assert run("session", "import", tmp_path / "nothing", "--url", filled).code == 4
    (tmp_path / "torn").write_bytes(b"{}")
    torn = run("session", "import", tmp_path / "torn", "--url", filled)
    assert (torn.code, "bundle" in torn.err) == (7, True)
    assert json.loads(run_process("session", "list", "--url", filled, "--json").out)["items"]
