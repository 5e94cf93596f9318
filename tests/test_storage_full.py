"""No room left: StorageFull and nothing written, reads go on, writes resume when there is room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from lash_store import Append, AsyncStore, Claim, Commit, NodeDraft, StorageFull, Store
from lash_store.ops.statement import Op, fetch
from lash_store.store.opening import open_sync_runtime
from lash_store.store.options import Options
from lash_store.store.runtime import SyncRuntime
from tests.support.program import Program
from tests.support.programs import SESSION

LARGE = "x" * 200_000
MIB = 1 << 20


def no_growth() -> Op[None]:
    """SQLite raises the limit to the pages the file has."""
    yield from fetch("PRAGMA max_page_count = 1")


def growth() -> Op[None]:
    yield from fetch("PRAGMA max_page_count = 1000000")


class Full:
    """A store with some work in it, whose database can be filled up and given room again."""

    def __init__(self, path: Path) -> None:
        self._runtime: SyncRuntime = open_sync_runtime(Options(url=str(path)))
        self.store = Store(self._runtime)
        self.store.sessions.create(SESSION)
        self.store.queue.enqueue(SESSION, ["work"])
        self.claim: Claim = claimed(self.store)

    def fill(self) -> None:
        self._runtime.write(no_growth)

    def free(self) -> None:
        self._runtime.write(growth)


def claimed(store: Store) -> Claim:
    claim = store.queue.claim(SESSION, "w", lease_ms=60_000)
    assert claim is not None
    return claim


def turn(store: Store, claim: Claim) -> int:
    change = Append([NodeDraft(body=LARGE)])
    return store.sessions.commit(
        SESSION, Commit(expected_revision=None, turn_id="large", graph=change, completes=[claim])
    ).revision


def checkpoint(store: Store, _: Claim) -> int:
    noise = b"".join(n.to_bytes(8, "big") * 3 + bytes([n * 7 % 251]) for n in range(200_000))
    return store.sessions.commit(SESSION, Commit(expected_revision=0, turn_id="c", checkpoint={"state": noise})).revision


def enqueue(store: Store, _: Claim) -> int:
    return int(store.queue.enqueue(SESSION, [LARGE], source_key="large").payloads == (LARGE,))


WRITES: list[Callable[[Store, Claim], int]] = [turn, checkpoint, enqueue]


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_a_full_sqlite_database_refuses_reads_on_and_resumes(tmp_path: Path, write: Callable[[Store, Claim], int]) -> None:
    full = Full(tmp_path / "agent.db")
    with full.store as store:
        full.fill()
        before = store.sessions.load(SESSION), store.queue.list(SESSION)
        for _ in range(3):
            with pytest.raises(StorageFull, match="writes resume"):
                write(store, full.claim)
            assert (store.sessions.load(SESSION), store.queue.list(SESSION)) == before
        full.free()
        assert write(store, full.claim) == 1
        assert store.queue.depth(SESSION).claimed == (0 if write is turn else 1)


def test_what_needs_no_room_is_done_in_a_full_sqlite_database(tmp_path: Path) -> None:
    full = Full(tmp_path / "agent.db")
    with full.store as store:
        full.fill()
        assert store.queue.settle(full.claim) == 1
        assert store.queue.depth(SESSION).claimed == 0


def test_a_file_size_limit_is_storage_full_and_the_refused_turn_converges(tmp_path: Path) -> None:
    with Program("outgrow", url=str(tmp_path / "agent.db"), schema="main", limit=MIB) as program:
        said = program.end()[-1]
    assert said["refused"] == "StorageFull"
    assert said["written"] > 0
    assert said["readable"] == said["written"] + 1, "exactly what was acknowledged can be read"
    assert (said["replayed"], said["revision"]) == (False, said["written"] + 2)
    with Store.open(tmp_path / "agent.db") as store:
        assert store.sessions.load(SESSION).revision == said["revision"]


FULL_DISK = """
CREATE FUNCTION "{schema}".full_disk() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON "{schema}".nodes EXECUTE FUNCTION "{schema}".full_disk();
"""


def test_a_full_disk_of_postgresql_refuses_reads_on_and_resumes(pg_url: str, pg_schema: str) -> None:
    """The server's own error, raised where a table would have grown."""
    large = Commit(expected_revision=None, turn_id="large", graph=Append([NodeDraft(body=LARGE)]))

    async def scenario() -> None:
        admin = await asyncpg.connect(pg_url)
        async with AsyncStore.open(pg_url, schema=pg_schema) as store:
            await store.sessions.create(SESSION)
            await admin.execute(FULL_DISK.format(schema=pg_schema))
            with pytest.raises(StorageFull, match="53100"):
                await store.sessions.commit(SESSION, large)
            assert (await store.sessions.load(SESSION)).revision == 0
            await admin.execute(f'DROP TRIGGER full_disk ON "{pg_schema}".nodes')
            assert (await store.sessions.commit(SESSION, large)).revision == 1
        await admin.close()

    asyncio.run(scenario())
