"""What a call costs on the wire, counted by a proxy: on a warm connection of our own the hot operations are one round trip."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from lash_store import (
    ActivePath,
    Append,
    AsyncStore,
    Commit,
    EventType,
    NodeDraft,
    Payload,
    ProcessInput,
    Registration,
    Scope,
    Usage,
    Wake,
)
from tests.support.postgres import Server

WAKING = EventType(name="ping", wake=Wake(input=Payload()))


PROJECT = Path(__file__).resolve().parents[1]


class Proxy:
    """A wire that counts, in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self.url = url

    def round_trips(self) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(json.loads(self._process.stdout.readline())["round_trips"])


@contextmanager
def wire_to(server: Server) -> Generator[Proxy]:
    parts = urlsplit(server.tcp_url)
    command = [sys.executable, "-m", "bench.proxy", parts.hostname or "", str(parts.port)]
    with subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            yield Proxy(process, server.tcp_url.replace(f":{parts.port}/", f":{port}/"))
        finally:
            process.kill()


class Wired:
    """A store behind the proxy, with a session and a process in it, and nobody to notify."""

    def __init__(self, store: AsyncStore, proxy: Proxy) -> None:
        self.store = store
        self._proxy = proxy

    async def prepare(self) -> None:
        runtime: Any = self.store._runtime  # pyright: ignore[reportPrivateUsage]
        # A notification is a statement of its own, after the commit; here only the operations count.
        runtime._engine._sender.post = lambda rings: None  # pyright: ignore[reportUnknownLambdaType]
        await self.store.sessions.create("s")
        registration = Registration(process_id="p", input=ProcessInput("job"), event_types=[WAKING], wake_target=Scope("s"))
        await self.store.processes.register(registration)

    async def cost(self, work: Callable[[], Awaitable[Any]]) -> int:
        before = self._proxy.round_trips()
        await work()
        return self._proxy.round_trips() - before

    async def turn(self, nodes: int, components: int) -> None:
        head = await self.store.sessions.get("s")
        graph = Append([NodeDraft(kind="user", body={"text": f"{i}"}) for i in range(nodes)])
        checkpoint = {f"c{i}": f"{head.revision}-{i}".encode() * 50 for i in range(components)}
        usage = [Usage(source="a", model="m", input=1)]
        await self.store.sessions.commit(
            "s",
            Commit(expected_revision=head.revision, graph=graph, checkpoint=checkpoint, usage=usage, turn_id=f"t{head.revision}"),
        )


def measured(server: Server, schema: str, scene: Callable[[Wired], Awaitable[dict[str, int]]], **options: Any) -> dict[str, int]:
    async def run(proxy: Proxy) -> dict[str, int]:
        async with AsyncStore.open(proxy.url, schema=schema, **options) as store:
            wired = Wired(store, proxy)
            await wired.prepare()
            await scene(wired)  # warm: statements are prepared, registrations read
            return await scene(wired)

    with wire_to(server) as proxy:
        return asyncio.run(run(proxy))


async def hot(wired: Wired) -> dict[str, int]:
    """The cost of every hot operation, reads included."""
    store, costs = wired.store, dict[str, int]()
    costs["commit and the look before it"] = await wired.cost(lambda: wired.turn(2, 1))
    costs["a large commit and the look before it"] = await wired.cost(lambda: wired.turn(50, 8))
    costs["enqueue"] = await wired.cost(lambda: store.queue.enqueue("s", [1]))
    held: list[Any] = []

    async def claim() -> None:
        held.append(await store.queue.claim_next("w", lease_ms=60_000))

    costs["claim_next"] = await wired.cost(claim)
    costs["settle"] = await wired.cost(lambda: store.queue.settle(held[0]))
    costs["claim of nothing"] = await wired.cost(lambda: store.queue.claim("s", "w", lease_ms=60_000))
    costs["append that wakes"] = await wired.cost(lambda: store.processes.append("p", "ping", {"text": "x"}))
    work = await store.queue.claim("s", "w", lease_ms=60_000)
    assert work is not None
    await store.queue.settle(work)
    costs["load"] = await wired.cost(lambda: store.sessions.load("s"))
    costs["load of the last nodes"] = await wired.cost(lambda: store.sessions.load("s", ActivePath(last=5)))
    costs["get"] = await wired.cost(lambda: store.processes.get("p"))
    return costs


def test_a_hot_operation_is_one_round_trip(pg_server: Server, pg_schema: str) -> None:
    costs = measured(pg_server, pg_schema, hot)
    assert {name: cost - (2 if "look" in name else 1) for name, cost in costs.items()} == dict.fromkeys(costs, 0)


def test_behind_a_pooler_it_is_three(pg_server: Server, pg_schema: str) -> None:
    costs = measured(pg_server, pg_schema, hot, pooler=True)
    # BEGIN with its timeouts, the statement, COMMIT.
    assert costs["enqueue"] == costs["settle"] == costs["load"] == 3


def test_the_proxy_counts(pg_server: Server, pg_schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without shortcuts the same operations cost many round trips, and the same counter sees them."""
    monkeypatch.setattr("lash_store.db.postgres.PostgresDriver.shortcuts", False)
    costs = measured(pg_server, pg_schema, hot)
    assert costs["enqueue"] > 5
    assert costs["commit and the look before it"] > 10
