"""Turns the value classes of the package into Markdown: each with its sentence, its fields, and its methods.

A page of docs/reference says `::: types lash_store.model.queue`; the site gets one section for each public class of that module.
The builder's own directive knows functions and docstrings, but not what a field of these classes is, or whether it has a default.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from types import ModuleType
from typing import Any

import msgspec

DIRECTIVE = re.compile(r"^::: types (?P<module>[\w.]+)$", re.MULTILINE)
REMARK = re.compile(r"^    (?P<name>\w+):.*  # (?P<remark>.+)$", re.MULTILINE)


def expand(text: str) -> str:
    """A page with the sections of the modules it names."""
    return DIRECTIVE.sub(lambda found: "\n".join(section(kind) for kind in classes_of(found["module"])), text)


def classes_of(module: str) -> list[type]:
    """The public classes a module defines, in its own order."""
    loaded: ModuleType = importlib.import_module(module)
    kinds = [kind for name, kind in vars(loaded).items() if inspect.isclass(kind) and not name.startswith("_")]
    return [kind for kind in kinds if kind.__module__ == module]


def section(kind: type) -> str:
    """One class: the builder's directive for its sentence and methods, then a table of its fields or members."""
    directive = f"::: {kind.__module__}.{kind.__name__}\n    options:\n      heading_level: 3\n"
    if issubclass(kind, enum.Enum):
        return directive + "      members: false\n\n" + _members(kind)
    return directive + f"      members: {_methods(kind)}\n\n" + _fields(kind)


def _methods(kind: type) -> list[str]:
    return [name for name, value in vars(kind).items() if not name.startswith("_") and _is_method(value)]


def _is_method(value: object) -> bool:
    return inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)


def _members(kind: type[enum.Enum]) -> str:
    names = " · ".join(f"`{kind.__name__}.{member.name}` (`{member.value!r}`)" for member in kind)
    return f"{names}\n"


def _fields(kind: type) -> str:
    if issubclass(kind, Exception):
        names = " · ".join(f"`{name}`" for name in inspect.get_annotations(kind) if not name.startswith("_"))
        return f"Fields: {names}\n" if names else ""
    if not issubclass(kind, msgspec.Struct) or not kind.__struct_fields__:
        return ""
    remarks = {found["name"]: found["remark"] for found in REMARK.finditer(inspect.getsource(kind))}
    rows = [[*_cells(kind, field), remarks.get(field.name, "")] for field in msgspec.structs.fields(kind)]
    columns = [column for column in zip(["field", "type", "default", "why"], *rows, strict=True) if any(column[1:])]
    head, *body = zip(*columns, strict=True)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body]) + "\n"


def _cells(kind: type, field: msgspec.structs.FieldInfo) -> list[str]:
    written = inspect.get_annotations(kind).get(field.name, "")
    return [f"`{field.name}`", f"`{written}`".replace("|", "\\|"), _default(field)]


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        factory: Any = field.default_factory
        return f"`{_shown(factory())}`"
    return "" if field.default is msgspec.NODEFAULT else f"`{_shown(field.default)}`"


def _shown(value: object) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return "not named" if value is msgspec.UNSET else f"{value!r}"
