"""Retention and health: collect what nothing needs any more, look who holds what and what grows, examine, back up."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from lash_store.db.health import facts, risks, sizes
from lash_store.db.migrate import look
from lash_store.db.scripts import library_version
from lash_store.db.shape import check_schema
from lash_store.model.limits import COLLECT_ROWS_PER_TRANSACTION
from lash_store.model.maintenance import (
    BackupReport,
    CollectReport,
    Examination,
    Finding,
    LeasePage,
    Severity,
    Stats,
)
from lash_store.ops import collect, held, sessions, statement, stats
from lash_store.ops.checkpoints import Version
from lash_store.ops.collect import Plan
from lash_store.store.advice import advice
from lash_store.store.runtime import AsyncRuntime
from lash_store.store.sampling import AsyncSample
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

    # --- looking ----------------------------------------------------------------------------------------------------------

    async def leases(self, *, limit: int = 100, cursor: str | None = None) -> LeasePage:
        """Who holds what: claims of all inboxes, then leases of processes; also those whose time has passed."""
        limit = self._encoder.counter(limit, "limit", minimum=1, maximum=self._runtime.limits.page_rows, limit="page_rows")
        after = held.after_cursor(None if cursor is None else self._encoder.text(cursor, "cursor"))
        return await self._runtime.read(held.page, after, limit)

    async def stats(self) -> Stats:
        """Sizes, depths and ages of everything. The work is bounded: a count stops at `counted_to`."""
        counted = await self._runtime.read(stats.counted, stats.COUNT_MAX)
        measured = await self._runtime.read(sizes, self._runtime.dialect, stats.COUNT_MAX)
        return Stats(
            engine=self._runtime.engine,
            counted_to=stats.COUNT_MAX,
            size=measured.size,
            free=measured.free,
            tables=measured.tables,
            **structs.asdict(counted),
        )

    async def examine(self, *, sample: int = 20) -> Examination:
        """Look for what is wrong or risky and say what to do: schema, engine, settings, digests of a sample, work left lying.

        It only reads. `sample` is how many sessions, and how many processes, are verified; some of the newest, some by chance.
        """
        count = self._encoder.counter(sample, "sample", maximum=self._runtime.limits.page_rows, limit="page_rows")
        version = await self.schema_version()
        known = await self._runtime.read(facts, self._runtime.dialect)
        findings = [_differs(difference) for difference in await self.check_schema()]
        findings += risks(self._runtime.engine, known, self._runtime.driver.path)
        seen = AsyncSample(self._runtime)
        if all(finding.severity is not Severity.PROBLEM for finding in findings):
            await seen.take(count)
            findings += [*seen.findings, *advice(await self.stats())]
        if version > library_version():
            findings.append(_newer(version))
        return Examination(
            engine=self._runtime.engine,
            engine_version=known.version,
            schema_version=version,
            settings=known.settings,
            verified=seen.verified,
            findings=tuple(findings),
        )

    async def backup(self, path: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None) -> BackupReport:
        """Copy a SQLite database to a new file while others write it: one snapshot, read again before it gets its name.

        `progress` is told the pages done and all pages. Attachments in a folder are not in it: copy the folder afterwards.
        On PostgreSQL it is Misuse, which names the server's own tools.
        """
        return await self._runtime.offload(self._runtime.driver.backup, os.fspath(path), progress)


def _differs(difference: str) -> Finding:
    return Finding(
        severity=Severity.PROBLEM,
        what=f"the schema differs from the shipped one: {difference}",
        advice="`lash-store sql` prints the shipped schema. Restore what differs, or restore a backup.",
    )


def _newer(version: int) -> Finding:
    return Finding(
        severity=Severity.NOTE,
        what=f"the schema is at version {version}, this library knows {library_version()}; it says that both fit together",
        advice="Upgrade lash-store here when it is convenient.",
    )
