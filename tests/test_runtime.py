"""A started operation runs to its end, whatever happens to its caller; and a store called wrongly says so at once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from lash_store.errors import Busy, Corrupt, InvalidArgument, Misuse, NotFound, SchemaMismatch
from lash_store.ops.statement import Op, execute, fetch
from lash_store.store.opening import open_async_runtime, open_sync_runtime
from lash_store.store.options import Options
from lash_store.store.portal import Portal, in_thread, settle
from lash_store.store.runtime import AsyncRuntime
from tests.support.notes import KIND, PROBES, notes, refuse_note, write_note

PATIENCE_S = 60  # far beyond any honest wait; reaching it is a failure
PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(params=["sqlite", "postgresql"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> Options:
    """A place for a store on each engine."""
    if request.param == "sqlite":
        return Options(url=str(tmp_path / "a.db"))
    return Options(url=request.getfixturevalue("pg_url"), schema=request.getfixturevalue("pg_schema"))


@pytest.fixture
def sqlite(tmp_path: Path) -> Options:
    return Options(url=str(tmp_path / "a.db"))


def with_runtime(options: Options, scenario: Callable[[AsyncRuntime], Awaitable[None]]) -> None:
    """Run a scenario on an AsyncRuntime of its own."""

    async def run() -> None:
        runtime = await open_async_runtime(options, PROBES)
        try:
            await scenario(runtime)
        finally:
            await runtime.close()

    asyncio.run(run())


def stored(options: Options) -> list[str]:
    """What a new store finds."""
    runtime = open_sync_runtime(options, PROBES)
    try:
        return runtime.read(notes)
    finally:
        runtime.close()


def child(program: str, options: Options) -> str:
    """What a program of tests.support.runtime_children prints."""
    command = [sys.executable, "-m", "tests.support.runtime_children", program, str(options.url), options.schema]
    return subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout


def assert_no_threads_stay() -> None:
    """Every thread of ours ends by itself."""
    for thread in threading.enumerate():
        if thread.name.startswith("lash-store"):
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), thread.name


# Both colours


def test_a_sync_runtime_writes_reads_and_waits(options: Options) -> None:
    runtime = open_sync_runtime(options, PROBES)
    with runtime.subscribe(KIND, "n") as subscription:
        assert runtime.write(write_note, "n") == 1
        assert subscription.wait(PATIENCE_S * 1000)
    assert runtime.read(notes) == ["n"]
    with pytest.raises(NotFound):
        runtime.write(refuse_note, "refused")
    assert runtime.offload(sum, [1, 2]) == 3
    runtime.close()
    assert stored(options) == ["n"]


def test_an_async_runtime_writes_reads_and_waits(options: Options) -> None:
    async def scenario(runtime: AsyncRuntime) -> None:
        with runtime.subscribe(KIND, "n") as subscription:
            assert await runtime.write(write_note, "n") == 1
            assert await subscription.wait(PATIENCE_S * 1000)
        assert await runtime.read(notes) == ["n"]
        with pytest.raises(NotFound):
            await runtime.write(refuse_note, "refused")
        assert await runtime.offload(sum, [1, 2]) == 3

    with_runtime(options, scenario)
    assert stored(options) == ["n"]


def test_attachment_bytes_go_beside_a_file_and_into_any_other_database(options: Options, tmp_path: Path) -> None:
    runtime = open_sync_runtime(options, PROBES)
    with runtime.spool([b"x" * 1_500_000, b"yz"]) as spool:
        runtime.blobs.put(spool.digest, spool)
        assert runtime.blobs.exists(spool.digest, spool.byte_len)
        assert b"".join(runtime.stream(spool.digest, spool.byte_len)) == b"x" * 1_500_000 + b"yz"
        assert b"".join(runtime.blobs.read(spool.digest))[-2:] == b"yz"
        with pytest.raises(Corrupt):
            list(runtime.stream(spool.digest, spool.byte_len - 1))
    assert (tmp_path / "a.db.attachments").exists() == (runtime.engine == "sqlite")
    runtime.close()


def test_attachment_bytes_may_live_in_memory_with_their_database() -> None:
    async def scenario(runtime: AsyncRuntime) -> None:
        with await runtime.spool(b"abc") as spool:
            await runtime.blobs.put(spool.digest, spool)
            assert [chunk async for chunk in runtime.stream(spool.digest, 3)] == [b"abc"]
            assert not runtime.blobs.durable

    with_runtime(Options(url=":memory:"), scenario)


def test_a_directory_or_the_callers_own_byte_store_may_be_chosen(sqlite: Options, tmp_path: Path) -> None:
    for chosen in (tmp_path / "bytes", str(tmp_path / "bytes"), "database"):
        runtime = open_sync_runtime(Options(url=sqlite.url, blobs=chosen), PROBES)
        with runtime.spool(b"abc") as spool:
            runtime.blobs.put(spool.digest, spool)
            assert list(runtime.stream(spool.digest, 3)) == [b"abc"]
        runtime.close()

    class Own:
        durable = True
        put = read = delete = print

    runtime = open_sync_runtime(Options(url=sqlite.url, blobs=Own()), PROBES)
    assert runtime.blobs.durable
    runtime.close()


def test_a_schema_that_may_not_be_created_is_refused_and_nothing_stays_open(options: Options) -> None:
    closed = Options(url=options.url, schema=options.schema, migrate=False)
    with pytest.raises(SchemaMismatch):
        open_sync_runtime(closed, PROBES)
    with pytest.raises(SchemaMismatch):
        asyncio.run(open_async_runtime(closed, PROBES))
    assert_no_threads_stay()
    assert stored(options) == []


def test_closing_ends_every_thread(options: Options) -> None:
    runtime = open_sync_runtime(options, PROBES)
    with runtime.subscribe(KIND, "n"), runtime.transaction(max_ms=PATIENCE_S * 1000) as transaction:
        transaction.write(write_note, "n")
    runtime.close()
    runtime.close()
    assert_no_threads_stay()


def test_without_asyncpg_postgresql_names_what_to_install() -> None:
    program = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "from lash_store.store.opening import open_sync_runtime\n"
        "from lash_store.store.options import Options\n"
        "open_sync_runtime(Options(url=':memory:'), {}).close()\n"
        "open_sync_runtime(Options(url='postgresql://me:hunter2@h/d'), {})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert "Misuse: PostgreSQL needs asyncpg, which is not installed: pip install 'lash-store[postgres]'" in done.stderr
    assert "hunter2" not in done.stderr


# Cancellation and interrupts


def test_cancelling_a_task_lets_its_started_sqlite_operation_end(sqlite: Options) -> None:
    async def scenario(runtime: AsyncRuntime) -> None:
        begun, go_on = threading.Event(), threading.Event()

        def pause() -> None:
            begun.set()
            assert go_on.wait(PATIENCE_S)

        task = asyncio.create_task(runtime.write(write_note, "n", pause))
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await runtime.write(write_note, "later")
        assert await runtime.read(notes) == ["later", "n"]

    with_runtime(sqlite, scenario)


LOCK_KEY = 724_011


def write_note_behind_lock(note_id: str) -> Op[None]:
    """Write, then wait for a lock a test holds, then end."""
    yield from write_note(note_id)
    yield from fetch("SELECT pg_advisory_xact_lock(CAST(:key AS BIGINT))", key=LOCK_KEY)


async def lock_is_awaited(holder: Any) -> None:
    """Until somebody waits for the lock. Asking is not what makes it happen, so asking again is harmless."""
    asked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted"
    while not await holder.fetchval(asked, LOCK_KEY):
        continue  # every question is a round trip, so the loop goes on meanwhile


def test_cancelling_a_task_lets_its_started_postgresql_operation_end_and_close_waits(pg_url: str, pg_schema: str) -> None:
    options = Options(url=pg_url, schema=pg_schema)

    async def run() -> None:
        runtime = await open_async_runtime(options, PROBES)
        holder = await asyncpg.connect(pg_url)
        await holder.execute("SELECT pg_advisory_lock($1)", LOCK_KEY)
        task = asyncio.create_task(runtime.write(write_note_behind_lock, "n"))
        await lock_is_awaited(holder)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        closing = asyncio.create_task(runtime.close())
        assert await runtime_is_closed(runtime)
        assert not closing.done()
        await holder.close()
        await closing

    asyncio.run(run())
    assert stored(options) == ["n"]


async def runtime_is_closed(runtime: AsyncRuntime) -> bool:
    while True:
        await asyncio.sleep(0)
        try:
            runtime.check()
        except Misuse as error:
            return error.reason == "closed"


def test_cancelling_inside_a_transaction_rolls_it_back(options: Options) -> None:
    async def scenario(runtime: AsyncRuntime) -> None:
        inside = asyncio.Event()

        async def work() -> None:
            async with runtime.transaction(max_ms=PATIENCE_S * 1000) as transaction:
                await transaction.write(write_note, "n")
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await runtime.write(write_note, "later")
        assert await runtime.read(notes) == ["later"]

    with_runtime(options, scenario)


def test_a_task_cancelled_while_its_transaction_begins_leaves_none_behind(sqlite: Options) -> None:
    async def scenario(runtime: AsyncRuntime) -> None:
        begun, go_on = threading.Event(), threading.Event()

        def pause() -> None:
            begun.set()
            assert go_on.wait(PATIENCE_S)

        writing = asyncio.create_task(runtime.write(write_note, "n", pause))
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        entering = asyncio.create_task(runtime.transaction(max_ms=PATIENCE_S * 1000).__aenter__())
        await asyncio.sleep(0)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        go_on.set()
        await writing
        await runtime.write(write_note, "later")  # it would wait for the whole max_ms if the transaction were left open

    with_runtime(sqlite, scenario)


def test_ctrl_c_lets_the_started_operation_end_and_rolls_a_transaction_back(options: Options) -> None:
    assert child("interrupt", options) == "interrupted, notes: interrupted\nrolled back, notes: interrupted\n"


def test_an_interrupted_wait_raises_only_after_the_answer() -> None:
    class Interrupting(Future[int]):
        """Ctrl-C arrives at the first wait, and the operation ends during the second."""

        waits = 0

        def exception(self, timeout: float | None = None) -> BaseException | None:
            self.waits += 1
            if self.waits == 1:
                raise KeyboardInterrupt
            self.set_result(3)
            return super().exception(timeout)

    future = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        settle(future)
    assert future.result() == 3


# Calls that cannot work


def reason_of(call: Callable[[], object]) -> str:
    with pytest.raises(Misuse) as caught:
        call()
    return caught.value.reason


async def reason_of_async(awaitable: Awaitable[object]) -> str:
    with pytest.raises(Misuse) as caught:
        await awaitable
    return caught.value.reason


def test_a_forked_child_is_refused_and_the_parent_goes_on(options: Options) -> None:
    assert child("fork", options) == "child 7 notes: after before\n"


def test_an_async_store_belongs_to_one_loop(options: Options) -> None:
    with asyncio.Runner() as home, asyncio.Runner() as abroad:
        runtime = home.run(open_async_runtime(options, PROBES))
        assert abroad.run(reason_of_async(runtime.read(notes))) == "wrong-loop"
        assert abroad.run(reason_of_async(runtime.close())) == "wrong-loop"
        assert reason_of(lambda: runtime.subscribe(KIND, "n")) == "wrong-loop"
        assert home.run(runtime.read(notes)) == []
        home.run(runtime.close())


def test_a_sync_store_inside_a_loop_is_refused_unless_asked_for(options: Options) -> None:
    async def scenario() -> None:
        assert reason_of(partial(open_sync_runtime, options, PROBES)) == "in-loop"
        runtime = open_sync_runtime(Options(url=options.url, schema=options.schema, in_loop=True), PROBES)
        assert runtime.read(notes) == []
        runtime.close()

    asyncio.run(scenario())
    runtime = open_sync_runtime(options, PROBES)

    async def call() -> None:
        with pytest.raises(Misuse, match="in_loop=True"):
            runtime.read(notes)

    asyncio.run(call())
    runtime.close()


def test_a_closed_store_is_refused(options: Options) -> None:
    runtime = open_sync_runtime(options, PROBES)
    runtime.close()
    assert reason_of(lambda: runtime.read(notes)) == "closed"
    assert reason_of(lambda: runtime.subscribe(KIND, "n")) == "closed"

    async def scenario() -> None:
        runtime = await open_async_runtime(options, PROBES)
        await asyncio.gather(runtime.close(), runtime.close())
        assert await reason_of_async(runtime.read(notes)) == "closed"

    asyncio.run(scenario())


def test_the_hook_of_a_sync_store_cannot_call_the_store_from_its_own_loop(pg_url: str, pg_schema: str) -> None:
    reasons: list[str] = []

    def heard(_: object) -> None:
        if runtime is not None and not reasons:
            reasons.append(reason_of(lambda: runtime and runtime.read(notes)))

    runtime = None
    runtime = open_sync_runtime(Options(url=pg_url, schema=pg_schema, on_statement=heard, in_loop=True), PROBES)
    runtime.read(notes)
    runtime.close()
    assert reasons == ["in-loop"]


# Transactions


def test_a_transaction_commits_what_it_holds_and_a_refusal_takes_back_only_itself(options: Options) -> None:
    runtime = open_sync_runtime(options, PROBES)
    with runtime.subscribe(KIND, None) as subscription:
        with runtime.transaction(max_ms=PATIENCE_S * 1000) as transaction:
            transaction.write(write_note, "a")
            with pytest.raises(NotFound):
                transaction.write(refuse_note, "b")
            transaction.write(write_note, "c")
            assert transaction.read(notes) == ["a", "c"]
            assert [tuple(row) for row in transaction.execute("SELECT 1")] == [(1,)]
            assert not subscription.wait(0)  # rings leave after COMMIT
        assert subscription.wait(PATIENCE_S * 1000)
    assert runtime.read(notes) == ["a", "c"]
    assert reason_of(lambda: transaction.read(notes)) == "closed"
    runtime.close()


def test_an_exception_rolls_a_transaction_back_and_rings_nobody(options: Options) -> None:
    async def scenario(runtime: AsyncRuntime) -> None:
        async def fail() -> None:
            async with runtime.transaction(max_ms=PATIENCE_S * 1000) as transaction:
                await transaction.write(write_note, "n")
                raise ZeroDivisionError

        with runtime.subscribe(KIND, None) as subscription:
            with pytest.raises(ZeroDivisionError):
                await fail()
            assert await runtime.read(notes) == []
            assert not await subscription.wait(0)

    with_runtime(options, scenario)


def test_the_store_itself_is_refused_inside_its_transaction(options: Options) -> None:
    async def scenario(runtime: AsyncRuntime) -> None:
        async with runtime.transaction(max_ms=PATIENCE_S * 1000) as transaction:
            assert await reason_of_async(runtime.read(notes)) == "in-transaction"
            assert await reason_of_async(runtime.close()) == "in-transaction"
            assert await reason_of_async(runtime.transaction(max_ms=1).__aenter__()) == "in-transaction"
            assert await asyncio.gather(reason_of_async(runtime.write(write_note, "n"))) == ["in-transaction"]
            for call in (partial(transaction.subscribe, KIND, None), partial(transaction.transaction, max_ms=1)):
                assert reason_of(call) == "in-transaction"
            assert await reason_of_async(transaction.spool(b"")) == "in-transaction"
            other = await open_async_runtime(Options(url=":memory:"), PROBES)
            assert await other.read(notes) == []  # another store is another matter
            await other.close()
        assert await runtime.read(notes) == []

    with_runtime(options, scenario)


def test_the_sync_store_itself_is_refused_inside_its_transaction(options: Options) -> None:
    runtime = open_sync_runtime(options, PROBES)
    with runtime.transaction(max_ms=PATIENCE_S * 1000) as transaction:
        assert reason_of(lambda: runtime.read(notes)) == "in-transaction"
        assert reason_of(runtime.close) == "in-transaction"
        assert reason_of(lambda: runtime.transaction(max_ms=1).__enter__()) == "in-transaction"
        assert reason_of(lambda: transaction.transaction(max_ms=1)) == "in-transaction"
        assert reason_of(lambda: transaction.subscribe(KIND, None)) == "in-transaction"
        assert reason_of(lambda: transaction.stream("", 0)) == "in-transaction"
        assert reason_of(lambda: transaction.spool(b"")) == "in-transaction"
    assert runtime.read(notes) == []
    runtime.close()


def test_a_task_started_inside_a_transaction_may_use_the_store_after_it(options: Options) -> None:
    async def scenario(runtime: AsyncRuntime) -> None:
        ended = asyncio.Event()

        async def later() -> list[str]:
            await ended.wait()
            return await runtime.read(notes)

        async with runtime.transaction(max_ms=PATIENCE_S * 1000) as transaction:
            await transaction.write(write_note, "n")
            task = asyncio.create_task(later())
        ended.set()
        assert await task == ["n"]

    with_runtime(options, scenario)


def test_calls_of_one_transaction_at_once_run_one_after_another(options: Options) -> None:
    async def scenario(runtime: AsyncRuntime) -> None:
        async with runtime.transaction(max_ms=PATIENCE_S * 1000) as transaction:
            await asyncio.gather(*(transaction.write(write_note, name) for name in "abcdef"))
        assert await runtime.read(notes) == list("abcdef")

    with_runtime(options, scenario)


def test_a_transaction_that_takes_too_long_is_rolled_back(options: Options) -> None:
    runtime = open_sync_runtime(options, PROBES)

    def use() -> None:
        with runtime.transaction(max_ms=1) as transaction:
            while True:  # until the deadline has passed
                transaction.execute("SELECT 1")

    with pytest.raises(Busy, match="max_ms = 1"):
        use()
    assert runtime.read(notes) == []
    runtime.close()


def test_a_callers_connection_joins_its_own_transaction(pg_url: str, pg_schema: str) -> None:
    async def scenario(runtime: AsyncRuntime) -> None:
        connection = await asyncpg.connect(pg_url)
        async with connection.transaction():
            async with runtime.transaction(max_ms=PATIENCE_S * 1000, connection=connection) as transaction:
                await transaction.write(write_note, "n")
            assert await runtime.read(notes) == []  # it is the caller's COMMIT that counts
        assert await runtime.read(notes) == ["n"]
        await connection.close()

    with_runtime(Options(url=pg_url, schema=pg_schema), scenario)


def test_a_callers_connection_or_pool_is_refused_where_it_cannot_work(sqlite: Options, pg_url: str, pg_schema: str) -> None:
    postgres = Options(url=pg_url, schema=pg_schema)
    for options in (sqlite, postgres):
        runtime = open_sync_runtime(options, PROBES)
        with pytest.raises(InvalidArgument):
            runtime.transaction(max_ms=1, connection=object()).__enter__()
        runtime.close()
    with pytest.raises(InvalidArgument):
        open_sync_runtime(Options(pool=object()), PROBES)


# The portal


@pytest.fixture
def portal() -> Iterator[Portal]:
    portal = Portal()
    yield portal
    portal.close()
    portal.close()


def test_a_portal_hands_over_items_and_closes_a_stream_left_early(portal: Portal) -> None:
    ended: list[str] = []

    async def numbers() -> AsyncGenerator[int]:
        try:
            for number in range(3):
                yield number
        finally:
            ended.append("closed")

    assert list(portal.iterate(numbers())) == [0, 1, 2]
    stream = portal.iterate(numbers())
    assert next(stream) == 0
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]  # it is a generator
    portal.close()  # closing a stream never waits, but it happens before the loop ends
    assert ended == ["closed", "closed"]


def test_work_in_a_thread_answers_or_raises() -> None:
    assert settle(in_thread(lambda: 3)) == 3
    with pytest.raises(ZeroDivisionError):
        settle(in_thread(lambda: 1 // 0))


def test_a_store_opened_many_times_at_once_migrates_once(sqlite: Options) -> None:
    async def scenario() -> None:
        runtimes = await asyncio.gather(*(open_async_runtime(sqlite, PROBES) for _ in range(4)))
        await asyncio.gather(*(runtime.write(write_note, str(number)) for number, runtime in enumerate(runtimes)))
        assert await runtimes[0].read(notes) == ["0", "1", "2", "3"]
        await asyncio.gather(*(runtime.close() for runtime in runtimes))

    asyncio.run(scenario())


def test_a_refusal_of_postgresql_is_freed_with_its_last_reference(pg_url: str, pg_schema: str) -> None:
    """What a refused call was given must not wait for the collector of circles: it may be a large commit."""

    class Given:
        pass

    def refused(given: Given) -> Op[None]:
        yield from notes()
        raise NotFound("note", "x")

    async def scenario(runtime: AsyncRuntime) -> None:
        given = Given()
        kept = weakref.ref(given)
        with contextlib.suppress(NotFound):
            await runtime.write(refused, given)
        del given
        for _ in range(3):  # the loop's own references to what is done
            await asyncio.sleep(0)
        assert kept() is None

    gc.disable()
    try:
        with_runtime(Options(url=pg_url, schema=pg_schema), scenario)
    finally:
        gc.enable()


def test_a_refused_statement_reaches_the_caller_with_the_operation_in_its_traceback(options: Options) -> None:
    def broken() -> Op[int]:
        return (yield from execute("INSERT INTO {digests} (attachment_id, byte_len) VALUES (:one, 1), (:one, 1)", one="x"))

    runtime = open_sync_runtime(options, PROBES)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which error is the driver's matter
        runtime.write(broken)
    assert "broken" in [entry.name for entry in caught.traceback]
    runtime.close()
