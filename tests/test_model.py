"""The store against a reference model in plain Python: random histories on both engines, every answer and refusal compared.

Two stores, an async and a sync one, work on one database, so that no answer may come from a cache the other made stale.
The database's clock stands still between steps, so that every time is known; ids are counted instead of random, so that a
history leaves the same rows on both engines. A failure prints the history and the command that repeats it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import FlakyFailure
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.stateful import run_state_machine_as_test

from lash_store.store.attachments import AsyncAttachments
from lash_store.store.maintenance import AsyncMaintenance
from lash_store.store.queue import AsyncQueue
from lash_store.store.sessions import AsyncSessions
from tests.support.effort import effort
from tests.support.model_engines import ASYNC, Call, Engine, PostgresEngine, SqliteEngine
from tests.support.model_machine import machine
from tests.support.model_mutants import MUTANTS, Mutant
from tests.support.model_steps import RETENTION_MS, World
from tests.support.seeds import SEED_VARIABLE, again, seed_of_run

pytestmark = [pytest.mark.faults, pytest.mark.timeout(effort(test=600, faults=0))]

EXAMPLES, STEPS = 200, 50  # what every run does on each engine; `make faults` does more
OPTIONS: dict[str, Any] = {"blobs": "database", "settled_key_retention_ms": RETENTION_MS}

# Bounds that real histories reach late, lowered so that fifty steps cross them.
LOWERED = {
    "lash_store.ops.checkpoints.CHECKPOINT_CHAIN_MAX": 3,
    "lash_store.store.sessions.COLLECT_ROWS_PER_TRANSACTION": 3,
    "lash_store.store._sync.sessions.COLLECT_ROWS_PER_TRANSACTION": 3,
    "lash_store.store.maintenance.COLLECT_ROWS_PER_TRANSACTION": 2,
    "lash_store.store._sync.maintenance.COLLECT_ROWS_PER_TRANSACTION": 2,
    "lash_store.store.maintenance.SESSIONS_PER_PAGE": 2,
    "lash_store.store._sync.maintenance.SESSIONS_PER_PAGE": 2,
    "lash_store.store.attachments.SWEEP_PAGE": 2,
    "lash_store.store._sync.attachments.SWEEP_PAGE": 2,
}
MINTS = ("lash_store.ops.prepare.mint", "lash_store.store.queue.mint", "lash_store.store._sync.queue.mint")

# The nouns of the store and their reads; every other verb is a write, and every write must have been done.
NOUNS: dict[str, tuple[type, set[str]]] = {
    "sessions": (
        AsyncSessions,
        {
            "get",
            "list",
            "receipt",
            "commits",
            "follow",
            "load",
            "node",
            "children",
            "branches",
            "runs",
            "components",
            "usage",
            "usage_of",
        },
    ),
    "queue": (AsyncQueue, {"get", "list", "pending", "depth", "wait_ready"}),
    "attachments": (AsyncAttachments, {"get", "stream", "entry", "list", "list_uncommitted"}),
    "maintenance": (
        AsyncMaintenance,
        {"schema_version", "check_schema", "leases", "stats", "examine", "backup"},
    ),
}
HANDLE_WRITES = {"commit", "tombstone", "vacuum", "enqueue", "claim", "update_meta", "delete"}
REFUSALS = {
    "ClaimLost",
    "InvalidArgument",
    "NodeConflict",
    "NotFound",
    "ReplayConflict",
    "RevisionConflict",
    "SessionDeleted",
    "SessionMismatch",
    "TurnConflict",
}


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """One engine, empty."""
    with opened(request.param, request, tmp_path) as made:
        yield made


@pytest.fixture
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sequence[Engine]]:
    """Both engines, empty."""
    with opened("sqlite", request, tmp_path) as one, opened("postgresql", request, tmp_path) as other:
        yield one, other


@contextmanager
def opened(name: str, request: pytest.FixtureRequest, folder: Path) -> Generator[Engine]:
    if name == "sqlite":
        made: Engine = SqliteEngine(folder / "model.db", OPTIONS)
    else:
        made = PostgresEngine(request.getfixturevalue("pg_url"), request.getfixturevalue("pg_schema"), OPTIONS)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LOWERED.items():
        monkeypatch.setattr(name, value)
    # Hypothesis repeats parts of an example to reach odd corners; here it makes histories of one verb.
    monkeypatch.setattr(ConjectureRunner, "generate_mutations_from", do_not_mutate)


def do_not_mutate(*_: object) -> None:
    pass


def run(world: World, *, examples: int, phases: Sequence[Phase] = (Phase.generate, Phase.shrink)) -> None:
    """Run the machine from the seed of the run."""
    number = seed_of_run()
    world.replay = again(number)
    options = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=False,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        phases=phases,
    )
    with pytest.MonkeyPatch.context() as patch:
        for name in MINTS:
            patch.setattr(name, world.mint)
        run_state_machine_as_test(seed(number)(machine(world)), settings=options)


def public_writes() -> set[str]:
    """Every public verb of the store's nouns that is not a read."""
    verbs: set[str] = set()
    for noun, (facade, reads) in NOUNS.items():
        names = {name for name, _ in inspect.getmembers(facade, callable) if not name.startswith("_")}
        assert reads <= names, f"{noun} has no {reads - names}"
        verbs |= {f"{noun}.{name}" for name in names - reads}
    return verbs


def test_the_store_does_what_the_model_does(engine: Engine) -> None:
    world = World([engine])
    run(world, examples=effort(test=EXAMPLES + 5, faults=10_000 if engine.name == "sqlite" else 2_000))
    assert world.examples >= EXAMPLES
    assert world.steps >= EXAMPLES * STEPS
    done = {name.partition(" ")[0] for name, count in world.done.items() if name.endswith(" done") and count}
    assert public_writes() | HANDLE_WRITES | {"transaction"} <= done
    assert {name.partition(" ")[2] for name in world.done} >= REFUSALS


def test_both_engines_keep_the_same_rows(both: Sequence[Engine]) -> None:
    world = World(both)
    world.at_end = lambda: compare_rows(both)
    run(world, examples=effort(test=40, faults=1_000))
    assert world.steps > 0


def test_the_comparison_of_rows_sees_one_changed_value(both: Sequence[Engine]) -> None:
    for engine in both:
        engine.set_clock(1)
        assert engine.call(ASYNC, Call("sessions.create", ("a",), {"name": "x"})).error is None
    compare_rows(both)
    both[1].execute(f"UPDATE {both[1].table('sessions')} SET updated_ms = updated_ms + 1")
    with pytest.raises(AssertionError, match="sessions differs"):
        compare_rows(both)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_machine_finds_a_planted_bug(mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SqliteEngine(tmp_path / "model.db", OPTIONS)
    try:
        mutant(monkeypatch)
        # Hypothesis wraps a disagreement it could not repeat; that it was seen is what counts here.
        with pytest.raises((AssertionError, FlakyFailure)) as caught:
            run(World([engine]), examples=EXAMPLES, phases=[Phase.generate])
        said = "".join(map(str, (caught.value, *getattr(caught.value, "exceptions", ()))))
        assert re.search(r"sqlite (and the model disagree|keeps)[\s\S]*LASH_STORE_SEED=\d+", said)
    finally:
        engine.close()


def test_a_seed_repeats_its_histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEED_VARIABLE, "7")
    one, two = (histories(tmp_path / name) for name in ("one.db", "two.db"))
    assert one
    assert one == two


def histories(path: Path) -> list[object]:
    """The rows a few examples leave."""
    found: list[object] = []
    engine = SqliteEngine(path, OPTIONS)
    try:
        world = World([engine])
        world.at_end = lambda: found.append(engine.rows())
        run(world, examples=5)
    finally:
        engine.close()
    return found


def compare_rows(engines: Sequence[Engine]) -> None:
    """Nothing is left out: clocks stand still and ids are counted, so every column of every row must be equal."""
    one, other = (engine.rows() for engine in engines)
    for table, rows in one.items():
        assert rows == other[table], f"{table} differs:\n{[row for row in rows if row not in other[table]]}\n{other[table]}"
