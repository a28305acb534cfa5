"""Where the expressions in a string are.

A string of a definition is plain text, or one expression `${{ … }}` that is the whole string and
keeps its type, or text with expressions in it. This finds them, once: what an expression yields is
data and is never looked at again.

An expression ends at the `}}` that is outside its strings, comments and braces, so that
`${{ {"a": {"b": 1}} }}` and `${{ "}}" }}` mean what they look like. A literal `${{` is written
`${{ "${{" }}`.
"""

import re
from dataclasses import dataclass
from typing import Final

OPENING: Final = "${{"
CLOSING: Final = "}}"
EXPRESSION_BYTES_MAX: Final = 4 * 1024
PARTS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Text:
    """A string without expressions."""

    text: str


@dataclass(frozen=True, slots=True)
class Whole:
    """One expression that is the whole string; its source without the braces, trimmed."""

    source: str


@dataclass(frozen=True, slots=True)
class Mixed:
    """Text and expressions in turn."""

    parts: tuple[Text | Whole, ...]


Template = Text | Whole | Mixed


class TemplateRefused(ValueError):
    """The string's expressions cannot be told apart.

    `offset` is where in the string, in characters.
    """

    def __init__(self, code: str, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.offset = offset
        self.reason = reason


def parse_template(text: str) -> Template:
    """Split a string into text and expressions.

    Raises `TemplateRefused` for an expression that is empty, over 4 KiB or without its `}}`.
    """
    if OPENING not in text:
        return Text(text)
    parts: list[Text | Whole] = []
    at = 0
    while (start := text.find(OPENING, at)) >= 0:
        if start > at:
            parts.append(Text(text[at:start]))
        source, at = _expression(text, start)
        parts.append(Whole(source))
        if len(parts) > PARTS_MAX:
            raise TemplateRefused(
                "expression-too-large", start, f"more than {PARTS_MAX} parts in one text"
            )
    if at < len(text):
        parts.append(Text(text[at:]))
    return parts[0] if len(parts) == 1 else Mixed(tuple(parts))


# What may hide a brace: a string in its eight spellings, or a comment. Raw strings have no escapes.
_TOKEN: Final = re.compile(
    r"""
      [rR][bB]?(?:\"{3}.*?\"{3}|'{3}.*?'{3}|\"[^\"\n]*\"|'[^'\n]*')
    | \"{3}(?:\\.|[^\\])*?\"{3}
    | '{3}(?:\\.|[^\\])*?'{3}
    | \"(?:\\.|[^\"\\\n])*\"
    | '(?:\\.|[^'\\\n])*'
    | //[^\n]*
    | \w+
    | .
    """,
    re.DOTALL | re.VERBOSE,
)


def _expression(text: str, start: int) -> tuple[str, int]:
    """Return the source of the expression that opens at `start`, and where the text goes on."""
    begin = start + len(OPENING)
    depth = 0
    # A little more than the limit, so that the one refusal can be told from the other.
    limit = min(len(text), begin + EXPRESSION_BYTES_MAX + 64)
    at = begin
    while at < limit and (token := _TOKEN.match(text, at, limit)):
        if depth == 0 and text.startswith(CLOSING, at):
            return _checked(text[begin:at].strip(), start), at + len(CLOSING)
        depth += {"{": 1, "}": -1}.get(token.group(), 0)
        at = token.end()
    if limit < len(text):
        raise _too_long(start)
    raise TemplateRefused("expression-syntax", start, "${{ without its }}")


def _checked(source: str, start: int) -> str:
    if not source:
        raise TemplateRefused("expression-syntax", start, "an empty expression")
    if len(source.encode("utf-8", "surrogatepass")) > EXPRESSION_BYTES_MAX:
        raise _too_long(start)
    return source


def _too_long(start: int) -> TemplateRefused:
    limit = EXPRESSION_BYTES_MAX // 1024
    return TemplateRefused("expression-too-large", start, f"an expression of more than {limit} KiB")
