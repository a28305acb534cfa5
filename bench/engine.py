"""The engine's side of the bench: one measurement in a process of its own, printed as JSON."""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import quantiles

from bench import adapter

WINDOW = 200  # steps near the one whose cost is asked for


async def sequential(path: Path, steps: int) -> dict[str, float]:
    """One run of a chain; what a step costs on average, and near its beginning and its end."""
    from bench.tasks import STAMPS

    definition = adapter.chain(steps, "stamped")
    async with adapter.engine(path) as tally:
        cpu = time.process_time()
        await adapter.run(tally, definition)
        cpu = time.process_time() - cpu
    took = [after - before for before, after in pairwise(STAMPS)]
    found = {
        "ms": 1e3 * sum(took) / len(took),
        "cpu_us": 1e6 * cpu / steps,
        "steps": steps,
    }
    if steps > 2 * WINDOW:
        found["begin_ms"] = 1e3 * _undisturbed(took[100 : 100 + WINDOW])
        found["end_ms"] = 1e3 * _undisturbed(took[-WINDOW:])
    return found


def _undisturbed(took: list[float]) -> float:
    """The lower quartile: the two ends of a run are measured minutes apart, on a shared machine."""
    return quantiles(took, n=4)[0]


async def throughput(path: Path, runs: int, steps: int, in_flight: int) -> dict[str, float]:
    """Many runs of a short chain, so many of them at a time."""
    definition = adapter.chain(steps)
    slots = asyncio.Semaphore(in_flight)

    async def one(tally: adapter.Tally) -> None:
        async with slots:
            await adapter.run(tally, definition)

    async with adapter.engine(path) as tally:
        await adapter.run(tally, definition)  # compiled, stored and warm
        wall, cpu = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for _ in range(runs):
                group.create_task(one(tally))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    done = runs * steps
    return {"steps_per_s": done / wall, "cpu_us": 1e6 * cpu / done, "steps": done}


async def latency(path: Path, runs: int) -> dict[str, float]:
    """One-step runs, one after the other, from `start` to `result`."""
    definition, took = adapter.chain(1), []
    async with adapter.engine(path) as tally:
        for _ in range(runs):
            began = time.perf_counter()
            await adapter.run(tally, definition)
            took.append(1e3 * (time.perf_counter() - began))
    took = sorted(took[10:])
    return {"p50_ms": took[len(took) // 2], "p99_ms": took[len(took) * 99 // 100]}


async def idle(path: Path) -> dict[str, float]:
    """What an engine weighs that has worked and now waits."""
    async with adapter.engine(path) as tally:
        await adapter.run(tally, adapter.chain(10))
        await asyncio.sleep(0.5)
        return {"rss_mb": _resident_bytes() / 1e6}


def compiling(path: Path, steps: int) -> dict[str, float]:
    """The YAML path: from the file to a definition."""
    path.write_text(adapter.yaml(steps), "utf-8")
    began = time.perf_counter()
    adapter.compile_yaml(path)
    return {"ms": 1e3 * (time.perf_counter() - began)}


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Measure one thing and print it as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    kinds = ("sequential", "throughput", "latency", "idle", "compiling")
    parser.add_argument("what", choices=kinds)
    parser.add_argument("path", type=Path)
    parser.add_argument("numbers", type=int, nargs="*")
    parser.add_argument("--profile", action="store_true", help="of the loop's thread, to stderr")
    asked = parser.parse_args()
    profile = cProfile.Profile()
    if asked.profile:
        profile.enable()
    found = globals()[asked.what](asked.path, *asked.numbers)
    found = asyncio.run(found) if asyncio.iscoroutine(found) else found
    if asked.profile:
        profile.disable()
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(40)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
