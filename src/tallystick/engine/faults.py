"""Named points at which a test can make this process die, stop or fail.

    TALLY_FAULT=commit.after:3:kill            at the third visit of this point, SIGKILL
    TALLY_FAULT=driver.accept.before:1:raise,engine.stop:1:exit
    TALLY_FAULT_REPORT=hits.txt                append one line, the point's name, for each visit

All of it only with `TALLY_TESTING=1`; otherwise a point is one test of an empty attribute. The report is
one `write` of one line to a file opened for appending: it is right even if the next thing is a kill.

Points of other layers (a store's commit) are named here too and handed down as plain callables, so
that nothing below the engine knows about faults.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias, cast

import msgspec

from tallystick.errors import InvalidRequest

Action: TypeAlias = Literal["exit", "kill", "raise", "stop"]

ACTIONS: Final[tuple[Action, ...]] = ("exit", "kill", "raise", "stop")
EXIT_STATUS: Final = 86
"""What a process ends with at a point whose action is `exit`."""

POINTS: Final[tuple[str, ...]] = (
    "engine.lock.after",
    "engine.row.before",
    "engine.row.after",
    "definition.before",
    "definition.after",
    "commit.before",
    "commit.after",
    "commit.landed",
    "driver.accept.before",
    "driver.accept.after",
    "driver.report",
    "driver.cancel.before",
    "driver.cancel.after",
    "timer.due",
    "takeover.before",
    "takeover.after",
    "reconcile.page",
    "engine.stop",
    "engine.grace",
    "engine.end.before",
    "engine.end.after",
)
"""Every point of the engine, in the order in which a run meets them first."""


class Injected(Exception):  # noqa: N818  it states what happened, on purpose
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
        """This point is passed now. Does not return, or raises `Injected`, where that is planned."""
        visits = self.hits[point] = self.hits.get(point, 0) + 1
        if self._report is not None:
            os.write(self._report, f"{point}\n".encode())
        for fault in self._planned:
            if fault.point == point and fault.nth == visits:
                _do(fault)


def faults_from(environment: Mapping[str, str]) -> Faults | None:
    """What the environment plans; None (the usual case): not in a test.

    Raises `InvalidRequest` for an unknown point or action.
    """
    if environment.get("TALLY_TESTING") != "1":
        return None
    planned = tuple(
        parse(text) for text in environment.get("TALLY_FAULT", "").split(",") if text.strip()
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
            facts={"actions": list(ACTIONS)},
        )
    return Fault(point, int(nth), cast("Action", action))


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
