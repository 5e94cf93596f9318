"""Processes, triggers and artifacts against a reference model in plain Python, on both engines, every answer compared.

Two stores, an async and a sync one, work on one database. Its clock stands still between steps, so that every time is
known; ids are counted instead of random, so that a history leaves the same rows on both engines. A failure prints the
history and the command that repeats it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import FlakyFailure
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.stateful import RULE_MARKER, run_state_machine_as_test

from lash_store import AlreadyTerminal, EventDraft, LeaseHeld, NotFound
from lash_store.store.artifacts import AsyncArtifacts
from lash_store.store.processes import AsyncProcesses
from lash_store.store.session_processes import AsyncSessionProcesses
from lash_store.store.triggers import AsyncTriggers
from tests.support.effort import effort
from tests.support.model_report import disagreement
from tests.support.pmodel_engines import Call, Engine, Outcome, PostgresEngine, SqliteEngine
from tests.support.pmodel_machine import ProcessMachine, machine
from tests.support.pmodel_mutants import MUTANTS, Mutant
from tests.support.pmodel_steps import World
from tests.support.seeds import SEED_VARIABLE, again, seed_of_run

pytestmark = [pytest.mark.faults, pytest.mark.timeout(effort(test=600, faults=0))]

EXAMPLES, STEPS = 120, 40  # what every run does on each engine; `make faults` does more

# Bounds that real histories reach late, lowered so that forty steps cross them.
LOWERED = {
    f"lash_store.store.{place}{noun}": 2
    for place in ("", "_sync.")
    for noun in (
        "processes.COLLECT_ROWS_PER_TRANSACTION",
        "triggers.COLLECT_ROWS_PER_TRANSACTION",
        "sessions.COLLECT_ROWS_PER_TRANSACTION",
        "artifacts.COLLECT_PAGE",
    )
}
MINTS = ("ops.events", "ops.drafts", "store.processes", "store._sync.processes", "store.queue", "store._sync.queue")

# The nouns of the store and their reads; every other verb is a write, and every write must have been done.
NOUNS: dict[str, tuple[type, set[str]]] = {
    "processes": (
        AsyncProcesses,
        {"get", "list", "non_terminal", "events", "recent", "count_through", "wake_events", "woken_by", "list_grants"}
        | {"has_grant", "grants_for", "await_output", "wait_event", "follow", "wait_runnable"}
        | {"start"},  # what a handle's `start` is made of
    ),
    "triggers": (AsyncTriggers, {"get", "list", "source_key", "occurrence", "deliveries", "undelivered"}),
    "artifacts": (AsyncArtifacts, {"get", "get_env", "entry", "list"}),
    "handle": (AsyncSessionProcesses, {"list", "get", "events", "recent", "follow", "wait_event", "await_output"}),
}
OTHER_WRITES = {
    "sessions.create",
    "sessions.delete",
    "queue.claim",
    "queue.settle",
    "queue.abandon",
    "queue.cancel",
    "queue.park",
}
REFUSALS = {
    "AlreadyTerminal",
    "ClaimLost",
    "InvalidArgument",
    "InvalidPayload",
    "LeaseHeld",
    "LeaseLost",
    "NotFound",
    "NotGranted",
    "OccurrenceConflict",
    "RegistrationConflict",
    "ReplayConflict",
    "SessionDeleted",
    "UndeclaredEvent",
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
        made: Engine = SqliteEngine(folder / "model.db")
    else:
        made = PostgresEngine(request.getfixturevalue("pg_url"), request.getfixturevalue("pg_schema"))
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
            patch.setattr(f"lash_store.{name}.mint", world.mint)
        run_state_machine_as_test(seed(number)(machine(world)), settings=options)


def public_writes() -> set[str]:
    """Every public verb of these nouns that is not a read."""
    verbs: set[str] = set()
    for noun, (facade, reads) in NOUNS.items():
        names = {name for name, _ in inspect.getmembers(facade, callable) if not name.startswith("_")}
        assert reads <= names, f"{noun} has no {reads - names}"
        verbs |= {f"{noun}.{name}" for name in names - reads}
    return verbs


def rule_names() -> set[str]:
    """Every rule of the machine."""
    found = {name for name, member in inspect.getmembers(ProcessMachine, callable) if hasattr(member, RULE_MARKER)}
    assert len(found) > 40
    return found


def test_the_store_does_what_the_model_does(engine: Engine) -> None:
    world = World([engine])
    run(world, examples=effort(test=EXAMPLES + 5, faults=8_000 if engine.name == "sqlite" else 2_000))
    assert world.examples >= EXAMPLES
    assert sum(world.rules.values()) >= EXAMPLES * STEPS
    assert not [name for name in rule_names() if not world.rules[name]]
    done = {name.partition(" ")[0] for name, count in world.done.items() if name.endswith(" done") and count}
    assert public_writes() | OTHER_WRITES <= done
    assert {name.partition(" ")[2] for name in world.done} >= REFUSALS


def test_both_engines_keep_the_same_rows(both: Sequence[Engine]) -> None:
    world = World(both)
    world.at_end = lambda: compare_rows(both)
    run(world, examples=effort(test=15, faults=1_000))
    assert world.rules


def test_the_comparison_of_rows_sees_one_changed_value(both: Sequence[Engine]) -> None:
    for engine in both:
        engine.set_clock(1)
        assert engine.call(0, Call("artifacts.put_env", ({"a": 1},))).error is None
    compare_rows(both)
    both[1].execute(f"UPDATE {both[1].table('artifacts')} SET updated_ms = updated_ms + 1")
    with pytest.raises(AssertionError, match="artifacts differs"):
        compare_rows(both)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_machine_finds_a_planted_bug(mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = SqliteEngine(tmp_path / "model.db")
    try:
        mutant(monkeypatch)
        # Hypothesis wraps a disagreement it could not repeat; that it was seen is what counts here.
        with pytest.raises((AssertionError, FlakyFailure)) as caught:
            run(World([engine]), examples=4 * EXAMPLES, phases=[Phase.generate])
        said = "".join(map(str, (caught.value, *getattr(caught.value, "exceptions", ()))))
        assert re.search(r"sqlite and the model disagree[\s\S]*LASH_STORE_SEED=\d+", said)
    finally:
        engine.close()


@pytest.mark.parametrize("ended", [False, True], ids=["leased", "ended"])
def test_a_refusal_of_events_without_keys_is_foretold(engine: Engine, *, ended: bool) -> None:
    """The store answers a refused call with no keys, and the model must not take two events without one for the same."""
    steps = machine(World([engine]))()
    process_id = steps.process_ids[0]
    steps.same("processes.claim", process_id, "anna", learn=True, incarnation="1", lease_ms=1000)
    if ended:
        steps.same(
            "processes.append", process_id, "done", 1, learn=True, replay_key="k1", lease=steps.state.processes[process_id].lease
        )
    drafts = [EventDraft(event_type="note", payload=1), EventDraft(event_type="note", payload=2)]
    drafts.append(EventDraft(event_type="done", payload=1, replay_key="k2"))
    assert steps.same("processes.append_many", process_id, drafts, learn=True) is None
    refusal = steps.trace[-1][1].error
    assert isinstance(refusal, AlreadyTerminal if ended else LeaseHeld)
    steps.audit()


def test_a_disagreement_is_told_before_its_history() -> None:
    trace = [(Call("processes.get", (f"p{i}",)), Outcome("x" * 5000)) for i in range(100)]
    lines = disagreement("sqlite", Outcome(1), Outcome(error=NotFound("process", "p99")), trace, "SEED=7 pytest").splitlines()
    assert lines[:3] == [
        "sqlite and the model disagree about processes.get('p99')",
        "  sqlite says 1",
        "  the model says NotFound: process 'p99' does not exist.",
    ]
    assert lines[3:5] == ["Replay: SEED=7 pytest", "after 99 steps, of which the last were"]
    assert [line.split(".")[0].strip() for line in lines[5:]] == [str(i) for i in range(85, 100)]
    assert max(map(len, lines)) < 410


def test_a_seed_repeats_its_histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEED_VARIABLE, "7")
    one, two = (histories(tmp_path / name) for name in ("one.db", "two.db"))
    assert one
    assert one == two


def histories(path: Path) -> list[object]:
    """The rows a few examples leave."""
    found: list[object] = []
    engine = SqliteEngine(path)
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
