"""Processes: registration that never changes, state that does, and what is left of a pruned one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lash_store.encode import Encoder, check, decode, digest, stable_hash
from lash_store.errors import AlreadyTerminal, Corrupt, InvalidArgument, LeaseLost, NotFound, Unstorable
from lash_store.model.process import (
    EXTERNAL,
    EventType,
    ExternalRef,
    Lease,
    Output,
    Process,
    ProcessIdentity,
    ProcessInput,
    ProcessState,
    Registration,
    Scope,
    Wait,
)
from lash_store.ops import semantics
from lash_store.ops.artifacts import hold_environments
from lash_store.ops.statement import Op, database_now, execute, execute_many, fetch, fetch_one, ring
from lash_store.payload_schema import Schemas

T = TypeVar("T")

LABEL_CHARS_MAX = 200  # a longer text in a payload is not a label
ENV_REQUIRED = frozenset({"tool_call", "engine"})  # they run code in a captured environment
ENV_FORBIDDEN = frozenset({"session_turn", EXTERNAL})  # they run in a session of their own, or elsewhere


class PreparedProcess(Struct, frozen=True, kw_only=True):
    """A registration after the walk: its text, its hash, and the columns that are queried."""

    process_id: str
    hash: bytes
    body: str
    kind: str
    definition_hash: bytes | None
    originator: Scope | None
    env_ref: str | None
    wake_target: Scope | None


def prepare_registration(registration: object, encoder: Encoder, schemas: Schemas) -> PreparedProcess:
    """Refuse what could not run; encode and hash the rest."""
    given = _typed(registration, Registration, "registration")
    _walk(given, encoder)
    own = fitting(replace(given, event_types=list(given.event_types)), Registration, "registration")
    process_id = encoder.id(own.process_id, "registration.process_id")
    kind = encoder.id(own.input.kind, "registration.input.kind")
    _check_env(own, kind, encoder)
    _check_event_types(own.event_types, encoder, schemas)
    identity = own.identity or default_identity(own.input)
    encoder.id(identity.kind, "registration.identity.kind")
    encoder.optional_text(identity.label, "registration.identity.label")
    for path, scope in (("originator", own.originator), ("wake_target", own.wake_target)):
        check_scope(scope, encoder, f"registration.{path}")
    body = msgspec.to_builtins(replace(own, identity=identity, event_types=list(own.event_types)))
    return PreparedProcess(
        process_id=process_id,
        hash=bytes.fromhex(stable_hash(body)),
        body=encoder.json(body, "registration"),
        kind=kind,
        definition_hash=None if identity.definition is None else bytes.fromhex(stable_hash(identity.definition)),
        originator=own.originator,
        env_ref=own.env_ref,
        wake_target=own.wake_target,
    )


def _typed(value: object, kind: type[T], path: str) -> T:
    if not isinstance(value, kind):
        raise Unstorable(path, f"must be a {kind.__name__}, got {type(value).__name__}")
    return value


def fitting(value: T, kind: type[T], path: str) -> T:
    """The value with every field of the type it declares: what would not come back as it went in is refused."""
    try:
        return msgspec.convert(msgspec.to_builtins(value), kind, strict=True)
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
        raise Unstorable(path, str(error)) from None


def _walk(given: Registration, encoder: Encoder) -> None:
    """The free parts of a registration, before anything converts them: bytes and sets must not pass as text and lists."""
    encoder.json(_typed(given.input, ProcessInput, "registration.input").payload, "registration.input.payload")
    encoder.json(given.caused_by, "registration.caused_by")
    if given.identity is not None:
        identity = _typed(given.identity, ProcessIdentity, "registration.identity")
        encoder.json(identity.definition, "registration.identity.definition")
    for i, event_type in enumerate(encoder.items(given.event_types, "registration.event_types")):
        path = f"registration.event_types[{i}]"
        encoder.json(_typed(event_type, EventType, path).schema, f"{path}.schema")
        for value in semantics.constants(event_type):
            encoder.json(value, path)


def _check_env(registration: Registration, kind: str, encoder: Encoder) -> None:
    env_ref = encoder.optional_id(registration.env_ref, "registration.env_ref")
    if kind in ENV_REQUIRED and env_ref is None:
        raise InvalidArgument("registration.env_ref", f"is required for a process of kind {kind!r}")
    if kind in ENV_FORBIDDEN and env_ref is not None:
        raise InvalidArgument("registration.env_ref", f"must be absent for a process of kind {kind!r}")


def _check_event_types(event_types: Sequence[EventType], encoder: Encoder, schemas: Schemas) -> None:
    names: set[str] = set()
    for i, event_type in enumerate(event_types):
        path = f"registration.event_types[{i}]"
        name = encoder.id(event_type.name, f"{path}.name")
        if name in names:
            raise InvalidArgument(f"{path}.name", f"{name!r} is declared twice")
        names.add(name)
        schemas.check(event_type.schema, f"{path}.schema")
        semantics.check_event_type(event_type, path)


def check_scope(scope: Scope | None, encoder: Encoder, path: str) -> None:
    """A scope's ids, if there is one."""
    if scope is not None:
        encoder.id(scope.session_id, f"{path}.session_id")
        encoder.optional_id(scope.frame_id, f"{path}.frame_id")


def default_identity(process_input: ProcessInput) -> ProcessIdentity:
    """The kind of the input; for work done elsewhere also the first label its payload offers."""
    payload = process_input.payload
    if process_input.kind != EXTERNAL or not isinstance(payload, dict):
        return ProcessIdentity(kind=process_input.kind)
    found: Any = next((payload[key] for key in ("label", "name", "title") if key in payload), None)
    fits = isinstance(found, str) and len(found) <= LABEL_CHARS_MAX
    return ProcessIdentity(kind=process_input.kind, label=found if fits else None)


# --- registering ----------------------------------------------------------------------------------------------------------


def insert_processes(prepared: Sequence[PreparedProcess], now_ms: int) -> Op[dict[str, str]]:
    """Insert those that are new, in id order; say of each whether it was created, existing, pruned, or in conflict.

    The caller holds the locks of every session that is a wake target.
    """
    ordered = sorted(prepared, key=lambda each: each.process_id)
    yield from hold_environments({each.env_ref for each in ordered if each.env_ref is not None}, now_ms)
    before = yield from _hashes([each.process_id for each in ordered])
    yield from _insert([each for each in ordered if each.process_id not in before], now_ms)
    after = yield from _locked_hashes([each.process_id for each in ordered])
    outcomes: dict[str, str] = {}
    for each in ordered:
        stored_hash, pruned = after[each.process_id]
        if stored_hash != each.hash:
            outcomes[each.process_id] = "conflict"
        elif pruned:
            outcomes[each.process_id] = "pruned"
        else:
            outcomes[each.process_id] = "existing" if each.process_id in before else "created"
    if "created" in outcomes.values():
        yield from ring("runnable", "any")
    return outcomes


def _hashes(process_ids: Sequence[str]) -> Op[dict[str, tuple[bytes, bool]]]:
    rows = yield from fetch(
        "SELECT process_id, registration_hash, pruned_ms FROM {processes} WHERE process_id {any_text:process_ids}",
        process_ids=list(process_ids),
    )
    return {row[0]: (bytes(row[1]), row[2] is not None) for row in rows}


def _locked_hashes(process_ids: Sequence[str]) -> Op[dict[str, tuple[bytes, bool]]]:
    """The same under locks: what is answered must hold until the caller's grants are written, so no prune may come between."""
    rows = yield from fetch(
        """
        SELECT process_id, registration_hash, pruned_ms FROM {processes}
        WHERE process_id {any_text:process_ids}
        ORDER BY process_id
        {for_update}
        """,
        process_ids=list(process_ids),
    )
    return {row[0]: (bytes(row[1]), row[2] is not None) for row in rows}


def _insert(new: Sequence[PreparedProcess], now_ms: int) -> Op[None]:
    yield from execute_many(
        """
        INSERT INTO {processes} (
            process_id, registration_hash, kind, definition_hash, originator_session_id, originator_frame_id, env_ref,
            wake_session_id, wake_frame_id, state, last_sequence, runnable_ms, lease_fence, created_ms, updated_ms)
        SELECT rows.process_id, rows.hash, rows.kind, rows.definition_hash, rows.originator_session_id,
               rows.originator_frame_id, rows.env_ref, rows.wake_session_id, rows.wake_frame_id, 'running', 0,
               rows.runnable_ms, 0, CAST(:now_ms AS {int}), CAST(:now_ms AS {int})
        FROM {rows(process_id text, hash bytes, kind text, definition_hash bytes, originator_session_id text,
                   originator_frame_id text, env_ref text, wake_session_id text, wake_frame_id text, runnable_ms int)}
        WHERE true
        ON CONFLICT (process_id) DO NOTHING
        """,
        [_insert_row(each, now_ms) for each in new],
        now_ms=now_ms,
    )
    yield from execute_many(
        """
        INSERT INTO {registrations} (process_id, body, digest)
        SELECT rows.process_id, rows.body, rows.digest
        FROM {rows(process_id text, body text, digest bytes, hash bytes)}
        JOIN {processes} p ON p.process_id = rows.process_id AND p.registration_hash = rows.hash AND p.pruned_ms IS NULL
        WHERE true
        ON CONFLICT (process_id) DO NOTHING
        """,
        [
            {
                "process_id": each.process_id,
                "body": each.body,
                "digest": digest("registration/1", each.process_id, each.hash, each.body),
                "hash": each.hash,
            }
            for each in new
        ],
    )


def _insert_row(each: PreparedProcess, now_ms: int) -> dict[str, Any]:
    return {
        "process_id": each.process_id,
        "hash": each.hash,
        "kind": each.kind,
        "definition_hash": each.definition_hash,
        "originator_session_id": None if each.originator is None else each.originator.session_id,
        "originator_frame_id": None if each.originator is None else each.originator.frame_id,
        "env_ref": each.env_ref,
        "wake_session_id": None if each.wake_target is None else each.wake_target.session_id,
        "wake_frame_id": None if each.wake_target is None else each.wake_target.frame_id,
        "runnable_ms": None if each.kind == EXTERNAL else now_ms,
    }


# --- looking --------------------------------------------------------------------------------------------------------------


class ProcessRow(Struct, frozen=True):
    """A process as it is stored, not yet verified. No body: it was pruned."""

    process_id: str
    registration_hash: bytes
    kind: str
    wake_session_id: str | None
    wake_frame_id: str | None
    state: str
    output: str | None
    output_digest: bytes | None
    wait_name: str | None
    wait_ordinal: int | None
    wait_since_ms: int | None
    external_ref: str | None
    external_ref_digest: bytes | None
    last_sequence: int
    lease_owner: str | None
    lease_incarnation: str | None
    lease_token: str | None
    lease_fence: int
    lease_claimed_ms: int | None
    lease_expires_ms: int | None
    created_ms: int
    updated_ms: int
    pruned_ms: int | None
    body: str | None
    body_digest: bytes | None

    def leased(self, now_ms: int) -> bool:
        """Whether a live lease holds the process: it ends at its expiry, not after it."""
        return self.lease_token is not None and self.lease_expires_ms is not None and self.lease_expires_ms > now_ms


def find(process_id: str) -> Op[ProcessRow | None]:
    """A process without a lock; None when its id was never used."""
    row = yield from fetch_one(
        """
        SELECT p.process_id, p.registration_hash, p.kind, p.wake_session_id, p.wake_frame_id, p.state, p.output,
               p.output_digest, p.wait_name, p.wait_ordinal, p.wait_since_ms, p.external_ref, p.external_ref_digest,
               p.last_sequence, p.lease_owner, p.lease_incarnation, p.lease_token, p.lease_fence, p.lease_claimed_ms,
               p.lease_expires_ms, p.created_ms, p.updated_ms, p.pruned_ms, r.body, r.digest
        FROM {processes} p
        LEFT JOIN {registrations} r ON r.process_id = p.process_id
        WHERE p.process_id = :process_id
        """,
        process_id=process_id,
    )
    return None if row is None else ProcessRow(*row)


def rows_of(process_ids: Sequence[str]) -> Op[dict[str, ProcessRow]]:
    """These processes, as far as they exist, in one statement."""
    rows = yield from fetch(
        """
        SELECT p.process_id, p.registration_hash, p.kind, p.wake_session_id, p.wake_frame_id, p.state, p.output,
               p.output_digest, p.wait_name, p.wait_ordinal, p.wait_since_ms, p.external_ref, p.external_ref_digest,
               p.last_sequence, p.lease_owner, p.lease_incarnation, p.lease_token, p.lease_fence, p.lease_claimed_ms,
               p.lease_expires_ms, p.created_ms, p.updated_ms, p.pruned_ms, r.body, r.digest
        FROM {processes} p
        LEFT JOIN {registrations} r ON r.process_id = p.process_id
        WHERE p.process_id {any_text:process_ids}
        """,
        process_ids=list(process_ids),
    )
    return {row[0]: ProcessRow(*row) for row in rows}


def row_of(process_id: str) -> Op[ProcessRow]:
    """A process that is known to be there."""
    row = yield from find(process_id)
    if row is None:
        raise NotFound("process", process_id)
    return row


def get(process_id: str) -> Op[ProcessRow]:
    """A process that is there and not pruned."""
    row = yield from row_of(process_id)
    if row.pruned_ms is not None:
        raise NotFound("process", process_id, retention=True)
    return row


def find_state(process_id: str) -> Op[ProcessRow | None]:
    """A process without its registration, which may be large, and without a lock; None when its id was never used."""
    row = yield from fetch_one(
        """
        SELECT process_id, registration_hash, kind, wake_session_id, wake_frame_id, state, output, output_digest, wait_name,
               wait_ordinal, wait_since_ms, external_ref, external_ref_digest, last_sequence, lease_owner, lease_incarnation,
               lease_token, lease_fence, lease_claimed_ms, lease_expires_ms, created_ms, updated_ms, pruned_ms
        FROM {processes}
        WHERE process_id = :process_id
        """,
        process_id=process_id,
    )
    values: list[Any] = [] if row is None else [*row, None, None]
    return ProcessRow(*values) if values else None


def get_state(process_id: str) -> Op[ProcessRow]:
    """The state of a process that is there and not pruned, without its registration."""
    row = yield from find_state(process_id)
    if row is None or row.pruned_ms is not None:
        raise NotFound("process", process_id, retention=row is not None)
    return row


def lock_state(process_id: str) -> Op[ProcessRow]:
    """Lock a process that is there and not pruned, then look at its state."""
    yield from lock_processes([process_id])
    return (yield from get_state(process_id))


def lock_process(process_id: str) -> Op[ProcessRow]:
    """Lock a process that is there and not pruned, then look at it."""
    yield from lock_processes([process_id])
    return (yield from get(process_id))


def lock_processes(process_ids: Sequence[str]) -> Op[list[str]]:
    """Lock the rows of these processes in one statement, in ascending order; those that exist."""
    rows = yield from fetch(
        """
        SELECT process_id FROM {processes}
        WHERE process_id {any_text:process_ids}
        ORDER BY process_id
        {for_update}
        """,
        process_ids=sorted(set(process_ids)),
    )
    return [row[0] for row in rows]


class ProcessFilter(Struct, frozen=True, kw_only=True):
    """What a list shows; None is everything."""

    state: str | None = None
    kind: str | None = None
    waiting: bool | None = None
    definition_hash: bytes | None = None
    originator_session_id: str | None = None
    wake_session_id: str | None = None


def page(where: ProcessFilter, *, limit: int, after: str) -> Op[list[ProcessRow]]:
    """A keyset page by process id; every filter is applied by the database."""
    rows = yield from fetch(
        """
        SELECT p.process_id, p.registration_hash, p.kind, p.wake_session_id, p.wake_frame_id, p.state, p.output,
               p.output_digest, p.wait_name, p.wait_ordinal, p.wait_since_ms, p.external_ref, p.external_ref_digest,
               p.last_sequence, p.lease_owner, p.lease_incarnation, p.lease_token, p.lease_fence, p.lease_claimed_ms,
               p.lease_expires_ms, p.created_ms, p.updated_ms, p.pruned_ms, r.body, r.digest
        FROM {processes} p
        LEFT JOIN {registrations} r ON r.process_id = p.process_id
        WHERE p.pruned_ms IS NULL AND p.process_id > :after
          AND (CAST(:state AS TEXT) IS NULL OR p.state = :state)
          AND (CAST(:kind AS TEXT) IS NULL OR p.kind = :kind)
          AND (CAST(:waiting AS {int}) IS NULL OR (CASE WHEN p.wait_name IS NULL THEN 0 ELSE 1 END) = :waiting)
          AND (CAST(:definition_hash AS {bytes}) IS NULL OR p.definition_hash = :definition_hash)
          AND (CAST(:originator AS TEXT) IS NULL OR p.originator_session_id = :originator)
          AND (CAST(:wake AS TEXT) IS NULL OR p.wake_session_id = :wake)
        ORDER BY p.process_id
        LIMIT :limit
        """,
        after=after,
        state=where.state,
        kind=where.kind,
        waiting=None if where.waiting is None else int(where.waiting),
        definition_hash=where.definition_hash,
        originator=where.originator_session_id,
        wake=where.wake_session_id,
        limit=limit,
    )
    return [ProcessRow(*row) for row in rows]


def verified(row: ProcessRow, registration: Registration | None = None) -> Process:
    """A process whose stored bytes match their digests. A pruned one is shown through the registration it was asked with."""
    shown = registration if row.pruned_ms is not None else stored_registration(row)
    if shown is None:
        raise NotFound("process", row.process_id, retention=True)
    target = None if row.wake_session_id is None else Scope(row.wake_session_id, row.wake_frame_id)
    return Process(
        process_id=row.process_id,
        registration_hash=bytes(row.registration_hash).hex(),
        input=shown.input,
        identity=shown.identity or default_identity(shown.input),
        event_types=(*semantics.CORE_EVENT_TYPES, *shown.event_types),
        originator=shown.originator,
        caused_by=shown.caused_by,
        env_ref=shown.env_ref,
        wake_target=target,
        state=ProcessState(row.state),
        output=_output(row),
        wait=_wait(row),
        external_ref=_external_ref(row),
        last_sequence=row.last_sequence,
        created_ms=row.created_ms,
        updated_ms=row.updated_ms,
        pruned=row.pruned_ms is not None,
    )


def stored_registration(row: ProcessRow) -> Registration:
    """The registration as it was stored."""
    name = repr(row.process_id)
    if row.body is None or row.body_digest is None:
        raise Corrupt("registrations", name, "the row is missing")
    expected = digest("registration/1", row.process_id, bytes(row.registration_hash), row.body)
    check(bytes(row.body_digest), expected, table="registrations", row=name)
    return as_struct(decode(row.body, table="registrations", row=name), Registration, "registrations", name)


def as_struct(value: Any, kind: Any, table: str, row: str) -> Any:
    """Stored JSON as one of our values; what does not fit is corrupt, never guessed."""
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        raise Corrupt(table, row, str(error)) from None


def _output(row: ProcessRow) -> Output | None:
    name = repr(row.process_id)
    if row.state == ProcessState.RUNNING or row.pruned_ms is not None:
        return None
    if row.output is None or row.output_digest is None:
        raise Corrupt("processes", name, "an ended process has no output")
    check(bytes(row.output_digest), digest("output/1", row.process_id, row.output), table="processes", row=name)
    return as_struct(decode(row.output, table="processes", row=name), Output, "processes", name)


def _wait(row: ProcessRow) -> Wait | None:
    if row.wait_name is None or row.wait_ordinal is None:
        return None
    return Wait(name=row.wait_name, ordinal=row.wait_ordinal, since_ms=row.wait_since_ms)


def _external_ref(row: ProcessRow) -> ExternalRef | None:
    name = repr(row.process_id)
    if row.external_ref is None and row.external_ref_digest is None:
        return None
    if row.external_ref is None or row.external_ref_digest is None:
        raise Corrupt("processes", name, "half of its external reference is missing")
    expected = digest("external-ref/1", row.process_id, row.external_ref)
    check(bytes(row.external_ref_digest), expected, table="processes", row=name)
    return as_struct(decode(row.external_ref, table="processes", row=name), ExternalRef, "processes", name)


def next_runnable(kinds: Sequence[str] | None = None) -> Op[tuple[int | None, int]]:
    """When the first process (of these kinds) can next be claimed, and the database's clock; None when there is none."""
    rows = yield from fetch(
        """
        SELECT MIN(runnable_ms) FROM {processes}
        WHERE runnable_ms IS NOT NULL AND (CAST(:every AS {int}) = 1 OR kind {any_text:kinds})
        """,
        every=int(kinds is None),
        kinds=list(kinds or ()),
    )
    now_ms = yield from database_now()
    return rows[0][0], now_ms


# --- changing -------------------------------------------------------------------------------------------------------------


def set_external_ref(process_id: str, ref: str) -> Op[ProcessRow]:
    """Say where the work lives in another system; a later word replaces an earlier one."""
    yield from lock_process(process_id)
    now_ms = yield from database_now()
    count = yield from execute(
        """
        UPDATE {processes} SET external_ref = :ref, external_ref_digest = :digest, updated_ms = :now_ms
        WHERE process_id = :process_id
        """,
        process_id=process_id,
        ref=ref,
        digest=digest("external-ref/1", process_id, ref),
        now_ms=now_ms,
    )
    assert count == 1, "the locked process vanished"
    return (yield from get(process_id))


def set_wait(process_id: str, wait: Wait, lease: Lease | None = None) -> Op[ProcessRow]:
    """Say what a running process waits for; the same wait again keeps its time."""
    row = yield from lock_process(process_id)
    if row.state != ProcessState.RUNNING:
        raise AlreadyTerminal(process_id, state=row.state)
    now_ms = yield from database_now()
    if lease is not None:
        require_live(row, lease, now_ms)
    same = (row.wait_name, row.wait_ordinal) == (wait.name, wait.ordinal)
    yield from write_wait(process_id, wait, row.wait_since_ms if same and row.wait_since_ms is not None else now_ms, now_ms)
    return (yield from get(process_id))


def write_wait(process_id: str, wait: Wait | None, since_ms: int | None, now_ms: int) -> Op[None]:
    """Set or clear the wait of a locked process."""
    count = yield from execute(
        """
        UPDATE {processes}
        SET wait_name = :name, wait_ordinal = :ordinal, wait_since_ms = :since_ms, updated_ms = :now_ms
        WHERE process_id = :process_id
        """,
        process_id=process_id,
        name=None if wait is None else wait.name,
        ordinal=None if wait is None else wait.ordinal,
        since_ms=since_ms,
        now_ms=now_ms,
    )
    assert count == 1, "the locked process vanished"


def clear_wait(process_id: str, only: Wait | None = None, lease: Lease | None = None) -> Op[ProcessRow]:
    """The process waits for nothing any more; with `only`, nothing happens if it waits for something else by now."""
    row = yield from lock_process(process_id)
    now_ms = yield from database_now()
    if lease is not None:
        require_live(row, lease, now_ms)
    if only is None or (row.wait_name, row.wait_ordinal) == (only.name, only.ordinal):
        yield from write_wait(process_id, None, None, now_ms)
    return (yield from get(process_id))


def require_live(row: ProcessRow, lease: Lease, now_ms: int) -> None:
    """The lease must be the process's live one, in every part; a passed one is lost even if nobody took the process."""
    held = (lease.owner, lease.incarnation, lease.token, lease.fence)
    actual = (row.lease_owner, row.lease_incarnation, row.lease_token, row.lease_fence)
    if held != actual or not row.leased(now_ms):
        raise LeaseLost(row.process_id, held_fence=lease.fence, actual_fence=row.lease_fence)
