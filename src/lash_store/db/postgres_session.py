"""One connection while one transaction runs on it: asks statements, and knows whether the connection may be used again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

from msgspec import Struct

from lash_store.db.dialect import PostgresDialect
from lash_store.db.driver import Query, Running, StatementClock
from lash_store.db.pool import Connection, is_gone
from lash_store.db.postgres_errors import DATABASE_ERRORS, Failure, Versions, is_certain, is_clients, is_declined, understand
from lash_store.errors import Busy, Disconnected
from lash_store.ops.statement import ExecuteMany, Fetch, Shortcut

T = TypeVar("T")

ROLLBACK_S = 5.0  # a rollback is instant; a server that does not answer it has lost the connection


class Shared(Struct):
    """What every session of one driver knows."""

    dialect: PostgresDialect
    clock: StatementClock
    versions: Versions
    timeout_s: float | None  # the client's own limit, behind the server's statement_timeout


class Session:
    """A borrowed connection. `broken` says that it must not be used again, `failure` what the database refused."""

    def __init__(self, connection: Connection, shared: Shared, *, timeout_s: float | None, deadline: float | None = None) -> None:
        self.connection = connection
        self.broken = False
        self.failure: Failure | None = None
        self._shared = shared
        self._timeout_s = timeout_s
        self._deadline = deadline

    async def run(self, running: Running[T], statement: Query | None) -> T:
        """Step through an operation from its first statement to its result."""
        while statement is not None:
            statement = running.send(await self._answer(running, statement))
        return running.result

    async def run_alone(self, running: Running[Any], statement: Query) -> None:
        """Run the only statement of an operation, without a transaction around it."""
        following = running.send(await self._answer(running, statement))
        assert following is None, f"{running.operation} has more statements than the one that was to be alone"

    async def _answer(self, running: Running[Any], statement: Query) -> list[Any] | int:
        started_ns = self._shared.clock.start_ns()
        try:
            answer = await self._ask(statement)
        except DATABASE_ERRORS as error:
            failure = self.note(error)
        else:
            self._shared.clock.stop(running.operation, statement.sql, answer, started_ns)
            return answer
        # Outside of the handler: the original error, which may quote values, is not part of ours.
        return running.fail(failure.error)

    async def _ask(self, statement: Query) -> list[Any] | int:
        compiled = self._shared.dialect.compile(statement.sql)
        if isinstance(statement, Fetch):
            return await self.connection.fetch(compiled.text, *compiled.arguments(statement.params), timeout=self.remaining_s())
        if isinstance(statement, ExecuteMany):
            arguments = compiled.arrays(statement.rows, statement.params)
        else:
            arguments = compiled.arguments(statement.params)
        return changed_rows(await self.connection.execute(compiled.text, *arguments, timeout=self.remaining_s()))

    async def publish(self, running: Running[T], shortcut: Shortcut) -> list[Any] | None:
        """Call a function that is a transaction of its own: its rows, or None if it declined and wrote nothing.

        As with a COMMIT, an answer that does not come leaves the outcome unknown, and the connection unusable.
        """
        self.broken = True
        try:
            rows = await self._call(running, shortcut)
        except DATABASE_ERRORS as error:
            if is_declined(error):
                self.broken = False
                return None
            gone = is_gone(self.connection)
            failure = understand(error, self._shared.versions, gone=gone)
            certain = is_certain(error) or is_clients(error, gone=gone)
        else:
            self.broken = False
            return rows or None
        self.broken = not certain
        return self._refuse_commit(failure, certain=certain)

    async def call(self, running: Running[T], shortcut: Shortcut) -> list[Any] | None:
        """The same inside an open transaction, which a function that declined after its first write leaves unusable."""
        try:
            rows = await self._call(running, shortcut)
        except DATABASE_ERRORS as error:
            if is_declined(error):
                return None
            failure = self.note(error)
        else:
            return rows or None
        return running.fail(failure.error)

    async def _call(self, running: Running[T], shortcut: Shortcut) -> list[Any]:
        arguments = shortcut.arguments()
        text = self._shared.dialect.function_call(shortcut.function, len(arguments))
        started_ns = self._shared.clock.start_ns()
        rows = await self.connection.fetch(text, *arguments, timeout=self.remaining_s())
        self._shared.clock.stop(running.operation, shortcut.function, rows, started_ns)
        return rows

    async def control(self, sql: str) -> str:
        """Run a statement that is ours and no operation's: BEGIN, SAVEPOINT, RELEASE."""
        return await self.guarded(lambda: self.connection.execute(sql, timeout=self.remaining_s()))

    async def guarded(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something on the connection; what the database raises comes out as our error."""
        try:
            return await work()
        except DATABASE_ERRORS as error:
            failure = self.note(error)
        raise failure.error

    def note(self, error: BaseException) -> Failure:
        """Remember why the database refused, and whether the connection went with it."""
        self.failure = understand(error, self._shared.versions, gone=is_gone(self.connection))
        self.broken = self.broken or self.failure.lost
        return self.failure

    async def commit(self) -> None:
        """Publish. An answer that does not come leaves the outcome unknown, and the connection unusable."""
        self.broken = True
        try:
            status = await self.connection.execute("COMMIT", timeout=self._timeout_s)
        except DATABASE_ERRORS as error:
            failure, certain = understand(error, self._shared.versions, gone=True), is_certain(error)
        else:
            self._accept_commit(status)
            return
        self._refuse_commit(failure, certain=certain)

    def _accept_commit(self, status: str) -> None:
        if status != "COMMIT":
            raise Busy("the server rolled the transaction back instead of committing it")
        self.broken = False

    def _refuse_commit(self, failure: Failure, *, certain: bool) -> NoReturn:
        if certain:
            self.failure = failure
            raise failure.error
        raise Disconnected("the connection was lost while the transaction was committing")

    async def restart(self, begin: str) -> None:
        """A fresh transaction in the place of one that wrote nothing, or failed."""
        await self.control("ROLLBACK")
        await self.control(begin)

    async def end(self, sql: str = "ROLLBACK") -> None:
        """End without publishing. A connection that cannot even do that is broken, and the server ends it by itself."""
        if self.broken:
            return
        try:
            await self.connection.execute(sql, timeout=ROLLBACK_S)
        except DATABASE_ERRORS:
            self.broken = True

    async def end_surely(self, sql: str = "ROLLBACK") -> None:
        """The same for a task that may be cancelled: the server must hear that the statement is off, or it keeps its locks."""
        try:
            await asyncio.shield(asyncio.get_running_loop().create_task(self.end(sql)))
        except BaseException:
            self.broken = True
            raise

    def remaining_s(self) -> float | None:
        """How long the next statement may take on the client's clock."""
        if self._deadline is None:
            return self._timeout_s
        left = max(self._deadline - asyncio.get_running_loop().time(), 0.001)
        return left if self._timeout_s is None else min(left, self._timeout_s)


def changed_rows(status: str) -> int:
    """The count in a command tag: `INSERT 0 5`, `UPDATE 3`; other commands change no rows."""
    count = status.rpartition(" ")[2]
    return int(count) if count.isdecimal() else 0
