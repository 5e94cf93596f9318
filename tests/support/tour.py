"""One walk through everything a store can write and read, for places where it is the place that is in question."""

from __future__ import annotations

from lash_store import Append, AsyncStore, BatchDraft, Commit, Frame, NodeDraft, Replace, Usage

LEASE_MS = 60_000


async def tour(store: AsyncStore, name: str) -> None:
    """Every statement of the store, on sessions whose ids start with `name`; what comes back is checked."""
    await _talk(store, name)
    await _work(store, name)
    await _attach(store, name)
    await _end(store, name)


async def _talk(store: AsyncStore, name: str) -> None:
    await store.sessions.create(name, config={"model": "a"})
    await store.sessions.update_meta(name, model="b")
    first = Commit(
        expected_revision=0,
        turn_id="first",
        graph=Append([NodeDraft(body={"n": n}, node_id=f"n{n}") for n in range(3)]),
        checkpoint={"state": b"one"},
        config={"model": "b"},
        frames=[Frame(frame_id="f", body=1)],
        current_frame_id="f",
        usage=[Usage(source="s", model="m", input=3)],
        enqueues=[BatchDraft(payloads=["later"], source_key="later")],
    )
    receipt = await store.sessions.commit(name, first)
    assert (await store.sessions.commit(name, first)).replayed
    assert (await store.sessions.receipt(name, "first")).revision == receipt.revision == 1
    await store.sessions.commit(name, Commit(expected_revision=1, checkpoint={"state": b"two"}))
    snapshot = await store.sessions.load(name)
    assert [node.body["n"] for node in snapshot.nodes] == [0, 1, 2]
    assert snapshot.checkpoint == {"state": b"two"}
    assert (await store.sessions.load(name, at_revision=1)).checkpoint == {"state": b"one"}


async def _work(store: AsyncStore, name: str) -> None:
    parked = await store.queue.enqueue(name, ["parked"])
    await store.queue.park(name, parked.batch_id, reason="a look")
    claim = await store.queue.claim(name, "w", lease_ms=LEASE_MS)
    assert claim is not None
    assert claim.batches[0].payloads == ("later",)
    claim = await store.queue.renew(claim, lease_ms=LEASE_MS)
    turn = Append([NodeDraft(body="done", node_id="done")])
    await store.sessions.commit(name, Commit(expected_revision=None, turn_id="second", graph=turn, completes=[claim]))
    await store.queue.unpark(name, parked.batch_id)
    again = await store.queue.claim(name, "w", lease_ms=LEASE_MS)
    assert again is not None
    assert await store.queue.abandon(again) == 1
    last = await store.queue.claim(name, "w", lease_ms=LEASE_MS)
    assert last is not None
    assert last.fence > again.fence
    assert await store.queue.settle(last) == 1
    assert await store.queue.wait_ready(name, timeout_ms=0) is False


async def _attach(store: AsyncStore, name: str) -> None:
    data = name.encode() * 1000
    ref = await store.attachments.put(name, data, media_type="text/plain")
    assert await store.attachments.get(name, ref.attachment_id) == data
    turn = Append([NodeDraft(body="see the file")])
    third = Commit(expected_revision=None, turn_id="third", graph=turn, attachments=[ref.attachment_id])
    await store.sessions.commit(name, third)
    assert (await store.attachments.entry(name, ref.attachment_id)).committed_ms is not None
    await store.attachments.forget(name, ref.attachment_id)
    await store.attachments.sweep(older_than_ms=0)


async def _end(store: AsyncStore, name: str) -> None:
    await store.sessions.fork(name, f"{name}-fork")
    revision = (await store.sessions.get(name)).revision
    await store.sessions.commit(name, Commit(expected_revision=revision, graph=Replace([NodeDraft(body="new")])))
    assert [node.body for node in (await store.sessions.load(name)).nodes] == ["new"]
    assert (await store.sessions.vacuum(name)).complete
    async with store.transaction() as tx:
        revision = (await tx.sessions.get(f"{name}-fork")).revision
        await tx.sessions.commit(f"{name}-fork", Commit(expected_revision=revision, turn_id="inside"))
    await store.maintenance.collect(session_id=name)
    assert (await store.sessions.delete(name)).existed
    assert await store.maintenance.check_schema() == ()
