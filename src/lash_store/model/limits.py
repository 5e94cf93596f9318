"""Every limit of the store, named, with its unit and its reason. A `Limits` can only be lowered."""

from __future__ import annotations

from msgspec import Struct, structs

from lash_store.errors import InvalidArgument

KIB, MIB, GIB = 1024, 1024**2, 1024**3

INT_MAX = 2**63 - 1  # what both engines hold in a column
COUNTER_MAX = 2**53  # what every JSON reader holds exactly
DURATION_MAX_MS = 10 * 365 * 24 * 3600 * 1000  # ten years: beyond it a duration is a mistake in units
SETTLED_KEY_RETENTION_MS = 24 * 3600 * 1000  # a settled source key answers late retries for a day
CHECKPOINT_CHAIN_MAX = 16  # versions until the next full frame: bounds the reads of a load
CHECKPOINT_DELTA_MAX_BYTES = 8 * MIB  # above it the window of a delta costs more memory than it saves
COLLECT_ROWS_PER_TRANSACTION = 1000  # rows one maintenance transaction deletes: writers wait no longer than that


class Limits(Struct, frozen=True, kw_only=True):
    """What one value or one call may hold."""

    id_bytes: int = 200  # an id is a name; indexes hold it many times
    text_bytes: int = 4 * KIB  # names, kinds, media types, labels
    json_bytes: int = 16 * MIB  # one body or payload; larger things are attachments
    json_depth: int = 64  # deeper than any real message, far below every parser's stack
    integer_digits: int = 4300  # what Python itself agrees to parse
    component_bytes: int = 256 * MIB  # one checkpoint component
    attachment_bytes: int = GIB  # one attachment, streamed
    commit_bytes: int = 512 * MIB  # all bytes of one commit: it is one transaction
    commit_rows: int = 20_000  # nodes, usage, frames, components, batches and attachments of one commit
    batch_payloads: int = 1_000  # payloads of one batch: they travel together
    claim_batches: int = 1_000  # batches of one claim
    page_rows: int = 1_000  # rows of one page
    active_waiters: int = 100_000  # waiters of one store


DEFAULT_LIMITS = Limits()


def lowered(limits: Limits) -> Limits:
    """The given limits, refused if one is above the default: storage and drivers are tested up to there."""
    for name, value in structs.asdict(limits).items():
        if not 0 < value <= getattr(DEFAULT_LIMITS, name):
            raise InvalidArgument(f"limits.{name}", f"must be between 1 and {getattr(DEFAULT_LIMITS, name)}, got {value}")
    return limits
