"""Opens a runtime: parse the url, start the driver, bring the schema up to date, choose where attachment bytes go."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lash_store.blobs.database import DatabaseBytes
from lash_store.blobs.protocol import ByteStore
from lash_store.db.driver import Call, Mode, RingHook
from lash_store.db.migrate import open_sqlite
from lash_store.db.sqlite import SqliteDriver
from lash_store.errors import InvalidArgument, Misuse
from lash_store.notify.hub import AsyncSubscription, Hub, Probes, Subscription, SyncSubscription
from lash_store.ops.statement import Op
from lash_store.ops.watch import PROBES
from lash_store.store.guard import check_no_loop
from lash_store.store.options import Options
from lash_store.store.portal import Portal, in_thread, settle
from lash_store.store.runtime import AsyncEngine, AsyncRuntime, SyncBytes, SyncEngine, SyncRuntime
from lash_store.store.sqlite_engine import AsyncSqlite, SqliteEngine, SyncSqlite, finished
from lash_store.store.url import Target

if TYPE_CHECKING:  # asyncpg is an extra; SQLite works without it
    from lash_store.store.postgres_engine import PostgresEngine

log = logging.getLogger("lash_store")

T = TypeVar("T")
S = TypeVar("S", bound=Subscription)
Run = Callable[[Call[T], Mode], Awaitable[T]]
ATTACHMENTS_SUFFIX = ".attachments"
POSIX = os.name == "posix"


async def open_async_runtime(options: Options, probes: Probes = PROBES) -> AsyncRuntime:
    """A runtime on the running loop. Nothing stays open when it raises."""
    target = options.target()
    loop = asyncio.get_running_loop()
    if target.engine == "sqlite":
        hub = Hub(AsyncSubscription, probes=probes, deliver=partial(_deliver, loop), max_waiters=options.limits.active_waiters)
        engine: AsyncEngine = AsyncSqlite(await _opened(in_thread(partial(_open_sqlite, target, options, hub))), hub)
    else:
        hub = Hub(AsyncSubscription, probes=probes, max_waiters=options.limits.active_waiters)
        engine = await _open_postgres(target, options, hub)
    runtime = AsyncRuntime(engine, options)
    runtime.blobs = _byte_store(options.blobs, target, engine.run)
    return runtime


def open_sync_runtime(options: Options, probes: Probes = PROBES) -> SyncRuntime:
    """A runtime for threads. Nothing stays open when it raises."""
    if not options.in_loop:
        check_no_loop()
    target = options.target()
    hub = Hub(SyncSubscription, probes=probes, max_waiters=options.limits.active_waiters)
    portal = Portal()
    try:
        engine = _sync_engine(target, options, hub, portal)
    except BaseException:
        portal.close()
        raise
    runtime = SyncRuntime(engine, options, portal)
    runtime.blobs = SyncBytes(_byte_store(options.blobs, target, engine.run_on_loop), portal)
    return runtime


def _sync_engine(target: Target, options: Options, hub: Hub[SyncSubscription], portal: Portal) -> SyncEngine:
    if target.engine == "sqlite":
        opening = in_thread(partial(_open_sqlite, target, options, hub))
        try:
            return SyncSqlite(settle(opening), hub)
        except KeyboardInterrupt:
            opening.add_done_callback(_close_again)
            raise
    if options.pool is not None:
        raise InvalidArgument("pool", "only AsyncStore takes the caller's pool: it belongs to the caller's loop")
    with _extra():
        from lash_store.store.postgres_engine import open_sync_engine
    return open_sync_engine(target, options, hub, portal)


def _open_sqlite(target: Target, options: Options, hub: Hub[Any]) -> SqliteEngine:
    engine = SqliteEngine(target, hub, partial(_sqlite_driver, target, options))
    try:
        open_sqlite(engine.driver, migrate=options.may_migrate)
    except BaseException:
        engine.close()
        raise
    return engine


def _sqlite_driver(target: Target, options: Options, ring: RingHook) -> SqliteDriver:
    assert target.path is not None
    return SqliteDriver.open(
        target.path,
        ring=ring,
        durability=options.durability,
        on_statement=options.on_statement,
        read_only=options.read_only,
    )


async def _opened(opening: Future[SqliteEngine]) -> SqliteEngine:
    try:
        return await finished(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_again)
        raise


def _close_again(opening: Future[SqliteEngine]) -> None:
    if opening.exception() is None:
        in_thread(opening.result().close)


async def _open_postgres(target: Target, options: Options, hub: Hub[Any]) -> PostgresEngine:
    with _extra():
        from lash_store.store.postgres_engine import open_engine
    return await open_engine(target, options, hub)


@contextmanager
def _extra() -> Generator[None]:
    """PostgreSQL's half of the package is imported when it is first needed: asyncpg is an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        message = "PostgreSQL needs asyncpg, which is not installed: pip install 'lash-store[postgres]'"
        raise Misuse("missing-extra", message) from error


def _byte_store(chosen: Any, target: Target, run: Run[Any]) -> ByteStore:
    """None: beside a SQLite file, else in the database. "database", a directory, or a byte store of the caller's."""
    beside = chosen is None and target.path is not None and not target.in_memory and POSIX
    if beside and target.path is not None:
        return _directory(target.path + ATTACHMENTS_SUFFIX)
    if chosen is None or chosen == "database":
        return DatabaseBytes(partial(_run_op, run, Mode.READ), partial(_run_op, run, Mode.WRITE), durable=not target.in_memory)
    if isinstance(chosen, str | os.PathLike):
        return _directory(os.fspath(chosen))
    return chosen


def _directory(path: str) -> ByteStore:
    # Imported late: it locks and syncs files in ways that only POSIX systems have.
    from lash_store.blobs.filesystem import FilesystemBytes

    return FilesystemBytes(Path(path))


async def _run_op(run: Run[T], mode: Mode, op: Callable[..., Op[T]], *args: Any, **kwargs: Any) -> T:
    return await run(partial(op, *args, **kwargs), mode)


def _deliver(loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(wake)
    except RuntimeError:
        log.debug("a ring came after its event loop was closed; nobody can be waiting there")
