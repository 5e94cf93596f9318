"""The only door for payloads and ids: what may be stored, its text, and its digests.

Whatever passes an `Encoder` comes back as it went in, on both engines. Everything else is refused here, before any SQL,
with the path inside the value.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from math import isfinite
from typing import Any, NoReturn, cast

import msgspec

from lash_store.errors import Corrupt, LimitExceeded, Unstorable
from lash_store.model.limits import COUNTER_MAX, DURATION_MAX_MS, INT_MAX, Limits

# A container's place inside the walked value: the place of its parent, its own key there, its depth.
_Place = tuple["_Place | None", "str | int | None", int]
_Container = dict[Any, Any] | list[Any]
_type_of: Callable[[object], object] = type  # `type` of an Any has no type a strict checker accepts

_ROOT: _Place = (None, None, 0)
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_KEY_SHOWN_CHARS = 64  # a path names the place; a longer key would bury it
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")

_NONE = b"n" + bytes(8)
# Kind and length of each text shorter than this, as `digest` frames it: making them takes half the time of a small digest.
SHORT_TEXTS = tuple(b"s" + length.to_bytes(8, "big") for length in range(4096))
_JOINED_MAX_BYTES = 64 * 1024  # up to here a copy costs less than a call of the hash for each part

# The walk has bounded depth and refused cycles, NaN and foreign types; the writer need not look again.
_WRITER = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"))
_HASH_WRITER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, sort_keys=True, separators=(",", ":"))
_STABLE_WRITER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


class Encoder:
    """Checks values against one set of limits and gives them their stored form. Stateless: share it between threads."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def id(self, value: object, path: str) -> str:
        """An id as given, byte-exact: 1 to `id_bytes` bytes of UTF-8 without control characters."""
        text = _text(value, path, limit="id_bytes", maximum=self.limits.id_bytes)
        if not text:
            raise Unstorable(path, "an id must not be empty")
        if _CONTROL.search(text):
            raise Unstorable(path, "an id must not contain control characters")
        return text

    def optional_id(self, value: object, path: str) -> str | None:
        """An id, or None."""
        return None if value is None else self.id(value, path)

    def text(self, value: object, path: str) -> str:
        """A name, kind or label: at most `text_bytes` bytes of UTF-8, possibly empty, without NUL."""
        text = _text(value, path, limit="text_bytes", maximum=self.limits.text_bytes)
        if "\x00" in text:
            raise Unstorable(path, "text must not contain a NUL character")
        return text

    def optional_text(self, value: object, path: str) -> str | None:
        """A text, or None."""
        return None if value is None else self.text(value, path)

    def json(self, value: object, path: str) -> str:
        """JSON text that decodes to an equal value of equal types. Keys keep their order; text stays raw UTF-8."""
        self._walk(value, path)
        text, size = _utf8(_WRITER.encode(value))
        if size > self.limits.json_bytes:
            raise LimitExceeded("json_bytes", maximum=self.limits.json_bytes, actual=f"{size} bytes", path=path)
        return text

    def counter(
        self, value: object, path: str, *, minimum: int = 0, maximum: int = COUNTER_MAX, limit: str = "COUNTER_MAX"
    ) -> int:
        """An int from `minimum` to `maximum`; `limit` names the constant behind the maximum."""
        if type(value) is not int:
            raise Unstorable(path, f"must be an int, got {_type_name(value)}")
        if value > maximum:
            raise LimitExceeded(limit, maximum=maximum, actual=_shown(value), path=path)
        if value < minimum:
            raise LimitExceeded(limit, maximum=maximum, minimum=minimum, actual=_shown(value), path=path)
        return value

    def duration(self, value: object, path: str, *, minimum: int = 0) -> int:
        """A duration in milliseconds, at most ten years."""
        return self.counter(value, path, minimum=minimum, maximum=DURATION_MAX_MS, limit="DURATION_MAX_MS")

    def items(self, value: object, path: str) -> Sequence[Any]:
        """A list or tuple of things to be checked one by one; a text is not a list of its letters."""
        if not isinstance(value, list | tuple):
            raise Unstorable(path, f"must be a list or tuple, got {_type_name(value)}")
        return cast("Sequence[Any]", value)

    def data(self, value: object, path: str, *, limit: str) -> bytes:
        """Bytes of our own that no caller can change any more; `limit` names the field of `Limits` that bounds them."""
        if not isinstance(value, bytes | bytearray | memoryview):
            raise Unstorable(path, f"must be bytes, got {_type_name(value)}")
        size = len(value) if type(value) is bytes else memoryview(value).nbytes
        maximum: int = getattr(self.limits, limit)
        if size > maximum:
            raise LimitExceeded(limit, maximum=maximum, actual=f"{size} bytes", path=path)
        return value if type(value) is bytes else bytes(memoryview(value))

    def _walk(self, root: object, path: str) -> None:
        """Refuse whatever has no faithful JSON form. No recursion: the value is hostile until the walk is over."""
        # `weight` is a lower bound of the text's length. It ends the walk of a small value whose text would be huge
        # because it holds the same containers again and again.
        weight = -1  # the list around the root is not in the text
        pending: list[tuple[_Container, _Place]] = [([root], _ROOT)]
        while pending:
            container, place = pending.pop()
            weight += _weigh(container, path, place)
            if weight > self.limits.json_bytes:
                self._refuse_weight(weight, path)
            for key, item in _items(container):
                kind = _type_of(item)
                if kind is str:
                    weight += len(item)
                    if not item.isascii():
                        _check_pairs(item, path, place, key)
                elif kind is int or kind is float:
                    # False for NaN and infinities too.
                    if not -INT_MAX <= item <= INT_MAX:
                        weight += self._check_number(item, path, place, key)
                elif kind is dict or kind is list:
                    pending.append((item, self._enter(path, place, key)))
                elif item is not None and kind is not bool:
                    _refuse_type(item, _render(path, place, key))

    def _enter(self, path: str, place: _Place, key: str | int) -> _Place:
        depth = place[2] + 1
        if depth > self.limits.json_depth:
            where = _render(path, place, key)
            raise LimitExceeded("json_depth", maximum=self.limits.json_depth, actual=f"depth {depth}", path=where)
        return (place, key, depth)

    def _check_number(self, value: float, path: str, place: _Place, key: str | int) -> int:
        """The weight of a number beyond 64 bits. Integers are kept exact while Python itself agrees to parse them."""
        if isinstance(value, float):
            if not isfinite(value):
                raise Unstorable(_render(path, place, key), f"{value} has no JSON form")
            return 0
        process_limit = sys.get_int_max_str_digits() or self.limits.integer_digits
        maximum = min(self.limits.integer_digits, process_limit)
        if abs(value) >= 10**maximum:
            raise LimitExceeded("integer_digits", maximum=maximum, actual=_shown(value), path=_render(path, place, key))
        return value.bit_length() // 4

    def _refuse_weight(self, weight: int, path: str) -> NoReturn:
        raise LimitExceeded("json_bytes", maximum=self.limits.json_bytes, actual=f"at least {weight} bytes", path=path)


def quick_decode(text: str) -> Any:
    """The value of a JSON text, or ValueError: then `decode` knows better, because it also reads lone surrogates."""
    try:
        return msgspec.json.decode(text)
    except (TypeError, RecursionError):
        raise ValueError("not a text, or too deep") from None


def decode(text: str, *, table: str, row: str) -> Any:
    """The value a stored JSON text stands for. Anything but JSON as `Encoder.json` writes it is `Corrupt`."""
    with suppress(ValueError):
        return quick_decode(text)
    try:
        return _READER.decode(text)
    except json.JSONDecodeError as error:
        raise Corrupt(table, row, f"it is not JSON from character {error.pos} on") from None
    except (ValueError, TypeError, RecursionError):
        # The text of these errors may quote the payload.
        raise Corrupt(table, row, "it is not JSON this library writes") from None


def canonical(value: Any) -> str:
    """One text for equal values, whatever the order of their keys. For hashes only; the value was walked before."""
    return _HASH_WRITER.encode(value)


def digest(tag: str, *fields: bytes | str | int | None) -> bytes:
    """sha256 of a tag and typed fields, each with its length, so that no two different lists share an input."""
    parts, size = _framed(_tag(tag), fields)
    # Joined, small parts cost one call; a component of many megabytes is not copied.
    if size <= _JOINED_MAX_BYTES:
        return hashlib.sha256(b"".join(parts)).digest()
    state = hashlib.sha256()
    for part in parts:
        state.update(part)
    return state.digest()


def frames(tag: str | None, *fields: bytes | str | int | None) -> bytes:
    """A part of what `digest` hashes, for a digest that the database completes: with the tag, or from a later field on."""
    return b"".join(_framed(b"" if tag is None else _tag(tag), fields)[0])


def _framed(start: bytes, fields: Iterable[bytes | str | int | None]) -> tuple[list[bytes], int]:
    """What a digest starts with; kind, length and bytes of each field; and how many bytes these are."""
    parts = [start]
    size = 0
    for field in fields:
        if field is None:
            parts.append(_NONE)
            continue
        if isinstance(field, str):
            kind, data = b"s", field.encode()
        elif isinstance(field, int):
            kind, data = b"i", b"%d" % field
        else:
            kind, data = b"b", field
        size += len(data)
        parts.append(kind + len(data).to_bytes(8, "big"))
        parts.append(data)
    return parts, size


def stable_hash(value: Any) -> str:
    """The identity hash of processes and triggers: sha256 of compact JSON, keys sorted, characters unescaped."""
    return hashlib.sha256(_STABLE_WRITER.encode(value).encode("utf-8", "surrogatepass")).hexdigest()


def check(expected: bytes, actual: bytes, *, table: str, row: str) -> None:
    """Raise `Corrupt` when a stored digest and the digest of what was read differ."""
    if bytes(expected) != actual:
        raise Corrupt(table, row, "its content does not match its digest")


def mint(prefix: str = "") -> str:
    """A new id: `prefix` and a UUIDv7. Within one process each sorts after the one before."""
    ms, tail = _MINT.next()
    bits = ms << 80 | 0x7 << 76 | (tail >> 62) << 64 | 0b10 << 62 | tail & _LOW_62
    text = f"{bits:032x}"
    return f"{prefix}{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def derived_node_id(session_id: str, turn_id: str, ordinal: int) -> str:
    """The id of a turn's nth unnamed node: a retry of the turn names the same nodes."""
    return "n:" + digest("node-id/1", session_id, turn_id, ordinal).hex()[:32]


def _text(value: object, path: str, *, limit: str, maximum: int) -> str:
    if type(value) is not str:
        _refuse_type(value, path, wanted="a plain str")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise Unstorable(path, "contains a lone surrogate, which has no UTF-8 form") from None
    if size > maximum:
        raise LimitExceeded(limit, maximum=maximum, actual=f"{size} bytes", path=path)
    return value


def _weigh(container: _Container, path: str, place: _Place) -> int:
    """The least a container adds to the text: brackets, separators, one character per item, and keys, which must be str."""
    if isinstance(container, list):
        return 2 * len(container)
    weight = 5 * len(container)
    for key in container:
        if type(key) is not str:
            raise Unstorable(_render(path, place, None), f"keys must be plain str, got {_type_name(key)}")
        weight += len(key)
        if not key.isascii():
            _check_pairs(key, path, place, key)
    return weight


def _items(container: _Container) -> Iterable[tuple[str | int, Any]]:
    return container.items() if isinstance(container, dict) else enumerate(container)


def _check_pairs(text: str, path: str, place: _Place, key: str | int) -> None:
    # A lone surrogate survives as an escape. Two that form a pair would come back as one character.
    try:
        text.encode()
    except UnicodeEncodeError:
        if _SURROGATE_PAIR.search(text):
            raise Unstorable(
                _render(path, place, key), "holds a surrogate pair as two characters; it would come back as one"
            ) from None


def _utf8(text: str) -> tuple[str, int]:
    """The text with its surrogates escaped, and its length in UTF-8."""
    if text.isascii():
        return text, len(text)
    try:
        return text, len(text.encode())
    except UnicodeEncodeError:
        escaped = _SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
        return escaped, len(escaped.encode())


def _render(path: str, place: _Place | None, key: str | int | None) -> str:
    """The path of `key` at `place`, as a reader would write it: `nodes[2].body.tool[0]`."""
    parts: list[str] = []
    while place is not None:
        # The outermost container is the walk's own list around the value; its index is not part of the path.
        if key is not None and place is not _ROOT:
            parts.append(_segment(key))
        place, key = place[0], place[1]
    return path + "".join(reversed(parts))


def _segment(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    if _PLAIN_KEY.fullmatch(key):
        return f".{key}"
    shown = key if len(key) <= _KEY_SHOWN_CHARS else key[:_KEY_SHOWN_CHARS] + "…"
    return f"[{json.dumps(shown)}]"


def _refuse_type(value: object, path: str, *, wanted: str = "dict, list, str, int, float, bool or None") -> NoReturn:
    hint = ""
    if issubclass(type(value), str | int | float | dict | list):
        hint = "; a subclass would come back as its base type, so pass the plain value"
    elif issubclass(type(value), tuple):
        hint = "; a tuple would come back as a list, so pass a list"
    raise Unstorable(path, f"must be {wanted}, got {_type_name(value)}{hint}")


def _type_name(value: object) -> str:
    return type(value).__name__


def _shown(value: int) -> int | str:
    """An int small enough to print, or its size: Python refuses to print a huge one, and logs should too."""
    return value if -INT_MAX <= value <= INT_MAX else f"an integer of {value.bit_length()} bits"


@cache
def _tag(tag: str) -> bytes:
    data = tag.encode()
    return b"t" + len(data).to_bytes(8, "big") + data


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError("a number beyond the range of a float")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_READER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)

_TAIL_BITS = 74  # what UUIDv7 leaves after 48 bits of time, version and variant
_LOW_62 = 2**62 - 1
_STEP_BITS = 48  # a random step: ids stay unguessable within a millisecond, and 2**25 of them fit into it


class _Mint:
    """Time and tail of the last id, so that the next one is greater."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        # After a fork the lock may be held by a thread that does not exist here, and the tail is the parent's too.
        self._lock = threading.Lock()
        self._ms = 0
        self._tail = 0

    def next(self) -> tuple[int, int]:
        with self._lock:
            now_ms = time.time_ns() // 1_000_000
            tail = self._tail + secrets.randbits(_STEP_BITS) + 1
            if now_ms > self._ms or tail >> _TAIL_BITS:
                # The top bit stays clear: room for the steps of this millisecond.
                now_ms, tail = max(now_ms, self._ms + 1), secrets.randbits(_TAIL_BITS - 1)
            self._ms, self._tail = max(now_ms, self._ms), tail
            return self._ms, self._tail


_MINT = _Mint()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_MINT.reset)
