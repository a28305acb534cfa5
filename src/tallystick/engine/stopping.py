"""The orderly end of an engine.

    no new dispatch ─▶ grace ─▶ what still runs is told to stop ─▶ what was reported is on disk
      ─▶ runs without open work are released ─▶ the end is recorded ─▶ locks

What was prepared and never called is recorded as never begun; a function that ends within the grace
has ended; of what outlives it nobody will hear, and its class decides. The record of the end says
`drained` only if nothing of it runs any more: then it proves to the next engine that nothing of
this one can still begin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

import msgspec

from tallystick.core.commands import Release
from tallystick.engine.engine import Engine
from tallystick.engine.held import Letter
from tallystick.engine.instance import DRAINED, Instance
from tallystick.errors import TallyError

GRACE_MS: Final = 10_000
"""How long functions may go on after an engine was asked to stop. Source: design §4.1."""

AFTER_MS: Final = 700
"""How long everything after the grace may take in all. Source: a process that is asked to stop ends
within the grace and a second; the rest of that second is for closing the store.
"""

LINGER_MS: Final = 250
"""How much of it is for what was told to stop."""

RECORD_MS: Final = 200
"""How much of it is kept for the record of the end."""

_log: Final = logging.getLogger("tallystick.engine")


async def stop(engine: Engine, instance: Instance, grace_ms: int = GRACE_MS) -> None:
    """Stop an engine in order. Called once; `opening.Opened.stop` sees to that.

    Never raises for a store that cannot be written: the next engine then finds out what happened.
    """
    failed = engine.failure is not None
    engine.begin_stop()
    engine.scene.fault("stop.begun")
    grace_ms = 0 if failed else grace_ms
    until = engine.scene.clock.monotonic() + grace_ms + AFTER_MS
    try:
        still = await _end_work(engine, grace_ms)
        if not failed:
            await _record(engine, instance, still, until)
    finally:
        await engine.end()
        left = sum(_close(executor) for executor in engine.executors)
        instance.unlock(gone=not left)


async def _end_work(engine: Engine, grace_ms: int) -> list[str]:
    """Let what runs end, then make it. Returns the identities that may still run."""
    driver = engine.driver
    if await _within(engine, driver.drained(), grace_ms):
        return []
    told = driver.end_grace()
    engine.scene.fault("stop.grace")
    _log.warning("the grace is over, and %d functions were told to stop", len(told))
    if not await _within(engine, driver.drained(), LINGER_MS):
        driver.give_up_waiting()
    return told if engine.turns.occupied() else []


async def _record(engine: Engine, instance: Instance, still: list[str], until: int) -> None:
    """Bring to disk what was reported, release what can be released, and record the end.

    until  monotonic instant (ms) at which this is over, recorded or not
    """
    committer, clock = engine.committer, engine.scene.clock

    def left(kept_ms: int = 0) -> int:
        return max(0, until - kept_ms - clock.monotonic())

    try:
        if not await _within(engine, committer.quiet.wait(), left()):
            _log.error("the store cannot be written: the end of this engine is not recorded")
            return
        for held in list(engine.keeper.residence.held.values()):
            run = held.run
            if run is not None and run.ended is None and run.open_attempts == run.doubts:
                committer.post(held, Letter(Release()))
        await _within(engine, committer.quiet.wait(), left(RECORD_MS))
        engine.scene.fault("stop.before-end")
        ended = DRAINED if not still else msgspec.json.encode(still).decode()
        await _in_time(engine, instance.record_end(ended, clock.now()), max(RECORD_MS, left()))
        engine.scene.fault("stop.after-end")
    except TallyError as error:
        _log.error("the end of this engine is not recorded: %s", error.message)


async def _in_time(engine: Engine, writing: Awaitable[None], limit_ms: int) -> None:
    """Wait so long for a write. Raises what it raises; one that takes longer is left to itself."""
    clock, work = engine.scene.clock, asyncio.ensure_future(writing)
    clock.hold("store")
    try:
        if await _within(engine, work, limit_ms):
            await work
    finally:
        clock.release("store")


async def _within(engine: Engine, event: Awaitable[object], limit_ms: int) -> bool:
    """Wait for something, or until so much time has passed. False: the time passed."""
    waiting = asyncio.ensure_future(event)
    limit = asyncio.ensure_future(engine.scene.clock.sleep(limit_ms))
    over = asyncio.ensure_future(engine.over.wait())
    try:
        await asyncio.wait({waiting, limit, over}, return_when=asyncio.FIRST_COMPLETED)
        return waiting.done()
    finally:
        for future in (waiting, limit, over):
            future.cancel()
        await asyncio.gather(waiting, limit, over, return_exceptions=True)


def _close(executor: object) -> int:
    """How much of it still runs, after it let go of what it holds."""
    close = getattr(executor, "close", None)
    return int(close()) if close is not None else 0
