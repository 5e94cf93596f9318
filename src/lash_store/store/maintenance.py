"""Retention and health: collect what nothing needs any more, and compare the schema with the shipped one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from lash_store.db.migrate import look
from lash_store.db.shape import check_schema
from lash_store.model.limits import COLLECT_ROWS_PER_TRANSACTION
from lash_store.model.maintenance import CollectReport
from lash_store.ops import collect, sessions, statement
from lash_store.ops.checkpoints import Version
from lash_store.ops.collect import Plan
from lash_store.store.runtime import AsyncRuntime
from lash_store.store.sessions import purge

SESSIONS_PER_PAGE = 200  # sessions looked up per statement of a collection
REPLANS_MAX = 8  # commits that may come in between before a session is left for the next call


class Tally(Struct):
    """The report of a collection while it is being made."""

    sessions_scanned: int = 0
    sessions_purged: int = 0
    versions_scanned: int = 0
    versions_kept: int = 0
    versions_rewritten: int = 0
    versions_deleted: int = 0
    settled_keys_deleted: int = 0
    complete: bool = True

    def report(self) -> CollectReport:
        """The finished report."""
        return CollectReport(**{name: getattr(self, name) for name in self.__struct_fields__})


class AsyncMaintenance:
    """Work that keeps a store small and honest. Every call is bounded, resumable and safe beside writers."""

    def __init__(self, runtime: AsyncRuntime) -> None:
        self._runtime = runtime
        self._encoder = runtime.encoder

    async def collect(self, *, keep_checkpoints: int = 1, session_id: str | None = None, dry_run: bool = False) -> CollectReport:
        """Keep the newest checkpoint states of each session, drop older ones; finish purges; forget old settled keys.

        What a kept state needs is rewritten whole first. A load as of an older revision is NotFound afterwards.
        """
        keep = self._encoder.counter(keep_checkpoints, "keep_checkpoints", minimum=1)
        tally = Tally()
        if session_id is not None:
            await self._collect_session(self._encoder.id(session_id, "session_id"), keep, tally, dry_run=dry_run)
            return tally.report()
        after: str | None = ""
        while after is not None:
            ids = await self._runtime.read(collect.session_ids, after=after, limit=SESSIONS_PER_PAGE)
            for each in ids:
                await self._collect_session(each, keep, tally, dry_run=dry_run)
            after = ids[-1] if len(ids) == SESSIONS_PER_PAGE else None
        if not dry_run:
            await self._finish_purges(tally)
            await self._forget_keys(tally)
        return tally.report()

    async def _collect_session(self, session_id: str, keep: int, tally: Tally, *, dry_run: bool) -> None:
        tally.sessions_scanned += 1
        for _ in range(REPLANS_MAX):
            found = await self._runtime.read(collect.look, session_id, keep)
            plan, versions = found.plan, found.history.versions
            if plan is None or dry_run or await self._apply(plan, found.chains):
                break
        else:
            tally.complete = False
            return
        tally.versions_scanned += len(versions)
        tally.versions_kept += len(versions) if plan is None else plan.kept
        tally.versions_rewritten += 0 if plan is None else len(plan.whole)
        if dry_run:
            tally.versions_deleted += 0 if plan is None else plan.doomed
            return
        complete = False
        while not complete:
            step = await self._runtime.write(collect.delete_step, session_id, COLLECT_ROWS_PER_TRANSACTION)
            tally.versions_deleted += step.versions
            complete = step.complete

    async def _apply(self, plan: Plan, chains: Sequence[Sequence[Version]]) -> bool:
        frames = await self._runtime.offload(collect.rebuild, plan.session_id, chains)
        return await self._runtime.write(collect.apply, plan, frames)

    async def _finish_purges(self, tally: Tally) -> None:
        after: str | None = ""
        while after is not None:
            ids = await self._runtime.read(sessions.purging, after=after, limit=SESSIONS_PER_PAGE)
            for session_id in ids:
                await purge(self._runtime, session_id)
                tally.sessions_purged += 1
            after = ids[-1] if len(ids) == SESSIONS_PER_PAGE else None

    async def _forget_keys(self, tally: Tally) -> None:
        now_ms = await self._runtime.read(statement.database_now)
        while True:
            count = await self._runtime.write(
                collect.delete_settled_keys,
                retention_ms=self._runtime.settled_key_retention_ms,
                limit=COLLECT_ROWS_PER_TRANSACTION,
                now_ms=now_ms,
            )
            tally.settled_keys_deleted += count
            if count < COLLECT_ROWS_PER_TRANSACTION:
                return

    async def schema_version(self) -> int:
        """The version of the schema the database holds."""
        return (await self._runtime.read(look, self._runtime.dialect)).version

    async def check_schema(self) -> tuple[str, ...]:
        """Every difference between the database's tables and the shipped ones, in words; empty when there is none."""
        return await self._runtime.read(check_schema, self._runtime.dialect)
