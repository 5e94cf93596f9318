"""The waiters of one store, keyed by (kind, id), and the slow look that covers lost signals.

A subscription remembers a ring that arrives between two waits, so that "subscribe, then check, then sleep" loses nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from lash_store.errors import LimitExceeded, Misuse
from lash_store.model.limits import DEFAULT_LIMITS
from lash_store.ops.statement import Op, Ring

FIRST_LOOK_S = 1.0  # a lost signal costs at most this while somebody has just begun to wait
SLOWEST_LOOK_S = 5.0  # and this for those who wait long
STEADY_KINDS = frozenset({"inbox"})  # delayed work becomes due without any signal: its look never slows down

Waiting = list[tuple[str | None, int]]
Probe = Callable[[Waiting], Op[set[str | None]]]
Probes = Mapping[str, Probe]
Topic = tuple[str, str | None]


class Subscription:
    """A waiter of (kind, id); id None waits for any id of the kind. `seen` tells the slow look what the waiter knows."""

    def __init__(self, hub: Hub[Any], topic: Topic, seen: int) -> None:
        self.topic = topic
        self.seen = seen
        self._hub = hub

    def wake(self) -> None:
        """Remember the ring until the next wait ends."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop waiting. Idempotent."""
        self._hub.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _answer(self, rung: bool) -> bool:
        if self._hub.closed:
            raise Misuse("closed", "the store was closed while somebody waited on it. Open a new store.")
        return rung


class SyncSubscription(Subscription):
    """A waiting thread."""

    def __init__(self, hub: Hub[Any], topic: Topic, seen: int) -> None:
        super().__init__(hub, topic, seen)
        self._rung = threading.Event()

    def wake(self) -> None:
        self._rung.set()

    def wait(self, timeout_ms: float | None) -> bool:
        """True once rung, also by a ring since the last wait; False after `timeout_ms`."""
        rung = self._rung.wait(None if timeout_ms is None else max(0.0, timeout_ms) / 1000)
        if rung:
            self._rung.clear()
        return self._answer(rung)


class AsyncSubscription(Subscription):
    """A waiting task. `wake` runs on the loop of the task."""

    def __init__(self, hub: Hub[Any], topic: Topic, seen: int) -> None:
        super().__init__(hub, topic, seen)
        self._rung = asyncio.Event()

    def wake(self) -> None:
        self._rung.set()

    async def wait(self, timeout_ms: float | None) -> bool:
        """True once rung, also by a ring since the last wait; False after `timeout_ms`."""
        try:
            async with asyncio.timeout(None if timeout_ms is None else max(0.0, timeout_ms) / 1000):
                await self._rung.wait()
        except TimeoutError:
            pass
        rung = self._rung.is_set()
        self._rung.clear()
        return self._answer(rung)


S = TypeVar("S", bound=Subscription)


class Hub(Generic[S]):
    """All subscriptions of one store. Any thread may ring it; `deliver` brings the wakes to where the waiters live."""

    def __init__(
        self,
        make: Callable[[Hub[Any], Topic, int], S],
        *,
        probes: Probes,
        deliver: Callable[[Callable[[], None]], object] | None = None,
        max_waiters: int = DEFAULT_LIMITS.active_waiters,
    ) -> None:
        self.closed = False
        self.on_subscribe: Callable[[], None] = _nothing
        self._make = make
        self._probes = probes
        self._deliver = deliver
        self._max_waiters = max_waiters
        self._lock = threading.Lock()
        self._topics: dict[Topic, set[S]] = {}
        self._count = 0

    def subscribe(self, kind: str, id: str | None, seen: int = 0) -> S:
        """A new waiter. It is on the list when this returns, so a check made after it misses nothing."""
        subscription = self._make(self, (kind, id), seen)
        with self._lock:
            if self._count >= self._max_waiters:
                raise LimitExceeded("active_waiters", maximum=self._max_waiters, actual=self._count + 1, path="waiters")
            self._topics.setdefault(subscription.topic, set()).add(subscription)
            self._count += 1
        self.on_subscribe()
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """Take a waiter off the list."""
        with self._lock:
            members = self._topics.get(subscription.topic)
            if members is None or subscription not in members:
                return
            members.remove(subscription)  # type: ignore[arg-type]  # it is a member, so it is an S
            self._count -= 1
            if not members:
                del self._topics[subscription.topic]

    def ring(self, rings: Iterable[Ring]) -> None:
        """Wake the waiters of these topics, and those who wait for any id of their kinds."""
        if self._topics:  # without a lock: who subscribes from now on looks after it, and finds what is committed
            self._wake({topic for ring in rings for topic in ((ring.kind, ring.id), (ring.kind, None))})

    def found(self, kind: str, ids: Iterable[str | None]) -> None:
        """Wake those a slow look found something for."""
        self._wake({(kind, id) for id in ids})

    def rouse(self, kinds: Iterable[str]) -> list[str]:
        """Something happened: wake the waiter of each kind that has only one, and return the other kinds.

        Who was woken checks by itself, which costs about as much as a look and saves it. For many waiters one look is cheaper.
        """
        waiters: dict[str, list[S]] = {kind: [] for kind in kinds}
        with self._lock:
            for (kind, _), members in self._topics.items():
                if kind in waiters:
                    waiters[kind] += members
        self._bring([members[0] for members in waiters.values() if len(members) == 1])
        return [kind for kind, members in waiters.items() if len(members) > 1]

    def looks(self, kinds: Iterable[str]) -> list[tuple[str, Callable[[], Op[set[str | None]]]]]:
        """One read per kind that covers all its waiters; kinds nobody waits for cost nothing."""
        waiting = self._waiting()
        return [(kind, _bind(self._probes[kind], waiting[kind])) for kind in kinds if kind in waiting and kind in self._probes]

    def kinds(self) -> list[str]:
        """The kinds somebody waits for."""
        with self._lock:
            return list({kind for kind, _ in self._topics})

    def close(self) -> None:
        """Wake everybody for the last time: their waits raise."""
        self.closed = True
        with self._lock:
            topics = set(self._topics)
        self._wake(topics)

    def _waiting(self) -> dict[str, Waiting]:
        oldest: dict[Topic, int] = {}
        with self._lock:
            for topic, members in self._topics.items():
                oldest[topic] = min(member.seen for member in members)
        waiting: dict[str, Waiting] = {}
        for (kind, id), seen in oldest.items():
            waiting.setdefault(kind, []).append((id, seen))
        return waiting

    def _wake(self, topics: set[Topic]) -> None:
        with self._lock:
            woken = [member for topic in topics for member in self._topics.get(topic, ())]
        self._bring(woken)

    def _bring(self, woken: Sequence[S]) -> None:
        if not woken:
            return
        if self._deliver is None:
            _wake_all(woken)
        else:
            self._deliver(lambda: _wake_all(woken))


class Pace:
    """When the next slow look of each kind is due: soon for those who have just begun to wait, seldom for the patient."""

    def __init__(self) -> None:
        self._next_s: dict[str, float] = {}
        self._period_s: dict[str, float] = {}

    def due(self, kinds: Sequence[str], now_s: float) -> list[str]:
        """The kinds to look at now; each gets its next time."""
        self._begin(kinds, now_s)
        ready = [kind for kind in kinds if self._next_s[kind] <= now_s]
        for kind in ready:
            self._later(kind, now_s)
        return ready

    def wait_s(self, kinds: Sequence[str], now_s: float) -> float | None:
        """How long nothing is due; None while nobody waits."""
        self._begin(kinds, now_s)
        return min((max(0.0, self._next_s[kind] - now_s) for kind in kinds), default=None)

    def hurry(self, now_s: float) -> None:
        """Somebody new waits: all looks are at most the first period away."""
        for kind, next_s in self._next_s.items():
            self._next_s[kind] = min(next_s, now_s + FIRST_LOOK_S)
            self._period_s[kind] = FIRST_LOOK_S

    def _begin(self, kinds: Sequence[str], now_s: float) -> None:
        for kind in set(self._next_s) - set(kinds):
            del self._next_s[kind], self._period_s[kind]
        for kind in kinds:
            self._next_s.setdefault(kind, now_s + FIRST_LOOK_S)
            self._period_s.setdefault(kind, FIRST_LOOK_S)

    def _later(self, kind: str, now_s: float) -> None:
        if kind not in STEADY_KINDS:
            self._period_s[kind] = min(SLOWEST_LOOK_S, self._period_s[kind] + 1.0)
        self._next_s[kind] = now_s + self._period_s[kind]


def _wake_all(members: Iterable[Subscription]) -> None:
    for member in members:
        member.wake()


def _bind(probe: Probe, waiting: Waiting) -> Callable[[], Op[set[str | None]]]:
    return lambda: probe(waiting)


def _nothing() -> None:
    return None
