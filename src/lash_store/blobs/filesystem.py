"""Attachment bytes as files named by their sha256: `root/sha256/ab/abcd…`, written whole or not at all.

Every step goes through directory descriptors and refuses symbolic links below the root, so that nothing another
user places there can lead a write or a read outside of it. Needs a POSIX system.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import sys
import time
from collections.abc import AsyncIterator, Generator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path

from lash_store.blobs.protocol import checked_id, checked_source
from lash_store.blobs.spool import CHUNK_BYTES, DISK_FULL, Spool
from lash_store.errors import Corrupt, NotFound, NotPermitted, StorageFull, StoreError, Unavailable

_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
_ABANDONED_S = 24 * 3600  # a temporary file untouched for a day belongs to a writer that died
_ABANDONED_MAX = 1000  # temporary files looked at when a store writes for the first time
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISPLACED = {errno.ELOOP, errno.ENOTDIR, errno.EISDIR}


class FilesystemBytes:
    """Files below `root`, directories 0700, files 0600. All blocking work happens in threads."""

    durable = True

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()  # the program may change its directory
        self._prepared = False

    async def put(self, attachment_id: str, source: Spool) -> None:
        """Write to a temporary name, sync, rename, sync the directories. A sound file already there is kept."""
        checked_source(attachment_id, source)
        await asyncio.to_thread(self._put, attachment_id, source)

    async def exists(self, attachment_id: str, byte_len: int) -> bool:
        """Whether a regular file of this name and length is there."""
        return await asyncio.to_thread(self._size, checked_id(attachment_id)) == byte_len

    async def read(self, attachment_id: str) -> AsyncIterator[bytes]:
        """The file's bytes. It is opened for each chunk: a reader that is cancelled or forgotten holds nothing open."""
        checked_id(attachment_id)
        offset = 0
        while data := await asyncio.to_thread(self._read_at, attachment_id, offset):
            yield data
            offset += len(data)

    async def delete(self, attachment_id: str) -> None:
        """Unlink the file, durably. One that is missing is fine."""
        await asyncio.to_thread(self._delete, checked_id(attachment_id))

    def _put(self, attachment_id: str, source: Spool) -> None:
        try:
            with _typed(attachment_id), ExitStack() as opened:
                self._prepare()
                self._store(attachment_id, source, opened)
        except FileNotFoundError:
            self._prepared = False
            raise Unavailable(f"the attachment directory {self.root} was removed meanwhile. Repeat the call.") from None

    def _store(self, attachment_id: str, source: Spool, opened: ExitStack) -> None:
        root = opened.enter_context(_directory(self.root))
        temporary = opened.enter_context(_made_directory("tmp", root))
        shelf = opened.enter_context(_made_directory("sha256", root))
        place = opened.enter_context(_made_directory(attachment_id[:2], shelf))
        if not _holds(attachment_id, place, source.byte_len):
            _write_and_rename(attachment_id, source, temporary=temporary, place=place)
        # Also when the file was there: whoever wrote it may not have come this far.
        for directory in (place, shelf, root):
            _sync(directory)

    def _size(self, attachment_id: str) -> int | None:
        with _typed(attachment_id), suppress(FileNotFoundError), self._place(attachment_id) as place:
            found = os.stat(attachment_id, dir_fd=place, follow_symlinks=False)
            return found.st_size if stat.S_ISREG(found.st_mode) else None
        return None

    def _read_at(self, attachment_id: str, offset: int) -> bytes:
        try:
            with _typed(attachment_id), self._place(attachment_id) as place, _regular_file(attachment_id, place) as file:
                return _read_full(file, offset)
        except FileNotFoundError:
            raise NotFound("attachment", attachment_id) from None

    def _delete(self, attachment_id: str) -> None:
        with _typed(attachment_id), suppress(FileNotFoundError), self._place(attachment_id) as place:
            os.unlink(attachment_id, dir_fd=place)
            _sync(place)

    @contextmanager
    def _place(self, attachment_id: str) -> Generator[int]:
        """The directory that holds an attachment, or FileNotFoundError."""
        with _directory(self.root) as root, _directory("sha256", root) as shelf, _directory(attachment_id[:2], shelf) as place:
            yield place

    def _prepare(self) -> None:
        """Once per store: make the root, durably, and remove what dead writers left behind."""
        if self._prepared:
            return
        missing = [path for path in (self.root, *self.root.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)
            with _directory(path.parent) as parent:
                _sync(parent)
        with _directory(self.root) as root, _made_directory("tmp", root) as temporary:
            _remove_abandoned(temporary)
        self._prepared = True


def _write_and_rename(attachment_id: str, source: Spool, *, temporary: int, place: int) -> None:
    name = secrets.token_hex(16)
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _FILE_MODE, dir_fd=temporary)
    try:
        try:
            _copy(attachment_id, source, file)
            _sync(file)
        finally:
            os.close(file)
        os.rename(name, attachment_id, src_dir_fd=temporary, dst_dir_fd=place)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=temporary)
        raise


def _copy(attachment_id: str, source: Spool, file: int) -> None:
    state = hashlib.sha256()
    for chunk in source.chunks():
        state.update(chunk)
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(file, rest) :]
    # A spool may have lain on another disk; what it gives back is checked before it gets the name.
    if state.hexdigest() != attachment_id:
        raise Corrupt("attachments", attachment_id, "its bytes changed in the temporary file before they were stored")


def _holds(attachment_id: str, place: int, byte_len: int) -> bool:
    """Whether a sound file is there. Anything else under its name is replaced by the rename."""
    try:
        with _regular_file(attachment_id, place) as file:
            if os.fstat(file).st_size != byte_len or _digest(file) != attachment_id:
                return False
            _sync(file)
            return True
    except (FileNotFoundError, Corrupt):
        return False


def _digest(file: int) -> str:
    state = hashlib.sha256()
    offset = 0
    while data := _read_full(file, offset):
        state.update(data)
        offset += len(data)
    return state.hexdigest()


def _read_full(file: int, offset: int) -> bytes:
    """A whole chunk, shorter only at the end of the file."""
    parts: list[bytes] = []
    wanted = CHUNK_BYTES
    while wanted and (data := os.pread(file, wanted, offset)):
        parts.append(data)
        offset += len(data)
        wanted -= len(data)
    return b"".join(parts)


@contextmanager
def _regular_file(name: str, place: int) -> Generator[int]:
    """A file open for reading. A link, a pipe or a directory of that name is Corrupt."""
    try:
        # Without O_NONBLOCK a pipe placed there would hold the thread for ever.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise Corrupt("attachments", name, "its file is not a regular file") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise Corrupt("attachments", name, "its file is not a regular file")
        yield file
    finally:
        os.close(file)


@contextmanager
def _directory(path: str | Path, parent: int | None = None) -> Generator[int]:
    """A directory's descriptor. Only the root, which the caller named, may be a link."""
    no_follow = 0 if parent is None else os.O_NOFOLLOW
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | no_follow, dir_fd=parent)
    try:
        yield directory
    finally:
        os.close(directory)


@contextmanager
def _made_directory(name: str, parent: int) -> Generator[int]:
    with suppress(FileExistsError):
        os.mkdir(name, _DIRECTORY_MODE, dir_fd=parent)
    with _directory(name, parent) as directory:
        yield directory


def _remove_abandoned(temporary: int) -> None:
    oldest_s = time.time() - _ABANDONED_S
    with os.scandir(temporary) as entries:
        for entry in islice(entries, _ABANDONED_MAX):
            # Another process may be removing the same file.
            with suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_mtime < oldest_s:
                    os.unlink(entry.name, dir_fd=temporary)


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":
        # fsync leaves the bytes in the drive's cache there.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


@contextmanager
def _typed(attachment_id: str) -> Generator[None]:
    """Give system errors the store's types. A missing file stays FileNotFoundError: each caller knows what it means."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _store_error(error, attachment_id) from error


def _store_error(error: OSError, attachment_id: str) -> StoreError:
    reason = error.strerror or type(error).__name__
    if error.errno in DISK_FULL:
        return StorageFull(f"the attachment directory: {reason}")
    if error.errno in _FORBIDDEN:
        return NotPermitted(f"attachment directory: {reason}")
    if error.errno in _MISPLACED:
        return Corrupt("attachments", attachment_id, f"something else stands in its place ({reason})")
    return Unavailable(f"attachment {attachment_id}: {reason}. Nothing was written; repeat the call.")
