"""The other process of a wake-up: it says that it waits, waits, and says when it was woken.

python -m bench.waiter WHAT URL ROUNDS
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

from lash_store import AsyncStore, ProcessInput, Registration, Success

PATIENCE_MS = 120_000
Step = Callable[[AsyncStore, int], Awaitable[None]]


async def make_sessions(store: AsyncStore, count: int) -> None:
    """Sessions with empty inboxes."""
    for number in range(count):
        await store.sessions.create(f"session-{number}")


async def make_processes(store: AsyncStore, count: int) -> None:
    """Processes without output."""
    for number in range(count):
        await store.processes.register(Registration(process_id=f"process-{number}", input=ProcessInput("bench")))


async def enqueue(store: AsyncStore, number: int) -> None:
    """Work for one session."""
    await store.queue.enqueue(f"session-{number}", ["work"])


async def complete(store: AsyncStore, number: int) -> None:
    """The output of one process."""
    await store.processes.complete(f"process-{number}", Success("done"))


async def wait_inbox(store: AsyncStore, number: int) -> None:
    """Until one session has work."""
    assert await store.queue.wait_ready(f"session-{number}", timeout_ms=PATIENCE_MS)


async def wait_output(store: AsyncStore, number: int) -> None:
    """Until one process has ended."""
    assert await store.processes.await_output(f"process-{number}", timeout_ms=PATIENCE_MS) is not None


PREPARE: dict[str, Step] = {"wait_ready": make_sessions, "await_output": make_processes}
WRITE: dict[str, Step] = {"wait_ready": enqueue, "await_output": complete}
WAIT: dict[str, Step] = {"wait_ready": wait_inbox, "await_output": wait_output}


async def main(what: str, url: str, rounds: int) -> None:
    """The life of the waiter."""
    async with AsyncStore.open(url) as store:
        for number in range(rounds):
            print("waiting", flush=True)
            await WAIT[what](store, number)
            print(time.monotonic_ns(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
