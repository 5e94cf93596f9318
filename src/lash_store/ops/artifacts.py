"""Artifacts: bytes bound to a ref, or replaced under it; process environments go when nothing names them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from lash_store.encode import Encoder, check, decode, digest
from lash_store.errors import Corrupt, InvalidArgument, NotFound, ReplayConflict
from lash_store.model.artifact import ArtifactEntry, ArtifactPage, ArtifactRef, Namespace
from lash_store.ops.statement import Op, Row, database_now, execute, fetch, fetch_one

Verify = Callable[[str, bytes], bool]

ARTIFACT_LIMIT = "component_bytes"  # the field of Limits that bounds one artifact: it is read whole, as a component is

_MINTED = {Namespace.MODULE: "module:sha256:", Namespace.PROCESS_ENV: "process-env:sha256:"}
_HASH_AT_END = re.compile(r"sha256:(?P<hex>[0-9a-f]{64})\Z")


# --- pure -----------------------------------------------------------------------------------------------------------------


class PreparedArtifact(Struct, frozen=True, kw_only=True):
    """An artifact after the checks, with its ref."""

    namespace: Namespace
    ref: str
    descriptor: str | None
    data: bytes
    digest: bytes


class StoredArtifact(Struct, frozen=True, kw_only=True):
    """A row as it was read, unverified."""

    namespace: Namespace
    ref: str
    data: bytes
    digest: bytes
    byte_len: int


def prepare(
    namespace: object, data: object, encoder: Encoder, *, ref: object, descriptor: object, verify: Verify | None
) -> PreparedArtifact:
    """Check the bytes and their ref, or mint the ref from the bytes."""
    space = checked_namespace(namespace)
    own = encoder.data(data, "data", limit=ARTIFACT_LIMIT)
    name = _minted(space, own) if ref is None else encoder.id(ref, "ref")
    if not names(space, name, own):
        raise InvalidArgument("ref", "carries a sha256 that is not the one of the bytes")
    if verify is not None and not verify(name, own):
        raise InvalidArgument("ref", "does not name these bytes: the caller's verification said no")
    return PreparedArtifact(
        namespace=space,
        ref=name,
        descriptor=encoder.optional_text(descriptor, "descriptor"),
        data=own,
        digest=artifact_digest(space, name, own),
    )


def checked_namespace(namespace: object) -> Namespace:
    """The namespace of that name."""
    try:
        return Namespace(namespace)
    except ValueError:
        raise InvalidArgument("namespace", f"must be one of {', '.join(Namespace)}") from None


def _minted(namespace: Namespace, data: bytes) -> str:
    if namespace not in _MINTED:
        raise InvalidArgument("ref", f"is needed in namespace {namespace.value}: only content-addressed refs are minted")
    return _MINTED[namespace] + hashlib.sha256(data).hexdigest()


def names(namespace: Namespace, ref: str, data: bytes) -> bool:
    """Whether a ref may stand for these bytes, as far as the ref itself tells.

    A module's ref may end in the hash of its meaning, which only the application can compute: of modules, only the refs
    minted here are compared.
    """
    stated = _HASH_AT_END.search(ref)
    if stated is None or namespace is Namespace.RAW:
        return True
    if namespace is Namespace.MODULE and ref[: stated.start("hex")] != _MINTED[namespace]:
        return True
    return stated["hex"] == hashlib.sha256(data).hexdigest()


def artifact_digest(namespace: Namespace, ref: str, data: bytes) -> bytes:
    """Of the bytes and their place: a row that moved is found too."""
    return digest("artifact/1", namespace.value, ref, data)


def verified(stored: StoredArtifact, verify: Verify | None = None) -> bytes:
    """The bytes, or Corrupt when they are not what was put, or not what their ref says."""
    row = row_name(stored.namespace, stored.ref)
    if len(stored.data) != stored.byte_len:
        raise Corrupt("artifacts", row, f"it holds {len(stored.data)} of {stored.byte_len} bytes")
    check(stored.digest, artifact_digest(stored.namespace, stored.ref, stored.data), table="artifacts", row=row)
    if not names(stored.namespace, stored.ref, stored.data):
        raise Corrupt("artifacts", row, "its content does not match the sha256 in its ref")
    if verify is not None and not verify(stored.ref, stored.data):
        raise Corrupt("artifacts", row, "the caller's verification of its ref failed")
    return stored.data


def row_name(namespace: Namespace, ref: str) -> str:
    """How errors name an artifact's row."""
    return f"{namespace.value}/{ref}"


def env_bytes(spec: object, encoder: Encoder) -> bytes:
    """One byte string for equal specs: compact JSON, keys sorted, characters unescaped. Its sha256 is `stable_hash(spec)`."""
    encoder.json(spec, "spec")
    text = json.dumps(spec, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "surrogatepass")


def env_spec(ref: str, data: bytes) -> Any:
    """The value those bytes stand for."""
    row = row_name(Namespace.PROCESS_ENV, ref)
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise Corrupt("artifacts", row, "it is not UTF-8") from None
    return decode(text, table="artifacts", row=row)


# --- operations -----------------------------------------------------------------------------------------------------------


def put_bound(prepared: PreparedArtifact) -> Op[None]:
    """Bind a ref to its bytes for good. The same bytes again renew its age and heal damage; other bytes are refused."""
    # Clock and comparison are in the one statement that takes the row's lock: a collection comes before it or after it.
    count = yield from execute(
        """
        INSERT INTO {artifacts} (namespace, ref, descriptor, data, digest, size, created_ms, updated_ms)
        VALUES (:namespace, :ref, :descriptor, :data, :digest, :size, {now_ms}, {now_ms})
        ON CONFLICT (namespace, ref) DO UPDATE SET updated_ms = {now_ms}, data = excluded.data, size = excluded.size
        WHERE {artifacts}.digest = excluded.digest
        """,
        **_columns(prepared),
    )
    if count == 0:
        raise ReplayConflict("artifact", key=prepared.ref, owner=prepared.namespace.value)


def put_raw(prepared: PreparedArtifact) -> Op[None]:
    """Give a ref these bytes, whatever it held before."""
    yield from execute(
        """
        INSERT INTO {artifacts} (namespace, ref, descriptor, data, digest, size, created_ms, updated_ms)
        VALUES (:namespace, :ref, :descriptor, :data, :digest, :size, {now_ms}, {now_ms})
        ON CONFLICT (namespace, ref) DO UPDATE
        SET descriptor = excluded.descriptor, data = excluded.data, digest = excluded.digest, size = excluded.size,
            updated_ms = {now_ms}
        """,
        **_columns(prepared),
    )


def _columns(prepared: PreparedArtifact) -> dict[str, Any]:
    return {
        "namespace": prepared.namespace.value,
        "ref": prepared.ref,
        "descriptor": prepared.descriptor,
        "data": prepared.data,
        "digest": prepared.digest,
        "size": len(prepared.data),
    }


def get(namespace: Namespace, ref: str) -> Op[StoredArtifact]:
    """The row with its bytes."""
    row = yield from fetch_one(
        "SELECT data, digest, size FROM {artifacts} WHERE namespace = :namespace AND ref = :ref",
        namespace=namespace.value,
        ref=ref,
    )
    if row is None:
        raise NotFound("artifact", ref)
    return StoredArtifact(namespace=namespace, ref=ref, data=bytes(row[0]), digest=bytes(row[1]), byte_len=row[2])


def entry(namespace: Namespace, ref: str) -> Op[ArtifactEntry]:
    """The row without its bytes."""
    row = yield from fetch_one(
        """
        SELECT namespace, ref, descriptor, size, created_ms, updated_ms FROM {artifacts}
        WHERE namespace = :namespace AND ref = :ref
        """,
        namespace=namespace.value,
        ref=ref,
    )
    if row is None:
        raise NotFound("artifact", ref)
    return _as_entry(row)


def page(namespace: Namespace, *, limit: int, after: str) -> Op[ArtifactPage]:
    """The artifacts of a namespace, by ref."""
    rows = yield from fetch(
        """
        SELECT namespace, ref, descriptor, size, created_ms, updated_ms FROM {artifacts}
        WHERE namespace = :namespace AND ref > :after
        ORDER BY ref
        LIMIT :limit
        """,
        namespace=namespace.value,
        after=after,
        limit=limit,
    )
    cursor = rows[-1][1] if len(rows) == limit else None
    return ArtifactPage(entries=tuple(_as_entry(row) for row in rows), cursor=cursor)


def _as_entry(row: Row) -> ArtifactEntry:
    namespace, ref, descriptor, size, created_ms, updated_ms = row
    return ArtifactEntry(
        ref=ArtifactRef(namespace=Namespace(namespace), ref=ref, byte_len=size),
        descriptor=descriptor,
        created_ms=created_ms,
        updated_ms=updated_ms,
    )


def delete(namespace: Namespace, ref: str) -> Op[bool]:
    """Remove an artifact. False when there was none."""
    count = yield from execute(
        "DELETE FROM {artifacts} WHERE namespace = :namespace AND ref = :ref", namespace=namespace.value, ref=ref
    )
    return count == 1


# --- collecting -----------------------------------------------------------------------------------------------------------

_UNNAMED_ENVS = """
    SELECT a.ref, a.size, a.updated_ms FROM {artifacts} a
    WHERE a.namespace = 'process_env' AND a.updated_ms <= :cutoff_ms
      AND (a.updated_ms, a.ref) > (CAST(:after_ms AS {int}), CAST(:after_ref AS TEXT))
      AND NOT EXISTS (SELECT 1 FROM {processes} p WHERE p.env_ref = a.ref AND p.pruned_ms IS NULL)
      AND NOT EXISTS (SELECT 1 FROM {subscriptions} s WHERE s.env_ref = a.ref)
    ORDER BY a.updated_ms, a.ref
    LIMIT :limit
"""


def hold_environments(refs: Iterable[str], now_ms: int) -> Op[None]:
    """Keep environments from a collection that runs beside the transaction which names them: locked in order, and young."""
    wanted = sorted(refs)
    if not wanted:
        return
    yield from fetch(
        """
        SELECT ref FROM {artifacts} WHERE namespace = 'process_env' AND ref {any_text:refs}
        ORDER BY ref
        {for_update}
        """,
        refs=wanted,
    )
    yield from execute(
        "UPDATE {artifacts} SET updated_ms = :now_ms WHERE namespace = 'process_env' AND ref {any_text:refs}",
        refs=wanted,
        now_ms=now_ms,
    )


class Collected(Struct, frozen=True, kw_only=True):
    """One step of a collection, and where the next one starts; None when nothing is left."""

    removed: int
    removed_bytes: int
    after: tuple[int, str] | None


def collect_step(*, older_than_ms: int, limit: int, after: tuple[int, str]) -> Op[Collected]:
    """Remove environments that nothing names and nobody put for so long, at most `limit` of them."""
    now_ms = yield from database_now()
    # A row that somebody is putting at this moment is skipped: it is young.
    rows = yield from fetch(
        _UNNAMED_ENVS + "{skip_locked}",
        cutoff_ms=now_ms - older_than_ms,
        after_ms=after[0],
        after_ref=after[1],
        limit=limit,
    )
    named = yield from _named([row[0] for row in rows])
    doomed = [row for row in rows if row[0] not in named]
    yield from execute(
        "DELETE FROM {artifacts} WHERE namespace = 'process_env' AND ref {any_text:refs}", refs=[row[0] for row in doomed]
    )
    return Collected(removed=len(doomed), removed_bytes=sum(row[1] for row in doomed), after=_next(rows, limit))


def _named(refs: list[str]) -> Op[set[str]]:
    """Which of these a process or a subscription names by now: looked up again, because one may have come before our locks."""
    rows = yield from fetch(
        """
        SELECT env_ref FROM {processes} WHERE env_ref {any_text:refs} AND pruned_ms IS NULL
        UNION
        SELECT env_ref FROM {subscriptions} WHERE env_ref {any_text:refs}
        """,
        refs=refs,
    )
    return {row[0] for row in rows}


def collectable(*, older_than_ms: int, limit: int, after: tuple[int, str]) -> Op[Collected]:
    """What `collect_step` would remove, changing nothing."""
    now_ms = yield from database_now()
    rows = yield from fetch(_UNNAMED_ENVS, cutoff_ms=now_ms - older_than_ms, after_ms=after[0], after_ref=after[1], limit=limit)
    return Collected(removed=len(rows), removed_bytes=sum(row[1] for row in rows), after=_next(rows, limit))


def _next(rows: list[Row], limit: int) -> tuple[int, str] | None:
    return (rows[-1][2], rows[-1][0]) if len(rows) == limit else None
