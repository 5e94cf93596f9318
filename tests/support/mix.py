"""A random mix of public calls on a few sessions, for tests of contention."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeVar

from lash_store import AsyncStore
from lash_store.errors import Busy, Refused
from lash_store.model.commit import Commit
from lash_store.model.graph import Append, NodeDraft, Replace
from lash_store.model.queue import BatchDraft, Claim
from lash_store.model.usage import Usage

SESSIONS = ("a", "b", "c", "d")
LEASE_MS = 50  # short, so that claims are taken over from each other
PATIENT_MS = 120_000  # for a lock, a connection, a transaction: a loaded machine is slow, and a deadlock is counted anyway


W = TypeVar("W", bound="Worker")


class Worker:
    """One task of the mix: it remembers what it holds, and uses it later, maybe too late."""

    def __init__(self, store: AsyncStore, chance: random.Random, name: str) -> None:
        self._store = store
        self._chance = chance
        self._name = name
        self._turns = 0
        self._claims: list[Claim] = []
        self._contents: list[tuple[str, str]] = []
        self.acknowledged: list[tuple[str, int, int, str]] = []  # session, incarnation, revision, turn
        self.appended: list[tuple[str, int, str]] = []  # process, sequence, key
        self.calls = Counter[str]()
        self.refusals = Counter[str]()

    async def work(self, until: float, calls: Sequence[Callable[[Self, str, str], Awaitable[None]]]) -> None:
        """Call after call until the time is over. A refusal is an answer; anything else ends the test."""
        while time.monotonic() < until:
            call = self._chance.choice(calls)
            self.calls[call.__name__] += 1
            try:
                await call(self, *self._chance.sample(SESSIONS, 2))
            except Refused as refusal:
                self.refusals[type(refusal).__name__] += 1

    async def _commit(self, session_id: str, **fields: object) -> None:
        self._turns += 1
        turn = f"{self._name}/{self._turns}"
        given = Commit(**({"expected_revision": None, "turn_id": turn} | fields))  # pyright: ignore[reportArgumentType]
        receipt = await self._store.sessions.commit(session_id, given)
        self.acknowledged.append((session_id, receipt.incarnation, receipt.revision, turn))

    async def commit_blind(self, here: str, there: str) -> None:
        usage = [Usage(source=source, model="m", input=1) for source in self._chance.sample("xyz", 2)]
        await self._commit(here, graph=Append([NodeDraft(body=self._name), NodeDraft(body=there)]), usage=usage)

    async def commit_expected(self, here: str, there: str) -> None:
        revision = (await self._store.sessions.get(here)).revision
        checkpoint = {"state": self._chance.randbytes(64), "other": there.encode()}
        await self._commit(here, expected_revision=revision, checkpoint=checkpoint, config=self._name)

    async def commit_replace(self, here: str, there: str) -> None:
        revision = (await self._store.sessions.get(here)).revision
        await self._commit(here, expected_revision=revision, graph=Replace([NodeDraft(body=there)]))

    async def commit_crossed(self, here: str, there: str) -> None:
        drafts = [
            BatchDraft(session_id=each, payloads=[self._name], source_key=f"{self._chance.randrange(50)}")
            for each in (there, here)
        ]
        await self._commit(here, graph=Append([NodeDraft(body="crossed")]), enqueues=drafts)

    async def commit_completing(self, here: str, there: str) -> None:
        claim = await self._store.queue.claim(here, self._name, lease_ms=LEASE_MS, max_batches=3)
        if claim is not None:
            await self._commit(here, completes=[claim], graph=Append([NodeDraft(body=there)]))

    async def create(self, here: str, there: str) -> None:
        await self._store.sessions.create(here, name=there, config=self._name)

    async def delete(self, here: str, there: str) -> None:
        if self._chance.random() < 0.1:  # a deleted session answers everything with a refusal until it is created again
            await self._store.sessions.delete(here)
        await self._store.sessions.create(here)
        await self._store.sessions.create(there)

    async def fork(self, here: str, there: str) -> None:
        copy = f"{here} of {self._name}"
        try:
            await self._store.sessions.fork(here, copy)
        except Busy:
            return  # commits and retention kept passing its point: it says so, and wrote nothing
        await self._store.sessions.delete(copy)
        await self._store.sessions.create(copy)
        await self._commit(copy, graph=Append([NodeDraft(body=1)]), enqueues=[BatchDraft(session_id=there, payloads=[1])])

    async def graph(self, here: str, there: str) -> None:
        nodes = (await self._store.sessions.load(here, checkpoint=False)).nodes
        await self._store.sessions.tombstone(here, [node.node_id for node in nodes[:2]])
        await self._store.sessions.vacuum(here)
        await self._store.sessions.update_meta(here, name=there)

    async def enqueue(self, here: str, there: str) -> None:
        await self._store.queue.enqueue(
            here, [there], source_key=f"{self._chance.randrange(50)}", delay_ms=self._chance.choice([0, 5])
        )

    async def claim_next(self, here: str, there: str) -> None:
        claim = await self._store.queue.claim_next(
            self._name, lease_ms=LEASE_MS, max_batches=2, concurrent=self._chance.random() < 0.5
        )
        self._claims += [] if claim is None else [claim]

    async def settle(self, here: str, there: str) -> None:
        if self._claims:
            claim = self._claims.pop(0)
            call: Callable[[Claim], Awaitable[object]] = self._chance.choice(
                [self._store.queue.settle, self._store.queue.abandon]
            )
            await self._store.queue.renew(claim, lease_ms=LEASE_MS)
            await call(claim)

    async def levers(self, here: str, there: str) -> None:
        for batch in (await self._store.queue.list(here, limit=3)).batches:
            await self._store.queue.park(here, batch.batch_id, reason=there)
            await self._store.queue.unpark(here, batch.batch_id)
            await self._store.queue.cancel(here, batch.batch_id)

    async def put(self, here: str, there: str) -> None:
        data = self._chance.choice([b"one", b"two", b"three"])
        refs = [await self._store.attachments.put(each, data, media_type="text/plain") for each in (here, there)]
        self._contents.append((there, refs[1].attachment_id))
        await self._commit(here, graph=Append([NodeDraft(body="named")]), attachments=[refs[0].attachment_id])

    async def forget(self, here: str, there: str) -> None:
        if self._contents:
            await self._store.attachments.forget(*self._contents.pop())

    async def sweep(self, here: str, there: str) -> None:
        await self._store.attachments.sweep(older_than_ms=self._chance.choice([0, 20]))

    async def collect(self, here: str, there: str) -> None:
        await self._store.maintenance.collect(session_id=self._chance.choice([here, there]))
        if self._chance.random() < 0.2:
            await self._store.maintenance.collect()

    async def transact(self, here: str, there: str) -> None:
        async with self._store.transaction(max_ms=PATIENT_MS) as transaction:
            await transaction.sessions.commit(here, Commit(expected_revision=None, graph=Append([NodeDraft(body=there)])))
            await transaction.queue.enqueue(here, [there])


CALLS: tuple[Callable[[Worker, str, str], Awaitable[None]], ...] = (
    Worker.commit_blind,
    Worker.commit_expected,
    Worker.commit_replace,
    Worker.commit_crossed,
    Worker.commit_crossed,
    Worker.commit_completing,
    Worker.create,
    Worker.delete,
    Worker.fork,
    Worker.graph,
    Worker.enqueue,
    Worker.claim_next,
    Worker.claim_next,
    Worker.settle,
    Worker.levers,
    Worker.put,
    Worker.forget,
    Worker.sweep,
    Worker.collect,
    Worker.transact,
)


async def mix(
    store: AsyncStore,
    kind: Callable[[AsyncStore, random.Random, str], W],
    calls: Sequence[Callable[[W, str, str], Awaitable[None]]],
    *,
    tasks: int,
    seconds: float,
    seed: int,
) -> list[W]:
    """So many tasks at once, each with its own stream of chance; they, with what they remember."""
    for session_id in SESSIONS:
        await store.sessions.create(session_id)
    workers = [kind(store, random.Random(seed * 1000 + number), f"w{number}") for number in range(tasks)]
    until = time.monotonic() + seconds
    ends = await asyncio.gather(*(worker.work(until, calls) for worker in workers), return_exceptions=True)
    for end in ends:
        if end is not None:
            raise end
    return workers
