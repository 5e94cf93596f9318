"""Stores and byte stores that break one promise each, and the law that names it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from lash_store.blobs.protocol import checked_id, checked_source
from lash_store.blobs.spool import Spool
from lash_store.errors import ClaimLost, LeaseLost, RevisionConflict
from lash_store.model.queue import Claim
from lash_store.testing.example import ShelfBytes

Break = Callable[[Any], None]  # changes a store that has just been opened


class Undone(Exception):
    """Rolls a transaction back."""


def loses_a_turn(store: Any) -> None:
    """The receipt is returned, and nothing of it stays."""

    async def commit(session_id: str, commit: Any) -> Any:
        receipts: list[Any] = []
        with suppress(Undone):
            async with store.transaction() as tx:
                receipts.append(await tx.sessions.commit(session_id, commit))
                raise Undone
        return receipts[0]

    store.sessions.commit = commit


def accepts_a_stale_revision(store: Any) -> None:
    """The expected revision is not looked at."""
    commit = store.sessions.commit

    async def careless(session_id: str, wanted: Any) -> Any:
        try:
            return await commit(session_id, wanted)
        except RevisionConflict as conflict:
            return await commit(session_id, replace(wanted, expected_revision=conflict.actual))

    store.sessions.commit = careless


def forgets_turn_ids(store: Any) -> None:
    """A retry is a turn of its own."""
    commit = store.sessions.commit

    async def forgetful(session_id: str, wanted: Any) -> Any:
        new = replace(wanted, turn_id=None)
        try:
            return await commit(session_id, new)
        except RevisionConflict as conflict:
            return await commit(session_id, replace(new, expected_revision=conflict.actual))

    store.sessions.commit = forgetful


def doubles_a_batch(store: Any) -> None:
    """A source key holds nothing back."""
    enqueue = store.queue.enqueue

    async def eager(session_id: str, payloads: Any, *, source_key: str | None = None, **options: Any) -> Any:
        return await enqueue(session_id, payloads, **options)

    store.queue.enqueue = eager


def forgets_the_fence(store: Any) -> None:
    """A worker whose claim is lost is told that it settled."""
    settle = store.queue.settle

    async def trusting(claim: Any) -> int:
        try:
            return await settle(claim)
        except ClaimLost:
            return len(claim.batches)

    store.queue.settle = trusting


def renews_any_lease(store: Any) -> None:
    """A lease that is lost is renewed in words."""
    renew = store.processes.renew

    async def polite(lease: Any, **options: Any) -> Any:
        try:
            return await renew(lease, **options)
        except LeaseLost:
            return lease

    store.processes.renew = polite


def wakes_late(store: Any) -> None:
    """The event is in the log, and its wake comes only with the next one."""
    append = store.processes.append

    async def lazy(process_id: str, event_type: str, payload: Any = None, **options: Any) -> Any:
        appended = await append(process_id, event_type, payload, **options)
        wake = appended.event.wake
        if wake is not None and wake.batch_id is not None:
            await store.queue.cancel(wake.target.session_id, wake.batch_id)
        return appended

    store.processes.append = lazy


def hands_out_held_work(store: Any) -> None:
    """Whoever finds nothing gets what another one works on."""
    claim = store.queue.claim

    async def generous(session_id: str, owner: str, **options: Any) -> Any:
        found = await claim(session_id, owner, **options)
        batches = (await store.queue.list(session_id)).batches
        if found is not None or not batches:
            return found
        return Claim(
            session_id=session_id,
            claim_id="stolen",
            owner=owner,
            token="stolen",
            fence=batches[0].fence,
            claimed_ms=0,
            expires_ms=0,
            batches=batches,
        )

    store.queue.claim = generous


def changes_bytes(store: Any) -> None:
    """An attachment comes back with one bit turned."""
    get = store.attachments.get

    async def careless(session_id: str, attachment_id: str) -> bytes:
        data = await get(session_id, attachment_id)
        return data and bytes([data[0] ^ 1]) + data[1:]

    store.attachments.get = careless


def answers_a_wait_at_once(store: Any) -> None:
    """Whoever waits for work is told that there is none."""

    async def hasty(session_id: str | None = None, *, timeout_ms: int) -> bool:
        return False

    store.queue.wait_ready = hasty


def keeps_half_of_a_transaction(store: Any) -> None:
    """An error leaves what was done before it."""

    class Half:
        async def __aenter__(self) -> Any:
            return store

        async def __aexit__(self, *_: object) -> None:
            return None

    def transaction(**_: Any) -> Half:
        return Half()

    store.transaction = transaction


STORES: dict[str, tuple[Break, str]] = {
    "loses a turn": (loses_a_turn, "sessions.everything_survives_a_reopen"),
    "accepts a stale revision": (accepts_a_stale_revision, "commits.a_stale_revision_is_refused_and_changes_nothing"),
    "forgets turn ids": (forgets_turn_ids, "commits.an_identical_retry_returns_the_first_receipt"),
    "doubles a batch": (doubles_a_batch, "queue.a_source_key_enqueues_once"),
    "forgets the fence": (forgets_the_fence, "claims.a_paused_worker_cannot_settle_after_its_work_was_reclaimed"),
    "renews any lease": (renews_any_lease, "leases.every_part_of_a_lease_is_checked"),
    "wakes late": (wakes_late, "wakes.an_event_that_wakes_is_in_the_inbox_when_it_is_in_the_log"),
    "hands out held work": (hands_out_held_work, "claims.held_work_is_not_handed_out_and_its_owner_may_renew"),
    "changes bytes": (changes_bytes, "attachments.bytes_come_back_as_they_went_in"),
    "answers a wait at once": (answers_a_wait_at_once, "waiting.new_work_wakes_who_waits_for_its_session_and_for_any"),
    "keeps half of a transaction": (keeps_half_of_a_transaction, "transactions.an_exception_rolls_everything_back"),
}


# --- bytes ----------------------------------------------------------------------------------------------------------------


class Broken(ShelfBytes):
    """A shelf whose dictionary the subclasses reach."""

    def __init__(self, shelf: dict[str, bytes]) -> None:
        super().__init__(shelf)
        self.shelf = shelf


class TurnsABit(Broken):
    """What is kept is not what came."""

    async def put(self, attachment_id: str, source: Spool) -> None:
        await super().put(attachment_id, source)
        data = self.shelf[attachment_id]
        self.shelf[attachment_id] = data[:-1] + bytes([data[-1] ^ 1]) if data else data


class ReadsAllAtOnce(Broken):
    """One chunk, however long."""

    async def read(self, attachment_id: str) -> AsyncIterator[bytes]:
        yield b"".join([chunk async for chunk in super().read(attachment_id)])


class KeepsToItself(Broken):
    """Each handle has a shelf of its own."""

    def __init__(self, shelf: dict[str, bytes]) -> None:
        super().__init__({})


class TakesAnyDigest(Broken):
    """Bytes are kept under whatever name they come with."""

    async def put(self, attachment_id: str, source: Spool) -> None:
        self.shelf[checked_id(attachment_id)] = b"".join(source.chunks())


class TakesAnyName(Broken):
    """A name is not looked at before it is used."""

    async def delete(self, attachment_id: str) -> None:
        self.shelf.pop(attachment_id, None)


class MissingIsEmpty(Broken):
    """Nothing there, nothing read."""

    async def read(self, attachment_id: str) -> AsyncIterator[bytes]:
        if checked_id(attachment_id) in self.shelf:
            async for chunk in super().read(attachment_id):
                yield chunk


class IgnoresLength(Broken):
    """A name is there, or it is not."""

    async def exists(self, attachment_id: str, byte_len: int) -> bool:
        return checked_id(attachment_id) in self.shelf


class Appends(Broken):
    """Putting again doubles."""

    async def put(self, attachment_id: str, source: Spool) -> None:
        before = self.shelf.get(attachment_id, b"")
        await super().put(attachment_id, source)
        self.shelf[attachment_id] = before + self.shelf[attachment_id]


class TrustsWhatIsThere(Broken):
    """A name that exists is not written again."""

    async def put(self, attachment_id: str, source: Spool) -> None:
        if attachment_id not in self.shelf:
            await super().put(attachment_id, source)


class DeletesAll(Broken):
    """One name takes the others with it."""

    async def delete(self, attachment_id: str) -> None:
        checked_id(attachment_id)
        self.shelf.clear()


class WritesInPieces(Broken):
    """Two writers at once write into each other."""

    async def put(self, attachment_id: str, source: Spool) -> None:
        checked_source(attachment_id, source)
        self.shelf[attachment_id] = b""
        for chunk in source.chunks():
            await asyncio.sleep(0)
            self.shelf[attachment_id] += chunk


class HeldByReaders(Broken):
    """What a reader has begun and not ended cannot be deleted, and nobody says so."""

    def __init__(self, shelf: dict[str, bytes]) -> None:
        super().__init__(shelf)
        self.begun = 0

    async def read(self, attachment_id: str) -> AsyncIterator[bytes]:
        self.begun += 1
        async for chunk in super().read(attachment_id):
            yield chunk
        self.begun -= 1

    async def delete(self, attachment_id: str) -> None:
        if not self.begun:
            await super().delete(attachment_id)


class SaysNothingOfDurability(Broken):
    """`durable` is a word."""

    durable = "perhaps"  # type: ignore[assignment]  # that is what is broken


BYTES: dict[type[Broken], str] = {
    TurnsABit: "byte_stores.bytes_come_back_as_they_went_in",
    ReadsAllAtOnce: "byte_stores.bytes_come_back_as_they_went_in",
    KeepsToItself: "byte_stores.bytes_are_there_for_another_handle",
    TakesAnyDigest: "byte_stores.bytes_are_kept_only_under_their_own_digest",
    TakesAnyName: "byte_stores.only_64_hex_digits_are_a_name",
    MissingIsEmpty: "byte_stores.bytes_nobody_put_are_not_found",
    IgnoresLength: "byte_stores.bytes_of_another_length_do_not_exist",
    Appends: "byte_stores.putting_again_changes_nothing",
    TrustsWhatIsThere: "byte_stores.damaged_bytes_are_noticed_and_healed_by_a_put",
    DeletesAll: "byte_stores.deleting_removes_the_named_bytes_and_no_others",
    WritesInPieces: "byte_stores.many_writers_of_the_same_bytes_agree",
    HeldByReaders: "byte_stores.a_reader_that_stops_early_holds_nothing",
    SaysNothingOfDurability: "byte_stores.a_store_keeps_its_attachments_there",
}
