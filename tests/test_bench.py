"""Numbers and charts of the documentation are those that were measured, and the instruments of the measurement count right."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import asyncpg
import pytest

from bench.bars import bars, verdicts
from bench.charts import charts
from bench.child import Proxy
from bench.environments import peers
from bench.publish import ASSETS, BLOCK, BLOCKS, PAGES, README, filled, outdated
from bench.report import SECTIONS, number, size, text
from bench.results import FULL, Results, load
from bench.server import through
from bench.stage import OURS, POSTGRES

PROJECT = Path(__file__).resolve().parents[1]
PERFORMANCE = PROJECT / "docs" / "performance.md"


@pytest.fixture(scope="module")
def measured() -> Results:
    return load(FULL)


def test_every_page_and_chart_shows_what_was_measured(measured: Results) -> None:
    assert outdated(measured) == [], "run `python -m bench.publish`"


def test_a_number_changed_by_hand_is_noticed(measured: Results) -> None:
    shown = PERFORMANCE.read_text()
    found = re.search(r"\d\d+", BLOCKS["turns"](measured))
    assert found is not None
    forged = shown.replace(found[0], "77777", 1)
    assert forged != shown
    assert filled(forged, measured) != forged


def test_the_performance_page_shows_every_table() -> None:
    assert {block["name"] for block in BLOCK.finditer(PERFORMANCE.read_text())} == set(SECTIONS)


def test_the_readme_and_the_comparison_show_a_summary() -> None:
    named = {page.name: {block["name"] for block in BLOCK.finditer(page.read_text())} for page in PAGES}
    assert named["README.md"] == {"begin"}
    assert named["comparison.md"] == {"comparison"}
    assert "<!-- bench:end -->" in README.read_text()


def test_every_chart_is_shown_and_readable_in_the_dark(measured: Results) -> None:
    for name, drawn in charts(measured).items():
        assert f"assets/{name}" in PERFORMANCE.read_text()
        assert "prefers-color-scheme:dark" in drawn
        assert (ASSETS / name).read_text() == drawn


def test_every_bar_is_told_with_its_verdict(measured: Results) -> None:
    told = SECTIONS["bars"](measured)
    for each in verdicts(measured):
        assert f"| {each.what} | {each.bar.sense} " in told
    assert len(verdicts(measured)) == len(bars())


def test_a_bar_that_is_missed_says_so() -> None:
    results = Results()
    for metric, value in (("lost", 0.0), ("doubled", 1.0)):
        results.note("W5", OURS.name, POSTGRES, "8 writers", metric, value)
    told = SECTIONS["bars"](results).splitlines()
    assert [line for line in told if "PostgreSQL: 8 writers" in line] == [
        "| PostgreSQL: 8 writers on one session, lost or doubled turns | ≤ 0 | 1 | **missed** |"
    ]
    assert "| SQLite: 8 writers on one session, lost or doubled turns | ≤ 0 | – | not measured |" in told


def test_the_file_says_what_the_numbers_depend_on(measured: Results) -> None:
    around = measured.surroundings
    assert {"commit", "cores", "load before", "fdatasync p50 ms", "pool size", "repeats", "versions"} <= set(around)
    assert around["postgresql"]["fsync"] == "on"
    assert around["repeats"] >= 3
    assert all(len(each.values) >= 1 for each in measured.figures)


def test_a_run_can_be_written_and_read_again(tmp_path: Path, measured: Results) -> None:
    measured.save(tmp_path / "again.json")
    again = load(tmp_path / "again.json")
    assert again == measured
    assert text(again) == text(measured)


def test_every_peer_says_what_it_is_and_what_its_writes_mean() -> None:
    found = {peer.name for peer in peers()}
    assert found == {"LangGraph", "OpenAI Agents", "Google ADK", "DBOS", "Absurd", "Procrastinate", "PgQueuer"}
    for peer in peers():
        assert set(peer.semantics) == {"stores", "atomic", "compare_and_set", "idempotent"}
        assert all(member.role in ("turns", "jobs") for member in peer.members())


def test_numbers_are_written_for_people() -> None:
    assert [number(value) for value in (0, 0.01234, 1.5, 999.4, 1234.5, 1_245_000)] == [
        "0",
        "0.0123",
        "1.5",
        "999",
        "1,230",
        "1,240,000",
    ]
    assert [size(value) for value in (12, 1_200, 3_031_040, 1_245_000_000)] == ["12 B", "1.2 KB", "3.03 MB", "1.25 GB"]


def test_the_proxy_counts_round_trips_and_not_statements(pg_tcp_url: str) -> None:
    assert asyncio.run(trips_through_a_proxy(pg_tcp_url)) == [1, 1, 3]


async def trips_through_a_proxy(url: str) -> list[int]:
    """Of one simple query, of one query of two statements, and of a transaction with one statement in it."""
    host, port = url.rpartition("@")[2].split("/")[0].split(":")
    proxy = await Proxy.start(host, int(port))
    try:
        connection = await asyncpg.connect(through(url, proxy.port), ssl=False)
        found: list[int] = []
        for script in (["SELECT 1"], ["SELECT 1; SELECT 2"], ["BEGIN", "SELECT 1", "COMMIT"]):
            before = (await proxy.counters())["round_trips"]
            for sql in script:
                await connection.execute(sql)
            found.append((await proxy.counters())["round_trips"] - before)
        await connection.close()
    finally:
        await proxy.close()
    return found
