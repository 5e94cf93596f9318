"""Chooses what an examination verifies: the newest, and what was changed after a moment somewhere between first and last."""

from __future__ import annotations

from typing import LiteralString

from lash_store.ops.statement import Op, fetch, fetch_one

SESSIONS_SPAN: LiteralString = "SELECT min(updated_ms), max(updated_ms) FROM {sessions} WHERE state = 'live'"
SESSIONS_NEWEST: LiteralString = """
SELECT session_id FROM {sessions} WHERE state = 'live' ORDER BY updated_ms DESC, session_id DESC LIMIT :limit
"""
SESSIONS_SINCE: LiteralString = """
SELECT session_id FROM {sessions} WHERE state = 'live' AND updated_ms >= :since_ms ORDER BY updated_ms, session_id LIMIT :limit
"""
ENDED_SPAN: LiteralString = (
    "SELECT min(updated_ms), max(updated_ms) FROM {processes} WHERE state <> 'running' AND pruned_ms IS NULL"
)
RUNNING: LiteralString = """
SELECT process_id FROM {processes} WHERE state = 'running' AND pruned_ms IS NULL ORDER BY process_id LIMIT :limit
"""
ENDED_SINCE: LiteralString = """
SELECT process_id FROM {processes} WHERE state <> 'running' AND pruned_ms IS NULL AND updated_ms >= :since_ms
ORDER BY updated_ms, process_id LIMIT :limit
"""


def session_ids(count: int, share: float) -> Op[list[str]]:
    """At most `count` live sessions; `share` of the way from the oldest to the newest is where half of them are from."""
    return (yield from _both(SESSIONS_NEWEST, SESSIONS_SINCE, SESSIONS_SPAN, count, share))


def process_ids(count: int, share: float) -> Op[list[str]]:
    """The same for processes: running ones, and ended ones from somewhere."""
    return (yield from _both(RUNNING, ENDED_SINCE, ENDED_SPAN, count, share))


def _both(first: LiteralString, since: LiteralString, span: LiteralString, count: int, share: float) -> Op[list[str]]:
    ids = [row[0] for row in (yield from fetch(first, limit=(count + 1) // 2))]
    bounds = yield from fetch_one(span)
    if bounds is None or bounds[0] is None:
        return ids
    since_ms = bounds[0] + int((bounds[1] - bounds[0]) * share)
    ids += [row[0] for row in (yield from fetch(since, since_ms=since_ms, limit=count - len(ids)))]
    return list(dict.fromkeys(ids))
