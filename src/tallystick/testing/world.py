"""A world for tests: one seed, and a clock that jumps.

    clock = VirtualClock()
    async with ts.open(path, engine=True, world=world(clock, seed=7)) as tally:
        run = await tally.start("retries.yaml")     # a back-off of an hour is over at once
        await run.result()

Virtual time stands still while the engine's store is at work or something that was handed over is
running, and jumps to the next timer as soon as neither is so. A test whose function never ends (to
see its timeout) moves time itself: `await clock.advance(600_000)`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from tallystick.engine.clock import Cause, Entropy
from tallystick.engine.faults import Faults
from tallystick.engine.opening import World

EPOCH_MS: Final = 1_700_000_000_000
"""When a virtual world begins: November 2023."""

QUIET_TURNS: Final = 12
"""Turns of the loop without anything held before time jumps: what was woken gets to begin first."""


class VirtualClock:
    """Wall and monotonic time that stand still until there is nothing else to do.

    now    where the wall clock begins, ms since 1970
    jumps  False: time moves by `advance` alone
    look_again_ms  how soon a `step` is noticed; as large as it is, a wait of a century is one jump
    """

    def __init__(
        self, now: int = EPOCH_MS, *, jumps: bool = True, look_again_ms: int = 10**15
    ) -> None:
        self.look_again_ms = look_again_ms
        self._wall = now
        self._monotonic = 0
        self._jumps = jumps
        self._count = 0
        self._heap: list[tuple[int, int, _Call]] = []
        self._held: dict[Cause, int] = {"store": 0, "dispatch": 0}
        self._looking = False

    def now(self) -> int:
        return self._wall

    def monotonic(self) -> int:
        return self._monotonic

    def call_in(self, delay_ms: int, call: Callable[[], None]) -> _Call:
        self._count += 1
        wait = _Call(call)
        if delay_ms <= 0:
            asyncio.get_running_loop().call_soon(wait.make)
        else:
            heappush(self._heap, (self._monotonic + delay_ms, self._count, wait))
            self._look()
        return wait

    async def sleep(self, delay_ms: int) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        wait = self.call_in(delay_ms, lambda: _wake(woken))
        try:
            await woken
        finally:
            wait.cancel()

    def hold(self, cause: Cause) -> None:
        self._held[cause] += 1

    def release(self, cause: Cause) -> None:
        self._held[cause] -= 1
        self._look()

    async def pause(self, delay_ms: int) -> None:
        """`sleep`, for a function that the engine runs: time may jump while it sleeps."""
        self.release("dispatch")
        try:
            await self.sleep(delay_ms)
        finally:
            self.hold("dispatch")

    async def advance(self, delay_ms: int) -> None:
        """Move time on by so much, through every timer on the way, whatever is running."""
        until = self._monotonic + delay_ms
        await self.settled()
        while (due := self._next()) is not None and due <= until:
            self._move(due)
            self._fire()
            await self.settled()
        self._move(until)

    def step(self, delta_ms: int) -> None:
        """Set the wall clock back or forth, as an operator or a time server would."""
        self._wall += delta_ms

    async def settled(self) -> None:
        """Return once the store is not at work and the loop has been quiet for a moment."""
        quiet = 0
        while quiet < QUIET_TURNS:
            if self._held["store"]:
                await asyncio.sleep(0.0005)  # a thread is at work; only real time helps
                quiet = 0
            else:
                await asyncio.sleep(0)
                quiet += 1

    def _look(self) -> None:
        """See, in a while, whether time can jump."""
        if self._looking or not self._jumps or not self._heap or any(self._held.values()):
            return
        self._looking = True
        asyncio.get_running_loop().call_soon(self._wait_quietly, QUIET_TURNS)

    def _wait_quietly(self, turns: int) -> None:
        if any(self._held.values()):
            self._looking = False
        elif turns > 0:
            asyncio.get_running_loop().call_soon(self._wait_quietly, turns - 1)
        else:
            self._looking = False
            due = self._next()
            if due is not None:
                self._move(due)
                self._fire()
            self._look()

    def _next(self) -> int | None:
        while self._heap and self._heap[0][2].call is None:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _move(self, monotonic: int) -> None:
        passed = max(0, monotonic - self._monotonic)
        self._monotonic += passed
        self._wall += passed

    def _fire(self) -> None:
        while (due := self._next()) is not None and due <= self._monotonic:
            heappop(self._heap)[2].make()


class _Call:
    """A call that was asked for. `call` None: it was made, or called off."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None

    def make(self) -> None:
        call, self.call = self.call, None
        if call is not None:
            call()


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


def entropy(seed: int) -> Entropy:
    """Randomness that is the same for every world of this seed."""
    return Entropy(random.Random(seed).randbytes)  # noqa: S311  it is meant to be foreseen


def world(
    clock: VirtualClock | None = None, *, seed: int = 0, faults: Faults | None = None
) -> World:
    """A world of this seed. faults None: none; copies are compared with the store all the same."""
    return World(clock or VirtualClock(), entropy(seed), faults or Faults())
