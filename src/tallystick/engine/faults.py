"""Named points at which a test can make this process die, stop or fail.

    TALLY_FAULT=batch.after:3:kill             at the third visit of this point, SIGKILL
    TALLY_FAULT=timer.due:1:raise,stop.begun:1:exit
    TALLY_FAULT_REPORT=hits.txt                append one line, the point's name, for each visit

All of it only with `TALLY_TESTING=1`; otherwise a point is one test of an empty attribute. The
report is one `write` of one line to a file opened for appending: it is right even if the next thing
is a kill.

Points of other layers (a store's commit) are named here too and handed down as plain callables, so
that nothing below the engine knows about faults.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec

from tallystick.errors import InvalidRequest

Action: TypeAlias = Literal["exit", "kill", "raise", "stop"]

ACTIONS: Final[tuple[Action, ...]] = ("exit", "kill", "raise", "stop")
EXIT_STATUS: Final = 86
"""What a process ends with at a point whose action is `exit`."""

MEANING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "engine.locked": "the engine lock is held and nothing is recorded of it",
        "engine.recorded": "the instance is recorded and nothing was looked at",
        "admission.before-definition": "a start was asked for and nothing is stored of it",
        "admission.after-definition": "the definition is stored, the run is not",
        "batch.before": "a batch was decided and the store knows nothing of it",
        "batch.after": "a batch is on disk and nobody was told",
        "batch.landed": "everything that follows from a batch was begun",
        "driver.before-accept": "an intent is on disk and nothing outside has happened",
        "driver.after-accept": "the executor took it",
        "driver.report": "an end was reported and nothing of it is on disk",
        "driver.before-cancel": "a request to stop is on disk and no signal was sent",
        "driver.after-cancel": "the signal was sent",
        "timer.due": "a durable timer came up and nothing was decided",
        "takeover.before": "a former owner was proved gone and its run is still its own",
        "takeover.after": "the run is ours and what was under way in it is undecided",
        "reconcile.page": "a page of what is undecided is about to be decided",
        "stop.begun": "the engine was asked to stop and nothing was given up yet",
        "stop.grace": "the grace is over and what runs was told to stop",
        "stop.before-end": "everything is recorded but the engine's end",
        "stop.after-end": "the end is recorded and the locks are still held",
    }
)
"""Every point of the engine, and what is so when it is passed."""

POINTS: Final[tuple[str, ...]] = tuple(MEANING)


class Injected(Exception):
    """Raised at a fault point whose action is `raise`."""


class Fault(msgspec.Struct, frozen=True):
    """One planned fault: what to do at the `nth` visit (from 1) of a point."""

    point: str
    nth: int
    action: Action


class Faults:
    """The planned faults of this process, and how often each point was visited.

    report  path of a file that gets one line for each visit; None: no file
    """

    def __init__(self, planned: tuple[Fault, ...] = (), report: str | None = None) -> None:
        self._planned = planned
        self._report = None if report is None else _open_for_appending(report)
        self.hits: dict[str, int] = {}

    def hit(self, point: str) -> None:
        """This point is passed now. Where it is planned, this does not return, or raises."""
        visits = self.hits[point] = self.hits.get(point, 0) + 1
        if self._report is not None:
            os.write(self._report, f"{point}\n".encode())
        for fault in self._planned:
            if fault.point == point and fault.nth == visits:
                _do(fault)


def faults_from(environment: Mapping[str, str], points: Collection[str]) -> Faults | None:
    """What the environment plans; None (the usual case): not in a test.

    points  every name that there is: one that is misspelt would never be reached.
    Raises `InvalidRequest` for an unknown point or action.
    """
    if environment.get("TALLY_TESTING") != "1":
        return None
    planned = tuple(
        parse(text) for text in environment.get("TALLY_FAULT", "").split(",") if text.strip()
    )
    for fault in planned:
        if fault.point not in points:
            raise InvalidRequest(
                f"there is no fault point {fault.point!r}",
                code="fault-unknown",
                facts={"points": ", ".join(sorted(points))},
            )
    return Faults(planned, environment.get("TALLY_FAULT_REPORT"))


def parse(text: str) -> Fault:
    """Read `name:nth:action`. Raises `InvalidRequest`."""
    point, _, rest = text.strip().partition(":")
    nth, _, action = rest.partition(":")
    if action not in ACTIONS or not nth.isascii() or not nth.isdecimal() or int(nth) < 1:
        raise InvalidRequest(
            f"a fault is name:nth:action, not {text!r}",
            code="fault-unreadable",
            facts={"actions": ", ".join(ACTIONS)},
        )
    return Fault(point, int(nth), action)


def ignore(point: str) -> None:
    """What a point does outside of tests."""


def hook(faults: Faults | None) -> Callable[[str], None]:
    """The function that a component calls at its points."""
    return ignore if faults is None else faults.hit


def _do(fault: Fault) -> None:
    match fault.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exit":
            os._exit(EXIT_STATUS)
        case "raise":
            raise Injected(f"{fault.point}, visit {fault.nth}")


def _open_for_appending(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
