"""The SQLite driver: group commit, what it survives, reads and hooks."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from lash_store.db import sqlite_writer
from lash_store.db.driver import Mode, StatementEvent
from lash_store.db.sqlite import SqliteDriver
from lash_store.errors import (
    Disconnected,
    NotFound,
    NotPermitted,
    SchemaMismatch,
    StorageFull,
    StoreError,
    Unavailable,
)
from lash_store.ops.statement import Op, Ring, execute, execute_many, fetch
from tests.support.sqlite import CHILD_S, Bench, Gate, count, fail_with, keys, output, put, put_then_refuse, stored


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def bench(path: Path) -> Iterator[Bench]:
    bench = Bench(path)
    yield bench
    bench.driver.close()


# Group commit


def test_what_queued_during_a_commit_becomes_one_batch(bench: Bench) -> None:
    futures = bench.batch(*(partial(put, f"k{n}") for n in range(10)))
    assert [future.result(CHILD_S) for future in futures] == [1] * 10
    bench.read(count)
    commits = bench.points.passed.count("before-commit")
    assert commits == 2, "one for the gate, one for the ten"


def test_a_batch_is_bounded_in_operations(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_writer, "BATCH_OPERATIONS", 4)
    futures = bench.batch(*(partial(put, f"k{n}") for n in range(10)))
    assert all(future.result(CHILD_S) for future in futures)
    assert bench.points.passed.count("before-commit") == 1 + 3


def test_a_batch_is_bounded_in_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_writer, "BATCH_BYTES", 1000)
    futures = bench.batch(*(partial(put, f"k{n}", "x" * 600) for n in range(4)))
    assert all(future.result(CHILD_S) for future in futures)
    assert bench.points.passed.count("before-commit") == 1 + 2


def test_a_refusal_in_mid_batch_leaves_its_neighbours(bench: Bench, path: Path) -> None:
    first, refused, last = bench.batch(partial(put, "a"), partial(put_then_refuse, "b"), partial(put, "c"))
    assert (first.result(CHILD_S), last.result(CHILD_S)) == (1, 1)
    with pytest.raises(NotFound, match="'b'"):
        refused.result(CHILD_S)
    assert stored(path) == ["a", "c"]
    assert [ring.id for ring in bench.rings] == ["a", "c"], "a refused operation rings nobody"


def test_a_refusal_alone_leaves_nothing(bench: Bench, path: Path) -> None:
    with pytest.raises(NotFound):
        bench.write(put_then_refuse, "a")
    assert stored(path) == []
    assert bench.rings == []


def test_a_defect_in_an_operation_reaches_its_caller_and_the_writer_goes_on(bench: Bench) -> None:
    def defect() -> Op[None]:
        yield from put("a")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bench.write(defect)
    bench.write(put, "b")
    assert bench.read(keys) == ["b"]


def test_a_failed_statement_is_raised_inside_its_operation(bench: Bench) -> None:
    bench.write(put, "a")
    with pytest.raises(apsw.ConstraintError) as caught:
        bench.write(put, "a")
    assert "put" in [entry.name for entry in caught.traceback]


def answers_seen_before_commit(bench: Bench) -> int:
    """How many answers of a batch, with a refusal in it, had left when its COMMIT was about to run."""
    futures: list[Future[Any]] = []
    early: list[int] = []
    started = threading.Event()

    def look() -> None:
        assert started.wait(CHILD_S)
        early.append(sum(future.done() for future in futures))

    gate = Gate()
    standing = bench.submit(gate.stand)
    assert gate.entered.wait(CHILD_S)
    bench.points.arm("before-commit", look, nth=2)
    futures += [bench.submit(put, "a"), bench.submit(put_then_refuse, "b"), bench.submit(put, "c")]
    started.set()
    gate.open()
    standing.result(CHILD_S)
    for future in futures:
        future.exception(CHILD_S)
    return early[0]


def test_no_answer_leaves_before_the_commit(bench: Bench) -> None:
    assert answers_seen_before_commit(bench) == 0


def test_an_answer_before_the_commit_would_be_seen(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a writer that answers at once is caught by the law above."""
    perform: Callable[..., None] = vars(sqlite_writer.Writer)["_perform"]
    answer = sqlite_writer.Work.answer

    def answer_once(work: sqlite_writer.Work) -> None:
        if not work.future.done():
            answer(work)

    def hasty(writer: sqlite_writer.Writer, work: sqlite_writer.Work, *, alone: bool) -> None:
        perform(writer, work, alone=alone)
        answer_once(work)

    monkeypatch.setattr(sqlite_writer.Work, "answer", answer_once)
    monkeypatch.setattr(sqlite_writer.Writer, "_perform", hasty)
    assert answers_seen_before_commit(bench) == 3


# A transaction that SQLite drops


def cap_pages(pages: int) -> Op[None]:
    if pages:
        yield from fetch("PRAGMA max_page_count = 20")
    else:
        yield from fetch("PRAGMA max_page_count = 1000000")


def test_a_full_database_in_mid_batch_refuses_only_what_does_not_fit(bench: Bench, path: Path) -> None:
    bench.write(cap_pages, 20)
    first, large, last = bench.batch(partial(put, "a"), partial(put, "b", "x" * 1_000_000), partial(put, "c"))
    assert (first.result(CHILD_S), last.result(CHILD_S)) == (1, 1)
    with pytest.raises(StorageFull):
        large.result(CHILD_S)
    assert stored(path) == ["a", "c"]
    assert bench.read(keys) == ["a", "c"], "reads go on"
    bench.write(cap_pages, 0)
    bench.write(put, "b", "x" * 1_000_000)
    assert stored(path) == ["a", "b", "c"]


FILE_SIZE_LIMIT = """
import resource, sys
from tests.support.sqlite import Bench, put, keys
from lash_store.errors import StorageFull
bench = Bench(sys.argv[1])
bench.write(put, "a")
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
try:
    bench.write(put, "b", "x" * 4_000_000)
except StorageFull as error:
    print(type(error).__name__)
print(bench.read(keys))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
bench.write(put, "c", "x" * 4_000_000)
bench.driver.close()
"""


def test_a_file_size_limit_of_the_system_is_storage_full(path: Path) -> None:
    assert output(FILE_SIZE_LIMIT, path).splitlines() == ["StorageFull", "['a']"]
    assert stored(path) == ["a", "c"]


@pytest.mark.parametrize("point", ["before-operation", "after-operation", "before-commit"])
@pytest.mark.parametrize("code", [apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_NOMEM, apsw.SQLITE_INTERRUPT, apsw.SQLITE_FULL])
def test_a_voided_batch_runs_again_one_by_one(bench: Bench, path: Path, point: str, code: int) -> None:
    runs: list[str] = []

    def noted(key: str) -> Op[int]:
        runs.append(key)
        return (yield from put(key))

    gate = Gate()
    standing = bench.submit(gate.stand)
    assert gate.entered.wait(CHILD_S)
    # The gate's own batch passes its last points first; its "before-operation" is behind it already.
    bench.points.arm(
        point, fail_with(code), nth=2 if point == "before-operation" else 1 + (2 if point == "after-operation" else 1)
    )
    futures = [bench.submit(noted, key) for key in "abc"]
    gate.open()
    standing.result(CHILD_S)
    assert [future.result(CHILD_S) for future in futures] == [1, 1, 1]
    assert stored(path) == ["a", "b", "c"]
    assert [ring.id for ring in bench.rings] == ["a", "b", "c"]
    assert sorted(set(runs)) == ["a", "b", "c"]
    assert len(runs) > 3, "some ran twice"


def test_an_operation_that_fails_alone_is_unavailable_and_leaves_nothing(bench: Bench, path: Path) -> None:
    bench.points.arm("before-commit", fail_with(apsw.SQLITE_IOERR_FSYNC))
    with pytest.raises(Unavailable, match="IOERR_FSYNC"):
        bench.write(put, "a")
    assert stored(path) == []
    bench.write(put, "b")
    assert stored(path) == ["b"]


def test_a_batch_that_fails_again_one_by_one_is_unavailable(bench: Bench, path: Path) -> None:
    for nth in (2, 3, 4):
        bench.points.arm("before-commit", fail_with(apsw.SQLITE_IOERR_WRITE), nth=nth)
    gate = Gate()
    standing = bench.submit(gate.stand)
    assert gate.entered.wait(CHILD_S)
    futures = [bench.submit(put, key) for key in "abc"]
    gate.open()
    standing.result(CHILD_S)
    outcomes = [type(future.exception(CHILD_S)) for future in futures]
    assert outcomes == [Unavailable, Unavailable, type(None)]
    assert stored(path) == ["c"]


def test_a_transaction_dropped_under_an_operation_never_continues_in_autocommit(bench: Bench, path: Path) -> None:
    def stubborn() -> Op[None]:
        yield from put("a")
        try:
            yield from execute("ROLLBACK")  # what SQLite does by itself when it must
            yield from execute("INSERT INTO no_such_table VALUES (1)")
        except StoreError:
            yield from put("b")

    future, neighbour = bench.batch(stubborn, partial(put, "c"))
    assert isinstance(future.exception(CHILD_S), StoreError)
    assert neighbour.result(CHILD_S) == 1
    assert stored(path) == ["c"]


def test_a_begin_that_fails_is_answered_and_the_writer_goes_on(bench: Bench) -> None:
    bench.points.arm("begin", fail_with(apsw.SQLITE_IOERR_READ))
    with pytest.raises(Unavailable):
        bench.write(put, "a")
    bench.write(put, "a")


def test_a_lost_answer_after_the_commit_says_that_the_outcome_is_unknown(bench: Bench, path: Path) -> None:
    bench.points.arm("after-commit", fail_with(apsw.SQLITE_IOERR))
    with pytest.raises(Disconnected):
        bench.write(put, "a")
    assert stored(path) == ["a"]


# Callers that go away


def test_a_caller_that_cancels_in_time_changes_nothing_else(bench: Bench, path: Path) -> None:
    gate = Gate()
    standing = bench.submit(gate.stand)
    assert gate.entered.wait(CHILD_S)
    cancelled, kept = bench.submit(put, "a"), bench.submit(put, "b")
    assert cancelled.cancel()
    gate.open()
    assert (standing.result(CHILD_S), kept.result(CHILD_S)) == ((0, 0), 1)
    assert stored(path) == ["b"]


def test_a_caller_that_cancels_too_late_gets_its_operation_done(bench: Bench) -> None:
    gate = Gate()
    standing = bench.submit(gate.stand)
    assert gate.entered.wait(CHILD_S)
    assert not standing.cancel()
    gate.open()
    assert standing.result(CHILD_S) == (0, 0)


KILLED = """
import os, signal, sys, threading
from functools import partial
from tests.support.sqlite import Bench, Gate, put
path, point, nth = sys.argv[1], sys.argv[2], int(sys.argv[3])
bench = Bench(path)
bench.write(put, "acked")
print("acked", flush=True)
gate = Gate()
bench.submit(gate.stand)
gate.entered.wait()
bench.points.arm(point, lambda: os.kill(os.getpid(), signal.SIGKILL), nth=nth)
for key in "abc":
    bench.submit(put, key).add_done_callback(lambda future, key=key: print(key, flush=True))
gate.open()
threading.Event().wait()
"""


@pytest.mark.parametrize(
    ("point", "nth", "survives"),
    [
        ("before-operation", 2, False),
        ("after-operation", 3, False),
        ("before-commit", 2, False),
        ("after-commit", 2, True),
    ],
)
def test_a_killed_process_leaves_whole_batches(path: Path, point: str, nth: int, survives: bool) -> None:
    assert output(KILLED, path, point, nth, code=-signal.SIGKILL).split() == ["acked"]
    assert stored(path) == (["a", "acked", "b", "c"] if survives else ["acked"])


# Reads


def test_a_read_is_one_snapshot_and_holds_up_no_writer(bench: Bench) -> None:
    bench.write(put, "a")
    gate = Gate()
    reading = bench.driver.submit(gate.stand, Mode.READ)
    assert gate.entered.wait(CHILD_S)
    bench.write(put, "b")
    gate.open()
    assert reading.result(CHILD_S) == (1, 1)
    assert bench.read(count) == 2


def test_reads_go_on_while_the_writer_is_in_a_transaction(bench: Bench) -> None:
    gate = Gate()
    writing = bench.submit(gate.stand)
    assert gate.entered.wait(CHILD_S)
    assert bench.read(count) == 0
    gate.open()
    writing.result(CHILD_S)


def test_reads_overlap(bench: Bench) -> None:
    gates = [Gate() for _ in range(4)]
    reading = [bench.driver.submit(gate.stand, Mode.READ) for gate in gates]
    assert all(gate.entered.wait(CHILD_S) for gate in gates), "four reads stand in the middle at once"
    for gate in gates:
        gate.open()
    assert [future.result(CHILD_S) for future in reading] == [(0, 0)] * 4


@pytest.mark.parametrize("place", ["file", ":memory:"])
def test_a_read_cannot_write(path: Path, place: str) -> None:
    bench = Bench(path if place == "file" else place)
    with pytest.raises(NotPermitted):
        bench.read(put, "a")
    bench.write(put, "b")
    assert bench.read(keys) == ["b"]
    bench.driver.close()


def test_a_failed_read_leaves_its_connection_usable(path: Path) -> None:
    bench = Bench(path, readers=1)

    def broken() -> Op[None]:
        yield from fetch("SELECT missing FROM t")

    with pytest.raises(SchemaMismatch):
        bench.read(broken)
    assert bench.read(count) == 0
    bench.driver.close()


# Hooks


def test_the_statement_hook_sees_templates_and_counts_but_no_values(path: Path) -> None:
    events: list[StatementEvent] = []
    bench = Bench(path, on_statement=events.append)
    events.clear()

    def several() -> Op[int]:
        rows = [{"k": f"secret{n}"} for n in range(3)]
        return (yield from execute_many("INSERT INTO t (k, v) SELECT rows.k, :v FROM {rows(k text)}", rows, v="secret"))

    assert bench.write(several) == 3
    assert len(bench.read(keys)) == 3
    bench.driver.close()
    assert [(event.operation.rsplit(".")[-1], event.rows, event.engine) for event in events] == [
        ("several", 3, "sqlite"),
        ("keys", 3, "sqlite"),
    ]
    assert events[0].sql == "INSERT INTO t (k, v) SELECT rows.k, :v FROM {rows(k text)}"
    assert all(event.duration_ns > 0 for event in events)


def test_a_hook_that_raises_is_logged_and_decides_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def bad(_: StatementEvent) -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR, logger="lash_store"):
        bench = Bench(path, on_statement=bad)
        bench.write(put, "a")
    assert bench.read(keys) == ["a"]
    bench.driver.close()
    assert "on_statement raised" in caplog.text


def test_a_ring_hook_that_raises_withholds_no_answer(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def bad(_: object) -> None:
        raise ZeroDivisionError

    driver = SqliteDriver.open(path, ring=bad)

    def rung() -> Op[int]:
        yield Ring("t", "x")
        return 7

    assert driver.submit(rung, Mode.WRITE).result(CHILD_S) == 7
    driver.close()
    assert "ringing failed" in caplog.text


def test_counts_are_of_this_statement(bench: Bench) -> None:
    def counts() -> Op[list[int]]:
        found = [(yield from execute("INSERT INTO t (k) VALUES ('a'), ('b')"))]
        found.append((yield from execute("CREATE TABLE u (x) STRICT" if not found else "SELECT 1")))
        found.append((yield from execute("UPDATE t SET v = 'x' WHERE k = 'none'")))
        found.append((yield from execute("INSERT INTO t (k) VALUES ('a') ON CONFLICT DO NOTHING")))
        found.append((yield from execute("DELETE FROM t")))
        return found

    assert bench.write(counts) == [2, 0, 0, 0, 2]


def test_lists_are_parameters(bench: Bench) -> None:
    def some(wanted: list[str]) -> Op[list[str]]:
        rows = yield from fetch("SELECT k FROM t WHERE k {any_text:wanted} ORDER BY k", wanted=wanted)
        return [row[0] for row in rows]

    for key in ("a", "b'\"", "c"):
        bench.write(put, key)
    assert bench.read(some, ["b'\"", "c", "d"]) == ["b'\"", "c"]
    assert bench.read(some, []) == []
