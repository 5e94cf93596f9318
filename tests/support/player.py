"""One side of an interleaving: it stops before each step until it is told to go on.

A side talks to a `Player` as the store's facades talk to their runtime, so that both operations and whole facade calls can
play. BEGIN, every statement, COMMIT, ROLLBACK and every change of bytes is a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, cast

import msgspec

from lash_store.blobs.spool import Spool
from lash_store.db.dialect import Dialect
from lash_store.db.driver import Mode
from lash_store.db.postgres import BEGIN
from lash_store.db.postgres_session import changed_rows
from lash_store.delta import Held
from lash_store.encode import Encoder, mint
from lash_store.errors import Refused
from lash_store.model.limits import DEFAULT_LIMITS, SETTLED_KEY_RETENTION_MS
from lash_store.ops.checkpoints import NeedsFullFrame
from lash_store.ops.statement import ExecuteMany, Fetch, Ring, Shortcut, Statement
from lash_store.payload_schema import Schemas
from lash_store.store.registrations import Registrations
from lash_store.store.runtime import AsyncRuntime

Steps = Generator[Statement, Any, Any]
Call = Callable[[], Steps]
Script = Callable[["Player"], Awaitable[Any]]

SETUP = "setup"
PLAYING: ContextVar[str] = ContextVar("PLAYING", default=SETUP)  # the side whose task this is


def steady(prefix: str = "") -> str:
    """In the place of `mint`: a side has the same ids in every order, also when it starts again."""
    name = PLAYING.get()
    return mint(prefix) if name == SETUP else f"{prefix}{name}"


def one(call: Call, show: Callable[[Any], object] = lambda result: result) -> Script:
    """A side of a single transaction."""

    async def script(player: Player) -> Any:
        return show(await player.write(call))

    return script


class Player:
    """A connection of its own, an operation or several on it, and the gate before each step."""

    def __init__(self, name: str, connection: Any, dialect: Dialect, stored: set[str]) -> None:
        self.name = name
        self.pid: int = connection.get_server_pid()
        self.arrived = asyncio.Event()
        self.blocked = False
        self.finished = False
        self.ended = False  # whether the last step ended a transaction, and let go of its locks
        self.outcome: dict[str, Any] = {}
        self.result: Any = None
        self.change: Callable[[Steps], Steps] = lambda steps: steps  # where a test plants a bug
        self._connection = connection
        self._dialect = dialect
        self._go = asyncio.Event()
        self._whole = False
        self._inside = False
        # What facades look for on a runtime.
        self.limits = DEFAULT_LIMITS
        self.encoder = Encoder(DEFAULT_LIMITS)
        self.held = Held()
        self.schemas = Schemas()
        self.registrations = Registrations()
        self.settled_key_retention_ms = SETTLED_KEY_RETENTION_MS
        self.blobs = _Bytes(stored, self._gate)

    @property
    def runtime(self) -> AsyncRuntime:
        """This side, in the place of a store's runtime."""
        return cast("AsyncRuntime", self)

    def start(self, script: Script, *, whole: bool) -> asyncio.Task[None]:
        """Begin to play; `whole` makes one step of every transaction."""
        self._whole = whole
        return asyncio.create_task(self._play(script))

    def go(self) -> None:
        """Take one step; `arrived` tells when it is done."""
        self.arrived.clear()
        self.ended = False
        self._go.set()

    async def _play(self, script: Script) -> None:
        PLAYING.set(self.name)
        try:
            self.result = await script(self)
            self.outcome = {"result": normal(msgspec.to_builtins(self.result))}
        except (Refused, NeedsFullFrame) as error:
            fields = error.fields() if isinstance(error, Refused) else {}
            self.outcome = {"refused": type(error).__name__, "fields": normal(msgspec.to_builtins(fields))}
        except Exception as error:  # noqa: BLE001 - whatever else comes out of an operation is what the test looks for
            self.outcome = {"failed": f"{type(error).__name__} {getattr(error, 'sqlstate', '')}: {error}"}
        self.finished = True
        self.arrived.set()

    async def _gate(self) -> None:
        if self._whole and self._inside:
            return
        self.arrived.set()
        await self._go.wait()
        self._go.clear()

    # --- as a runtime ---------------------------------------------------------------------------------------------------

    async def read(self, op: Callable[..., Steps], *args: Any, **kwargs: Any) -> Any:
        """One operation in one snapshot."""
        async with self._transaction(Mode.READ):
            return await self._steps(op(*args, **kwargs))

    async def write(self, op: Callable[..., Steps], *args: Any, **kwargs: Any) -> Any:
        """One operation in a transaction, of its own or the one that is open."""
        if self._inside:
            return await self._steps(op(*args, **kwargs))
        async with self._transaction(Mode.WRITE):
            return await self._steps(op(*args, **kwargs))

    @asynccontextmanager
    async def transaction(self, *, max_ms: int) -> AsyncGenerator[Player, None]:
        """Several operations in one transaction."""
        assert max_ms
        async with self._transaction(Mode.WRITE):
            yield self

    async def offload(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Pure work."""
        return fn(*args, **kwargs)

    async def spool(self, data: bytes) -> Spool:
        """An attachment's bytes, hashed and measured."""
        return Spool.of(data, self.limits)

    # --- steps ----------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _transaction(self, mode: Mode) -> AsyncGenerator[None, None]:
        await self._gate()
        self._inside = True
        try:
            await self._connection.execute(BEGIN[mode])
            try:
                yield
            except BaseException:
                await self._end("ROLLBACK")
                raise
            await self._end("COMMIT")
        finally:
            self._inside = False

    async def _end(self, sql: str) -> None:
        await self._gate()
        await self._connection.execute(sql)
        self.ended = True

    async def _steps(self, steps: Steps) -> Any:
        steps, answer = self.change(steps), None
        while True:
            try:
                statement = steps.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = None
            if not isinstance(statement, Ring | Shortcut):
                await self._gate()
                answer = await self._ask(statement)

    async def _ask(self, statement: Statement) -> Any:
        assert not isinstance(statement, Ring | Shortcut)
        compiled = self._dialect.compile(statement.sql)
        if isinstance(statement, Fetch):
            return await self._connection.fetch(compiled.text, *compiled.arguments(statement.params))
        if isinstance(statement, ExecuteMany):
            arguments = compiled.arrays(statement.rows, statement.params)
        else:
            arguments = compiled.arguments(statement.params)
        return changed_rows(await self._connection.execute(compiled.text, *arguments))


class _Bytes:
    """A place for bytes that only remembers their names; each change is a step."""

    durable = True

    def __init__(self, stored: set[str], gate: Callable[[], Awaitable[None]]) -> None:
        self._stored = stored
        self._gate = gate

    async def put(self, attachment_id: str, source: Spool) -> None:
        assert source.digest == attachment_id
        await self._gate()
        self._stored.add(attachment_id)

    async def delete(self, attachment_id: str) -> None:
        await self._gate()
        self._stored.discard(attachment_id)


def normal(value: Any) -> Any:
    """A value without its instants: those differ from run to run, everything else must not."""
    if isinstance(value, Mapping):
        return {key: _instant(item) if str(key).endswith("_ms") else normal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [normal(item) for item in value]
    return value


def _instant(value: object) -> object:
    return None if value is None else "an instant"
