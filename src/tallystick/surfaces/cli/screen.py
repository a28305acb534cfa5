"""Where the commands write: results on stdout, everything else on stderr.

With `--json` both are JSON: one document on stdout, and on stderr one line for each notice, event
and refusal: `{"notice": …}`, `{"event": …}`, `{"error": …}`. Without it, both are pages for people.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO, TypeAlias

from tallystick.surfaces import render

Page: TypeAlias = Callable[["Style"], Sequence[str]]
"""Renders a document, given how to."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a page is rendered. width None: no terminal, nothing is cut."""

    paint: render.Paint
    width: int | None


@dataclass(frozen=True, slots=True)
class Screen:
    """The two streams of a command.

    interactive  a person sits at a terminal: questions are asked, progress moves
    """

    out: TextIO
    err: TextIO
    json: bool
    result_style: Style
    notice_style: Style
    interactive: bool

    def result(self, document: object, page: Page) -> None:
        """Print the result of the command."""
        if self.json:
            self.write_json(self.out, document, indent=2)
        else:
            self.lines(self.out, page(self.result_style))

    def notice(self, name: str, message: str, **facts: object) -> None:
        """Say something that is not the result, on stderr. `message` is safe already."""
        if self.json:
            document = {"notice": name, "message": message, **facts}
            self.write_json(self.err, document)
        else:
            self.lines(self.err, [message])

    def event(self, document: object, line: str) -> None:
        """Tell of an event as it happens, on stderr."""
        if self.json:
            self.write_json(self.err, {"event": document})
        else:
            self.lines(self.err, [line])

    def refuse(self, document: object, page: Page) -> None:
        """Say why it was not done, on stderr."""
        if self.json:
            self.write_json(self.err, {"error": document})
        else:
            self.lines(self.err, page(self.notice_style))

    def write_json(self, stream: TextIO, document: object, *, indent: int | None = None) -> None:
        """Write a document and a line feed."""
        stream.write(json_for(stream, document, indent=indent) + "\n")
        stream.flush()

    def lines(self, stream: TextIO, lines: Sequence[str]) -> None:
        """Write lines that are safe already; what the encoding cannot hold becomes an escape."""
        text = "".join(f"{line}\n" for line in lines)
        encoding = stream.encoding or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        if stream is self.err:
            stream.flush()


class JsonArray:
    """A document `{…head, name: [ … ]}` on stdout whose array grows while it is written."""

    def __init__(self, screen: Screen, head: Mapping[str, object], name: str) -> None:
        self._out = screen.out
        self._separator = "\n"
        opening = json_for(self._out, {**head, name: []})
        self._out.write(opening.removesuffix("]}"))

    def add(self, document: object) -> None:
        """Write one element, on a line of its own."""
        self._out.write(f"{self._separator}  {json_for(self._out, document)}")
        self._separator = ",\n"

    def close(self) -> None:
        """Write the end. Without it what was written is no JSON, and is not taken for all of it."""
        self._out.write("\n]}\n")
        self._out.flush()


def json_for(stream: TextIO, document: object, *, indent: int | None = None) -> str:
    """The document as JSON that this stream's encoding can hold."""
    encoding = (stream.encoding or "utf-8").lower().replace("-", "")
    return render.json_text(document, indent=indent, ascii_only=encoding != "utf8")


def open_screen(*, json: bool) -> Screen:
    """The screen of this process."""
    talks = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    return Screen(
        sys.stdout, sys.stderr, json, _style(sys.stdout), _style(sys.stderr), talks and not json
    )


def _style(stream: TextIO) -> Style:
    terminal = stream.isatty()
    on = render.colour_wanted(os.environ, terminal=terminal)
    return Style(render.Paint(on=on), _width(stream, terminal=terminal))


def _width(stream: TextIO, *, terminal: bool) -> int | None:
    """`COLUMNS` if it is a number, else the terminal's width, else None."""
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and 0 < len(told) <= 5 and int(told):
        return int(told)
    if not terminal:
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
