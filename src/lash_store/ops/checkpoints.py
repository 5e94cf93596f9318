"""Checkpoint components: versions as full zstd frames or deltas, written only when the content changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from lash_store import delta
from lash_store.encode import digest
from lash_store.errors import Corrupt
from lash_store.model import session as model
from lash_store.model.limits import CHECKPOINT_CHAIN_MAX, CHECKPOINT_DELTA_MAX_BYTES
from lash_store.ops.heads import look_session
from lash_store.ops.statement import Op, Row, execute_many, fetch


class PreparedComponent(Struct, frozen=True, kw_only=True):
    """A component of a commit, compressed before any SQL. No digest: it is removed. A base: its frame is a delta.

    `chain` is its place since the last full frame, as far as this process knows.
    """

    component: str
    digest: bytes | None
    size: int = 0
    frame: bytes | None = None
    base_digest: bytes | None = None
    chain: int = 1


class Component(Struct, frozen=True):
    """The current version of a component, as read under the session lock."""

    component: str
    revision: int
    full_revision: int
    chain: int
    digest: bytes | None


class Version(Struct, frozen=True):
    """One stored version, with its frame."""

    component: str
    revision: int
    full_revision: int
    base_revision: int | None
    digest: bytes | None
    size: int
    frame: bytes | None


class NeedsFullFrame(Exception):
    """The delta does not fit what is stored: its base was replaced or its chain is full. Send full frames instead."""


def prepare(
    session_id: str,
    checkpoint: Mapping[str, bytes | None],
    held: delta.Held,
    *,
    full: bool,
    digests: Mapping[str, bytes] | None = None,
) -> tuple[PreparedComponent, ...]:
    """Hash and compress the components: a delta where this process holds the previous bytes, else a full frame.

    `digests` are the sha256 of the components, when the caller has them already.
    """
    known, bases = digests or {}, None if full else held
    return tuple(
        PreparedComponent(component=name, digest=None)
        if data is None
        else _prepared(session_id, name, data, known.get(name) or hashlib.sha256(data).digest(), bases)
        for name, data in sorted(checkpoint.items())
    )


def _prepared(session_id: str, name: str, data: bytes, content: bytes, held: delta.Held | None) -> PreparedComponent:
    base = None if held is None or len(data) > CHECKPOINT_DELTA_MAX_BYTES else held.get(session_id, name)
    base_digest, base_data, chain = base or (None, b"", 0)
    if base_digest == content:
        return PreparedComponent(component=name, digest=content, size=len(data), base_digest=base_digest, chain=chain)
    # The chain that is held may be full: then the commit would be refused, and come back with a full frame anyway.
    if base_digest is None or chain >= CHECKPOINT_CHAIN_MAX:
        return PreparedComponent(component=name, digest=content, size=len(data), frame=delta.full(data))
    frame = delta.delta(base_data, data)
    return PreparedComponent(
        component=name, digest=content, size=len(data), frame=frame, base_digest=base_digest, chain=chain + 1
    )


def components(session_id: str, named: Sequence[str]) -> Op[dict[str, Component]]:
    """The current version of every component the checkpoint has, and of those a commit names."""
    rows = yield from fetch(
        """
        SELECT component, revision, full_revision, chain, digest FROM {components}
        WHERE session_id = :session_id AND (digest IS NOT NULL OR component {any_text:named})
        """,
        session_id=session_id,
        named=list(named),
    )
    return {row[0]: Component(row[0], row[1], row[2], row[3], None if row[4] is None else bytes(row[4])) for row in rows}


def plan_versions(
    prepared: Sequence[PreparedComponent], current: Mapping[str, Component], revision: int
) -> tuple[list[Version], dict[str, Component]]:
    """The versions to write, and every component as it stands after them. Equal content writes nothing."""
    after = dict(current)
    versions: list[Version] = []
    for new in prepared:
        before = current.get(new.component)
        if new.digest == (None if before is None else before.digest):
            continue
        version, chain = _version(new, before, revision)
        versions.append(version)
        after[new.component] = Component(new.component, revision, version.full_revision, chain, new.digest)
    return versions, after


def _version(new: PreparedComponent, before: Component | None, revision: int) -> tuple[Version, int]:
    if new.digest is None:
        return Version(new.component, revision, revision, None, None, 0, None), 1
    if new.base_digest is None:
        return Version(new.component, revision, revision, None, new.digest, new.size, new.frame), 1
    fits = before is not None and before.digest == new.base_digest and before.chain < CHECKPOINT_CHAIN_MAX
    if before is None or not fits or new.frame is None:
        raise NeedsFullFrame
    return (
        Version(new.component, revision, before.full_revision, before.revision, new.digest, new.size, new.frame),
        before.chain + 1,
    )


def checkpoint_digest(after: Mapping[str, Component]) -> bytes | None:
    """The name of the whole checkpoint: it changes if and only if its content does."""
    return digest_of({c.component: c.digest for c in after.values() if c.digest is not None})


def digest_of(contents: Mapping[str, bytes]) -> bytes | None:
    """The same of the names that are there and the digests of their bytes."""
    if not contents:
        return None
    return digest("checkpoint/1", *(part for pair in sorted(contents.items()) for part in pair))


def write_versions(session_id: str, versions: Sequence[Version], after: Mapping[str, Component]) -> Op[None]:
    """Insert the new versions and move the components to them: two statements, whatever their number."""
    count = yield from execute_many(
        """
        INSERT INTO {versions} (session_id, component, revision, full_revision, base_revision, digest, size, frame)
        SELECT CAST(:session_id AS TEXT), rows.component, rows.revision, rows.full_revision, rows.base_revision, rows.digest,
               rows.size, rows.frame
        FROM {rows(component text, revision int, full_revision int, base_revision int, digest bytes, size int, frame bytes)}
        """,
        [
            {
                "component": v.component,
                "revision": v.revision,
                "full_revision": v.full_revision,
                "base_revision": v.base_revision,
                "digest": v.digest,
                "size": v.size,
                "frame": v.frame,
            }
            for v in versions
        ],
        session_id=session_id,
    )
    assert count == len(versions), "a version was not written"
    yield from execute_many(
        """
        INSERT INTO {components} (session_id, component, revision, full_revision, chain, digest)
        SELECT CAST(:session_id AS TEXT), rows.component, rows.revision, rows.full_revision, rows.chain, rows.digest
        FROM {rows(component text, revision int, full_revision int, chain int, digest bytes)}
        WHERE true
        ON CONFLICT (session_id, component) DO UPDATE
        SET revision = excluded.revision, full_revision = excluded.full_revision, chain = excluded.chain,
            digest = excluded.digest
        """,
        [
            {
                "component": v.component,
                "revision": v.revision,
                "full_revision": v.full_revision,
                "chain": after[v.component].chain,
                "digest": v.digest,
            }
            for v in versions
        ],
        session_id=session_id,
    )


def listed(session_id: str, incarnation: int | None = None) -> Op[list[Row]]:
    """Name, size, digest and revision of every component the checkpoint has, without its frames."""
    yield from look_session(session_id, incarnation)
    return (
        yield from fetch(
            """
            SELECT c.component, v.size, c.digest, c.revision
            FROM {components} c
            LEFT JOIN {versions} v ON v.session_id = c.session_id AND v.component = c.component AND v.revision = c.revision
            WHERE c.session_id = :session_id AND c.digest IS NOT NULL
            ORDER BY c.component
            """,
            session_id=session_id,
        )
    )


def component(session_id: str, row: Row) -> model.Component:
    """A component as callers see it; one whose version is gone is not one without bytes."""
    name, size, content, revision = row
    if size is None:
        raise Corrupt("versions", f"{session_id!r}/{name!r}@{revision}", "the row is missing")
    return model.Component(name=name, size=size, digest=bytes(content).hex(), revision=revision)


def chains_at(session_id: str, revision: int) -> Op[list[Version]]:
    """The frames a load as of a revision needs."""
    rows = yield from fetch(
        """
        SELECT v.component, v.revision, v.full_revision, v.base_revision, v.digest, v.size, v.frame
        FROM (SELECT l.component, l.full_revision, l.revision
              FROM (SELECT c.component, (SELECT MAX(x.revision) FROM {versions} x
                                         WHERE x.session_id = c.session_id AND x.component = c.component
                                           AND x.revision <= :revision) AS revision
                    FROM {components} c
                    WHERE c.session_id = :session_id) AS latest
              CROSS JOIN {lookup}{versions} l
              WHERE l.session_id = :session_id AND l.component = latest.component AND l.revision = latest.revision
                AND l.digest IS NOT NULL {end_lookup:l}) AS newest
        CROSS JOIN {lookup}{versions} v
        WHERE v.session_id = :session_id AND v.component = newest.component AND v.revision >= newest.full_revision
          AND v.revision <= newest.revision {end_lookup:v}
        ORDER BY v.component, v.revision
        """,
        session_id=session_id,
        revision=revision,
    )
    return [Version(*row) for row in rows]


def restore(session_id: str, versions: Sequence[Version]) -> dict[str, bytes]:
    """Rebuild every component from its frames, and verify what comes out."""
    by_component: dict[str, list[Version]] = {}
    for version in versions:
        by_component.setdefault(version.component, []).append(version)
    return {name: restore_chain(session_id, chain) for name, chain in by_component.items()}


def restore_chain(session_id: str, chain: Sequence[Version]) -> bytes:
    """The bytes of the last version of a chain."""
    last = chain[-1]
    row = f"{session_id!r}/{last.component!r}@{last.revision}"
    frames = [bytes(version.frame) for version in chain if version.frame is not None]
    linked = chain[0].base_revision is None and all(b.base_revision == a.revision for a, b in pairwise(chain))
    if len(frames) != len(chain) or not linked or last.digest is None:
        raise Corrupt("versions", row, "a frame of its chain is missing")
    try:
        data = delta.restore(frames, sizes=[version.size for version in chain])
    except ValueError as error:
        raise Corrupt("versions", row, str(error)) from error
    if hashlib.sha256(data).digest() != bytes(last.digest):
        raise Corrupt("versions", row, "its bytes do not match their digest")
    return data


def history(session_id: str) -> Op[list[Version]]:
    """Every version of the session without its frame, oldest first in each component."""
    rows = yield from fetch(
        """
        SELECT component, revision, full_revision, base_revision, digest, size
        FROM {versions}
        WHERE session_id = :session_id
        ORDER BY component, revision
        """,
        session_id=session_id,
    )
    return [Version(row[0], row[1], row[2], row[3], row[4], row[5], None) for row in rows]


def frames_between(session_id: str, names: Sequence[str], *, first_revision: int, last_revision: int) -> Op[list[Version]]:
    """The versions of some components between two revisions, with their frames."""
    rows = yield from fetch(
        """
        SELECT component, revision, full_revision, base_revision, digest, size, frame
        FROM {versions}
        WHERE session_id = :session_id AND component {any_text:names}
          AND revision >= :first_revision AND revision <= :last_revision
        ORDER BY component, revision
        """,
        session_id=session_id,
        names=list(names),
        first_revision=first_revision,
        last_revision=last_revision,
    )
    return [Version(*row) for row in rows]


def make_whole(session_id: str, frames: Sequence[tuple[Version, bytes]]) -> Op[bool]:
    """Turn deltas into full frames, and let the versions after them start their chains there. False if one moved on."""
    rows = [
        {
            "component": version.component,
            "revision": version.revision,
            "full_revision": version.full_revision,
            "base_revision": version.base_revision,
            "digest": version.digest,
            "frame": frame,
        }
        for version, frame in frames
    ]
    changed = yield from execute_many(
        """
        UPDATE {versions} SET frame = rows.frame, base_revision = NULL, full_revision = rows.revision
        FROM {rows(component text, revision int, base_revision int, digest bytes, frame bytes)}
        WHERE {versions}.session_id = :session_id AND {versions}.component = rows.component
          AND {versions}.revision = rows.revision AND {versions}.digest = rows.digest
          AND {versions}.base_revision = rows.base_revision
        """,
        [{name: row[name] for name in ("component", "revision", "base_revision", "digest", "frame")} for row in rows],
        session_id=session_id,
    )
    if changed != len(rows):
        return False
    places = [{name: row[name] for name in ("component", "revision", "full_revision")} for row in rows]
    yield from execute_many(
        """
        UPDATE {versions} SET full_revision = rows.revision
        FROM {rows(component text, revision int, full_revision int)}
        WHERE {versions}.session_id = :session_id AND {versions}.component = rows.component
          AND {versions}.revision > rows.revision AND {versions}.full_revision = rows.full_revision
        """,
        places,
        session_id=session_id,
    )
    yield from execute_many(
        """
        UPDATE {components} SET full_revision = rows.revision, chain = (
            SELECT COUNT(*) FROM {versions} v
            WHERE v.session_id = {components}.session_id AND v.component = {components}.component
              AND v.revision >= rows.revision AND v.revision <= {components}.revision)
        FROM {rows(component text, revision int, full_revision int)}
        WHERE {components}.session_id = :session_id AND {components}.component = rows.component
          AND {components}.full_revision = rows.full_revision AND {components}.revision >= rows.revision
        """,
        places,
        session_id=session_id,
    )
    return True
