"""Measure everything, print it, write it down.

make bench          everything: about 23 minutes on two cores
make bench-quick    the same workloads, smaller, about six minutes on two cores

python -m bench [--quick] [--only W1,W3] [--no-peers] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from bench.environments import peers, ready
from bench.report import text
from bench.results import FULL, QUICK, Results
from bench.server import served
from bench.stage import Effort, Stage
from bench.surroundings import surroundings
from bench.workloads import all_workloads


def main() -> int:
    """One run."""
    options = parsed()
    results = Results()
    effort = Effort(quick=True, seconds=0.5, warm_up_s=0.2) if options.quick else Effort()
    with served() as server, tempfile.TemporaryDirectory(prefix="lash-store-bench-", dir=options.folder) as folder:
        stage = Stage(server, Path(folder), effort, results)
        invite(stage, wanted=not options.no_peers)
        asyncio.run(measure(stage, options.only))
    print(text(results))
    out = Path(options.out) if options.out else (QUICK if options.quick else FULL)
    results.save(out)
    print(f"\nwritten to {out}; `python -m bench.publish` shows it in the documentation")
    return 0


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--quick", action="store_true", help="smaller: about six minutes on two cores")
    parser.add_argument("--only", default="", help="workloads, such as W1,W3")
    parser.add_argument("--no-peers", action="store_true", help="ours, the floors and the port only")
    parser.add_argument("--out", help="where the JSON goes")
    parser.add_argument("--folder", help="where SQLite files are made; the disk matters")
    return parser.parse_args()


def invite(stage: Stage, *, wanted: bool) -> None:
    """Who takes part. A peer that cannot be installed is noted with the reason."""
    for peer in peers():
        reason = ready(peer) if wanted else "not asked for (--no-peers)"
        stage.results.semantics[peer.name] = peer.semantics
        if reason is None:
            stage.members += peer.members()
        else:
            stage.results.absent[peer.name] = reason


async def measure(stage: Stage, only: str) -> None:
    """One workload after the other."""
    stage.results.surroundings |= await surroundings(stage)
    names = only.split(",") if only else []
    for name, run in all_workloads():
        if names and name not in names:
            continue
        began = time.monotonic()
        stage.say(f"{name} …")
        try:
            await run(stage)
        except Exception as error:  # noqa: BLE001 - figures that were taken must not be lost; it is told
            traceback.print_exc()
            stage.absent(f"everybody, {name}", error)
        stage.results.surroundings.setdefault("seconds", {})[name] = round(time.monotonic() - began)
        stage.say(f"{name}: {time.monotonic() - began:.0f} s")
    stage.results.surroundings["load after"] = round(os.getloadavg()[0], 2)


if __name__ == "__main__":
    sys.exit(main())
