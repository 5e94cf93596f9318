"""Attachments: the manifest row of a session, and the reference a node carries."""

from __future__ import annotations

from msgspec import Struct


class AttachmentRef(Struct, frozen=True, kw_only=True):
    """Names bytes by their sha256. Put it in a node's body; pass its id to the commit."""

    attachment_id: str
    media_type: str
    byte_len: int
    label: str | None = None
    width: int | None = None
    height: int | None = None


class AttachmentEntry(Struct, frozen=True, kw_only=True):
    """A row of the manifest: an intent, stamped once a commit names it."""

    session_id: str
    ref: AttachmentRef
    intent_ms: int
    committed_ms: int | None


class AttachmentPage(Struct, frozen=True, kw_only=True):
    """A page of manifest rows; pass `cursor` on for the next one, None at the end."""

    entries: tuple[AttachmentEntry, ...]
    cursor: str | None


class SweepReport(Struct, frozen=True, kw_only=True):
    """What a sweep looked at and did. `complete` is false when its bound was reached first."""

    scanned: int
    reclaimed: int
    kept: int
    reclaimed_bytes: int
    complete: bool
