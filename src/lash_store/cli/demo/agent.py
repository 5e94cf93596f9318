"""One turn of the agent: what a program that uses the store writes itself. Nothing here knows that it may be killed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from lash_store import (
    Append,
    Batch,
    Claim,
    Commit,
    EventType,
    Leased,
    Node,
    NodeDraft,
    Pointer,
    ProcessInput,
    Receipt,
    Registration,
    SessionHandle,
    Store,
    Success,
    Usage,
    Wake,
    active_path,
)
from lash_store.cli.demo import model
from lash_store.cli.demo.model import Message, Turn

PATIENCE_MS = 20_000  # for work to come; far beyond every lease of the demo
TRANSACTION_MS = 30_000  # a disk that stalls is no reason to fail

KINDS = {"call": "tool", "tool": "tool"}  # of nodes; the others are messages

# What a process may say; the last two also speak to the session, in its inbox.
STEP = EventType(name="booking.step", schema={"type": "object", "required": ["step"]})
TEXT, SPEAKS = {"type": "object", "required": ["text"]}, Wake(input=Pointer("/text"))
CONFIRMED = EventType(name="booking.confirmed", schema=TEXT, wake=SPEAKS)
REMINDED = EventType(name="reminder.due", schema=TEXT, wake=SPEAKS)


class Watch(Protocol):
    """Who looks on: told every step, and every point at which a kill would be interesting."""

    def note(self, kind: str, **facts: object) -> None:
        """Something happened."""
        ...

    def reach(self, point: str) -> None:
        """We are here now; may never return."""
        ...


class Served(Struct, frozen=True, kw_only=True):
    """A turn that was committed and acknowledged."""

    receipt: Receipt
    turn: Turn
    attempts: int
    fence: int


def serve(store: Store, owner: str, *, lease_ms: int, watch: Watch) -> Served:
    """Sleep until some session has work, take it, answer it. Messages of a session are answered in their order."""
    claim = claim_work(store, owner, lease_ms=lease_ms)
    batch = claim.batches[0]
    watch.note("claimed", key=batch.source_key, attempts=batch.attempts, fence=claim.fence, lease_ms=lease_ms)
    session = store.session(claim.session_id)
    seen = session.load(active_path(reply_to(batch)))
    history = messages_of(seen.nodes)
    turn = decide(history, heard(batch), watch)
    files = [session.put(data, media_type="text/markdown", label=name).attachment_id for name, data in turn.files.items()]
    draft = drafted(batch, turn, history, revision=seen.revision, files=files, completes=[claim])
    receipt = commit(store, session, draft, turn)
    watch.reach("committed")
    return Served(receipt=receipt, turn=turn, attempts=batch.attempts, fence=claim.fence)


def claim_work(store: Store, owner: str, *, lease_ms: int) -> Claim:
    """The oldest work of a session that nobody works on. A dead worker's comes back when its lease has passed."""
    while store.queue.wait_ready(timeout_ms=PATIENCE_MS):
        claim = store.queue.claim_next(owner, lease_ms=lease_ms)
        if claim is not None:
            return claim
    raise TimeoutError("no work came")


def decide(history: Sequence[Message], incoming: Message, watch: Watch) -> Turn:
    """Think until there is an answer. Nothing is stored yet: a kill here costs the thoughts, not the message."""
    lines = [incoming]
    for line in model.steps(history, incoming):
        lines.append(line)
        watch.note("thought", role=line.role, text=line.text, data=line.data)
        if line.role == "tool":
            watch.reach("thinking")
    return model.turn(history, lines)


def drafted(
    batch: Batch, turn: Turn, history: Sequence[Message], *, revision: int, files: Sequence[str], completes: Sequence[Claim]
) -> Commit:
    """Everything the turn changes, as one value and one transaction."""
    return Commit(
        expected_revision=revision,  # compare-and-set: had anybody committed meanwhile, we would be told
        turn_id=turn_id_of(batch),  # follows from its cause: every retry is the same turn, and commits once
        graph=Append(nodes(turn.messages, batch)),
        checkpoint={"memory": model.memory([*history, *turn.messages])},
        usage=[Usage(source="agent", model=model.MODEL, input=turn.tokens.input, output=turn.tokens.output)],
        attachments=files,
        completes=completes,  # the answer and the end of the message are one event
    )


def commit(store: Store, session: SessionHandle, draft: Commit, turn: Turn) -> Receipt:
    """The turn, and the background work it starts: there is never one without the other."""
    with store.transaction(max_ms=TRANSACTION_MS) as tx:
        inside = tx.session(session.session_id)
        for _ in turn.jobs:
            inside.processes.start(booking(f"booking:{draft.turn_id}"))
        return inside.commit(draft)


def booking(process_id: str) -> Registration:
    """Work that outlives the turn that started it. Its id follows from the turn: a retry starts nothing twice."""
    return Registration(
        process_id=process_id,
        input=ProcessInput("booking", {"city": model.CITY}),
        event_types=[STEP, CONFIRMED],
    )


def heard(batch: Batch) -> Message:
    """A message of the inbox as a line of the conversation: from the user, or from a process that wakes us."""
    payload = batch.payloads[0]
    if payload.get("type") == "process_wake":
        return Message("process", payload["input"])
    return Message("user", payload["text"])


def turn_id_of(batch: Batch) -> str:
    """The id of the turn that answers a message."""
    payload = batch.payloads[0]
    return f"wake:{payload['process_id']}" if payload.get("type") == "process_wake" else f"answer:{batch.source_key}"


def nodes(messages: Sequence[Message], batch: Batch) -> list[NodeDraft]:
    """The lines of a turn as nodes in a row, on the leaf or on the node the message replies to."""
    base = reply_to(batch)
    first, *rest = [NodeDraft(kind=KINDS.get(line.role, "message"), body=msgspec.to_builtins(line)) for line in messages]
    return [replace(first, parent_id=UNSET if base is None else base, caused_by={"batch": batch.batch_id}), *rest]


def reply_to(batch: Batch) -> str | None:
    """The node a message goes on from when it leaves the main line: a branch."""
    return batch.payloads[0].get("reply_to")


def messages_of(nodes: Sequence[Node]) -> list[Message]:
    """A stored conversation."""
    return [msgspec.convert(node.body, Message) for node in nodes]


# --- background work ------------------------------------------------------------------------------------------------------


def run_job(store: Store, owner: str, *, incarnation: str, lease_ms: int, watch: Watch) -> Leased:
    """Lease a process, do its steps, end it. Every event is under the lease; a step that is repeated adds nothing."""
    leased = lease_job(store, owner, incarnation=incarnation, lease_ms=lease_ms)
    watch.note("leased", process=leased.process.process_id, kind_of=leased.process.input.kind, fence=leased.lease.fence)
    RUN[leased.process.input.kind](store, leased, watch)
    return leased


def lease_job(store: Store, owner: str, *, incarnation: str, lease_ms: int) -> Leased:
    """The process that has waited longest. A dead worker's is free again when its lease has passed."""
    while store.processes.wait_runnable(timeout_ms=PATIENCE_MS):
        for leased in store.processes.claim_next(owner, incarnation=incarnation, lease_ms=lease_ms):
            return leased
    raise TimeoutError("no process came")


def book(store: Store, leased: Leased, watch: Watch) -> None:
    """The hotel, step by step. The last event wakes the session: it is in the log exactly if it is in the inbox."""
    process_id, lease = leased.process.process_id, leased.lease
    for step in model.STEPS:
        done = store.processes.append(process_id, STEP.name, {"step": step}, replay_key=step, lease=lease)
        watch.note("stepped", step=step, replayed=done.replayed, sequence=done.event.sequence)
        watch.reach(step)
    with store.transaction(max_ms=TRANSACTION_MS) as tx:
        tx.processes.append(process_id, CONFIRMED.name, {"text": model.CONFIRMED}, replay_key="confirmed", lease=lease)
        tx.processes.complete(process_id, Success({"room": 12}), lease=lease)
    watch.note("ended", process=process_id)


def remind(store: Store, leased: Leased, watch: Watch) -> None:
    """What the schedule starts."""
    process_id = leased.process.process_id
    with store.transaction(max_ms=TRANSACTION_MS) as tx:
        tx.processes.append(process_id, REMINDED.name, {"text": model.REMINDER}, replay_key="due", lease=leased.lease)
        tx.processes.complete(process_id, Success(), lease=leased.lease)
    watch.note("ended", process=process_id)


RUN = {"booking": book, "reminder": remind}
