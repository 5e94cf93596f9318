"""kill -9 at random moments: nothing acknowledged is lost, nothing is applied twice, doubts are cleared by the same call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.effort import effort
from tests.support.ground import ENGINES, Ground, ground_of
from tests.support.killer import History, Hunt, hunt
from tests.support.ledger import audit
from tests.support.seeds import seed_of_run
from tests.support.ways import WAYS, Way

pytestmark = pytest.mark.faults

KILLS_PER_ROUND = 500
CONTROL_ROUNDS, CONTROL_KILLS = 10, 20
KINDS = {"append", "checkpoint", "finish", "enqueue", "claim", "renew", "abandon", "settle"}


@pytest.fixture(params=ENGINES)
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return ground_of(request.param, request, tmp_path)


async def one_round(
    ground: Ground, name: str, *, kills: int, hasty: bool = False, ways: Sequence[Way] = WAYS
) -> tuple[History, list[str]]:
    """Kill, then hold what the victims said against the database."""
    sessions = [f"{name}-shared", f"{name}-other"]
    seed = f"{seed_of_run()} {name}"
    order = Hunt(name=name, kills=kills, seed=seed, sessions=sessions, hasty=hasty, ways=ways, **ground.place)
    history = await asyncio.to_thread(hunt, order)
    return history, await audit(ground.backend, history, sessions)


def test_kills_lose_nothing_double_nothing_and_leave_no_doubt(ground: Ground) -> None:
    asyncio.run(many_kills(ground, effort(test=500, faults=10_000)))


async def many_kills(ground: Ground, kills: int) -> None:
    in_window = 0
    for n in range(kills // KILLS_PER_ROUND):
        history, complaints = await one_round(ground, f"r{n}", kills=KILLS_PER_ROUND)
        assert complaints == []
        assert history.kills >= KILLS_PER_ROUND
        assert {deed.kind for deed in history.begun} == KINDS
        in_window += history.in_window
    await ground.backend.close()
    assert in_window >= kills / 3, "too few kills fell between the first statement and the answer"


@pytest.mark.parametrize(("ground", "way"), [("sqlite", "long"), *(("postgresql", way) for way in WAYS)], indirect=["ground"])
def test_an_answer_before_commit_is_caught(ground: Ground, way: Way) -> None:
    """Negative control: drivers that answer before COMMIT lose acknowledged work, and the audit says so."""
    asyncio.run(kills_until_loss(ground, way))


async def kills_until_loss(ground: Ground, way: Way) -> None:
    await (await ground.backend.open()).close()  # the tables must be there to be missed in
    for n in range(CONTROL_ROUNDS):
        _, complaints = await one_round(ground, f"c{n}", kills=CONTROL_KILLS, hasty=True, ways=[way])
        if any("was acknowledged" in complaint for complaint in complaints):
            await ground.backend.close()
            return
    pytest.fail("the planted bug was not found")
