"""Laws of usage: entries per commit, running totals, nothing lost and nothing counted twice."""

from __future__ import annotations

import asyncio
from typing import Any

from lash_store.errors import LimitExceeded, Unstorable
from lash_store.model.limits import COUNTER_MAX
from lash_store.model.usage import Usage, UsageTotal
from lash_store.testing.backend import Backend
from lash_store.testing.steps import append, commit, nothing_changes, refused, say


async def totals_merge_by_source_and_model_in_first_seen_order(backend: Backend) -> None:
    """Entries stay per commit, unmerged and in order; totals add them up; the load carries the totals."""
    store = await backend.open()
    first = [Usage(source="b", model="m", input=11, output=7, cached_input=3, reasoning=5), Usage(source="a", model="m", input=1)]
    second = [
        Usage(source="b", model="n", output=1),
        Usage(source="b", model="m", input=1),
        Usage(source="b", model="m", input=1),
    ]
    await say(store, "s", "x", usage=first)
    await say(store, "s", "y", usage=second)
    totals = (
        UsageTotal(source="b", model="m", input=13, output=7, cached_input=3, reasoning=5),
        UsageTotal(source="a", model="m", input=1, output=0, cached_input=0, reasoning=0),
        UsageTotal(source="b", model="n", input=0, output=1, cached_input=0, reasoning=0),
    )
    assert await store.sessions.usage("s") == totals
    assert (await store.sessions.load("s")).usage == totals
    assert totals[0].total == 25
    assert await store.sessions.usage_of("s", 1) == tuple(first)
    assert await store.sessions.usage_of("s", 2) == tuple(second)


async def entries_with_only_cached_or_reasoning_tokens_count(backend: Backend) -> None:
    """An entry is not dropped because its other counters are zero."""
    store = await backend.open()
    await say(store, "s", "x", usage=[Usage(source="a", model="m", cached_input=9), Usage(source="b", model="m", reasoning=4)])
    totals = await store.sessions.usage("s")
    assert [(total.source, total.cached_input, total.reasoning) for total in totals] == [("a", 9, 0), ("b", 0, 4)]


async def usage_of_concurrent_commits_adds_up(backend: Backend) -> None:
    """No entry is lost or counted twice, whoever commits at once."""
    stores = [await backend.open() for _ in range(2)]
    await asyncio.gather(*(say(stores[i % 2], "s", f"n{i}", usage=[Usage(source="a", model="m", input=1)]) for i in range(10)))
    assert (await stores[0].sessions.usage("s"))[0].input == 10


async def a_counter_outside_its_range_is_refused(backend: Backend) -> None:
    """Negative and oversized counters are LimitExceeded, what is no integer is Unstorable; nothing is stored."""
    store = await backend.open()
    await say(store, "s", "a")
    bad: list[tuple[type[Exception], Any]] = [
        (LimitExceeded, -1),
        (LimitExceeded, COUNTER_MAX + 1),
        (LimitExceeded, 2**64),
        (Unstorable, True),
        (Unstorable, 1.5),
        (Unstorable, "1"),
        (Unstorable, None),
    ]
    async with nothing_changes(backend):
        for error, value in bad:
            with refused(error):
                await say(store, "s", "b", usage=[Usage(source="a", model="m", cached_input=value)])
    await say(store, "s", "b", usage=[Usage(source="a", model="m", input=COUNTER_MAX)])
    assert (await store.sessions.usage("s"))[0].input == COUNTER_MAX


async def an_overflowing_total_is_refused(backend: Backend) -> None:
    """A sum that no longer fits is LimitExceeded and the whole commit is refused: no total wraps or saturates."""
    store = await backend.open()
    most = Usage(source="a", model="m", input=COUNTER_MAX)
    await commit(store, "s", 0, graph=append("a"), usage=[most])
    async with nothing_changes(backend):
        with refused(LimitExceeded):
            await commit(store, "s", 1, graph=append("b"), usage=[most] * 1024)
    assert (await store.sessions.usage("s"))[0].input == COUNTER_MAX


async def usage_belongs_to_its_session(backend: Backend) -> None:
    """One session's tokens are in no other session's totals."""
    store = await backend.open()
    await say(store, "one", "a", usage=[Usage(source="a", model="m", input=1)])
    await say(store, "two", "a")
    assert await store.sessions.usage("two") == ()
    assert await store.sessions.usage_of("two", 1) == ()
