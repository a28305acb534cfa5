"""SIGKILL at every fault point: nothing lost, nothing twice, the same end.

`TALLY_CRASH=every` dies at every visit of every point; without it at the first, the last and one
between, drawn by `TALLY_SEED`.
"""

import json
import os
import random
import shutil
import sys

import pytest

from tests.flows.reference import ENDS, FLOWS, result
from tests.simulation import port
from tests.simulation.crash import Case, Verdict, moments, play
from tests.simulation.scenes import SCENES, hits, played, scene_of

EVERY = os.environ.get("TALLY_CRASH") == "every"
SEED = int(os.environ.get("TALLY_SEED", "1"))
POINTS = port.fault_points()
MANY = 1_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600 if EVERY else 600)]


def judged(case: Case, folder, expected: Verdict) -> str | None:
    """Play a case; what is wrong with it, or None. Keeps the folder of one that went wrong."""
    folder.mkdir()
    verdict = play(case, folder)
    if verdict.good and verdict.final != expected.final:
        verdict.problems.append(_differences(verdict.final, expected.final))
    if verdict.good:
        shutil.rmtree(folder)
        return None
    return f"{verdict}\n  left in {folder}"


def _differences(found: dict, expected: dict) -> str:
    said = []
    for key in expected:
        mine, theirs = found.get(key, {}), expected[key]
        said += [
            f"{key} {name}: {mine.get(name)!r} instead of {theirs[name]!r}"
            for name in ("status", "output")
            if mine.get(name) != theirs[name]
        ]
        said += [
            f"{key} {step}: {mine.get('steps', {}).get(step)} instead of {end}"
            for step, end in theirs["steps"].items()
            if mine.get("steps", {}).get(step) != end
        ]
    return "the final state differs: " + "; ".join(said)[:2_000]


@pytest.mark.invariant("G14")
@pytest.mark.parametrize("flow", FLOWS)
def test_without_a_fault_everything_ends_as_it_should(tmp_path, flow):
    verdict = play(Case(flow=flow, count=2, then="leave" if flow == "lingering" else ""), tmp_path)
    assert verdict.good, verdict
    assert {run["status"] for run in verdict.final.values()} == {ENDS[flow]}
    if flow == "reference":
        outputs = [json.loads(run["output"]) for run in verdict.final.values()]
        assert outputs == [result(1), result(2)]


@pytest.mark.invariant("D1", "D2", "D7", "P1", "P14", "C8", "S6", "S12")
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_engine_loses_nothing_and_repeats_nothing(tmp_path, point):
    scene = scene_of(point)
    assert scene is not None, f"{point} is reached in no scene"
    expected = played(scene.name)
    assert expected.good, expected
    one = {point: hits(scene)[point]}
    faults = [f"{name}:{nth}:kill" for name, nth in moments(one, every=EVERY, seed=SEED)]
    wrong = [
        judged(scene.with_fault(fault), tmp_path / fault.replace(":", "-"), expected)
        for fault in faults
    ]
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_every_fault_point_is_reached(capsys):
    counted = {point: [hits(scene)[point] for scene in SCENES] for point in POINTS}
    with capsys.disabled():
        lines = ["hits" + " " * 28 + "".join(f"{scene.name:>10}" for scene in SCENES)]
        for point, counts in counted.items():
            lines.append(f"{point:<32}" + "".join(f"{count or '·':>10}" for count in counts))
        sys.stdout.write("\n" + "\n".join(lines) + "\n")
    assert not [point for point, counts in counted.items() if not any(counts)]


@pytest.mark.invariant("D1", "D2")
@pytest.mark.parametrize("sample", range(200 if EVERY else 8))
def test_a_second_death_during_the_recovery_from_the_first_changes_nothing(tmp_path, sample):
    chance = random.Random(SEED * 1_000 + sample)
    expected = played("plain")
    first = [f"{point}:{nth}:kill" for point, nth in moments(expected.hits[0], every=True)]
    second = [f"{point}:{nth}:kill" for point, nth in moments(hits(SCENES[1]), every=True)]
    case = Case(faults=(chance.choice(first), chance.choice(second)))
    assert not (wrong := judged(case, tmp_path / "case", expected)), wrong


@pytest.mark.invariant("D6", "S12")
@pytest.mark.parametrize(
    "fault",
    [
        "commit.after-commit:3:raise",  # the commit succeeded and reports failure
        "commit.guard:4:raise",  # one guard of a batch fails: it is replayed one by one
        "commit.before-commit:5:raise",
        "driver.after-accept:6:exit",
    ],
)
def test_a_failure_at_a_commit_is_not_believed_blindly(tmp_path, fault):
    wrong = judged(Case(faults=(fault,), count=3), tmp_path / "case", _three(tmp_path))
    assert not wrong, wrong


def _three(tmp_path) -> Verdict:
    (tmp_path / "three").mkdir()
    return play(Case(count=3), tmp_path / "three")


@pytest.mark.invariant("D7")
def test_a_thousand_runs_admitted_and_the_engine_killed_at_once_all_end(tmp_path):
    count = MANY if EVERY else MANY // 5
    verdict = play(Case(flow="stopping", count=count, then="die"), tmp_path)
    assert verdict.good, verdict
    assert [run["status"] for run in verdict.final.values()] == ["failed"] * count
