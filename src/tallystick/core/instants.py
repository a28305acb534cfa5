"""Instants and durations, in whole milliseconds.

Both are plain `int` at run time and different types to the checker, so that `after(now, timeout)`
cannot be called the wrong way round. Nothing here reads a clock.
"""

import re
from typing import NewType

Instant = NewType("Instant", int)
"""Milliseconds since 1970-01-01T00:00:00Z, leap seconds not counted."""

Millis = NewType("Millis", int)
"""A length of time in milliseconds, never negative."""

DURATION_MAX = Millis(36_525 * 86_400_000)
"""One hundred Julian years. Longer is a mistake, and instants stay far from the end of a 64-bit
column."""

DURATION_TEXT_MAX = 64

_UNITS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PART = re.compile(r"([0-9]+)(ms|s|m|h|d)")
_WHOLE = re.compile(r"(?:[0-9]+(?:ms|s|m|h|d))+")


class DurationRefused(ValueError):
    """The text is no duration, or too long a one. `reason` is one clause for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def after(now: Instant, timeout: Millis) -> Instant:
    """Return the instant `timeout` after `now`."""
    return Instant(now + timeout)


def elapsed(earlier: Instant, later: Instant) -> Millis:
    """Return the time from `earlier` to `later`; zero when the clock went backwards in between."""
    return Millis(max(0, later - earlier))


def parse_duration(text: str) -> Millis:
    """Read a duration such as `500ms`, `90s` or `1h30m`; parts add up, in any order.

    Raises `DurationRefused` when `text` is not of that form or is more than 100 years.
    """
    if len(text) > DURATION_TEXT_MAX or not _WHOLE.fullmatch(text):
        raise DurationRefused(
            "a duration is a number with a unit (ms, s, m, h, d), such as 90s or 1h30m"
        )
    total = sum(int(count) * _UNITS[unit] for count, unit in _PART.findall(text))
    if total > DURATION_MAX:
        raise DurationRefused("a duration is at most 100 years (36525d)")
    return Millis(total)


def format_duration(duration: Millis) -> str:
    """Write a duration in its shortest exact form, largest unit first: `1h30m`, `0s`.

    `parse_duration` reads it back to the same number.
    """
    rest = int(duration)
    parts = []
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
