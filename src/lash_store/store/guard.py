"""Who may call a store: the process that opened it, on its own loop, outside its own open transaction, until it is closed."""

from __future__ import annotations

import asyncio
import os
from contextvars import ContextVar
from typing import Protocol

from lash_store.errors import Misuse


class OpenTransaction(Protocol):
    """A transaction somebody is inside of."""

    @property
    def owner(self) -> object: ...
    @property
    def is_open(self) -> bool: ...


# Inherited by the tasks and threads a transaction's body starts: they are inside of it as long as it is open.
_inside: ContextVar[tuple[OpenTransaction, ...]] = ContextVar("lash_store_inside", default=())


class Guard:
    """The checks every call makes first."""

    def __init__(self) -> None:
        self.closed = False
        self._pid = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that opened the store."""
        return os.getpid() != self._pid

    def check(self, owner: object) -> None:
        """Raise Misuse unless `owner` may be called now, as far as no loop is concerned."""
        self.check_process()
        if self.closed:
            raise Misuse("closed", "this store is closed. Open a new one.")
        for transaction in _inside.get():
            if transaction.owner is owner and transaction.is_open:
                raise Misuse(
                    "in-transaction", "the store was called inside its own transaction. Use the transaction's methods there."
                )

    def check_process(self) -> None:
        """Raise Misuse in a forked child: threads and connections stayed with the parent."""
        if self.forked:
            raise Misuse("after-fork", "this store was opened before fork, in another process. Open a store after the fork.")


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raise Misuse unless `loop` is the one that runs here."""
    if running_loop() is not loop:
        raise Misuse("wrong-loop", "this AsyncStore belongs to the event loop it was opened on. Open one per loop, or use Store.")


def check_no_loop() -> None:
    """Raise Misuse if an event loop runs in this thread: a blocking call would stop it."""
    if running_loop() is not None:
        raise Misuse(
            "in-loop",
            "Store was called inside a running event loop and would block it. Use AsyncStore; "
            "in a notebook, where blocking is fine, open the store with in_loop=True.",
        )


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def entered(transaction: OpenTransaction) -> None:
    """The caller is inside of `transaction` from now on."""
    _inside.set((*_inside.get(), transaction))


def left(transaction: OpenTransaction) -> None:
    """The caller is outside again. No token: a test fixture may leave in another context than it entered."""
    _inside.set(tuple(other for other in _inside.get() if other is not transaction))
