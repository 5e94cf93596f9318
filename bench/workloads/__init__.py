"""One file per workload. Each has `run(stage)`, which measures everybody who can do it and notes the figures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bench.stage import Stage
from bench.workloads import w1_turns, w2_resume, w3_growth, w4_sessions, w7_jobs, w8_wakes


def all_workloads() -> list[tuple[str, Callable[[Stage], Awaitable[None]]]]:
    """In the order in which they run. What a kill in mid-turn does is a matter of the tests, not of time."""
    return [
        ("W1", w1_turns.run),
        ("W2", w2_resume.run),
        ("W3", w3_growth.run),
        ("W4", w4_sessions.fork),
        ("W5", w4_sessions.race),
        ("W6", w4_sessions.many),
        ("W7", w7_jobs.run),
        ("W8", w8_wakes.run),
        ("W10", w4_sessions.prune),
        ("W11", w4_sessions.listing),
    ]
