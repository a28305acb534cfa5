"""The events of all runs, told as they are committed.

They are read from the store above a position, in pages, so that a slow listener is late and loses
nothing. Whoever is in the process of the engine is woken by it; others look again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any, Final, TypeAlias

import msgspec

from tallystick.engine.watch import ANY
from tallystick.store.protocol import Store
from tallystick.surfaces.client.runs import HistoryEvent, told

PAGE: Final = 256
PAUSE_S: Final = 0.05
"""Changes within this are read at once."""

LOOK_AGAIN_S: Final = 0.5

NextChange: TypeAlias = Callable[[str], "asyncio.Future[None] | None"]
"""Done at the next change of a run, or of any; None: only looking again tells."""


class _Kind(msgspec.Struct, frozen=True):
    """As much of an envelope as a filter needs."""

    kind: str


_kind = msgspec.json.Decoder(_Kind).decode


async def news(
    store: Store,
    after: int,
    next_change: NextChange,
    kinds: Collection[str] | None,
    until: asyncio.Event,
) -> AsyncIterator[HistoryEvent]:
    """Events above a position, of these kinds (None: all), until it is set and all is told."""
    while True:
        change, last = next_change(ANY), until.is_set()
        while page := await store.feed(after=after, limit=PAGE):
            for event in page:
                if kinds is None or _kind(event.envelope).kind in kinds:
                    yield told(event)
            after = page[-1].position
        if last:
            return
        await _something(until, change)


async def _something(until: asyncio.Event, change: asyncio.Future[None] | None) -> None:
    """Return once there may be something to read: after a change, after a pause, or at the end."""
    ending = asyncio.ensure_future(until.wait())
    either: set[asyncio.Future[Any]] = {ending} if change is None else {ending, change}
    try:
        if change is not None:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if change.done():
                change.result()
        await asyncio.wait({ending}, timeout=LOOK_AGAIN_S if change is None else PAUSE_S)
    finally:
        ending.cancel()
