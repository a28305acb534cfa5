"""The question about a doubt, put to a person at the terminal while the run is watched.

Three answers, as few as can decide: it was done (with its output), it was not done, leave it. What
is left stays in doubt and can be resolved later by command. Lines are read by the event loop, so
that the run goes on meanwhile; the terminal gives at most 4,095 characters a line, so a long output
is given as @FILE.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import TextIO

from tallystick.errors import InvalidRequest
from tallystick.surfaces.cli import arguments
from tallystick.surfaces.cli.pages import doubt_question
from tallystick.surfaces.cli.port import DoubtDocument, Outcome
from tallystick.surfaces.cli.screen import Screen
from tallystick.surfaces.render import safe


@dataclass(frozen=True, slots=True)
class Answer:
    """A decision. output: canonical JSON with `succeeded`, else None."""

    outcome: Outcome
    output: bytes | None = None


class Lines:
    """Lines that a person types, read without blocking the event loop."""

    def __init__(self, stream: TextIO) -> None:
        self._descriptor = stream.fileno()
        self._rest = b""

    async def next(self) -> str | None:
        """The next line without its end; None at the end of input."""
        while b"\n" not in self._rest:
            await self._readable()
            chunk = os.read(self._descriptor, 4_096)
            if not chunk:
                self._rest = b""
                return None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode("utf-8", "surrogateescape").removesuffix("\r")

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._descriptor, _done, ready)
        try:
            await ready
        finally:
            loop.remove_reader(self._descriptor)


def _done(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def ask(doubt: DoubtDocument, screen: Screen, lines: Lines) -> Answer | None:
    """Ask until there is an answer. None: leave it."""
    screen.lines(screen.err, ["", *doubt_question(doubt, screen.notice_style)])
    screen.lines(
        screen.err,
        [
            "  d  it was done: you will be asked for its output",
            "  n  it was not done, and may be done now",
            "  l  leave it",
        ],
    )
    while True:
        match (await _line("[d/n/l] ", screen, lines) or "l").strip().lower():
            case "d" | "done":
                output = await _output(screen, lines)
                if output is not None:
                    return Answer("succeeded", output)
            case "n" | "not done":
                return Answer("never_happened")
            case "l" | "leave" | "":
                return None
            case other:
                screen.lines(screen.err, [f"d, n or l; not {safe(other)}"])


async def _output(screen: Screen, lines: Lines) -> bytes | None:
    """Ask for the output until it is JSON. None: back to the question."""
    prompt = "its output, as JSON or @FILE (nothing: back): "
    while text := await _line(prompt, screen, lines):
        try:
            return arguments.output_bytes(text.strip())
        except InvalidRequest as refused:
            screen.lines(screen.err, [safe(refused.message)])
    return None


async def _line(prompt: str, screen: Screen, lines: Lines) -> str | None:
    screen.err.write(prompt)
    screen.err.flush()
    return await lines.next()
