"""Time, randomness and ids come in here, and nowhere else.

Two clocks, never mixed up:

    wall       milliseconds since 1970; what is recorded, and what durable timers wait for
    monotonic  milliseconds since some moment of this process; what a timeout is measured with

The wall clock may be set back or forth. So the time of a *run* is `max(wall, last time in this
run)`, and a wait for a wall instant looks at the wall clock again from time to time.

Tests put their own `Clock` and `Entropy` in place: see `tallystick.testing.world`.
"""

from __future__ import annotations

import asyncio
import os
import time
from base64 import b32encode
from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias

LOOK_AGAIN_MS: Final = 30_000
"""How soon a wall clock that was set is noticed."""

CROCKFORD: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Crockford's base 32: no letters that look like digits, and in the order of their values."""

_TO_CROCKFORD: Final = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", CROCKFORD.encode())
_CHARACTERS: Final = 26
_POOL_BYTES: Final = 4_096
_TIME_BITS: Final = 48
_CHANCE_BITS: Final = 80


Cause: TypeAlias = Literal["store", "dispatch"]
"""Why a virtual clock is held: the store is at work, or something that was handed over is."""


class Wait(Protocol):
    """A call that was asked for and may be called off."""

    def cancel(self) -> None:
        """Call it off. After the call was made, or twice: nothing happens."""
        ...


class Clock(Protocol):
    """Where the engine's time comes from.

    look_again_ms  how soon a wait for a wall instant reads the wall clock again, at the latest
    """

    look_again_ms: int

    def now(self) -> int:
        """Wall clock, milliseconds since 1970. May go back."""
        ...

    def monotonic(self) -> int:
        """Milliseconds that never go back. Only differences mean anything."""
        ...

    def call_in(self, delay_ms: int, call: Callable[[], None]) -> Wait:
        """Call it on the running loop once `delay_ms` monotonic milliseconds have passed."""
        ...

    async def sleep(self, delay_ms: int) -> None:
        """Return once `delay_ms` monotonic milliseconds have passed."""
        ...

    def hold(self, cause: Cause) -> None:
        """Something began that ends without any timer. A virtual clock stands still meanwhile."""
        ...

    def release(self, cause: Cause) -> None:
        """What was held for is over."""
        ...


class SystemClock:
    """The clocks of this machine."""

    look_again_ms = LOOK_AGAIN_MS

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def call_in(self, delay_ms: int, call: Callable[[], None]) -> Wait:
        return asyncio.get_running_loop().call_later(delay_ms / 1_000, call)

    async def sleep(self, delay_ms: int) -> None:
        await asyncio.sleep(delay_ms / 1_000)

    def hold(self, cause: Cause) -> None:
        """Real time cannot be held."""

    def release(self, cause: Cause) -> None:
        """Real time cannot be held."""


class Entropy:
    """Random bytes, and the ids and numbers made of them.

    Bytes are drawn from the kernel in pages, because one system call each would cost more than
    everything else in a transition. A forked child starts with an empty page.
    """

    def __init__(self, source: Callable[[int], bytes] = os.urandom) -> None:
        self._source = source
        self._page = b""
        self._used = 0
        self._pid = os.getpid()
        self._last = (0, 0)

    def draw(self, count: int) -> bytes:
        """That many bytes, used for nothing else before or after. At most 4,096."""
        end = self._used + count
        if end > len(self._page) or self._pid != os.getpid():
            self._page, self._pid = self._source(_POOL_BYTES), os.getpid()
            self._used, end = 0, count
        chunk = self._page[self._used : end]
        self._used = end
        return chunk

    def transition(self) -> tuple[bytes, int]:
        """The seed of a transition, 32 bytes, and its id: 63 bits, positive."""
        drawn = self.draw(40)
        return drawn[:32], (int.from_bytes(drawn[32:], "big") >> 1) or 1

    def readable(self, prefix: str, now: int) -> str:
        """An id that sorts by time: prefix, `_`, and 26 characters of time (ms) and chance.

        Ids made in one millisecond by one process sort in the order in which they were made.
        """
        last_at, last_chance = self._last
        if now > last_at:
            last_at, last_chance = now, int.from_bytes(self.draw(_CHANCE_BITS // 8), "big") >> 1
        else:
            last_chance += 1 + int.from_bytes(self.draw(4), "big")
        self._last = (last_at, last_chance)
        number = (last_at % 2**_TIME_BITS) << _CHANCE_BITS | last_chance % 2**_CHANCE_BITS
        text = b32encode(number.to_bytes(16, "big")).translate(_TO_CROCKFORD)
        return f"{prefix}_{text[:_CHARACTERS].decode()}"
