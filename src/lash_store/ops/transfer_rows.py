"""What a row loses when it travels, and which of two stores is the older one. Pure decisions."""

from __future__ import annotations

from lash_store.ops.heads import DELETED, LIVE, PURGING
from lash_store.ops.transfer_table import Table, Values

CLAIM = ("claim_id", "owner", "token", "claimed_ms", "expires_ms")
LEASE = ("lease_owner", "lease_incarnation", "lease_token", "lease_claimed_ms", "lease_expires_ms")


def settled(table: Table, row: Values) -> Values:
    """The row without what holds in its own store only: claims and leases, and what is computed from them.

    Fences stay, so that a holder from before is refused. What somebody held is ready again.
    """
    match table.name:
        case "sessions":
            row |= {"ready_ms": None, "open_ms": None}
            if row["state"] == PURGING:
                row |= {"state": DELETED, "next_position": 0, "next_branch": 0}
        case "batches":
            row |= dict.fromkeys(CLAIM)
        case "digests":
            row |= {"released_ms": None}
        case "processes":
            if row["lease_token"] is not None and row["runnable_ms"] is not None:
                row |= {"runnable_ms": row["lease_claimed_ms"]}
            row |= dict.fromkeys(LEASE)
        case _:
            pass
    return row


def ahead_session(theirs: Values, ours: Values) -> str | None:
    """Why the target's session is not an earlier state of the source's, as far as their heads tell; None when it may be."""
    if theirs["incarnation"] > ours["incarnation"]:
        return f"it is at incarnation {theirs['incarnation']}, the source at {ours['incarnation']}"
    for name, what in (("revision", "revision"), ("next_enqueue_seq", "message"), ("fence", "fence")):
        if theirs[name] > ours[name]:
            return f"it is at {what} {theirs[name]}, the source at {ours[name]}"
    if theirs["incarnation"] == ours["incarnation"]:
        return _ahead_in_one_life(theirs, ours)
    return None


def _ahead_in_one_life(theirs: Values, ours: Values) -> str | None:
    if theirs["created_ms"] != ours["created_ms"]:
        return "it was created on its own"
    if theirs["state"] != LIVE and ours["state"] == LIVE:
        return "it was deleted there"
    if theirs["updated_ms"] > ours["updated_ms"]:
        return "it was changed there"
    return None


def ahead_process(theirs: Values, ours: Values) -> str | None:
    """The same for a process."""
    if theirs["registration_hash"] != ours["registration_hash"]:
        return "it was registered with other content"
    for name, what in (("last_sequence", "event"), ("lease_fence", "fence"), ("updated_ms", "time")):
        if theirs[name] > ours[name]:
            return f"it is at {what} {theirs[name]}, the source at {ours[name]}"
    if theirs["pruned_ms"] is not None and ours["pruned_ms"] is None:
        return "it was pruned there"
    return None


def ahead_row(table: Table, theirs: Values, ours: Values) -> str | None:
    """The same for a row that belongs to the whole store: one column of it only grows."""
    if theirs[table.grows] > ours[table.grows]:
        return f"its {table.grows} is {theirs[table.grows]}, the source's {ours[table.grows]}"
    if table.name == "schedules" and theirs["next_ms"] is None and ours["next_ms"] is not None:
        return "it ended there"
    if table.name == "occurrences" and theirs["request_hash"] != ours["request_hash"]:
        return "it was recorded with other content"
    if table.name == "subscriptions" and theirs["digest"] != ours["digest"]:
        return "it was registered with other content"
    return None
