"""Text for people and for programs, made from data that nobody vouches for.

Everything that comes from outside (names, keys, outputs, errors, file names) passes through `safe`
before a terminal sees it: what does not print shows as an escape, so that no stored text can move a
cursor, colour a line, reverse it or end it. `json_text` keeps every value exact and escapes the
same characters in the JSON way.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

ELLIPSIS: Final = "…"
PREVIEW_MAX: Final = 2_000
"""Characters of one value on a page for people; `--json` shows all of it."""

_JOINERS: Final = "\u200c\u200d"  # part of words and of emoji; they move nothing
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNPRINTABLE: Final = re.compile(r"[^ -~]")


def safe(value: object) -> str:
    """The value as text on one line, whatever it holds. Exact for what is printable."""
    text = value if type(value) is str else _as_text(value)
    if text.isprintable():
        return text
    return "".join(map(_visible, text))


def safe_lines(value: object) -> list[str]:
    """The value as lines; only line feeds separate them, everything else is made visible."""
    text = value if type(value) is str else _as_text(value)
    return [safe(line.removesuffix("\r").replace("\t", "    ")) for line in text.split("\n")]


def json_text(value: object, *, indent: int | None = None, ascii_only: bool = False) -> str:
    """The value as JSON with integers exact. What does not print is written as a `u` escape.

    Takes any object: what JSON does not have is written as its text, because a page must not fail
    for one poisoned value.
    """
    separators = (",", ": ") if indent else (",", ":")
    text = json.dumps(
        value, ensure_ascii=ascii_only, indent=indent, separators=separators, default=_as_text
    )
    return _UNPRINTABLE.sub(_json_escape, text)


def preview(value: object, most: int = PREVIEW_MAX) -> str:
    """A JSON value on one line, at most `most` characters and a note of how many are not shown."""
    text = json_text(value)
    if len(text) <= most:
        return text
    return f"{text[:most]}{ELLIPSIS} ({len(text) - most:,} more characters; --json shows all)"


def instant(ms: object) -> str:
    """Milliseconds since 1970 as UTC, `2025-03-01 12:00:00.250Z`; anything else as it is."""
    from datetime import UTC, datetime, timedelta

    if type(ms) is not int:
        return "-" if ms is None else safe(ms)
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        return safe(ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03d}Z"


def command(words: Iterable[object]) -> str:
    """A command line to paste into a shell: it runs exactly these words."""
    return " ".join(_quoted(word if isinstance(word, str) else str(word)) for word in words)


def cells(text: str) -> int:
    """How many columns of a terminal the text takes. Expects what `safe` returned."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(
        0 if combining(char) or char in _JOINERS else 2 if east_asian_width(char) in "WF" else 1
        for char in text
    )


def clip(text: str, width: int) -> str:
    """The text, cut to `width` columns with an ellipsis where it is longer."""
    if cells(text) <= width:
        return text
    kept = text[: max(0, width - 1)]
    while kept and cells(kept) > width - 1:
        kept = kept[:-1]
    return kept + ELLIPSIS


class Column(NamedTuple):
    """A column of a table.

    least  columns below which it is not cut; None: never cut, its text is for copying
    drop   what goes first where space is short (highest first); 0: stays
    """

    title: str
    least: int | None = None
    drop: int = 0


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Lines of a table, its texts made safe. width None: as wide as it gets (not a terminal)."""
    cleaned = [[safe(cell) for cell in row] for row in rows]
    widths = [
        max([cells(column.title), *(cells(row[index]) for row in cleaned)])
        for index, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    if width is not None:
        shown = _fitting(columns, widths, width)
        _shrink(columns, widths, shown, width)
    titles = [column.title for column in columns]
    return [_line(row, widths, shown) for row in (titles, *cleaned)]


def _fitting(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """The indices of the columns that are kept."""

    def least(index: int) -> int:
        bound = columns[index].least
        return widths[index] if bound is None else min(bound, widths[index])

    shown = list(range(len(columns)))
    while sum(map(least, shown)) + 2 * (len(shown) - 1) > width:
        goes = max(shown, key=lambda index: columns[index].drop)
        if columns[goes].drop == 0:
            break
        shown.remove(goes)
    return shown


def _shrink(columns: Sequence[Column], widths: list[int], shown: Sequence[int], width: int) -> None:
    over = sum(widths[index] for index in shown) + 2 * (len(shown) - 1) - width
    for index in sorted(shown, key=lambda index: -widths[index]):
        least = columns[index].least
        if over <= 0 or least is None:
            continue
        taken = min(over, widths[index] - min(least, widths[index]))
        widths[index] -= taken
        over -= taken


def _line(row: Sequence[str], widths: Sequence[int], shown: Sequence[int]) -> str:
    parts = []
    for index in shown:
        text = clip(row[index], widths[index])
        parts.append(text + " " * (widths[index] - cells(text)))
    return "  ".join(parts).rstrip()


class Paint:
    """Puts colours on text that is safe already, or leaves it alone."""

    _CODES: Final = {
        "succeeded": "32",
        "failed": "31",
        "cancelled": "31",
        "damaged": "31",
        "in_doubt": "33",
        "waiting": "33",
        "running": "36",
        "error": "1;31",
        "strong": "1",
        "faint": "2",
    }

    def __init__(self, *, on: bool) -> None:
        self.on = on

    def __call__(self, style: object, text: str) -> str:
        code = self._CODES.get(style) if self.on and isinstance(style, str) else None
        return f"\x1b[{code}m{text}\x1b[0m" if code else text


def colour_wanted(environ: dict[str, str] | os._Environ[str], *, terminal: bool) -> bool:
    """Colours only on a terminal that has them, and not against `NO_COLOR`.

    Source: no-color.org; an empty value counts as absent.
    """
    return terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def _visible(char: str) -> str:
    if char.isprintable() or char in _JOINERS:
        return char
    if char in _NAMED:
        return _NAMED[char]
    number = ord(char)
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def _json_escape(found: re.Match[str]) -> str:
    char = found.group()
    if char == "\n" or char.isprintable() or char in _JOINERS:
        return char
    number = ord(char)
    if number <= 0xFFFF:
        return f"\\u{number:04x}"
    high, low = divmod(number - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    # $'…' is understood by bash, zsh and ksh, and by sh since POSIX.1-2024.
    raw = word.encode("utf-8", "surrogateescape" if _from_system(word) else "surrogatepass")
    return "$'" + "".join(_shell_byte(byte) for byte in raw) + "'"


def _from_system(word: str) -> bool:
    return all(not 0xD800 <= ord(c) <= 0xDFFF or 0xDC80 <= ord(c) <= 0xDCFF for c in word)


def _shell_byte(byte: int) -> str:
    char = chr(byte)
    return char if " " <= char <= "~" and char not in "'\\" else f"\\x{byte:02x}"


def _as_text(value: object) -> str:
    return repr(value) if isinstance(value, bytes) else str(value)
