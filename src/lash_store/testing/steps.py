"""Small steps that laws share: build a commit, expect a refusal, compare everything that is stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET, UnsetType

from lash_store.errors import StoreError
from lash_store.model.commit import Commit, Receipt
from lash_store.model.graph import Append, NodeDraft
from lash_store.model.queue import Batch, Claim
from lash_store.model.session import Snapshot
from lash_store.testing.backend import PROCESS_TABLES, STATE_TABLES, Backend

if TYPE_CHECKING:
    from lash_store import AsyncStore

E = TypeVar("E", bound=BaseException)
T = TypeVar("T")

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def draft(node_id: str, parent_id: str | None | UnsetType = UNSET, *, body: Any = None) -> NodeDraft:
    """A message whose body tells its id, unless another body is given."""
    return NodeDraft(node_id=node_id, parent_id=parent_id, body={"text": node_id} if body is None else body)


def append(*node_ids: str) -> Append:
    """A run of messages on the leaf."""
    return Append([draft(node_id) for node_id in node_ids])


async def say(store: AsyncStore, session_id: str, *node_ids: str, **fields: Any) -> Receipt:
    """Append a run of messages to wherever the head is."""
    return await store.sessions.commit(session_id, Commit(expected_revision=None, graph=append(*node_ids), **fields))


async def commit(store: AsyncStore, session_id: str, expected_revision: int | None, **fields: Any) -> Receipt:
    """Commit the given fields at a revision."""
    return await store.sessions.commit(session_id, Commit(expected_revision=expected_revision, **fields))


async def work(store: AsyncStore, session_id: str, *texts: str, **options: Any) -> list[Batch]:
    """Enqueue one batch per text, in order."""
    return [await store.queue.enqueue(session_id, [{"text": text}], **options) for text in texts]


async def claimed(store: AsyncStore, session_id: str, owner: str = "worker", **options: Any) -> Claim:
    """A claim that must be had, of an hour unless told otherwise."""
    chosen: dict[str, Any] = {"lease_ms": HOUR_MS, **options}
    claim = await store.queue.claim(session_id, owner, **chosen)
    assert claim is not None, f"{owner} found nothing to claim in {session_id}"
    return claim


async def watched(backend: Backend, **options: Any) -> tuple[AsyncStore, list[str]]:
    """A store, and the list its statements are written to as they run."""
    statements: list[str] = []

    def hook(event: Any) -> None:
        # Notifications leave after the commit, coalesced, in a task of the store: no operation waits for them.
        if event.operation != "notify":
            statements.append(event.sql)

    return await backend.open(on_statement=hook, **options), statements


def node_ids(snapshot: Snapshot) -> list[str]:
    """The ids of the loaded nodes, in order."""
    return [node.node_id for node in snapshot.nodes]


def texts(batches: Sequence[Batch]) -> list[str]:
    """The text of each batch's first payload."""
    return [batch.payloads[0]["text"] for batch in batches]


def batch_ids(batches: Sequence[Batch]) -> list[str]:
    """The ids of batches, in order."""
    return [batch.batch_id for batch in batches]


class Caught:
    """What `refused` caught, for laws that look closer."""

    error: Any = None


@contextmanager
def refused(kind: type[BaseException] | tuple[type[BaseException], ...], /, **fields: object) -> Generator[Caught]:
    """The body must raise this error (or one of these), with these fields."""
    caught = Caught()
    try:
        yield caught
    except kind as error:
        caught.error = error
        for name, expected in fields.items():
            actual = getattr(error, name)
            assert actual == expected, f"{type(error).__name__}.{name} is {actual!r}, not {expected!r}: {error}"
        return
    raise AssertionError(f"{kind} was not raised")


@contextmanager
def quiet() -> Generator[None]:
    """The store says on its log what the body provokes; nobody needs to read it."""
    logger = logging.getLogger("lash_store")
    logger.addFilter(_silent)
    try:
        yield
    finally:
        logger.removeFilter(_silent)


def _silent(_: logging.LogRecord) -> bool:
    return False


async def stored(backend: Backend, *tables: str) -> dict[str, list[str]]:
    """Every raw row of the given tables (all of them by default), in a comparable form."""
    rows: dict[str, list[str]] = {}
    for table in tables or (*STATE_TABLES, *PROCESS_TABLES):
        rows[table] = sorted(repr(row) for row in await backend.raw(f"SELECT * FROM {backend.table(table)}"))
    return rows


async def count(backend: Backend, table: str, session_id: str) -> int:
    """How many rows a session has in a table."""
    sql = f"SELECT COUNT(*) FROM {backend.table(table)} WHERE session_id = $1"
    total: int = (await backend.raw(sql, session_id))[0][0]
    return total


@asynccontextmanager
async def nothing_changes(backend: Backend) -> AsyncGenerator[None]:
    """The body must leave every stored row as it was."""
    before = await stored(backend)
    yield
    after = await stored(backend)
    for table, rows in before.items():
        assert after[table] == rows, f"{table} changed:\n{set(rows) ^ set(after[table])}"


async def outcomes(*calls: Awaitable[T]) -> list[T | StoreError]:
    """Run calls at once; a StoreError is an outcome, any other exception is a failure of the law."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    kept: list[T | StoreError] = []
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, StoreError):
            raise result
        kept.append(result)
    return kept


def of_type(results: Sequence[object], kind: type[T]) -> list[T]:
    """The outcomes of one type."""
    return [result for result in results if isinstance(result, kind)]


async def soon(call: Awaitable[T], *, seconds: float = 20.0) -> T:
    """A bound for what must happen by itself; reaching it fails the law, it never decides one."""
    async with asyncio.timeout(seconds):
        return await call


async def until(look: Callable[[], Awaitable[bool]], *, seconds: float = 20.0) -> None:
    """Look until it is so."""
    async with asyncio.timeout(seconds):
        while not await look():  # noqa: ASYNC110 - it looks into a database, which sets no event here
            await asyncio.sleep(0.005)
