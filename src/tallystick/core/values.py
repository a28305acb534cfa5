"""JSON values and their one canonical text, `tcj1`.

A value has exactly one spelling in bytes, so that bytes can be compared, digested and stored
instead of values:

    UTF-8 · no spaces · keys sorted by their UTF-8 bytes ·
    integers exact and unbounded · floats as msgspec writes them

Sorting Python strings sorts by code point, which is the order of their UTF-8 bytes (and not of
their UTF-16 units). `1` and `1.0` are different values. Refused, with the path: NaN, infinities,
lone surrogates, keys that are not strings, duplicate keys, integers over 4,300 digits, more than 64
levels, and every type JSON does not have.

There are two doors in, because msgspec alone is not strict enough (it writes NaN as null and keeps
the last of two equal keys): `encode` walks a Python value before it writes it, `decode` reads
outside text with the standard parser and a pair hook. `decode_trusted` is the fast way back for
bytes that `encode` wrote.
"""

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping
from types import NoneType
from typing import Final, cast

import msgspec

from tallystick.core.pointer import ROOT, Path, quote, render

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]
"""A JSON value. `encode` also takes tuples, as lists."""

TAG: Final = b"tcj1"
DEPTH_MAX: Final = 64
INTEGER_DIGITS_MAX: Final = 4_300
"""Source: CPython's limit for converting between int and str, which is there against quadratic
time."""

BYTES_MAX: Final = 64 * 1024 * 1024
NODES_MAX: Final = 4 * 1024 * 1024
"""Values inside one value, parts that are shared counted each time: it bounds the walk over what
expands."""


_INTEGER_BOUND: Final = 10**INTEGER_DIGITS_MAX
_PLAIN: Final = frozenset({str, bool, NoneType})
_KEYS: Final = frozenset({str})
_MAYBE_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_DECODER: Final = msgspec.json.Decoder()


class ValueRefused(ValueError):
    """The value or text is not acceptable JSON. Nothing was written.

    `path` leads to the offending place, `reason` is one clause for people. Neither holds a value.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{render(path)}: {reason}")
        self.path = path
        self.reason = reason


def encode(value: object) -> bytes:
    """Return the canonical bytes of a Python value.

    Takes exactly None, bool, int, float, str, list, tuple and dict (no subclasses), nested at most
    64 levels. Raises `ValueRefused` with the path of the first thing that is not JSON.
    """
    if _walk(value, DEPTH_MAX, NODES_MAX) < 0:
        raise _refusal(value)
    try:
        return _ENCODER.encode(value)
    except (UnicodeEncodeError, ValueError, TypeError) as error:
        raise _refusal(value) from error


def decode(text: bytes | str) -> Value:
    """Read one JSON value from text of unknown origin.

    Bytes are UTF-8, without a byte order mark. Raises `ValueRefused`: with the path for duplicate
    keys, NaN, infinities, floats out of range, integers over 4,300 digits and lone surrogates; with
    line and column for what is not JSON.
    """
    source = _as_text(text)
    value = _parse(source)
    if _walk(value, DEPTH_MAX, NODES_MAX) < 0:
        raise _refusal(value)
    if _MAYBE_SURROGATE.search(source) and (fault := _first_fault(value)):
        raise fault
    return cast(Value, value)


def decode_trusted(data: bytes) -> Value:
    """Read back bytes that `encode` wrote, quickly and without checks.

    Integers of every size stay exact. On any other bytes the result is undefined: a duplicate key
    is not seen. Raises `ValueRefused` if they are no JSON.
    """
    try:
        return cast(Value, _DECODER.decode(data))
    except msgspec.ValidationError:
        # msgspec counts the minus sign as a digit, so it refuses the longest negative integers that
        # we allow.
        return decode(data)
    except msgspec.DecodeError as error:
        raise ValueRefused(ROOT, "stored bytes are not JSON") from error


def canonical(text: bytes | str) -> bytes:
    """Return the canonical bytes of outside text. Raises `ValueRefused` as `decode` does."""
    return encode(decode(text))


def digest(data: bytes, *, tag: bytes = TAG) -> bytes:
    """Return the 32 bytes SHA-256(tag ‖ NUL ‖ data).

    The tag says what `data` is and how it is spelled.
    """
    assert tag
    assert b"\0" not in tag
    found = hashlib.sha256(tag + b"\0")
    found.update(data)  # one text of both would be a copy of up to 64 MiB
    return found.digest()


# The walk before encoding. It answers as fast as Python can; only a no is walked again, for its
# path.

_FAULTY: Final = -1
_TOO_MANY: Final = -2


def _walk(value: object, levels: int, left: int) -> int:
    """Return how many more values are allowed after this one, or `_FAULTY` or `_TOO_MANY`.

    Lone surrogates are not looked for: msgspec refuses them while it writes.
    """
    if type(value) is dict:
        if not _KEYS.issuperset(map(type, value)):
            return _FAULTY
        return _walk_items(value.values(), levels, left)
    if type(value) is list or type(value) is tuple:
        return _walk_items(value, levels, left)
    return left if _is_leaf(value) else _FAULTY


def _walk_items(items: Collection[object], levels: int, left: int) -> int:
    left -= len(items)
    if left < 0:
        return _TOO_MANY
    if levels == 0:
        return _FAULTY
    # Many containers hold plain leaves only, and one pass in C shows it.
    if _PLAIN.issuperset(map(type, items)):
        return left
    for item in items:
        if type(item) is str:
            continue
        if type(item) is dict or type(item) is list or type(item) is tuple:
            left = _walk(item, levels - 1, left)
            if left < 0:
                return left
        elif not _is_leaf(item):
            return _FAULTY
    return left


def _is_leaf(value: object) -> bool:
    if type(value) is int:
        return -_INTEGER_BOUND < value < _INTEGER_BOUND
    if type(value) is float:
        return math.isfinite(value)
    return type(value) in _PLAIN


# The walk that finds the path. The parser of outside text leaves a `_Fault` where it saw one, for
# this walk to find.


class _Fault:
    """What the parser leaves in the place of a value that cannot be accepted."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


_MANY_REASON: Final = f"more than {NODES_MAX:,} values"
_DEPTH_REASON: Final = f"nested more than {DEPTH_MAX} levels deep, or inside itself"
_DIGITS_REASON: Final = f"an integer of more than {INTEGER_DIGITS_MAX:,} digits"
_SURROGATE_REASON: Final = "text with a lone surrogate, which UTF-8 cannot write"
_FINITE_REASON: Final = "NaN and infinities are not JSON, and floats end at 1.8e308"


def _refusal(value: object) -> ValueRefused:
    if _walk(value, DEPTH_MAX, NODES_MAX) == _TOO_MANY:
        return ValueRefused(ROOT, _MANY_REASON)
    return _first_fault(value) or ValueRefused(ROOT, "the value cannot be written as JSON")


def _first_fault(value: object) -> ValueRefused | None:
    """Walk depth first, in the order written, to the first fault; None when there is none."""
    stack: list[tuple[Path, object]] = [(ROOT, value)]
    while stack:
        path, item = stack.pop()
        if (reason := _reason(item, len(path))) is not None:
            return ValueRefused(path, reason)
        if type(item) is dict:
            stack.extend([((*path, key), item[key]) for key in reversed(item)])
        elif type(item) is list or type(item) is tuple:
            stack.extend([((*path, index), item[index]) for index in reversed(range(len(item)))])
    return None


def _reason(item: object, depth: int) -> str | None:
    """Say what is wrong with this value itself, not with what it holds; None when nothing is."""
    match item:
        case _Fault():
            return item.reason
        case str():
            return _type_reason(item, str) or _text_reason(item)
        case bool() | None:
            return None
        case int():
            return _type_reason(item, int) or (None if _is_leaf(item) else _DIGITS_REASON)
        case float():
            return _type_reason(item, float) or (None if math.isfinite(item) else _FINITE_REASON)
        case dict():
            return _type_reason(item, dict) or _depth_reason(depth) or _keys_reason(item)
        case list() | tuple():
            return _type_reason(item, list, tuple) or _depth_reason(depth)
        case _:
            return f"a value of type {type(item).__name__} is not JSON"


def _type_reason(item: object, *exact: type) -> str | None:
    kind = type(item)
    return (
        None
        if kind in exact
        else f"a {kind.__name__} is not JSON; convert it to {exact[0].__name__}"
    )


def _depth_reason(depth: int) -> str | None:
    return _DEPTH_REASON if depth >= DEPTH_MAX else None


def _keys_reason(item: Mapping[object, object]) -> str | None:
    for key in item:
        if type(key) is not str:
            return f"a key of type {type(key).__name__}; JSON keys are strings"
        if _text_reason(key):
            return f"the key {quote(key)} has a lone surrogate, which UTF-8 cannot write"
    return None


def _text_reason(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE_REASON
    return None


# Outside text.


def _as_text(text: bytes | str) -> str:
    if len(text) > BYTES_MAX:
        raise ValueRefused(ROOT, f"more than {BYTES_MAX:,} bytes")
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueRefused(ROOT, f"not UTF-8 at byte {error.start}") from error


def _parse(text: str) -> object:
    try:
        return _PARSER.decode(text)
    except json.JSONDecodeError as error:
        reason = f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise ValueRefused(ROOT, reason) from error
    except RecursionError as error:
        raise ValueRefused(ROOT, _DEPTH_REASON) from error


def _object(pairs: list[tuple[str, object]]) -> object:
    result = dict(pairs)
    return (
        result
        if len(result) == len(pairs)
        else _Fault(f"duplicate key {quote(_first_duplicate(pairs))}")
    )


def _first_duplicate(pairs: list[tuple[str, object]]) -> str:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("the caller counted a duplicate")


def _integer(digits: str) -> object:
    return int(digits) if len(digits.lstrip("-")) <= INTEGER_DIGITS_MAX else _Fault(_DIGITS_REASON)


def _float(text: str) -> object:
    number = float(text)
    return number if math.isfinite(number) else _Fault(_FINITE_REASON)


def _constant(_name: str) -> object:
    return _Fault(_FINITE_REASON)


_PARSER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
)
