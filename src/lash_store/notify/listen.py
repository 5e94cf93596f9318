"""Waking across processes on PostgreSQL: NOTIFY after the commit, coalesced, and one LISTEN connection per store.

NOTIFY inside the transaction would serialise all commits of the database on one lock; a sender that takes what piled up
while it was busy does not. A payload is a JSON list: the sender's name, then pairs [kind, id]. Without pairs it means
"look yourself": the sender had more to say than it keeps.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from lash_store.notify.hub import Hub, Pace
from lash_store.ops.statement import Op, Ring, alone, fetch

log = logging.getLogger("lash_store")

PAYLOAD_MAX_BYTES = 7_900  # PostgreSQL refuses 8,000
PENDING_MAX = 10_000  # rings kept while the database is away; beyond it one "look yourself" says as much
RETRY_FIRST_S, RETRY_MAX_S = 0.1, 10.0  # between attempts to connect or to send
GAP_S = 0.005  # between two statements: under load the rings of this long travel together, and the first of all leaves at once
FLUSH_S = 2.0  # how long close() waits for the last notifications; a slow look replaces them


def channel_name(schema: str) -> str:
    """One channel per schema; the hash keeps it within an identifier's 63 bytes."""
    return "lash_" + hashlib.sha1(schema.encode(), usedforsecurity=False).hexdigest()


NOBODY = ""  # the origin of a notification that its own store must hear too


def payloads(origin: str, topics: Sequence[tuple[str, str]]) -> list[str]:
    """The topics in as few payloads as PostgreSQL's limit allows."""
    head = json.dumps([origin])[:-1]
    chunks, current, size = list[str](), list[str](), len(head) + 1
    for kind, id in topics:
        item = json.dumps([kind, id], separators=(",", ":"))  # ASCII, so that characters are bytes
        if current and size + 1 + len(item) > PAYLOAD_MAX_BYTES:
            chunks.append(",".join([head, *current]) + "]")
            current, size = [], len(head) + 1
        current.append(item)
        size += 1 + len(item)
    return [*chunks, ",".join([head, *current]) + "]"]


def parse(payload: str) -> tuple[str, list[Ring]]:
    """The sender and its rings. What nobody of ours wrote is read as "look yourself"."""
    try:
        origin, *pairs = json.loads(payload)
        return str(origin), [Ring(kind=str(kind), id=str(id)) for kind, id in pairs]
    except (ValueError, TypeError):
        return "", []


@alone
def notify(channel: str, messages: Sequence[str]) -> Op[None]:
    """Send all payloads with one statement, in a transaction of its own: no other one waits for it."""
    yield from fetch(
        "SELECT pg_notify(:channel, message) FROM unnest(CAST(:messages AS TEXT[])) AS message",
        channel=channel,
        messages=list(messages),
    )


class Sender:
    """Sends what was rung since its last statement ended: one statement in flight, however many commits."""

    def __init__(self, send: Callable[[Sequence[str]], Awaitable[object]], origin: str) -> None:
        self._send = send
        self._origin = origin
        self._pending: dict[tuple[str, str], None] = {}
        self._overflow = False
        self._wanted = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    def post(self, rings: Iterable[Ring]) -> None:
        """Queue rings, without waiting. Call it on the loop, after the commit."""
        for ring in rings:
            self._pending[ring.kind, ring.id] = None
        if len(self._pending) > PENDING_MAX:
            self._pending.clear()
            self._overflow = True
        self._idle.clear()
        self._wanted.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Send what is left, or give up after a while: everybody's slow look finds it too."""
        try:
            await asyncio.wait_for(self._idle.wait(), FLUSH_S)
        except TimeoutError:
            log.warning("closed before all notifications were sent; other processes find the changes by their slow look")
        await stopped(self._task)

    async def _run(self) -> None:
        delays = Backoff()
        while True:
            await self._wanted.wait()
            topics, overflow = self._take()
            try:
                await self._send(payloads(self._origin, [] if overflow else topics))
                delays = Backoff()
            except Exception as error:  # noqa: BLE001 - whatever went wrong, the next attempt may succeed
                log.warning("cannot send notifications (%s); trying again", type(error).__name__)
                self._put_back(topics, overflow)
                await asyncio.sleep(delays.next_s())
            if not self._wanted.is_set():
                self._idle.set()
            await asyncio.sleep(GAP_S)

    def _take(self) -> tuple[list[tuple[str, str]], bool]:
        topics, overflow = list(self._pending), self._overflow
        self._pending.clear()
        self._overflow = False
        self._wanted.clear()
        return topics, overflow

    def _put_back(self, topics: list[tuple[str, str]], overflow: bool) -> None:
        self._pending = dict.fromkeys([*topics, *self._pending])
        self._overflow = self._overflow or overflow
        self._wanted.set()


class Connection(Protocol):
    """What the listener needs of an asyncpg connection."""

    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None: ...
    def add_termination_listener(self, callback: Callable[..., None]) -> None: ...
    def is_closed(self) -> bool: ...
    async def close(self, *, timeout: float | None = None) -> None: ...


Connect = Callable[[], Awaitable[Connection]]


class Listener:
    """One task per store that looks for all waiters at a slow pace, and one LISTEN connection that makes it fast.

    Both start with the first subscription. After every (re)connection it looks once: signals sent before were not heard.
    """

    def __init__(
        self,
        hub: Hub[Any],
        look: Callable[[Sequence[str]], Awaitable[None]],
        *,
        connect: Connect | None,
        channel: str,
        origin: str,
    ) -> None:
        self.listening = asyncio.Event()
        self._hub = hub
        self._look = look
        self._connect = connect
        self._channel = channel
        self._origin = origin
        self._pace = Pace()
        self._look_at_all = False
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def nudge(self) -> None:
        """A subscription appeared. Call it on the loop."""
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._watch())]
            if self._connect is not None:
                self._tasks.append(loop.create_task(self._listen(self._connect)))
        self._pace.hurry(time.monotonic())
        self._woken.set()

    async def close(self) -> None:
        for task in self._tasks:
            await stopped(task)

    async def _watch(self) -> None:
        while True:
            kinds = self._hub.kinds()
            at_all, self._look_at_all = self._look_at_all, False
            due = self._pace.due(kinds, time.monotonic())
            if at_all or due:
                await self._look(kinds if at_all else due)
            await self._sleep()

    async def _sleep(self) -> None:
        try:
            async with asyncio.timeout(self._pace.wait_s(self._hub.kinds(), time.monotonic())):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    async def _listen(self, connect: Connect) -> None:
        delays = Backoff()
        while True:
            try:
                await self._hear(connect, delays)
                log.info("the LISTEN connection was lost; connecting again")
            except Exception as error:  # noqa: BLE001 - as above
                log.warning("cannot LISTEN (%s); polling meanwhile", type(error).__name__)
            self.listening.clear()
            await asyncio.sleep(delays.next_s())

    async def _hear(self, connect: Connect, delays: Backoff) -> None:
        """Listen until the connection ends."""
        connection = await connect()
        ended = asyncio.Event()
        try:
            connection.add_termination_listener(lambda *_: ended.set())
            await connection.add_listener(self._channel, self._heard)
            delays.reset()
            self.listening.set()
            self._everything()
            if not connection.is_closed():
                await ended.wait()
        finally:
            await _hang_up(connection)

    def _heard(self, connection: object, pid: int, channel: str, payload: str) -> None:
        origin, rings = parse(payload)
        if rings and origin != self._origin:  # our own waiters were woken at the commit
            self._hub.ring(rings)
        elif not rings:
            self._everything()

    def _everything(self) -> None:
        self._look_at_all = True
        self._woken.set()


class Backoff:
    """Growing pauses with jitter, so that a thousand workers do not come back at the same instant."""

    def __init__(self) -> None:
        self._s = RETRY_FIRST_S

    def next_s(self) -> float:
        pause_s, self._s = self._s, min(RETRY_MAX_S, self._s * 2)
        return pause_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._s = RETRY_FIRST_S


async def stopped(task: asyncio.Task[None] | None) -> None:
    """Cancel a task and wait for its end."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


async def _hang_up(connection: Connection) -> None:
    try:
        await connection.close(timeout=FLUSH_S)
    except Exception as error:  # noqa: BLE001 - it is over either way
        log.debug("the LISTEN connection did not close cleanly (%s)", type(error).__name__)
