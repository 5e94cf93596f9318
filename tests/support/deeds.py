"""What processes that get killed do to a store: calls described so completely that anybody can make them again."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from lash_store import Append, BatchDraft, Claim, Commit, NodeDraft, Refused, Store, Usage

Kind = Literal["append", "checkpoint", "finish", "enqueue", "claim", "renew", "abandon", "settle"]
TURNS = ("append", "checkpoint", "finish")
COMPONENT = "state"
LEASE_MS = 20  # short, so that claims of the living pass too and their zombies are fenced


class Deed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call. `key` is its turn id, source key or token: the same key is the same call."""

    key: str
    kind: Kind
    session_id: str
    expected_revision: int | None = None
    claim: Claim | None = None

    @property
    def settles(self) -> tuple[str, ...]:
        """The batches this call would settle."""
        return batch_ids(self.claim) if self.kind in ("settle", "finish") else ()

    @property
    def bodies(self) -> list[dict[str, object]]:
        """The nodes of a turn; how many is part of its identity."""
        return [{"turn": self.key, "n": n} for n in range(1 + zlib.crc32(self.key.encode()) % 3)]

    @property
    def state(self) -> bytes:
        """The checkpoint of a turn."""
        return f"{self.key} ".encode() * 40


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the store said to a deed: a result, or the name of the refusal."""

    key: str
    refused: str | None = None
    revision: int | None = None
    replayed: bool = False
    batch_ids: tuple[str, ...] = ()
    claim: Claim | None = None


def batch_ids(claim: Claim | None) -> tuple[str, ...]:
    """The batches a claim holds."""
    return () if claim is None else tuple(batch.batch_id for batch in claim.batches)


def do(store: Store, deed: Deed) -> Answer:
    """Make the call. Refusals are answers; Unavailable and everything else is raised."""
    try:
        return _CALLS[deed.kind](store, deed)
    except Refused as refusal:
        return Answer(key=deed.key, refused=type(refusal).__name__)


def _turn(store: Store, deed: Deed) -> Answer:
    commit = Commit(
        expected_revision=deed.expected_revision,
        turn_id=deed.key,
        graph=Append([NodeDraft(body=body) for body in deed.bodies]),
        checkpoint={COMPONENT: deed.state} if deed.kind == "checkpoint" else {},
        usage=[Usage(source="kills", model="m", input=1)],
        completes=[deed.claim] if deed.claim is not None else [],
        enqueues=[BatchDraft(payloads=[deed.key], source_key=deed.key)] if deed.kind == "append" else [],
    )
    receipt = store.sessions.commit(deed.session_id, commit)
    return Answer(key=deed.key, revision=receipt.revision, replayed=receipt.replayed, batch_ids=receipt.batch_ids)


def _enqueue(store: Store, deed: Deed) -> Answer:
    batch = store.queue.enqueue(deed.session_id, [deed.key], source_key=deed.key)
    return Answer(key=deed.key, batch_ids=(batch.batch_id,))


def _claim(store: Store, deed: Deed) -> Answer:
    claim = store.queue.claim(deed.session_id, "worker", lease_ms=LEASE_MS, max_batches=2, token=deed.key)
    return Answer(key=deed.key, claim=claim)


def _renew(store: Store, deed: Deed) -> Answer:
    return Answer(key=deed.key, claim=store.queue.renew(_held(deed), lease_ms=LEASE_MS))


def _abandon(store: Store, deed: Deed) -> Answer:
    store.queue.abandon(_held(deed))
    return Answer(key=deed.key)


def _settle(store: Store, deed: Deed) -> Answer:
    store.queue.settle(_held(deed))
    return Answer(key=deed.key)


def _held(deed: Deed) -> Claim:
    assert deed.claim is not None, "this deed needs a claim"
    return deed.claim


_CALLS: dict[Kind, Callable[[Store, Deed], Answer]] = {
    "append": _turn,
    "checkpoint": _turn,
    "finish": _turn,
    "enqueue": _enqueue,
    "claim": _claim,
    "renew": _renew,
    "abandon": _abandon,
    "settle": _settle,
}
