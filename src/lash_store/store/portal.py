"""A background event loop for callers that have none, and the way a thread waits for an operation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def settle(future: Future[T]) -> T:
    """The operation's answer. Ctrl-C lets the started operation end and is raised then, whatever the answer was."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            future.exception()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    return future.result()


class Portal:
    """An event loop in a daemon thread, which starts with the first use."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` on the loop."""
        self._start()
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop to its end."""
        return settle(self.submit(work))

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """The items of `source`, one trip to the loop each."""
        try:
            while True:
                found, item = self.call(_next(source))
                if not found:
                    return
                yield item
        finally:
            self._forget(source)

    def _forget(self, source: AsyncIterator[Any]) -> None:
        """Close `source` without waiting: a forgotten iterator may be collected on any thread, also on the loop's own."""
        if isinstance(source, AsyncGenerator) and not self.loop.is_closed():
            asyncio.run_coroutine_threadsafe(_close(source), self.loop)

    def entered_by_caller(self) -> bool:
        """Whether the calling thread is the portal's own: it would wait for itself."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """End the loop and its thread. Idempotent."""
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                self.loop.call_soon_threadsafe(self.loop.stop)
                self._thread.join()
            self.loop.close()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lash-store-loop", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Run `work` in a thread of its own, so that waiting for it can be interrupted and it cannot."""
    future: Future[T] = Future()
    threading.Thread(target=_answer, args=(work, future), name="lash-store-work").start()
    return future


def _answer(work: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
        future.set_exception(error)


async def _next(source: AsyncIterator[T]) -> tuple[bool, Any]:
    try:
        return True, await anext(source)
    except StopAsyncIteration:
        return False, None


async def _close(source: AsyncGenerator[Any, Any]) -> None:
    await source.aclose()
