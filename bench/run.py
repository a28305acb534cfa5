"""The bench: what Tallystick costs, beside a floor measured on the same disk at the same time.

    make bench            all of it, about two minutes
    python bench/run.py --quick     fewer rounds
    python bench/run.py --json      for a program

Floor and engine alternate, each measurement in a process of its own, so that a busy moment of the
machine meets both. Medians are shown, and the ratio of medians. A number beside its goal says by
itself whether it is met; the exit code is 1 if one is not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import apsw

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `python bench/run.py` sees the folder of the file alone

from bench import fsyncs  # noqa: E402  after the path it needs

RUNS, STEPS, IN_FLIGHT = 1_000, 5, 100
LONG, SHORT = 10_000, 100


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table. goal: what is to be held, with the limit; None: for orientation."""

    name: str
    value: float | None
    unit: str
    goal: tuple[str, float] | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met. None: there is none, or nothing was measured."""
        if self.goal is None or self.value is None:
            return None
        sign, limit = self.goal
        return self.value <= limit if sign == "≤" else self.value >= limit

    def __str__(self) -> str:
        value = "–" if self.value is None else f"{self.value:,.{_digits(self.value)}f}"
        goal = "" if self.goal is None else f"{self.goal[0]} {self.goal[1]:,g}"
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        return (
            f"{self.name:<46}{value:>10} {self.unit:<9}{goal:>9} {verdict:<7}{self.note}".rstrip()
        )


def _digits(value: float) -> int:
    return 0 if value >= 100 else 2


class Bench:
    """Runs measurements in a folder on the disk that is measured, and keeps their medians."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, 0
        self.found: dict[str, list[dict[str, float]]] = defaultdict(list)
        self.problems: list[str] = []

    def measure(self, name: str, side: str, what: str, *numbers: int, **env: str) -> Path:
        """Run one measurement and note it under `name`. Returns the file that it wrote."""
        self.files += 1
        path = self.folder / f"{self.files}-{what}.db"
        command = [sys.executable, "-m", f"bench.{side}", what, str(path), *map(str, numbers)]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            self.found[name].append(json.loads(done.stdout.splitlines()[-1]))
        else:
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            self.problems.append(f"{name}: {last}")
        return path

    def of(self, name: str, figure: str) -> float | None:
        """The median of a figure, or None where nothing was measured."""
        values = [found[figure] for found in self.found[name] if figure in found]
        return median(values) if values else None

    def ratio(self, name: str, other: str, figure: str) -> float | None:
        """One median by another."""
        mine, others = self.of(name, figure), self.of(other, figure)
        return mine / others if mine is not None and others else None


def measured(bench: Bench, rounds: int, *, long: int) -> Iterator[Line]:
    """Measure everything; yields the lines of the table in their order."""
    for _ in range(rounds):
        bench.measure("commit", "floor", "commit", 500)
        bench.measure("floor step", "floor", "sequential", 1_000)
        bench.measure("engine step", "engine", "sequential", 1_000)
        bench.measure("floor many", "floor", "throughput", RUNS, STEPS, IN_FLIGHT)
        bench.measure("engine many", "engine", "throughput", RUNS, STEPS, IN_FLIGHT)
    yield Line("bare one-row FULL commit", bench.of("commit", "ms"), "ms")
    yield Line("floor: sequential step, batch 1", bench.of("floor step", "ms"), "ms")
    yield Line("floor: steps, batch 100", bench.of("floor many", "steps_per_s"), "steps/s")
    yield Line("floor: CPU per step, batch 100", bench.of("floor many", "cpu_us"), "µs")
    yield from _sequential(bench, long)
    yield from _many(bench)
    yield from _apart(bench)


def _sequential(bench: Bench, long: int) -> Iterator[Line]:
    bench.measure("short", "engine", "sequential", SHORT)
    bench.measure("long", "engine", "sequential", long)
    yield Line("sequential step", bench.of("engine step", "ms"), "ms")
    times = bench.ratio("engine step", "floor step", "ms")
    yield Line("  by the floor", times, "×", ("≤", 2))
    yield Line(f"  run of {SHORT} steps", bench.of("short", "ms"), "ms")
    yield Line(f"  run of {long:,} steps", bench.of("long", "ms"), "ms")
    begin, end = bench.of("long", "begin_ms"), bench.of("long", "end_ms")
    growth = end / begin if begin and end else None
    yield Line(f"  step {long:,} by step 100", growth, "×", ("≤", 1.2))
    with _counted(bench, "counted step", "sequential", 1_000) as (synced, transitions, _):
        each = synced / transitions if synced and transitions else None
        note = "log syncs, with those of checkpoints" if each else "needs a C compiler"
        yield Line("  fsyncs per step", each, "", ("≤", 1.1), note)


def _many(bench: Bench) -> Iterator[Line]:
    yield Line(
        f"{RUNS:,} runs × {STEPS} steps, {IN_FLIGHT} in flight",
        bench.of("engine many", "steps_per_s"),
        "steps/s",
    )
    share = bench.ratio("engine many", "floor many", "steps_per_s")
    yield Line("  by the floor", share, "×", ("≥", 0.4))
    yield Line("  CPU per step", bench.of("engine many", "cpu_us"), "µs")
    yield Line(
        "  by the floor", bench.ratio("engine many", "floor many", "cpu_us"), "×", ("≤", 2.5)
    )
    numbers = (RUNS, STEPS, IN_FLIGHT)
    with _counted(bench, "counted many", "throughput", *numbers) as (synced, transitions, path):
        done = synced is not None and transitions is not None
        yield Line("  fsyncs", synced, "", note="of the log" if done else "needs a C compiler")
        size = transitions / synced if done and synced else None
        yield Line("  transitions per fsync", size, "")
        yield Line(
            "  bytes per step after a checkpoint", _bytes_per_step(path, RUNS * STEPS), "B",
            note="runs of 5 steps, admission and end included",
        )  # fmt: skip


@contextlib.contextmanager
def _counted(bench: Bench, name: str, what: str, *numbers: int) -> Iterator[tuple[Any, Any, Path]]:
    """Measure once more with fsyncs counted: (log syncs, transitions, file)."""
    library = fsyncs.build(bench.folder)
    counters = bench.folder / "fsyncs"
    env = fsyncs.environment(library, counters) if library else {}
    path = bench.measure(name, "engine", what, *numbers, **env)
    transitions = _scalar(path, "SELECT count(DISTINCT transition_id) FROM tally_event")
    yield (fsyncs.read(counters)[0] if library and transitions else None), transitions, path


def _apart(bench: Bench) -> Iterator[Line]:
    path = bench.measure("bytes", "engine", "sequential", 2_000)
    yield Line("bytes per step of a chain, after a checkpoint", _bytes_per_step(path, 2_000), "B",
               ("≤", 1_300), "without the definition; input 8 B, output 16 B")  # fmt: skip
    bench.measure("latency", "engine", "latency", 300)
    yield Line("one-step run, p50", bench.of("latency", "p50_ms"), "ms")
    yield Line("one-step run, p99", bench.of("latency", "p99_ms"), "ms")
    starts = _starts()
    bare = starts["bare"]
    yield Line("bare interpreter start", 1e3 * bare if bare else None, "ms")
    for name, most in (("import tallystick", 6), ("tally --help", 9)):
        times = starts[name] / bare if bare and starts[name] else None
        yield Line(f"  {name}", times, "×", ("≤", most))
    bench.measure("idle", "engine", "idle")
    yield Line("idle engine, resident", bench.of("idle", "rss_mb"), "MB", ("≤", 50))
    bench.measure("compiling", "engine", "compiling", 1_000)
    yield Line("YAML path: compile 1,000 steps", bench.of("compiling", "ms"), "ms")


def _bytes_per_step(path: Path, steps: int) -> float | None:
    """Pages of all tables and indexes after a checkpoint, without the stored definitions."""
    sql = (
        "SELECT sum(pgsize) FROM dbstat WHERE name NOT IN"
        " ('tally_definition', 'tally_bindings', 'tally_terms', 'tally_store', 'sqlite_schema')"
    )
    whole = _scalar(path, sql)
    return None if whole is None else whole / steps


def _scalar(path: Path, sql: str) -> int | None:
    if not path.exists():
        return None
    db = apsw.Connection(str(path))
    try:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        value = db.execute(sql).get
    except apsw.SQLError:
        return None
    finally:
        db.close()
    return value if isinstance(value, int) and value else None


def _starts() -> dict[str, float | None]:
    """Median seconds of process starts, taken in turn."""
    tally = Path(sys.executable).with_name("tally")
    commands = {
        "bare": [sys.executable, "-c", "pass"],
        "import tallystick": [sys.executable, "-c", "import tallystick"],
        "tally --help": [str(tally), "--help"],
    }
    took: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(15):
        for name, command in commands.items():
            began = time.perf_counter()
            with contextlib.suppress(OSError):
                done = subprocess.run(command, capture_output=True, check=False)
                if done.returncode == 0:
                    took[name].append(time.perf_counter() - began)
    return {name: median(times) if times else None for name, times in took.items()}


def main() -> int:
    """Measure, print, and say whether every goal is met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round, and shorter runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--folder", type=Path, default=ROOT, help="a folder on the disk to measure")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=asked.folder) as folder:
        bench = Bench(Path(folder))
        lines = []
        rounds, long = (1, 1_000) if asked.quick else (5, LONG)
        for line in measured(bench, rounds, long=long):
            lines.append(line)
            if not asked.json:
                print(line, flush=True)
    if asked.json:
        print(json.dumps([{"name": line.name.strip(), "value": line.value, "unit": line.unit,
                           "met": line.met} for line in lines], indent=1))  # fmt: skip
    for problem in sorted(set(bench.problems)):
        print(f"not measured: {problem}", file=sys.stderr)
    return int(bool(bench.problems) or any(line.met is False for line in lines))


if __name__ == "__main__":
    sys.exit(main())
