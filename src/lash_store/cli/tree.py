"""Draws the graph of a session: a run of nodes is a list, a branch hangs on the node it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct
from rich.text import Text
from rich.tree import Tree

from lash_store import Run, RunNode, Session
from lash_store.cli.output import clean, counted, short, shown

PREVIEW_CHARS = 72  # of a body: a line is a reminder of the node, not its text
INDENT = "  "
HEAD_MARK = "<- head"
TEXT_FIELDS = ("text", "content")  # where bodies usually keep what was said


class Line(Struct):
    """A line of the drawing, and what hangs on it."""

    text: str
    style: str
    below: list[Line]


class Drawing(Struct, frozen=True, kw_only=True):
    """A page of runs, and how they hang together. `deeper` counts those nested too deep to be drawn."""

    session: Session
    roots: tuple[Run, ...]
    branches: dict[int, list[Run]]
    deeper: int
    cursor: str | None
    brief: bool

    def name(self, id: str | None) -> str:
        """An id as this drawing writes it."""
        return short(id) if self.brief else shown(id)


class Nested(Struct, frozen=True, kw_only=True):
    """A run in the JSON document, with the runs that leave it."""

    number: int
    parent_id: str | None
    node_count: int
    hidden_count: int
    first_depth: int
    tip_depth: int
    nodes: tuple[RunNode, ...]
    branches: tuple[Nested, ...]


class Branched(Protocol):
    """What can grow: a rich tree."""

    def add(self, label: Any) -> Branched:
        """Hang something on it."""
        ...


def arranged(session: Session, runs: Sequence[Run], *, depth: int, cursor: str | None, brief: bool = False) -> Drawing:
    """Hang each run on its parent, as far as the page has it and it is not nested deeper than `depth`. Brief: with short ids."""
    levels: dict[int, int] = {}
    roots: list[Run] = []
    branches: dict[int, list[Run]] = {}
    for run in runs:  # a parent has the lower number, so it was here before
        above = None if run.parent is None else levels.get(run.parent)
        levels[run.number] = 1 if above is None else above + 1
        if above is None or run.parent is None:
            roots.append(run)
        elif levels[run.number] <= depth:
            branches.setdefault(run.parent, []).append(run)
    deeper = sum(level > depth for level in levels.values())
    return Drawing(session=session, roots=tuple(roots), branches=branches, deeper=deeper, cursor=cursor, brief=brief)


# --- JSON -----------------------------------------------------------------------------------------------------------------


def document(drawing: Drawing) -> dict[str, object]:
    """The drawing as nested objects."""
    return {
        "session": drawing.session,
        "runs": [_nested(drawing, run) for run in drawing.roots],
        "deeper": drawing.deeper,
        "cursor": drawing.cursor,
    }


def _nested(drawing: Drawing, run: Run) -> Nested:
    return Nested(
        number=run.number,
        parent_id=run.parent_id,
        node_count=run.node_count,
        hidden_count=run.hidden_count,
        first_depth=run.first_depth,
        tip_depth=run.tip_depth,
        nodes=run.nodes,
        branches=tuple(_nested(drawing, branch) for branch in drawing.branches.get(run.number, ())),
    )


# --- lines ----------------------------------------------------------------------------------------------------------------


def rich_tree(drawing: Drawing) -> Tree:
    """The drawing for a terminal. Each line is cut at its edge."""
    tree = Tree(_label(_title(drawing), "bold"))
    for run in drawing.roots:
        _grow(tree, _run_line(drawing, run))
    return tree


def _grow(tree: Branched, line: Line) -> None:
    grown = tree.add(_label(line.text, line.style))
    for below in line.below:
        _grow(grown, below)


def _label(text: str, style: str) -> Text:
    return Text(clean(text), style=style, no_wrap=True, overflow="ellipsis")


def plain_lines(drawing: Drawing) -> list[str]:
    """The drawing for a pipe: indented lines."""
    lines = [clean(_title(drawing))]
    for run in drawing.roots:
        _indent(lines, _run_line(drawing, run), INDENT)
    return lines


def _indent(lines: list[str], line: Line, margin: str) -> None:
    lines.append(f"{margin}{clean(line.text)}")
    for below in line.below:
        _indent(lines, below, margin + INDENT)


def _title(drawing: Drawing) -> str:
    session = drawing.session
    nodes = counted(session.node_count, "nodes")
    return f"{session.session_id} · revision {session.revision} · {nodes} · head {drawing.name(session.leaf_id)}"


def _run_line(drawing: Drawing, run: Run) -> Line:
    """A run as a line with its nodes below, each with the branches that leave it; gaps say how much they leave out."""
    leaving: dict[str | None, list[Run]] = {}
    for branch in drawing.branches.get(run.number, ()):
        leaving.setdefault(branch.parent_id, []).append(branch)
    depths = {each.depth: each for each in run.nodes}
    names = {branches[0].first_depth - 1: parent_id for parent_id, branches in leaving.items()}
    below: list[Line] = []
    expected = run.first_depth
    for depth in sorted(depths.keys() | names.keys()):
        below += _gap(depth - expected)
        line = _node_line(depths[depth], drawing) if depth in depths else Line(drawing.name(names[depth]), "", [])
        line.below += [_run_line(drawing, branch) for branch in leaving.get(names.get(depth), ())]
        below.append(line)
        expected = depth + 1
    below += _gap(run.tip_depth + 1 - expected)
    return Line(_run_text(drawing, run), "cyan", below)


def _run_text(drawing: Drawing, run: Run) -> str:
    hidden = f", {run.hidden_count} hidden" if run.hidden_count else ""
    origin = f" after {drawing.name(run.parent_id)}" if run.parent_id is not None else ""
    return f"run {run.number}{origin} ({counted(run.node_count, 'nodes')}{hidden})"


def _gap(count: int) -> list[Line]:
    return [Line(f"… {count} not shown", "dim", [])] if count > 0 else []


def _node_line(each: RunNode, drawing: Drawing) -> Line:
    node = each.node
    at_head = node.node_id == drawing.session.leaf_id
    parts = [drawing.name(node.node_id), node.kind, preview(node.body), HEAD_MARK if at_head else ""]
    return Line("  ".join(part for part in parts if part), "bold green" if at_head else "", [])


def preview(body: object) -> str:
    """The beginning of what a body says, in one line."""
    said = _said(body)
    return said if len(said) <= PREVIEW_CHARS else said[: PREVIEW_CHARS - 1] + "…"


def _said(body: Any) -> str:
    if isinstance(body, str):
        return clean(body[:PREVIEW_CHARS])
    for field in TEXT_FIELDS:
        text = body.get(field) if isinstance(body, dict) else None
        if isinstance(text, str):
            role = body.get("role")
            return clean(f"{role}: {text[:PREVIEW_CHARS]}" if isinstance(role, str) else text[:PREVIEW_CHARS])
    return "" if body is None else shown(body)
