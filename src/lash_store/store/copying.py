"""The walk of a copy: every session, every process, then what belongs to the whole store; then all of it once more, to compare.

A session or process is read in one snapshot, verified, and written in one transaction: it is in the target whole, or as it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from lash_store.db.migrate import look
from lash_store.db.scripts import library_version
from lash_store.errors import Busy, Corrupt, Diverged, NotFound, SchemaMismatch, StoreError
from lash_store.model.transfer import CopyDifference, CopyOutcome, CopyPhase, CopyProgress, CopyReport
from lash_store.ops import transfer
from lash_store.ops.transfer import PROCESSES, SESSIONS, Kind
from lash_store.ops.transfer_check import check_shared
from lash_store.ops.transfer_rows import ahead_process, ahead_row, ahead_session
from lash_store.ops.transfer_session_tables import ATTACHMENTS
from lash_store.ops.transfer_table import Table, Values
from lash_store.ops.transfer_tables import SHARED
from lash_store.store.bundle import Bundle, Digest, verify
from lash_store.store.runtime import AsyncRuntime, AsyncTransactionRuntime

IDS_PER_PAGE = 500  # ids looked up per statement of a walk
WRITE_MAX_MS = 60 * 60 * 1000  # the one transaction that writes a session, however large
LOOKS_MAX = 8  # how often a session that changes under the copy is looked at again before the caller is told
UNIQUE_VIOLATION = "23505"  # PostgreSQL's code; SQLite has one writer, which looks under its lock
DIFFERENCES_MAX = 100  # differences a report names; it counts all

Progress = Callable[[CopyProgress], object]


class Tally(Struct):
    """The report of a copy while it is being made."""

    copied: int = 0
    forwarded: int = 0
    unchanged: int = 0
    rows: int = 0
    attachments: int = 0
    attachment_bytes: int = 0
    verified: bool = False
    different: int = 0
    differences: tuple[CopyDifference, ...] = ()
    only_in_target: int = 0

    def count(self, outcome: CopyOutcome, *, units: int, rows: int) -> None:
        """One more was looked at, and perhaps written."""
        setattr(self, outcome.value, getattr(self, outcome.value) + units)
        self.rows += 0 if outcome is CopyOutcome.UNCHANGED else rows

    def differ(self, kind: str, id: str, why: str) -> None:
        """Something is not the same in both stores."""
        self.different += 1
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences = (*self.differences, CopyDifference(kind=kind, id=id, why=why))

    def report(self) -> CopyReport:
        """The finished report."""
        return CopyReport(**{name: getattr(self, name) for name in self.__struct_fields__})


class SharedPage(Struct, frozen=True):
    """Some rows that belong to the whole store: the key they come after, and whether they are the last."""

    after: transfer.Key
    rows: list[Values]
    last: bool


class AsyncCopy:
    """One copy from a store to another. It may be broken off anywhere: the same call again goes on where it was."""

    def __init__(self, source: AsyncRuntime, target: AsyncRuntime, progress: Progress | None) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self._tally = Tally()
        self._phase = CopyPhase.COPY
        self._done = self._total = 0

    async def run(self, *, verify: bool) -> CopyReport:
        """Copy everything, then compare everything."""
        await check_versions(self._source, self._target)
        await self._start(CopyPhase.COPY)
        for kind in (SESSIONS, PROCESSES):
            async for id in self._ids(self._source, kind):
                await self._copy(kind, id)
        for table in SHARED:
            await self._judge(table)
        for table in SHARED:
            await self._merge(table)
        if verify:
            await self._compare()
        return self._tally.report()

    async def _start(self, phase: CopyPhase) -> None:
        self._phase, self._done = phase, 0
        self._total = await self._source.read(transfer.total)

    async def _ids(self, runtime: AsyncRuntime, kind: Kind) -> AsyncIterator[str]:
        after: str | None = ""
        while after is not None:
            ids = await runtime.read(transfer.ids_after, kind, after, IDS_PER_PAGE)
            for id in ids:
                yield id
            after = ids[-1] if len(ids) == IDS_PER_PAGE else None

    def _tell(self, kind: str, id: str, outcome: CopyOutcome, *, units: int = 1) -> None:
        self._done += units
        self._total = max(self._total, self._done)
        if self._progress is not None:
            self._progress(CopyProgress(phase=self._phase, kind=kind, id=id, outcome=outcome, done=self._done, total=self._total))

    # --- sessions and processes

    async def _copy(self, kind: Kind, id: str) -> None:
        with Bundle(kind) as bundle:
            outcome = None
            for _ in range(LOOKS_MAX):
                if not await self._source.read(transfer.read, kind, id, bundle):
                    return
                await self._source.offload(verify, bundle, id)
                outcome = await self._place(kind, id, bundle)
                if outcome is not None:
                    break
            if outcome is None:
                raise Busy(f"{kind.name} {id!r} changed again and again while it was copied")
            self._tally.count(outcome, units=1, rows=bundle.rows)
        self._tell(kind.name, id, outcome)

    async def _place(self, kind: Kind, id: str, bundle: Bundle) -> CopyOutcome | None:
        """Write what was read; None when one of the stores changed meanwhile and must be looked at again."""
        there = await digest_of(self._target, kind, id)
        if there is not None and there.digest == bundle.digest:
            return CopyOutcome.UNCHANGED
        if there is not None and (why := await self._ahead(kind, id, there, bundle)) is not None:
            raise Diverged(kind.name, id, why=why)
        if kind is SESSIONS and not await self._move_bytes(id, bundle):
            return None
        if not await place(self._target, kind, id, bundle, instead_of=there):
            return None
        return CopyOutcome.COPIED if there is None else CopyOutcome.FORWARDED

    async def _ahead(self, kind: Kind, id: str, there: Digest, bundle: Bundle) -> str | None:
        """Why the target is not an earlier state of the source; None when it is."""
        assert there.head is not None
        assert bundle.head is not None
        if kind is PROCESSES:
            return ahead_process(there.head, bundle.head) or await self._other_log(id, there.head, bundle.head)
        why = ahead_session(there.head, bundle.head)
        same_life = there.head["incarnation"] == bundle.head["incarnation"]
        if why is None and same_life and bundle.head["state"] == "live":
            why = await self._other_history(id, there.head["revision"])
            why = why or await self._other_inbox(id, there.head["next_enqueue_seq"])
        return why

    async def _other_history(self, session_id: str, revision: int) -> str | None:
        ours = await self._source.read(transfer.commit_digest, session_id, revision)
        theirs = await self._target.read(transfer.commit_digest, session_id, revision)
        return None if ours == theirs else f"its revision {revision} is another commit"

    async def _other_log(self, process_id: str, theirs: Values, ours: Values) -> str | None:
        sequence = theirs["last_sequence"]
        if sequence == 0 or ours["pruned_ms"] is not None:
            return None
        mine = await self._source.read(transfer.event_digest, process_id, sequence)
        other = await self._target.read(transfer.event_digest, process_id, sequence)
        return None if mine == other else f"its event {sequence} is another one"

    async def _other_inbox(self, session_id: str, next_place: int) -> str | None:
        """Messages the target got by itself, or no longer has while they are still open in the source."""
        async for theirs in self._work(self._target, session_id):
            ours = await self._source.read(transfer.work_at, session_id, [place for place, _, _ in theirs])
            for place, batch_id, _ in theirs:
                if ours.get(place, (batch_id, False))[0] != batch_id:
                    return f"its message {place} is another one"
        async for ours in self._work(self._source, session_id):
            waiting = [(place, batch_id) for place, batch_id, is_open in ours if is_open and place < next_place]
            known = await self._target.read(transfer.work_at, session_id, [place for place, _ in waiting])
            for place, batch_id in waiting:
                if known.get(place) != (batch_id, True):
                    return f"its message {place} was settled there"
        return None

    async def _work(self, runtime: AsyncRuntime, session_id: str) -> AsyncIterator[list[tuple[int, str, bool]]]:
        after = -1
        while True:
            found = await runtime.read(transfer.work, session_id, after=after, limit=IDS_PER_PAGE)
            yield found
            if len(found) < IDS_PER_PAGE:
                return
            after = found[-1][0]

    async def _move_bytes(self, session_id: str, bundle: Bundle) -> bool:
        """Bring the contents the session names. False when one is gone because the session let go of it meanwhile."""
        for row in manifest(bundle):
            if await self._target.blobs.exists(row["attachment_id"], row["byte_len"]):
                continue
            if await move_bytes(self._source, self._target, row):
                self._tally.attachments += 1
                self._tally.attachment_bytes += row["byte_len"]
            elif row["committed_ms"] is not None:
                again = await digest_of(self._source, SESSIONS, session_id)
                if again is not None and again.digest == bundle.digest:
                    raise Corrupt("attachments", f"{session_id!r}/{row['attachment_id']}", "its bytes are missing")
                return False
        return True

    # --- what belongs to the whole store

    async def _judge(self, table: Table) -> None:
        """Nothing is written before every row of the target is known to be equal or older."""
        async for page in self._pages(table):
            there, _ = await rows_through(self._target, table, page.after, page.rows)
            refuse_newer(table, there, page.rows)

    async def _merge(self, table: Table) -> None:
        async for page in self._pages(table):
            for row in page.rows:
                check_shared(table, row)
            async with self._target.transaction(max_ms=WRITE_MAX_MS) as transaction:
                counts = await self._merge_page(transaction, table, page)
            for outcome, units in counts.items():
                self._tally.count(outcome, units=units, rows=units)
                if units:
                    self._tell(table.name, name_of(table, page.rows[-1]), outcome, units=units)

    async def _merge_page(self, transaction: AsyncTransactionRuntime, table: Table, page: SharedPage) -> dict[CopyOutcome, int]:
        there, _ = await rows_through(transaction, table, page.after, page.rows)
        refuse_newer(table, there, page.rows)
        fresh = [row for row in page.rows if key_of(table, row) not in there]
        newer = [row for row in page.rows if there.get(key_of(table, row), row) != row]
        await transaction.write(transfer.insert, table, [*fresh, *newer])
        same = len(page.rows) - len(fresh) - len(newer)
        return {CopyOutcome.COPIED: len(fresh), CopyOutcome.FORWARDED: len(newer), CopyOutcome.UNCHANGED: same}

    async def _pages(self, table: Table) -> AsyncIterator[SharedPage]:
        key: transfer.Key | None = table.start()
        while key is not None:
            page = await self._source.read(transfer.shared_page, table, key)
            yield SharedPage(key, page.rows, page.next_key is None)
            key = page.next_key

    # --- comparing

    async def _compare(self) -> None:
        await self._start(CopyPhase.VERIFY)
        for kind in (SESSIONS, PROCESSES):
            common = 0
            async for id in self._ids(self._source, kind):
                common += await self._compare_one(kind, id)
            self._tally.only_in_target += await self._count(kind) - common
        for table in SHARED:
            await self._compare_rows(table)
        self._tally.verified = True

    async def _count(self, kind: Kind) -> int:
        return sum([1 async for _ in self._ids(self._target, kind)])

    async def _compare_one(self, kind: Kind, id: str) -> bool:
        """Whether both stores have it; the report learns whether it is the same."""
        ours = await digest_of(self._source, kind, id)
        with Bundle(kind) as bundle:
            found = await self._target.read(transfer.read, kind, id, bundle)
            if found:
                await self._target.offload(verify, bundle, id)
            why = "it is missing" if not found else None
            if ours is not None and found and ours.digest != bundle.digest:
                why = "it is not the same"
            if found and why is None and kind is SESSIONS:
                why = await self._missing_bytes(bundle)
        if why is not None:
            self._tally.differ(kind.name, id, why)
        self._tell(kind.name, id, CopyOutcome.UNCHANGED if why is None else CopyOutcome.DIFFERENT)
        return found

    async def _missing_bytes(self, bundle: Bundle) -> str | None:
        """Read every content the session's commits name; damaged bytes are Corrupt."""
        for row in manifest(bundle):
            if row["committed_ms"] is None:
                continue
            try:
                async for _ in self._target.stream(row["attachment_id"], row["byte_len"]):
                    pass
            except NotFound:
                return f"the bytes of {row['attachment_id']} are missing"
        return None

    async def _compare_rows(self, table: Table) -> None:
        async for page in self._pages(table):
            there, others = await rows_through(self._target, table, page.after, page.rows, to_the_end=page.last)
            self._tally.only_in_target += others
            for row in there.values():
                check_shared(table, row)
            for row in page.rows:
                theirs = there.get(key_of(table, row))
                if theirs != row:
                    self._tally.differ(
                        table.name, name_of(table, row), "it is missing" if theirs is None else "it is not the same"
                    )
                self._tell(table.name, name_of(table, row), CopyOutcome.UNCHANGED if theirs == row else CopyOutcome.DIFFERENT)


async def digest_of(runtime: AsyncRuntime, kind: Kind, id: str) -> Digest | None:
    """The digest over everything a session or process owns, in one snapshot; None when there is no such thing."""
    digest = Digest()
    return digest if await runtime.read(transfer.read, kind, id, digest) else None


async def check_versions(*runtimes: AsyncRuntime) -> None:
    """Both databases have exactly the tables this library knows: it would leave the columns of a newer one behind."""
    for runtime in runtimes:
        found = (await runtime.read(look, runtime.dialect)).version
        if found != library_version():
            why = "a copy would lose what only the other version knows. Use the lash-store that made the newer one"
            raise SchemaMismatch(why, found=found, expected=library_version())


async def place(runtime: AsyncRuntime, kind: Kind, id: str, bundle: Bundle, *, instead_of: Digest | None) -> bool:
    """Write a whole session or process in one transaction, if what is there is still what was looked at."""
    try:
        return await _place(runtime, kind, id, bundle, instead_of=instead_of)
    except StoreError as error:
        if error.fields().get("sqlstate") != UNIQUE_VIOLATION:
            raise
        return False  # somebody else wrote it between our look and our insert


async def _place(runtime: AsyncRuntime, kind: Kind, id: str, bundle: Bundle, *, instead_of: Digest | None) -> bool:
    async with runtime.transaction(max_ms=WRITE_MAX_MS) as transaction:
        await transaction.write(transfer.lock, kind, id)
        now = Digest()
        found = await transaction.read(transfer.read, kind, id, now)
        if (now.digest if found else None) != (None if instead_of is None else instead_of.digest):
            return False
        if instead_of is not None:
            await transaction.write(transfer.clear, kind, id)
            if kind is SESSIONS and _other_life(instead_of, bundle):
                await transaction.write(transfer.clear_subscriptions, id)
        pages = bundle.pages()
        while (page := await transaction.offload(next, pages, None)) is not None:
            await transaction.write(transfer.insert, *page)
        await transaction.write(transfer.finish, kind, id)
    return True


def _other_life(before: Digest, after: Digest) -> bool:
    assert before.head is not None
    assert after.head is not None
    return after.head["state"] != "live" or before.head["incarnation"] != after.head["incarnation"]


def manifest(bundle: Bundle) -> Iterable[Values]:
    """The rows that name a session's attachments. Nothing else of the bundle may be read meanwhile."""
    return bundle.rows_of(ATTACHMENTS)


async def move_bytes(source: AsyncRuntime, target: AsyncRuntime, row: Values) -> bool:
    """Copy one content, verified on the way. False when the source has none; an intent nobody kept may be half there."""
    try:
        spool = await target.spool(source.stream(row["attachment_id"], row["byte_len"]))
    except NotFound:
        return False
    except Corrupt:
        if row["committed_ms"] is None:
            return False
        raise
    with spool:
        await target.write(transfer.expect_bytes, row["attachment_id"], row["byte_len"])
        await target.blobs.put(row["attachment_id"], spool)
    return True


async def rows_through(
    runtime: AsyncRuntime | AsyncTransactionRuntime,
    table: Table,
    key: transfer.Key,
    rows: Sequence[Values],
    *,
    to_the_end: bool = False,
) -> tuple[dict[transfer.Key, Values], int]:
    """The target's rows with the keys of a page of the source's, and how many others it has between them."""
    wanted = {key_of(table, row) for row in rows}
    last = key_of(table, rows[-1]) if rows else None
    found: dict[transfer.Key, Values] = {}
    others = 0
    at: transfer.Key | None = key
    while at is not None and (to_the_end or (last is not None and at < last)):
        page = await runtime.read(transfer.shared_page, table, at)
        mine = [row for row in page.rows if to_the_end or (last is not None and key_of(table, row) <= last)]
        found |= {key_of(table, row): row for row in mine if key_of(table, row) in wanted}
        others += sum(key_of(table, row) not in wanted for row in mine)
        at = page.next_key
    return found, others


def refuse_newer(table: Table, there: Mapping[transfer.Key, Values], rows: Sequence[Values]) -> None:
    """Diverged when a row of the target is neither the source's nor an earlier state of it."""
    for row in rows:
        theirs = there.get(key_of(table, row), row)
        if theirs != row and (why := ahead_row(table, theirs, row)) is not None:
            raise Diverged(table.name, name_of(table, row), why=why)


def key_of(table: Table, row: Values) -> transfer.Key:
    """The row's place in its table."""
    return tuple(row[name] for name in table.key)


def name_of(table: Table, row: Values) -> str:
    """How reports and errors name a row."""
    return "/".join(str(row[name]) for name in table.key)
