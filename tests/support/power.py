"""A disk that remembers what it was asked to write, and the disks that a power cut could have left instead.

`python -m tests.support.power`, with an `Order` as JSON on standard input, works on a store whose files go through a recording
VFS, and prints what they were told, with a mark after each answer of the store. `Disk` replays such a record up to a cut.
A disk may drop or tear what it was told since the last sync of a file, in sectors, and in any order. Creating and deleting a file
lasts once its directory is synced.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal
from unittest import mock

import apsw
import msgspec
from msgspec import Struct

from lash_store import Append, Commit, NodeDraft, Store
from lash_store.db import sqlite_checkpoint, sqlite_writer
from lash_store.db.sqlite_checkpoint import Checkpoints
from lash_store.db.sqlite_connection import Durability

PROJECT = Path(__file__).resolve().parents[2]
SECTOR_BYTES = 512
SESSION = "s"
LEASE_MS = 3_600_000
NODES = 2  # of each turn
STEPS = 3  # of each turn: enqueue, claim, commit
CAP_PAGES = 40  # a few turns long, so that the log is truncated between them
KINDS = {apsw.SQLITE_OPEN_MAIN_DB: "", apsw.SQLITE_OPEN_WAL: "-wal", apsw.SQLITE_OPEN_MAIN_JOURNAL: "-journal"}


class Event(Struct, frozen=True, array_like=True):
    """What a file was told, or that `number` steps of the work are acknowledged. `number` is else an offset or a size."""

    kind: Literal["create", "write", "truncate", "sync", "delete", "sync-directory", "acknowledged"]
    file: str = ""
    number: int = 0
    data: bytes = b""


class Order(Struct, frozen=True, kw_only=True):
    """The work to record: so many turns in each life of the store."""

    path: str
    durability: Durability
    seed: str
    turns: int


def record(order: Order) -> list[Event]:
    """Do the work in a process of its own, where every file of SQLite goes through the recording VFS."""
    command = [sys.executable, "-m", "tests.support.power"]
    done = subprocess.run(command, cwd=PROJECT, input=msgspec.json.encode(order), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return msgspec.msgpack.decode(done.stdout, type=list[Event])


# The recording process.


class RecordingFile(apsw.VFSFile):
    """A file that tells each change once it has happened."""

    def __init__(self, base: str, name: str | apsw.URIFilename | None, flags: list[int], log: list[Event], file: str) -> None:
        super().__init__(base, name, flags)
        self._log, self._file = log, file
        # SQLite syncs the directory with the first sync of a log or journal that it may have created.
        self._syncs_directory = file != "" and bool(flags[0] & apsw.SQLITE_OPEN_CREATE)

    def xWrite(self, data: bytes, offset: int) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] # noqa: N802
        super().xWrite(data, offset)
        self._log.append(Event("write", self._file, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._log.append(Event("truncate", self._file, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        self._log.append(Event("sync", self._file))
        if self._syncs_directory:
            self._syncs_directory = False
            self._log.append(Event("sync-directory"))


class RecordingVFS(apsw.VFS):
    """The default VFS of this process from now on."""

    def __init__(self, log: list[Event]) -> None:
        self._base = apsw.vfs_names()[0]
        self._log = log
        super().__init__("recording", self._base, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        file = next((suffix for flag, suffix in KINDS.items() if flags[0] & flag), None)
        if file is None or name is None:
            return apsw.VFSFile(self._base, name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if not Path(path).exists():
            self._log.append(Event("create", file))
        return RecordingFile(self._base, name, flags, self._log, file)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        super().xDelete(filename, syncdir)
        suffix = next(suffix for suffix in ("-wal", "-journal") if filename.endswith(suffix))
        self._log.append(Event("delete", suffix))
        if syncdir:
            self._log.append(Event("sync-directory"))


class Worker:
    """Turns of one session, step by step; each answer leaves a mark."""

    def __init__(self, log: list[Event], seed: str) -> None:
        self._log = log
        self._chance = random.Random(seed)
        self._steps = self._turns = 0

    def live(self, order: Order) -> None:
        """Open the store, work, and close it."""
        with Store.open(order.path, durability=order.durability) as store:
            if self._steps == 0:
                store.sessions.create(SESSION)
                self._acknowledged()
            for _ in range(order.turns):
                self._turn(store)

    def _turn(self, store: Store) -> None:
        store.queue.enqueue(SESSION, [f"work {self._turns + 1}"], source_key=key_of(self._turns + 1))
        self._acknowledged()
        claim = store.queue.claim(SESSION, "worker", lease_ms=LEASE_MS)
        assert claim is not None
        self._acknowledged()
        commit = turn(self._turns + 1, noise=self._chance.randbytes(self._chance.choice((20, 2_000, 10_000))))
        receipt = store.sessions.commit(SESSION, msgspec.structs.replace(commit, completes=[claim]))
        self._turns += 1
        assert receipt.revision == self._turns
        self._acknowledged()

    def _acknowledged(self) -> None:
        self._steps += 1
        self._log.append(Event("acknowledged", number=self._steps))


def turn(number: int, *, noise: bytes) -> Commit:
    """The turn that makes this revision."""
    return Commit(
        expected_revision=number - 1,
        turn_id=turn_of(number),
        graph=Append([NodeDraft(body={"turn": number, "n": n, "noise": noise.hex()}) for n in range(NODES)]),
        checkpoint={"state": noise},
    )


def turn_of(number: int) -> str:
    return f"turn {number:04}"


def key_of(number: int) -> str:
    return f"key {number:04}"


@contextmanager
def checkpoints_at_cap() -> Generator[None]:
    """The log is truncated while writers wait."""
    with mock.patch.object(sqlite_writer, "Checkpoints", partial(Checkpoints, cap_pages=CAP_PAGES)):
        yield


@contextmanager
def checkpoints_when_idle() -> Generator[None]:
    """The log is copied at every chance, and then written again from its start."""
    with mock.patch.object(sqlite_checkpoint, "IDLE_S", 0):
        yield


def work(order: Order) -> list[Event]:
    log: list[Event] = []
    vfs = RecordingVFS(log)
    worker = Worker(log, order.seed)
    for manner in (checkpoints_at_cap, checkpoints_when_idle):
        with manner():
            worker.live(order)
    worker.live(order)
    vfs.unregister()
    return log


# The disk.

Survives = Callable[[], bool]
Files = dict[str, bytearray | None]


class Disk:
    """What lasts for certain after a number of events, and what may have happened besides."""

    def __init__(self) -> None:
        self._durable: Files = {"": bytearray(), "-wal": None, "-journal": None}
        self._pending: dict[str, list[Event]] = {file: [] for file in self._durable}

    def tell(self, event: Event) -> None:
        if event.kind == "sync":
            self._durable[event.file] = outcome(self._durable[event.file], self._pending[event.file], lambda: True)
            self._pending[event.file] = []
        elif event.kind == "sync-directory":
            for file in self._durable:
                self._sync_name(file)
        elif event.kind != "acknowledged":
            self._pending[event.file].append(event)

    def images(self, chance: random.Random, count: int) -> Iterator[Files]:
        """Disks after a power cut here: all that is not certain lost, all kept, and torn at random."""
        for n in range(count):
            rate = {file: (0.0, 1.0)[n] if n < 2 else chance.choice((0.0, 0.1, 0.5, 0.9, 0.99, 1.0)) for file in self._durable}
            yield {file: self._image(file, chance, rate[file]) for file in self._durable}

    def _image(self, file: str, chance: random.Random, rate: float) -> bytearray | None:
        return outcome(self._durable[file], self._pending[file], lambda: chance.random() < rate)

    def _sync_name(self, file: str) -> None:
        """The last creation or deletion lasts; what was written to a file that lost its name matters no more."""
        pending = self._pending[file]
        named = [n for n, event in enumerate(pending) if event.kind in ("create", "delete")]
        if named:
            self._durable[file] = bytearray() if pending[named[-1]].kind == "create" else None
            self._pending[file] = pending[named[-1] + 1 :]


def outcome(before: bytearray | None, pending: list[Event], survives: Survives) -> bytearray | None:
    """The content of a file, or None without one, when of the pending events only some survive."""
    content = None if before is None else bytearray(before)
    for event in pending:
        if event.kind in ("create", "delete"):
            if not survives():
                break  # what follows went to another file of that name
            content = bytearray() if event.kind == "create" else None
        elif content is not None and event.kind == "truncate":
            if survives():
                resize(content, event.number)
        elif content is not None:
            tear(content, event, survives)
    return content


def resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def tear(content: bytearray, write: Event, survives: Survives) -> None:
    """Write those sectors that survive. Bytes of a sector that were not written do not change."""
    start, end = write.number, write.number + len(write.data)
    while start < end:
        stop = min(end, start - start % SECTOR_BYTES + SECTOR_BYTES)
        if survives():
            if len(content) < stop:
                resize(content, stop)
            content[start:stop] = write.data[start - write.number : stop - write.number]
        start = stop


def lay_out(files: Files, path: Path) -> None:
    """Make this disk real. The wal-index is not on it: it is built anew after every loss of power."""
    path.with_name(path.name + "-shm").unlink(missing_ok=True)
    for suffix, content in files.items():
        file = path.with_name(path.name + suffix)
        if content is None:
            file.unlink(missing_ok=True)
        else:
            file.write_bytes(content)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.msgpack.encode(work(msgspec.json.decode(sys.stdin.buffer.read(), type=Order))))
