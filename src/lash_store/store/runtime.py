"""What the facades stand on, twice: AsyncRuntime for tasks, SyncRuntime for threads, with the same method names.

A runtime checks that it may be called, hands the operation to its engine, and waits. An operation that has started runs to
its end: a cancelled task and Ctrl-C give up the answer, never the operation.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar

from lash_store.blobs.protocol import ByteStore, verified
from lash_store.blobs.spool import Source, Spool, spool_async
from lash_store.db.dialect import Dialect
from lash_store.db.driver import AsyncTransaction, Call, Mode
from lash_store.delta import Held
from lash_store.encode import Encoder
from lash_store.errors import Misuse
from lash_store.model.limits import Limits
from lash_store.model.maintenance import BackupReport
from lash_store.notify.hub import AsyncSubscription, Hub, SyncSubscription
from lash_store.ops.statement import Op
from lash_store.payload_schema import Schemas
from lash_store.store.guard import Guard, check_loop, check_no_loop, entered, left
from lash_store.store.options import Options
from lash_store.store.portal import Portal
from lash_store.store.registrations import Registrations

log = logging.getLogger("lash_store")

T = TypeVar("T")
P = ParamSpec("P")


class EngineDriver(Protocol):
    """What a runtime shows of the driver below it."""

    @property
    def dialect(self) -> Dialect: ...
    @property
    def path(self) -> str | None: ...
    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> BackupReport: ...


class AsyncEngine(Protocol):
    """A database for tasks. Its operations survive the cancellation of their caller."""

    name: str
    hub: Hub[AsyncSubscription]

    @property
    def driver(self) -> EngineDriver: ...

    async def run(self, call: Call[T], mode: Mode) -> T: ...
    async def begin(self, max_ms: int, connection: Any) -> AsyncTransaction: ...
    async def close(self) -> None: ...


class SyncTransaction(Protocol):
    """An interactive transaction for a thread."""

    def run(self, call: Call[T]) -> T: ...
    def execute(self, sql: str, *params: object) -> list[tuple[Any, ...]]: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class SyncEngine(Protocol):
    """A database for threads. Its operations survive Ctrl-C."""

    name: str
    hub: Hub[SyncSubscription]

    @property
    def driver(self) -> EngineDriver: ...

    def run(self, call: Call[T], mode: Mode) -> T: ...
    async def run_on_loop(self, call: Call[T], mode: Mode) -> T: ...
    def begin(self, max_ms: int, connection: Any) -> SyncTransaction: ...
    def close(self) -> None: ...


class _Common:
    """What both runtimes know."""

    in_transaction = False

    def __init__(self, options: Options, engine_name: str, driver: EngineDriver) -> None:
        self.limits: Limits = options.limits
        self.encoder = Encoder(options.limits)
        self.held = Held()
        self.schemas = Schemas()
        self.registrations = Registrations()
        self.engine = engine_name
        self.driver = driver
        self.dialect = driver.dialect
        self.settled_key_retention_ms = options.settled_key_retention_ms
        self._read_only = options.read_only
        self._guard = Guard()

    def check_writable(self) -> None:
        """Raise Misuse when the store was opened to look only."""
        if self._read_only:
            raise Misuse("read-only", "the store was opened with read_only=True; open it without to change anything.")


class AsyncRuntime(_Common):
    """A store's engine room for one event loop."""

    blobs: ByteStore

    def __init__(self, engine: AsyncEngine, options: Options) -> None:
        super().__init__(options, engine.name, engine.driver)
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Task[None] | None = None

    async def read(self, op: Callable[P, Op[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation that only looks, on one snapshot."""
        self.check()
        return await self._engine.run(partial(op, *args, **kwargs), Mode.READ)

    async def write(self, op: Callable[P, Op[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in a transaction of its own."""
        self.check()
        self.check_writable()
        return await self._engine.run(partial(op, *args, **kwargs), Mode.WRITE)

    async def offload(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that takes the processor's time in a thread."""
        self.check()
        return await asyncio.to_thread(fn, *args, **kwargs)

    async def spool(self, data: Source | AsyncIterable[bytes]) -> Spool:
        """Take in an attachment's bytes, hashed and measured."""
        self.check()
        return await spool_async(data, self.limits)

    def stream(self, attachment_id: str, byte_len: int) -> AsyncIterator[bytes]:
        """An attachment's bytes in chunks, or Corrupt at their end."""
        self.check()
        return verified(self.blobs.read(attachment_id), attachment_id, byte_len)

    def subscribe(self, kind: str, id: str | None, seen: int = 0) -> AsyncSubscription:
        """A waiter. Subscribe, then check, then wait: no ring is lost in between."""
        self.check()
        return self._engine.hub.subscribe(kind, id, seen)

    @asynccontextmanager
    async def transaction(self, *, max_ms: int, connection: Any = None) -> AsyncGenerator[AsyncTransactionRuntime]:
        """Several operations and the application's SQL in one transaction: leaving commits, an exception rolls back."""
        self.check()
        self.check_writable()
        max_ms = self.encoder.duration(max_ms, "max_ms", minimum=1)
        transaction = AsyncTransactionRuntime(self, await self._engine.begin(max_ms, connection))
        entered(transaction)
        try:
            yield transaction
        except BaseException:
            await transaction.give_up()
            raise
        else:
            await transaction.commit()
        finally:
            left(transaction)

    async def close(self) -> None:
        """Finish what was begun, then let go of everything. Idempotent; a forked child has nothing to let go of."""
        if self._guard.forked:
            return
        if self._closing is None:
            self.check()
            self._guard.closed = True
            self._closing = self._loop.create_task(self._engine.close())
        check_loop(self._loop)
        await asyncio.shield(self._closing)

    def check(self) -> None:
        """Raise Misuse unless this runtime may be called here and now."""
        self._guard.check(self)
        check_loop(self._loop)

    def check_inside(self) -> None:
        """The checks that hold inside a transaction too."""
        self._guard.check_process()
        check_loop(self._loop)


class AsyncTransactionRuntime:
    """An AsyncRuntime whose operations all belong to one open transaction."""

    in_transaction = True

    def __init__(self, runtime: AsyncRuntime, transaction: AsyncTransaction) -> None:
        self.owner = runtime
        self.is_open = True
        self.limits, self.encoder, self.held = runtime.limits, runtime.encoder, runtime.held
        self.schemas, self.registrations = runtime.schemas, runtime.registrations
        self.engine, self.settled_key_retention_ms = runtime.engine, runtime.settled_key_retention_ms
        self.blobs = runtime.blobs
        self._transaction = transaction

    async def read(self, op: Callable[P, Op[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in a savepoint: a refusal leaves the transaction usable."""
        self._check()
        return await self._transaction.run(partial(op, *args, **kwargs))

    async def write(self, op: Callable[P, Op[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same as `read`: the transaction already holds what a write needs."""
        self._check()
        return await self._transaction.run(partial(op, *args, **kwargs))

    async def execute(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """Run the application's own SQL, in the engine's own parameter style."""
        self._check()
        return await self._transaction.execute(sql, *params)

    async def offload(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that takes the processor's time in a thread."""
        self._check()
        return await asyncio.to_thread(fn, *args, **kwargs)

    async def spool(self, data: Source | AsyncIterable[bytes]) -> NoReturn:
        """Refused: bytes are stored before the transaction that names them."""
        _no_bytes()

    def stream(self, attachment_id: str, byte_len: int) -> NoReturn:
        """Refused: a stream would outlive the transaction."""
        _no_bytes()

    def subscribe(self, kind: str, id: str | None, seen: int = 0) -> NoReturn:
        """Refused: waiting would hold the transaction's locks."""
        _no_waiting()

    def transaction(self, *, max_ms: int, connection: Any = None) -> NoReturn:
        """Refused: a transaction has no second one inside."""
        _no_nesting()

    async def commit(self) -> None:
        """Make everything durable; notifications leave afterwards."""
        self.is_open = False
        await self._transaction.commit()

    async def give_up(self) -> None:
        """Roll back. The reason for it must reach the caller, so a failure to do so is only logged."""
        self.is_open = False
        try:
            await self._transaction.rollback()
        except Exception:
            log.exception("rolling back failed; the database rolls back when the connection ends")

    def _check(self) -> None:
        if not self.is_open:
            _ended()
        self.owner.check_inside()


class SyncRuntime(_Common):
    """A store's engine room for threads."""

    blobs: SyncBytes

    def __init__(self, engine: SyncEngine, options: Options, portal: Portal) -> None:
        super().__init__(options, engine.name, engine.driver)
        self._engine = engine
        self._portal = portal
        self._in_loop = options.in_loop
        self._close_lock = threading.Lock()

    def read(self, op: Callable[P, Op[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation that only looks, on one snapshot."""
        self.check()
        return self._engine.run(partial(op, *args, **kwargs), Mode.READ)

    def write(self, op: Callable[P, Op[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in a transaction of its own."""
        self.check()
        self.check_writable()
        return self._engine.run(partial(op, *args, **kwargs), Mode.WRITE)

    def offload(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that takes the processor's time, here: the caller is a thread already."""
        self.check()
        return fn(*args, **kwargs)

    def spool(self, data: Source) -> Spool:
        """Take in an attachment's bytes, hashed and measured."""
        self.check()
        return Spool.of(data, self.limits)

    def stream(self, attachment_id: str, byte_len: int) -> Iterator[bytes]:
        """An attachment's bytes in chunks, or Corrupt at their end."""
        self.check()
        return self.blobs.verified(attachment_id, byte_len)

    def subscribe(self, kind: str, id: str | None, seen: int = 0) -> SyncSubscription:
        """A waiter. Subscribe, then check, then wait: no ring is lost in between."""
        self.check()
        return self._engine.hub.subscribe(kind, id, seen)

    @contextmanager
    def transaction(self, *, max_ms: int, connection: Any = None) -> Generator[SyncTransactionRuntime]:
        """Several operations and the application's SQL in one transaction: leaving commits, an exception rolls back."""
        self.check()
        self.check_writable()
        max_ms = self.encoder.duration(max_ms, "max_ms", minimum=1)
        transaction = SyncTransactionRuntime(self, self._engine.begin(max_ms, connection))
        entered(transaction)
        try:
            yield transaction
        except BaseException:
            transaction.give_up()
            raise
        else:
            transaction.commit()
        finally:
            left(transaction)

    def close(self) -> None:
        """Finish what was begun, then let go of everything. Idempotent; a forked child has nothing to let go of."""
        if self._guard.forked:
            return
        with self._close_lock:
            if not self._guard.closed:
                self.check()
                self._guard.closed = True
                self._engine.close()
                self._portal.close()

    def check(self) -> None:
        """Raise Misuse unless this runtime may be called here and now."""
        self._guard.check(self)
        self.check_inside()

    def check_inside(self) -> None:
        """The checks that hold inside a transaction too."""
        self._guard.check_process()
        if self._portal.entered_by_caller():
            raise Misuse("in-loop", "the store was called from its own background loop, which would wait for itself.")
        if not self._in_loop:
            check_no_loop()


class SyncTransactionRuntime:
    """A SyncRuntime whose operations all belong to one open transaction."""

    in_transaction = True

    def __init__(self, runtime: SyncRuntime, transaction: SyncTransaction) -> None:
        self.owner = runtime
        self.is_open = True
        self.limits, self.encoder, self.held = runtime.limits, runtime.encoder, runtime.held
        self.schemas, self.registrations = runtime.schemas, runtime.registrations
        self.engine, self.settled_key_retention_ms = runtime.engine, runtime.settled_key_retention_ms
        self.blobs = runtime.blobs
        self._transaction = transaction

    def read(self, op: Callable[P, Op[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in a savepoint: a refusal leaves the transaction usable."""
        self._check()
        return self._transaction.run(partial(op, *args, **kwargs))

    def write(self, op: Callable[P, Op[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same as `read`: the transaction already holds what a write needs."""
        self._check()
        return self._transaction.run(partial(op, *args, **kwargs))

    def execute(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """Run the application's own SQL, in the engine's own parameter style."""
        self._check()
        return self._transaction.execute(sql, *params)

    def offload(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work that takes the processor's time, here."""
        self._check()
        return fn(*args, **kwargs)

    def spool(self, data: Source) -> NoReturn:
        """Refused: bytes are stored before the transaction that names them."""
        _no_bytes()

    def stream(self, attachment_id: str, byte_len: int) -> NoReturn:
        """Refused: a stream would outlive the transaction."""
        _no_bytes()

    def subscribe(self, kind: str, id: str | None, seen: int = 0) -> NoReturn:
        """Refused: waiting would hold the transaction's locks."""
        _no_waiting()

    def transaction(self, *, max_ms: int, connection: Any = None) -> NoReturn:
        """Refused: a transaction has no second one inside."""
        _no_nesting()

    def commit(self) -> None:
        """Make everything durable; notifications leave afterwards."""
        self.is_open = False
        self._transaction.commit()

    def give_up(self) -> None:
        """Roll back. The reason for it must reach the caller, so a failure to do so is only logged."""
        self.is_open = False
        try:
            self._transaction.rollback()
        except Exception:
            log.exception("rolling back failed; the database rolls back when the connection ends")

    def _check(self) -> None:
        if not self.is_open:
            _ended()
        self.owner.check_inside()


class SyncBytes:
    """A byte store for threads: the same one, on the portal's loop."""

    def __init__(self, store: ByteStore, portal: Portal) -> None:
        self.durable = store.durable
        self._store = store
        self._portal = portal

    def put(self, attachment_id: str, source: Spool) -> None:
        """Keep the bytes; idempotent."""
        self._portal.call(self._store.put(attachment_id, source))

    def exists(self, attachment_id: str, byte_len: int) -> bool:
        """Whether bytes of this name and length are there."""
        return self._portal.call(self._store.exists(attachment_id, byte_len))

    def read(self, attachment_id: str) -> Iterator[bytes]:
        """The bytes in chunks, unverified."""
        return self._portal.iterate(self._store.read(attachment_id))

    def verified(self, attachment_id: str, byte_len: int) -> Iterator[bytes]:
        """The bytes in chunks, or Corrupt at their end."""
        return self._portal.iterate(verified(self._store.read(attachment_id), attachment_id, byte_len))

    def delete(self, attachment_id: str) -> None:
        """Remove the bytes, if they are there."""
        self._portal.call(self._store.delete(attachment_id))


def _no_bytes() -> NoReturn:
    raise Misuse("in-transaction", "attachment bytes are not put or streamed inside a transaction. Use the store, outside of it.")


def _no_waiting() -> NoReturn:
    raise Misuse("in-transaction", "waiting inside a transaction would hold its locks. Wait on the store, outside of it.")


def _no_nesting() -> NoReturn:
    raise Misuse("in-transaction", "a transaction cannot be opened inside another. Use the open one.")


def _ended() -> NoReturn:
    raise Misuse("closed", "this transaction has ended. Open another one.")
