"""Figures: what was measured, by whom, in which case. Kept as JSON in bench/results, from where every table and chart comes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

FOLDER = Path(__file__).resolve().parent / "results"
FULL, QUICK = FOLDER / "bench.json", FOLDER / "quick.json"


@dataclass(frozen=True)
class Figure:
    """One number, measured again and again: `values` has one entry per repeat, `samples` some of what each is made of."""

    workload: str
    subject: str
    engine: str
    case: str
    metric: str
    values: tuple[float, ...]
    samples: tuple[tuple[float, ...], ...] = ()

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> tuple[float, float]:
        return min(self.values), max(self.values)


@dataclass
class Results:
    """All figures of one run, who was absent and why, and the surroundings."""

    surroundings: dict[str, Any] = field(default_factory=dict[str, Any])
    absent: dict[str, str] = field(default_factory=dict[str, str])
    semantics: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    figures: list[Figure] = field(default_factory=list[Figure])

    def note(
        self, workload: str, subject: str, engine: str, case: str, metric: str, value: float, samples: Sequence[float] = ()
    ) -> None:
        """One more value of a figure; the first one makes it."""
        for place, figure in enumerate(self.figures):
            if (figure.workload, figure.subject, figure.engine, figure.case, figure.metric) == (
                workload,
                subject,
                engine,
                case,
                metric,
            ):
                values = (*figure.values, rounded(value))
                more = (*figure.samples, tuple(map(rounded, samples))) if samples else figure.samples
                self.figures[place] = Figure(workload, subject, engine, case, metric, values, more)
                return
        kept = (tuple(map(rounded, samples)),) if samples else ()
        self.figures.append(Figure(workload, subject, engine, case, metric, (rounded(value),), kept))

    def find(self, workload: str, subject: str, engine: str, case: str, metric: str) -> Figure | None:
        """The figure, or None when it was not measured."""
        wanted = (workload, subject, engine, case, metric)
        for figure in self.figures:
            if (figure.workload, figure.subject, figure.engine, figure.case, figure.metric) == wanted:
                return figure
        return None

    def median(self, workload: str, subject: str, engine: str, case: str, metric: str) -> float | None:
        """Its median, or None."""
        figure = self.find(workload, subject, engine, case, metric)
        return None if figure is None else figure.median

    def of(self, workload: str) -> list[Figure]:
        """All figures of one workload."""
        return [figure for figure in self.figures if figure.workload == workload]

    def save(self, path: Path) -> None:
        """Write them; one figure per line, so that two runs can be compared."""
        head = {"surroundings": self.surroundings, "absent": self.absent, "semantics": self.semantics}
        lines = ",\n  ".join(json.dumps(asdict(figure)) for figure in self.figures)
        path.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "figures": [\n  {lines}\n ]\n}}\n')


def load(path: Path = FULL) -> Results:
    """The figures of an earlier run."""
    data = json.loads(path.read_text())
    figures = [figure_of(each) for each in data["figures"]]
    return Results(data["surroundings"], data["absent"], data["semantics"], figures)


def figure_of(line: dict[str, Any]) -> Figure:
    """A figure as it was written."""
    values, samples = tuple(line.pop("values")), tuple(tuple(each) for each in line.pop("samples"))
    return Figure(**line, values=values, samples=samples)


def rounded(value: float) -> float:
    """Four digits that mean something."""
    return float(f"{value:.4g}") if abs(value) < 10_000 else float(round(value))


def unique(names: Iterable[str]) -> list[str]:
    """In the order in which they first came."""
    return list(dict.fromkeys(names))
