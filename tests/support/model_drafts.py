"""What the model test says to the store: small pools of names and values, so that histories meet themselves again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

from hypothesis import strategies as st
from msgspec import UNSET, UnsetType, structs

from lash_store import (
    Append,
    AttachmentRef,
    BatchDraft,
    Claim,
    Commit,
    Completion,
    Delivery,
    Frame,
    NodeDraft,
    Replace,
    Slot,
    Unchanged,
    Usage,
)
from tests.support.model import COUNT_MAX, ModelSession

T = TypeVar("T")

SESSIONS = ("a", "b", "é", "B", "f", "g", "h")
NODES = tuple(f"n{i}" for i in range(8))
TURNS = ("t1", "t2", "t3")
KEYS = ("k1", "k2", "ключ")
BATCHES = ("qwb:x1", "qwb:x2")
OWNERS = ("anna", "bert")
TOKENS = ("T1", "T2")
NAMES = ("", "name", "имя\nzwei")
FRAMES = ("f1", "f2", "f3")
FRAME_ORDERS = (("f1",), ("f1", "f2"), ("f2", "f1"), ("f3", "f1"), ())
COMPONENTS = ("turn_state", "turn_state", "tool_state", "Ünit")
CAUSES = (None, {"turn": 1}, ["x", None])
# The same object in two key orders: one content, two spellings.
BODIES: tuple[Any, ...] = ({"text": "hi", "n": 1}, {"n": 1, "text": "hi"}, None, 1, 1.0, True, "ü\u2028\udc80", [[], {}])
_LINES = b"".join(b"line %d of a state that grows\n" % i for i in range(30))
STATES = (b"", b"tiny", _LINES, _LINES + b"one more\n", _LINES[:300] + b"changed" + _LINES[300:], _LINES + b"\x00\xff" * 40)
BYTES = (b"", b"picture", b"\x00\xff" * 3000)
COUNTS = (0, 1, 2, 700, COUNT_MAX)


@cache
def _below(n: int) -> st.SearchStrategy[int]:
    return st.integers(0, n - 1)


class Draw:
    """Choices of one step. The simplest choice is always the first, so that a failing history shrinks to plain steps."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def below(self, n: int) -> int:
        return self._data.draw(_below(n)) if n > 1 else 0

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def rarely(self, one_in: int) -> bool:
        return self.below(one_in) == one_in - 1

    def some(self, options: Sequence[T], most: int) -> list[T]:
        return [self.pick(options) for _ in range(self.below(most + 1))] if options else []

    def recent(self, options: Sequence[T]) -> T:
        """One of the last few; the very last is the simplest."""
        return options[-1 - self.below(min(len(options), 4))]


def draw_batch(draw: Draw, session_id: str | None = None) -> BatchDraft:
    """Work for an inbox: under a source key, under an id the client chose, or under a minted one."""
    name = draw.pick((0, 0, 0, 1, 1, 2, 3))
    return BatchDraft(
        payloads=[draw.pick(BODIES) for _ in range(draw.below(2))],
        session_id=session_id,
        source_key=draw.pick(KEYS) if name in (1, 3) else None,
        batch_id=draw.pick(BATCHES) if name in (2, 3) else None,
        delivery=Delivery.AFTER_CURRENT_TURN_COMMIT if draw.rarely(5) else Delivery.EARLIEST_SAFE_BOUNDARY,
        slot=Slot.EXCLUSIVE if draw.rarely(4) else Slot.JOIN,
        merge_key="group" if draw.rarely(4) else "never",
        delay_ms=draw.pick((0, 0, 3, 50)),
        max_attempts=draw.pick((None, 1, 2)),
    )


def draw_ref(draw: Draw, attachment_id: str, byte_len: int) -> AttachmentRef:
    """What a session says of bytes; rarely with a length that is not theirs."""
    return AttachmentRef(
        attachment_id=attachment_id,
        byte_len=byte_len + draw.rarely(8),
        media_type=draw.pick(("image/png", "text/plain; x=ü")),
        label=draw.pick((None, "label")),
        width=draw.pick((None, 7)),
    )


def draw_completion(draw: Draw, claims: Sequence[Claim]) -> Claim | Completion:
    """A claim of this history, whole, in part, or with a forged token."""
    claim = draw.recent(claims)
    how = draw.below(6)
    if how < 4 or not claim.batches:
        return claim
    held = [batch.batch_id for batch in claim.batches]
    part = claim.completion(held[: 1 + draw.below(len(held))])
    if how == 4:
        return part
    if draw.below(2):
        return structs.replace(part, fence=part.fence + 1)
    return Completion(
        session_id=part.session_id, claim_id=part.claim_id, token="forged", fence=part.fence, batch_ids=part.batch_ids
    )


def draw_commit(
    draw: Draw,
    session_id: str,
    state: ModelSession | None,
    claims: Sequence[Claim],
    others: Sequence[str],
    attachments: Sequence[str],
    step: int,
) -> Commit:
    """A commit with every field now and then, mostly one that can succeed."""
    revision = 0 if state is None else state.revision
    kind = draw.below(8)
    blind = kind < 3
    expected = None if blind else revision
    if draw.rarely(10):
        expected = draw.pick((revision + 1, max(0, revision - 1), revision + 1, None))
    own = [claim for claim in claims if claim.session_id == session_id]
    state_fields = {} if blind and not draw.rarely(30) else _draw_state(draw)
    return Commit(
        expected_revision=expected,
        turn_id=draw.pick((None, f"t{step}", *TURNS)),
        graph=_draw_graph(draw, kind, state),
        usage=[_draw_usage(draw) for _ in range(draw.below(3))] if draw.rarely(3) else (),
        completes=[draw_completion(draw, own if own and not draw.rarely(12) else claims)] if own and draw.rarely(2) else (),
        enqueues=[draw_batch(draw, draw.pick((None, *others))) for _ in range(1 + draw.below(2))] if draw.rarely(4) else (),
        attachments=draw.some(attachments, 2) if attachments and draw.rarely(3) else (),
        session_id=draw.pick((session_id, session_id, others[0])) if draw.rarely(8) else None,
        **state_fields,
    )


def draw_state_commit(draw: Draw, state: ModelSession) -> Commit:
    """A commit about everything but the graph: checkpoint, config, frames and usage."""
    return Commit(
        expected_revision=state.revision,
        checkpoint={draw.pick(COMPONENTS): draw.pick((*STATES[2:], *STATES, None)) for _ in range(1 + draw.below(2))},
        config=draw.pick(BODIES) if draw.rarely(2) else UNSET,
        frames=[_draw_frame(draw, frame_id) for frame_id in draw.pick(FRAME_ORDERS)],
        current_frame_id=draw.pick((None, *FRAMES)) if draw.rarely(3) else UNSET,
        usage=[_draw_usage(draw) for _ in range(1 + draw.below(2))],
    )


def draw_branch(draw: Draw, state: ModelSession) -> Append:
    """A few new nodes under one that is there."""
    live = [node_id for node_id, node in state.graph.nodes.items() if node.died is None]
    first = NodeDraft(body=draw.pick(BODIES), parent_id=draw.pick((*live, None)))
    return Append([first, *(NodeDraft(body="more") for _ in range(draw.below(3)))])


def _draw_state(draw: Draw) -> dict[str, Any]:
    """Checkpoint, config and frames: what only a commit that knows the revision may set."""
    fields: dict[str, Any] = {}
    if draw.rarely(2):
        fields["checkpoint"] = {draw.pick(COMPONENTS): draw.pick((*STATES, None)) for _ in range(1 + draw.below(2))}
    if draw.rarely(5):
        fields["config"] = draw.pick(BODIES)
    if draw.rarely(5):
        fields["frames"] = [_draw_frame(draw, frame_id) for frame_id in draw.some(FRAMES, 3)]
    if draw.rarely(6):
        fields["current_frame_id"] = draw.pick((None, *FRAMES))
    return fields


def _draw_frame(draw: Draw, frame_id: str) -> Frame:
    return Frame(
        frame_id=frame_id,
        body=draw.pick(BODIES[:3]),
        state=draw.pick((None, b"", b"state")),
        created_ms=draw.pick((None, None, 5)),
    )


def _draw_usage(draw: Draw) -> Usage:
    return Usage(
        source=draw.pick(("chat", "tool")),
        model=draw.pick(("m1", "m2")),
        input=draw.pick(COUNTS[:4]) if not draw.rarely(8) else COUNT_MAX,
        output=draw.pick(COUNTS[:3]),
        cached_input=draw.pick(COUNTS[:2]),
    )


def _draw_graph(draw: Draw, kind: int, state: ModelSession | None) -> Append | Replace | Unchanged:
    known = [] if state is None else list(state.graph.nodes)
    leaf = draw.pick((None, NODES[0], *known, *known)) if draw.rarely(6) else UNSET
    if kind < 5:
        return Append([_draw_node(draw, known) for _ in range(draw.below(4))], leaf)
    if kind < 6:
        return Unchanged(leaf)
    kept = [] if state is None else [_again(state, i) for i in known if not draw.rarely(3)]
    if kept and draw.rarely(3):
        kept.append(kept.pop(draw.below(len(kept))))
    given = {draft.node_id for draft in kept}
    fresh = [draft for draft in (_draw_node(draw, known) for _ in range(draw.below(3))) if draft.node_id not in given]
    return Replace([*kept, *fresh], leaf)


def _again(state: ModelSession, node_id: str) -> NodeDraft:
    draft = state.graph.nodes[node_id].draft
    return NodeDraft(node_id=node_id, body=draft.body, kind=draft.kind, frame_id=draft.frame_id, caused_by=draft.caused_by)


def _draw_node(draw: Draw, known: Sequence[str]) -> NodeDraft:
    """Mostly a new node on the one before; sometimes one seen before, sometimes with other content or another parent."""
    node_id = draw.pick((None, *NODES))
    parent_id: str | None | UnsetType = UNSET
    if draw.rarely(4):
        parent_id = draw.pick((None, *known, *known, *NODES[:3]))
    number = 0 if node_id is None else NODES.index(node_id)
    other = draw.rarely(6)
    return NodeDraft(
        node_id=node_id,
        parent_id=parent_id,
        kind="event" if number % 3 == 2 else "message",
        body=draw.pick(BODIES) if other else BODIES[number],
        frame_id=FRAMES[0] if number % 4 == 3 else None,
        caused_by=CAUSES[number % 3],
    )
