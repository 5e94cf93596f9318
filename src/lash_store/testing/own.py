"""A backend of your own for the laws: a factory of stores, or of byte stores, and the few doors a law needs beside it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from lash_store.testing.lacking import CLOCK, NOUNS, OPTION, RAW, Lacking, Lacks, Part, must_refuse

if TYPE_CHECKING:
    from lash_store import AsyncStore
    from lash_store.blobs.protocol import ByteStore

DAMAGE = "damage"


class OwnBackend:
    """One fresh, empty backing, made of a factory that returns a new AsyncStore-like handle on it.

    `advance(ms)` moves its clock; `raw(sql, *params)` looks into its tables and `table(name)` spells their names; `close()`
    lets go of it. Each may be async or not. What there is not is declared in `lacks`, by name and with the reason.
    """

    def __init__(
        self,
        factory: Callable[..., Awaitable[Any]],
        *,
        engine: str = "own",
        advance: Callable[[int], Any] | None = None,
        raw: Callable[..., Any] | None = None,
        table: Callable[[str], str] = str,
        close: Callable[[], Any] | None = None,
        lacks: Lacks | None = None,
    ) -> None:
        self.engine = engine
        self.lacks = dict(lacks or {})
        self._factory = factory
        self._advance, self._raw, self._table, self._close = advance, raw, table, close
        self._opened: list[Any] = []
        _check({CLOCK: advance, RAW: raw}, self.lacks)

    async def open(self, **options: Any) -> AsyncStore:
        """A new handle, without what is lacked."""
        for option in options:
            if OPTION + option in self.lacks:
                await must_refuse(OPTION + option, lambda: self._factory(**options))
                self._reach(OPTION + option)
        store = await self._factory(**options)
        self._opened.append(store)
        lacked = any(name not in (CLOCK, RAW) and not name.startswith(OPTION) for name in self.lacks)
        return cast("AsyncStore", Part(store, self.lacks)) if lacked else store

    async def advance(self, ms: int) -> None:
        """Move the clock of every handle."""
        self._reach(CLOCK)
        assert self._advance is not None
        await _value(self._advance(ms))

    async def raw(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """Rows of a statement run outside the store."""
        self._reach(RAW)
        assert self._raw is not None
        return await _value(self._raw(sql, *params))

    def table(self, name: str) -> str:
        """The backend's spelling of a table."""
        return self._table(name)

    async def close(self) -> None:
        """Close every handle, then the backing."""
        while self._opened:
            await self._opened.pop().close()
        if self._close is not None:
            await _value(self._close())

    def _reach(self, name: str) -> None:
        if name in self.lacks:
            raise Lacking(name, self.lacks[name])


class OwnBytes:
    """One empty place for bytes, made of a factory that returns a new handle on it.

    `damage(attachment_id, data)` changes stored bytes behind the store's back, so that a law can see who notices.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        *,
        damage: Callable[[str, bytes], Any] | None = None,
        close: Callable[[], Any] | None = None,
        lacks: Lacks | None = None,
    ) -> None:
        self.lacks = dict(lacks or {})
        self._factory, self._damage, self._close = factory, damage, close
        _check({DAMAGE: damage}, self.lacks)

    async def open(self) -> ByteStore:
        """A new handle on the same place."""
        return await _value(self._factory())

    async def damage(self, attachment_id: str, data: bytes) -> None:
        """Put other bytes under a name."""
        if self._damage is None:
            raise Lacking(DAMAGE, self.lacks[DAMAGE])
        await _value(self._damage(attachment_id, data))

    async def close(self) -> None:
        """Let go of the place."""
        if self._close is not None:
            await _value(self._close())


def _check(doors: dict[str, Any], lacks: Lacks) -> None:
    """Every door is there or declared as lacking, not both; every name is one that a law could reach for."""
    for name, door in doors.items():
        if (door is None) is not (name in lacks):
            raise ValueError(f"give the backend {name}, or declare it: lacks={{{name!r}: 'why'}}; one of the two")
    strange = [name for name in lacks if name not in doors and not _is_name(name, stores=RAW in doors)]
    if strange:
        raise ValueError(f"nothing is called {', '.join(strange)}: see lash_store.testing.lacking for what can be lacked")


def _is_name(name: str, *, stores: bool) -> bool:
    from lash_store import AsyncStore

    first, _, verb = name.partition(".")
    if first == "open":
        return stores and verb in inspect.signature(AsyncStore.open).parameters
    return stores and first in (*NOUNS, "session", "transaction")


async def _value(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer
