"""Power cuts at any moment: the database opens, is a prefix of what was done, and holds all that was acknowledged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from msgspec import Struct

from lash_store import Store, StoreError
from lash_store.db.sqlite_connection import Durability
from tests.support.effort import effort
from tests.support.power import NODES, SESSION, STEPS, Disk, Event, Order, key_of, lay_out, record, turn, turn_of
from tests.support.seeds import seed_of_run

pytestmark = pytest.mark.faults

TURNS = 8  # of each of the three lives
IMAGES_PER_CUT = 4
IMAGES_PER_ROUND = 1_600
CONTROL_IMAGES = 400
INTEGRITY_EVERY = 20  # images
REOPENED_EVERY = 80  # images: by the store itself, which syncs


class Toll(Struct):
    """What a round of power cuts has cost."""

    images: int = 0
    losses: int = 0  # images in which something acknowledged is missing
    newest: int = 0  # images with a step whose answer nobody had heard
    complaints: list[str] = []


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return tmp_path / "image.db"


def recorded(folder: Path, durability: Durability, seed: str) -> list[Event]:
    folder.mkdir()
    return record(Order(path=str(folder / "agent.db"), durability=durability, seed=seed, turns=TURNS))


def power_cuts(log: list[Event], image: Path, seed: str, *, images: int) -> Toll:
    """Cut the power at many points of the recorded work, and look at what is left."""
    chance = random.Random(seed)
    cuts = set(chance.sample(range(len(log)), images // IMAGES_PER_CUT))
    toll = Toll()
    for cut, acknowledged, disk in moments(log, cuts):
        for files in disk.images(chance, IMAGES_PER_CUT):
            lay_out(files, image)
            examine(image, toll, acknowledged, where=f"cut {cut} of {len(log)}, image {toll.images}")
            toll.images += 1
    return toll


def moments(log: list[Event], cuts: set[int]) -> Iterator[tuple[int, int, Disk]]:
    """The disk at each cut, and the steps that were acknowledged by then."""
    disk, acknowledged = Disk(), 0
    for n, event in enumerate(log):
        disk.tell(event)
        if event.kind == "acknowledged":
            acknowledged = event.number
        if n in cuts:
            yield n, acknowledged, disk


def examine(image: Path, toll: Toll, acknowledged: int, *, where: str) -> None:
    try:
        steps = steps_found(image, check=toll.images % INTEGRITY_EVERY == 0)
        if toll.images % REOPENED_EVERY == 0:
            carry_on(image, steps)
    except (apsw.Error, StoreError, AssertionError, UnicodeError) as error:
        toll.complaints.append(f"{where}: {type(error).__name__}: {error}")
        return
    toll.losses += steps < acknowledged
    toll.newest += steps > acknowledged
    if steps > acknowledged + 1:
        toll.complaints.append(f"{where}: {steps} steps, {acknowledged} were acknowledged")


def steps_found(image: Path, *, check: bool) -> int:
    """Let SQLite recover, and count the steps that are there. They must be a prefix of the work."""
    connection = apsw.Connection(str(image))
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.pragma("synchronous", "OFF")
        assert not check or connection.pragma("integrity_check") == "ok"
        return prefix(connection)
    finally:
        connection.close()


def prefix(connection: apsw.Connection) -> int:
    """The length of the prefix of the work that is stored; 0 when there is no session, or no schema yet."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'lash_sessions'").fetchall():
        return 0
    heads = connection.execute("SELECT revision, node_count FROM lash_sessions").fetchall()
    commits = connection.execute("SELECT revision, turn_id FROM lash_commits ORDER BY revision").fetchall()
    nodes = connection.execute("SELECT created_revision FROM lash_nodes ORDER BY depth").fetchall()
    states = connection.execute("SELECT revision FROM lash_components").fetchall()
    settled = connection.execute("SELECT source_key FROM lash_settled_keys ORDER BY source_key").fetchall()
    waiting = connection.execute("SELECT source_key FROM lash_batches").fetchall()
    claimed: int = connection.execute("SELECT count(*) FROM lash_batches WHERE token IS NOT NULL").get
    head = len(commits)
    assert heads == ([(head, head * NODES)] if heads else [])
    assert commits == [(n, turn_of(n)) for n in range(1, head + 1)]
    assert nodes == [(n,) for n in range(1, head + 1) for _ in range(NODES)]
    assert states == ([(head,)] if head else [])
    assert settled == [(key_of(n),) for n in range(1, head + 1)]
    assert waiting == [(key_of(head + 1),)] * len(waiting)
    return len(heads) + STEPS * head + len(waiting) + claimed


def carry_on(image: Path, steps: int) -> None:
    """The store opens what is left, reads all of it, and does the next turn."""
    head = max(0, steps - 1) // STEPS
    with Store.open(image) as store:
        if steps:
            snapshot = store.sessions.load(SESSION)
            assert (snapshot.revision, len(snapshot.nodes)) == (head, head * NODES)
        assert store.sessions.commit(SESSION, turn(head + 1, noise=b"after")).revision == head + 1


def test_power_cuts_lose_nothing_that_was_acknowledged(tmp_path: Path, image: Path) -> None:
    seed = str(seed_of_run())
    newest = 0
    for n in range(effort(test=1, faults=60)):
        log = recorded(tmp_path / f"{n}", "full", f"{seed} {n}")
        toll = power_cuts(log, image, f"{seed} {n}", images=IMAGES_PER_ROUND)
        assert toll.complaints == []
        assert toll.losses == 0, f"{toll.losses} of {toll.images} images lack an acknowledged step"
        assert toll.images == IMAGES_PER_ROUND
        newest += toll.newest
    assert newest > 0, "no cut fell between a commit and its answer"


def test_relaxed_durability_loses_the_newest_steps_and_nothing_else(tmp_path: Path, image: Path) -> None:
    """Negative control: where commits are not synced, the same cuts find losses. What is left is still a prefix."""
    seed = str(seed_of_run())
    toll = power_cuts(recorded(tmp_path / "relaxed", "relaxed", seed), image, seed, images=CONTROL_IMAGES)
    assert toll.complaints == []
    assert toll.losses > toll.images / 20


@pytest.mark.parametrize("file", ["", "-wal"], ids=["database", "log"])
def test_a_disk_that_does_not_sync_is_caught(tmp_path: Path, image: Path, file: str) -> None:
    """Negative control: when syncs of one file do nothing, acknowledged steps are missing, or the file is damaged."""
    seed = str(seed_of_run())
    log = [event for event in recorded(tmp_path / "deaf", "full", seed) if (event.kind, event.file) != ("sync", file)]
    toll = power_cuts(log, image, seed, images=CONTROL_IMAGES // 2)
    assert toll.losses > 0
    assert toll.complaints != [] or file == "-wal"  # a damaged log is mostly a shorter one
