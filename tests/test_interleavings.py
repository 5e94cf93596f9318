"""Pairs of operations on real PostgreSQL, statement by statement: only what a serial order allows, and no deadlock."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement
from math import comb

import asyncpg
import pytest

from tests.support.effort import effort
from tests.support.planted import Rewrite, Unlocked, clock_before_lock, descending_locks, planted, read_then_insert
from tests.support.player import Script
from tests.support.scenarios import (
    SCENARIOS,
    Scenario,
    claim_claim,
    claim_next_settle_crossed_commit,
    commit_commit_blind,
    commit_commit_crossed,
    commit_commit_new_session,
    commit_commit_same_turn,
    create_create,
    delete_commit,
    enqueue_enqueue_other_keys,
    enqueue_enqueue_same_key,
    forget_keys_settle_pinned,
    put_sweep,
    town,
)
from tests.support.seeds import seed_of_run
from tests.support.stepper import Orders, Report, Stage, build, explore, stage

MOST = effort(test=2_000, faults=200_000)
BOX_S = effort(test=1_500, faults=300_000) / 1000  # for one pair; it bounds how many orders are run
PATIENCE_S = 120  # for what must be found, or must be complete
PAIRS = effort(test=60, faults=1_000)  # of any two operations
ORDERS_OF_ANY_TWO = effort(test=8, faults=300)


@pytest.fixture(scope="module")
def arena(pg_url: str) -> Iterator[tuple[str, str]]:
    """A built schema that all pairs of this file use, one after the other."""
    schema = f"t_{secrets.token_hex(8)}"
    asyncio.run(build(pg_url, schema))
    yield pg_url, schema
    asyncio.run(_drop(pg_url, schema))


async def _drop(url: str, schema: str) -> None:
    connection = await asyncpg.connect(url, server_settings={"client_min_messages": "warning"})
    try:
        await connection.execute(f"DROP SCHEMA {schema} CASCADE")
    finally:
        await connection.close()


async def explored(
    arena: tuple[str, str], scenario: Scenario, *, seed: int, sides: int = 2, serial: bool = True, box_s: float = BOX_S
) -> Report:
    async with stage(*arena, sides=sides) as made:
        return await explore(made, await scenario(made), most=MOST, box_s=box_s, seed=seed, serial=serial)


@pytest.mark.faults
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_pair_ends_as_a_serial_order_would(arena: tuple[str, str], scenario: Scenario) -> None:
    seed = seed_of_run()
    report = asyncio.run(explored(arena, scenario, seed=seed))
    print(f"{report.schedules} orders ({'all' if report.complete else 'a sample'}),", end=" ")
    print(f"{report.waited} with a wait, {report.serial} serial endings")
    assert report.violation is None, report.violation


@pytest.mark.faults
def test_a_search_for_work_never_holds_one_session_while_it_waits_for_another(arena: tuple[str, str]) -> None:
    seed = seed_of_run()
    report = asyncio.run(explored(arena, claim_next_settle_crossed_commit, sides=3, serial=False, seed=seed))
    print(report)
    assert report.violation is None, report.violation


@pytest.mark.faults
def test_forgetting_old_keys_never_deadlocks_with_settling_them_again(arena: tuple[str, str]) -> None:
    seed = seed_of_run()
    report = asyncio.run(explored(arena, forget_keys_settle_pinned, sides=3, serial=False, seed=seed))
    print(report)
    assert report.violation is None, report.violation


# --- every operation beside every other -----------------------------------------------------------------------------------


@pytest.mark.faults
def test_any_two_operations_end_as_a_serial_order_would(arena: tuple[str, str]) -> None:
    seed = seed_of_run()
    asyncio.run(_any_two(arena, seed))


async def _any_two(arena: tuple[str, str], seed: int) -> None:
    async with stage(*arena) as made:
        sides = await town(made)
        pairs = list(combinations_with_replacement(sides, 2))
        random.Random(seed).shuffle(pairs)
        for first, second in pairs[:PAIRS]:
            # A search passes over a session that is locked just now, so it may take what no serial order would give it.
            serial = "claim_next" not in (first, second)
            scripts = [sides[first], sides[second]]
            report = await explore(made, scripts, most=ORDERS_OF_ANY_TWO, box_s=BOX_S, seed=seed, serial=serial)
            assert report.violation is None, f"{first} beside {second}: {report.violation}"


# --- planted bugs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scenario",
    [commit_commit_same_turn, commit_commit_blind, claim_claim, enqueue_enqueue_same_key, delete_commit, put_sweep],
    ids=lambda scenario: scenario.__name__,
)
def test_a_forgotten_lock_is_noticed(arena: tuple[str, str], scenario: Scenario) -> None:
    async def without_locks(made: Stage) -> Sequence[Script]:
        scripts = await scenario(made)
        made.dialect = Unlocked(made.schema)
        return scripts

    assert asyncio.run(explored(arena, without_locks, seed=seed_of_run(), box_s=PATIENCE_S)).violation is not None


@pytest.mark.parametrize(
    ("scenario", "bug", "sign"),
    [
        (commit_commit_crossed, descending_locks, "40P01"),
        (create_create, read_then_insert, "23505"),
        (commit_commit_new_session, read_then_insert, "23505"),
        (commit_commit_blind, clock_before_lock, "earlier instant"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_bug_in_one_operation_is_noticed(
    arena: tuple[str, str], scenario: Scenario, bug: Callable[[], Rewrite], sign: str
) -> None:
    async def with_bug(made: Stage) -> Sequence[Script]:
        first, second = await scenario(made)
        return [planted(first, bug), second]

    violation = asyncio.run(explored(arena, with_bug, seed=seed_of_run(), box_s=PATIENCE_S)).violation
    assert violation is not None
    assert sign in violation


# --- the stepper itself ---------------------------------------------------------------------------------------------------


def test_every_order_is_run_once() -> None:
    orders, seen = Orders(random.Random(7)), list[str]()
    while not orders.exhausted:
        orders.begin()
        left = {"a": 3, "b": 3}
        order = ""
        while any(left.values()):
            name = orders.choose([name for name, steps in left.items() if steps])
            left[name] -= 1
            order += name
        orders.end()
        seen.append(order)
    assert len(seen) == len(set(seen)) == comb(6, 3)


def test_a_side_that_waits_is_seen_by_the_server_and_cannot_be_chosen(arena: tuple[str, str]) -> None:
    report = asyncio.run(explored(arena, enqueue_enqueue_other_keys, seed=0, box_s=PATIENCE_S))
    assert report.complete
    assert 0 < report.waited < report.schedules
