"""What copying between stores reports."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class CopyPhase(StrEnum):
    """What a copy is doing."""

    COPY = "copy"
    VERIFY = "verify"


class CopyOutcome(StrEnum):
    """What became of one session, process or row."""

    COPIED = "copied"  # it was not there
    FORWARDED = "forwarded"  # an earlier state of it was there
    UNCHANGED = "unchanged"  # it was there already
    DIFFERENT = "different"  # found by the verification


class CopyProgress(Struct, frozen=True, kw_only=True):
    """How far a copy is. `kind` is session or process, or a table that belongs to the whole store; `id` the last one done."""

    phase: CopyPhase
    kind: str
    id: str
    outcome: CopyOutcome
    done: int
    total: int


class CopyDifference(Struct, frozen=True, kw_only=True):
    """Something that is not the same in both stores, found when the copy was verified."""

    kind: str
    id: str
    why: str


class CopyReport(Struct, frozen=True, kw_only=True):
    """What a copy did. Sessions, processes, and rows that belong to the whole store count one each.

    `only_in_target` counts what the target has besides; `differences` names the first that differ, `different` counts all.
    """

    copied: int
    forwarded: int
    unchanged: int
    rows: int
    attachments: int
    attachment_bytes: int
    verified: bool
    different: int
    differences: tuple[CopyDifference, ...]
    only_in_target: int

    @property
    def equal(self) -> bool:
        """Whether the verification found everything of the source in the target, as it is."""
        return self.verified and self.different == 0


class TransferReport(Struct, frozen=True, kw_only=True):
    """What an export wrote or an import found. `imported` is false when the session was there already, and equal."""

    session_id: str
    incarnation: int
    revision: int
    rows: int
    attachments: int
    digest: str
    imported: bool = False
