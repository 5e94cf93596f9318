"""JSON Schema for payloads (draft 2020-12): checked when it is declared, compiled once, and never fetched from anywhere."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import jsonschema_rs

from lash_store.encode import canonical, stable_hash
from lash_store.errors import InvalidArgument, InvalidPayload, LimitExceeded
from lash_store.model.limits import KIB

SCHEMA_BYTES_MAX = 256 * KIB  # a larger schema is data, not a description
COMPILED_MAX = 512  # compiled schemas kept: a deployment has far fewer event types
APPLIED_MAX = 10_000  # parts a schema may unfold to through its references: each may be applied to one value
DRAFT = "https://json-schema.org/draft/2020-12/schema"


class Schemas:
    """Compiled schemas by their content, shared by all threads of a store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, jsonschema_rs.Validator] = OrderedDict()

    def check(self, schema: Any, path: str) -> None:
        """Refuse what is not a schema, is too large, refers to another document, or has a pattern of unbounded cost."""
        if not isinstance(schema, dict | bool):
            raise InvalidArgument(path, "must be a JSON Schema: an object or a boolean")
        size = len(canonical(schema))
        if size > SCHEMA_BYTES_MAX:
            raise LimitExceeded("SCHEMA_BYTES_MAX", maximum=SCHEMA_BYTES_MAX, actual=size, path=path)
        if isinstance(schema, dict) and schema.get("$schema", DRAFT) != DRAFT:
            raise InvalidArgument(f"{path}.$schema", f"must be {DRAFT}")
        if _expanded(schema) > APPLIED_MAX:
            raise InvalidArgument(path, f"its references unfold to more than {APPLIED_MAX} parts")
        try:
            self._validator(schema)
        except (ValueError, OSError) as error:
            raise InvalidArgument(path, f"is not a usable JSON Schema: {_first_line(error)}") from None

    def validate(self, schema: Any, payload: Any, what: str) -> None:
        """Raise InvalidPayload for the first place where the payload does not fit. The payload itself is not repeated."""
        try:
            error = next(iter(self._validator(schema).iter_errors(payload)), None)
        except (ValueError, OverflowError) as unreadable:
            raise InvalidPayload(what, path="", why=f"cannot be validated: {_first_line(unreadable)}") from None
        if error is not None:
            path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
            raise InvalidPayload(what, path=path, why=f"breaks {'/'.join(map(str, error.schema_path))}") from None

    def _validator(self, schema: Any) -> jsonschema_rs.Validator:
        key = stable_hash(schema)
        with self._lock:
            found = self._compiled.get(key)
            if found is not None:
                self._compiled.move_to_end(key)
                return found
        compiled = jsonschema_rs.Draft202012Validator(
            schema,
            validate_formats=False,
            retriever=_no_retrieval,
            # The plain engine matches in linear time and has no look-around or back-references to blow up.
            pattern_options=jsonschema_rs.RegexOptions(),
        )
        with self._lock:
            self._compiled[key] = compiled
            if len(self._compiled) > COMPILED_MAX:
                self._compiled.popitem(last=False)
        return compiled


def _no_retrieval(uri: str) -> Any:
    raise ValueError(f"it refers to another document, {uri[:100]!r}, and none is ever fetched")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _expanded(schema: Any) -> int:
    """How many parts a schema has once its references are followed; a reference to something around it counts once."""
    weights: dict[int, int] = {}
    inside: set[int] = set()

    def weigh(part: Any) -> int:
        if not isinstance(part, dict | list):
            return 0
        if id(part) in weights:
            return weights[id(part)]
        if id(part) in inside:
            return 1
        inside.add(id(part))
        total = 1 + sum(weigh(each) for each in (part.values() if isinstance(part, dict) else part))
        target = part.get("$ref") if isinstance(part, dict) else None
        if isinstance(target, str) and target.startswith("#"):
            total += weigh(_target(schema, target))
        inside.discard(id(part))
        weights[id(part)] = min(total, APPLIED_MAX + 1)
        return weights[id(part)]

    return weigh(schema)


def _target(schema: Any, reference: str) -> Any:
    """What a local reference points at; None when it is no pointer, or points nowhere."""
    part = schema
    for step in reference[1:].split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, list) and key.isdigit() and int(key) < len(part):
            part = part[int(key)]
        else:
            part = part.get(key) if isinstance(part, dict) else None
    return part
