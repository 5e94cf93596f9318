"""Tiny operations for tests of the machinery below the real ones: a note is a row, writing it rings."""

from __future__ import annotations

from collections.abc import Callable

from lash_store.errors import NotFound
from lash_store.notify.hub import Waiting
from lash_store.ops.statement import Op, execute, fetch, ring

KIND = "notes"


def write_note(note_id: str, during: Callable[[], object] = lambda: None) -> Op[int]:
    """Write a note and ring. `during` runs in mid-operation."""
    changed = yield from execute("INSERT INTO {digests} (attachment_id, byte_len) VALUES (:note_id, 1)", note_id=note_id)
    during()
    yield from ring(KIND, note_id)
    return changed


def refuse_note(note_id: str) -> Op[int]:
    """Write a note, then change one's mind."""
    yield from write_note(note_id)
    raise NotFound("note", note_id)


def notes() -> Op[list[str]]:
    """All notes."""
    rows = yield from fetch("SELECT attachment_id FROM {digests} ORDER BY attachment_id")
    return [row[0] for row in rows]


def look_for_notes(waiting: Waiting) -> Op[set[str | None]]:
    """The slow look: which of the waited-for notes are there."""
    found = yield from notes()
    return {id for id, _ in waiting if (found if id is None else id in found)}


PROBES = {KIND: look_for_notes}
