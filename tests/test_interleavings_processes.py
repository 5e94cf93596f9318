"""Pairs of calls about processes and triggers, statement by statement: only what a serial order allows, and no deadlock."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement

import asyncpg
import pytest

from lash_store.model.process import Scope
from tests.support.effort import effort
from tests.support.planted import (
    Rewrite,
    TrustingSubscriptions,
    clock_before_lock,
    planted,
    process_before_session,
    process_without_on_conflict,
    unlocked_processes,
)
from tests.support.player import Script
from tests.support.process_scenarios import (
    PROCESS_SCENARIOS,
    append_append_other_key,
    claim_claim,
    complete_complete_other_state,
    prune_append,
    prune_append_transfer,
    register_register_same,
    wake_grant,
)
from tests.support.process_sides import (
    delete,
    host,
    in_turn,
    job,
    steady_ids,
    subscribe,
    with_processes,
    with_sessions,
)
from tests.support.process_town import PASSING_OVER, process_town
from tests.support.scenarios import Scenario
from tests.support.seeds import seed_of_run
from tests.support.sides import create
from tests.support.stepper import SCHEDULE_VARIABLE, Orders, Report, Stage, build, explore, stage
from tests.support.trigger_scenarios import TRIGGER_SCENARIOS, emit_delete_registrant, emit_prune_occurrences

MOST = effort(test=2_000, faults=200_000)
BOX_MS = effort(test=500, faults=300_000)  # for one pair; it bounds how many orders are run
PATIENCE_S = 120  # for what must be found, or must be complete
TOWN_S = effort(test=8, faults=3_600)  # for pairs of any two calls
ORDERS_OF_ANY_TWO = effort(test=4, faults=300)
ORDERS_OF_LIVES = effort(test=100, faults=100_000)


@pytest.fixture(scope="module")
def arena(pg_url: str) -> Iterator[tuple[str, str]]:
    """A built schema that all pairs of this file use, one after the other."""
    schema = f"t_{secrets.token_hex(8)}"
    asyncio.run(build(pg_url, schema))
    with steady_ids():
        yield pg_url, schema
    asyncio.run(_drop(pg_url, schema))


async def _drop(url: str, schema: str) -> None:
    connection = await asyncpg.connect(url, server_settings={"client_min_messages": "warning"})
    try:
        await connection.execute(f"DROP SCHEMA {schema} CASCADE")
    finally:
        await connection.close()


async def explored(
    arena: tuple[str, str], scenario: Scenario, *, seed: int, sides: int = 2, serial: bool = True, box_s: float = BOX_MS / 1000
) -> Report:
    async with stage(*arena, sides=sides) as made:
        return await explore(made, await scenario(made), most=MOST, box_s=box_s, seed=seed, serial=serial)


@pytest.mark.faults
@pytest.mark.parametrize("scenario", PROCESS_SCENARIOS + TRIGGER_SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_pair_ends_as_a_serial_order_would(arena: tuple[str, str], scenario: Scenario) -> None:
    seed = seed_of_run()
    report = asyncio.run(explored(arena, scenario, seed=seed))
    print(f"{report.schedules} orders ({'all' if report.complete else 'a sample'}),", end=" ")
    print(f"{report.waited} with a wait, {report.serial} serial endings")
    assert report.violation is None, report.violation


@pytest.mark.faults
def test_a_prune_passes_over_an_occurrence_that_is_being_emitted(arena: tuple[str, str]) -> None:
    seed = seed_of_run()
    report = asyncio.run(explored(arena, emit_prune_occurrences, serial=False, seed=seed))
    print(report)
    assert report.violation is None, report.violation


@pytest.mark.faults
def test_a_search_for_ended_processes_never_holds_one_while_it_waits_for_another(arena: tuple[str, str]) -> None:
    seed = seed_of_run()
    report = asyncio.run(explored(arena, prune_append_transfer, sides=3, serial=False, seed=seed, box_s=3 * BOX_MS / 1000))
    print(report)
    assert report.violation is None, report.violation


# --- every call beside every other ----------------------------------------------------------------------------------------


@pytest.mark.faults
def test_any_two_calls_end_as_a_serial_order_would(arena: tuple[str, str]) -> None:
    seed = seed_of_run()
    asyncio.run(_any_two(arena, seed))


async def _any_two(arena: tuple[str, str], seed: int) -> None:
    async with stage(*arena) as made:
        sides = await process_town(made)
        pairs = list(combinations_with_replacement(sides, 2))
        random.Random(seed).shuffle(pairs)
        until = time.monotonic() + TOWN_S  # how many pairs are run, never what one of them means
        for first, second in pairs:
            if time.monotonic() > until:
                break
            serial = not PASSING_OVER & {first, second}
            scripts = [sides[first], sides[second]]
            report = await explore(made, scripts, most=ORDERS_OF_ANY_TWO, box_s=PATIENCE_S, seed=seed, serial=serial)
            assert report.violation is None, f"{first} beside {second}: {report.violation}"


# --- lives of a session ---------------------------------------------------------------------------------------------------


@pytest.mark.faults
def test_a_purge_that_comes_late_takes_nothing_from_the_next_life(arena: tuple[str, str]) -> None:
    seed = seed_of_run()
    asyncio.run(_late_purge(arena, seed))


async def _late_purge(arena: tuple[str, str], seed: int) -> None:
    """One deletes a session; another finishes that, creates it again, and what it is then given stays."""
    async with stage(*arena) as made:
        await with_sessions(made, "s")
        await with_processes(made, job())
        await made.save()
        grant = host(lambda these: these.grant(Scope("s"), "p"))
        scripts = [delete("s"), in_turn(create("s"), grant, subscribe(registrant=Scope("s")))]
        orders, run = Orders(random.Random(seed)), 0
        while not orders.exhausted and run < ORDERS_OF_LIVES:
            run += 1
            ending = await made.run(scripts, orders, whole=True)
            second_life = ending.rows["sessions"][0]["state"] == "live"
            kept = len(ending.rows["grants"]), len(ending.rows["subscriptions"])
            assert not second_life or kept == (1, 1), f"{SCHEDULE_VARIABLE}={ending.schedule}: {ending.outcomes}"


# --- planted bugs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "bug", "sign"),
    [
        (append_append_other_key, unlocked_processes, "23505"),
        (claim_claim, unlocked_processes, ""),
        (complete_complete_other_state, unlocked_processes, ""),
        (prune_append, unlocked_processes, "an ending no serial order has"),
        (append_append_other_key, clock_before_lock, "earlier instant"),
        (wake_grant, process_before_session, "40P01"),
        (register_register_same, process_without_on_conflict, "23505"),
        (emit_delete_registrant, TrustingSubscriptions(), "an ending no serial order has"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_planted_bug_is_noticed(arena: tuple[str, str], scenario: Scenario, bug: Callable[[], Rewrite], sign: str) -> None:
    async def with_bug(made: Stage) -> Sequence[Script]:
        first, second = await scenario(made)
        return [planted(first, bug), second if bug is process_before_session else planted(second, bug)]

    violation = asyncio.run(explored(arena, with_bug, seed=seed_of_run(), box_s=PATIENCE_S)).violation
    assert violation is not None
    assert sign in violation
