"""The figures as tables. The same ones are printed after a run and shown in the documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.bars import disk_ratio, verdicts
from bench.load import CHAT
from bench.results import Figure, Results, unique
from bench.stage import OURS, POSTGRES, SQLITE

Show = Callable[[Figure], str]


def text(results: Results) -> str:
    """Everything."""
    return "\n\n".join(f"## {title}\n\n{make(results)}" for title, make in SECTIONS.items())


# --- cells ----------------------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Three digits, thousands apart."""
    if value == 0:
        return "0"
    if abs(value) >= 1_000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def size(value: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1_000 or unit == "GB":
            return f"{number(value)} {unit}"
        value /= 1_000
    raise AssertionError


def plain(figure: Figure) -> str:
    """The median."""
    return number(figure.median)


def spread(figure: Figure) -> str:
    """The median, and the smallest and largest repeat."""
    low, high = figure.spread
    return f"{number(figure.median)} ({number(low)}–{number(high)})"


def bytes_shown(figure: Figure) -> str:
    """Bytes."""
    return size(figure.median)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in [head, *rows]]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)


def pivot(figures: Sequence[Figure], columns: Sequence[tuple[str, str, str]], show: Show = spread) -> str:
    """One row per subject and engine; a column is its heading, a case and a metric. Empty columns and rows are left out."""
    cells = {(each.subject, each.engine, each.case, each.metric): show(each) for each in figures}
    columns = [column for column in columns if any(key[2:] == column[1:] for key in cells)]
    rows: list[list[str]] = []
    for subject, engine in dict.fromkeys((each.subject, each.engine) for each in figures):
        row = [cells.get((subject, engine, name, metric), "–") for _, name, metric in columns]
        if any(cell != "–" for cell in row):
            rows.append([named(subject), engine, *row])
    return table(["", "engine", *(column[0] for column in columns)], rows)


def named(subject: str) -> str:
    """Ours stands out."""
    return f"**{subject}**" if subject.startswith(OURS.name) else subject


# --- sections -------------------------------------------------------------------------------------------------------------


def bar_table(results: Results) -> str:
    """Bar, measured, met or missed."""
    rows = [
        [
            each.what,
            f"{each.bar.sense} {number(each.bar.limit)}{each.bar.unit and ' ' + each.bar.unit}",
            "–" if each.value is None else f"{round(each.value, 2):g}{each.bar.unit and ' ' + each.bar.unit}",
            each.word,
        ]
        for each in verdicts(results)
    ]
    return table(["", "bar", "measured", ""], rows)


def turn_table(results: Results) -> str:
    """Throughput of W1."""
    columns = [(f"{callers} caller{'s' * (callers > 1)}", f"{CHAT}, {callers} callers", "turns/s") for callers in (1, 16, 64)]
    columns += [(f"{callers}, +0.5 ms", f"{CHAT}, {callers} callers, +0.5 ms", "turns/s") for callers in (1, 16)]
    return pivot(results.of("W1"), columns)


def latency_table(results: Results) -> str:
    """Latency of W1."""
    columns = [
        (f"{callers} caller{'s' * (callers > 1)}, {metric[:3]}", f"{CHAT}, {callers} callers", metric)
        for callers in (1, 16, 64)
        for metric in ("p50 ms", "p95 ms")
    ]
    return pivot(results.of("W1"), columns, plain)


def large_table(results: Results) -> str:
    """The larger turn."""
    columns = [(f"{callers} caller{'s' * (callers > 1)}", f"6 x 2 KB, {callers} callers", "turns/s") for callers in (1, 16, 64)]
    return pivot(results.of("W1"), columns)


def count_table(results: Results) -> str:
    """What one turn costs exactly."""
    metrics = ("round trips", "notifications", "statements", "rows written", "bytes sent", "bytes received", "bytes of log")
    counts = [each for each in results.of("W1") if each.case == "chat turn"]
    return pivot(counts, [(metric, "chat turn", metric) for metric in metrics], plain)


def call_table(results: Results) -> str:
    """What one call of ours costs exactly."""
    calls = ("enqueue", "claim", "settle", "append")
    rows = [
        [
            f"`{call}`",
            *(
                number(results.median("W7", OURS.name, POSTGRES, call, metric) or 0)
                for metric in ("round trips", "notifications", "statements", "rows written")
            ),
        ]
        for call in calls
    ]
    return table(["", "round trips", "notifications", "statements", "rows written"], rows)


def depth_table(results: Results) -> str:
    """A turn at each depth."""
    depths = ("10", "100", "1,000", "10,000")
    return pivot(results.of("W3"), [(f"turn {depth}", f"depth {depth}", "turn p50 ms") for depth in depths])


def resume_table(results: Results) -> str:
    """A resume at each depth."""
    depths = ("10", "100", "1,000", "10,000")
    return pivot(results.of("W3"), [(f"after {depth} turns", f"depth {depth}", "resume p50 ms") for depth in depths])


def flat_table(results: Results) -> str:
    """Ours where others stop."""
    cases = unique(each.case for each in results.of("W3") if each.case.startswith("flat"))
    return pivot(results.of("W3"), [(name.removeprefix("flat, "), name, "turn p50 ms") for name in cases])


def disk_table(results: Results) -> str:
    """Disk at each depth."""
    depths = ("10", "100", "1,000")
    return pivot(results.of("W3"), [(f"{depth} turns", f"depth {depth}", "disk bytes") for depth in depths], bytes_shown)


def collected_table(results: Results) -> str:
    """Ours, before and after its past was collected."""
    rows: list[list[str]] = []
    for engine in (POSTGRES, SQLITE):
        cells = [
            results.median("W3", OURS.name, engine, "1,000 turns", metric)
            for metric in ("node bytes", "disk bytes empty", "disk bytes uncollected", "disk bytes collected")
        ]
        ratios = [disk_ratio(engine, state)(results) for state in ("uncollected", "collected")]
        rows.append(
            [
                engine,
                *("–" if cell is None else size(cell) for cell in cells),
                *("–" if each is None else f"{each:.2f}" for each in ratios),
            ]
        )
    return table(
        ["engine", "node bodies", "empty tables", "uncollected", "collected", "uncollected ÷ bodies", "collected ÷ bodies"], rows
    )


def path_table(results: Results) -> str:
    """Paths and tails."""
    return all_cases(results, "W2")


def all_cases(results: Results, workload: str, show: Show = spread) -> str:
    """A row per subject and case, a column per metric."""
    figures = results.of(workload)
    metrics = unique(each.metric for each in figures)
    cells = {(each.case, each.subject, each.engine, each.metric): show(each) for each in figures}
    keys = dict.fromkeys((each.case, each.subject, each.engine) for each in figures)
    rows = [
        [name, named(subject), engine, *(cells.get((name, subject, engine, metric), "–") for metric in metrics)]
        for name, subject, engine in keys
    ]
    return table(["", "", "engine", *metrics], rows)


def race_table(results: Results) -> str:
    """Eight writers."""
    return pivot(
        results.of("W5"), [(metric, "8 writers", metric) for metric in ("lost", "doubled", "refused", "accepted/s")], plain
    )


def job_table(results: Results) -> str:
    """Jobs."""
    columns = [
        (f"{metric}, {name[:7]}", name, metric)
        for name in ("one job per call", "several jobs per call")
        for metric in ("jobs/s", "enqueues/s", "claims and settles/s")
    ]
    return pivot(results.of("W7"), columns)


def event_table(results: Results) -> str:
    """Events and claims."""
    columns = [("events/s, 16 callers", "event append, 16 callers", "events/s")]
    columns += [
        (name, name, "p50 ms") for name in unique(each.case for each in results.of("W7")) if name.startswith("claim_next")
    ]
    return pivot([each for each in results.of("W7") if each.metric in ("events/s", "p50 ms")], columns)


def wake_table(results: Results) -> str:
    """Wake-ups across processes."""
    metrics = ("wake p50 ms", "wake p95 ms", "wake slowest ms", "write p50 ms")
    rows: list[list[str]] = []
    for engine in (SQLITE, POSTGRES):
        for what in ("wait_ready", "await_output"):
            cells = [results.find("W8", OURS.name, engine, what, metric) for metric in metrics]
            rows.append([engine, f"`{what}`", *("–" if cell is None else spread(cell) for cell in cells)])
    return table(["engine", "wait", *metrics], rows)


def idle_table(results: Results) -> str:
    """A thousand waiters."""
    rows = [
        [
            engine,
            f"`{what}`",
            "–"
            if (found := results.median("W8", OURS.name, engine, f"1,000 waiters in {what}", "statements/s")) is None
            else number(found),
        ]
        for engine in (SQLITE, POSTGRES)
        for what in ("wait_ready", "await_output")
    ]
    return table(["engine", "1,000 waiters in", "statements per second"], rows)


def worker_table(results: Results) -> str:
    """Idle workers of everybody."""
    return pivot(
        results.of("W8"), [(metric, "idle worker", metric) for metric in ("start p50 ms", "start p95 ms", "statements/s")]
    )


def semantics_table(results: Results) -> str:
    """What the others promise."""
    keys = ("stores", "atomic", "compare_and_set", "idempotent")
    own = [
        named(OURS.name),
        "nodes, checkpoint, usage, settled and new work, receipt",
        "the whole turn",
        "of the head's revision",
        "turn ids, also concurrently",
    ]
    rows = [own, *([name, *(each.get(key, "–") for key in keys)] for name, each in results.semantics.items())]
    return table(["", "stores", "atomic", "compare-and-set", "idempotent"], rows)


def absent_table(results: Results) -> str:
    """Who could not take part."""
    if not results.absent:
        return "Nobody was absent."
    return table(["", "why"], [[name, reason.replace("|", "/")] for name, reason in results.absent.items()])


def surroundings_table(results: Results) -> str:
    """Machine, versions and settings."""
    rows: list[list[str]] = []
    for name, value in results.surroundings.items():
        shown = ", ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, dict) else str(value)
        rows.append([name, shown])
    return table(["surroundings", ""], rows)


SECTIONS: dict[str, Callable[[Results], str]] = {
    "bars": bar_table,
    "turns": turn_table,
    "latency": latency_table,
    "large": large_table,
    "counts": count_table,
    "calls": call_table,
    "depth": depth_table,
    "flat": flat_table,
    "resume": resume_table,
    "paths": path_table,
    "disk": disk_table,
    "collected": collected_table,
    "fork": lambda results: all_cases(results, "W4", plain),
    "writers": race_table,
    "sessions": lambda results: all_cases(results, "W6"),
    "jobs": job_table,
    "events": event_table,
    "wakes": wake_table,
    "idle": idle_table,
    "workers": worker_table,
    "pruning": lambda results: all_cases(results, "W10", plain),
    "listing": lambda results: all_cases(results, "W11"),
    "semantics": semantics_table,
    "absent": absent_table,
    "surroundings": surroundings_table,
}


def summary(results: Results) -> str:
    """The few lines of the README and of the comparison."""
    columns = [
        ("turns/s, 1 caller", f"{CHAT}, 1 callers", "turns/s"),
        ("16 callers", f"{CHAT}, 16 callers", "turns/s"),
        ("turn p50 ms at depth 10", "depth 10", "turn p50 ms"),
        ("at 1,000", "depth 1,000", "turn p50 ms"),
        ("disk, 1,000 turns", "depth 1,000", "disk bytes"),
        ("round trips", "chat turn", "round trips"),
        ("lost of 96", "8 writers", "lost"),
    ]
    figures = [
        each
        for each in results.figures
        if each.workload in ("W1", "W3", "W5") and not each.subject.startswith("floor") and "relaxed" not in each.subject
    ]
    shown = pivot(figures, columns, lambda each: bytes_shown(each) if each.metric == "disk bytes" else plain(each))
    around = results.surroundings
    version = around["postgresql"]["server_version"].split()[0]
    return (
        f"{shown}\n\nMedians of one {'quick ' if around['quick'] else ''}run with everybody on the same machine ("
        f"{around['cores']} cores, load {around['load before']} at its begin, PostgreSQL {version}, fsync on): "
        f"2 messages of 400 B of random text and a memory of 12 to 44 KB per turn (OpenAI Agents keeps no "
        f"such memory)."
    )
