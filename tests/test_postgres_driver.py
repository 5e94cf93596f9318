"""The PostgreSQL driver on a real server: atomicity, retries, errors, interactive transactions."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, LiteralString

import asyncpg
import pytest

from lash_store.db.driver import Mode, StatementEvent
from lash_store.db.migrate import open_postgres
from lash_store.db.postgres import BEGIN, PostgresDriver
from lash_store.encode import mint
from lash_store.errors import (
    Busy,
    Disconnected,
    InvalidArgument,
    Misuse,
    NotFound,
    NotPermitted,
    SchemaMismatch,
    StoreError,
    Unavailable,
)
from lash_store.ops.statement import Op, Ring, database_now, execute, execute_many, fetch, fetch_one, ring
from tests.support.cluster import Cluster

INSERT: LiteralString = (
    "INSERT INTO {chunks} (attachment_id, ordinal, data)"
    " SELECT CAST(:id AS TEXT), rows.ordinal, rows.data FROM {rows(ordinal int, data bytes)}"
)
BRIEF_MS = 500  # for limits that are reached: enough to open a connection, or a transaction, on a loaded machine
RAISE: LiteralString = "DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$"


class Bell:
    """Remembers what rang."""

    def __init__(self) -> None:
        self.rung: list[Ring] = []

    def __call__(self, rings: Any) -> None:
        self.rung.extend(rings)


@asynccontextmanager
async def opened(url: str, schema: str, **options: Any) -> AsyncGenerator[PostgresDriver, None]:
    driver = await PostgresDriver.open(url, schema=schema, **options)
    try:
        await open_postgres(driver, migrate=True)
        yield driver
    finally:
        await driver.close()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def put(id: str, *data: bytes | None) -> Op[int]:
    return execute_many(INSERT, [{"ordinal": n, "data": part} for n, part in enumerate(data)], id=id)


def parts(id: str) -> Op[list[Any]]:
    rows = yield from fetch("SELECT ordinal, data FROM {chunks} WHERE attachment_id = :id ORDER BY ordinal", id=id)
    return [tuple(row) for row in rows]


def put_and_ring(id: str) -> Op[str]:
    yield from put(id, b"1")
    yield from ring("inbox", id)
    return id


def put_and_refuse(id: str) -> Op[None]:
    yield from put(id, b"1")
    yield from ring("inbox", id)
    raise NotFound("thing", id)


def value(sql: LiteralString) -> Op[Any]:
    row = yield from fetch_one(sql)
    assert row is not None
    return row[0]


def backend() -> Op[int]:
    return value("SELECT pg_backend_pid()")


# --- one operation ---


def test_rows_counts_and_results_come_back(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver:
            assert await driver.run(partial(put, "a", b"x", b"y", b"z"), Mode.WRITE) == 3
            delete = partial(
                execute, "DELETE FROM {chunks} WHERE attachment_id = :id AND ordinal {any_int:ns}", id="a", ns=[0, 2]
            )
            assert await driver.run(delete, Mode.WRITE) == 2
            assert await driver.run(partial(parts, "a"), Mode.READ) == [(1, b"y")]

    run(scenario)


def test_an_operation_without_statements_needs_no_connection(pg_url: str, pg_schema: str) -> None:
    def pure() -> Op[int]:
        yield from ()
        return 7

    async def scenario() -> None:
        async with opened(pg_url, pg_schema, pool_size=1) as driver:
            held = await driver.begin(60_000)
            assert await driver.run(pure, Mode.WRITE) == 7
            await held.rollback()

    run(scenario)


@pytest.mark.parametrize("pooler", [False, True])
def test_reads_are_one_snapshot_and_writes_see_what_is_committed(pg_url: str, pg_schema: str, pooler: bool) -> None:
    def isolation() -> Op[tuple[str, str]]:
        level = yield from value("SHOW transaction_isolation")
        read_only = yield from value("SHOW transaction_read_only")
        return level, read_only

    async def scenario() -> None:
        async with opened(pg_url, pg_schema, pooler=pooler) as driver:
            assert await driver.run(isolation, Mode.READ) == ("repeatable read", "on")
            assert await driver.run(isolation, Mode.WRITE) == ("read committed", "off")

    run(scenario)


@pytest.mark.parametrize("pooler", [False, True])
def test_timeouts_hold_in_every_transaction(pg_url: str, pg_schema: str, pooler: bool) -> None:
    def limits() -> Op[list[Any]]:
        names = "'lock_timeout', 'statement_timeout', 'idle_in_transaction_session_timeout'"
        sql: Any = f"SELECT setting FROM pg_settings WHERE name IN ({names}) ORDER BY name"
        rows = yield from fetch(sql)
        return [row[0] for row in rows]

    async def scenario() -> None:
        async with opened(pg_url, pg_schema, pooler=pooler, lock_ms=1234, statement_ms=5678) as driver:
            assert await driver.run(limits, Mode.WRITE) == ["60000", "1234", "5678"]

    run(scenario)


@pytest.mark.parametrize("pooler", [False, True])
def test_a_migration_has_no_timeouts(pg_url: str, pg_schema: str, pooler: bool) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema, pooler=pooler) as driver:
            for name in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
                show: Any = f"SHOW {name}"
                assert await driver.run(partial(value, show), Mode.WRITE, unbounded=True) == "0"
                assert await driver.run(partial(value, show), Mode.WRITE) != "0"

    run(scenario)


def test_behind_a_pooler_nothing_stays_in_the_session(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema, pooler=True, pool_size=1) as driver:
            await driver.run(partial(parts, "a"), Mode.READ)
            assert (
                await driver.run(partial(value, "SELECT count(*) FROM pg_prepared_statements WHERE name <> ''"), Mode.READ) == 0
            )
            transaction = await driver.begin(60_000)
            await transaction.execute("SELECT 1")
            await transaction.commit()
            outside = "SELECT count(*) FROM pg_settings WHERE source = 'session' AND name LIKE '%timeout' AND setting <> boot_val"
            assert await driver.run(partial(value, outside), Mode.READ) == 3  # only those of this very transaction

    run(scenario)


def test_a_refusal_changes_nothing_and_rings_nobody(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        bell = Bell()
        async with opened(pg_url, pg_schema, ring=bell) as driver:
            with pytest.raises(NotFound):
                await driver.run(partial(put_and_refuse, "a"), Mode.WRITE)
            assert await driver.run(partial(parts, "a"), Mode.READ) == []
            assert bell.rung == []
            assert await driver.run(partial(put_and_ring, "a"), Mode.WRITE) == "a"
            assert bell.rung == [Ring("inbox", "a")]

    run(scenario)


def test_a_bell_that_raises_does_not_undo_the_commit(pg_url: str, pg_schema: str, caplog: pytest.LogCaptureFixture) -> None:
    def broken(rings: Any) -> None:
        raise RuntimeError("bell")

    async def scenario() -> None:
        async with opened(pg_url, pg_schema, ring=broken) as driver:
            assert await driver.run(partial(put_and_ring, "a"), Mode.WRITE) == "a"

    with caplog.at_level(logging.ERROR, "lash_store"):
        run(scenario)
    assert "ringing failed" in caplog.text


def test_the_hook_sees_templates_and_counts_but_no_values(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        events: list[StatementEvent] = []
        async with opened(pg_url, pg_schema, on_statement=events.append) as driver:
            events.clear()
            await driver.run(partial(put, "secret", b"x", b"y"), Mode.WRITE)
            await driver.run(partial(parts, "secret"), Mode.READ)
        assert [(event.operation, event.rows, event.engine) for event in events] == [
            ("execute_many", 2, "postgresql"),
            ("parts", 2, "postgresql"),
        ]
        assert "{chunks}" in events[0].sql
        assert "secret" not in repr(events)
        assert all(event.duration_ns > 0 for event in events)

    run(scenario)


def test_a_hook_that_raises_is_logged_and_ignored(pg_url: str, pg_schema: str, caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: StatementEvent) -> None:
        raise RuntimeError("hook")

    async def scenario() -> None:
        async with opened(pg_url, pg_schema, on_statement=broken) as driver:
            assert await driver.run(partial(put, "a", b"x"), Mode.WRITE) == 1

    with caplog.at_level(logging.ERROR, "lash_store"):
        run(scenario)
    assert "on_statement raised" in caplog.text


def test_the_clock_is_the_databases_and_tests_can_shift_it(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver:
            true_ms = await driver.run(database_now, Mode.READ)
            await driver.set_clock_offset(3_600_000)
            assert 3_600_000 <= await driver.run(database_now, Mode.READ) - true_ms < 3_700_000
            await driver.set_clock_offset(-3_600_000)
            assert await driver.run(database_now, Mode.READ) < true_ms
            await driver.set_clock_offset(0)
            assert 0 <= await driver.run(database_now, Mode.READ) - true_ms < 100_000

    run(scenario)


# --- retries ---


class Flaky:
    """An operation that loses `times` times, and counts its generators."""

    def __init__(self, times: int, sql: LiteralString = RAISE) -> None:
        self.started = 0
        self._name = mint()
        self._times = times
        self._sql: LiteralString = sql

    def __call__(self) -> Op[int]:
        self.started += 1
        number = self.started
        yield from put(f"try {number} of {self._name}", b"x")
        if number <= self._times:
            yield from execute(self._sql)
        return number


def test_a_conflict_is_run_again_from_a_fresh_generator(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver:
            flaky = Flaky(3)
            assert await driver.run(flaky, Mode.WRITE) == 4
            assert await driver.run(partial(value, "SELECT count(*) FROM {chunks}"), Mode.READ) == 1

    run(scenario)


def test_conflicts_without_end_are_busy(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver:
            flaky = Flaky(1_000)
            with pytest.raises(Busy, match="40001"):
                await driver.run(flaky, Mode.WRITE)
            assert flaky.started == 6

    run(scenario)


def test_a_deadlock_is_solved_by_running_one_side_again(pg_url: str, pg_schema: str) -> None:
    touch: LiteralString = "UPDATE {chunks} SET ordinal = ordinal WHERE attachment_id = :id"
    # A wait is searched for a deadlock once, so the one that searches must be the second to wait.
    be_waited_for: LiteralString = """
        DO $$ BEGIN
            WHILE NOT EXISTS (SELECT 1 FROM pg_locks WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))) LOOP
            END LOOP;
        END $$
    """

    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver, opened(pg_url, pg_schema) as other:
            await driver.run(partial(put, "a", b""), Mode.WRITE)
            await driver.run(partial(put, "b", b""), Mode.WRITE)
            blocker = await other.begin(60_000)
            await blocker.run(partial(execute, touch, id="b"))
            has_a, starts = asyncio.Event(), 0

            def cross() -> Op[None]:
                nonlocal starts
                starts += 1
                yield from execute("SET LOCAL deadlock_timeout = '5ms'")
                yield from execute(touch, id="a")
                has_a.set()
                if starts == 1:
                    yield from execute(be_waited_for)
                yield from execute(touch, id="b")

            crossing = asyncio.create_task(driver.run(cross, Mode.WRITE))
            await has_a.wait()
            # The blocker's own deadlock check is off, so the victim is always the operation.
            await blocker.execute("SET LOCAL deadlock_timeout = '60s'")
            await blocker.run(partial(execute, touch, id="a"))
            await blocker.commit()
            await crossing
            assert starts == 2

    run(scenario)


def test_a_lock_that_is_not_released_is_busy(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema, lock_ms=20) as driver:
            blocker = await driver.begin(60_000)
            await blocker.execute(f'LOCK TABLE "{pg_schema}".chunks IN ACCESS EXCLUSIVE MODE')
            flaky = Flaky(0)
            with pytest.raises(Busy, match="55P03"):
                await driver.run(flaky, Mode.WRITE)
            assert flaky.started == 2
            await blocker.rollback()

    run(scenario)


def test_a_statement_that_takes_too_long_is_busy(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema, statement_ms=BRIEF_MS) as driver:
            with pytest.raises(Busy, match="57014"):
                await driver.run(partial(fetch, "SELECT pg_sleep(60)"), Mode.READ)

    run(scenario)


def test_a_full_pool_is_busy(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema, pool_size=1, acquire_ms=BRIEF_MS) as driver:
            held = await driver.begin(60_000)
            with pytest.raises(Busy, match="acquire_ms"):
                await driver.run(backend, Mode.READ)
            await held.rollback()
            await driver.run(backend, Mode.READ)

    run(scenario)


# --- lost connections ---


def test_a_connection_lost_before_commit_is_replaced_once(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver:
            dies: LiteralString = "SELECT pg_terminate_backend(pg_backend_pid())"
            assert await driver.run(Flaky(1, dies), Mode.WRITE) == 2
            flaky = Flaky(1_000, dies)
            with pytest.raises(Unavailable):
                await driver.run(flaky, Mode.WRITE)
            assert flaky.started == 2
            assert await driver.run(partial(value, "SELECT count(*) FROM {chunks}"), Mode.READ) == 1

    run(scenario)


def test_the_store_goes_on_after_the_server_came_back(pg_cluster: Cluster) -> None:
    async def scenario() -> None:
        async with opened(pg_cluster.url, "s", pool_size=4) as driver:
            await asyncio.gather(*(driver.run(partial(put, f"{n}", b"x"), Mode.WRITE) for n in range(8)))
            await asyncio.to_thread(pg_cluster.crash)
            with pytest.raises(Unavailable):
                await driver.run(backend, Mode.READ)
            await asyncio.to_thread(pg_cluster.start)
            transaction = await driver.begin(60_000)
            await transaction.rollback()
            assert await driver.run(partial(value, "SELECT count(*) FROM {chunks}"), Mode.READ) == 8

    run(scenario)


AT_COMMIT = """
CREATE FUNCTION "{schema}".at_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON "{schema}".chunks DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW WHEN (NEW.attachment_id = 'fatal') EXECUTE FUNCTION "{schema}".at_commit();
"""


async def arrange(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(sql)
    await connection.close()


def test_a_connection_lost_during_commit_leaves_a_doubt_and_is_never_used_again(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        bell = Bell()
        async with opened(pg_url, pg_schema, pool_size=1, ring=bell) as driver:
            before = await driver.run(backend, Mode.READ)
            await arrange(pg_url, AT_COMMIT.format(schema=pg_schema, body="PERFORM pg_terminate_backend(pg_backend_pid());"))
            started = 0

            def fatal() -> Op[None]:
                nonlocal started
                started += 1
                yield from put_and_ring("fatal")

            with pytest.raises(Disconnected, match="unknown"):
                await driver.run(fatal, Mode.WRITE)
            assert (started, bell.rung) == (1, [])
            assert await driver.run(backend, Mode.READ) != before

    run(scenario)


def test_a_commit_the_server_refuses_is_certain_and_may_be_run_again(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema, pool_size=1) as driver:
            before = await driver.run(backend, Mode.READ)
            body = "RAISE EXCEPTION 'no' USING ERRCODE = '40001';"
            await arrange(pg_url, AT_COMMIT.format(schema=pg_schema, body=body))
            with pytest.raises(Busy, match="40001"):
                await driver.run(partial(put, "fatal", b"x"), Mode.WRITE)
            assert await driver.run(backend, Mode.READ) != before

    run(scenario)


def test_a_cancelled_operation_leaves_a_clean_pool(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema, pool_size=1) as driver:
            before = await driver.run(backend, Mode.READ)
            asked = asyncio.Event()

            def slow() -> Op[None]:
                yield from put("a", b"x")
                asked.set()
                yield from fetch("SELECT pg_sleep(60)")

            task = asyncio.create_task(driver.run(slow, Mode.WRITE))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # The same backend answers, so the statement that was cancelled is over on the server too.
            assert await driver.run(backend, Mode.READ) == before
            assert await driver.run(partial(parts, "a"), Mode.READ) == []

    run(scenario)


# --- errors ---


def test_an_error_shows_the_operation_and_no_value(pg_url: str, pg_schema: str) -> None:
    def duplicate() -> Op[None]:
        yield from put("hunter2", b"x")
        yield from put("hunter2", b"x")

    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver:
            with pytest.raises(StoreError, match=r"23505.*table chunks.*constraint chunks_pkey") as caught:
                await driver.run(duplicate, Mode.WRITE)
            text = "".join(traceback.format_exception(caught.value))
            assert "in duplicate" in text
            assert "hunter2" not in str(caught.value)
            assert "Key (attachment_id" not in text
            assert caught.value.__context__ is None

    run(scenario)


def test_a_value_of_the_wrong_type_is_not_quoted(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver:
            with pytest.raises(StoreError, match="type") as caught:
                await driver.run(partial(fetch, "SELECT CAST(:x AS {int})", x="hunter2"), Mode.READ)
            assert "hunter2" not in str(caught.value)

    run(scenario)


@pytest.mark.parametrize("sql", ["SELECT 1 FROM nowhere.at_all", "SELECT nothing FROM {chunks}", "SELECT {schema}.no_function()"])
def test_a_missing_table_column_or_function_is_a_schema_mismatch(pg_url: str, pg_schema: str, sql: LiteralString) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver:
            with pytest.raises(SchemaMismatch) as caught:
                await driver.run(partial(fetch, sql), Mode.READ)
            assert caught.value.found == caught.value.expected >= 1

    run(scenario)


def test_a_read_cannot_write(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver:
            with pytest.raises(StoreError, match="25006"):
                await driver.run(partial(put, "a", b"x"), Mode.READ)

    run(scenario)


def test_an_operation_cannot_swallow_a_failed_statement(pg_url: str, pg_schema: str) -> None:
    def stubborn() -> Op[str]:
        try:
            yield from fetch("SELECT nothing FROM {chunks}")
        except SchemaMismatch:
            return "never mind"
        return "?"

    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver:
            with pytest.raises(SchemaMismatch):
                await driver.run(stubborn, Mode.WRITE)

    run(scenario)


def test_connecting_fails_without_showing_the_password(pg_tcp_url: str) -> None:
    async def scenario() -> None:
        wrong = pg_tcp_url.replace("://", "://someone_else_", 1)
        with pytest.raises(NotPermitted) as refused:
            await PostgresDriver.open(wrong)
        with pytest.raises(Unavailable, match="reached") as unreachable:
            await PostgresDriver.open("postgresql://u:hunter2@127.0.0.1:1/db")
        with pytest.raises(InvalidArgument, match="percent-encode") as unreadable:
            await PostgresDriver.open("postgresql+asyncpg://u:hunter2@host:not-a-port/db")
        for caught in (refused, unreachable, unreadable):
            text = "".join(traceback.format_exception(caught.value))
            assert "hunter2" not in text.replace('open("postgresql://u:hunter2@', "").replace(
                'open("postgresql+asyncpg://u:hunter2@', ""
            )

    run(scenario)


# --- interactive transactions ---


def test_operations_and_the_applications_sql_are_published_together(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        bell = Bell()
        async with opened(pg_url, pg_schema, ring=bell) as driver:
            transaction = await driver.begin(60_000)
            await transaction.run(partial(put_and_ring, "a"))
            assert await transaction.execute("SELECT $1::int + 1, 'x'", 1) == [(2, "x")]
            assert await driver.run(partial(parts, "a"), Mode.READ) == []
            assert bell.rung == []
            await transaction.commit()
            assert await driver.run(partial(parts, "a"), Mode.READ) == [(0, b"1")]
            assert bell.rung == [Ring("inbox", "a")]
            with pytest.raises(Misuse, match="ended"):
                await transaction.run(backend)
            await transaction.rollback()

    run(scenario)


def test_a_refusal_leaves_the_transaction_usable(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        bell = Bell()
        async with opened(pg_url, pg_schema, ring=bell) as driver:
            transaction = await driver.begin(60_000)
            await transaction.run(partial(put, "before", b"x"))
            with pytest.raises(NotFound):
                await transaction.run(partial(put_and_refuse, "a"))
            with pytest.raises(asyncpg.DivisionByZeroError):
                await transaction.execute("SELECT 1 / 0")
            with pytest.raises(asyncpg.InterfaceError):
                await transaction.execute("SELECT $1::int")
            with pytest.raises(asyncpg.DataError):
                await transaction.execute("SELECT $1::int", "x")
            await transaction.run(partial(put, "after", b"x"))
            await transaction.commit()
            assert await driver.run(partial(parts, "a"), Mode.READ) == []
            assert await driver.run(partial(value, "SELECT count(*) FROM {chunks}"), Mode.READ) == 2
            assert bell.rung == []

    run(scenario)


def test_a_rollback_publishes_nothing(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        bell = Bell()
        async with opened(pg_url, pg_schema, pool_size=1, ring=bell) as driver:
            transaction = await driver.begin(60_000)
            await transaction.run(partial(put_and_ring, "a"))
            await transaction.rollback()
            assert await driver.run(partial(parts, "a"), Mode.READ) == []
            assert bell.rung == []

    run(scenario)


def test_a_forgotten_transaction_is_rolled_back(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema, pool_size=1) as driver:
            transaction = await driver.begin(BRIEF_MS)
            await transaction.ended.wait()
            for late in (transaction.run(backend), transaction.execute("SELECT 1"), transaction.commit()):
                with pytest.raises(Busy, match=f"max_ms = {BRIEF_MS}"):
                    await late
            await driver.run(backend, Mode.READ)

    run(scenario)


def test_a_transaction_whose_time_is_up_before_it_began_says_so(
    pg_url: str, pg_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema, pool_size=1) as driver:
            with monkeypatch.context() as slow:
                slow.setitem(BEGIN, Mode.WRITE, f"SELECT pg_sleep(60); {BEGIN[Mode.WRITE]}")
                with pytest.raises(Busy, match="max_ms = 1"):
                    await driver.begin(1)
            await driver.run(backend, Mode.READ)

    run(scenario)


def test_a_statement_does_not_outlive_its_transaction(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema, pool_size=1) as driver:
            transaction = await driver.begin(BRIEF_MS)
            with pytest.raises(Busy, match=f"max_ms = {BRIEF_MS}"):
                await transaction.execute("SELECT pg_sleep(60)")
            await driver.run(backend, Mode.READ)

    run(scenario)


def test_nothing_is_run_again_inside_a_transaction(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver:
            transaction = await driver.begin(60_000)
            flaky = Flaky(1_000)
            with pytest.raises(Busy, match="40001"):
                await transaction.run(flaky)
            assert flaky.started == 1
            await transaction.rollback()

    run(scenario)


def test_a_lost_connection_ends_the_transaction(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema, pool_size=1) as driver:
            transaction = await driver.begin(60_000)
            with pytest.raises(Unavailable):
                await transaction.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            with pytest.raises(Unavailable, match="lost"):
                await transaction.commit()
            await driver.run(backend, Mode.READ)

    run(scenario)


def test_the_applications_sql_may_not_end_the_transaction(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema, pool_size=1) as driver:
            transaction = await driver.begin(60_000)
            with pytest.raises(Misuse, match="ended the transaction"):
                await transaction.execute("COMMIT")
            await driver.run(backend, Mode.READ)

    run(scenario)


def test_a_cancelled_call_leaves_the_transaction_usable(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver:
            transaction = await driver.begin(60_000)
            asked = asyncio.Event()

            def slow() -> Op[None]:
                yield from put("a", b"x")
                asked.set()
                yield from fetch("SELECT pg_sleep(60)")

            task = asyncio.create_task(transaction.run(slow))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await transaction.run(partial(put, "b", b"x"))
            await transaction.commit()
            assert await driver.run(partial(value, "SELECT min(attachment_id) FROM {chunks}"), Mode.READ) == "b"

    run(scenario)


def test_calls_in_one_transaction_take_turns(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver:
            transaction = await driver.begin(60_000)
            await asyncio.gather(*(transaction.run(partial(put, f"{n}", b"x", b"y")) for n in range(10)))
            await transaction.commit()
            assert await driver.run(partial(value, "SELECT count(*) FROM {chunks}"), Mode.READ) == 20

    run(scenario)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_a_callers_connection_also_inside_its_own_transaction(pg_url: str, pg_schema: str, inside: bool, keep: bool) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver:
            connection = await asyncpg.connect(pg_url)
            await connection.execute("CREATE TEMP TABLE mine (n int)")
            outer = connection.transaction()
            if inside:
                await outer.start()
            transaction = await driver.begin(60_000, connection)
            assert transaction.nested is inside
            await transaction.run(partial(put, "a", b"x"))
            await transaction.execute("INSERT INTO mine VALUES (1)")
            await (transaction.commit() if keep else transaction.rollback())
            assert connection.is_in_transaction() is inside
            if inside:
                assert await driver.run(partial(parts, "a"), Mode.READ) == []
                await outer.commit()
            assert await connection.fetchval("SELECT count(*) FROM mine") == keep
            assert bool(await driver.run(partial(parts, "a"), Mode.READ)) is keep
            await connection.close()

    run(scenario)


def test_a_late_transaction_on_a_callers_connection_is_undone_at_the_next_call(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with opened(pg_url, pg_schema) as driver:
            connection = await asyncpg.connect(pg_url)
            async with connection.transaction():
                transaction = await driver.begin(BRIEF_MS, connection)
                with pytest.raises(Busy, match=f"max_ms = {BRIEF_MS}"):
                    await transaction.execute("SELECT pg_sleep(60)")
                assert transaction.ended.is_set()
                assert await connection.fetchval("SELECT 7") == 7
            await connection.close()

    run(scenario)


def test_a_callers_pool_serves_operations(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        async with asyncpg.create_pool(pg_url, min_size=0, max_size=2) as pool:
            driver = await PostgresDriver.open(schema=pg_schema, pool=pool)
            await open_postgres(driver, migrate=True)
            await asyncio.gather(*(driver.run(partial(put, f"{n}", b"x"), Mode.WRITE) for n in range(10)))
            assert await driver.run(Flaky(1, "SELECT pg_terminate_backend(pg_backend_pid())"), Mode.WRITE) == 2
            await driver.close()
            assert await pool.fetchval(f'SELECT count(*) FROM "{pg_schema}".chunks') == 11

    run(scenario)


def test_a_callers_pool_that_cannot_reset_does_not_hide_a_commit(pg_url: str, pg_schema: str) -> None:
    async def broken_reset(connection: object) -> None:
        raise ConnectionResetError("reset")

    async def scenario() -> None:
        async with opened(pg_url, pg_schema), asyncpg.create_pool(pg_url, min_size=0, max_size=1, reset=broken_reset) as pool:
            driver = await PostgresDriver.open(schema=pg_schema, pool=pool)
            assert await driver.run(partial(put, "a", b"x"), Mode.WRITE) == 1
            assert await driver.run(partial(parts, "a"), Mode.READ) == [(0, b"x")]

    run(scenario)


def test_a_closed_pool_of_the_caller_is_unavailable(pg_url: str, pg_schema: str) -> None:
    async def scenario() -> None:
        pool = await asyncpg.create_pool(pg_url, min_size=0, max_size=1)
        driver = await PostgresDriver.open(schema=pg_schema, pool=pool)
        await pool.close()
        with pytest.raises(Unavailable):
            await driver.run(backend, Mode.READ)

    run(scenario)
