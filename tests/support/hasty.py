"""A planted bug for negative controls: drivers that answer before COMMIT, on a disk that takes its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

from lash_store.db import pool, postgres, postgres_session, sqlite_writer

SLOW_COMMIT_S = 0.005  # stretches the moment in which the answer is out and the commit is not

_early: ContextVar[asyncio.Future[Any] | None] = ContextVar("early", default=None)


def answer_before_commit() -> None:
    """Plant it in this process, in both drivers, and in every way of PostgreSQL."""
    _plant_in_sqlite()
    _plant_in_postgres()
    commit_shortcuts_late(SLOW_COMMIT_S)


def _plant_in_sqlite() -> None:
    end: Callable[..., bool] = vars(sqlite_writer.Writer)["_end"]
    answer = sqlite_writer.Work.answer

    def answer_once(work: sqlite_writer.Work) -> None:
        if not work.future.done():
            answer(work)

    def hasty(writer: sqlite_writer.Writer, ran: list[sqlite_writer.Work], *, alone: bool) -> bool:
        for work in ran:
            answer_once(work)
        time.sleep(SLOW_COMMIT_S)
        return end(writer, ran, alone=alone)

    setattr(sqlite_writer.Work, "answer", answer_once)  # noqa: B010 - a type checker is right to refuse the plain spelling
    setattr(sqlite_writer.Writer, "_end", hasty)  # noqa: B010 - as above


def _plant_in_postgres() -> None:
    run: Callable[..., Coroutine[Any, Any, Any]] = postgres.PostgresDriver.run
    step: Callable[..., Coroutine[Any, Any, Any]] = postgres_session.Session.run
    commit = postgres_session.Session.commit

    async def hasty(driver: postgres.PostgresDriver, *args: Any, **options: Any) -> Any:
        early = asyncio.get_running_loop().create_future()
        _early.set(early)
        whole = asyncio.get_running_loop().create_task(run(driver, *args, **options))
        await asyncio.wait({whole, early}, return_when=asyncio.FIRST_COMPLETED)
        return early.result() if early.done() else whole.result()

    async def tell(session: postgres_session.Session, *args: Any) -> Any:
        result = await step(session, *args)
        session.__dict__["result"] = result
        return result

    async def late(session: postgres_session.Session) -> None:
        early = _early.get()
        if early is not None and not early.done():
            early.set_result(session.__dict__.get("result"))
        await asyncio.sleep(SLOW_COMMIT_S)
        await commit(session)

    driver: Any = postgres.PostgresDriver
    session: Any = postgres_session.Session
    driver.run, session.run, session.commit = hasty, tell, late


def commit_shortcuts_late(slow_s: float) -> None:
    """Take what a function answers for published: ring and answer first, commit when the connection goes back to its pool."""
    publish, release = postgres_session.Session.publish, pool.OwnPool.release
    commits = set[asyncio.Task[None]]()

    async def unpublished(session: postgres_session.Session, running: Any, shortcut: Any) -> list[Any] | None:
        await session.connection.execute("BEGIN")
        try:
            rows = await publish(session, running, shortcut)
        except BaseException:
            await session.end()
            raise
        if rows is None:
            await session.end()
        return rows

    async def commit(owner: pool.OwnPool, connection: pool.Connection) -> None:
        await asyncio.sleep(slow_s)
        await connection.execute("COMMIT")
        await release(owner, connection, broken=False)

    async def release_uncommitted(owner: pool.OwnPool, connection: pool.Connection, *, broken: bool) -> None:
        if broken or not connection.is_in_transaction():
            await release(owner, connection, broken=broken)
            return
        task = asyncio.get_running_loop().create_task(commit(owner, connection))
        commits.add(task)
        task.add_done_callback(commits.discard)

    session, owner = postgres_session.Session, pool.OwnPool
    setattr(session, "publish", unpublished)  # noqa: B010 - a type checker is right to refuse the plain spelling
    setattr(owner, "release", release_uncommitted)  # noqa: B010 - as above
