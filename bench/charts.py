"""Charts of the figures as SVG, in light and in dark. Small on purpose: lines and bars on logarithmic scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from bench.bars import JOB_PEERS
from bench.load import CHAT
from bench.report import number, size
from bench.results import Results
from bench.stage import OURS, PGBENCH, PORT, POSTGRES, RAW, READY, SQLITE

WIDTH, HEIGHT = 780, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 235, 50, 50
COLOURS = ("a", "g", "r", "b", "c", "d", "e", "f")
STYLE = """
.ink{fill:#1c2333}.soft{fill:#5a6478}.line{stroke:#d5dae4;stroke-width:1}
.a{--k:#4f46e5}.g{--k:#0b7a53}.r{--k:#b93815}.b{--k:#0369a1}.c{--k:#a16207}.d{--k:#be185d}.e{--k:#64748b}.f{--k:#4d7c0f}
.s{stroke:var(--k);fill:none;stroke-width:2}.own .s,.own.s{stroke-width:3.5}.p{fill:var(--k)}
text{font:12px ui-sans-serif,system-ui,sans-serif}.t{font-size:15px;font-weight:600}.own text,text.own{font-weight:700}
@media (prefers-color-scheme:dark){
.ink{fill:#e8ebf3}.soft{fill:#a0aabd}.line{stroke:#39425a}
.a{--k:#a5b0ff}.g{--k:#62d6a8}.r{--k:#ff9d73}.b{--k:#7cc7f5}.c{--k:#e3bd5b}.d{--k:#f48fc0}.e{--k:#a0aabd}.f{--k:#b5d46a}}
"""


@dataclass(frozen=True)
class Series:
    """One line or one group of bars: a name, its points, and whether it is ours."""

    name: str
    points: tuple[tuple[float, float], ...]
    own: bool = False


def charts(results: Results) -> dict[str, str]:
    """Every chart by the name of its file."""
    return {
        "bench-throughput.svg": throughput(results),
        "bench-depth.svg": depth(results),
        "bench-disk.svg": disk(results),
        "bench-wake.svg": wake(results),
    }


# --- which ----------------------------------------------------------------------------------------------------------------


def throughput(results: Results) -> str:
    """Turns per second by callers."""
    members = [(OURS.name, POSTGRES), (OURS.name, SQLITE), (PGBENCH, POSTGRES), (READY.name, POSTGRES), (PORT.name, POSTGRES)]
    members += [(name, POSTGRES) for name in ("LangGraph", "OpenAI Agents", "Google ADK")]
    found = collect(results, members, "W1", [(callers, f"{CHAT}, {callers} callers") for callers in (1, 16, 64)], "turns/s")
    return lines("Turns per second by concurrent callers", "callers", found, number)


def depth(results: Results) -> str:
    """Latency of a turn by depth."""
    found = collect(results, talkers(), "W3", at_depths((10, 100, 1_000, 10_000)), "turn p50 ms")
    return lines("Time to persist one turn, p50 in ms", "turns the session has had", found, number)


def disk(results: Results) -> str:
    """Bytes by depth."""
    found = collect(results, talkers(), "W3", at_depths((10, 100, 1_000)), "disk bytes")
    return lines("Disk for one session", "turns the session has had", found, size)


def talkers() -> list[tuple[str, str]]:
    """Who persists turns."""
    own = [(OURS.name, POSTGRES), (OURS.name, SQLITE)]
    return (
        own
        + [(name, POSTGRES) for name in ("LangGraph", "LangGraph delta", "OpenAI Agents", "Google ADK")]
        + [("LangGraph SQLite", SQLITE)]
    )


def at_depths(depths: Sequence[int]) -> list[tuple[float, str]]:
    """The cases of W3."""
    return [(each, f"depth {each:,}") for each in depths]


def wake(results: Results) -> str:
    """From a stored job to the start of its run."""
    members = [(OURS.name, SQLITE), (OURS.name, POSTGRES), *((name, POSTGRES) for name in (PORT.name, *JOB_PEERS))]
    found: list[tuple[str, float, bool]] = []
    for name, engine in members:
        value = results.median("W8", name, engine, "idle worker", "start p50 ms")
        if value is not None:
            found.append((label(name, engine), value, name == OURS.name))
    return rows("An idle worker starts a new job after, p50 in ms", found, number)


def collect(
    results: Results, members: Sequence[tuple[str, str]], workload: str, cases: Sequence[tuple[float, str]], metric: str
) -> list[Series]:
    """The figures that were measured."""
    found: list[Series] = []
    for name, engine in members:
        values = [(x, results.median(workload, name, engine, case, metric)) for x, case in cases]
        points = tuple((x, value) for x, value in values if value)
        if points:
            found.append(Series(label(name, engine), points, own=name == OURS.name))
    return found


def label(name: str, engine: str) -> str:
    """A name that says the engine where both exist."""
    return f"{name}, {engine}" if name in (OURS.name, RAW.name) else name


# --- how ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """A logarithmic scale onto pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Powers of ten."""
        return [10.0**power for power in range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)]


def around(values: Sequence[float]) -> tuple[float, float]:
    """Powers of ten around all values."""
    low, high = 10.0 ** math.floor(math.log10(min(values))), 10.0 ** math.ceil(math.log10(max(values)))
    return low, high if high > low else low * 10


def lines(title: str, below: str, series: Sequence[Series], show: Callable[[float], str]) -> str:
    """A chart of lines; both axes logarithmic, each line named at its end."""
    if not series:
        return document(title, [])
    xs = sorted({x for each in series for x, _ in each.points})
    low, high = around([y for each in series for _, y in each.points])
    x_scale = Scale(xs[0], xs[-1] if len(xs) > 1 else xs[0] * 10, LEFT, WIDTH - RIGHT)
    y_scale = Scale(low, high, HEIGHT - BOTTOM, TOP)
    parts = [grid(y_scale, show)]
    parts += [f'<text class="soft" x="{x_scale(x)}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{x:,.0f}</text>' for x in xs]
    parts.append(
        f'<text class="soft" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(below)}</text>'
    )
    ends = spaced([y_scale(each.points[-1][1]) for each in series])
    for place, each in enumerate(series):
        parts.append(line(each, COLOURS[place % len(COLOURS)], x_scale, y_scale, ends[place], show))
    return document(title, parts)


def grid(scale: Scale, show: Callable[[float], str]) -> str:
    """Horizontal lines at powers of ten."""
    made = [
        f'<line class="line" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{scale(tick)}" y2="{scale(tick)}"/>'
        f'<text class="soft" x="{LEFT - 8}" y="{scale(tick) + 4}" text-anchor="end">{show(tick)}</text>'
        for tick in scale.ticks()
    ]
    return "".join(made)


def line(series: Series, colour: str, x_scale: Scale, y_scale: Scale, end: float, show: Callable[[float], str]) -> str:
    """One line with its points and its name."""
    path = " ".join(f"{x_scale(x)},{y_scale(y)}" for x, y in series.points)
    dots = "".join(f'<circle class="p" cx="{x_scale(x)}" cy="{y_scale(y)}" r="3.5"/>' for x, y in series.points)
    last = series.points[-1]
    own = " own" if series.own else ""
    words = f"{escape(series.name)} {show(last[1])}"
    return (
        f'<g class="{colour}{own}"><polyline class="s" points="{path}"/>{dots}'
        f'<text class="p" x="{x_scale(last[0]) + 10}" y="{end + 4}">{words}</text></g>'
    )


def spaced(places: Sequence[float], room: float = 15) -> list[float]:
    """Places for names that do not cover each other, in the order of the lines."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    found = list(places)
    for before, after in pairwise(order):
        found[after] = max(found[after], found[before] + room)
    over = max(0.0, max(found) - (HEIGHT - BOTTOM))
    return [round(place - over, 1) for place in found]


def rows(title: str, values: Sequence[tuple[str, float, bool]], show: Callable[[float], str]) -> str:
    """A chart of bars, one below the other, on a logarithmic scale."""
    if not values:
        return document(title, [])
    low, high = around([value for _, value, _ in values])
    scale = Scale(low / 2, high, 190, WIDTH - 80)
    step = (HEIGHT - TOP - 20) / len(values)
    parts: list[str] = []
    for place, (name, value, own) in enumerate(values):
        y = round(TOP + place * step, 1)
        kind, strong = ("a", " own") if own else ("e", "")
        parts.append(
            f'<g class="{kind}{strong}">'
            f'<text class="ink" x="180" y="{y + step / 2:.1f}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="p" x="190" y="{y + step * 0.12:.1f}" '
            f'width="{scale(value) - 190:.1f}" height="{step * 0.6:.1f}" rx="3"/>'
            f'<text class="ink" x="{scale(value) + 8:.1f}" y="{y + step / 2:.1f}">{show(value)}</text></g>'
        )
    return document(title, parts)


def document(title: str, parts: Sequence[str]) -> str:
    """The whole file."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">\n'
        f"<style>{STYLE}</style>\n"
        f'<text class="ink t" x="{LEFT - 50}" y="26">{escape(title)}</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )
