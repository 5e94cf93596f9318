"""Laws of cost: the number of statements does not grow with nodes, components, items, usage or history."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from lash_store.model.commit import Commit
from lash_store.model.graph import Append, NodeDraft, Replace, active_path
from lash_store.model.process import EventDraft, EventType, Scope, StartGrant
from lash_store.model.queue import BatchDraft
from lash_store.model.session import Frame
from lash_store.model.usage import Usage
from lash_store.testing.backend import Backend
from lash_store.testing.process_steps import NOTE, WAKE, job, next_of, registered
from lash_store.testing.steps import HOUR_MS, claimed, say, watched, work

if TYPE_CHECKING:
    from lash_store import AsyncStore

MANY = 200


async def a_commit_costs_the_same_for_one_and_for_many(backend: Backend) -> None:
    """Nodes, components, usage, frames, new and settled work and attachments each cost a fixed number of statements."""
    meter = await _Meter.of(backend)
    for part in ("nodes", "components", "usage", "frames", "enqueues", "completes", "attachments"):
        one, many = [await meter.cost(*(await _commit_of(meter, part, size))) for size in (1, MANY)]
        assert one == many, f"a commit with {MANY} {part} takes {many} statements, with one {one}"
        assert one > 0


async def a_replacement_costs_the_same_for_one_and_for_many(backend: Backend) -> None:
    """Replace is a fixed number of statements, whatever it tombstones and inserts."""
    meter = await _Meter.of(backend)
    costs: list[int] = []
    for size in (1, MANY):
        session_id = f"replace-{size}"
        await say(meter.store, session_id, *(f"old{n}" for n in range(size)))
        graph = Replace([NodeDraft(node_id=f"new{n}", body=n) for n in range(size)])
        costs.append(await meter.cost(session_id, Commit(expected_revision=1, graph=graph)))
    assert costs[0] == costs[1]


async def a_commit_costs_the_same_after_a_long_history(backend: Backend) -> None:
    """The hundredth turn takes as many statements as the second."""
    meter = await _Meter.of(backend)
    costs = []
    for revision in range(100):
        turn = Commit(
            expected_revision=revision,
            turn_id=f"t{revision}",
            graph=Append([NodeDraft(body=revision)]),
            checkpoint={"c": b"state" * (revision + 1)},
            usage=[Usage(source="s", model="m", input=1)],
        )
        costs.append(await meter.cost("s", turn))
    # The version that starts a new chain takes another path than one that continues it; no cost may follow the length.
    assert set(costs[50:]) <= set(costs[1:50])


async def a_load_costs_the_same_for_one_and_for_many(backend: Backend) -> None:
    """Full, path and end-of-path loads take a fixed number of statements in nodes, components and history."""
    meter = await _Meter.of(backend)
    for session_id, size in (("one", 1), ("many", MANY)):
        parts = {f"c{n}": b"x" for n in range(size)}
        await meter.store.sessions.commit(session_id, Commit(expected_revision=0, graph=_nodes(size), checkpoint=parts, config=1))
        for n in range(2 if size == 1 else 30):
            await meter.store.sessions.commit(
                session_id, Commit(expected_revision=n + 1, graph=_nodes(1), checkpoint={"c0": b"%d" % n})
            )
    scopes: list[dict[str, Any]] = [{}, {"scope": active_path()}, {"scope": active_path(last=3)}, {"at_revision": 2}]
    for scope in scopes:
        costs = [await meter.spent(meter.store.sessions.load(session_id, **scope)) for session_id in ("one", "many")]
        assert costs[0] == costs[1], f"load({scope}) takes {costs}"


async def an_enqueue_costs_the_same_for_one_and_for_many(backend: Backend) -> None:
    """Payloads travel in one row, and the length of the inbox does not matter."""
    meter = await _Meter.of(backend)
    await meter.store.sessions.create("s")
    first = await meter.spent(meter.store.queue.enqueue("s", [1], source_key="a"))
    wide = await meter.spent(meter.store.queue.enqueue("s", [1] * MANY, source_key="b"))
    await work(meter.store, "s", *(str(n) for n in range(50)))
    late = await meter.spent(meter.store.queue.enqueue("s", [1], source_key="c"))
    assert first == wide == late


async def a_claim_costs_the_same_for_one_and_for_many(backend: Backend) -> None:
    """Claiming, renewing and settling one batch or two hundred take the same number of statements."""
    meter = await _Meter.of(backend)
    costs: list[tuple[int, ...]] = []
    for session_id, size in (("one", 1), ("many", MANY)):
        await meter.store.sessions.create(session_id)
        drafts = [BatchDraft(payloads=[n]) for n in range(size)]
        await meter.store.sessions.commit(session_id, Commit(expected_revision=0, enqueues=drafts))
        claim_cost = await meter.spent(
            meter.store.queue.claim(session_id, "w", lease_ms=HOUR_MS, max_batches=MANY, token=session_id)
        )
        claim = await claimed(meter.store, session_id, max_batches=MANY, token=session_id)
        assert len(claim.batches) == size
        renew = await meter.spent(meter.store.queue.renew(claim, lease_ms=HOUR_MS))
        settle = await meter.spent(meter.store.queue.settle(claim))
        costs.append((claim_cost, renew, settle))
    assert costs[0] == costs[1]


async def the_next_claim_costs_the_same_however_many_sessions_are_busy(backend: Backend) -> None:
    """claim_next finds its session through an index: held sessions before it cost no statements."""
    meter = await _Meter.of(backend)
    costs: list[int] = []
    for n in range(30):
        await meter.store.sessions.create(f"s{n}")
        await work(meter.store, f"s{n}", "a", "b")
        costs.append(await meter.spent(meter.store.queue.claim_next("w", lease_ms=HOUR_MS)))
    assert len(set(costs)) == 1


async def an_append_costs_the_same_for_one_and_for_many(backend: Backend) -> None:
    """Events of one call, the length of the log, and wakes that join a pending one cost no further statements."""
    meter = await _Meter.of(backend)
    processes = meter.store.processes
    await meter.store.sessions.create("s")
    for process_id in ("plain", "waking", "keyed"):
        await registered(meter.store, process_id, NOTE, WAKE, wake_target=Scope("s"))
        await processes.append(process_id, "note")
    for process_id, event_type, key in (("plain", "note", None), ("waking", "process.wake", None), ("keyed", "note", "k")):
        costs: list[int] = []
        for turn, size in enumerate((1, MANY, 1)):
            drafts = [
                EventDraft(event_type=event_type, payload={"text": str(n)}, replay_key=key and f"{key}{turn}-{n}")
                for n in range(size)
            ]
            costs.append(await meter.spent(processes.append_many(process_id, drafts)))
        assert len(set(costs)) == 1, f"{event_type} events take {costs}"
        assert costs[0] <= 14
    first = await meter.spent(processes.append("plain", "note", replay_key="x"))
    assert await meter.spent(processes.append("plain", "note", replay_key="x")) <= first


async def a_register_costs_the_same_however_many_processes_there_are(backend: Backend) -> None:
    """A registration, new or repeated, with a grant or without, takes a fixed number of statements."""
    meter = await _Meter.of(backend)
    await meter.store.sessions.create("s")
    fresh: list[int] = []
    again: list[int] = []
    for n in range(30):
        types = [EventType(name=f"t{m}") for m in range(1 if n % 2 else 50)]
        start = job(f"p{n}", *types, wake_target=Scope("s"))
        grant = StartGrant(scope=Scope("s"))
        fresh.append(await meter.spent(meter.store.processes.register(start, grant=grant)))
        again.append(await meter.spent(meter.store.processes.register(start, grant=grant)))
    assert len(set(fresh)) == len(set(again)) == 1
    assert max(*fresh, *again) <= 12


async def handing_out_processes_costs_the_same_for_one_and_for_many(backend: Backend) -> None:
    """claim_next takes as many statements for one process as for two hundred, however many are held by others."""
    meter = await _Meter.of(backend)
    costs: list[int] = []
    for round_, size in enumerate((1, MANY, 1)):
        for n in range(size):
            await registered(meter.store, f"p{round_}-{n}")
        costs.append(await meter.spent(next_of(meter.store, limit=MANY)))
    assert len(set(costs)) == 1, costs
    assert costs[0] <= 8


async def a_deletion_costs_nothing_for_processes_it_does_not_touch(backend: Backend) -> None:
    """Deleting a session takes as many statements among two hundred other processes as among none."""
    meter = await _Meter.of(backend)
    costs: list[int] = []
    for n, others in enumerate((0, MANY)):
        await meter.store.sessions.create(f"s{n}")
        await meter.store.sessions.create(f"other{n}")
        for m in range(others):
            await registered(meter.store, f"x{m}", wake_target=Scope(f"other{n}"))
        held = job(f"p{n}", wake_target=Scope(f"s{n}"))
        await meter.store.processes.register(held, grant=StartGrant(scope=Scope(f"s{n}")))
        costs.append(await meter.spent(meter.store.sessions.delete(f"s{n}")))
    assert costs[0] == costs[1]


async def grants_and_reads_of_processes_cost_the_same_for_one_and_for_many(backend: Backend) -> None:
    """Transfers, lists of grants, lists of processes and pages of a log take a fixed number of statements."""
    meter = await _Meter.of(backend)
    store, costs = meter.store, list[tuple[int, ...]]()
    for size in (1, 50):
        source, target = Scope(f"a{size}"), Scope(f"b{size}")
        for scope in (source, target):
            await store.sessions.create(scope.session_id)
        names = [f"p{size}-{n}" for n in range(size)]
        for name in names:
            await store.processes.register(job(name, NOTE), grant=StartGrant(scope=source))
        await store.processes.append_many(names[0], [EventDraft(event_type="note") for _ in range(size)])
        calls = (
            store.processes.transfer(source, target, names),
            store.processes.list_grants(target),
            store.processes.list(),
            store.processes.events(names[0]),
            store.processes.recent(names[0]),
        )
        costs.append(tuple([await meter.spent(call) for call in calls]))
    assert costs[0] == costs[1]


async def hooks_see_templates_and_never_values(backend: Backend) -> None:
    """on_statement is told the operation and the SQL, without any parameter; a hook that raises breaks nothing."""
    events: list[Any] = []

    def hook(event: Any) -> None:
        events.append(event)
        raise RuntimeError("from the hook")

    logging.getLogger("lash_store").addFilter(_silent)
    try:
        store = await backend.open(on_statement=hook)
        await say(store, "secret-session", "secret-node")
    finally:
        logging.getLogger("lash_store").removeFilter(_silent)
    assert events
    assert not [event for event in events if "secret" in repr(event)]
    assert {event.engine for event in events} == {backend.engine}


class _Meter:
    """A store that counts its statements."""

    def __init__(self, store: AsyncStore, statements: list[str]) -> None:
        self.store = store
        self._statements = statements

    @staticmethod
    async def of(backend: Backend) -> _Meter:
        return _Meter(*await watched(backend))

    async def spent(self, call: Any) -> int:
        """How many statements a call takes."""
        before = len(self._statements)
        await call
        return len(self._statements) - before

    async def cost(self, session_id: str, commit: Commit) -> int:
        """How many statements a commit takes."""
        return await self.spent(self.store.sessions.commit(session_id, commit))


async def _commit_of(meter: _Meter, part: str, size: int) -> tuple[str, Commit]:
    """A new session, and a commit that carries `size` of one part."""
    session_id, store = f"{part}-{size}", meter.store
    await say(store, session_id, "root")
    fields: dict[str, Any] = {}
    if part == "nodes":
        fields["graph"] = _nodes(size)
    elif part == "components":
        fields["checkpoint"] = {f"c{n}": b"%d" % n for n in range(size)}
    elif part == "usage":
        fields["usage"] = [Usage(source=f"s{n}", model="m", input=1) for n in range(size)]
    elif part == "frames":
        fields["frames"] = [Frame(frame_id=f"f{n}", body=n) for n in range(size)]
    elif part == "enqueues":
        fields["enqueues"] = [BatchDraft(payloads=[n]) for n in range(size)]
    elif part == "completes":
        drafts = [BatchDraft(payloads=[n]) for n in range(size)]
        await store.sessions.commit(session_id, Commit(expected_revision=1, enqueues=drafts))
        fields["completes"] = [await claimed(store, session_id, max_batches=size)]
    else:
        refs = [await store.attachments.put(session_id, b"%d" % n, media_type="a/b") for n in range(min(size, 20))]
        fields["attachments"] = [ref.attachment_id for ref in refs]
    revision = (await store.sessions.get(session_id)).revision
    return session_id, Commit(expected_revision=revision, **fields)


def _nodes(size: int) -> Append:
    return Append([NodeDraft(body=n) for n in range(size)])


def _silent(_: object) -> bool:
    return False
