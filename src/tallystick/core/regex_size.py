"""How large a regular expression becomes when it is compiled.

RE2 takes time linear in text times program, but a counted repetition multiplies the program:
`((a?){0,30}){0,30}` is 1,800 instructions in 18 characters, and goes over 64 KiB of text in a
second. This measures, from above, the program of a pattern in RE2's syntax.
"""

import re
from typing import Final

PATTERN_CHARS_MAX: Final = 256
REGEX_SIZE_MAX: Final = 2_000

_COUNTED: Final = re.compile(r"\{(\d{1,5})(,?)(\d{0,5})\}")
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:[pP](?:\{\^?\w*\}|.)|x\{[0-9a-fA-F]*\}|.)", re.DOTALL)

_CHARACTER: Final = 4
"""A character takes up to four bytes, and each is an instruction."""

_ANY: Final = 12
_UNICODE_CLASS: Final = 400
"""A Unicode class is hundreds of byte ranges. Source: measured, `\\pL` compiles to about 360."""


class RegexRefused(ValueError):
    """The pattern is too long, too large when compiled, or not closed. `reason` is for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def regex_size(pattern: str) -> int:
    """Return an upper bound of the instructions of a pattern.

    Raises `RegexRefused` above 256 characters or 2,000 instructions.
    """
    if len(pattern) > PATTERN_CHARS_MAX:
        raise RegexRefused(f"a pattern has at most {PATTERN_CHARS_MAX} characters")
    # Flags make characters into classes, and quoting hides what the measure looks for.
    odd = any(sign in pattern for sign in ("(?i", "(?-", r"\Q"))
    size = _alternatives(pattern) * (4 if odd else 1)
    if size > REGEX_SIZE_MAX:
        raise RegexRefused("the pattern is too large: repeat less, or less inside each other")
    return size


def _alternatives(pattern: str) -> int:
    """Measure with one stack of open groups: each holds what is done, and its last item."""
    done, last = 0, 0
    groups: list[int] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if counted := _COUNTED.match(pattern, at):
            last *= _repetitions(counted)
            at = counted.end()
            continue
        if char == ")" and groups:
            last = done + last + 2
            done = groups.pop()
            at += 1
            continue
        if char in "*+?":
            last = 2 * last + 2 if char == "+" else last + 2
            at += 1
            continue
        done, last = done + last, 0
        if char == "(":
            groups.append(done)
            done = 0
            at += 1
        else:
            last, at = _item(pattern, at)
    return done + last + sum(groups) + 4


def _repetitions(counted: re.Match[str]) -> int:
    low, comma, high = counted.groups()
    return max(int(low), int(high or 0)) + (1 if comma else 0) or 1


def _item(pattern: str, at: int) -> tuple[int, int]:
    """Return the size of the character, class or escape at `at`, and where it ends."""
    if escape := _ESCAPE.match(pattern, at):
        return _weight(escape.group()), escape.end()
    if found := _CLASS.match(pattern, at):
        return _weight(found.group()), found.end()
    return (_ANY if pattern[at] == "." else _CHARACTER), at + 1


def _weight(text: str) -> int:
    unicode = text.count(r"\p") + text.count(r"\P")
    negated = text.startswith("[^") or any(escape in text for escape in (r"\W", r"\D", r"\S"))
    return _UNICODE_CLASS * unicode + (_ANY if negated else 0) + len(text.encode()) + _CHARACTER
