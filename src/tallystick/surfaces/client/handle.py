"""One run in the hands of whoever started or asked for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from tallystick.core.values import decode_trusted
from tallystick.engine.watch import End
from tallystick.errors import CapacityUnavailable, MaintenanceRequired, RunFailed, RunInDoubt
from tallystick.surfaces.client.asked import number
from tallystick.surfaces.client.runs import (
    HistoryEvent,
    Json,
    RunInfo,
    end_of,
    full_info,
    history_of,
    info_of,
)
from tallystick.surfaces.client.steps import StepInfo, doubts_of, steps_of

if TYPE_CHECKING:
    from tallystick.surfaces.client.tally import Tally

_log: Final = logging.getLogger("tallystick.client")

NOBODY: Final = (
    "run %s waits for an engine, and this client is none: open the store with engine=True, or "
    "start `tally engine`"
)
LOOK_MIN_S: Final = 0.02
LOOK_MAX_S: Final = 0.5
"""How often a client without an engine looks at a run that it waits for."""


class RunHandle:
    """A run.

    created   False where `start` found it under its key; None where it was asked for
    found_at  sequence of its newest event when `start` found it; 0 for every other run
    """

    def __init__(
        self, tally: Tally, run: str, *, created: bool | None = None, found_at: int = 0
    ) -> None:
        self._tally = tally
        self.id = run
        self.created = created
        self.found_at = found_at

    def __repr__(self) -> str:
        return f"RunHandle({self.id!r})"

    async def status(self) -> RunInfo:
        """The run as it is committed now, with its doubts, or with its output or failure.

        Raises `NotFound`.
        """
        return await full_info(await self._tally.reading(), self.id)

    async def steps(self) -> list[StepInfo]:
        """What has become of each of its steps. Reads the whole history. Raises `NotFound`."""
        return await steps_of(await self._tally.reading(), self.id)

    async def settled(self) -> RunInfo:
        """Return once it has ended, or nothing of it moves before a person acts."""
        await self._rest()
        return await self.status()

    async def result(self, timeout: float | None = None) -> Json:  # noqa: ASYNC109  seconds, as in asyncio
        """Wait for the end and return the output, JSON as Python values.

        timeout  seconds; None: as long as it takes

        Raises `RunFailed` if it failed or was cancelled, `RunInDoubt` once it waits for a person,
        `CapacityUnavailable` once it used up its attempts, `TimeoutError`. The run is not touched.
        """
        if timeout is None:
            return await self._wait_for_end()
        async with asyncio.timeout(timeout):
            return await self._wait_for_end()

    async def _wait_for_end(self) -> Json:
        found = await self._rest()
        if isinstance(found, End):
            value = None if found.body is None else decode_trusted(found.body)
            return self._judge(found.status, value)
        if found.ended:
            store = await self._tally.reading()
            return self._judge(found.status, await end_of(store, await store.run(self.id)))
        raise await self._stuck(found)

    async def _rest(self) -> End | RunInfo:
        """How it ended, or where it waits for a person.

        The engine of this process tells; where another one has the run, the store does.
        """
        store = await self._tally.reading()
        pause = LOOK_MIN_S
        while True:
            rest = self._tally.next_rest(self.id)
            if rest is None or not self._tally.moves(self.id):
                info = info_of(await store.run(self.id))
                if info.ended or info.needs_person:
                    return info
                if rest is None and pause == LOOK_MIN_S and info.engine is None:
                    _log.warning(NOBODY, self.id)
            if rest is None:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LOOK_MAX_S)
            elif (end := await rest) is not None:
                return end

    async def events(self, after: int = 0) -> AsyncIterator[HistoryEvent]:
        """Every event above sequence `after`, as it is committed, until the run has ended."""
        number("after", after)
        store = await self._tally.reading()
        async for info in self._states():
            async for event in history_of(store, self.id, after=after):
                after = event.sequence
                yield event
            if info.ended:
                return

    async def _states(self) -> AsyncIterator[RunInfo]:
        """The run as it is now, and after each of its changes."""
        store = await self._tally.reading()
        pause = LOOK_MIN_S
        while True:
            change = self._tally.next_change(self.id)
            yield info_of(await store.run(self.id))
            if change is not None:
                await change
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LOOK_MAX_S)

    def _judge(self, status: str, value: Json) -> Json:
        if status == "succeeded":
            return value
        told = value if isinstance(value, dict) else {}
        why = told.get("message") or "without a recorded reason"
        where = f" in step {told['step']}" if "step" in told else ""
        raise RunFailed(
            f"run {self.id} {status}{where}: {why}",
            code=f"run-{status}",
            facts={"run": self.id, "status": status, "failure": told or None},
            next_step=f"tally show {self.id}",
        )

    async def _stuck(self, info: RunInfo) -> Exception:
        if info.damaged is not None:
            return MaintenanceRequired(
                f"run {self.id} is damaged: {info.damaged}", facts={"run": self.id}
            )
        if info.status != "in_doubt":
            return CapacityUnavailable(
                f"run {self.id} has used up its attempts",
                which="attempts",
                transient=False,
                facts={"run": self.id, "consumed": info.consumed},
            )
        store = await self._tally.reading()
        doubts = await doubts_of(store, await store.run(self.id))
        steps = ", ".join(f"{doubt.step} ({doubt.reason})" for doubt in doubts)
        return RunInDoubt(
            f"run {self.id} waits for a person: {steps} may or may not have happened",
            facts={"run": self.id, "steps": [doubt.step for doubt in doubts]},
            next_step=f"find out what happened, then: tally resolve {self.id} {doubts[0].step} "
            f"--db {self._tally.path} --outcome succeeded|failed|cancelled|never_happened",
        )
