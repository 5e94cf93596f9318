"""Artifacts: modules, raw bytes and process environments, by their refs."""

from __future__ import annotations

from functools import partial
from typing import Any

from lash_store.model.artifact import ArtifactCollectReport, ArtifactEntry, ArtifactPage, ArtifactRef, Namespace
from lash_store.model.limits import MIB
from lash_store.ops import artifacts
from lash_store.ops.artifacts import Verify
from lash_store.store.keys import keyed
from lash_store.store.runtime import AsyncRuntime, AsyncTransactionRuntime

COLLECT_PAGE = 100  # environments one transaction of a collection removes
COLLECT_MAX = 10_000  # environments one call removes: call again for more
HERE_BYTES = MIB  # hashing less takes less than handing it to a thread


class AsyncArtifacts:
    """Bytes under refs, in three namespaces that never meet."""

    def __init__(self, runtime: AsyncRuntime | AsyncTransactionRuntime) -> None:
        self._runtime = runtime
        self._encoder = runtime.encoder

    async def put(
        self,
        namespace: Namespace | str,
        data: bytes | bytearray | memoryview,
        *,
        ref: str | None = None,
        descriptor: str | None = None,
        verify: Verify | None = None,
    ) -> ArtifactRef:
        """Store bytes under a ref; without one, it is minted from their sha256.

        `module` and `process_env` refs are bound to their first bytes: the same again renews their age, others are
        ReplayConflict. A `raw` ref takes the new bytes. `verify(ref, data)` checks a hash only the caller can compute.
        """
        prepare = partial(artifacts.prepare, namespace, data, self._encoder, ref=ref, descriptor=descriptor, verify=verify)
        prepared = await self._runtime.offload(prepare) if _is_large(data) or verify is not None else prepare()
        store = artifacts.put_raw if prepared.namespace is Namespace.RAW else artifacts.put_bound
        with keyed(prepared.ref):
            await self._runtime.write(store, prepared)
        return ArtifactRef(namespace=prepared.namespace, ref=prepared.ref, byte_len=len(prepared.data))

    async def get(self, namespace: Namespace | str, ref: str, *, verify: Verify | None = None) -> bytes:
        """The bytes, verified: Corrupt when they are not what was put, or `verify(ref, data)` is false."""
        space = artifacts.checked_namespace(namespace)
        stored = await self._runtime.read(artifacts.get, space, self._ref(ref))
        if _is_large(stored.data) or verify is not None:
            return await self._runtime.offload(artifacts.verified, stored, verify)
        return artifacts.verified(stored)

    async def entry(self, namespace: Namespace | str, ref: str) -> ArtifactEntry:
        """An artifact without its bytes."""
        return await self._runtime.read(artifacts.entry, artifacts.checked_namespace(namespace), self._ref(ref))

    async def list(self, namespace: Namespace | str, *, limit: int = 100, cursor: str | None = None) -> ArtifactPage:
        """The artifacts of a namespace, by ref."""
        after = "" if cursor is None else self._encoder.text(cursor, "cursor")
        count = self._encoder.counter(limit, "limit", minimum=1, maximum=self._runtime.limits.page_rows, limit="page_rows")
        return await self._runtime.read(artifacts.page, artifacts.checked_namespace(namespace), limit=count, after=after)

    async def delete(self, namespace: Namespace | str, ref: str) -> bool:
        """Remove an artifact, whoever names it. False when there was none."""
        return await self._runtime.write(artifacts.delete, artifacts.checked_namespace(namespace), self._ref(ref))

    async def put_env(self, spec: Any) -> str:
        """Store a process's environment, any JSON value, and return its ref. Equal values have the same ref."""
        return (await self.put(Namespace.PROCESS_ENV, artifacts.env_bytes(spec, self._encoder))).ref

    async def get_env(self, ref: str) -> Any:
        """The environment under a ref."""
        return artifacts.env_spec(ref, await self.get(Namespace.PROCESS_ENV, ref))

    async def collect(self, *, older_than_ms: int, dry_run: bool = False) -> ArtifactCollectReport:
        """Remove process environments that were last put this long ago and that no process and no subscription names.

        A pruned process names nothing. Modules and raw artifacts are never collected: what names them is not known here.
        """
        age_ms = self._encoder.duration(older_than_ms, "older_than_ms")
        step = artifacts.collectable if dry_run else artifacts.collect_step
        run = self._runtime.read if dry_run else self._runtime.write
        removed = size = 0
        after: tuple[int, str] | None = (-1, "")
        while after is not None and removed < COLLECT_MAX:
            done = await run(step, older_than_ms=age_ms, limit=COLLECT_PAGE, after=after)
            removed, size, after = removed + done.removed, size + done.removed_bytes, done.after
        return ArtifactCollectReport(removed=removed, removed_bytes=size, complete=after is None)

    def _ref(self, ref: str) -> str:
        return self._encoder.id(ref, "ref")


def _is_large(data: object) -> bool:
    return isinstance(data, bytes | bytearray | memoryview) and memoryview(data).nbytes > HERE_BYTES
