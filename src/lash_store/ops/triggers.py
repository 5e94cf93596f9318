"""Subscriptions: who wants what to run when a source occurs. They are found, cancelled and deleted by their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from lash_store.encode import canonical, check, decode, digest
from lash_store.errors import Corrupt, NotFound, RegistrationConflict
from lash_store.model.process import Scope
from lash_store.model.trigger import Subscription, SubscriptionPage
from lash_store.ops import schedules
from lash_store.ops.artifacts import hold_environments
from lash_store.ops.drafts import HOST, Content, PreparedSubscription
from lash_store.ops.heads import PURGING, live, lock_sessions
from lash_store.ops.statement import Op, database_now, execute, fetch, fetch_one

COUNTER = "subscriptions"


class StoredSubscription(Struct, frozen=True):
    """A row as it is stored, not yet verified."""

    subscription_id: str
    number: int
    registrant_session_id: str
    registrant_frame_id: str
    registration_key: str
    name: str | None
    source_type: str
    source_key: str
    env_ref: str | None
    enabled: int
    body: str
    intent: bytes
    digest: bytes
    created_ms: int
    updated_ms: int


# --- subscribing ----------------------------------------------------------------------------------------------------------


def subscribe(prepared: PreparedSubscription, first_ms: int | None) -> Op[StoredSubscription]:
    """Store a subscription, or return the one its key stored before. Handles are numbered without gaps.

    `first_ms` is the first instant of its schedule.
    """
    heads = yield from lock_sessions(prepared.session_ids) if prepared.session_ids else _no_heads()
    for session_id in prepared.session_ids:
        live(heads.get(session_id), session_id)
    last = yield from _lock_counter()
    before = yield from _by_key(prepared.registrant_session_id, prepared.registration_key)
    if before is not None:
        if bytes(before.intent) != prepared.intent:
            raise RegistrationConflict("subscription", prepared.registration_key)
        return before
    now_ms = yield from database_now()
    yield from hold_environments([] if prepared.env_ref is None else [prepared.env_ref], now_ms)
    row = _row(prepared, last + 1, now_ms)
    yield from _insert(row, prepared)
    if prepared.schedule is not None:
        yield from schedules.insert(row.subscription_id, next_ms=first_ms, now_ms=now_ms)
    return row


def _no_heads() -> Op[dict[str, Any]]:
    return {}
    yield  # an operation without statements


def _lock_counter() -> Op[int]:
    """The last number given out. Holding its row makes subscribing one at a time, so that no number is lost or used twice."""
    row = yield from fetch_one(
        """
        INSERT INTO {counters} AS c (name, value) VALUES (:name, 0)
        ON CONFLICT (name) DO UPDATE SET value = c.value
        RETURNING value
        """,
        name=COUNTER,
    )
    assert row is not None
    last: int = row[0]
    return last


def _row(prepared: PreparedSubscription, number: int, now_ms: int) -> StoredSubscription:
    row = StoredSubscription(
        f"subscription:{number}",
        number,
        prepared.registrant_session_id,
        prepared.registrant_frame_id,
        prepared.registration_key,
        prepared.name,
        prepared.source_type,
        prepared.source_key,
        prepared.env_ref,
        1,
        prepared.body,
        prepared.intent,
        b"",
        now_ms,
        now_ms,
    )
    return msgspec.structs.replace(row, digest=row_digest(row))


def row_digest(row: StoredSubscription) -> bytes:
    """The digest that ties a subscription's content to its id. Whether it is enabled may change, and is not part of it."""
    return digest(
        "subscription-row/1",
        row.subscription_id,
        row.number,
        row.registrant_session_id,
        row.registrant_frame_id,
        row.registration_key,
        row.name,
        row.source_type,
        row.source_key,
        row.env_ref,
        bytes(row.intent),
        row.body,
    )


def _insert(row: StoredSubscription, prepared: PreparedSubscription) -> Op[None]:
    count = yield from execute(
        "UPDATE {counters} SET value = :number WHERE name = :name AND value = :number - 1", name=COUNTER, number=row.number
    )
    assert count == 1, "the locked counter moved"
    yield from execute(
        """
        INSERT INTO {subscriptions} (
            subscription_id, number, registrant_session_id, registrant_frame_id, registration_key, name, source_type,
            source_key, definition_hash, env_ref, enabled, body, intent, digest, created_ms, updated_ms)
        VALUES (
            :subscription_id, :number, :registrant_session_id, :registrant_frame_id, :registration_key, :name, :source_type,
            :source_key, :definition_hash, :env_ref, 1, :body, :intent, :digest, :created_ms, :updated_ms)
        """,
        **{name: value for name, value in msgspec.structs.asdict(row).items() if name != "enabled"},
        definition_hash=prepared.definition_hash,
    )


def _by_key(session_id: str, registration_key: str) -> Op[StoredSubscription | None]:
    row = yield from fetch_one(
        """
        SELECT subscription_id, number, registrant_session_id, registrant_frame_id, registration_key, name, source_type,
               source_key, env_ref, enabled, body, intent, digest, created_ms, updated_ms
        FROM {subscriptions}
        WHERE registrant_session_id = :session_id AND registration_key = :registration_key
        """,
        session_id=session_id,
        registration_key=registration_key,
    )
    return None if row is None else StoredSubscription(*row)


# --- looking --------------------------------------------------------------------------------------------------------------


def verified(row: StoredSubscription) -> Subscription:
    """A subscription whose stored bytes match their digest."""
    name = repr(row.subscription_id)
    check(bytes(row.digest), row_digest(row), table="subscriptions", row=name)
    return _subscription(_head(row), decode(row.body, table="subscriptions", row=name), table="subscriptions", row=name)


def snapshot(row: StoredSubscription) -> str:
    """The whole subscription as one text, for a delivery to keep. The body goes in as it is stored."""
    return f'{{"head":{canonical(_head(row))},"body":{row.body}}}'


def of_snapshot(text: str, *, table: str, row: str) -> Subscription | None:
    """The subscription a delivery kept; None when there was none to keep."""
    value = decode(text, table=table, row=row)
    return None if value is None else _subscription(value["head"], value["body"], table=table, row=row)


def _head(row: StoredSubscription) -> dict[str, Any]:
    return {
        "number": row.number,
        "registrant": [row.registrant_session_id, row.registrant_frame_id],
        "registration_key": row.registration_key,
        "name": row.name,
        "source_type": row.source_type,
        "source_key": row.source_key,
        "env_ref": row.env_ref,
        "enabled": bool(row.enabled),
        "created_ms": row.created_ms,
        "updated_ms": row.updated_ms,
    }


def _subscription(head: dict[str, Any], body: Any, *, table: str, row: str) -> Subscription:
    try:
        content = msgspec.convert(body, Content)
    except msgspec.ValidationError as error:
        raise Corrupt(table, row, f"its content has another shape: {error}") from None
    session_id, frame_id = head["registrant"]
    return Subscription(
        subscription_id=f"subscription:{head['number']}",
        handle=f"trigger:{head['number']}",
        number=head["number"],
        registrant=None if session_id == HOST else Scope(session_id, frame_id or None),
        registration_key=head["registration_key"],
        name=head["name"],
        source_type=head["source_type"],
        source_key=head["source_key"],
        env_ref=head["env_ref"],
        enabled=head["enabled"],
        created_ms=head["created_ms"],
        updated_ms=head["updated_ms"],
        **{field: getattr(content, field) for field in Content.__struct_fields__},
    )


def number_of(name: str) -> int | None:
    """The number in a subscription id or a handle; None when it is neither."""
    kind, _, digits = name.partition(":")
    if kind not in ("subscription", "trigger") or not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        return None
    return int(digits) if digits == str(int(digits)) else None


def get(name: str) -> Op[StoredSubscription]:
    """A subscription by its id or handle."""
    number = number_of(name)
    row = yield from fetch_one(
        """
        SELECT subscription_id, number, registrant_session_id, registrant_frame_id, registration_key, name, source_type,
               source_key, env_ref, enabled, body, intent, digest, created_ms, updated_ms
        FROM {subscriptions}
        WHERE number = :number
        """,
        number=-1 if number is None else number,
    )
    if row is None:
        raise NotFound("subscription", name)
    return StoredSubscription(*row)


class SubscriptionFilter(Struct, frozen=True, kw_only=True):
    """What a list shows; None is everything. A session means its registrations in any frame."""

    session_id: str | None = None
    number: int | None = None
    name: str | None = None
    source_type: str | None = None
    source_key: str | None = None
    definition_hash: bytes | None = None
    enabled: bool | None = None


def page(where: SubscriptionFilter, *, limit: int, after: int) -> Op[list[StoredSubscription]]:
    """A keyset page in the order of registration: by number, so that the tenth comes after the second."""
    rows = yield from fetch(
        PAGE_ALL if where.session_id is None else PAGE_OF_SESSION,
        after=after,
        number=where.number,
        name=where.name,
        source_type=where.source_type,
        source_key=where.source_key,
        definition_hash=where.definition_hash,
        enabled=None if where.enabled is None else int(where.enabled),
        limit=limit,
        **({} if where.session_id is None else {"session_id": where.session_id}),
    )
    return [StoredSubscription(*row) for row in rows]


PAGE_ALL = """
    SELECT subscription_id, number, registrant_session_id, registrant_frame_id, registration_key, name, source_type,
           source_key, env_ref, enabled, body, intent, digest, created_ms, updated_ms
    FROM {subscriptions}
    WHERE number > :after
      AND (CAST(:number AS {int}) IS NULL OR number = :number)
      AND (CAST(:name AS TEXT) IS NULL OR name = :name)
      AND (CAST(:source_type AS TEXT) IS NULL OR source_type = :source_type)
      AND (CAST(:source_key AS TEXT) IS NULL OR source_key = :source_key)
      AND (CAST(:definition_hash AS {bytes}) IS NULL OR definition_hash = :definition_hash)
      AND (CAST(:enabled AS {int}) IS NULL OR enabled = :enabled)
    ORDER BY number
    LIMIT :limit
    """

PAGE_OF_SESSION = """
    SELECT subscription_id, number, registrant_session_id, registrant_frame_id, registration_key, name, source_type,
           source_key, env_ref, enabled, body, intent, digest, created_ms, updated_ms
    FROM {subscriptions}
    WHERE registrant_session_id = :session_id AND number > :after
      AND (CAST(:number AS {int}) IS NULL OR number = :number)
      AND (CAST(:name AS TEXT) IS NULL OR name = :name)
      AND (CAST(:source_type AS TEXT) IS NULL OR source_type = :source_type)
      AND (CAST(:source_key AS TEXT) IS NULL OR source_key = :source_key)
      AND (CAST(:definition_hash AS {bytes}) IS NULL OR definition_hash = :definition_hash)
      AND (CAST(:enabled AS {int}) IS NULL OR enabled = :enabled)
    ORDER BY number
    LIMIT :limit
    """


def subscription_page(rows: Sequence[StoredSubscription], *, limit: int) -> SubscriptionPage:
    """The rows as a page of verified subscriptions."""
    cursor = str(rows[-1].number) if len(rows) == limit else None
    return SubscriptionPage(subscriptions=tuple(verified(row) for row in rows), cursor=cursor)


# --- ending ---------------------------------------------------------------------------------------------------------------


def cancel(registrant_session_id: str, handle: str) -> Op[bool]:
    """Disable a subscription of this registrant, in any frame. False when it is unknown, foreign, or disabled already."""
    number = number_of(handle)
    if number is None:
        return False
    subscription_id = f"subscription:{number}"
    # Schedules before subscriptions: a tick holds them in that order.
    yield from schedules.stop(subscription_id, registrant_session_id)
    row = yield from fetch_one(
        """
        SELECT enabled FROM {subscriptions}
        WHERE subscription_id = :subscription_id AND registrant_session_id = :registrant
        {for_update}
        """,
        subscription_id=subscription_id,
        registrant=registrant_session_id,
    )
    if row is None or not row[0]:
        return False
    now_ms = yield from database_now()
    count = yield from execute(
        "UPDATE {subscriptions} SET enabled = 0, updated_ms = :now_ms WHERE subscription_id = :subscription_id",
        subscription_id=subscription_id,
        now_ms=now_ms,
    )
    assert count == 1, "the locked subscription vanished"
    return True


class Removed(Struct, frozen=True):
    """What one bounded step removed, and whether anything is left."""

    subscriptions: int
    deliveries: int
    complete: bool


def delete_for_session_step(session_id: str, limit: int, *, purging: bool = False) -> Op[Removed]:
    """Remove up to `limit` subscriptions a session registered in any frame, with up to `limit` of their deliveries.

    Only columns are read: a damaged row goes like any other. As part of a purge it takes nothing from the next incarnation.
    """
    head = (yield from lock_sessions([session_id])).get(session_id)
    if purging and (head is None or head.state != PURGING):
        return Removed(0, 0, True)
    rows = yield from fetch(
        "SELECT subscription_id FROM {subscriptions} WHERE registrant_session_id = :session_id ORDER BY number LIMIT :limit",
        session_id=session_id,
        limit=limit,
    )
    found = [row[0] for row in rows]
    if not found:
        return Removed(0, 0, True)
    yield from schedules.remove(found)
    yield from fetch(
        """
        SELECT subscription_id FROM {subscriptions}
        WHERE subscription_id {any_text:subscription_ids}
        ORDER BY number
        {for_update}
        """,
        subscription_ids=found,
    )
    deliveries = yield from _delete_deliveries(found, limit)
    subscriptions = yield from execute(
        """
        DELETE FROM {subscriptions}
        WHERE subscription_id {any_text:subscription_ids}
          AND NOT EXISTS (SELECT 1 FROM {deliveries} d WHERE d.subscription_id = {subscriptions}.subscription_id)
        """,
        subscription_ids=found,
    )
    return Removed(subscriptions, deliveries, len(found) < limit and deliveries < limit)


def _delete_deliveries(subscription_ids: Sequence[str], limit: int) -> Op[int]:
    rows = yield from fetch(
        """
        SELECT process_id FROM {deliveries}
        WHERE subscription_id {any_text:subscription_ids}
        ORDER BY occurrence_id, number
        LIMIT :limit
        {for_update}
        """,
        subscription_ids=list(subscription_ids),
        limit=limit,
    )
    if not rows:
        return 0
    return (
        yield from execute(
            "DELETE FROM {deliveries} WHERE process_id {any_text:process_ids}", process_ids=[row[0] for row in rows]
        )
    )
