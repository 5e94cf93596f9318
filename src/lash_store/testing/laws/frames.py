"""Laws of config and frames: replaced as a whole, kept per revision, written only when they change."""

from __future__ import annotations

from msgspec import structs

from lash_store.model.session import Frame
from lash_store.testing.backend import Backend
from lash_store.testing.steps import append, commit, count, say


async def frames_round_trip_with_their_state_and_order(backend: Backend) -> None:
    """Bodies, bytes, order and the current frame come back as they went in."""
    store = await backend.open()
    frames = [
        Frame(frame_id="frame-2", body={"reason": "plan_mode", "previous": "initial"}, state=b"frame-vm\x00\xff", created_ms=2),
        Frame(frame_id="initial", body={"reason": "initial"}, created_ms=1),
        Frame(frame_id="a", body=None, state=b"", created_ms=3),
    ]
    await commit(store, "s", 0, frames=frames, current_frame_id="frame-2", checkpoint={"execution_state": b"frame-vm"})
    other = await backend.open()
    snapshot = await other.sessions.load("s")
    assert list(snapshot.frames) == frames
    assert snapshot.current_frame_id == "frame-2"
    assert (await other.sessions.get("s")).current_frame_id == "frame-2"


async def a_frame_without_a_time_is_stamped_by_the_store(backend: Backend) -> None:
    """created_ms None becomes the database's time, and stays when the frame is given again."""
    store = await backend.open()
    await commit(store, "s", 0, frames=[Frame(frame_id="f", body=1)])
    first = (await store.sessions.load("s")).frames[0]
    assert first.created_ms is not None and first.created_ms > 0
    await backend.advance(1000)
    await commit(store, "s", 1, frames=[Frame(frame_id="f", body=1), Frame(frame_id="g", body=2)])
    assert (await store.sessions.load("s")).frames[0] == first


async def frames_not_given_stay_and_frames_left_out_go(backend: Backend) -> None:
    """A commit without frames keeps them; one with frames makes the set exactly those."""
    store = await backend.open()
    f, g = Frame(frame_id="f", body=1, created_ms=1), Frame(frame_id="g", body=2, created_ms=2)
    await commit(store, "s", 0, frames=[f, g], current_frame_id="f")
    await say(store, "s", "a")
    assert (await store.sessions.load("s")).frames == (f, g)
    await commit(store, "s", 2, frames=[g])
    assert (await store.sessions.load("s")).frames == (g,)
    await commit(store, "s", 3, frames=[], current_frame_id=None)
    assert (await store.sessions.load("s")).frames == ()
    assert (await store.sessions.load("s", at_revision=1)).frames == (f, g)


async def only_changed_frames_are_written(backend: Backend) -> None:
    """A commit that repeats nine of ten frames writes one row."""
    store = await backend.open()
    frames = [Frame(frame_id=f"f{n}", body=n, created_ms=n) for n in range(10)]
    await commit(store, "s", 0, frames=frames)
    before = await count(backend, "frames", "s")
    frames[4] = structs.replace(frames[4], body="changed")
    await commit(store, "s", 1, frames=frames)
    assert await count(backend, "frames", "s") == before + 1
    assert (await store.sessions.load("s")).frames == tuple(frames)


async def frames_may_change_their_order(backend: Backend) -> None:
    """The order is the caller's, at every revision."""
    store = await backend.open()
    frames = [Frame(frame_id=f"f{n}", body=n, created_ms=n) for n in range(3)]
    await commit(store, "s", 0, frames=frames)
    await commit(store, "s", 1, frames=frames[::-1])
    assert list((await store.sessions.load("s")).frames) == frames[::-1]
    assert list((await store.sessions.load("s", at_revision=1)).frames) == frames


async def config_is_kept_per_revision_when_it_changes(backend: Backend) -> None:
    """Any JSON is a config, also null; a commit without one keeps it and writes none."""
    store = await backend.open()
    await store.sessions.create("s", config={"v": 0})
    configs = [{"v": 1}, None, [], 0, {"z": 1, "a": 2}]
    for revision, config in enumerate(configs):
        await commit(store, "s", revision, config=config)
    rows = await count(backend, "configs", "s")
    await commit(store, "s", 5, graph=append("a"))
    assert await count(backend, "configs", "s") == rows
    assert list((await store.sessions.load("s")).config) == ["z", "a"]
    for revision, config in enumerate(configs, 1):
        assert (await store.sessions.load("s", at_revision=revision)).config == config
