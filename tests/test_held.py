"""What a load remembers is what the next commit builds on: the current bytes of each component, and nothing older."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lash_store import Commit, Store
from lash_store.delta import Held


def test_a_load_remembers_only_the_current_version_of_a_component(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(tmp_path / "a.db") as store:
        for revision, data in enumerate((b"a" * 4000, b"a" * 3999 + b"b", b"a" * 3999 + b"c")):
            store.sessions.commit("s", Commit(expected_revision=revision, checkpoint={"state": data}))
    kept: list[tuple[bytes, bytes]] = []

    def put(self: Held, session_id: str, component: str, *, digest: bytes, data: bytes) -> None:
        kept.append((digest, data))

    with Store.open(tmp_path / "a.db") as store:
        monkeypatch.setattr(Held, "put", put)
        store.sessions.load("s")
    assert kept == [(hashlib.sha256(b"a" * 3999 + b"c").digest(), b"a" * 3999 + b"c")]
