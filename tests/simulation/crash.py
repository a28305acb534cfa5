"""Kill an engine at a named point, start it again until it is done, and judge what it did.

    from tests.simulation.crash import Case, play
    verdict = play(Case(faults=("batch.after:3:kill",)), folder)

A case is a flow, and the faults of one life of the engine after the other; the lives after the last
fault have none. Between the lives the store is judged as it was left. Doubts are answered with the
truth, from the effect log. At the end nothing may be wrong, and the final state has to be the same
as without any fault.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tests.checker import judge
from tests.checker.violation import Violation
from tests.effects import log
from tests.flows.reference import APPLIED

ROOT = Path(__file__).parents[2]
LIVES_MAX = 12
LIFE_TIMEOUT_S = 300
HUNG, HUNG_TASKS = -1000, 99
"""No answer at all; and what a life says of itself that does not come to rest."""
FAULT_EXIT = 86
"""What an engine ends with at a point whose action is `exit`."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is done: `faults[n]` is planned for life n, "" for none.

    then   what the first life does once every start is acknowledged; "" goes on to the end
    plant  a bug that is planted in the engine, by its name in `plants`
    """

    faults: tuple[str, ...] = ()
    flow: str = "reference"
    count: int = 1
    then: Literal["", "leave", "die"] = ""
    plant: str = ""

    def __str__(self) -> str:
        return f"{self.flow}×{self.count} {' then '.join(self.faults) or 'without a fault'}"


@dataclass(slots=True)
class Verdict:
    """What came of a case.

    violations  what the checker found, in any life
    problems    what went wrong otherwise
    hits        visits of each fault point, by life
    doubts      how many questions were asked
    missed      faults that were planned and not reached
    final       the final state, to be compared; see `state`
    """

    case: Case
    violations: list[Violation] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    hits: list[Counter] = field(default_factory=list)
    doubts: int = 0
    lives: int = 0
    missed: list[str] = field(default_factory=list)
    final: dict[str, Any] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return not self.violations and not self.problems

    def __str__(self) -> str:
        said = [f"{self.case}: {self.lives} lives, {self.doubts} doubts"]
        return "\n  ".join([*said, *map(str, self.violations), *self.problems])


class World:
    """The files of one case: the store, the effect log, the acknowledgements."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store, self.effects = folder / "crash.db", folder / "effects.jsonl"
        self.acknowledged = folder / "acknowledged.jsonl"
        self.flying: set[str] = set()

    def live(self, case: Case, fault: str, answers: list[dict], life: int) -> tuple[int, str]:
        """One life. Returns its exit status (negative: a signal; 0: all done) and last words."""
        command = [sys.executable, "-m", "tests.simulation.worker", str(self.store)]
        command += ["--flow", case.flow, "--count", str(case.count)]
        command += ["--acknowledged", str(self.acknowledged)]
        command += ["--plant", case.plant] if case.plant else []
        command += ["--then", case.then] if case.then and life == 0 else []
        command += ["--answers", *map(json.dumps, answers)] if answers else []
        planned = {"TALLY_FAULT": fault, "TALLY_FAULT_REPORT": str(self.report(life))}
        environment = {**os.environ, "TALLY_TESTING": "1", log.PATH: str(self.effects), **planned}
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=LIFE_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as hung:
            return HUNG, f"hung: {(hung.stderr or b'').decode()[-2000:]}"
        return done.returncode, (done.stderr or done.stdout).strip()[-2000:]

    def report(self, life: int) -> Path:
        return self.folder / f"hits-{life}"

    def judged(self, *, final: bool) -> list[Violation]:
        """What the checker says of the store as it lies there now."""
        if not self.store.exists():
            return []
        promised = log.read(self.acknowledged)
        return judge.check(
            self.store,
            log.read(self.effects),
            acknowledged=[{"run": run} for run in sorted({line["run"] for line in promised})],
            final=final,
            complete=True,
            applied=APPLIED,
        )

    def questions(self) -> list[dict[str, Any]]:
        return judge.doubts(self.store) if self.store.exists() else []


def play(case: Case, folder: Path) -> Verdict:
    """Play a case in an empty folder."""
    world, verdict = World(folder), Verdict(case)
    answers: list[dict] = []
    for life in range(LIVES_MAX):
        fault = case.faults[life] if life < len(case.faults) else ""
        status, words = world.live(case, fault, answers, life)
        verdict.lives += 1
        verdict.hits.append(_hits(world.report(life)))
        killed = status in (-signal.SIGKILL, FAULT_EXIT)
        planned = bool(fault) or (case.then == "die" and life == 0)
        raised = fault.endswith(":raise") and status not in (0, HUNG, HUNG_TASKS)
        verdict.missed += [fault] if fault and not killed else []
        verdict.violations += world.judged(final=False)
        if status != 0 and not (killed and planned) and not raised:
            verdict.problems.append(f"life {life} ended with {status}: {words}")
        if not verdict.good:
            return verdict
        if (killed or raised or _left(case, life)) and world.store.exists():
            world.flying |= judge.in_flight(world.store)
        answers = _answers(world, verdict)
        if status == 0 and not answers and life >= len(case.faults) - 1 and not _left(case, life):
            break
    else:
        verdict.problems.append(f"not at rest after {LIVES_MAX} lives")
    verdict.violations += world.judged(final=True)
    verdict.final = state(world.store)
    return verdict


def _left(case: Case, life: int) -> bool:
    return bool(case.then) and life == 0


def _answers(world: World, verdict: Verdict) -> list[dict]:
    """The truth about every doubt; and no doubt about anything that was not in flight (P14)."""
    happened = {effect["identity"]: effect for effect in log.read(world.effects)}
    answers = []
    for doubt in world.questions():
        name = f"{doubt['run']} {doubt['node']}#{doubt['attempt']}"
        if doubt["identity"] not in world.flying:
            verdict.problems.append(f"{name} is in doubt and was not in flight at any death")
        effect = happened.get(doubt["identity"])
        truth: dict[str, Any] = {"decision": "never_happened"}
        if effect is not None:
            truth = {"decision": "succeeded", "output": effect["body"]["output"]}
        answers.append({**doubt, **truth})
    verdict.doubts += len(answers)
    return answers


def _hits(report: Path) -> Counter:
    return Counter(report.read_text("utf-8").split()) if report.exists() else Counter()


def state(store: Path) -> dict[str, Any]:
    """What must not depend on any crash: each run's end and output, and its steps'."""
    with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as db:
        found = {}
        for number, key, status in db.execute("SELECT run_no, key, status FROM tally_run"):
            payloads = dict(
                db.execute("SELECT sequence, body FROM tally_payload WHERE run_no = ?", (number,))
            )
            steps = {
                f"{node}[{instance}]": (ended, payloads.get(at) if ended == "succeeded" else None)
                for node, instance, ended, at in db.execute(
                    "SELECT node, instance, status, end_sequence FROM tally_activation"
                    " WHERE run_no = ?",
                    (number,),
                )
            }
            found[key] = {"status": status, "output": payloads.get(max(payloads)), "steps": steps}
    return found


def moments(hits: Counter, *, every: bool, seed: int = 0) -> Iterable[tuple[str, int]]:
    """Which visits of each point to die at: all, or the first, the last and one between."""
    chance = random.Random(seed)
    for point, count in sorted(hits.items()):
        chosen = range(1, count + 1) if every else {1, count, chance.randint(1, count)}
        yield from ((point, nth) for nth in sorted(chosen))


@cache
def baseline(flow: str, count: int, folder: Path) -> Verdict:
    """The same without any fault. Kept for the process, since it is compared with each case."""
    folder.mkdir(parents=True, exist_ok=True)
    return play(Case(flow=flow, count=count), folder)
