"""What both drivers share: modes, the statement hook, and stepping through an operation.

A driver makes a `Running` of a call, asks the database what `start` and then `send` return until that is None, and
finds `result` and `rings` on it. When the database refuses, it raises through `fail`, from inside the operation.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from msgspec import Struct

from lash_store.db.dialect import Dialect
from lash_store.ops.statement import Execute, ExecuteMany, Fetch, Ring, Shortcut, Statement

T = TypeVar("T")

# A fresh generator at every call: a driver may run an operation again when nothing of it was published.
Call = Callable[[], Generator[Statement, Any, T]]
Query = Fetch | Execute | ExecuteMany
RingHook = Callable[[Sequence[Ring]], None]

_log = logging.getLogger("lash_store")


class Mode(Enum):
    """READ sees one snapshot and never writes; WRITE is atomic and sees what is committed when it looks."""

    READ = "read"
    WRITE = "write"


class StatementEvent(Struct, frozen=True):
    """One statement that ran: the template, never a value."""

    operation: str
    sql: str
    rows: int  # returned by a Fetch, changed by an Execute
    duration_ns: int
    engine: str


StatementHook = Callable[[StatementEvent], None]


class Running(Generic[T]):
    """One run of an operation. Rings are kept aside until the driver has committed."""

    result: T

    def __init__(self, call: Call[T]) -> None:
        self._generator = call()
        self.operation: str = getattr(self._generator, "__qualname__", type(self._generator).__name__)
        self.rings: list[Ring] = []

    def start(self) -> Query | None:
        """The first statement, or None when the operation needs no database and `result` is set."""
        return self.send(None)

    def start_with_shortcut(self) -> Query | Shortcut | None:
        """The same for a driver that has functions to call."""
        return self._next(None)

    def send(self, answer: object) -> Query | None:
        """Answer the last statement; the next one, or None when `result` is set. A shortcut is not taken."""
        statement = self._next(answer)
        while isinstance(statement, Shortcut):
            statement = self._next(None)
        return statement

    def _next(self, answer: object) -> Query | Shortcut | None:
        try:
            statement = self._generator.send(answer)
            while isinstance(statement, Ring):
                self.rings.append(statement)
                statement = self._generator.send(None)
        except StopIteration as stop:
            self.result = stop.value
            return None
        return statement

    def fail(self, error: BaseException) -> NoReturn:
        """Raise `error` at the statement that failed, so that the traceback shows the operation."""
        try:
            self._generator.throw(error)
        except StopIteration:
            pass
        finally:
            self._generator.close()
        # The statement failed and its transaction with it: an operation cannot decide to go on.
        raise error

    def close(self) -> None:
        """Drop the operation where it stands."""
        self._generator.close()


class StatementClock:
    """Times statements for a hook. Without a hook it costs one comparison."""

    def __init__(self, hook: StatementHook | None, engine: str) -> None:
        self._hook = hook
        self._engine = engine
        self.runs = hook is not None

    def start_ns(self) -> int:
        return 0 if self._hook is None else time.perf_counter_ns()

    def stop(self, operation: str, sql: str, answer: Sequence[object] | int, started_ns: int) -> None:
        """Report one statement. A hook that raises is logged: it must not decide over the operation."""
        if self._hook is None:
            return
        rows = answer if isinstance(answer, int) else len(answer)
        event = StatementEvent(operation, sql, rows, time.perf_counter_ns() - started_ns, self._engine)
        try:
            self._hook(event)
        except Exception:  # noqa: BLE001 - the hook is the application's; whatever it raises must not break the operation
            _log.exception("on_statement raised; the operation %s goes on", operation)


class AsyncTransaction(Protocol):
    """Several operations and the application's own SQL in one transaction; each in a savepoint."""

    async def run(self, call: Call[T]) -> T: ...
    async def execute(self, sql: str, *params: object) -> list[tuple[Any, ...]]: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


class ThreadTransaction(Protocol):
    """The same, answered by threads."""

    def run(self, call: Call[T]) -> Future[T]: ...
    def execute(self, sql: str, *params: object) -> Future[list[tuple[Any, ...]]]: ...
    def commit(self) -> Future[None]: ...
    def rollback(self) -> Future[None]: ...


class AsyncDriver(Protocol):
    """A driver that lives on an event loop."""

    dialect: Dialect

    async def run(self, call: Call[T], mode: Mode) -> T: ...
    async def close(self) -> None: ...
    def know_versions(self, *, found: int, expected: int) -> None: ...


class ThreadDriver(Protocol):
    """A driver that owns threads."""

    dialect: Dialect

    def submit(self, call: Call[T], mode: Mode) -> Future[T]: ...
    def close(self) -> None: ...
    def know_versions(self, *, found: int, expected: int) -> None: ...
