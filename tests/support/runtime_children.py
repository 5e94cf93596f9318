"""Programs that tests of the runtime start as processes: `python -m tests.support.runtime_children NAME URL SCHEMA`."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType

from lash_store.errors import Misuse
from lash_store.notify import hub
from lash_store.notify.hub import Waiting
from lash_store.ops.statement import Op
from lash_store.store.opening import open_sync_runtime
from lash_store.store.options import Options
from lash_store.store.portal import settle
from lash_store.store.runtime import SyncRuntime
from tests.support.notes import KIND, PROBES, look_for_notes, notes, write_note

PATIENCE_S = 60  # far beyond any honest wait; reaching it is a failure
AGAIN_S = 0.05  # between two attempts to interrupt


def wait_for_note(options: Options) -> None:
    """Say when the watcher has looked once, wait for the note "bell", and tell who woke us."""
    hub.FIRST_LOOK_S = hub.SLOWEST_LOOK_S = 3600.0  # so that nothing but the doorbell can wake us
    looks = 0

    def counted(waiting: Waiting) -> Op[set[str | None]]:
        nonlocal looks
        looks += 1
        found = yield from look_for_notes(waiting)
        if looks == 1:
            print("ready", flush=True)
        return found

    runtime = open_sync_runtime(options, {KIND: counted})
    with runtime.subscribe(KIND, "bell") as subscription:
        while "bell" not in runtime.read(notes):
            if not subscription.wait(PATIENCE_S * 1000):
                print("timed out", flush=True)
                return
    print("woken", flush=True)
    runtime.close()


def interrupt(options: Options) -> None:
    """Get a real SIGINT in mid-operation: the operation ends, then KeyboardInterrupt is raised."""
    arrived = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if not arrived.is_set():
            arrived.set()
            raise KeyboardInterrupt

    def press_ctrl_c() -> None:
        arrived.clear()
        while not _is_waited_for():  # a signal that arrives before the wait has begun is another case
            pass
        while not arrived.is_set():  # a thread that is just falling asleep does not hear it: Python would tell it afterwards
            os.kill(os.getpid(), signal.SIGINT)
            arrived.wait(AGAIN_S)

    runtime = open_sync_runtime(options, PROBES)
    signal.signal(signal.SIGINT, on_signal)
    try:
        runtime.write(write_note, "interrupted", press_ctrl_c)
        print("no interrupt")
    except KeyboardInterrupt:
        print("interrupted, notes:", *runtime.read(notes))
    _interrupt_a_transaction(runtime, press_ctrl_c)
    runtime.close()


def _is_waited_for() -> bool:
    """Whether the main thread waits for the answer of an operation."""
    ident = threading.main_thread().ident
    assert ident is not None
    stack = [frame.f_code for frame, _ in traceback.walk_stack(sys._current_frames()[ident])]  # pyright: ignore[reportPrivateUsage]
    return settle.__code__ in stack and Future.exception.__code__ in stack


def _interrupt_a_transaction(runtime: SyncRuntime, press_ctrl_c: Callable[[], None]) -> None:
    try:
        with runtime.transaction(max_ms=60_000) as transaction:
            transaction.write(write_note, "undone", press_ctrl_c)
    except KeyboardInterrupt:
        print("rolled back, notes:", *runtime.read(notes))


def fork(options: Options) -> None:
    """Use a store in a forked child: every call is refused, closing does nothing, and the parent goes on."""
    runtime = open_sync_runtime(options, PROBES)
    runtime.write(write_note, "before")
    child = os.fork()
    if child == 0:
        try:
            runtime.read(notes)
        except Misuse as error:
            runtime.close()
            os._exit(7 if error.reason == "after-fork" else 8)
        os._exit(9)
    _, status = os.waitpid(child, 0)
    runtime.write(write_note, "after")
    print("child", os.waitstatus_to_exitcode(status), "notes:", *runtime.read(notes))
    runtime.close()


PROGRAMS = {program.__name__: program for program in (wait_for_note, interrupt, fork)}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](Options(url=sys.argv[2], schema=sys.argv[3]))
