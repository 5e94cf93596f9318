"""What the figures depend on: machine, load, disk, versions, settings, commit."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.child import PROJECT
from bench.stage import POOL, Stage

SYNCS = 200


async def surroundings(stage: Stage) -> dict[str, Any]:
    """Everything that is known before the first workload."""
    times = fdatasync_ms(stage.folder)
    return {
        "taken": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": commit(),
        "quick": stage.effort.quick,
        "repeats": stage.effort.repeats,
        "seconds per sample": stage.effort.seconds,
        "pool size": POOL,
        "cores": os.cpu_count(),
        "memory GB": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load before": round(os.getloadavg()[0], 2),
        "fdatasync p50 ms": round(median(times), 3),
        "fdatasync p95 ms": round(sorted(times)[int(len(times) * 0.95)], 3),
        "postgresql": await stage.server.settings(),
        "sqlite synchronous": "FULL with a write-ahead log, for everybody",
        "reached by": "TCP on loopback",
    }


def fdatasync_ms(folder: Path) -> list[float]:
    """How long the disk takes to keep 4 KB."""
    times: list[float] = []
    with (folder / "fdatasync").open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(os.urandom(4096))
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - began) * 1000)
    return times


def commit() -> str:
    """The commit that was measured, and whether the tree differed from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False).stdout.strip()

    changed = "+changes" if git("status", "--porcelain", "--untracked-files=no", "--", "src") else ""
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + changed
