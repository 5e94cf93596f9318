"""Checkpoint frames: a component's bytes as one zstd frame, whole or as the difference from its previous version."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from lash_store.model.commit import Receipt
from lash_store.model.limits import CHECKPOINT_DELTA_MAX_BYTES, DEFAULT_LIMITS, MIB

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LEVEL = 3  # higher levels cost a commit more time than they save it bytes
_DELTA_LEVEL = 1  # the base does the work: measured, the same bytes as level 3 in half the time
_NEAR_BYTES = 192 * 1024  # base and data together: up to here level 1 finds all of the base by itself
_WINDOW_LOG_MIN = 10  # zstd's own bounds
_WINDOW_LOG_MAX = 27
_PREFIX_MIN_BYTES = 8  # zstd takes no shorter prefix; both sides then do without

# Plain ints, looked up once: the enum would be asked at every commit.
_COMPRESSION_LEVEL = int(zstd.CompressionParameter.compression_level)
_WINDOW_LOG = int(zstd.CompressionParameter.window_log)
_LONG_DISTANCE_MATCHING = int(zstd.CompressionParameter.enable_long_distance_matching)
_READING = {int(zstd.DecompressionParameter.window_log_max): _WINDOW_LOG_MAX}

HELD_MAX_BYTES = 64 * MIB  # versions kept to make deltas against: what one store may spend on it
HELD_HEADS_MAX = 4_096  # sessions one worker commits to in turn
HELD_HEAD_COMPONENTS_MAX = 32  # a checkpoint of more is looked at by the database instead
HELD_ENTRY_MAX_BYTES = CHECKPOINT_DELTA_MAX_BYTES  # larger versions are stored whole anyway


def full(data: bytes) -> bytes:
    """One frame that stands alone."""
    return zstd.compress(data, _LEVEL)


def delta(base: bytes, data: bytes) -> bytes:
    """One frame that needs `base` to be read. ValueError above 128 MiB together: no reader would open the window."""
    window_log = max(_WINDOW_LOG_MIN, (len(base) + len(data)).bit_length())
    if window_log > _WINDOW_LOG_MAX:
        raise ValueError("base and data are too large for a delta")
    options = {_COMPRESSION_LEVEL: _DELTA_LEVEL, _WINDOW_LOG: window_log}
    if len(base) + len(data) > _NEAR_BYTES:
        # Without it a larger base is indexed only in part, and the delta grows to the size of a full frame.
        options[_LONG_DISTANCE_MATCHING] = 1
    compressor = zstd.ZstdCompressor(options=options, zstd_dict=_prefix(base))
    compressor.set_pledged_input_size(len(data))
    return compressor.compress(data, compressor.FLUSH_FRAME)


def restore(frames: Sequence[bytes], *, sizes: Sequence[int]) -> bytes:
    """The last version of a chain: the first frame stands alone, each other one needs the version before it.

    `sizes` are the versions' lengths. A frame that is damaged, or yields another length, raises ValueError
    before it can take more memory than its size says.
    """
    if not frames or len(frames) != len(sizes):
        raise ValueError(f"{len(frames)} frames and {len(sizes)} sizes do not make a chain")
    data = expand(frames[0], size=sizes[0], base=b"")
    for frame, size in zip(frames[1:], sizes[1:], strict=True):
        data = expand(frame, size=size, base=data)
    return data


def expand(frame: bytes, *, size: int, base: bytes) -> bytes:
    """One version of a chain: `base` is the one before it, empty for a frame that stands alone. ValueError as in `restore`."""
    if not 0 <= size <= DEFAULT_LIMITS.component_bytes:
        raise ValueError(f"a version of {size} bytes is beyond the limit")
    decompressor = zstd.ZstdDecompressor(zstd_dict=_prefix(base), options=_READING)
    try:
        # One byte more than expected: enough to see that there is more, too little to be hurt by it.
        data = decompressor.decompress(frame, max_length=size + 1)
    except zstd.ZstdError as error:
        raise ValueError(f"a frame does not decompress: {error}") from None
    if len(data) != size or not decompressor.eof or decompressor.unused_data:
        raise ValueError(f"a frame does not hold exactly {size} bytes")
    return data


def _prefix(base: bytes) -> tuple[zstd.ZstdDict, int] | None:
    return zstd.ZstdDict(base, is_raw=True).as_prefix if len(base) >= _PREFIX_MIN_BYTES else None


class Left(Struct, frozen=True):
    """How this process last left a session: its leaf, its checkpoint, and what that is made of, unless there are too many."""

    leaf_id: str | None
    checkpoint_digest: bytes | None
    contents: Mapping[str, bytes] | None


class Held:
    """The last versions and heads this process saw, least recently used first to go. Safe between threads.

    An entry may be stale: compare its digest with the stored one before making a delta against it. A head is a guess.
    """

    def __init__(self, max_bytes: int = HELD_MAX_BYTES, entry_max_bytes: int = HELD_ENTRY_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._entry_max_bytes = min(entry_max_bytes, max_bytes)
        self._entries: OrderedDict[tuple[str, str], tuple[bytes, bytes, int]] = OrderedDict()
        self._heads: OrderedDict[str, Left] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, session_id: str, component: str) -> tuple[bytes, bytes, int] | None:
        """Digest, bytes and place in its chain of the version last put, or None."""
        with self._lock:
            entry = self._entries.get((session_id, component))
            if entry is not None:
                self._entries.move_to_end((session_id, component))
            return entry

    def put(self, session_id: str, component: str, *, digest: bytes, data: bytes, chain: int = 1) -> None:
        """Hold a version instead of the one before it, the `chain`th since a full frame. One that is too large only replaces."""
        with self._lock:
            self._remove((session_id, component))
            if len(data) > self._entry_max_bytes:
                return
            self._entries[session_id, component] = (digest, data, chain)
            self._bytes += len(data)
            while self._bytes > self._max_bytes:
                self._remove(next(iter(self._entries)))

    def left(self, session_id: str) -> Left | None:
        """How this process last left the session, if it knows."""
        return self._heads.get(session_id)

    def put_left(self, receipt: Receipt) -> None:
        """Remember how a commit left its session. The copy is our own: the receipt is the caller's."""
        whole, few = receipt.checkpoint_digest, len(receipt.components) <= HELD_HEAD_COMPONENTS_MAX
        left = Left(
            receipt.leaf_id,
            None if whole is None else bytes.fromhex(whole),
            {name: bytes.fromhex(content) for name, content in receipt.components.items()} if few else None,
        )
        with self._lock:
            self._heads.pop(receipt.session_id, None)
            self._heads[receipt.session_id] = left
            if len(self._heads) > HELD_HEADS_MAX:
                self._heads.popitem(last=False)

    def drop(self, session_id: str, component: str | None = None) -> None:
        """Forget one component of a session, or all of them."""
        with self._lock:
            held = [key for key in self._entries if key[0] == session_id] if component is None else [(session_id, component)]
            for key in held:
                self._remove(key)

    def _remove(self, key: tuple[str, str]) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= len(entry[1])
