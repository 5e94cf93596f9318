"""From a caller's values to rows: everything is walked, encoded, hashed and measured here, before any SQL."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from lash_store.encode import Encoder, canonical, derived_node_id, digest, mint
from lash_store.errors import InvalidArgument, LimitExceeded, NodeConflict, ReplayConflict, SessionMismatch, Unstorable
from lash_store.model.commit import Commit
from lash_store.model.graph import Append, GraphChange, NodeDraft, Replace, Unchanged
from lash_store.model.queue import BatchDraft, Claim, Completion, Delivery, Slot
from lash_store.model.session import Frame
from lash_store.model.usage import Usage
from lash_store.ops.checkpoints import PreparedComponent
from lash_store.ops.frames import PreparedFrame
from lash_store.ops.graph import PreparedNode
from lash_store.ops.queue import PreparedBatch


class PreparedCommit(Struct, frozen=True, kw_only=True):
    """A commit after the walk. `intent` names its content; equal intents under one turn id are one turn.

    A commit without a turn id gets a minted one: when its answer is lost, the caller learns the id and can ask again.
    """

    session_id: str
    incarnation: int | None
    expected_revision: int | None
    turn_id: str
    repeatable: bool
    graph: str
    nodes: tuple[PreparedNode, ...]
    leaf: str | None | UnsetType
    checkpoint: Mapping[str, bytes | None]
    digests: Mapping[str, bytes]  # sha256 of the components that are there
    components: tuple[PreparedComponent, ...]
    config: str | UnsetType
    frames: tuple[PreparedFrame, ...] | UnsetType
    current_frame_id: str | None | UnsetType
    usage: tuple[Usage, ...]
    completes: tuple[Completion, ...]
    enqueues: tuple[PreparedBatch, ...]
    attachments: tuple[str, ...]
    intent: bytes


def prepare_commit(session_id: str, commit: Commit, encoder: Encoder, incarnation: int | None) -> PreparedCommit:
    """Refuse what cannot be stored or makes no sense; encode the rest. The checkpoint is compressed by the caller."""
    _require(commit, Commit, "commit")
    session_id = encoder.id(session_id, "session_id")
    if commit.session_id is not None and commit.session_id != session_id:
        raise SessionMismatch(bound=session_id, attempted=encoder.id(commit.session_id, "commit.session_id"))
    turn_id = encoder.optional_id(commit.turn_id, "commit.turn_id")
    drafts = _drafts(commit.graph, encoder)
    checkpoint = _checkpoint(commit.checkpoint, encoder)
    _check_blind(commit)
    prepared = PreparedCommit(
        session_id=session_id,
        incarnation=incarnation,
        expected_revision=_optional_counter(commit.expected_revision, encoder, "commit.expected_revision"),
        turn_id=mint("t:") if turn_id is None else turn_id,
        repeatable=turn_id is not None,
        graph=_graph_kind(commit.graph),
        nodes=_nodes(session_id, turn_id, drafts, encoder),
        leaf=_optional_or_unset(commit.graph.leaf, encoder, "commit.graph.leaf"),
        checkpoint=checkpoint,
        digests={name: hashlib.sha256(data).digest() for name, data in checkpoint.items() if data is not None},
        components=(),
        config=UNSET if commit.config is UNSET else encoder.json(commit.config, "commit.config"),
        frames=UNSET if isinstance(commit.frames, UnsetType) else _frames(commit.frames, encoder),
        current_frame_id=_optional_or_unset(commit.current_frame_id, encoder, "commit.current_frame_id"),
        usage=tuple(
            _usage(entry, encoder, f"commit.usage[{i}]") for i, entry in enumerate(encoder.items(commit.usage, "commit.usage"))
        ),
        completes=_completes(session_id, commit.completes, encoder),
        enqueues=_enqueues(session_id, commit.enqueues, encoder),
        attachments=_attachments(commit.attachments, encoder),
        intent=b"",
    )
    _check_budget(prepared, encoder)
    return _with_intent(prepared, commit, drafts)


def _require(value: object, kind: type, path: str) -> None:
    if not isinstance(value, kind):
        raise Unstorable(path, f"must be a {kind.__name__}, got {type(value).__name__}")


def _check_blind(commit: Commit) -> None:
    """Without an expected revision a commit may only add: it must not overwrite what it has not seen."""
    if commit.expected_revision is not None:
        return
    overwrites = {
        "checkpoint": bool(commit.checkpoint),
        "config": commit.config is not UNSET,
        "frames": not isinstance(commit.frames, UnsetType),
        "current_frame_id": not isinstance(commit.current_frame_id, UnsetType),
    }
    for name, given in overwrites.items():
        if given:
            raise InvalidArgument("commit.expected_revision", f"must be the revision you loaded, because the commit sets {name}")
    if not isinstance(commit.graph, Append):
        raise InvalidArgument("commit.expected_revision", "must be the revision you loaded, unless the graph change is Append")


def _drafts(graph: object, encoder: Encoder) -> Sequence[NodeDraft]:
    if not isinstance(graph, Append | Replace | Unchanged):
        raise Unstorable("commit.graph", f"must be Append, Replace or Unchanged, got {type(graph).__name__}")
    return () if isinstance(graph, Unchanged) else encoder.items(graph.nodes, "commit.graph.nodes")


def _graph_kind(graph: GraphChange) -> str:
    return {Append: "append", Replace: "replace", Unchanged: "unchanged"}[type(graph)]


def _optional_counter(value: int | None, encoder: Encoder, path: str) -> int | None:
    return None if value is None else encoder.counter(value, path)


def _optional_or_unset(value: str | None | UnsetType, encoder: Encoder, path: str) -> str | None | UnsetType:
    return UNSET if isinstance(value, UnsetType) else encoder.optional_id(value, path)


def _nodes(session_id: str, turn_id: str | None, drafts: Sequence[NodeDraft], encoder: Encoder) -> tuple[PreparedNode, ...]:
    nodes: list[PreparedNode] = []
    seen: set[str] = set()
    for ordinal, draft in enumerate(drafts):
        path = f"commit.graph.nodes[{ordinal}]"
        _require(draft, NodeDraft, path)
        node = _node(draft, _node_id(session_id, turn_id, ordinal, draft, encoder, path), encoder, path)
        if node.node_id in seen:
            raise NodeConflict(session_id, node_id=node.node_id, why="is given twice in one commit")
        seen.add(node.node_id)
        nodes.append(node)
    return tuple(nodes)


def _node_id(session_id: str, turn_id: str | None, ordinal: int, draft: NodeDraft, encoder: Encoder, path: str) -> str:
    if draft.node_id is not None:
        return encoder.id(draft.node_id, f"{path}.node_id")
    return mint("n:") if turn_id is None else derived_node_id(session_id, turn_id, ordinal)


def _node(draft: NodeDraft, node_id: str, encoder: Encoder, path: str) -> PreparedNode:
    return PreparedNode(
        node_id=node_id,
        parent_id=_optional_or_unset(draft.parent_id, encoder, f"{path}.parent_id"),
        kind=encoder.id(draft.kind, f"{path}.kind"),
        body=encoder.json(draft.body, f"{path}.body"),
        frame_id=encoder.optional_id(draft.frame_id, f"{path}.frame_id"),
        caused_by=None if draft.caused_by is None else encoder.json(draft.caused_by, f"{path}.caused_by"),
    )


def _frames(frames: Sequence[Frame], encoder: Encoder) -> tuple[PreparedFrame, ...]:
    prepared: list[PreparedFrame] = []
    for i, frame in enumerate(encoder.items(frames, "commit.frames")):
        path = f"commit.frames[{i}]"
        _require(frame, Frame, path)
        frame_id = encoder.id(frame.frame_id, f"{path}.frame_id")
        if any(other.frame_id == frame_id for other in prepared):
            raise InvalidArgument(f"{path}.frame_id", f"frame {frame_id!r} is given twice")
        prepared.append(
            PreparedFrame(
                frame_id=frame_id,
                body=encoder.json(frame.body, f"{path}.body"),
                state=None if frame.state is None else encoder.data(frame.state, f"{path}.state", limit="component_bytes"),
                created_ms=_optional_counter(frame.created_ms, encoder, f"{path}.created_ms"),
            )
        )
    return tuple(prepared)


def _usage(entry: Usage, encoder: Encoder, path: str) -> Usage:
    _require(entry, Usage, path)
    return Usage(
        source=encoder.id(entry.source, f"{path}.source"),
        model=encoder.id(entry.model, f"{path}.model"),
        input=encoder.counter(entry.input, f"{path}.input"),
        output=encoder.counter(entry.output, f"{path}.output"),
        cached_input=encoder.counter(entry.cached_input, f"{path}.cached_input"),
        reasoning=encoder.counter(entry.reasoning, f"{path}.reasoning"),
    )


def _completes(session_id: str, claims: Sequence[Claim | Completion], encoder: Encoder) -> tuple[Completion, ...]:
    completions: list[Completion] = []
    seen: set[str] = set()
    for i, claim in enumerate(encoder.items(claims, "commit.completes")):
        completion = prepare_completion(claim, encoder, f"commit.completes[{i}]")
        if completion.session_id != session_id:
            raise SessionMismatch(bound=session_id, attempted=completion.session_id)
        for batch_id in completion.batch_ids:
            if batch_id in seen:
                raise InvalidArgument(f"commit.completes[{i}]", f"batch {batch_id!r} is completed twice")
            seen.add(batch_id)
        completions.append(completion)
    return tuple(completions)


def prepare_completion(claim: object, encoder: Encoder, path: str) -> Completion:
    """A claim, whole or in part, as the proof of ownership it is."""
    if not isinstance(claim, Claim | Completion):
        raise Unstorable(path, f"must be a Claim or a Completion, got {type(claim).__name__}")
    completion = claim.completion() if isinstance(claim, Claim) else claim
    return Completion(
        session_id=encoder.id(completion.session_id, f"{path}.session_id"),
        claim_id=encoder.id(completion.claim_id, f"{path}.claim_id"),
        token=encoder.id(completion.token, f"{path}.token"),
        fence=encoder.counter(completion.fence, f"{path}.fence"),
        batch_ids=tuple(
            encoder.id(batch_id, f"{path}.batch_ids[{i}]")
            for i, batch_id in enumerate(encoder.items(completion.batch_ids, f"{path}.batch_ids"))
        ),
    )


def _enqueues(session_id: str, drafts: Sequence[BatchDraft], encoder: Encoder) -> tuple[PreparedBatch, ...]:
    batches: dict[tuple[str, str], PreparedBatch] = {}
    for i, draft in enumerate(encoder.items(drafts, "commit.enqueues")):
        path = f"commit.enqueues[{i}]"
        _require(draft, BatchDraft, path)
        batch = prepare_batch(session_id if draft.session_id is None else draft.session_id, draft, encoder, path)
        before = batches.setdefault((batch.session_id, batch.key), batch)
        if before.intent != batch.intent:
            raise ReplayConflict("source key", key=batch.key, owner=batch.session_id)
    return tuple(batches.values())


def prepare_batch(session_id: str, draft: BatchDraft, encoder: Encoder, path: str) -> PreparedBatch:
    """Work for a session, walked and encoded; its intent is the hash of what it says and how it wants to be delivered."""
    batch_id = mint("qwb:") if draft.batch_id is None else encoder.id(draft.batch_id, f"{path}.batch_id")
    source_key = encoder.optional_id(draft.source_key, f"{path}.source_key")
    if source_key is not None and source_key.startswith("qwb:"):
        raise InvalidArgument(f"{path}.source_key", "must not start with 'qwb:', which names batches")
    if not batch_id.startswith("qwb:"):
        raise InvalidArgument(f"{path}.batch_id", "must start with 'qwb:'")
    payloads = list(encoder.items(draft.payloads, f"{path}.payloads"))
    if len(payloads) > encoder.limits.batch_payloads:
        maximum = encoder.limits.batch_payloads
        raise LimitExceeded("batch_payloads", maximum=maximum, actual=len(payloads), path=f"{path}.payloads")
    max_attempts = draft.max_attempts
    delay_ms = encoder.duration(draft.delay_ms, f"{path}.delay_ms")
    delivery = _choice(draft.delivery, Delivery, f"{path}.delivery")
    slot = _choice(draft.slot, Slot, f"{path}.slot")
    merge_key = encoder.id(draft.merge_key, f"{path}.merge_key")
    text = encoder.json(payloads, f"{path}.payloads")
    return PreparedBatch(
        session_id=encoder.id(session_id, f"{path}.session_id"),
        batch_id=batch_id,
        source_key=source_key,
        delivery=delivery,
        slot=slot,
        merge_key=merge_key,
        payloads=text,
        delay_ms=delay_ms,
        max_attempts=None if max_attempts is None else encoder.counter(max_attempts, f"{path}.max_attempts", minimum=1),
        intent=digest("batch/1", delivery, slot, merge_key, delay_ms, max_attempts, canonical(payloads)),
    )


def _choice(value: object, kind: type[Delivery | Slot], path: str) -> str:
    if not isinstance(value, str) or value not in kind._value2member_map_:
        raise InvalidArgument(path, f"must be one of {', '.join(kind)}")
    return str(kind(value))


def _attachments(ids: Sequence[str], encoder: Encoder) -> tuple[str, ...]:
    given = [encoder.id(value, f"commit.attachments[{i}]") for i, value in enumerate(encoder.items(ids, "commit.attachments"))]
    return tuple(sorted(set(given)))


def _checkpoint(checkpoint: object, encoder: Encoder) -> dict[str, bytes | None]:
    """Bytes of our own: what is hashed here is what is compressed and stored later."""
    if not isinstance(checkpoint, Mapping):
        raise Unstorable("commit.checkpoint", f"must be a mapping of names to bytes, got {type(checkpoint).__name__}")
    kept: dict[str, bytes | None] = {}
    for name, data in checkpoint.items():
        path = f"commit.checkpoint[{encoder.id(name, 'commit.checkpoint key')!r}]"
        kept[name] = None if data is None else encoder.data(data, path, limit="component_bytes")
    return kept


def _check_budget(prepared: PreparedCommit, encoder: Encoder) -> None:
    """One commit is one transaction: its rows and bytes are bounded, and a breach says what took the room."""
    frames = () if isinstance(prepared.frames, UnsetType) else prepared.frames
    bytes_by_part = {
        "nodes": sum([_bytes(node.body) + _bytes(node.caused_by) for node in prepared.nodes]),
        "config": 0 if isinstance(prepared.config, UnsetType) else _bytes(prepared.config),
        "checkpoint": sum([len(data or b"") for data in prepared.checkpoint.values()]),
        "frames": sum([_bytes(frame.body) + len(frame.state or b"") for frame in frames]),
        "enqueues": sum([_bytes(batch.payloads) for batch in prepared.enqueues]),
    }
    rows_by_part = {
        "nodes": len(prepared.nodes),
        "checkpoint": len(prepared.checkpoint),
        "frames": len(frames),
        "usage": len(prepared.usage),
        "completes": sum([len(completion.batch_ids) for completion in prepared.completes]),
        "enqueues": len(prepared.enqueues),
        "attachments": len(prepared.attachments),
    }
    for limit, parts in (("commit_bytes", bytes_by_part), ("commit_rows", rows_by_part)):
        maximum: int = getattr(encoder.limits, limit)
        if sum(parts.values()) > maximum:
            itemised = ", ".join(f"{name} {count}" for name, count in parts.items() if count)
            raise LimitExceeded(limit, maximum=maximum, actual=f"{sum(parts.values())} ({itemised})", path="commit")


def _bytes(text: str | None) -> int:
    if text is None:
        return 0
    return len(text) if text.isascii() else len(text.encode())


def _with_intent(prepared: PreparedCommit, commit: Commit, drafts: Sequence[NodeDraft]) -> PreparedCommit:
    return replace(prepared, intent=intent_of(prepared, commit, drafts))


def intent_of(prepared: PreparedCommit, commit: Commit, drafts: Sequence[NodeDraft]) -> bytes:
    """The hash of what a turn says: its content, without revisions, claims, clocks and minted ids. Golden vectors pin it."""
    ordinals = {node.node_id: i for i, node in enumerate(prepared.nodes)}
    frames = (
        None
        if isinstance(commit.frames, UnsetType)
        else [
            [frame.frame_id, frame.body, None if frame.state is None else hashlib.sha256(frame.state).hexdigest()]
            for frame in commit.frames
        ]
    )
    projection = [
        prepared.graph,
        [[draft.kind, draft.body, draft.frame_id, draft.caused_by, _shape(draft.parent_id, ordinals)] for draft in drafts],
        _shape(prepared.leaf, ordinals),
        sorted((name, prepared.digests[name].hex() if name in prepared.digests else None) for name in prepared.checkpoint),
        ["unset"] if commit.config is UNSET else ["set", commit.config],
        frames,
        ["unset"] if isinstance(commit.current_frame_id, UnsetType) else ["set", commit.current_frame_id],
        [[e.source, e.model, e.input, e.output, e.cached_input, e.reasoning] for e in prepared.usage],
        sorted([batch.session_id, batch.source_key or "", batch.intent.hex()] for batch in prepared.enqueues),
        list(prepared.attachments),
    ]
    return digest("turn/1", canonical(projection))


def _shape(node_id: str | None | UnsetType, ordinals: dict[str, int]) -> Any:
    """How a node is named: not at all, as none, by its place in the commit, or by a stored id."""
    if isinstance(node_id, UnsetType):
        return ["unset"]
    if node_id is None:
        return ["none"]
    return ["ordinal", ordinals[node_id]] if node_id in ordinals else ["id", node_id]
