"""Check the laws that the shape of the code must keep, by reading it. `python -m tools.import_law` prints each breach.

    model, errors, encode, delta, payload_schema  <-  ops  <-  store  <-  cli
    db runs what ops yields and knows only ops.statement; ops never knows who runs it.

Nothing that could execute stored data is imported. Operations read no client clock, and their SQL is constant.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "lash_store"
BASE = ("model", "errors", "encode", "delta", "payload_schema")

# Who may import what: a room, or one module of it. A room may always import itself.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors": (),
    "model": ("errors",),
    "encode": ("model", "errors"),
    "delta": ("model", "errors"),
    "payload_schema": ("model", "errors", "encode"),
    "ops": BASE,
    "db": ("ops.statement", "model", "errors"),
    "blobs": ("ops", "model", "errors", "encode"),
    "notify": ("ops", "model", "errors"),
    "store": (*BASE, "ops", "db", "blobs", "notify"),
    "testing": (*BASE, "ops", "db", "blobs", "notify", "store", ""),
    "cli": (*BASE, "ops", "db", "blobs", "notify", "store", ""),
    "__main__": ("cli",),
    "": (*BASE, "blobs", "store"),  # The package's own __init__: public names.
}

# Stored data must never become code; and a second SQLite library in one process drops the first one's file locks.
BANNED_IMPORTS = ("pickle", "cPickle", "_pickle", "marshal", "shelve", "yaml", "dill", "cloudpickle", "jsonpickle", "sqlite3")
MAY_IMPORT_BANNED = {("testing.example.engine", "sqlite3")}  # in memory: there is no file whose locks it could drop
BANNED_CALLS = ("eval", "exec", "compile", "__import__")

# An operation does no input or output and takes its time from the database.
BANNED_IN_OPS = ("time", "datetime", "asyncio", "threading", "socket", "os", "apsw", "asyncpg", "random", "logging")

SQL_CALLS = ("fetch", "fetch_one", "execute", "execute_many", "Fetch", "Execute", "ExecuteMany")


@dataclass(frozen=True)
class Breach:
    """One broken law, where it is broken."""

    place: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: {self.what}"


def breaches(source_root: Path) -> list[Breach]:
    """Every breach below `source_root`, the folder that holds the package."""
    found: list[Breach] = []
    for path in sorted((source_root / PACKAGE).rglob("*.py")):
        found += breaches_of(path.read_text(), path.relative_to(source_root))
    return found


def breaches_of(text: str, path: Path) -> list[Breach]:
    """The breaches of one module; `path` is relative to the source root and decides which laws hold."""
    tree = ast.parse(text)
    module = ".".join(path.with_suffix("").parts[1:]).removesuffix("__init__").rstrip(".")
    room = module.split(".")[0]
    found = [*_imports(tree, path, module), *_calls(tree)]
    if room == "ops":
        found += _sql(tree)
    return [Breach(str(path), line, what) for line, what in sorted(found)]


def _imports(tree: ast.Module, path: Path, module: str) -> Iterator[tuple[int, str]]:
    room = module.split(".")[0]
    for line, target in _imported(tree, path):
        top = target.split(".")[0]
        if top in BANNED_IMPORTS and (module, top) not in MAY_IMPORT_BANNED:
            yield line, f"{top} must not be imported: stored data is never executed, and the store has the only SQLite"
        elif room == "ops" and top in BANNED_IN_OPS:
            yield line, f"an operation does no input or output and reads no client clock: {top}"
        elif top == PACKAGE and not _allowed(room, target.removeprefix(PACKAGE).lstrip(".")):
            yield line, f"{room or PACKAGE} may not import {target}"


def _imported(tree: ast.Module, path: Path) -> Iterator[tuple[int, str]]:
    """Every imported name in full; `from a import b` counts as a.b, so that a room is seen behind the package too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = _absolute(node, path)
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def _absolute(node: ast.ImportFrom, path: Path) -> str:
    if not node.level:
        return node.module or ""
    package = path.parts[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def _allowed(room: str, target: str) -> bool:
    """`target` is relative to the package: "ops.statement.Op", "model", or "Store" for a public name."""
    room_of_target = target.split(".", maxsplit=1)[0]
    if room_of_target == room:
        return True
    allowed = MAY_IMPORT.get(room, ())
    if room_of_target not in MAY_IMPORT:
        return "" in allowed
    return any(f"{target}.".startswith(f"{one}.") for one in allowed if one)


def _calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
            yield node.lineno, f"{node.func.id}() must not be called: stored data is never executed"


def _sql(tree: ast.Module) -> Iterator[tuple[int, str]]:
    names = _constant_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_sql_call(node) and not (node.args and _is_constant(node.args[0], names)):
            yield node.lineno, "SQL is a constant: a literal, or a module's constant made of literals; values are parameters"


def _is_sql_call(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id in SQL_CALLS


def _constant_names(tree: ast.Module) -> set[str]:
    """Names that can only hold literal text: constants, also imported ones, LiteralString arguments, loops over constants."""
    names = {alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    names = {name for name in names if name.isupper()}
    for node in tree.body:
        names |= _assigned_constant(node, names)
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name, annotation=ast.Name(id="LiteralString")):
                names.add(name)
            case ast.For(target=ast.Name(id=name), iter=ast.Name(id=table)) if table in names:
                names.add(name)
            case _:
                pass
    return names


def _assigned_constant(node: ast.stmt, names: set[str]) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    value = getattr(node, "value", None)
    if not isinstance(value, ast.expr) or not _is_constant(value, names):
        return set()
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _is_constant(node: ast.expr, names: set[str]) -> bool:
    """Literal text; sums, choices and tables of it, so that an operation may pick a statement but never build one."""
    match node:
        case ast.Constant(value=str()):
            return True
        case ast.Name(id=name):
            return name in names
        case ast.BinOp(left=left, op=ast.Add(), right=right) | ast.IfExp(body=left, orelse=right):
            return _is_constant(left, names) and _is_constant(right, names)
        case ast.Dict(values=values) | ast.Tuple(elts=values):
            return bool(values) and all(_is_constant(value, names) for value in values)
        case ast.Subscript(value=table):
            return _is_constant(table, names)
        case _:
            return False


def main() -> int:
    """Print the breaches; the exit status says whether there are any."""
    found = breaches(Path(__file__).resolve().parents[1] / "src")
    for breach in found:
        print(breach)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
