"""The operations of the bench: nothing but the engine's own work."""

from __future__ import annotations

import time

import tallystick as ts

STAMPS: list[float] = []
"""When each call of `stamped` began, in seconds of the monotonic clock."""


@ts.task(effect="read_only")
async def echo(n: int) -> dict[str, int]:
    """Take 8 bytes of JSON and give 16, where `n` has two digits."""
    return {"k": 1, "out": n}


@ts.task(effect="read_only")
async def stamped(n: int) -> dict[str, int]:
    """The same, and say when."""
    STAMPS.append(time.perf_counter())
    return {"k": 1, "out": n}
