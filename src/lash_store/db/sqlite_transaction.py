"""An interactive transaction: the caller sends commands, the writer thread holds the write lock and obeys them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import apsw

from lash_store.db.driver import Call, RingHook
from lash_store.db.sqlite_connection import Engine
from lash_store.errors import Busy, Disconnected, Misuse
from lash_store.ops.statement import Ring

T = TypeVar("T")
Fault = Callable[[str], None]
Command = tuple["Future[Any]", Callable[[Engine], Any]]


class SqliteTransaction:
    """Several operations and the application's own SQL in one transaction. Nothing inside is retried.

    Every method answers with a future. Each operation and each statement runs in a savepoint, so that a refusal leaves the
    transaction usable. After `max_ms` it is rolled back, and every further call but `rollback` is Busy.
    """

    def __init__(self, *, max_ms: int, deadline: float, check: Callable[[], None]) -> None:
        self.max_ms = max_ms
        self.deadline = deadline  # for the write lock; `max_ms` starts when it is held
        self.begun: Future[None] = Future()
        self._check = check
        self._commands: deque[Command] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._ended: Callable[[], Exception] | None = None
        self._until = 0.0
        self._rings: list[Ring] = []

    def run(self, call: Call[T]) -> Future[T]:
        """Run one operation. A refusal takes back that operation alone."""
        return self._send(partial(self._in_savepoint, partial(self._operation, call)))

    def execute(self, sql: str, *params: object) -> Future[list[tuple[Any, ...]]]:
        """Run the application's own SQL with `?` parameters and answer its rows. SQLite's own errors reach the caller."""
        return self._send(partial(self._in_savepoint, partial(_application, sql, params)))

    def commit(self) -> Future[None]:
        """Make everything durable, then ring."""
        return self._send(self._commit)

    def rollback(self) -> Future[None]:
        """Take everything back. Does nothing when the transaction has ended."""
        with self._changed:
            if self._ended is not None:
                done: Future[None] = Future()
                done.set_result(None)
                return done
        return self._send(self._rollback)

    def _send(self, act: Callable[[Engine], T]) -> Future[T]:
        self._check()
        future: Future[T] = Future()
        with self._changed:
            if self._ended is None:
                self._commands.append((future, act))
                self._changed.notify()
            else:
                future.set_exception(self._ended())
        return future

    # From here on: the writer thread.

    def refuse(self, error: Exception) -> None:
        """The write lock could not be had."""
        self.begun.set_exception(error)
        self._end(lambda: error)

    def stop(self) -> None:
        """Roll back once the commands sent so far are done: the driver is closing."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def serve(self, engine: Engine, *, fault: Fault, ring: RingHook) -> None:
        """Obey commands until the transaction ends. It is open already."""
        self._until = time.monotonic() + self.max_ms / 1000
        self._fault, self._ring = fault, ring
        self.begun.set_result(None)
        while self._ended is None:
            command = self._next()
            if command is not None:
                self._obey(engine, command)
            else:
                self._finish(engine, self._too_late if self._late() else _closed)

    def _next(self) -> Command | None:
        """The next command, or None when time is up or the driver closes."""
        with self._changed:
            while not self._commands and not self._stopping and not self._late():
                self._changed.wait(self._until - time.monotonic())
            return self._commands.popleft() if self._commands and not self._late() else None

    def _obey(self, engine: Engine, command: Command) -> None:
        future, act = command
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = act(engine)
        except Exception as error:  # noqa: BLE001 - it belongs to the caller
            future.set_exception(error)
        else:
            future.set_result(result)

    def _in_savepoint(self, act: Callable[[Engine], T], engine: Engine) -> T:
        try:
            engine.control("SAVEPOINT operation")
            result = act(engine)
            engine.control("RELEASE operation")
        except Exception as error:  # noqa: BLE001 - raised again below, in the store's terms
            failure = self._take_back(engine, engine.translate(error, ours=False))
        else:
            if not self._late():
                return result
            failure = self._finish(engine, self._too_late)
        raise failure

    def _take_back(self, engine: Engine, error: Exception) -> Exception:
        """Undo one operation, or end the transaction when SQLite has dropped it."""
        if engine.lost:
            return self._finish(engine, lambda: error)
        try:
            engine.control("ROLLBACK TO operation")
            engine.control("RELEASE operation")
        except apsw.Error as worse:
            meaning = engine.translate(worse)
            return self._finish(engine, lambda: meaning)
        return error

    def _finish(self, engine: Engine, why: Callable[[], Exception]) -> Exception:
        engine.rollback()
        self._end(why)
        return why()

    def _operation(self, call: Call[T], engine: Engine) -> T:
        self._fault("before-operation")
        running = engine.run(call)
        self._fault("after-operation")
        self._rings.extend(running.rings)
        return running.result

    def _commit(self, engine: Engine) -> None:
        try:
            self._fault("before-commit")
            engine.control("COMMIT")
        except Exception as error:
            meaning = engine.translate(error)
            raise self._finish(engine, lambda: meaning) from error
        self._end(_over)
        try:
            self._fault("after-commit")
        except Exception as error:
            raise lost_answer(error) from error
        finally:
            self._ring(self._rings)

    def _rollback(self, engine: Engine) -> None:
        self._finish(engine, _over)

    def _late(self) -> bool:
        return time.monotonic() >= self._until

    def _too_late(self) -> Exception:
        return Busy(f"the transaction took longer than max_ms = {self.max_ms}")

    def _end(self, why: Callable[[], Exception]) -> None:
        """No command is obeyed from now on; those still waiting, and later ones, hear why."""
        with self._changed:
            self._ended = self._ended or why
            waiting = list(self._commands)
            self._commands.clear()
        for future, _ in waiting:
            if future.set_running_or_notify_cancel():
                future.set_exception(why())


def _application(sql: str, params: tuple[object, ...], engine: Engine) -> list[tuple[Any, ...]]:
    return engine.application(sql, params)


def lost_answer(error: BaseException) -> Disconnected:
    """What a caller hears when the commit happened and its answer did not."""
    return Disconnected(f"the answer was lost after the commit ({type(error).__name__})")


def _over() -> Exception:
    return Misuse("closed", "this transaction has ended. Open another one.")


def _closed() -> Exception:
    return Misuse("closed", "the store was closed and rolled this transaction back.")
