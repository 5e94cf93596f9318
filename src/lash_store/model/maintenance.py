"""What maintenance reports: what it looked at, what it did, and whether it finished."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from lash_store.model.queue import Completion


class CollectReport(Struct, frozen=True, kw_only=True):
    """`complete` is false when the bound was reached before the end; call again to go on."""

    sessions_scanned: int
    sessions_purged: int
    versions_scanned: int
    versions_kept: int
    versions_rewritten: int
    versions_deleted: int
    settled_keys_deleted: int
    complete: bool


class VacuumReport(Struct, frozen=True, kw_only=True):
    """How many tombstoned nodes this call erased, and how many bodiless rows stay because live nodes descend from them."""

    erased: int
    kept_bodiless: int
    complete: bool


class LeaseKind(StrEnum):
    """What is held."""

    CLAIM = "claim"  # batches of an inbox
    PROCESS = "process"


class HeldLease(Struct, frozen=True, kw_only=True):
    """Work somebody holds. `live` is false once its time has passed: anybody may take it then.

    `id` is the claim's or the process's. `claim` is what `queue.abandon` takes to give a claim back.
    """

    kind: LeaseKind
    id: str
    session_id: str | None
    owner: str
    fence: int
    claimed_ms: int
    expires_ms: int
    live: bool
    claim: Completion | None = None


class LeasePage(Struct, frozen=True, kw_only=True):
    """A page of leases, claims first; pass `cursor` on for the next one, None at the end."""

    leases: tuple[HeldLease, ...]
    cursor: str | None
    now_ms: int


class TableSize(Struct, frozen=True, kw_only=True):
    """One table: its rows, counted up to `Stats.counted_to`, and its bytes with indexes where the engine tells cheaply."""

    table: str
    rows: int
    size: int | None


class InboxStats(Struct, frozen=True, kw_only=True):
    """All inboxes together. `expired` batches are claimed by somebody whose time has passed."""

    batches: int
    ready: int
    delayed: int
    claimed: int
    expired: int
    parked: int
    oldest_ready_ms: int | None


class ProcessStats(Struct, frozen=True, kw_only=True):
    """All processes together; `waiting`, `leased` and `expired` ones are among the running."""

    running: int
    waiting: int
    leased: int
    expired: int
    ended: int
    oldest_running_ms: int | None
    oldest_ended_ms: int | None


class Stats(Struct, frozen=True, kw_only=True):
    """How much there is, how old it is, and what grows. No count goes beyond `counted_to`: that number means at least so many."""

    engine: str
    now_ms: int
    counted_to: int
    size: int
    free: int | None
    tables: tuple[TableSize, ...]
    sessions_live: int
    sessions_purging: int
    inbox: InboxStats
    processes: ProcessStats
    oldest_lease_ms: int | None
    undelivered: int
    oldest_undelivered_ms: int | None
    schedules_overdue: int
    oldest_due_ms: int | None
    nodes_tombstoned: int
    attachments_uncommitted: int
    oldest_uncommitted_ms: int | None
    attachments_released: int
    oldest_settled_key_ms: int | None


class Severity(StrEnum):
    """How bad a finding is."""

    PROBLEM = "problem"  # something is wrong now
    WARNING = "warning"  # something may go wrong, or waits for somebody
    NOTE = "note"


class Finding(Struct, frozen=True, kw_only=True):
    """Something worth knowing about a store, and what to do about it."""

    severity: Severity
    what: str
    advice: str


class Examination(Struct, frozen=True, kw_only=True):
    """What an examination saw. `verified` counts the rows whose digests were compared, by what they are."""

    engine: str
    engine_version: str
    schema_version: int
    settings: dict[str, str]
    verified: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong now."""
        return all(finding.severity is not Severity.PROBLEM for finding in self.findings)


class BackupReport(Struct, frozen=True, kw_only=True):
    """A backup that was made, read again and found whole."""

    path: str
    size: int
