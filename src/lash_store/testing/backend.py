"""What a law needs of a store under test: handles on one durable backing, a clock it can move, and a raw door.

`OwnBackend` makes one of a factory, and `OwnBytes` one for byte stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from lash_store import AsyncStore
    from lash_store.blobs.protocol import ByteStore

# Every table that holds state of sessions. Laws compare them raw, to show that a refusal changed nothing.
STATE_TABLES = (
    "sessions",
    "branches",
    "nodes",
    "commits",
    "configs",
    "frames",
    "components",
    "versions",
    "usage_entries",
    "usage_totals",
    "batches",
    "settled_keys",
    "attachments",
    "digests",
    "chunks",
)

# Every table that holds state of processes, triggers and artifacts.
PROCESS_TABLES = (
    "processes",
    "registrations",
    "events",
    "grants",
    "counters",
    "subscriptions",
    "occurrences",
    "deliveries",
    "schedules",
    "artifacts",
)


class Backend(Protocol):
    """One fresh, empty, durable backing. A law opens as many handles on it as it likes; `close` ends them all."""

    @property
    def engine(self) -> str:
        """What the store calls its engine: "sqlite", "postgresql", or a name of its own."""
        ...

    async def open(self, **options: Any) -> AsyncStore:
        """A new handle on the same backing. `options` are those of `AsyncStore.open`."""
        ...

    async def advance(self, ms: int) -> None:
        """Move the database's clock, for every handle; backwards when negative. No law waits for a lease."""
        ...

    async def raw(self, sql: str, *params: object) -> list[tuple[Any, ...]]:
        """Rows of a statement run outside the store. Parameters are `$1`, `$2`, … in the order they appear."""
        ...

    def table(self, name: str) -> str:
        """The engine's spelling of a table."""
        ...

    async def close(self) -> None:
        """Close every handle."""
        ...


class ByteBackend(Protocol):
    """One fresh, empty place for bytes. A law opens as many handles on it as it likes."""

    async def open(self) -> ByteStore:
        """A new handle on the same place."""
        ...

    async def damage(self, attachment_id: str, data: bytes) -> None:
        """Put other bytes under a name, behind the store's back."""
        ...

    async def close(self) -> None:
        """Let go of the place."""
        ...
