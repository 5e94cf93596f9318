"""Every claim of the demo, checked against raw rows by a process that has never opened a store.

    python -m lash_store.cli.demo.verify

A check is a function whose docstring is the claim. It knows what callers were told (the ledger) and how the story must end (a
replay in memory), and believes nothing that was printed.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import cached_property
from typing import Any

import msgspec

from lash_store.cli.demo import model
from lash_store.cli.demo.ledger import RACE, TRIP, WITH_ADA, Claim, Expected, Ledger, expected
from lash_store.cli.demo.model import Message
from lash_store.cli.demo.rows import Row, Rows, fingerprint, open_rows
from lash_store.cli.demo.worker import Place
from lash_store.store.url import parse


def main() -> None:
    """Answer questions until standard input ends: `look` at the rows as they are now, or check a ledger."""
    place = msgspec.json.decode(sys.stdin.readline(), type=Place)
    for line in sys.stdin:
        question = json.loads(line)
        with closing(open_rows(parse(place.url, schema=place.schema))) as rows:
            answer = look(rows) if question == "look" else verified(rows, msgspec.convert(question, Ledger))
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
        sys.stdout.flush()


def look(rows: Rows) -> dict[str, Any]:
    """The rows a turn writes, as hashes, and the inbox: key, and whether a claim holds it."""
    inbox = rows.fetch("SELECT session_id, source_key, owner FROM {batches} ORDER BY session_id, enqueue_seq")
    turns = rows.fetch("SELECT turn_id FROM {commits} WHERE turn_id IS NOT NULL ORDER BY session_id, revision")
    steps = rows.fetch("SELECT payload FROM {events} WHERE event_type = 'booking.step' ORDER BY sequence")
    return {
        "written": fingerprint(rows),
        "inbox": {key: owner for _, key, owner in inbox},
        "turns": [turn for (turn,) in turns],
        "steps": [json.loads(payload)["step"] for (payload,) in steps],
    }


def verified(rows: Rows, ledger: Ledger) -> list[Claim]:
    """Each claim and whether it holds. A check that cannot even be made does not hold."""
    found = Found(rows, ledger)
    return [_checked(check, found) for check in CHECKS]


def _checked(check: Callable[[Found], bool], found: Found) -> Claim:
    sentence = (check.__doc__ or "").strip()
    try:
        return Claim(sentence, check(found))
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the rows, the answer is no
        return Claim(sentence, False, why=f"{type(error).__name__}: {error}")


class Found:
    """What the tables hold, read once, beside what they should hold."""

    def __init__(self, rows: Rows, ledger: Ledger) -> None:
        self.rows, self.ledger = rows, ledger

    @cached_property
    def expected(self) -> Expected:
        return expected(len(self.ledger.reminders))

    @cached_property
    def nodes(self) -> dict[tuple[str, str], Row]:
        found = self.rows.fetch("SELECT session_id, node_id, parent_id, body FROM {nodes}")
        return {(session, node): (parent, body) for session, node, parent, body in found}

    @cached_property
    def leaves(self) -> dict[str, str]:
        return dict(self.rows.fetch("SELECT session_id, leaf_id FROM {sessions}"))  # pyright: ignore[reportArgumentType]

    @cached_property
    def events(self) -> list[Row]:
        return self.rows.fetch("SELECT process_id, sequence, event_type, payload, wake_batch_id FROM {events} ORDER BY 1, 2")

    def path(self, session_id: str, leaf: str | None) -> list[Message]:
        """The conversation that ends on a leaf: every parent in turn, up to a root."""
        lines: list[Message] = []
        while leaf is not None:
            parent, body = self.nodes[session_id, leaf]
            lines.append(msgspec.json.decode(body, type=Message))
            leaf = parent
        return lines[::-1]

    def count(self, sql: str) -> int:
        """The only number of a query."""
        return self.rows.fetch(sql)[0][0]


# --- the claims -----------------------------------------------------------------------------------------------------------


def engine(found: Found) -> bool:
    """The database engine finds its own tables whole."""
    return found.rows.whole()


def acknowledged(found: Found) -> bool:
    """Every acknowledged turn is there once, at the revision its receipt named, and no other turn."""
    rows = found.rows.fetch("SELECT session_id, turn_id, revision, result FROM {commits} WHERE kind = 'commit'")
    stored = [(session, turn, revision, tuple(json.loads(result)["node_ids"])) for session, turn, revision, result in rows]
    told = [(each.session_id, each.turn_id, each.revision, each.node_ids) for each in found.ledger.turns]
    return sorted(stored) == sorted(told)


def gapless(found: Found) -> bool:
    """Revisions have no gaps: each session's history is as long as its head says."""
    heads = found.rows.fetch("SELECT session_id, revision FROM {sessions}")
    rows = found.rows.fetch("SELECT session_id, revision FROM {commits} ORDER BY session_id, revision")
    return all([number for owner, number in rows if owner == session] == [*range(1, head + 1)] for session, head in heads)


def word_for_word(found: Found) -> bool:
    """The conversation is, word for word, that of an agent nobody killed."""
    return found.path(TRIP, found.leaves[TRIP]) == [*found.expected.trip]


def nothing_left_over(found: Found) -> bool:
    """No half of a killed turn is left: there is not one node more than the story has."""
    story = found.expected
    trip = len(story.trip) + len(story.branch) - story.shared
    wanted = {TRIP: trip, WITH_ADA: len(story.with_ada), RACE: len(found.ledger.races)}
    return Counter(session for session, _ in found.nodes) == wanted


def answered_once(found: Found) -> bool:
    """Every message was answered once: the inbox is empty, and each key is remembered as settled."""
    settled = found.rows.fetch("SELECT session_id, source_key FROM {settled_keys}")
    return found.count("SELECT COUNT(*) FROM {batches}") == 0 and {*found.ledger.delivered} <= {*settled}  # pyright: ignore[reportUnhashable]


def counted_once(found: Found) -> bool:
    """Tokens are counted once per turn, also where a killed worker had thought it before."""
    for table in ("usage_entries", "usage_totals"):
        rows = found.rows.fetch(f"SELECT session_id, SUM(input), SUM(output) FROM {{{table}}} GROUP BY session_id")
        if {session: (int(read), int(written)) for session, read, written in rows} != found.expected.tokens:
            return False
    return True


def remembered(found: Found) -> bool:
    """The checkpoint is the memory of the agent at the end of its conversation."""
    rows = found.rows.fetch("SELECT session_id, digest FROM {components} WHERE component = 'memory'")
    stories = {TRIP: found.expected.trip, WITH_ADA: found.expected.with_ada}
    memories = {session: hashlib.sha256(model.memory(story)).digest() for session, story in stories.items()}
    return {session: bytes(digest) for session, digest in rows} == memories


def one_receipt(found: Found) -> bool:
    """Of two workers that raced for a turn one wrote it; both got the one receipt that is stored."""
    told = {each.turn_id: each for each in found.ledger.races}
    rows = found.rows.fetch(f"SELECT turn_id, revision, result FROM {{commits}} WHERE session_id = '{RACE}'")
    agree = [
        told[turn].revisions == (revision, revision)
        and told[turn].node_ids == (tuple(json.loads(result)["node_ids"]),) * 2
        and sorted(told[turn].replayed) == [False, True]
        for turn, revision, result in rows
    ]
    return len(agree) == len(told) and all(agree)


def stepped_once(found: Found) -> bool:
    """The background process has each step once, in order, though its worker was killed half-way."""
    (process_id,) = found.ledger.bookings
    log = [(number, kind, json.loads(payload)) for owner, number, kind, payload, _ in found.events if owner == process_id]
    steps = [payload["step"] for _, kind, payload in log if kind == "booking.step"]
    processes = found.rows.fetch("SELECT process_id, state, lease_fence FROM {processes}")
    ended = [(state, fence >= 2) for owner, state, fence in processes if owner == process_id]
    unbroken = [number for number, _, _ in log] == [*range(1, len(log) + 1)]
    return steps == [*model.STEPS] and unbroken and ended == [("completed", True)]


def woken_once(found: Found) -> bool:
    """Each event that wakes the session is in the log once, and one turn answered it."""
    wakes = [(owner, batch) for owner, _, kind, _, batch in found.events if kind in ("booking.confirmed", "reminder.due")]
    turns = [each.turn_id for each in found.ledger.turns if each.turn_id.startswith("wake:")]
    settled = {batch for (batch,) in found.rows.fetch("SELECT batch_id FROM {settled_keys}")}
    return sorted(f"wake:{owner}" for owner, _ in wakes) == sorted(turns) and {batch for _, batch in wakes} <= settled


def fired_once(found: Found) -> bool:
    """Each instant of the schedule started one process, though two workers ticked at once."""
    instants = [json.loads(body)["payload"]["instant_ms"] for (body,) in found.rows.fetch("SELECT body FROM {occurrences}")]
    started = found.rows.fetch("SELECT process_id FROM {deliveries} WHERE state = 'started' ORDER BY process_id")
    reminders = found.rows.fetch("SELECT process_id FROM {processes} WHERE kind = 'reminder' ORDER BY process_id")
    return len(instants) == len({*instants}) == len(started) >= 1 and started == reminders


def attached(found: Found) -> bool:
    """The attachment is held by the turn that made it; its bytes hash to its name."""
    rows = found.rows.fetch("SELECT session_id, attachment_id, committed_ms FROM {attachments}")
    wanted = model.itinerary(model.remembered(found.expected.trip))
    held = {(session, name) for session, name, committed in rows if committed is not None}
    name = hashlib.sha256(wanted).hexdigest()
    return held == {(TRIP, name), (WITH_ADA, name)} and found.rows.content(name) == wanted


def branched(found: Found) -> bool:
    """The branch is whole beside the main line, and the conversation stands on the main line again."""
    branch = found.ledger.branch_leaf
    return branch != found.leaves[TRIP] and found.path(TRIP, branch) == [*found.expected.branch]


def forked(found: Found) -> bool:
    """The fork has its own copy of the path and its own turn; the session it came from has neither."""
    return found.path(WITH_ADA, found.leaves[WITH_ADA]) == [*found.expected.with_ada]


def nobody_holds(found: Found) -> bool:
    """No claim and no lease of a dead worker is left."""
    held = "SELECT COUNT(*) FROM {processes} WHERE lease_token IS NOT NULL OR state = 'running'"
    return found.count("SELECT COUNT(*) FROM {batches} WHERE token IS NOT NULL") == found.count(held) == 0


CHECKS: tuple[Callable[[Found], bool], ...] = (
    engine,
    acknowledged,
    gapless,
    word_for_word,
    nothing_left_over,
    answered_once,
    counted_once,
    remembered,
    one_receipt,
    stepped_once,
    woken_once,
    fired_once,
    attached,
    branched,
    forked,
    nobody_holds,
)

if __name__ == "__main__":
    main()
