"""The SQLite driver and the world: other processes, files, settings, checkpoints, errors."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from lash_store.db.driver import Mode
from lash_store.db.migrate import open_sqlite
from lash_store.db.sqlite import SqliteDriver
from lash_store.db.sqlite_checkpoint import Checkpoints
from lash_store.db.sqlite_errors import Versions, translate, translate_ours
from lash_store.errors import (
    Busy,
    Corrupt,
    InvalidArgument,
    Misuse,
    NotPermitted,
    SchemaMismatch,
    StorageFull,
    Unavailable,
)
from lash_store.ops.statement import Op, database_now, fetch, fetch_one
from tests.support.sqlite import CHILD_S, Bench, Gate, count, keys, output, put, python, stored, tables


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def bench(path: Path) -> Iterator[Bench]:
    bench = Bench(path)
    yield bench
    bench.driver.close()


# Other processes

HOLDER = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("released", flush=True)
"""


@pytest.fixture
def holder(bench: Bench, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the write lock until it reads a line."""
    process = python(HOLDER, path)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.communicate("\n", timeout=CHILD_S)


def release(holder: subprocess.Popen[str]) -> None:
    assert holder.stdin is not None
    holder.stdin.write("\n")
    holder.stdin.flush()


def test_a_lock_held_by_another_process_is_busy_after_busy_ms(path: Path, holder: subprocess.Popen[str]) -> None:
    impatient = SqliteDriver.open(path, ring=[].extend, busy_ms=30)
    futures = [impatient.submit(partial(put, key), Mode.WRITE) for key in "ab"]
    for future in futures:
        with pytest.raises(Busy, match="30 ms"):
            future.result(CHILD_S)
    with pytest.raises(Busy):
        impatient.begin(max_ms=1000)
    impatient.close()
    assert stored(path) == []


def test_a_writer_waits_for_another_process(bench: Bench, path: Path, holder: subprocess.Popen[str]) -> None:
    refused_once = threading.Event()
    bench.points.arm("begin", refused_once.set, nth=2)
    writing = bench.submit(put, "a")
    assert refused_once.wait(CHILD_S), "the first try found the lock taken"
    assert bench.read(count) == 0, "readers do not wait"
    release(holder)
    assert writing.result(CHILD_S) == 1
    assert stored(path) == ["a"]


OPENER = """
import sys
from functools import partial
from tests.support.sqlite import put
from lash_store.db.driver import Mode
from lash_store.db.sqlite import SqliteDriver
from lash_store.ops.statement import execute
sys.stdin.readline()
driver = SqliteDriver.open(sys.argv[1], ring=[].extend)
driver.submit(partial(execute, "CREATE TABLE IF NOT EXISTS t (k TEXT PRIMARY KEY NOT NULL, v TEXT) STRICT"), Mode.WRITE).result()
for n in range(20):
    driver.submit(partial(put, f"{sys.argv[2]}.{n}"), Mode.WRITE).result()
driver.close()
"""


def test_processes_that_open_a_new_file_at_once_share_it(path: Path) -> None:
    openers = [python(OPENER, path, n) for n in range(4)]
    ends = [opener.communicate("\n", timeout=CHILD_S) for opener in openers]
    assert [opener.returncode for opener in openers] == [0] * 4, ends
    assert len(stored(path)) == 80


FORKED = """
import os, sys
from functools import partial
from tests.support.sqlite import Bench, put, keys
from lash_store.errors import Misuse
bench = Bench(sys.argv[1])
bench.write(put, "before")
bench.read(keys)
child = os.fork()
if child == 0:
    for attempt in (partial(bench.write, put, "child"), partial(Bench, sys.argv[1]), partial(bench.driver.begin, 1000)):
        try:
            attempt()
        except Misuse as error:
            print(error.reason, flush=True)
    bench.driver.close()
    del bench
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
bench.write(put, "parent")
grandchild = os.fork()
if grandchild == 0:
    sys.exit(0)
os.waitpid(grandchild, 0)
bench.write(put, "still")
print(bench.read(keys), flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_forked_child_is_refused_and_does_its_parent_no_harm(path: Path) -> None:
    said = output(FORKED, path, code=-signal.SIGKILL).splitlines()
    assert said == ["after-fork"] * 3 + ["['before', 'parent', 'still']"]
    assert stored(path) == ["before", "parent", "still"]


# Files and settings


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_files_are_for_their_owner_only(path: Path, umask: int) -> None:
    previous = os.umask(umask)
    try:
        bench = Bench(path)
        bench.write(put, "a")
        modes = {name: stat.S_IMODE((path.parent / name).stat().st_mode) for name in ("agent.db", "agent.db-wal", "agent.db-shm")}
        bench.driver.close()
    finally:
        os.umask(previous)
    assert modes == dict.fromkeys(modes, 0o600)


def test_a_dangling_link_gets_a_private_file_too(tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "real.db")
    bench = Bench(link)
    assert stat.S_IMODE((tmp_path / "real.db").stat().st_mode) == 0o600
    assert bench.driver.path == str(tmp_path / "real.db")
    bench.driver.close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="nowhere"):
        SqliteDriver.open(tmp_path / "nowhere" / "agent.db", ring=[].extend)


def test_a_file_that_is_no_database_is_corrupt(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to be looked at" * 20)
    with pytest.raises(Corrupt):
        SqliteDriver.open(path, ring=[].extend)


def settings() -> Op[dict[str, Any]]:
    found: dict[str, Any] = {}
    for row in (
        (yield from fetch_one("SELECT 'journal_mode', journal_mode FROM pragma_journal_mode")),
        (yield from fetch_one("SELECT 'synchronous', synchronous FROM pragma_synchronous")),
        (yield from fetch_one("SELECT 'foreign_keys', foreign_keys FROM pragma_foreign_keys")),
        (yield from fetch_one("SELECT 'trusted_schema', trusted_schema FROM pragma_trusted_schema")),
        (yield from fetch_one("SELECT 'page_size', page_size FROM pragma_page_size")),
    ):
        assert row is not None
        found[row[0]] = row[1]
    return found


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("relaxed", 1)])
@pytest.mark.parametrize("mode", list(Mode))
def test_every_connection_has_the_promised_settings(path: Path, durability: Any, level: int, mode: Mode) -> None:
    bench = Bench(path, durability=durability)
    expected = {"journal_mode": "wal", "synchronous": level, "foreign_keys": 1, "trusted_schema": 0, "page_size": 8192}
    assert bench.driver.submit(settings, mode).result(CHILD_S) == expected
    bench.driver.close()


def test_no_extension_can_be_loaded(bench: Bench) -> None:
    def load() -> Op[None]:
        yield from fetch("SELECT load_extension('nothing')")

    with pytest.raises(apsw.SQLError, match="not authorized"):
        bench.write(load)


def test_the_schema_of_the_library_comes_up_on_this_driver(path: Path) -> None:
    driver = SqliteDriver.open(path, ring=[].extend)
    version = open_sqlite(driver, migrate=True)
    assert version >= 1
    assert open_sqlite(driver, migrate=False) == version
    driver.close()


def test_close_finishes_what_was_submitted_and_leaves_no_log(path: Path) -> None:
    bench = Bench(path)
    gate = Gate()
    standing = bench.submit(gate.stand)
    assert gate.entered.wait(CHILD_S)
    waiting = [bench.submit(put, key) for key in "abc"]
    closing = threading.Thread(target=bench.driver.close)
    closing.start()
    gate.open()
    closing.join(CHILD_S)
    assert [future.result(0) for future in waiting] == [1, 1, 1]
    assert standing.result(0) == (0, 0)
    assert sorted(file.name for file in path.parent.iterdir()) == ["agent.db"]
    assert stored(path) == ["a", "b", "c"]


@pytest.mark.parametrize("mode", list(Mode))
def test_a_closed_driver_says_so(path: Path, mode: Mode) -> None:
    bench = Bench(path)
    bench.driver.close()
    bench.driver.close()
    with pytest.raises(Misuse) as caught:
        bench.driver.submit(count, mode)
    assert caught.value.reason == "closed"
    with pytest.raises(Misuse):
        bench.driver.begin(1000)


def test_memory_is_one_database_for_reads_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Bench(":memory:")
    assert bench.driver.in_memory
    bench.write(put, "a")
    assert bench.read(keys) == ["a"]
    assert bench.read(tables)
    bench.driver.close()
    assert list(tmp_path.iterdir()) == []


def test_the_clock_can_be_shifted(bench: Bench) -> None:
    before = bench.write(database_now)
    bench.driver.clock_offset_ms = 10**9
    after = bench.read(database_now)
    assert 10**9 <= after - before < 10**9 + CHILD_S * 1000


# Checkpoints


@pytest.fixture
def log(path: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(path))
    connection.pragma("page_size", 8192)
    connection.pragma("journal_mode", "wal")
    connection.wal_autocheckpoint(0)
    connection.execute("CREATE TABLE t (v)")
    yield connection
    connection.close()


def fill(connection: apsw.Connection) -> None:
    connection.execute("INSERT INTO t VALUES (zeroblob(100000))")


def test_a_log_over_its_cap_is_emptied_in_line(log: apsw.Connection) -> None:
    checkpoints = Checkpoints(log, cap_pages=10)
    fill(log)
    assert Path(log.filename_wal).stat().st_size > 0
    checkpoints.after_commit()
    assert Path(log.filename_wal).stat().st_size == 0


def test_a_long_reader_delays_the_cap_and_stops_nobody(log: apsw.Connection, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lash_store.db.sqlite_checkpoint.CAP_WAIT_MS", 1)
    checkpoints = Checkpoints(log, cap_pages=10)
    reader = apsw.Connection(str(path))
    fill(log)
    reader.execute("BEGIN; SELECT * FROM t").fetchall()
    fill(log)
    checkpoints.after_commit()
    assert Path(log.filename_wal).stat().st_size > 0
    reader.close()
    for _ in range(3):
        fill(log)
    checkpoints.after_commit()
    assert Path(log.filename_wal).stat().st_size == 0


def test_an_idle_writer_copies_its_log_once(log: apsw.Connection) -> None:
    checkpoints = Checkpoints(log)
    assert checkpoints.patience_s is None
    fill(log)
    assert checkpoints.patience_s is not None
    checkpoints.when_idle()
    assert checkpoints.patience_s is None
    in_log, copied = log.wal_checkpoint()
    assert in_log == copied


def test_nothing_is_checkpointed_after_an_error_until_a_commit_succeeds(log: apsw.Connection) -> None:
    checkpoints = Checkpoints(log)
    fill(log)
    checkpoints.after_error()
    assert checkpoints.patience_s is None
    fill(log)
    assert checkpoints.patience_s is not None


# Errors


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (apsw.SQLITE_BUSY, Busy),
        (apsw.SQLITE_LOCKED, Busy),
        (apsw.SQLITE_FULL, StorageFull),
        (apsw.SQLITE_IOERR_READ, Unavailable),
        (apsw.SQLITE_CANTOPEN, Unavailable),
        (apsw.SQLITE_NOMEM, Unavailable),
        (apsw.SQLITE_INTERRUPT, Unavailable),
        (apsw.SQLITE_CORRUPT, Corrupt),
        (apsw.SQLITE_NOTADB, Corrupt),
        (apsw.SQLITE_READONLY, NotPermitted),
        (apsw.SQLITE_PERM, NotPermitted),
        (apsw.SQLITE_CONSTRAINT, apsw.ConstraintError),
    ],
)
def test_each_code_of_sqlite_has_one_meaning(code: int, kind: type[Exception]) -> None:
    error = apsw.exception_for(code)
    assert isinstance(error, apsw.Error)
    assert type(translate(error)) is kind


def test_a_missing_table_names_both_versions() -> None:
    versions = Versions()
    versions.found, versions.expected = 3, 5
    meaning = translate_ours(apsw.SQLError("no such table: lash_meta"), versions)
    assert isinstance(meaning, SchemaMismatch)
    assert (meaning.found, meaning.expected) == (3, 5)


def test_errors_do_not_repeat_values(bench: Bench) -> None:
    bench.write(put, "secret")
    with pytest.raises(apsw.ConstraintError) as caught:
        bench.write(put, "secret")
    assert "secret" not in str(caught.value)
