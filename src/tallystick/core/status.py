"""The status of a run, derived by one function.

The first line of the table that holds, design §4.3.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from tallystick.core.run import Run, at_attempts_cap, at_concurrency_cap

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
    """The status of a run whose owner, if it has one, lives."""
    if run.ended is not None:
        return Status(run.ended)
    if run.barrier:
        return Status("recovering")
    if run.doubts and not run.in_flight and not _about_to_prepare(run):
        return Status("in_doubt", person=run.next_due() is None)
    if run.stop:
        return Status("cancelling")
    if run.in_flight or _about_to_prepare(run):
        return Status("running")
    return _waiting(run)


def _about_to_prepare(run: Run) -> bool:
    if not len(run.ready) or run.stopping is not None or run.authority is None:
        return False
    return not at_attempts_cap(run) and not at_concurrency_cap(run)


def _waiting(run: Run) -> Status:
    if run.next_due() is not None:
        return Status("waiting", "retry")
    if run.authority is None and len(run.ready):
        return Status("waiting", "owner")
    if len(run.ready) or len(run.due):
        return Status("waiting", "capacity", person=at_attempts_cap(run))
    return Status("waiting", "start")
