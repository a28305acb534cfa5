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

LINGER_MS: Final = 1_500
"""How long what was told to stop may take to end, after the grace."""

WRITE_MS: Final = 5_000
"""How long the engine tries to record what was reported, if its store cannot be written."""

_log: Final = logging.getLogger("tallystick.engine")


async def stop(engine: Engine, instance: Instance, grace_ms: int = GRACE_MS) -> None:
    """Stop an engine in order. Called once; `opening.Opened.stop` sees to that.

    Never raises for a store that cannot be written: the next engine then finds out what happened.
    """
    failed = engine.failure is not None
    engine.begin_stop()
    engine.scene.fault("stop.begun")
    try:
        still = await _end_work(engine, 0 if failed else grace_ms)
        if not failed:
            await _record(engine, instance, still)
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


async def _record(engine: Engine, instance: Instance, still: list[str]) -> None:
    """Bring to disk what was reported, release what can be released, and record the end."""
    committer = engine.committer
    try:
        if not await _within(engine, committer.quiet.wait(), WRITE_MS):
            _log.error("the store cannot be written: the end of this engine is not recorded")
            return
        for held in list(engine.keeper.residence.held.values()):
            run = held.run
            if run is not None and run.ended is None and run.open_attempts == run.doubts:
                committer.post(held, Letter(Release()))
        await _within(engine, committer.quiet.wait(), WRITE_MS)
        engine.scene.fault("stop.before-end")
        ended = DRAINED if not still else msgspec.json.encode(still).decode()
        await instance.record_end(ended, engine.scene.clock.now())
        engine.scene.fault("stop.after-end")
    except TallyError as error:
        _log.error("the end of this engine is not recorded: %s", error.message)


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
