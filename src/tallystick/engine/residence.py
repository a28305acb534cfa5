"""Which runs are in memory: summoned when something happens to them, let go when they only wait.

A run that waits for a time, a person or a slot can be read again at any moment, so that an engine's
memory is bounded by what is under way and not by what exists.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from tallystick.engine.held import Held
from tallystick.errors import StoreUnavailable

RESIDENT_MAX: Final = 4_096
"""Copies kept in memory. More than this stay only while something is under way for them."""

LOADS_AT_ONCE: Final = 16

_log: Final = logging.getLogger("tallystick.engine")


class Residence:
    """The runs in the hands of this engine, by id.

    load    reads a run and puts its copy, and what it needs to be ours, into `Held`
    loaded  is told when that is done
    failed  is told when it cannot be done, and why
    """

    def __init__(
        self,
        load: Callable[[Held], Awaitable[None]],
        loaded: Callable[[Held], None],
        failed: Callable[[Held, Exception], None],
        resident_max: int = RESIDENT_MAX,
    ) -> None:
        self.held: dict[str, Held] = {}
        self._load = load
        self._loaded = loaded
        self._failed = failed
        self._max = resident_max
        self._line: deque[Held] = deque()
        self._wake = asyncio.Event()

    @property
    def crowded(self) -> bool:
        """There are as many copies as may be: one that only waits should go."""
        return len(self.held) > self._max

    @property
    def room(self) -> int:
        """How many more may come in without crowding."""
        return self._max - len(self.held)

    def get(self, run: str) -> Held | None:
        """The run, if it is in the hands of this engine."""
        return self.held.get(run)

    def summon(self, run: str) -> Held:
        """The run, in memory or on its way there."""
        held = self.held.get(run)
        if held is None:
            held = self.held[run] = Held(run)
            self.load(held)
        return held

    def enter(self, held: Held) -> None:
        """A run that is about to be born."""
        self.held[held.id] = held

    def load(self, held: Held) -> None:
        """Read this run's copy; what is posted meanwhile waits."""
        if not held.loading:
            held.loading = True
            self._line.append(held)
            self._wake.set()

    def drop(self, held: Held) -> None:
        """Let go of a run altogether."""
        self.held.pop(held.id, None)

    async def work(self) -> None:
        """Load whatever was summoned, a few at once, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._line:
                some = [self._line.popleft() for _ in range(min(LOADS_AT_ONCE, len(self._line)))]
                await asyncio.gather(*map(self._bring, some))

    async def _bring(self, held: Held) -> None:
        try:
            await self._load(held)
        except StoreUnavailable as error:
            _log.warning("run %s cannot be read now: %s", held.id, error.message)
            self._failed(held, error)
        except Exception as error:  # noqa: BLE001  one run's damage must not stop the others
            self._failed(held, error)
        else:
            held.loading = False
            self._loaded(held)
