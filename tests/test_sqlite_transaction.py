"""The SQLite driver's interactive transactions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import apsw
import pytest

from lash_store.errors import (
    Busy,
    Misuse,
    NotFound,
    StorageFull,
    Unavailable,
)
from lash_store.ops.statement import Op, Ring
from tests.support.sqlite import CHILD_S, Bench, fail_with, keys, put, put_then_refuse, stored


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def bench(path: Path) -> Iterator[Bench]:
    bench = Bench(path)
    yield bench
    bench.driver.close()


# Interactive transactions


def test_a_transaction_is_invisible_until_it_commits_and_then_rings(bench: Bench) -> None:
    tx = bench.driver.begin(max_ms=60_000)
    assert tx.run(partial(put, "a")).result(CHILD_S) == 1
    assert tx.execute("INSERT INTO t (k) VALUES (?) RETURNING k", "b").result(CHILD_S) == [("b",)]
    assert tx.run(keys).result(CHILD_S) == ["a", "b"]
    assert bench.read(keys) == []
    assert bench.rings == []
    tx.commit().result(CHILD_S)
    assert bench.read(keys) == ["a", "b"]
    assert bench.rings == [Ring("t", "a")]


def test_a_refusal_leaves_the_transaction_usable(bench: Bench) -> None:
    tx = bench.driver.begin(max_ms=60_000)
    tx.run(partial(put, "a")).result(CHILD_S)
    with pytest.raises(NotFound):
        tx.run(partial(put_then_refuse, "b")).result(CHILD_S)
    with pytest.raises(apsw.ConstraintError):
        tx.execute("INSERT INTO t (k) VALUES (?), (?)", "c", "a").result(CHILD_S)
    with pytest.raises(apsw.SQLError):
        tx.execute("SELECT * FROM no_such_table").result(CHILD_S)
    tx.run(partial(put, "d")).result(CHILD_S)
    tx.commit().result(CHILD_S)
    assert bench.read(keys) == ["a", "d"]
    assert [ring.id for ring in bench.rings] == ["a", "d"]


def test_a_transaction_rolled_back_leaves_nothing(bench: Bench) -> None:
    tx = bench.driver.begin(max_ms=60_000)
    tx.run(partial(put, "a")).result(CHILD_S)
    tx.rollback().result(CHILD_S)
    assert bench.read(keys) == []
    assert bench.rings == []
    with pytest.raises(Misuse) as caught:
        tx.run(partial(put, "b")).result(CHILD_S)
    assert caught.value.reason == "closed"
    tx.rollback().result(CHILD_S)


def test_a_transaction_past_max_ms_is_rolled_back_and_busy(bench: Bench) -> None:
    tx = bench.driver.begin(max_ms=1)
    bench.write(put, "after")  # the writer is free again only when the transaction's time is up
    for call in (partial(tx.run, partial(put, "b")), partial(tx.execute, "SELECT 1"), tx.commit):
        with pytest.raises(Busy, match="max_ms = 1"):
            call().result(CHILD_S)
    tx.rollback().result(CHILD_S)
    assert bench.read(keys) == ["after"]


def test_an_operation_that_ends_past_max_ms_is_rolled_back(bench: Bench) -> None:
    tx = bench.driver.begin(max_ms=60_000)

    def slow() -> Op[None]:
        yield from put("a")
        vars(tx)["_until"] = 0.0  # time passes

    with pytest.raises(Busy, match="max_ms"):
        tx.run(slow).result(CHILD_S)
    assert bench.read(keys) == []


@pytest.mark.parametrize(
    "sql",
    ["COMMIT", "ROLLBACK", "END", "SAVEPOINT x", "RELEASE operation", "ATTACH ':memory:' AS x", "PRAGMA query_only = ON"],
)
def test_application_sql_cannot_end_the_transaction_or_change_the_connection(bench: Bench, sql: str) -> None:
    tx = bench.driver.begin(max_ms=60_000)
    tx.run(partial(put, "a")).result(CHILD_S)
    with pytest.raises(Misuse) as caught:
        tx.execute(sql).result(CHILD_S)
    assert caught.value.reason == "in-transaction"
    assert tx.execute("SELECT name FROM pragma_table_info('t')").result(CHILD_S) == [("k",), ("v",)]
    tx.rollback().result(CHILD_S)
    assert bench.read(keys) == []


def test_a_disk_error_ends_the_transaction_without_a_retry(bench: Bench) -> None:
    tx = bench.driver.begin(max_ms=60_000)
    tx.run(partial(put, "a")).result(CHILD_S)
    bench.points.arm("after-operation", fail_with(apsw.SQLITE_IOERR_WRITE))
    for _ in range(2):
        with pytest.raises(Unavailable):
            tx.run(partial(put, "b")).result(CHILD_S)
    with pytest.raises(Unavailable):
        tx.commit().result(CHILD_S)
    assert bench.read(keys) == []
    bench.write(put, "c")


def test_a_commit_that_fails_leaves_nothing(bench: Bench) -> None:
    tx = bench.driver.begin(max_ms=60_000)
    tx.run(partial(put, "a")).result(CHILD_S)
    bench.points.arm("before-commit", fail_with(apsw.SQLITE_FULL))
    with pytest.raises(StorageFull):
        tx.commit().result(CHILD_S)
    assert bench.read(keys) == []
    assert bench.rings == []


def test_writers_wait_for_a_transaction_and_then_run(bench: Bench) -> None:
    tx = bench.driver.begin(max_ms=60_000)
    waiting = [bench.submit(put, key) for key in "bc"]
    tx.run(partial(put, "a")).result(CHILD_S)
    assert not any(future.done() for future in waiting)
    tx.commit().result(CHILD_S)
    assert [future.result(CHILD_S) for future in waiting] == [1, 1]


def test_closing_rolls_an_open_transaction_back(path: Path) -> None:
    bench = Bench(path)
    tx = bench.driver.begin(max_ms=600_000)
    sent = tx.run(partial(put, "a"))
    bench.driver.close()
    assert sent.result(CHILD_S) == 1
    with pytest.raises(Misuse, match="closed"):
        tx.commit().result(CHILD_S)
    assert stored(path) == []
