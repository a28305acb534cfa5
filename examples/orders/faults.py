"""What can go wrong with a request, and plans of when it does.

What happens to a request depends only on the plan, the reference the request is about and how often
that reference has come (its *arrival*, 1, 2, 3 ...), never on timing: so a seed repeats it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Fault(StrEnum):
    """What a server does with one request."""

    NONE = "none"  # works, answers
    LATE = "late"  # works, pauses for `late_ms`, answers
    STALL = "stall"  # pauses for `hang_ms`, then works after all
    HANG = "hang"  # pauses for `hang_ms`, then hangs up; nothing was done
    DROP = "drop"  # works, then hangs up without an answer
    ERROR = "error"  # 500, nothing was done, though a 500 does not say so
    BUSY = "busy"  # 429 with Retry-After, nothing was done


class Faults(Protocol):
    """Chooses the fault of one request."""

    def choose(self, reference: str, arrival: int) -> Fault: ...


@dataclass(frozen=True, slots=True)
class SeededFaults:
    """Faults by lot, the same for the same seed.

    `percent` holds the chance of each fault in whole percent, together at most 100. From arrival
    `arrivals_max` + 1 on a reference is always served, so that every retry ends some day.
    """

    seed: str
    percent: dict[Fault, int]
    arrivals_max: int = 2

    def choose(self, reference: str, arrival: int) -> Fault:
        if arrival > self.arrivals_max:
            return Fault.NONE
        lot = random.Random(f"{self.seed}/{reference}/{arrival}").random() * 100
        for fault, percent in sorted(self.percent.items()):
            if lot < percent:
                return fault
            lot -= percent
        return Fault.NONE


@dataclass(frozen=True, slots=True)
class ScriptedFaults:
    """Exactly these faults, by (reference, arrival); everything else is served."""

    script: dict[tuple[str, int], Fault] = field(default_factory=dict)

    def choose(self, reference: str, arrival: int) -> Fault:
        return self.script.get((reference, arrival), Fault.NONE)


def parse_faults(text: str, seed: str) -> SeededFaults:
    """Read `late=5,drop=3` (percent). Raises ValueError that names what it does not understand."""
    percent: dict[Fault, int] = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        percent[Fault(name)] = int(number)
    if min(percent.values(), default=0) < 0 or sum(percent.values()) > 100:
        raise ValueError(f"faults: percentages from 0 to together 100, not {text!r}")
    return SeededFaults(seed, percent)
