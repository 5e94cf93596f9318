"""Nobody who subscribes, then checks, then sleeps is left sleeping; and a thousand sleepers cost next to nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lash_store.db.driver import StatementEvent
from lash_store.errors import LimitExceeded, Misuse
from lash_store.notify import doorbell, listen
from lash_store.notify import hub as hub_module
from lash_store.notify.doorbell import Bell, DataVersion, Inotify, Silent, Watcher, best_signal
from lash_store.notify.hub import AsyncSubscription, Hub, Pace, SyncSubscription, Waiting
from lash_store.notify.listen import PAYLOAD_MAX_BYTES, PENDING_MAX, Listener, Sender, channel_name, parse, payloads
from lash_store.ops.statement import Op, Ring
from lash_store.store.opening import open_async_runtime, open_sync_runtime
from lash_store.store.options import Options
from tests.support.notes import KIND, PROBES, look_for_notes, notes, write_note

PATIENCE_MS = 60_000  # far beyond any honest wait; reaching it is a failure
PROJECT = Path(__file__).resolve().parents[1]


def nothing_found(waiting: Waiting) -> Op[set[str | None]]:
    """A slow look that never finds anything."""
    yield from ()
    return set()


def sync_hub(**probes: hub_module.Probe) -> Hub[SyncSubscription]:
    return Hub(SyncSubscription, probes=probes)


# The hub


class Waiter:
    """The steps of somebody who waits for `state["done"]`; `order` is what the rule is about."""

    def __init__(self, hub: Hub[SyncSubscription], state: dict[str, bool], order: Sequence[str]) -> None:
        self._hub, self._state = hub, state
        self._subscription: SyncSubscription | None = None
        self._saw = False
        self.steps: list[Callable[[], None]] = [getattr(self, step) for step in order]

    def subscribe(self) -> None:
        self._subscription = self._hub.subscribe("commits", "s")

    def check(self) -> None:
        self._saw = self._state["done"]

    def ends(self) -> bool:
        """Whether the waiter would get up without any timeout."""
        assert self._subscription is not None
        return self._saw or self._subscription.wait(0)


def stuck_schedules(order: Sequence[str]) -> int:
    """In how many interleavings of the waiter with a writer the waiter sleeps forever."""
    stuck = 0
    for places in itertools.combinations(range(4), 2):
        hub, state = sync_hub(), {"done": False}
        waiter = Waiter(hub, state, order)
        writer: list[Callable[[], object]] = [lambda s=state: s.update(done=True), lambda h=hub: h.ring([Ring("commits", "s")])]
        waiting = iter(waiter.steps)
        writing = iter(writer)
        for place in range(4):
            next(waiting if place in places else writing)()
        stuck += not waiter.ends()
    return stuck


def test_no_schedule_leaves_a_waiter_asleep_who_subscribes_before_checking() -> None:
    assert stuck_schedules(["subscribe", "check"]) == 0


def test_a_waiter_who_checks_before_subscribing_can_sleep_forever() -> None:
    assert stuck_schedules(["check", "subscribe"]) > 0


def test_no_wake_up_is_lost_when_waiter_and_writer_really_race() -> None:
    hub = sync_hub()
    for _ in range(200):
        state, barrier, answers = {"done": False}, threading.Barrier(2), list[bool]()

        def wait(state: dict[str, bool] = state, barrier: threading.Barrier = barrier, answers: list[bool] = answers) -> None:
            barrier.wait()
            with hub.subscribe("commits", "s") as subscription:
                answers.append(state["done"] or subscription.wait(PATIENCE_MS))

        thread = threading.Thread(target=wait)
        thread.start()
        barrier.wait()
        state["done"] = True
        hub.ring([Ring("commits", "s")])
        thread.join()
        assert answers == [True]
    assert hub.kinds() == []


def test_a_ring_between_two_waits_is_remembered_once() -> None:
    hub = sync_hub()
    with hub.subscribe("commits", "s") as subscription:
        hub.ring([Ring("commits", "s"), Ring("commits", "s")])
        assert [subscription.wait(0), subscription.wait(0)] == [True, False]


def test_a_waiter_for_any_id_hears_every_id_of_its_kind_and_no_other() -> None:
    hub = sync_hub()
    with hub.subscribe("inbox", None) as anybody, hub.subscribe("inbox", "a") as somebody:
        hub.ring([Ring("inbox", "b"), Ring("commits", "a")])
        assert (anybody.wait(0), somebody.wait(0)) == (True, False)


def test_a_waiter_who_left_costs_nothing() -> None:
    hub = sync_hub(commits=nothing_found)
    subscription = hub.subscribe("commits", "s")
    subscription.close()
    subscription.close()
    assert hub.looks(["commits"]) == []


def test_waiters_beyond_the_limit_are_refused_and_leaving_makes_room() -> None:
    hub = Hub(SyncSubscription, probes={}, max_waiters=1)
    with hub.subscribe("commits", "a"), pytest.raises(LimitExceeded, match="active_waiters"):
        hub.subscribe("commits", "b")
    hub.subscribe("commits", "b").close()


def test_closing_wakes_everybody_with_an_error() -> None:
    hub, errors = sync_hub(), list[Misuse]()
    subscription = hub.subscribe("commits", "s")

    def wait() -> None:
        try:
            subscription.wait(None)
        except Misuse as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    hub.close()
    thread.join()
    assert [error.reason for error in errors] == ["closed"]


def test_an_async_waiter_hears_a_ring_from_another_thread() -> None:
    async def scenario() -> list[bool]:
        loop = asyncio.get_running_loop()
        hub = Hub(AsyncSubscription, probes={}, deliver=loop.call_soon_threadsafe)
        with hub.subscribe("commits", "s") as subscription:
            ringer = threading.Thread(target=hub.ring, args=([Ring("commits", "s")],))
            ringer.start()
            answers = [await subscription.wait(PATIENCE_MS), await subscription.wait(0)]
            ringer.join()
            return answers

    assert asyncio.run(scenario()) == [True, False]


# The slow look


def test_a_look_is_one_operation_for_all_waiters_of_a_kind() -> None:
    asked: list[Waiting] = []

    def probe(waiting: Waiting) -> Op[set[str | None]]:
        asked.append(waiting)
        yield from ()
        return set()

    hub = sync_hub(commits=probe, inbox=probe)
    for number in range(1000):
        hub.subscribe("commits", f"s{number % 500}", seen=number)
    looks = hub.looks(hub.kinds())
    assert [kind for kind, _ in looks] == ["commits"]
    list(looks[0][1]())
    assert len(asked) == 1
    assert sorted(asked[0])[:2] == [("s0", 0), ("s1", 1)]  # of two waiters the one who knows less
    assert len(asked[0]) == 500


def test_of_the_kinds_that_may_concern_somebody_only_those_with_many_waiters_need_a_look() -> None:
    hub = sync_hub()
    lone, *many = hub.subscribe("commits", "s"), hub.subscribe("inbox", "s"), hub.subscribe("inbox", "s")
    other = hub.subscribe("process", "p")
    assert hub.rouse(["commits", "inbox", "runnable"]) == ["inbox"]
    assert [waiter.wait(0) for waiter in (lone, *many, other)] == [True, False, False, False]


def looks_in(pace: Pace, kinds: list[str], seconds: int) -> list[str]:
    """Let a simulated watcher run."""
    now_s, looks = 0.0, list[str]()
    while now_s < seconds:
        looks += pace.due(kinds, now_s)
        wait_s = pace.wait_s(kinds, now_s)
        assert wait_s is not None
        assert wait_s > 0
        now_s += wait_s
    return looks


def test_idle_waiters_cost_a_handful_of_looks_however_long_they_wait() -> None:
    looks = looks_in(Pace(), ["inbox", "commits"], 600)
    assert 590 <= looks.count("inbox") <= 600  # delayed work becomes due without a signal
    assert 118 <= looks.count("commits") <= 125


def test_a_new_waiter_brings_the_next_look_near_and_never_pushes_it_away() -> None:
    pace = Pace()
    looks_in(pace, ["commits"], 100)
    pace.due(["commits"], 100.0)
    assert (pace.wait_s(["commits"], 100.0) or 0) > 1
    for tenth in range(10):
        pace.hurry(100.0 + tenth / 10)
    assert pace.due(["commits"], 101.0) == ["commits"]


def test_nobody_waiting_means_no_look() -> None:
    assert Pace().wait_s([], 0.0) is None


# The doorbell


def test_a_bell_tells_its_own_rings_from_those_of_others(tmp_path: Path) -> None:
    ours, theirs = Bell(str(tmp_path / "bell")), Bell(str(tmp_path / "bell"))
    assert ours.foreign()  # whoever begins to watch looks once
    ours.ring()
    assert not ours.foreign()
    theirs.ring()
    ours.ring()
    assert [ours.foreign(), ours.foreign()] == [True, False]
    assert (tmp_path / "bell").stat().st_mode & 0o777 == 0o600
    ours.close()
    theirs.close()


def test_a_bell_starts_again_at_zero_and_still_rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorbell, "BELL_MAX_BYTES", 4)
    ours, theirs = Bell(str(tmp_path / "bell")), Bell(str(tmp_path / "bell"))
    ours.foreign()
    for _ in range(20):
        theirs.ring()
        assert ours.foreign()
    assert (tmp_path / "bell").stat().st_size <= 4
    ours.close()
    theirs.close()


def test_a_bell_follows_a_file_that_was_deleted(tmp_path: Path) -> None:
    ours, theirs = Bell(str(tmp_path / "bell")), Bell(str(tmp_path / "bell"))
    signal = Inotify(ours)
    signal.rung()
    theirs.ring()
    (tmp_path / "bell").unlink()
    signal.rung()
    theirs.ring()
    assert signal.rung()
    for closable in (signal, ours, theirs):
        closable.close()


def test_a_bell_that_cannot_ring_says_so_and_raises_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Bell(str(tmp_path / "nowhere" / "bell")).ring()
    assert "cannot ring the doorbell" in caplog.text


def test_a_bell_never_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("")
    (tmp_path / "bell").symlink_to(tmp_path / "precious")
    Bell(str(tmp_path / "bell")).ring()
    assert (tmp_path / "precious").read_text() == ""


def test_without_inotify_the_data_version_is_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def used_up(_: Bell) -> Inotify:
        raise OSError(24, "too many inotify instances")

    monkeypatch.setattr(doorbell, "Inotify", used_up)
    path = str(tmp_path / "a.db")
    writer = open_sync_runtime(Options(url=path), PROBES)
    bell = Bell(path + "-bell")
    signal = best_signal(path, bell)
    assert isinstance(signal, DataVersion)
    assert [signal.rung(), signal.rung()] == [True, False]
    writer.write(write_note, "n")
    assert signal.rung()
    for closable in (signal, bell, writer):
        closable.close()


def test_a_database_in_memory_has_no_bell() -> None:
    assert isinstance(best_signal(":memory:", None), Silent)
    assert not Silent().rung()


@contextmanager
def watched(folder: Path) -> Generator[tuple[Hub[SyncSubscription], Bell, queue.SimpleQueue[Sequence[str]]]]:
    """A hub that is watched, the bell of a stranger, and what the watcher looked at."""
    hub, looks = sync_hub(notes=nothing_found), queue.SimpleQueue[Sequence[str]]()
    ours, theirs = Bell(str(folder / "bell")), Bell(str(folder / "bell"))
    watcher = Watcher(hub, looks.put, lambda: Inotify(ours))
    hub.on_subscribe = watcher.nudge
    try:
        yield hub, theirs, looks
    finally:
        watcher.close()
        watcher.close()
        ours.close()
        theirs.close()


def test_the_watcher_looks_at_once_for_many_waiters_when_a_stranger_rings(tmp_path: Path) -> None:
    with watched(tmp_path) as (hub, theirs, looks), hub.subscribe(KIND, "n"), hub.subscribe(KIND, "m"):
        assert looks.get(timeout=PATIENCE_MS / 1000) == [KIND]  # the first look covers what happened before it watched
        theirs.ring()
        assert looks.get(timeout=PATIENCE_MS / 1000) == [KIND]


def test_a_lone_waiter_is_woken_without_a_look_when_a_stranger_rings(tmp_path: Path) -> None:
    with watched(tmp_path) as (hub, theirs, looks), hub.subscribe(KIND, "n") as lone:
        assert looks.get(timeout=PATIENCE_MS / 1000) == [KIND]
        theirs.ring()
        assert lone.wait(PATIENCE_MS)  # the look of this test wakes nobody


def test_a_commit_wakes_a_waiter_in_another_process_through_the_doorbell(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    runtime = open_sync_runtime(Options(url=path), PROBES)
    command = [sys.executable, "-m", "tests.support.runtime_children", "wait_for_note", path, "unused"]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        runtime.write(write_note, "bell")
        assert child.stdout.read() == "woken\n"
    runtime.close()


# NOTIFY and LISTEN

TOPICS = st.lists(st.tuples(st.sampled_from(["commits", "inbox"]), st.text(min_size=1, max_size=200)), max_size=200)


@given(TOPICS)
def test_payloads_carry_every_topic_within_the_limit(topics: list[tuple[str, str]]) -> None:
    messages = payloads("0123456789abcdef", topics)
    assert all(len(message.encode()) <= PAYLOAD_MAX_BYTES for message in messages)
    parsed = [parse(message) for message in messages]
    assert [(ring.kind, ring.id) for _, rings in parsed for ring in rings] == topics
    assert {origin for origin, _ in parsed} == {"0123456789abcdef"}


@pytest.mark.parametrize(
    "payload", ["", "nonsense", "[]", "{}", "3", '["x", 1]', '["x", ["a"]]', '["x", ["a", "b", "c"]]', "[null, null]"]
)
def test_a_strange_payload_means_look_yourself(payload: str) -> None:
    assert parse(payload)[1] == []


def test_a_channel_name_fits_an_identifier_and_differs_by_schema() -> None:
    assert len(channel_name("x" * 63)) <= 63
    assert channel_name("a") != channel_name("b")


class Outbox:
    """A database that answers when the test says so."""

    def __init__(self) -> None:
        self.sent: list[list[Any]] = []
        self.sending = asyncio.Semaphore(0)
        self.gate = asyncio.Semaphore(0)
        self.failures = 0

    async def send(self, messages: Sequence[str]) -> None:
        self.sending.release()
        await self.gate.acquire()
        if self.failures:
            self.failures -= 1
            raise OSError("gone")
        self.sent.append([topic for message in messages for topic in json.loads(message)[1:]])


def test_what_is_rung_while_a_notification_is_under_way_shares_the_next_one() -> None:
    async def scenario() -> list[list[Any]]:
        outbox = Outbox()
        sender = Sender(outbox.send, "me")
        sender.post([Ring("commits", "a")])
        await outbox.sending.acquire()
        for _ in range(100):
            sender.post([Ring("commits", "b"), Ring("inbox", "b")])
        outbox.gate.release()
        outbox.gate.release()
        await sender.close()
        return outbox.sent

    assert asyncio.run(scenario()) == [[["commits", "a"]], [["commits", "b"], ["inbox", "b"]]]


def test_a_notification_that_failed_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "RETRY_FIRST_S", 0.0)

    async def scenario() -> list[list[Any]]:
        outbox = Outbox()
        outbox.failures = 2
        sender = Sender(outbox.send, "me")
        sender.post([Ring("commits", "a")])
        for _ in range(3):
            outbox.gate.release()
        await sender.close()
        return outbox.sent

    assert asyncio.run(scenario()) == [[["commits", "a"]]]


def test_more_rings_than_are_kept_become_one_call_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> list[list[Any]]:
        outbox = Outbox()
        sender = Sender(outbox.send, "me")
        sender.post([Ring("commits", str(number)) for number in range(PENDING_MAX + 1)])
        outbox.gate.release()
        await sender.close()
        return outbox.sent

    assert asyncio.run(scenario()) == [[]]


def test_closing_gives_up_on_a_database_that_is_gone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(listen, "FLUSH_S", 0.0)

    async def scenario() -> None:
        sender = Sender(Outbox().send, "me")
        sender.post([Ring("commits", "a")])
        await sender.close()

    asyncio.run(scenario())
    assert "before all notifications were sent" in caplog.text


def test_a_listener_reconnects_and_looks_after_each_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listen, "RETRY_FIRST_S", 0.0)
    caplog.set_level(logging.INFO, "lash_store")

    class Line:
        def __init__(self) -> None:
            self.callbacks: list[Callable[..., None]] = []

        async def add_listener(self, channel: str, callback: Callable[..., None]) -> None:
            pass

        def add_termination_listener(self, callback: Callable[..., None]) -> None:
            self.callbacks.append(callback)

        def is_closed(self) -> bool:
            return False

        async def close(self, *, timeout: float | None = None) -> None:
            raise OSError("already gone")

    async def scenario() -> int:
        lines: list[Line] = []
        looked = asyncio.Semaphore(0)

        async def connect() -> Line:
            lines.append(Line())
            if len(lines) == 2:
                raise OSError("not yet")
            return lines[-1]

        async def look(kinds: Sequence[str]) -> None:
            looked.release()

        hub = Hub(AsyncSubscription, probes={"notes": nothing_found})
        listener = Listener(hub, look, connect=connect, channel="c", origin="me")
        hub.on_subscribe = listener.nudge
        with hub.subscribe(KIND, "n"):
            await looked.acquire()
            lines[0].callbacks[0]()
            await looked.acquire()
        await listener.close()
        return len(lines)

    assert asyncio.run(scenario()) == 3
    assert "cannot LISTEN" in caplog.text
    assert "was lost" in caplog.text


async def only_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the slow look so slow that only a notification can wake anybody."""
    monkeypatch.setattr(hub_module, "FIRST_LOOK_S", 3600.0)
    monkeypatch.setattr(hub_module, "SLOWEST_LOOK_S", 3600.0)


def test_a_commit_wakes_a_waiter_of_another_store_through_notify(
    pg_url: str, pg_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        await only_signals(monkeypatch)
        options = Options(url=pg_url, schema=pg_schema)
        writer = await open_async_runtime(options, PROBES)
        reader = await open_async_runtime(options, {KIND: nothing_found})
        with reader.subscribe(KIND, "n'; ü") as subscription, reader.subscribe(KIND, "other") as other:
            await listening(reader)
            await writer.write(write_note, "n'; ü")
            assert await subscription.wait(PATIENCE_MS)
            assert not await other.wait(0)
            assert await reader.read(notes) == ["n'; ü"]
        await writer.close()
        await reader.close()

    asyncio.run(scenario())


def test_a_store_is_not_woken_twice_by_its_own_commit(pg_url: str, pg_schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        await only_signals(monkeypatch)
        options = Options(url=pg_url, schema=pg_schema)
        ours = await open_async_runtime(options, {KIND: nothing_found})
        theirs = await open_async_runtime(options, {KIND: nothing_found})
        with ours.subscribe(KIND, None) as subscription, theirs.subscribe(KIND, "2") as stranger:
            await listening(ours)
            await listening(theirs)
            await ours.write(write_note, "1")
            assert await subscription.wait(PATIENCE_MS)
            # Notifications arrive in the order they were sent: once the second is there, the first has passed everybody.
            await ours.write(write_note, "2")
            assert await subscription.wait(PATIENCE_MS)
            assert await stranger.wait(PATIENCE_MS)
            with ours.subscribe(KIND, "3") as third:
                await theirs.write(write_note, "3")
                assert await third.wait(PATIENCE_MS)
            assert [await subscription.wait(0), await subscription.wait(0)] == [True, False]
        await ours.close()
        await theirs.close()

    asyncio.run(scenario())


def test_a_killed_listen_connection_comes_back_and_hears_again(
    pg_url: str, pg_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        await only_signals(monkeypatch)
        options = Options(url=pg_url, schema=pg_schema)
        runtime = await open_async_runtime(options, PROBES)
        with runtime.subscribe(KIND, "n") as subscription:
            await listening(runtime)
            await kill_listeners(pg_url, channel_name(pg_schema))
            other = await open_async_runtime(options, PROBES)
            await other.write(write_note, "n")
            assert await subscription.wait(PATIENCE_MS)
            await other.close()
        await runtime.close()

    asyncio.run(scenario())


def test_behind_a_pooler_the_slow_look_finds_it_and_the_store_says_that_it_polls(
    pg_url: str, pg_schema: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hub_module, "FIRST_LOOK_S", 0.01)
    caplog.set_level(logging.INFO, "lash_store")
    options = Options(url=pg_url, schema=pg_schema, pooler=True)
    waiting, writing = open_sync_runtime(options, PROBES), open_sync_runtime(options, PROBES)
    with waiting.subscribe(KIND, "n") as subscription:
        writing.write(write_note, "n")
        assert subscription.wait(PATIENCE_MS)
    waiting.close()
    writing.close()
    assert "pass listen_url" in caplog.text


async def listening(runtime: Any) -> None:
    """Until the store's LISTEN connection stands and its first look is over."""
    engine = runtime._engine
    await engine.listening.wait()
    await runtime.read(notes)


async def kill_listeners(url: str, channel: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        found = await connection.fetch(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE $1", f'LISTEN "{channel}"%'
        )
        assert len(found) == 1
    finally:
        await connection.close()


def test_a_thousand_idle_waiters_share_one_statement_per_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "FIRST_LOOK_S", 0.01)
    monkeypatch.setattr(hub_module, "STEADY_KINDS", frozenset({KIND}))
    looked, sizes, statements = threading.Semaphore(0), list[int](), list[str]()

    def counted(waiting: Waiting) -> Op[set[str | None]]:
        sizes.append(len(waiting))
        looked.release()
        return look_for_notes(waiting)

    def heard(event: StatementEvent) -> None:
        statements.append(event.operation)

    runtime = open_sync_runtime(Options(url=str(tmp_path / "a.db"), on_statement=heard), {KIND: counted})
    subscriptions = [runtime.subscribe(KIND, f"n{number}") for number in range(1000)]
    while sizes.count(1000) < 5:
        assert looked.acquire(timeout=PATIENCE_MS / 1000)
    for subscription in subscriptions:
        subscription.close()
    runtime.close()
    assert statements.count("look_for_notes") == len(sizes)
