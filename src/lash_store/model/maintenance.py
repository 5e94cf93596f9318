"""What maintenance reports: what it looked at, what it did, and whether it finished."""

from __future__ import annotations

from msgspec import Struct


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
