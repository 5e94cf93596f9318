"""Laws of transactions: several operations and the application's own SQL, all or nothing."""

from __future__ import annotations

import asyncio

from lash_store.errors import Busy, Misuse, NotFound, RevisionConflict, StoreError
from lash_store.model.commit import Commit
from lash_store.model.usage import Usage
from lash_store.testing.backend import Backend
from lash_store.testing.steps import append, claimed, node_ids, nothing_changes, refused, say, soon, texts, until, work


class _Changed(Exception):
    """What the application raises inside a transaction."""


async def a_transaction_commits_everything_together(backend: Backend) -> None:
    """Operations on several sessions and on the queue are visible to others only after the end."""
    store, other = await backend.open(), await backend.open()
    for session_id in ("a", "b"):
        await store.sessions.create(session_id)
    await work(store, "a", "job")
    claim = await claimed(store, "a")
    async with store.transaction() as tx:
        await tx.sessions.commit("a", Commit(expected_revision=0, graph=append("x"), completes=[claim]))
        await tx.queue.enqueue("b", [{"text": "next"}])
        assert node_ids(await tx.sessions.load("a")) == ["x"]
        assert (await other.sessions.load("a")).nodes == ()
        assert (await other.queue.depth("b")).ready == 0
    assert node_ids(await other.sessions.load("a")) == ["x"]
    assert texts((await other.queue.list("b")).batches) == ["next"]


async def an_exception_rolls_everything_back(backend: Backend) -> None:
    """Leaving with an error leaves nothing behind, and the error is the caller's own."""
    store = await backend.open()
    await say(store, "s", "a")
    async with nothing_changes(backend):
        with refused(_Changed):
            async with store.transaction() as tx:
                await tx.session("s").commit(Commit(expected_revision=1, graph=append("b")))
                await tx.sessions.create("new")
                raise _Changed
    await say(store, "s", "b")


async def a_refusal_inside_leaves_the_transaction_usable(backend: Backend) -> None:
    """Each operation runs in a savepoint: a refused one is undone alone, and the rest commits."""
    store = await backend.open()
    await say(store, "s", "a")
    async with store.transaction() as tx:
        await tx.sessions.commit("s", Commit(expected_revision=1, graph=append("b")))
        with refused(RevisionConflict):
            await tx.sessions.commit(
                "s", Commit(expected_revision=1, graph=append("c"), usage=[Usage(source="s", model="m", input=1)])
            )
        with refused(NotFound):
            await tx.queue.enqueue("none", [1])
        await tx.sessions.commit("s", Commit(expected_revision=2, graph=append("d")))
    assert node_ids(await store.sessions.load("s")) == ["a", "b", "d"]
    assert await store.sessions.usage("s") == ()


async def the_applications_own_sql_shares_the_transaction(backend: Backend) -> None:
    """execute runs on the same connection: its rows commit and roll back with the store's, in any order."""
    store = await backend.open()
    table = backend.table("application")
    await backend.raw(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, note TEXT)")
    async with store.transaction() as tx:
        await tx.execute(f"INSERT INTO {table} (id, note) VALUES ($1, $2)", 1, "kept")
        await tx.sessions.commit("s", Commit(expected_revision=0, graph=append("a")))
        rows = await tx.execute(f"SELECT note FROM {table} WHERE id = $1", 1)
        assert [tuple(row) for row in rows] == [("kept",)]
    with refused(_Changed):
        async with store.transaction() as tx:
            await tx.sessions.commit("s", Commit(expected_revision=1, graph=append("b")))
            await tx.execute(f"INSERT INTO {table} (id, note) VALUES ($1, $2)", 2, "lost")
            raise _Changed
    assert await backend.raw(f"SELECT id FROM {table}") == [(1,)]
    assert node_ids(await store.sessions.load("s")) == ["a"]


async def a_failed_statement_of_the_application_leaves_the_transaction_usable(backend: Backend) -> None:
    """Application SQL runs in a savepoint, too."""
    store = await backend.open()
    async with store.transaction() as tx:
        await tx.sessions.create("s")
        with refused(Exception):
            await tx.execute("SELECT * FROM no_such_table_anywhere")
        await tx.sessions.commit("s", Commit(expected_revision=0, graph=append("a")))
    assert node_ids(await store.sessions.load("s")) == ["a"]


async def the_store_itself_cannot_be_used_inside_its_own_transaction(backend: Backend) -> None:
    """A call past the transaction would wait for it forever or see another state: it is Misuse at once."""
    store = await backend.open()
    await say(store, "s", "a")
    async with store.transaction() as tx:
        with refused(Misuse, reason="in-transaction"):
            await store.sessions.load("s")
        with refused(Misuse, reason="in-transaction"):
            await say(store, "s", "b")
        with refused(Misuse, reason="in-transaction"):
            await store.session("s").get()
        await tx.sessions.commit("s", Commit(expected_revision=1, graph=append("b")))
    assert node_ids(await store.sessions.load("s")) == ["a", "b"]


async def a_transaction_that_takes_too_long_is_rolled_back(backend: Backend) -> None:
    """After max_ms every call is Busy, nothing is stored, and others go on."""
    store, other = await backend.open(), await backend.open()
    await say(store, "s", "a")

    async with nothing_changes(backend):
        with refused(Busy):
            async with store.transaction(max_ms=50) as tx:
                await tx.sessions.commit("s", Commit(expected_revision=1, graph=append("b")))
                await until(lambda: _is_busy(tx))
                await tx.sessions.load("s")
    await soon(say(other, "s", "c"))
    assert node_ids(await store.sessions.load("s")) == ["a", "c"]


async def a_transaction_cannot_be_used_after_its_end(backend: Backend) -> None:
    """What was kept of it raises, and changes nothing."""
    store = await backend.open()
    async with store.transaction() as tx:
        await tx.sessions.create("s")
    async with nothing_changes(backend):
        with refused(StoreError):
            await tx.sessions.commit("s", Commit(expected_revision=0, graph=append("a")))


async def waiters_are_woken_after_the_transaction_not_inside(backend: Backend) -> None:
    """Work enqueued in a transaction is announced when it is committed; a rolled back one announces nothing that is there."""
    store, other = await backend.open(), await backend.open()
    await store.sessions.create("s")
    waiting = asyncio.create_task(other.queue.wait_ready("s", timeout_ms=20_000))
    async with store.transaction() as tx:
        await tx.queue.enqueue("s", [1])
        await asyncio.sleep(0)
        assert not waiting.done()
    assert await soon(waiting)


async def transactions_of_two_tasks_do_not_mix(backend: Backend) -> None:
    """Each task has its own transaction; both commit, one after the other where they meet."""
    store = await backend.open()
    await store.sessions.create("s")

    async def turn(name: str) -> None:
        async with store.transaction() as tx:
            session = await tx.sessions.get("s")
            with_name = Commit(expected_revision=None, graph=append(name))
            await tx.sessions.commit("s", with_name)
            assert (await tx.sessions.get("s")).revision > session.revision

    await asyncio.gather(*(turn(f"n{i}") for i in range(4)))
    assert sorted(node_ids(await store.sessions.load("s"))) == ["n0", "n1", "n2", "n3"]


async def _is_busy(tx: object) -> bool:
    try:
        await tx.sessions.get("s")  # pyright: ignore[reportAttributeAccessIssue]
    except Busy:
        return True
    return False
