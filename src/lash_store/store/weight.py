"""Whether a value is so large that walking, hashing or compressing it would hold up the event loop."""

from __future__ import annotations

from collections.abc import Mapping

HEAVY_BYTES = 256 * 1024  # from here on a thread costs less than the loop's other tasks would wait
HEAVY_ITEMS = 2_000  # likewise for values of many small parts


def is_heavy(*values: object) -> bool:
    """A bounded look: it stops as soon as the answer is yes, and never sees more than HEAVY_ITEMS parts."""
    left, size = list(values), 0
    for _ in range(HEAVY_ITEMS):
        if not left:
            return False
        value = left.pop()
        if isinstance(value, str | bytes | bytearray):
            size += len(value)
        elif isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list | tuple):
            left.extend(value)
        if size >= HEAVY_BYTES or len(left) > HEAVY_ITEMS:
            return True
    return True
