"""The token ledger: entries per commit, running totals per (source, model)."""

from __future__ import annotations

from collections.abc import Sequence

from lash_store.errors import LimitExceeded, NotFound
from lash_store.model.limits import COUNTER_MAX
from lash_store.model.usage import Usage, UsageTotal
from lash_store.ops.heads import look_session
from lash_store.ops.statement import Op, Row, execute_many, fetch


def record(session_id: str, entries: Sequence[Usage], revision: int) -> Op[None]:
    """Keep the entries with their commit and add them to the totals; a total that would overflow is refused."""
    if not entries:
        return
    known = yield from _totals_of(session_id, entries)
    sums = add_up(session_id, entries, known)
    yield from execute_many(
        """
        INSERT INTO {usage_entries} (session_id, revision, ordinal, source, model, input, output, cached_input, reasoning)
        SELECT CAST(:session_id AS TEXT), CAST(:revision AS {int}), rows.ordinal, rows.source, rows.model, rows.input,
               rows.output, rows.cached_input, rows.reasoning
        FROM {rows(ordinal int, source text, model text, input int, output int, cached_input int, reasoning int)}
        """,
        [{"ordinal": ordinal, **_counts(entry)} for ordinal, entry in enumerate(entries)],
        session_id=session_id,
        revision=revision,
    )
    ordinals = {(entry.source, entry.model): ordinal for ordinal, entry in reversed(list(enumerate(entries)))}
    yield from execute_many(
        """
        INSERT INTO {usage_totals} (session_id, source, model, first_revision, first_ordinal, input, output, cached_input,
                                    reasoning)
        SELECT CAST(:session_id AS TEXT), rows.source, rows.model, CAST(:revision AS {int}), rows.ordinal, rows.input,
               rows.output, rows.cached_input, rows.reasoning
        FROM {rows(ordinal int, source text, model text, input int, output int, cached_input int, reasoning int)}
        WHERE true
        ON CONFLICT (session_id, source, model) DO UPDATE
        SET input = excluded.input, output = excluded.output, cached_input = excluded.cached_input,
            reasoning = excluded.reasoning
        """,
        [{"ordinal": ordinals[total.source, total.model], **_counts(total)} for total in sums],
        session_id=session_id,
        revision=revision,
    )


def _counts(entry: Usage | UsageTotal) -> dict[str, str | int]:
    return {
        "source": entry.source,
        "model": entry.model,
        "input": entry.input,
        "output": entry.output,
        "cached_input": entry.cached_input,
        "reasoning": entry.reasoning,
    }


def _totals_of(session_id: str, entries: Sequence[Usage]) -> Op[list[UsageTotal]]:
    rows = yield from fetch(
        """
        SELECT source, model, input, output, cached_input, reasoning
        FROM {usage_totals}
        WHERE session_id = :session_id AND source {any_text:sources} AND model {any_text:models}
        """,
        session_id=session_id,
        sources=sorted({entry.source for entry in entries}),
        models=sorted({entry.model for entry in entries}),
    )
    return [total(row) for row in rows]


def add_up(session_id: str, entries: Sequence[Usage], known: Sequence[UsageTotal]) -> list[UsageTotal]:
    """The totals after the entries, for the pairs they name."""
    sums = {(total.source, total.model): total for total in known}
    touched: dict[tuple[str, str], UsageTotal] = {}
    for entry in entries:
        pair = (entry.source, entry.model)
        before = touched.get(pair) or sums.get(pair)
        touched[pair] = entry_total(entry) if before is None else _plus(session_id, before, entry)
    return list(touched.values())


def entry_total(entry: Usage) -> UsageTotal:
    """The total of one entry."""
    return UsageTotal(
        source=entry.source,
        model=entry.model,
        input=entry.input,
        output=entry.output,
        cached_input=entry.cached_input,
        reasoning=entry.reasoning,
    )


def _plus(session_id: str, before: UsageTotal, entry: Usage) -> UsageTotal:
    after = UsageTotal(
        source=entry.source,
        model=entry.model,
        input=before.input + entry.input,
        output=before.output + entry.output,
        cached_input=before.cached_input + entry.cached_input,
        reasoning=before.reasoning + entry.reasoning,
    )
    for name in ("input", "output", "cached_input", "reasoning"):
        value: int = getattr(after, name)
        if value > COUNTER_MAX:
            path = f"usage of session {session_id!r}, source {entry.source!r}, model {entry.model!r}, {name}"
            raise LimitExceeded("COUNTER_MAX", maximum=COUNTER_MAX, actual=value, path=path)
    return after


def totals(session_id: str, incarnation: int | None = None) -> Op[tuple[UsageTotal, ...]]:
    """Totals by (source, model), in the order they were first seen."""
    yield from look_session(session_id, incarnation)
    return (yield from read_totals(session_id))


def read_totals(session_id: str) -> Op[tuple[UsageTotal, ...]]:
    """Totals of a session that is known to be there. Entries that count nothing are not shown."""
    rows = yield from fetch(
        """
        SELECT source, model, input, output, cached_input, reasoning
        FROM {usage_totals}
        WHERE session_id = :session_id AND input + output + cached_input + reasoning > 0
        ORDER BY first_revision, first_ordinal
        """,
        session_id=session_id,
    )
    return tuple(total(row) for row in rows)


def totals_at(session_id: str, revision: int) -> Op[tuple[UsageTotal, ...]]:
    """Totals as of a revision, from the entries."""
    rows = yield from fetch(
        """
        SELECT source, model, input, output, cached_input, reasoning
        FROM {usage_entries}
        WHERE session_id = :session_id AND revision <= :revision
        ORDER BY revision, ordinal
        """,
        session_id=session_id,
        revision=revision,
    )
    entries = [_entry(row) for row in rows]
    return tuple(
        total
        for total in add_up(session_id, entries, [])
        if total.input + total.output + total.cached_input + total.reasoning > 0
    )


def entries_of(session_id: str, revision: int, incarnation: int | None = None) -> Op[tuple[Usage, ...]]:
    """The entries one commit recorded, in their order."""
    head = yield from look_session(session_id, incarnation)
    if revision > head.revision:
        raise NotFound("revision", str(revision), within=session_id)
    rows = yield from fetch(
        """
        SELECT source, model, input, output, cached_input, reasoning
        FROM {usage_entries}
        WHERE session_id = :session_id AND revision = :revision
        ORDER BY ordinal
        """,
        session_id=session_id,
        revision=revision,
    )
    return tuple(_entry(row) for row in rows)


def _entry(row: Row) -> Usage:
    return Usage(source=row[0], model=row[1], input=row[2], output=row[3], cached_input=row[4], reasoning=row[5])


def total(row: Row) -> UsageTotal:
    """A total as it is stored."""
    return UsageTotal(source=row[0], model=row[1], input=row[2], output=row[3], cached_input=row[4], reasoning=row[5])
