"""Every error of the store, and the two questions its type answers: did anything change, and may I repeat the call?

StoreError
├── Refused               the store said no and changed nothing
│   ├── RevisionConflict      the head is at another revision: load, decide again, commit again
│   ├── TurnConflict          this turn id was committed with other content
│   ├── NodeConflict          this node id exists with other content, or twice in one commit
│   ├── SessionMismatch       a value that belongs to one session was given to another
│   ├── SessionDeleted        the session, or the incarnation a handle remembers, is gone
│   ├── ClaimLost             another worker claimed the work after the lease passed
│   ├── LeaseHeld             another worker holds the process
│   ├── LeaseLost             the lease has passed, was released, or belongs to somebody else now
│   ├── AlreadyTerminal       the process has ended
│   ├── RegistrationConflict  this process, or this subscription's key, was registered with other content
│   ├── ReplayConflict        this key was used with other content
│   ├── OccurrenceConflict    this occurrence was recorded with other content
│   ├── Diverged              a copy or import met a state that is not an earlier one of its own
│   ├── NotGranted            the session holds no grant on the process
│   ├── UndeclaredEvent       the process did not declare this event type
│   ├── InvalidPayload        the payload does not fit the declared schema
│   ├── NotFound              no such session, node, batch, attachment …; also beyond `retention`
│   ├── NotPermitted          the database role lacks the right
│   ├── InvalidArgument       a combination of arguments that has no meaning
│   ├── LimitExceeded         a named limit, with the path inside the value
│   └── Unstorable            a value that has no faithful stored form, with the path inside it
├── Unavailable           repeat the same call with the same keys: it is safe
│   ├── Busy                  contention or a timeout; nothing was written
│   ├── Disconnected          the outcome is unknown; repeating with `key` resolves it
│   └── StorageFull           no room left; reads go on, writes resume when there is room
├── Corrupt               stored bytes do not match their digest or do not decode; names the row
├── SchemaMismatch        the database is at another version than the library; names the command to run
└── Misuse                called after fork, from another event loop, inside a transaction, or after close
"""

from __future__ import annotations

from typing import ClassVar


class StoreError(Exception):
    """Base of every error this library raises. `fields()` holds what the text says, for programs."""

    def __init__(self, message: str, **fields: object) -> None:
        super().__init__(message)
        self._fields = fields
        self.__dict__.update(fields)

    def fields(self) -> dict[str, object]:
        """The facts behind the text: names and values."""
        return dict(self._fields)

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders in worker pools; the fields travel with the text.
        return (_rebuild, (type(self), str(self), self._fields))


def _rebuild(kind: type[StoreError], message: str, fields: dict[str, object]) -> StoreError:
    error = kind.__new__(kind)
    StoreError.__init__(error, message, **fields)
    return error


class Refused(StoreError):
    """The store said no and changed nothing. Repeating the same call gets the same answer."""


class RevisionConflict(Refused):
    """The head moved since it was read."""

    session_id: str
    expected: int
    actual: int

    def __init__(self, session_id: str, *, expected: int, actual: int) -> None:
        super().__init__(
            f"session {session_id!r} is at revision {actual}, the commit expects {expected}. "
            "Load the session again, decide on what it says now, and commit with its revision.",
            session_id=session_id,
            expected=expected,
            actual=actual,
        )


class TurnConflict(Refused):
    """A turn id commits once; its second use carried other content."""

    session_id: str
    turn_id: str
    revision: int

    def __init__(self, session_id: str, *, turn_id: str, revision: int) -> None:
        super().__init__(
            f"turn {turn_id!r} of session {session_id!r} was committed at revision {revision} with other content. "
            "A retry sends the same content; new content needs a new turn id.",
            session_id=session_id,
            turn_id=turn_id,
            revision=revision,
        )


class NodeConflict(Refused):
    """Nodes are append-only: an id is bound to its first content."""

    session_id: str
    node_id: str

    def __init__(self, session_id: str, *, node_id: str, why: str) -> None:
        super().__init__(
            f"node {node_id!r} of session {session_id!r} {why}. Give the new node another id.",
            session_id=session_id,
            node_id=node_id,
        )


class SessionMismatch(Refused):
    """A commit, claim or handle of one session was used on another."""

    bound: str
    attempted: str

    def __init__(self, *, bound: str, attempted: str) -> None:
        super().__init__(
            f"this call is bound to session {bound!r}, the value belongs to {attempted!r}. "
            "Use the handle of the session the value came from.",
            bound=bound,
            attempted=attempted,
        )


class SessionDeleted(Refused):
    """The session is deleted, or was deleted and created again since the handle first saw it."""

    session_id: str
    incarnation: int

    def __init__(self, session_id: str, *, incarnation: int) -> None:
        super().__init__(
            f"session {session_id!r} (incarnation {incarnation}) is deleted. "
            "Create it again to start a new incarnation, and take a new handle.",
            session_id=session_id,
            incarnation=incarnation,
        )


class ClaimLost(Refused):
    """The work is no longer owned by this claim."""

    session_id: str
    batch_id: str
    held_fence: int
    actual_fence: int | None

    def __init__(self, session_id: str, *, batch_id: str, held_fence: int, actual_fence: int | None) -> None:
        state = "is gone" if actual_fence is None else f"is at fence {actual_fence}"
        super().__init__(
            f"batch {batch_id!r} of session {session_id!r} {state}, you hold fence {held_fence}. "
            "It was settled, cancelled, abandoned or claimed by another worker; drop this result and claim again.",
            session_id=session_id,
            batch_id=batch_id,
            held_fence=held_fence,
            actual_fence=actual_fence,
        )


class ReplayConflict(Refused):
    """An idempotency key was used again with other content."""

    kind: str
    key: str
    owner: str

    def __init__(self, kind: str, *, key: str, owner: str) -> None:
        super().__init__(
            f"{kind} {key!r} of {owner!r} exists with other content. "
            "A retry sends the same content; other content needs another key.",
            kind=kind,
            key=key,
            owner=owner,
        )


class LeaseHeld(Refused):
    """A live lease of another worker, or of another incarnation of the same one."""

    process_id: str
    owner: str
    expires_ms: int

    def __init__(self, process_id: str, *, owner: str, expires_ms: int) -> None:
        super().__init__(
            f"process {process_id!r} is leased by {owner!r} until {expires_ms} (database time). "
            "Wait until the lease passes, or break it.",
            process_id=process_id,
            owner=owner,
            expires_ms=expires_ms,
        )


class LeaseLost(Refused):
    """The lease this call relies on is no longer the process's live lease."""

    process_id: str
    held_fence: int
    actual_fence: int

    def __init__(self, process_id: str, *, held_fence: int, actual_fence: int) -> None:
        super().__init__(
            f"process {process_id!r} is at fence {actual_fence}, you hold {held_fence}: your lease has passed or was taken. "
            "Stop working on it; nothing was written.",
            process_id=process_id,
            held_fence=held_fence,
            actual_fence=actual_fence,
        )


class AlreadyTerminal(Refused):
    """A process ends once."""

    process_id: str
    state: str

    def __init__(self, process_id: str, *, state: str) -> None:
        super().__init__(f"process {process_id!r} has ended: {state}. Its output is final.", process_id=process_id, state=state)


class RegistrationConflict(Refused):
    """A registration is immutable; the same id or key came with other content."""

    kind: str
    id: str

    def __init__(self, kind: str, id: str) -> None:
        super().__init__(
            f"{kind} {id!r} is registered with other content. A retry sends the same content; other content needs another id.",
            kind=kind,
            id=id,
        )


class OccurrenceConflict(Refused):
    """An occurrence's key was used for something else."""

    source_type: str
    source_key: str
    idempotency_key: str

    def __init__(self, *, source_type: str, source_key: str, idempotency_key: str) -> None:
        super().__init__(
            f"occurrence {idempotency_key!r} of source {source_type!r}/{source_key!r} was recorded with other content. "
            "A retry sends the same content; something else that happened needs another key.",
            source_type=source_type,
            source_key=source_key,
            idempotency_key=idempotency_key,
        )


class Diverged(Refused):
    """What the target of a copy or an import holds is neither equal to what comes, nor an earlier state of it."""

    kind: str
    id: str
    why: str

    def __init__(self, kind: str, id: str, *, why: str) -> None:
        super().__init__(
            f"{kind} {id!r} of the target is not an earlier state of what would replace it: {why}. Nothing of it was written. "
            "Copy into a store nobody has worked in since it was copied, or into an empty one.",
            kind=kind,
            id=id,
            why=why,
        )


class NotGranted(Refused):
    """A session may use only the processes it was granted."""

    session_id: str
    process_id: str

    def __init__(self, session_id: str, *, process_id: str) -> None:
        super().__init__(
            f"process {process_id!r} is not granted to session {session_id!r}. Grant it, or go through store.processes.",
            session_id=session_id,
            process_id=process_id,
        )


class UndeclaredEvent(Refused):
    """A process emits only the event types it declared."""

    process_id: str
    event_type: str

    def __init__(self, process_id: str, *, event_type: str) -> None:
        super().__init__(
            f"process {process_id!r} declares no event type {event_type!r}. Declare it in the registration.",
            process_id=process_id,
            event_type=event_type,
        )


class InvalidPayload(Refused, ValueError):
    """The payload does not fit its declared schema."""

    what: str
    path: str

    def __init__(self, what: str, *, path: str, why: str) -> None:
        super().__init__(f"{what}: payload at {path or 'its root'} {why}.", what=what, path=path, why=why)


class NotFound(Refused):
    """The thing does not exist, or retention removed it (`retention` is true)."""

    kind: str
    id: str
    retention: bool

    def __init__(self, kind: str, id: str, *, within: str | None = None, retention: bool = False) -> None:
        place = f" in session {within!r}" if within is not None else ""
        reason = "was removed by retention" if retention else "does not exist"
        super().__init__(f"{kind} {id!r}{place} {reason}.", kind=kind, id=id, within=within, retention=retention)


class NotPermitted(Refused):
    """The database role may not do this."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the database role lacks a right: {what}. Grant it, or open with a role that has it.", what=what)


class InvalidArgument(Refused, ValueError):
    """Arguments that contradict each other or have no meaning."""

    argument: str

    def __init__(self, argument: str, why: str) -> None:
        super().__init__(f"{argument}: {why}.", argument=argument)


class LimitExceeded(Refused, ValueError):
    """A named limit of the store; `limit` is the constant to look for in the docs."""

    limit: str
    maximum: int
    path: str

    def __init__(self, limit: str, *, maximum: int, actual: int | str, path: str, minimum: int | None = None) -> None:
        over = f"exceeds {limit} = {maximum}. Make it smaller, or split it."
        super().__init__(
            f"{path}: {actual} {over if minimum is None else f'is below {minimum}, the least that is allowed.'}",
            limit=limit,
            maximum=maximum,
            minimum=minimum,
            actual=actual,
            path=path,
        )


class Unstorable(Refused, TypeError):
    """The value would not come back as it went in."""

    path: str

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}.", path=path)


class Unavailable(StoreError):
    """The database could not do it now. Repeating the same call with the same keys is safe."""

    retryable: ClassVar[bool] = True


class Busy(Unavailable):
    """Contention, a full pool or a timeout. Nothing was written."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}. Nothing was written; repeat the call.", why=why)


class Disconnected(Unavailable):
    """The connection broke: the call may or may not have been applied."""

    key: str | None

    def __init__(self, why: str, *, key: str | None = None) -> None:
        hint = "; it is safe" if key is None else f" with key {key!r}; it returns the first result"
        super().__init__(f"{why}. The outcome is unknown: repeat the same call{hint}.", why=why, key=key)


class StorageFull(Unavailable):
    """The disk, the file-size limit or the database quota is used up."""

    def __init__(self, why: str) -> None:
        super().__init__(f"no storage left: {why}. Nothing was written; reads go on, writes resume when there is room.", why=why)


class Corrupt(StoreError):
    """Stored bytes do not match their digest or do not decode. Nothing is guessed."""

    table: str
    row: str

    def __init__(self, table: str, row: str, why: str) -> None:
        super().__init__(
            f"{table} row {row} is corrupt: {why}. Restore it from a backup; nothing was changed.",
            table=table,
            row=row,
            why=why,
        )


class SchemaMismatch(StoreError):
    """The database and the library do not fit together."""

    found: int
    expected: int

    def __init__(self, why: str, *, found: int, expected: int) -> None:
        super().__init__(
            f"database at schema version {found}, library at {expected}: {why}.", found=found, expected=expected, why=why
        )


class Misuse(StoreError):
    """The program calls the store in a way that cannot work: a mistake in the code, not a state of the data."""

    reason: str

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message, reason=reason)
