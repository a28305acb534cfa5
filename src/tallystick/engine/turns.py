"""Who may use a free slot next.

A slot is a place in an executor for one dispatch. Slots are counted anew for every batch: between
the answer to one batch and the building of the next, everything that was prepared has been handed
over, so that an executor's own count is the truth and nothing need be set aside. Within a batch,
`offer` says what is left and `took` takes away.

A run that could start something but finds no slot is *hungry* and waits in line. While anybody
does, no run is offered more than its share, so that one wide run cannot keep all slots for itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from tallystick.core.draft import Start
from tallystick.engine.held import Held
from tallystick.executors.contract import Executor

MODES: Final = ("async", "thread", "transactional")
"""The execution modes of `Binding.mode`."""

_NONE: Final[Mapping[str, int]] = {}


class Turns:
    """Free slots by mode, and the lines of those who wait for one.

    closed  no slot is offered to anybody: the engine stops, or its store cannot be written
    """

    def __init__(self, executors: Iterable[Executor], modes: Iterable[str] = MODES) -> None:
        self._executors = tuple(executors)
        self._lines: dict[str, OrderedDict[Held, None]] = {mode: OrderedDict() for mode in modes}
        self._free: dict[str, int] = dict.fromkeys(self._lines, 0)
        self._all = {mode: sum(e.free(mode) for e in self._executors) for mode in self._lines}
        self._shares: dict[str, int] = dict(self._all)
        self._crowd = 0
        self.closed = False

    def count(self) -> None:
        """Begin a batch: ask the executors what is free."""
        for mode in self._free:
            free = sum(executor.free(mode) for executor in self._executors)
            self._free[mode] = 0 if self.closed else free
        if self._crowd:
            for mode, line in self._lines.items():
                self._shares[mode] = max(1, self._all[mode] // (len(line) + 1))

    def offer(self, held: Held, ending: int) -> Mapping[str, int]:
        """How many slots by mode this run may take now. Empty: it must start nothing.

        ending  how many of its dispatches end in this very transition
        """
        if self.closed:
            return _NONE
        if not self._crowd:
            return self._free
        flying = (held.run.in_flight if held.run is not None else 0) - ending
        if flying <= 0:
            return self._free  # what it frees in this batch is little; its share binds it from now
        return {
            mode: min(free, max(0, self._shares[mode] - flying))
            for mode, free in self._free.items()
        }

    def took(self, starts: Iterable[Start]) -> None:
        """These were prepared: their slots are gone for this batch."""
        for start in starts:
            self._free[start.terms.mode] -= 1

    def wait(self, held: Held) -> None:
        """This run could start something: it waits for a slot of each mode that has none left."""
        for mode, line in self._lines.items():
            if self._free[mode] <= 0:
                line[held] = None
                if not held.hungry:
                    held.hungry = True
                    self._crowd += 1

    def leave(self, held: Held) -> None:
        """This run waits no more."""
        if held.hungry:
            held.hungry = False
            self._crowd -= 1
            for line in self._lines.values():
                line.pop(held, None)

    def next(self) -> Held | None:
        """The run whose turn it is, out of all lines; None: nobody waits, or nothing is free."""
        if not self._crowd:
            return None
        for mode, line in self._lines.items():
            if line and self._free[mode] > 0:
                held = next(iter(line))
                self.leave(held)
                return held
        return None

    def occupied(self) -> int:
        """How many slots are in use now: what runs keeps its slot for as long as it runs."""
        return sum(
            self._all[mode] - sum(executor.free(mode) for executor in self._executors)
            for mode in self._all
        )

    def __len__(self) -> int:
        """How many wait, in whatever lines."""
        return self._crowd
