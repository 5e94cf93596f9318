"""The scripted model and its tools: pure functions, so that a killed turn thinks the same when it is thought again.

This is the only part of the demo that is not real. It has the shape of a real one: it reads a conversation, and either calls a
tool or answers. It looks at nothing but the conversation, so a program without any store can say how the story must end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

MODEL = "scripted"
Role = Literal["user", "process", "call", "tool", "agent"]


class Message(Struct, frozen=True, omit_defaults=True):
    """A line of the conversation, and the body of a node. `data` has arguments or results."""

    role: Role
    text: str
    data: Any = None


class Tokens(Struct, frozen=True):
    """What a turn cost: the scripted model counts words."""

    input: int
    output: int


class Turn(Struct, frozen=True):
    """Everything one turn decided, before any of it is stored."""

    messages: tuple[Message, ...]
    tokens: Tokens
    files: Mapping[str, bytes]
    jobs: tuple[str, ...]

    @property
    def tools(self) -> list[str]:
        """The tools it called."""
        return [message.text for message in self.messages if message.role == "call"]


# --- the script -----------------------------------------------------------------------------------------------------------

CITY = "Lisbon"
ESCUDOS_PER_EUR = 200.482  # since 1999 and for ever
TRAIN, ROOM, WEATHER, ESCUDOS, PACK, SHIP, ADA = (
    "Find me a train to Lisbon.",
    "Book a room near the river.",
    "How is the weather there?",
    "What is the fare in escudos?",
    "So what shall I pack?",
    "On second thought: is there a ship?",
    "Ada comes along. Is there a seat for her?",
)
CONFIRMED = "Pensão do Rio confirms room 12, two nights."
REMINDER = "The night train leaves in an hour."
STEPS = ("asked", "held", "paid")  # of the booking; each is an event of its log

# What the model says to a line: a tool to call, or a text whose places are filled from what the tools found so far.
SCRIPT: Mapping[tuple[Role, str], tuple[Role, str]] = {
    ("user", TRAIN): ("call", "find_trains"),
    ("tool", "find_trains"): ("agent", "A night train leaves at {departs} and arrives at {arrives}, for {fare} EUR."),
    ("user", ROOM): ("call", "book_room"),
    ("tool", "book_room"): ("agent", "I asked the hotel. You will hear from me when they answer."),
    ("process", CONFIRMED): ("call", "write_itinerary"),
    ("tool", "write_itinerary"): ("agent", "The room is yours. I attached the itinerary."),
    ("user", WEATHER): ("call", "weather"),
    ("tool", "weather"): ("agent", "It is {sky}, {degrees} degrees."),
    ("user", ESCUDOS): ("call", "convert"),
    ("tool", "convert"): ("agent", "{escudos} escudos, at the rate of 1999."),
    ("user", PACK): ("agent", "Light clothes: it is {sky}."),
    ("process", REMINDER): ("agent", "Time to go: platform 3, {departs}."),
    ("user", SHIP): ("call", "find_ships"),
    ("tool", "find_ships"): ("agent", "No ship sails to Lisbon this week."),
    ("user", ADA): ("call", "find_seats"),
    ("tool", "find_seats"): ("agent", "Seat {seat} is free, next to yours."),
}

ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "find_trains": {"to": CITY},
    "book_room": {"near": "the river"},
    "write_itinerary": {"format": "markdown"},
    "weather": {"city": CITY},
    "convert": {"eur": 89, "to": "escudos"},
    "find_ships": {"to": CITY},
    "find_seats": {"next_to": "61A"},
}

RESULTS: Mapping[str, Mapping[str, Any]] = {
    "find_trains": {"departs": "22:10", "arrives": "13:40", "fare": 89},
    "book_room": {"hotel": "Pensão do Rio"},
    "weather": {"sky": "sunny", "degrees": 24},
    "find_ships": {"ships": 0},
    "find_seats": {"seat": "61B"},
}


def think(conversation: Sequence[Message]) -> Message:
    """The model: the next line of a conversation."""
    last = conversation[-1]
    role, text = SCRIPT[last.role, last.text]
    if role == "call":
        return Message("call", text, dict(ARGUMENTS[text]))
    return Message("agent", text.format_map(remembered(conversation)))


def run_tool(call: Message, conversation: Sequence[Message]) -> Message:
    """A tool: its result as a line of the conversation. None of them leaves the machine."""
    match call.text:
        case "convert":
            return Message("tool", call.text, {"escudos": round(call.data["eur"] * ESCUDOS_PER_EUR)})
        case "write_itinerary":
            return Message("tool", call.text, {"file": "itinerary.md", "bytes": len(itinerary(remembered(conversation)))})
        case name:
            return Message("tool", name, dict(RESULTS[name]))


def remembered(conversation: Sequence[Message]) -> dict[str, Any]:
    """What the tools found so far: the agent's memory, which every commit writes into the checkpoint."""
    return {key: value for message in conversation if message.role == "tool" for key, value in message.data.items()}


def itinerary(known: Mapping[str, Any]) -> bytes:
    """The file the agent attaches."""
    return f"# {CITY}\n\n* {known['departs']} night train, {known['fare']} EUR\n* {known['hotel']}, two nights\n".encode()


# --- one turn -------------------------------------------------------------------------------------------------------------


def steps(history: Sequence[Message], incoming: Message) -> Iterator[Message]:
    """The agent loop: think, run the tool that was called, think again, until there is an answer."""
    conversation = [*history, incoming]
    while conversation[-1].role != "agent":
        last = conversation[-1]
        conversation.append(run_tool(last, conversation) if last.role == "call" else think(conversation))
        yield conversation[-1]


def turn(history: Sequence[Message], messages: Sequence[Message]) -> Turn:
    """What the lines of a turn amount to: tokens, files to attach, jobs to start."""
    conversation = [*history, *messages]
    files = {line.data["file"]: itinerary(remembered(conversation)) for line in messages if "file" in (line.data or {})}
    jobs = tuple(line.text for line in messages if line.role == "call" and line.text == "book_room")
    return Turn(tuple(messages), tokens(history, messages), files, jobs)


def whole_turn(history: Sequence[Message], incoming: Message) -> Turn:
    """A turn at once, as an agent that nobody kills thinks it."""
    return turn(history, [incoming, *steps(history, incoming)])


def tokens(history: Sequence[Message], messages: Sequence[Message]) -> Tokens:
    """Every thought reads the whole conversation before it."""
    read = written = 0
    for index, message in enumerate(messages):
        if message.role in ("call", "agent"):
            read += sum(words(line) for line in (*history, *messages[:index]))
            written += words(message)
    return Tokens(read, written)


def words(message: Message) -> int:
    """The words of a line with its data."""
    return len(f"{message.text} {json.dumps(message.data)}".split())


def memory(conversation: Sequence[Message]) -> bytes:
    """The checkpoint: what the agent remembers, as bytes of its own."""
    return json.dumps(remembered(conversation), sort_keys=True).encode()
