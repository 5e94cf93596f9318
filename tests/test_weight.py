"""Large values are encoded, hashed and compressed in a thread; small ones where they are, because the trip would cost more."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from lash_store import Append, AsyncStore, Commit, Frame, NodeDraft
from lash_store.ops import checkpoints, snapshot
from lash_store.store import sessions
from lash_store.store.weight import HEAVY_BYTES, HEAVY_ITEMS, is_heavy

BIG = "x" * HEAVY_BYTES


@pytest.mark.parametrize(
    "value",
    [BIG, BIG.encode(), bytearray(HEAVY_BYTES), memoryview(bytes(HEAVY_BYTES)), [[{"a": BIG}]], ("x", BIG), OrderedDict(a=BIG)],
)
def test_many_bytes_are_heavy_wherever_they_are(value: object) -> None:
    assert is_heavy(value)
    assert is_heavy(MappingProxyType({"a": value}))


@pytest.mark.parametrize("value", [None, True, 1, 1.5, "x", b"x", {"a": [1, 2, {"b": "c"}]}, [None] * 100, object(), {1: 2}])
def test_little_is_light(value: object) -> None:
    assert not is_heavy(value)


def test_many_items_are_heavy_and_a_cycle_ends() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert is_heavy([0] * (HEAVY_ITEMS + 1))
    assert is_heavy(cycle)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("body", {"graph": Append([NodeDraft(body=BIG)])}),
        ("checkpoint", {"graph": Append([]), "checkpoint": {"state": BIG.encode()}}),
        ("frame", {"graph": Append([]), "frames": [Frame(frame_id="f", body=1, state=BIG.encode())]}),
        ("nothing", {"graph": Append([NodeDraft(body="x")]), "checkpoint": {"state": b"x"}}),
    ],
)
def test_the_loop_does_not_wait_for_a_large_commit_or_load(
    part: str, named: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: dict[str, bool] = {}

    def noted(module: Any, name: str) -> None:
        original = getattr(module, name)

        def noting(*args: Any, **named: Any) -> Any:
            where[name] = threading.current_thread() is not threading.main_thread()
            return original(*args, **named)

        monkeypatch.setattr(module, name, noting)

    noted(sessions, "prepare_commit")
    noted(checkpoints, "prepare")
    noted(snapshot, "assemble")

    async def work() -> None:
        async with await AsyncStore.open(tmp_path / "a.db") as store:
            await store.sessions.commit("s", Commit(expected_revision=0, **named))
            await store.sessions.load("s")

    asyncio.run(work())
    in_a_thread = {name for name, elsewhere in where.items() if elsewhere}
    assert (
        in_a_thread
        == {
            "body": {"prepare_commit", "assemble"},
            "checkpoint": {"prepare_commit", "prepare", "assemble"},
            "frame": {"prepare_commit", "assemble"},
            "nothing": set(),
        }[part]
    )
