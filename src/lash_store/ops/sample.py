"""Chooses what an examination verifies: the newest, and what was changed after a moment somewhere between first and last.

A sample at least as large as the table is all of it.
"""

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
    """Half from `first`, the rest from the moment on; what one of them lacks, the other fills."""
    ids = [row[0] for row in (yield from fetch(first, limit=count))]
    bounds = yield from fetch_one(span)
    if bounds is None or bounds[0] is None:
        return ids
    oldest_ms: int = bounds[0]
    others = yield from _from(since, oldest_ms + int((bounds[1] - oldest_ms) * share), count)
    if len(others) < count:  # past the newest, go round to the oldest
        others += yield from _from(since, oldest_ms, count)
    half = (count + 1) // 2
    return list(dict.fromkeys([*ids[:half], *others, *ids[half:]]))[:count]


def _from(since: LiteralString, since_ms: int, count: int) -> Op[list[str]]:
    return [row[0] for row in (yield from fetch(since, since_ms=since_ms, limit=count))]
