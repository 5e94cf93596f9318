"""Artifacts: bytes under a ref, in one of three namespaces that never meet."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Namespace(StrEnum):
    """What a ref means. The same ref in two namespaces is two artifacts."""

    MODULE = "module"  # a ref is bound to its first bytes
    RAW = "raw"  # a ref may be given other bytes
    PROCESS_ENV = "process_env"  # bound like a module; collected when no process and no subscription names it


class ArtifactRef(Struct, frozen=True, kw_only=True):
    """Names stored bytes."""

    namespace: Namespace
    ref: str
    byte_len: int


class ArtifactEntry(Struct, frozen=True, kw_only=True):
    """An artifact without its bytes. `updated_ms` is when it was last put, also with the same bytes."""

    ref: ArtifactRef
    descriptor: str | None
    created_ms: int
    updated_ms: int


class ArtifactPage(Struct, frozen=True, kw_only=True):
    """A page of artifacts by ref; pass `cursor` on for the next one, None at the end."""

    entries: tuple[ArtifactEntry, ...]
    cursor: str | None


class ArtifactCollectReport(Struct, frozen=True, kw_only=True):
    """What a collection removed, or would remove. `complete` is false when its bound was reached first."""

    removed: int
    removed_bytes: int
    complete: bool
