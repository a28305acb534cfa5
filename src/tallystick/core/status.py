"""The status of a run, derived by one function.

The first line of the table that holds, design §4.3.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from tallystick.core.run import Run

StatusName: TypeAlias = Literal[
    "succeeded",
    "failed",
    "cancelled",
    "damaged",
    "recovering",
    "in_doubt",
    "cancelling",
    "pausing",
    "paused",
    "running",
    "waiting",
]
TERMINAL: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})
Reason: TypeAlias = Literal[
    "retry", "timer", "gate", "signal", "child", "claim", "capacity", "executor", "owner", "start"
]


class Status(msgspec.Struct, frozen=True):
    """A status with its reason, which only `waiting` has.

    person  True where nothing moves before a person acts
    """

    status: StatusName
    reason: Reason | None = None
    person: bool = False


def status(run: Run) -> Status:
    """The status of a run whose owner lives."""
    if run.ended is not None:
        return Status(run.ended)
    if run.barrier:
        return Status("recovering")
    if run.doubts and not run.in_flight and not _about_to_prepare(run):
        return Status("in_doubt", person=not len(run.due))
    if run.stop:
        return Status("cancelling")
    if run.in_flight or _about_to_prepare(run):
        return Status("running")
    return _waiting(run)


def _about_to_prepare(run: Run) -> bool:
    return bool(len(run.ready)) and run.stopping is None and not at_attempts_cap(run)


def at_attempts_cap(run: Run) -> bool:
    """No further attempt is allowed before somebody raises the limit."""
    return run.limits.attempts is not None and run.consumed >= run.limits.attempts


def _waiting(run: Run) -> Status:
    if len(run.due):
        return Status("waiting", "retry")
    if len(run.ready) and at_attempts_cap(run):
        return Status("waiting", "capacity", person=True)
    return Status("waiting", "start")
