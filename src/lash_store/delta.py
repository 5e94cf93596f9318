"""Checkpoint frames: a component's bytes as one zstd frame, whole or as the difference from its previous version."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence

from lash_store.model.limits import CHECKPOINT_DELTA_MAX_BYTES, DEFAULT_LIMITS, MIB

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_LEVEL = 3  # higher levels cost a commit more time than they save it bytes
_WINDOW_LOG_MIN = 10  # zstd's own bounds
_WINDOW_LOG_MAX = 27
_PREFIX_MIN_BYTES = 8  # zstd takes no shorter prefix; both sides then do without

HELD_MAX_BYTES = 64 * MIB  # versions kept to make deltas against: what one store may spend on it
HELD_ENTRY_MAX_BYTES = CHECKPOINT_DELTA_MAX_BYTES  # larger versions are stored whole anyway


def full(data: bytes) -> bytes:
    """One frame that stands alone."""
    return zstd.compress(data, _LEVEL)


def delta(base: bytes, data: bytes) -> bytes:
    """One frame that needs `base` to be read. ValueError above 128 MiB together: no reader would open the window."""
    window_log = max(_WINDOW_LOG_MIN, (len(base) + len(data)).bit_length())
    if window_log > _WINDOW_LOG_MAX:
        raise ValueError("base and data are too large for a delta")
    parameter = zstd.CompressionParameter
    options: dict[int, int] = {
        parameter.compression_level: _LEVEL,
        parameter.window_log: window_log,
        # Without it a base above 1 MiB is indexed only in part, and the delta grows to the size of a full frame.
        parameter.enable_long_distance_matching: 1,
    }
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
    data = _expand(frames[0], size=sizes[0], base=b"")
    for frame, size in zip(frames[1:], sizes[1:], strict=True):
        data = _expand(frame, size=size, base=data)
    return data


def _expand(frame: bytes, *, size: int, base: bytes) -> bytes:
    if not 0 <= size <= DEFAULT_LIMITS.component_bytes:
        raise ValueError(f"a version of {size} bytes is beyond the limit")
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}
    decompressor = zstd.ZstdDecompressor(zstd_dict=_prefix(base), options=options)
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


class Held:
    """The last versions this process saw, least recently used first to go. Safe between threads.

    An entry may be stale: compare its digest with the stored one before making a delta against it.
    """

    def __init__(self, max_bytes: int = HELD_MAX_BYTES, entry_max_bytes: int = HELD_ENTRY_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._entry_max_bytes = min(entry_max_bytes, max_bytes)
        self._entries: OrderedDict[tuple[str, str], tuple[bytes, bytes]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, session_id: str, component: str) -> tuple[bytes, bytes] | None:
        """Digest and bytes of the version last put, or None."""
        with self._lock:
            entry = self._entries.get((session_id, component))
            if entry is not None:
                self._entries.move_to_end((session_id, component))
            return entry

    def put(self, session_id: str, component: str, *, digest: bytes, data: bytes) -> None:
        """Hold a version instead of the one before it. One that is too large only replaces."""
        with self._lock:
            self._remove((session_id, component))
            if len(data) > self._entry_max_bytes:
                return
            self._entries[session_id, component] = (digest, data)
            self._bytes += len(data)
            while self._bytes > self._max_bytes:
                self._remove(next(iter(self._entries)))

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
