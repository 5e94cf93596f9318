"""Three ways to watch: live on a terminal, plain lines in a pipe, and nothing until the JSON report at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from msgspec import Struct
from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree as RichTree

from lash_store.cli.demo.ending import Ending, Lane, Line, Tree
from lash_store.cli.demo.ledger import Claim
from lash_store.cli.output import counted

TITLE = "An agent that is killed and loses nothing"
HONEST = "The model is scripted: no key, no network. The processes, the kills and the database are real."
SECOND_LOOK = "read from raw rows by process {pid}, which has never opened a store"
LANE_WIDTH, LANE_WIDTH_MIN = 56, 20
BESIDE_A_LANE = 48  # what a line of the timeline needs for names and fates
SPEAKERS = {"user": "you", "process": "process", "agent": "agent"}
STYLES = {
    "you": "bold cyan",
    "model": "magenta",
    "agent": "magenta",
    "tool": "yellow",
    "process": "blue",
    "inbox": "blue",
    "schedule": "blue",
    "note": "dim",
}


class Place(Struct, frozen=True):
    """Where the story takes place, safe to print; and what becomes of it afterwards."""

    engine: str
    url: str
    afterwards: str


class Happened(Struct, frozen=True):
    """A line of the story, for the report."""

    at_s: float
    act: str
    who: str
    text: str


class Show:
    """Keeps what happened, and shows nothing. The others show it, too."""

    def __init__(self) -> None:
        self.happened: list[Happened] = []
        self._began = time.monotonic()
        self._act, self._acts = "", 0

    def opening(self, place: Place) -> None:
        """The curtain."""

    def act(self, title: str, why: str) -> None:
        """An act begins."""
        self._act, self._acts = title, self._acts + 1

    def line(self, who: str, text: str) -> None:
        """Somebody does or says something."""
        self.happened.append(Happened(round(self.now_s(), 3), self._act, who, text))

    def kill(self, who: str, text: str) -> None:
        """Somebody is killed."""
        self.line(who, text)

    def claim(self, claim: Claim) -> None:
        """A claim was checked on the spot."""

    @contextmanager
    def waiting(self, text: str) -> Generator[None]:
        """Something takes a moment."""
        del text
        yield

    def ending(self, ending: Ending) -> None:
        """What there is at the end."""

    def verdict(self, claims: Sequence[Claim], *, pid: int) -> None:
        """The second look."""

    def farewell(self, sentence: str, place: Place, commands: Sequence[str]) -> None:
        """The last words."""

    def now_s(self) -> float:
        """Seconds since the curtain."""
        return time.monotonic() - self._began


# --- plain lines ----------------------------------------------------------------------------------------------------------


class Plain(Show):
    """Lines of text without colour, each readable alone."""

    def opening(self, place: Place) -> None:
        self._say(f"{TITLE}.", HONEST, f"{place.engine}, {place.url}")

    def act(self, title: str, why: str) -> None:
        super().act(title, why)
        self._say("", f"{self._acts}. {title}: {why}")

    def line(self, who: str, text: str) -> None:
        super().line(who, text)
        self._say(f"  {self.now_s():6.2f}  {who:<9} {text}")

    def claim(self, claim: Claim) -> None:
        self._say(f"          {mark(claim)}  {claim.sentence}")

    def ending(self, ending: Ending) -> None:
        for tree in ending.trees:
            self._say("", heading(tree), *plain_lines(shortened(tree), "  "))
        self._say("", "tokens")
        for spent in ending.spent:
            turns = counted(spent.turns, "turns")
            self._say(f"  {spent.session_id:<14} {spent.model}  {turns}  input {spent.input}  output {spent.output}")
        self._say("", "timeline: # alive, * commit, X killed")
        for lane in ending.lanes:
            self._say(f"  worker {lane.worker} {lane.pid:<8} |{''.join(cells(lane, span_s(ending), LANE_WIDTH, '#*X'))}|")

    def verdict(self, claims: Sequence[Claim], *, pid: int) -> None:
        self._say("", f"Every claim again, {SECOND_LOOK.format(pid=pid)}")
        for claim in claims:
            self._say(f"  {mark(claim)}  {claim.sentence}{why(claim)}")

    def farewell(self, sentence: str, place: Place, commands: Sequence[str]) -> None:
        self._say("", sentence, place.afterwards, "", "Try next:", *(f"  {command}" for command in commands))

    def _say(self, *lines: str) -> None:
        for line in lines:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()


def mark(claim: Claim) -> str:
    """A claim's mark in plain text."""
    return "ok    " if claim.holds else "FAILED"


def why(claim: Claim) -> str:
    """Why a claim could not be checked."""
    return f" ({claim.why})" if claim.why else ""


def heading(tree: Tree) -> str:
    """A session in a line."""
    origin = f", forked from {tree.parent}" if tree.parent else ""
    return f"{tree.session_id}: {tree.name}{origin}, revision {tree.revision}, {counted(tree.nodes, 'nodes')}"


def shortened(tree: Tree) -> tuple[Line, ...]:
    """A long monotonous conversation, and what a fork has in common with its source, in fewer lines."""
    if tree.parent is not None:
        return (Line("…", f"{len(tree.lines) - 2} lines in common"), *tree.lines[-2:])
    if {line.role for line in tree.lines} == {"agent"}:
        return (*tree.lines[:1], Line("…", f"{len(tree.lines) - 2} more"), *tree.lines[-1:])
    return tree.lines


def plain_lines(lines: Sequence[Line], indent: str) -> list[str]:
    """A conversation, branches further in."""
    found: list[str] = []
    for line in lines:
        found.append(f"{indent}{SPEAKERS.get(line.role, line.role):<8} {line.text}{tools_of(line)}")
        for branch in line.branches:
            found += plain_lines(branch, f"{indent}  | ")
    return found


def tools_of(line: Line) -> str:
    """The tools an answer needed."""
    return f"  [{', '.join(line.tools)}]" if line.tools else ""


def span_s(ending: Ending) -> float:
    """How long the workers lived, all together."""
    return max(lane.to_s for lane in ending.lanes)


def cells(lane: Lane, span: float, width: int, marks: str) -> list[str]:
    """A worker's life in so many cells: alive, a commit, its death."""
    alive, commit, death = marks

    def cell(at_s: float) -> int:
        return min(width - 1, int(at_s / span * width))

    found = [alive if cell(lane.from_s) <= place <= cell(lane.to_s) else " " for place in range(width)]
    for at_s in lane.commits:
        found[cell(at_s)] = commit
    if lane.killed is not None:
        found[cell(lane.killed.at_s)] = death
    return found


# --- a terminal -----------------------------------------------------------------------------------------------------------


class Terminal(Show):
    """Rich, line by line as it happens."""

    def __init__(self, console: Console, *, spin: bool = True) -> None:
        super().__init__()
        self._console, self._spin = console, spin

    def opening(self, place: Place) -> None:
        words = Group(Text(TITLE, style="bold"), Text(HONEST), Text(f"{place.engine} · {place.url}", style="dim"))
        self._print(Panel(words, box=ROUNDED, border_style="cyan", title="lash-store demo", title_align="left"))

    def act(self, title: str, why: str) -> None:
        super().act(title, why)
        self._print(Text.assemble("\n", (f" {self._acts} ", "bold black on cyan"), (f" {title}  ", "bold"), (why, "dim italic")))

    def line(self, who: str, text: str) -> None:
        super().line(who, text)
        self._row(Text(who, style=STYLES.get(who, "green")), Text(text, style="dim" if who == "note" else ""))

    def kill(self, who: str, text: str) -> None:
        Show.line(self, who, text)
        self._row(Text(who, style="bold red"), Text(f" ✗ {text} ", style="bold white on red"))

    def claim(self, claim: Claim) -> None:
        self._row(Text(""), ticked(claim), timed=False)

    @contextmanager
    def waiting(self, text: str) -> Generator[None]:
        if not self._spin:
            yield
            return
        with self._console.status(Text(text, style="dim"), spinner="dots"):
            yield

    def ending(self, ending: Ending) -> None:
        for tree in ending.trees:
            self._print("")
            self._print(drawn_tree(tree))
        self._print(usage_table(ending))
        self._print(timeline(ending, max(LANE_WIDTH_MIN, min(LANE_WIDTH, self._console.width - BESIDE_A_LANE))))

    def verdict(self, claims: Sequence[Claim], *, pid: int) -> None:
        failed = not all(claim.holds for claim in claims)
        words = Group(Text(SECOND_LOOK.format(pid=pid), style="dim italic"), *(ticked(claim) for claim in claims))
        style = "red" if failed else "green"
        self._print(Panel(words, box=ROUNDED, border_style=style, title="every claim again", title_align="left"))

    def farewell(self, sentence: str, place: Place, commands: Sequence[str]) -> None:
        self._print(Text(sentence, style="bold"))
        self._print(Text(place.afterwards, style="dim"))
        self._print(Text("\nTry next:"))
        for command in commands:
            # Not wrapped: it is there to be copied.
            self._console.print(Text(f"  {command}", style="cyan"), soft_wrap=True)

    def _row(self, who: Text, text: Text, *, timed: bool = True) -> None:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=6, justify="right")
        grid.add_column(width=9)
        grid.add_column()
        grid.add_row(Text(f"{self.now_s():.2f}" if timed else "", style="dim"), who, text)
        self._print(grid)

    def _print(self, what: RenderableType) -> None:
        self._console.print(what)


def ticked(claim: Claim) -> Text:
    """A claim with its mark."""
    if claim.holds:
        return Text.assemble(("✓ ", "bold green"), (claim.sentence, "green"))
    return Text.assemble(("✗ DOES NOT HOLD: ", "bold red"), (f"{claim.sentence}{why(claim)}", "red"))


def drawn_tree(tree: Tree) -> RichTree:
    """A session with its branches."""
    origin = f" · forked from {tree.parent}" if tree.parent else ""
    label = Text.assemble((tree.session_id, "bold cyan"), f"  {tree.name}", (f"{origin} · revision {tree.revision}", "dim"))
    drawn = RichTree(label, guide_style="dim")
    grow(drawn, shortened(tree))
    return drawn


def grow(drawn: RichTree, lines: Sequence[Line]) -> None:
    """The lines of a run, and below a line the branches that leave it."""
    for line in lines:
        who = SPEAKERS.get(line.role, line.role)
        twig = drawn.add(Text.assemble((f"{who:<8}", STYLES.get(who, "dim")), line.text, (tools_of(line), "dim yellow")))
        for branch in line.branches:
            grow(twig, branch)


def usage_table(ending: Ending) -> Table:
    """Tokens by session."""
    table = Table("session", "model", box=SIMPLE_HEAD, header_style="bold")
    for heading in ("turns", "input tokens", "output tokens"):
        table.add_column(heading, justify="right")
    for each in ending.spent:
        table.add_row(Text(each.session_id), Text(each.model), str(each.turns), str(each.input), str(each.output))
    return table


def timeline(ending: Ending, width: int) -> Table:
    """The lives of the workers."""
    table = Table("worker", "pid", box=SIMPLE_HEAD, header_style="bold")
    table.add_column(f"0 s {'─' * (width - 11)} {span_s(ending):.1f} s", width=width, no_wrap=True)
    table.add_column("", style="dim")
    for lane in ending.lanes:
        drawn = Text("".join(cells(lane, span_s(ending), width, "━●✗")))
        drawn.highlight_regex("━", "dim green")
        drawn.highlight_regex("●", "bold green")
        drawn.highlight_regex("✗", "bold red")
        fate = f"killed {lane.killed.moment}" if lane.killed else f"{len(lane.commits)} commits"
        table.add_row(Text(lane.worker, style="green"), str(lane.pid), drawn, Text(fate))
    return table
