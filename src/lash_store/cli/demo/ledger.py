"""What callers were told while the story ran: the promises that must hold afterwards. And how it must end, without any store."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from lash_store.cli.demo import model
from lash_store.cli.demo.model import Message, Role

TRIP, WITH_ADA, RACE = "trip", "trip-with-ada", "race"
MAILS = {"mail-1": model.TRAIN, "mail-2": model.ROOM, "mail-3": model.WEATHER, "mail-4": model.ESCUDOS, "mail-5": model.PACK}
SECOND_THOUGHT, ADAS_MAIL = "mail-6", "mail-7"


class Claim(Struct, frozen=True):
    """A sentence, and whether it holds."""

    sentence: str
    holds: bool
    why: str = ""


class Acknowledged(Struct, frozen=True, kw_only=True):
    """A turn whose receipt somebody got, and when, since the story began."""

    session_id: str
    turn_id: str
    revision: int
    node_ids: tuple[str, ...]
    at_s: float
    worker: str


class Killed(Struct, frozen=True, kw_only=True):
    """A worker that was ended by a signal. `moment` is what it was doing, `at_s` when, since the story began."""

    worker: str
    pid: int
    code: int
    moment: str
    at_s: float


class Raced(Struct, frozen=True, kw_only=True):
    """What both racers of a round were told."""

    turn_id: str
    revisions: tuple[int, int]
    node_ids: tuple[tuple[str, ...], tuple[str, ...]]
    replayed: tuple[bool, bool]


class Ledger(Struct, kw_only=True):
    """Everything that was acknowledged, in its order."""

    turns: list[Acknowledged] = field(default_factory=list[Acknowledged])
    kills: list[Killed] = field(default_factory=list[Killed])
    races: list[Raced] = field(default_factory=list[Raced])
    delivered: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    bookings: list[str] = field(default_factory=list[str])
    reminders: list[str] = field(default_factory=list[str])
    branch_leaf: str = ""


class Expected(Struct, frozen=True):
    """The story as an agent without a store, whom nobody kills, would live it."""

    trip: tuple[Message, ...]
    shared: int  # lines the branch has in common with it
    branch: tuple[Message, ...]
    with_ada: tuple[Message, ...]
    tokens: dict[str, tuple[int, int]]


def expected(reminders: int) -> Expected:
    """Think every turn once, in memory. `reminders`: how often the clock spoke, which only the clock knows."""
    reminded: tuple[Role, str] = ("process", model.REMINDER)
    heard: list[tuple[Role, str]] = [
        ("user", model.TRAIN),
        ("user", model.ROOM),
        ("process", model.CONFIRMED),
        ("user", model.WEATHER),
        ("user", model.ESCUDOS),
        ("user", model.PACK),
        *[reminded] * reminders,
    ]
    trip, spent = _lived([], heard)
    start = trip[: len(model.whole_turn([], Message("user", model.TRAIN)).messages)]
    branch, spent_there = _lived(start, [("user", model.SHIP)])
    with_ada, spent_by_ada = _lived(trip, [("user", model.ADA)])
    both = (spent[0] + spent_there[0], spent[1] + spent_there[1])
    return Expected(tuple(trip), len(start), tuple(branch), tuple(with_ada), {TRIP: both, WITH_ADA: spent_by_ada})


def _lived(history: Sequence[Message], heard: Sequence[tuple[Role, str]]) -> tuple[list[Message], tuple[int, int]]:
    conversation, read, written = list(history), 0, 0
    for role, text in heard:
        turn = model.whole_turn(conversation, Message(role, text))
        conversation += turn.messages
        read, written = read + turn.tokens.input, written + turn.tokens.output
    return conversation, (read, written)
