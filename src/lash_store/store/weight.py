"""Whether a value is so large that encoding, hashing or compressing it would hold up the event loop."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UnsetType

# Measured: both take about a millisecond to encode, hash or compress, and a trip to a thread takes a twentieth of that.
HEAVY_BYTES = 256 * 1024
HEAVY_ITEMS = 2_000  # of a value of many small parts

_TEXTS = frozenset[type]({str, bytes})
_SMALL = frozenset[type]({int, float, bool, type(None), UnsetType})


def is_heavy(*values: object) -> bool:
    """A bounded look: it stops as soon as the answer is yes, and never sees more than HEAVY_ITEMS parts."""
    left, size = list(values), 0
    for _ in range(HEAVY_ITEMS):
        if not left:
            return False
        value = left.pop()
        # Exact types first: almost every part is one of these, and asking an abstract class takes ten times as long.
        kind = value.__class__
        if kind in _TEXTS:
            size += len(value)  # pyright: ignore[reportArgumentType] - it is one of the texts
        elif kind in _SMALL:
            continue
        elif isinstance(value, list | tuple):
            left.extend(value)
        elif isinstance(value, dict | Mapping):
            left.extend(value.values())
        elif isinstance(value, str | bytes | bytearray | memoryview):
            size += len(value)
        if size >= HEAVY_BYTES or len(left) > HEAVY_ITEMS:
            return True
    return True
