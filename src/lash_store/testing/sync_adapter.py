"""The sync store behind the async store's shape, so that one law body runs on both.

Each call runs in a thread of its own. Inside a transaction all calls of the task share one thread and one context,
as they would in a sync program: the store's rule "not inside your own transaction" is about exactly that.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from lash_store import AsyncStore

_NOUNS = frozenset({"sessions", "queue", "processes", "triggers", "attachments", "artifacts", "maintenance"})
_ITERATORS = frozenset({"follow", "stream"})
_END = object()

_threads = ThreadPoolExecutor(max_workers=128, thread_name_prefix="law")


async def open_store(url: str, **options: Any) -> AsyncStore:
    """Open a sync store in a thread, and give it the async shape."""
    from lash_store import Store

    return cast("AsyncStore", _Shape(await _call(Store.open, url, **options)))


class _Shape:
    """Forwards everything to a sync object: methods become coroutines, nouns and handles become shapes."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name in _NOUNS:
            return _Shape(value)
        if name == "session":
            return lambda session_id: _Shape(value(session_id))  # pyright: ignore[reportUnknownLambdaType]
        if name in _ITERATORS:
            return partial(_iterate, value)
        if name == "transaction":
            return partial(_transaction, value)
        return partial(_call, value) if callable(value) else value


class _Lane:
    """One thread with one context, for the calls of one transaction."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="law-transaction")
        self._context = contextvars.copy_context()

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call = partial(self._context.run, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def close(self) -> None:
        self._thread.shutdown(wait=False)


_lane: contextvars.ContextVar[_Lane | None] = contextvars.ContextVar("_lane", default=None)


async def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    lane = _lane.get()
    if lane is not None:
        return await lane.run(function, *args, **kwargs)
    call = partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_threads, call)


async def _iterate(start: Callable[..., Any], *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
    iterator = iter(await _call(start, *args, **kwargs))
    try:
        while (item := await _call(next, iterator, _END)) is not _END:
            yield item
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            await _call(close)


@asynccontextmanager
async def _transaction(begin: Callable[..., Any], *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
    lane = _Lane()
    manager = await lane.run(begin, *args, **kwargs)
    tx = await lane.run(manager.__enter__)
    token = _lane.set(lane)
    try:
        yield _Shape(tx)
    except BaseException as error:
        if not await lane.run(manager.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await lane.run(manager.__exit__, None, None, None)
    finally:
        _lane.reset(token)
        lane.close()
