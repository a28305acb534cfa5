"""What is typed after `--input` and `--output`, as JSON values.

    --input FILE        the JSON in a file           --input -      the JSON on standard input
    --input '{…}'       the JSON itself, an object
    --input k=v         one field, may be repeated:
        k=text          a JSON number, true, false or null where the text is its canonical spelling
                        (5, -1, 2.5, true); everything else is a string (007, 1.10, hello)
        k="text"        a JSON string, to say that 5 is one
        k=@FILE         the text of a file
        k:=JSON         any JSON value           k:=@FILE    the JSON in a file

`1.10` stays a string because as a number it would come back as `1.1`: a version is not a number.
Every text goes through the strict parser: duplicate keys, NaN and lone surrogates are refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast, get_args

from tallystick.core.values import BYTES_MAX, Value, ValueRefused, decode, encode
from tallystick.errors import InvalidRequest
from tallystick.surfaces.cli.port import Outcome
from tallystick.surfaces.render import safe

_FIELD: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)(:?=)(.*)", re.DOTALL)
_SCALARS: Final = (str, bool, int, float, type(None))


def input_value(words: Sequence[str]) -> Value:
    """The run's input from all `--input` of a command line; without any, `{}`.

    Raises `InvalidRequest`: a file that cannot be read, text that is not JSON, a field given twice,
    fields mixed with a file.
    """
    if not words:
        return {}
    fields = [_FIELD.fullmatch(word) for word in words]
    if len(words) == 1 and fields[0] is None:
        if words[0].lstrip().startswith("{"):
            return _decoded(words[0], "--input", 'close what is open, and quote names with "')
        return _document(words[0], "--input")
    result: dict[str, Value] = {}
    for word, field in zip(words, fields, strict=True):
        if field is None:
            raise _mixed(word)
        name, operator, text = field.groups()
        if name in result:
            raise _refused("input-repeated", f"--input gives `{safe(name)}` twice", "give it once")
        result[name] = _field(f"--input {name}", text, exact=operator == ":=")
    return result


def output_bytes(word: str) -> bytes:
    """The canonical bytes of `--output`: JSON, `@FILE`, or `-` for standard input."""
    if word == "-":
        return encode(_document("-", "--output"))
    if word.startswith("@"):
        return encode(_document(word[1:], "--output"))
    return encode(_decoded(word, "--output", "quote it for JSON: --output '\"text\"'"))


def outcome_of(outcome: str, output: str | None) -> Outcome:
    """The outcome that was typed, checked against whether an output was."""
    if outcome not in get_args(Outcome):
        raise InvalidRequest(
            f"--outcome {safe(outcome)} is none of {', '.join(get_args(Outcome))}",
            check="outcome",
            next_step="choose one of them; never_happened permits another attempt",
        )
    if (outcome == "succeeded") != (output is not None):
        raise InvalidRequest(
            "an output is given with --outcome succeeded, and only with it",
            check="output",
            next_step="a step without a result has the output null: --output null",
        )
    return cast(Outcome, outcome)


def _field(where: str, text: str, *, exact: bool) -> Value:
    if text.startswith("@"):
        content = _read(text[1:], where)
        return _decoded(content, where, None) if exact else _as_string(content, where)
    if exact:
        return _decoded(text, where, "quote it for JSON, or use = for text")
    if text.startswith('"'):
        return _decoded(text, where, "close the quotes; text needs none")
    return _scalar_or_text(text, where)


def _scalar_or_text(text: str, where: str) -> Value:
    try:
        value = decode(text)
    except ValueRefused:
        return _as_string(text.encode("utf-8", "surrogateescape"), where)
    plain = isinstance(value, _SCALARS) and encode(value).decode() == text
    return value if plain else text


def _document(name: str, where: str) -> Value:
    content = _read(name, where)
    shown = "standard input" if name == "-" else safe(name)
    return _decoded(content, f"{where} {shown}", None)


def _read(name: str, where: str) -> bytes:
    try:
        if name == "-":
            return sys.stdin.buffer.read(BYTES_MAX + 1)
        with Path(name).open("rb") as file:
            return file.read(BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _refused(
            "input-unreadable",
            f"{where}: cannot read {safe(name)}: {safe(reason)}",
            "name a file that exists, - for standard input, or k=v",
        ) from error


def _as_string(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refused(
            "input-encoding", f"{where}: not UTF-8 at byte {error.start}", "give it as UTF-8"
        ) from error


def _decoded(text: bytes | str, where: str, remedy: str | None) -> Value:
    try:
        return decode(text)
    except ValueRefused as error:
        raise _refused(
            "input-not-json", f"{safe(where)}: {safe(error)}", remedy or "give strict JSON"
        ) from error


def _mixed(word: str) -> InvalidRequest:
    return _refused(
        "input-mixed",
        f"--input {safe(word)} stands beside another --input, and is not k=v",
        "give one file, or - alone, or fields only",
    )


def _refused(code: str, message: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(message, code=code, check="input", next_step=remedy)
