"""Where in a JSON value something is.

A `Path` is the keys and indexes from the root down to one place. `render` writes it for people, as
`$.a[3].b`; a key that is not a plain word is quoted: `$["my key"]`. Paths carry keys only, never
values.
"""

import json
import re
from collections.abc import Iterable

Path = tuple[str | int, ...]

ROOT: Path = ()
KEY_CHARS_MAX = 64
PARTS_SHOWN_MAX = 64

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)


def render(path: Iterable[str | int]) -> str:
    """Write a path as `$.a[3].b`.

    Long keys and long paths are cut with an ellipsis, and what a terminal would not print plainly
    is escaped, so the result is safe in any message and at most a few KiB.
    """
    parts = list(path)
    shown = "".join(_part(part) for part in parts[:PARTS_SHOWN_MAX])
    return "$" + shown + ("…" if len(parts) > PARTS_SHOWN_MAX else "")


def _part(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return (
        f".{part}" if len(part) <= KEY_CHARS_MAX and _WORD.fullmatch(part) else f"[{quote(part)}]"
    )


def quote(text: str, chars_max: int = KEY_CHARS_MAX) -> str:
    """Write the first `chars_max` characters as a JSON string, escaping what does not print."""
    cut = text if len(text) <= chars_max else text[:chars_max] + "…"
    return json.dumps(cut, ensure_ascii=not cut.isprintable())
