"""What a load remembers is what the next commit builds on: the current bytes of each component, and nothing older."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from lash_store import Commit, Store
from lash_store.delta import Held
from lash_store.model.limits import CHECKPOINT_CHAIN_MAX
from lash_store.ops import checkpoints
from lash_store.ops.checkpoints import PreparedComponent


def test_a_load_remembers_only_the_current_version_of_a_component(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path / "a.db") as store:
        for revision, data in enumerate((b"a" * 4000, b"a" * 3999 + b"b", b"a" * 3999 + b"c")):
            store.sessions.commit("s", Commit(expected_revision=revision, checkpoint={"state": data}))
    kept: list[tuple[bytes, bytes]] = []

    def put(self: Held, session_id: str, component: str, *, digest: bytes, data: bytes, chain: int) -> None:
        kept.append((digest, data))

    with Store.open(tmp_path / "a.db") as store:
        monkeypatch.setattr(Held, "put", put)
        store.sessions.load("s")
    assert kept == [(hashlib.sha256(b"a" * 3999 + b"c").digest(), b"a" * 3999 + b"c")]


def test_a_commit_that_ends_a_chain_is_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bool] = []
    prepare = checkpoints.prepare

    def counted(*args: Any, full: bool, **named: Any) -> tuple[PreparedComponent, ...]:
        sent.append(full)
        return prepare(*args, full=full, **named)

    monkeypatch.setattr(checkpoints, "prepare", counted)
    for start in (0, 2 * CHECKPOINT_CHAIN_MAX + 3):  # the second store learns from a load how long the chain is
        with Store.open(tmp_path / "a.db") as store:
            if start:
                store.sessions.load("s")
            for revision in range(start, start + 2 * CHECKPOINT_CHAIN_MAX + 3):
                state = b"%d" % revision * 1000
                store.sessions.commit("s", Commit(expected_revision=revision, checkpoint={"state": state}))
    assert sent == [False] * (4 * CHECKPOINT_CHAIN_MAX + 6)
