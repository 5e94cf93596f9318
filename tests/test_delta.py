"""Checkpoint frames and the versions held to make them."""

from __future__ import annotations

import json
import random
import threading
import tracemalloc
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lash_store.delta import Held, delta, full, restore
from lash_store.model.limits import MIB


def conversation(turns: int, seed: int = 7) -> bytes:
    source = random.Random(seed)
    words = [f"word{number}" for number in range(3_000)]
    return json.dumps([{"role": "user", "text": " ".join(source.choices(words, k=60))} for _ in range(turns)]).encode()


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=6))
def test_a_chain_restores_its_last_version(versions: list[bytes]) -> None:
    frames = [full(versions[0])] + [delta(base, data) for base, data in pairwise(versions)]
    assert restore(frames, sizes=[len(version) for version in versions]) == versions[-1]


@pytest.mark.parametrize(("turns", "factor"), [(100, 20), (170, 50), (250, 80), (600, 150), (18_000, 200)])
def test_the_delta_of_an_appended_turn_is_much_smaller_than_a_full_frame(turns: int, factor: int) -> None:
    base, data = conversation(turns), conversation(turns + 1)
    frame = delta(base, data)
    assert len(frame) * factor < len(full(data))
    assert restore([full(base), frame], sizes=[len(base), len(data)]) == data


def test_another_base_never_gives_the_right_bytes() -> None:
    base, other, data = conversation(20), conversation(20, seed=8), conversation(21)
    frame = delta(base, data)
    with suppress(ValueError):
        assert restore([full(other), frame], sizes=[len(other), len(data)]) != data


@given(st.data())
def test_a_damaged_frame_is_a_value_error_or_other_bytes_but_never_a_crash(draw: st.DataObject) -> None:
    base, data = conversation(5), conversation(6)
    frame = bytearray(delta(base, data))
    position = draw.draw(st.integers(0, len(frame) - 1))
    frame[position] ^= draw.draw(st.integers(1, 255))
    cut = draw.draw(st.integers(0, len(frame)))
    for damaged in (bytes(frame), bytes(frame[:cut])):
        with suppress(ValueError):
            assert len(restore([full(base), damaged], sizes=[len(base), len(data)])) == len(data)


@pytest.mark.parametrize("size", [0, 99, 101, -1, 2**62])
def test_a_frame_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="bytes"):
        restore([full(b"x" * 100)], sizes=[size])


def test_a_bomb_stops_at_its_declared_size() -> None:
    bomb = full(bytes(64 * MIB))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="exactly 10 bytes"):
            restore([bomb], sizes=[10])
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("frame", [b"", b"not zstd", full(b"abc") + b"tail", full(b"abc") + full(b"abc")])
def test_what_is_not_one_whole_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(ValueError, match="frame"):
        restore([frame], sizes=[3])


def test_frames_and_sizes_go_together() -> None:
    for frames, sizes in (([], []), ([full(b"a")], []), ([full(b"a")], [1, 1])):
        with pytest.raises(ValueError, match="chain"):
            restore(frames, sizes=sizes)


# Held versions


def test_the_last_version_put_is_held() -> None:
    held = Held()
    assert held.get("s", "c") is None
    held.put("s", "c", digest=b"1", data=b"one")
    held.put("s", "c", digest=b"2", data=b"two")
    assert held.get("s", "c") == (b"2", b"two", 1)
    assert held.get("s", "d") is None


def test_the_least_recently_used_goes_first() -> None:
    held = Held(max_bytes=30, entry_max_bytes=10)
    for name in "abc":
        held.put("s", name, digest=b"", data=b"x" * 10)
    held.get("s", "a")
    held.put("s", "d", digest=b"", data=b"x" * 10)
    assert [name for name in "abcd" if held.get("s", name)] == ["a", "c", "d"]


def test_a_version_too_large_to_hold_replaces_the_old_one_with_nothing() -> None:
    held = Held(max_bytes=30, entry_max_bytes=10)
    held.put("s", "c", digest=b"1", data=b"x")
    held.put("s", "c", digest=b"2", data=b"x" * 11)
    assert held.get("s", "c") is None


def test_dropping_forgets_one_component_or_the_session() -> None:
    held = Held()
    for session, name in (("s", "a"), ("s", "b"), ("t", "a")):
        held.put(session, name, digest=b"", data=b"x")
    held.drop("s", "a")
    held.drop("s", "missing")
    assert (held.get("s", "a"), held.get("s", "b")) == (None, (b"", b"x", 1))
    held.drop("s")
    assert (held.get("s", "b"), held.get("t", "a")) == (None, (b"", b"x", 1))


def test_threads_share_it_within_its_bound() -> None:
    held = Held(max_bytes=1_000, entry_max_bytes=100)

    def work(seed: int) -> None:
        source = random.Random(seed)
        for _ in range(2_000):
            name = str(source.randrange(40))
            held.put("s", name, digest=name.encode(), data=name.encode() * source.randrange(40))
            entry = held.get("s", str(source.randrange(40)))
            assert entry is None or entry[1].replace(entry[0], b"") == b""
            held.drop("s", str(source.randrange(40)))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = [held.get("s", str(number)) for number in range(40)]
    assert sum(len(entry[1]) for entry in entries if entry) <= 1_000
