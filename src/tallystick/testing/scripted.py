"""An executor in memory that does what a test says: the outside world, on strings.

It stands for everything that lives outside the engine. Acceptance is a record in a `Place`, made by
one indivisible step that fails if something is there already (what `link(2)` does for a file), so
that acceptance and preclusion can never both exist. A place outlives any number of executors: give
the same one to the next engine and see what recovery makes of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from tallystick.core.commands import Cancelled, DispatchEnd
from tallystick.errors import NotAccepted
from tallystick.executors.contract import (
    Call,
    Ended,
    NotAcceptedYet,
    Observation,
    Receipt,
    ReportTo,
    Running,
    StopReason,
    UnknownFate,
    Unreachable,
)

Slot: TypeAlias = tuple[str, int]
"""Where the record of one dispatch lies: (identity, dispatch)."""

SLOTS_FREE: Final = 100


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The record that this dispatch never began and never can."""


@dataclass(slots=True)
class Place:
    """Where acceptances are recorded.

    records   what is there, write-once · ends: how it ended, write-once
    begun     identities in the order in which work on them began; a repeat is a second effect
    asked     requests to stop, as they came
    reachable False: nobody can ask it or hand anything over
    lost      dispatches that it was told about and cannot speak for any more
    """

    name: str = "scripted"
    records: dict[Slot, Receipt | Tombstone] = field(default_factory=dict)
    ends: dict[Slot, DispatchEnd] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    asked: list[tuple[Slot, StopReason]] = field(default_factory=list)
    reachable: bool = True
    lost: set[Slot] = field(default_factory=set)

    def link(self, slot: Slot, record: Receipt | Tombstone) -> Receipt | Tombstone:
        """Put the record there unless there is one. Returns what is there now."""
        return self.records.setdefault(slot, record)


async def _no_pause() -> None:
    """Nobody comes in between."""


class ScriptedExecutor:
    """See the module's text.

    Args:
        place: where it records what it accepts.
        now: its own clock, ms since 1970.
        report: told the ends of what was accepted here. None: nobody is listening, ask `observe`.
        pause: awaited between any two of its steps; a test lets somebody else go first there.
        obedient: a request to cancel stops the work, which then reports itself as cancelled.
    """

    name = "scripted"
    contract = "scripted/1"
    in_engine = False

    def __init__(
        self,
        place: Place,
        *,
        now: Callable[[], int] = lambda: 0,
        report: ReportTo | None = None,
        pause: Callable[[], Awaitable[None]] = _no_pause,
        obedient: bool = False,
    ) -> None:
        self.place = place
        self._now = now
        self._report = report
        self._pause = pause
        self._obedient = obedient
        self._calls: dict[Slot, Call] = {}

    def free(self, mode: str) -> int:
        """How many more can start: every mode is the same here."""
        return SLOTS_FREE - len(self._calls)

    async def accept(self, call: Call) -> Receipt:
        """Record the acceptance, then begin.

        Raises:
            NotAccepted: the place cannot be reached, or the dispatch was precluded.
        """
        slot = _slot(call)
        if not self.place.reachable:
            raise NotAccepted(f"{self.place.name} cannot be reached")
        await self._pause()
        offered = Receipt(call.identity, call.dispatch, self._now(), self.name, self.place.name)
        record = self.place.link(slot, offered)
        await self._pause()
        if isinstance(record, Tombstone):
            raise NotAccepted("it was precluded")
        if record is offered:
            self.place.begun.append(call.identity)
            self._calls[slot] = call
        return record

    async def observe(self, call: Call, place: str, receipt: Receipt | None) -> Observation:
        """Say what the place shows. Changes nothing."""
        slot = _slot(call)
        await self._pause()
        if not self.place.reachable:
            return Unreachable(f"{self.place.name} cannot be reached")
        if place != self.place.name or slot in self.place.lost:
            return UnknownFate(f"{self.place.name} knows nothing of it")
        if (end := self.place.ends.get(slot)) is not None:
            return Ended(end)
        record = self.place.records.get(slot)
        return Running() if isinstance(record, Receipt) else NotAcceptedYet()

    async def preclude(self, call: Call, place: str) -> bool:
        """Put a tombstone where the acceptance would be recorded."""
        if not self.place.reachable or place != self.place.name:
            return False
        await self._pause()
        return isinstance(self.place.link(_slot(call), Tombstone()), Tombstone)

    def cancel(self, call: Call, reason: StopReason) -> None:
        """Record the request. Whether it changes anything is up to the script."""
        if _slot(call) not in self._calls:
            return
        self.place.asked.append((_slot(call), reason))
        if self._obedient:
            self.finish(call, Cancelled())

    def finish(self, call: Call, end: DispatchEnd) -> None:
        """Let the work end. The first end stays, and is reported once."""
        slot = _slot(call)
        if slot in self.place.ends or not isinstance(self.place.records.get(slot), Receipt):
            return
        self.place.ends[slot] = end
        if self._calls.pop(slot, None) is not None and self._report is not None:
            self._report(call, end, ())


def _slot(call: Call) -> Slot:
    return call.identity, call.dispatch
