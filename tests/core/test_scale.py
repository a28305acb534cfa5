"""Each transition touches only what changed: ten times the steps cost ten times the work.

Work is counted in calls, Python's and C's, not in time: the count is the same on every machine.
"""

import hashlib
import sys
from collections.abc import Callable
from typing import Self

import pytest

from tallystick.core import layered
from tallystick.core.commands import Admission, Advance, Report
from tallystick.core.definition import Limits, Node, Retry
from tallystick.core.graph import Plan
from tallystick.core.machine import admit, decide
from tests.core.world import (
    FAILED,
    NO_LIMITS,
    OK,
    T0,
    UNKNOWN,
    authority,
    bindings_of,
    call,
    chain,
    definition_of,
)

LATER = Retry(max_attempts=3, backoff_ms=10**8, backoff_max_ms=10**8)
NO = "${{ input.no }}"


@pytest.fixture(autouse=True)
def overlays(monkeypatch):
    """One kind of map for both sizes: what is compared is growth, not a copy with an overlay."""
    monkeypatch.setattr(layered, "COPIED_MAX", 0)


class Count:
    """Calls made while it is active."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _hear(self, _frame: object, event: str, _arg: object) -> None:
        if event in ("call", "c_call"):
            self.calls += 1


def steps(count: int, effect: str = "mutating", **rest: object) -> list[Node]:
    return [call(f"s{at:05}", effect, **rest) for at in range(count)]


def deep(count: int) -> list[Node]:
    return list(chain(*steps(count)))


def fan(count: int) -> list[Node]:
    first, *middle = steps(count - 1)
    inner = [call(node.id, needs=(first.id,)) for node in middle]
    return [first, *inner, call("z", needs=tuple(node.id for node in inner))]


def skipped(count: int) -> list[Node]:
    return list(chain(*steps(count - 1, when=NO), call("z")))


SHAPES: dict[str, tuple[Callable[[int], list[Node]], dict]] = {
    "deep": (deep, {}),
    "wide": (steps, {}),
    "wide, few slots": (steps, {"slots": 7}),
    "wide, concurrency": (steps, {"limits": Limits(concurrency=5)}),
    "fan out and in": (fan, {}),
    "skipped": (skipped, {}),
    "threads": (steps, {"mode": "thread"}),
    "dispatches wait": (lambda n: steps(n, "idempotent", retry=LATER), {"first": FAILED}),
    "attempts wait": (lambda n: steps(n, "read_only", retry=LATER), {"first": FAILED}),
    "attempts wait at a cap": (
        lambda n: steps(n, "read_only", retry=LATER),
        {"first": FAILED, "limits": Limits(concurrency=5)},
    ),
    "doubts": (steps, {"first": UNKNOWN}),
}


def work(
    nodes: list[Node],
    *,
    slots: int = 50,
    limits: Limits = NO_LIMITS,
    mode: str = "async",
    first: object = OK,
) -> int:
    """Calls from the admission to the end (or until nothing is left but doubts)."""
    definition = definition_of(*nodes)
    modes = {node.id: mode for node in nodes}
    bindings = bindings_of(definition, modes)
    plan = Plan(definition)
    asked = Admission(
        "r",
        definition,
        plan.digest.hex(),
        b'{"no":false}',
        bindings,
        limits,
        authority=authority(1),
    )
    free = {"async": 50, "thread": 50, mode: slots}
    now, seen = T0, set()
    with Count() as count:
        decision = admit(asked, plan, now=now, seed=bytes(64), slots=free)
        run, waiting, at = decision.run.settle(), list(decision.starts), 0
        while waiting or (run.ended is None and run.due_at() is not None):
            at += 1
            commands: list = [Advance({**free, mode: slots - len(waiting) + 1})]
            if waiting:
                start = waiting.pop()
                end = OK if start.key in seen else first
                seen.add(start.key)
                commands.insert(0, Report(start.key, start.attempt, start.dispatch, end))
            else:
                now = max(now, run.due_at() or 0)
            seed = hashlib.sha256(b"%d" % at).digest()
            decision = decide(run, commands, now=now, seed=seed)
            run = decision.run.settle()
            waiting.extend(decision.starts)
    assert run.ended == "succeeded" or run.doubts == len(nodes)
    return count.calls


@pytest.mark.slow
@pytest.mark.invariant("H3")
@pytest.mark.parametrize("shape", SHAPES)
def test_ten_times_the_steps_cost_ten_times_the_work(shape):
    make, options = SHAPES[shape]
    few, many = (work(make(count), **options) for count in (60, 600))
    assert many <= 11.5 * few, f"{few} calls for 60 steps, {many} for 600"
