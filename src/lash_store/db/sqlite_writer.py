"""The one thread that writes a SQLite database, and its group commit.

A batch is what queued while the last one was being made durable; no timer collects it. Each operation of a batch has its own
savepoint, and no answer, success or refusal, leaves before the COMMIT. When SQLite drops the whole transaction, the batch is
void: every operation that ran in it runs once more, alone. The writer is never interrupted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import apsw

from lash_store.db.driver import Call, Mode, RingHook
from lash_store.db.sqlite_checkpoint import Checkpoints
from lash_store.db.sqlite_connection import Engine, pause
from lash_store.db.sqlite_transaction import SqliteTransaction, lost_answer
from lash_store.errors import Busy, Misuse, Unavailable
from lash_store.ops.statement import Ring

BATCH_OPERATIONS = 128  # bounds what the first of a batch waits for the others
QUEUE_MAX = 10_000  # operations that may wait in memory: beyond it callers must slow down
BATCH_BYTES = 8 << 20  # bounds the memory and the log that one transaction takes

Faults = Callable[[str], None]
_log = logging.getLogger("lash_store")


class Work:
    """One submitted operation and, once it ran, its outcome."""

    __slots__ = ("again", "call", "deadline", "error", "future", "mode", "result", "rings", "started")

    def __init__(self, call: Call[Any], mode: Mode, deadline: float) -> None:
        self.call, self.mode, self.deadline = call, mode, deadline
        self.future: Future[Any] = Future()
        self.started = self.again = False
        self.result: Any = None
        self.error: Exception | None = None
        self.rings: list[Ring] = []

    def start(self) -> bool:
        """False when the caller cancelled before it began. A begun operation runs to its end."""
        self.started = self.started or self.future.set_running_or_notify_cancel()
        return self.started

    def refuse(self, error: Exception) -> None:
        """Answer with an error that is not the operation's own."""
        self.error = error
        if self.start():
            self.answer()

    def answer(self) -> None:
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Void(Exception):
    """The transaction of the batch is gone."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Writer:
    """A queue, and the thread that serves it on the writing connection."""

    def __init__(self, engine: Engine, *, busy_ms: int, ring: RingHook, faults: Faults | None) -> None:
        self._engine = engine
        self._busy_ms = busy_ms
        self._ring_hook = ring
        self._faults = faults
        self._checkpoints = Checkpoints(engine.connection)
        self._queue: deque[Work | SqliteTransaction] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._serving: SqliteTransaction | None = None
        self._in_hand: list[Work] = []
        self._thread = threading.Thread(target=self._main, name="lash-store-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Work | SqliteTransaction) -> None:
        with self._changed:
            if self._closed:
                raise closed()
            if len(self._queue) >= QUEUE_MAX:
                raise Busy(f"{QUEUE_MAX} operations wait for the writer of this store already")
            self._queue.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Finish what has been submitted, checkpoint, and close the connection."""
        with self._changed:
            self._closed = True
            if self._serving is not None:
                self._serving.stop()
            self._changed.notify()
        self._thread.join()

    # From here on: the writer thread.

    def _main(self) -> None:
        try:
            while self._wait():
                if self._begin():
                    self._serve_next()
            self._checkpoints.at_close()
        except BaseException as error:  # noqa: BLE001 - the end of the thread: told to the log and to all who wait
            _log.exception("the writer thread stopped; the store must be opened again")
            self._abandon(error)
        finally:
            self._engine.close()

    def _wait(self) -> bool:
        """Until there is work; False when the writer is closed and everything is done."""
        while not self._queue:
            with self._changed:
                woken = self._changed.wait_for(lambda: self._queue or self._closed, self._checkpoints.patience_s)
                if self._closed and not self._queue:
                    return False
            if not woken:
                self._checkpoints.when_idle()
        return True

    def _begin(self) -> bool:
        """Take the write lock for whoever waits. Those who waited too long for it are Busy."""
        while self._queue:
            try:
                self._fault("begin")
                self._engine.begin("BEGIN IMMEDIATE")
                return True
            except apsw.BusyError:
                self._refuse_expired()
                pause()
            except Exception as error:  # noqa: BLE001 - it is the answer of those who waited
                self._refuse_first(error)
        return False

    def _refuse_expired(self) -> None:
        now = time.monotonic()
        while self._queue and self._queue[0].deadline <= now:
            self._queue.popleft().refuse(Busy(f"another connection held the write lock for {self._busy_ms} ms"))

    def _refuse_first(self, error: Exception) -> None:
        self._checkpoints.after_error()
        for _ in range(max(1, self._batch_size())):
            self._queue.popleft().refuse(self._engine.translate(error))

    def _serve_next(self) -> None:
        if isinstance(self._queue[0], SqliteTransaction):
            self._serve_transaction()
        else:
            self._serve_batch(self._batch_size())

    def _serve_transaction(self) -> None:
        transaction = self._queue.popleft()
        assert isinstance(transaction, SqliteTransaction)
        with self._changed:
            self._serving = transaction
            if self._closed:
                transaction.stop()
        transaction.serve(self._engine, fault=self._fault, ring=self._ring)
        with self._changed:
            self._serving = None
        if self._engine.broken:
            self._checkpoints.after_error()
        else:
            self._checkpoints.after_commit()

    def _batch_size(self) -> int:
        """How many of the waiting operations go into one transaction. One that was in a void batch goes alone."""
        size = 0
        with self._changed:
            for job in self._queue:
                if isinstance(job, SqliteTransaction) or size == BATCH_OPERATIONS or (job.again and size):
                    break
                size += 1
                if job.again:
                    break
        return size

    def _serve_batch(self, size: int) -> None:
        ran = self._in_hand = list[Work]()
        alone = size == 1
        try:
            for work in self._taken(size):
                ran.append(work)
                self._perform(work, alone=alone)
            committed = self._end(ran, alone=alone)
        except Void as void:
            self._void(ran, void.error)
        except Exception as error:  # noqa: BLE001 - it is the answer of the whole batch
            self._void(ran, self._engine.translate(error))
        else:
            self._publish(ran, committed=committed)

    def _taken(self, size: int) -> Iterator[Work]:
        """The operations of one batch, until its bytes are used up; the rest stays queued."""
        for _ in range(size):
            work = self._queue.popleft()
            assert isinstance(work, Work)
            if work.start():
                yield work
            if self._engine.bytes_bound >= BATCH_BYTES:
                return

    def _perform(self, work: Work, *, alone: bool) -> None:
        """Run one operation, and take it back when it is refused. Alone, the transaction itself is its savepoint."""
        if not alone:
            self._engine.control("SAVEPOINT operation")
        try:
            self._run(work)
        except Exception as error:
            work.error = self._engine.translate(error)
            if self._engine.lost:
                raise Void(work.error) from error
            if not alone:
                self._engine.control("ROLLBACK TO operation")
        if not alone:
            self._engine.control("RELEASE operation")

    def _run(self, work: Work) -> None:
        self._fault("before-operation")
        if work.mode is Mode.WRITE:
            running = self._engine.run(work.call)
        else:
            with self._read_only():
                running = self._engine.run(work.call)
        work.result, work.rings = running.result, running.rings
        self._fault("after-operation")

    @contextmanager
    def _read_only(self) -> Generator[None]:
        # A database in memory has one connection, so its reads come here too.
        self._engine.control("PRAGMA query_only=ON")
        try:
            yield
        finally:
            self._engine.control("PRAGMA query_only=OFF")

    def _end(self, ran: list[Work], *, alone: bool) -> bool:
        """Make the batch durable, or drop a transaction in which nothing happened."""
        if not ran or (alone and ran[0].error is not None):
            self._engine.rollback()
            return False
        self._fault("before-commit")
        self._engine.control("COMMIT")
        return True

    def _publish(self, ran: list[Work], *, committed: bool) -> None:
        """Ring, then answer. What happens here cannot undo the commit."""
        if committed:
            self._lose_answers_on_fault(ran)
            self._ring([ring for work in ran for ring in work.rings])
        for work in ran:
            work.answer()
        self._checkpoints.after_commit()

    def _lose_answers_on_fault(self, ran: Sequence[Work]) -> None:
        try:
            self._fault("after-commit")
        except Exception as error:  # noqa: BLE001 - a test plays a lost answer
            for work in ran:
                work.error = work.error or lost_answer(error)

    def _void(self, ran: list[Work], error: Exception) -> None:
        """Nothing of this batch happened. Neighbours of the one that failed deserve another run, and so may that one."""
        self._engine.rollback()
        self._checkpoints.after_error()
        if len(ran) == 1:
            ran[0].refuse(error)
            return
        for work in reversed(ran):
            work.again, work.error, work.result, work.rings = True, None, None, []
            self._queue.appendleft(work)

    def _ring(self, rings: Sequence[Ring]) -> None:
        if not rings:
            return
        try:
            self._ring_hook(rings)
        except Exception:  # noqa: BLE001 - logged, and no reason to withhold the answers
            _log.exception("ringing failed after a commit; waiters find out by looking")

    def _fault(self, point: str) -> None:
        if self._faults is not None:
            self._faults(point)

    def _abandon(self, error: BaseException) -> None:
        """The thread ends by a defect: nobody may wait for it."""
        with self._changed:
            self._closed = True
        message = f"the writer thread stopped ({type(error).__name__}). Open the store again."
        for work in self._in_hand:
            if not work.future.done():
                # It may have been committed: the thread died before it could say.
                work.error = lost_answer(error)
                work.answer()
        if self._serving is not None:
            self._serving.stop()
        while self._queue:
            self._queue.popleft().refuse(Unavailable(message))


def closed() -> Misuse:
    return Misuse("closed", "this store is closed. Open it again.")
