"""Show a run: the charts, and the tables between the marks of the documentation.

    python -m bench.publish            writes them from bench/results/bench.json
    python -m bench.publish --check    says which are not what that file says

A block stands between `<!-- bench:NAME -->` and `<!-- bench:NAME:end -->`; in the README between `bench:begin` and `bench:end`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from bench.charts import charts
from bench.child import PROJECT
from bench.report import SECTIONS, job_table, summary, worker_table
from bench.results import Results, load

README = PROJECT / "README.md"
PAGES = (README, PROJECT / "docs" / "performance.md", PROJECT / "docs" / "comparison.md")
ASSETS = PROJECT / "docs" / "assets"
BLOCK = re.compile(r"(<!-- bench:(?P<name>\w+) -->\n)(?P<inside>.*?)(<!-- bench:(?:(?P=name):)?end -->)", re.DOTALL)


def comparison(results: Results) -> str:
    """What the page that compares shows."""
    jobs, workers = job_table(results), worker_table(results)
    return f"{summary(results)}\n\nJobs, stored, claimed and settled:\n\n{jobs}\n\nA worker that waits for a job:\n\n{workers}"


BLOCKS: dict[str, Callable[[Results], str]] = {**SECTIONS, "begin": summary, "comparison": comparison}


def filled(page: str, results: Results) -> str:
    """The page with every block as the figures say."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block['name']](results)}\n\n{block[4]}", page)


def outdated(results: Results) -> list[Path]:
    """Files that do not show what was measured."""
    pages = [page for page in PAGES if page.exists() and page.read_text() != filled(page.read_text(), results)]
    drawn = [
        ASSETS / name
        for name, text in charts(results).items()
        if not (ASSETS / name).exists() or (ASSETS / name).read_text() != text
    ]
    return pages + drawn


def main(arguments: list[str]) -> int:
    """Write, or only look."""
    results = load()
    if arguments == ["--check"]:
        wrong = outdated(results)
        print("\n".join(f"{path.relative_to(PROJECT)} does not show bench/results/bench.json" for path in wrong))
        return bool(wrong)
    for name, text in charts(results).items():
        (ASSETS / name).write_text(text)
    for page in PAGES:
        if page.exists():
            page.write_text(filled(page.read_text(), results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
