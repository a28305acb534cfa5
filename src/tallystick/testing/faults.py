"""Named points at which a process can be made to die, stop or fail. See `engine/faults`.

    TALLY_TESTING=1 TALLY_FAULT=batch.after:3:kill tally engine

`POINTS` holds every name, of the engine and of the store; `MEANING` what is so when one is passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tallystick.engine.faults import ACTIONS, EXIT_STATUS, Action, Fault, Faults, Injected, parse
from tallystick.engine.faults import MEANING as ENGINE_MEANING
from tallystick.engine.opening import POINTS
from tallystick.store.faults import MEANING as STORE_MEANING

MEANING: Final[Mapping[str, str]] = {**ENGINE_MEANING, **STORE_MEANING}
"""What is so when a point is passed; of a store's point, what a raise there means."""

__all__ = [
    "ACTIONS",
    "EXIT_STATUS",
    "MEANING",
    "POINTS",
    "Action",
    "Fault",
    "Faults",
    "Injected",
    "parse",
]
