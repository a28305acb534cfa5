"""Watching one run until it ends, waits for a person, or this process is asked to stop.

    events ──▶ progress            a doubt ──▶ asked at once on a terminal
    settled ─▶ the end, or nothing moves before a person acts

Only on a terminal is anything asked. Elsewhere the watch ends at the doubt, and the page of the run
holds the command that decides it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from tallystick.errors import Conflict, InvalidRequest, NotReady
from tallystick.surfaces.cli.dialogue import Lines, ask
from tallystick.surfaces.cli.port import DoubtDocument, RunDocument, Started, Tally
from tallystick.surfaces.cli.progress import LiveProgress, PlainProgress, Progress
from tallystick.surfaces.cli.screen import Screen
from tallystick.surfaces.cli.stopping import Stopping
from tallystick.surfaces.render import safe

T = TypeVar("T")
_TERMINAL: Final = frozenset({"succeeded", "failed", "cancelled"})


class Stopped(Exception):
    """The process was asked to stop, and what was waited for was given up."""


class Watch:
    """The watch over one run. `left` are the doubts that the person chose to leave."""

    def __init__(self, tally: Tally, started: Started, screen: Screen, stopping: Stopping) -> None:
        self._tally = tally
        self._run, self._after = started.run, started.after
        self._screen = screen
        self._stopping = stopping
        self._progress: Progress = (
            LiveProgress(screen) if screen.interactive else PlainProgress(screen)
        )
        self._lines = Lines(sys.stdin) if screen.interactive else None
        self._left: set[tuple[str, int, int]] = set()
        self._doubted = asyncio.Event()

    async def end(self) -> RunDocument:
        """Return the run once it ended or waits for a person. Raises `Stopped`."""
        follower = asyncio.create_task(self._follow())
        self._progress.resume()
        try:
            return await self._until_settled(follower)
        finally:
            self._progress.pause()
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)

    async def _until_settled(self, follower: asyncio.Task[None]) -> RunDocument:
        while True:
            run = await self._settled_or_doubted(follower)
            if run["status"] in _TERMINAL:
                # Its events come to an end with it, so that the last of them are shown too.
                await unless_stopped(self._stopping, follower)
                return run
            if self._lines is not None and (doubts := self._open_doubts(run)):
                await self._ask(doubts[0], self._lines)
            elif run["person"]:
                return run

    async def _settled_or_doubted(self, follower: asyncio.Task[None]) -> RunDocument:
        """The run, once it is settled or, on a terminal, a doubt has come up."""
        settled = asyncio.create_task(self._tally.settled(self._run))
        doubted = asyncio.create_task(self._doubted.wait())
        waiting: set[asyncio.Task[Any]] = {settled}
        if self._lines is not None:
            waiting.add(doubted)
        if not follower.done():
            waiting.add(follower)
        try:
            await unless_stopped(
                self._stopping, asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            )
            self._doubted.clear()
            if follower.done():
                follower.result()
            return settled.result() if settled.done() else await self._tally.show(self._run)
        finally:
            for task in (settled, doubted):
                task.cancel()
            await asyncio.gather(settled, doubted, return_exceptions=True)

    async def _follow(self) -> None:
        async for event in self._tally.follow(self._run, after=self._after):
            self._progress.show(event)
            if event.get("kind") == "AttemptDoubted":
                self._doubted.set()

    def _open_doubts(self, run: RunDocument) -> list[DoubtDocument]:
        return [doubt for doubt in run["doubts"] if _name(doubt) not in self._left]

    async def _ask(self, doubt: DoubtDocument, lines: Lines) -> None:
        self._progress.pause()
        try:
            answer = await unless_stopped(self._stopping, ask(doubt, self._screen, lines))
            if answer is None:
                self._left.add(_name(doubt))
                return
            await self._tally.resolve(
                self._run,
                doubt["step"],
                answer.outcome,
                output=answer.output,
                reason="answered at the terminal",
            )
        except (InvalidRequest, Conflict, NotReady) as refused:
            self._screen.lines(self._screen.err, [safe(refused.message)])
        finally:
            self._progress.resume()


async def unless_stopped(stopping: Stopping, work: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
    """Wait for `work`; once the process is asked to stop, give it up and raise `Stopped`."""
    task = work if isinstance(work, asyncio.Task) else asyncio.create_task(work)
    asked = asyncio.create_task(stopping.requested.wait())
    try:
        await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Stopped
    finally:
        asked.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _name(doubt: DoubtDocument) -> tuple[str, int, int]:
    return (doubt["step"], doubt["attempt"], doubt["dispatch"])
