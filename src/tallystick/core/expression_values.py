"""Values on their way into an expression and out of it."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from tallystick.core.pointer import Path
from tallystick.core.references import STEPS, Reference
from tallystick.core.values import DEPTH_MAX, Value, ValueRefused, encode

PASSED_BYTES_MAX: Final = 64 * 1024

_LONG_INTEGER: Final = re.compile(rb"[0-9]{19}")
_INT64: Final = range(-(2**63), 2**63)


class ExpressionFailed(ValueError):
    """An expression has no value. Nothing was written.

    `expression` is its source, `field` the place in the definition that it is for, `reason` one
    clause for people. None of them holds data of the run.
    """

    def __init__(self, expression: str, field: str, reason: str) -> None:
        shown = expression if len(expression) <= 120 else expression[:120] + "…"
        super().__init__(f"{field}: ${{{{ {shown} }}}}: {reason}")
        self.expression = expression
        self.field = field
        self.reason = reason


class Unusable(ValueError):
    """A value cannot take part. `reason` names keys and types, no values."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def look_up(scope: Mapping[str, Value], reference: Reference) -> Value:
    """Return what a reference leads to, of any type and size.

    Raises `Unusable` when it leads nowhere, saying where it ends.
    """
    if reference.name not in scope:
        raise Unusable(f"{reference.name} has no value here")
    value = scope[reference.name]
    for depth, key in enumerate(reference.path):
        found = _child(value, key)
        if found is None:
            raise Unusable(_ends(reference, depth))
        value = found[0]
    return value


def _child(value: Value, key: str | int) -> tuple[Value] | None:
    if isinstance(value, dict) and isinstance(key, str):
        return (value[key],) if key in value else None
    if isinstance(value, list) and isinstance(key, int):
        return (value[key],) if key < len(value) else None
    return None


def _ends(reference: Reference, depth: int) -> str:
    if reference.name == STEPS and depth < 2:
        return f"step {reference.path[0]} has no output (it did not run, was skipped or has failed)"
    there = Reference(reference.name, reference.path[:depth])
    missing = Reference("", (reference.path[depth],))
    return f"{there} has no {str(missing).lstrip('.')}"


def prune(value: Value, paths: Iterable[tuple[Path, bool]]) -> Value:
    """Return only what the paths lead to; where a path is only tested for, null stands for it."""
    every = list(paths)
    if any(not path and not tested for path, tested in every):
        return value
    if all(not path for path, _ in every):
        return None
    if not isinstance(value, dict):
        return value
    below: dict[str | int, list[tuple[Path, bool]]] = {}
    for path, tested in every:
        if path:
            below.setdefault(path[0], []).append((path[1:], tested))
    return {
        key: prune(value[key], tails)
        for key, tails in below.items()
        if isinstance(key, str) and key in value
    }


def steps_in(scope: Mapping[str, Value], ids: Iterable[str]) -> Value:
    """Return `steps` with these ids; one without an output is an empty object, for `has(…)`."""
    steps = scope.get(STEPS)
    known = steps if isinstance(steps, dict) else {}
    return {step: known.get(step, {}) for step in ids}


def check_passed(values: Mapping[str, Value]) -> None:
    """Raise `Unusable` for what the library would cut or refuse, or above 64 KiB together."""
    size = 0
    for name, value in values.items():
        try:
            data = encode(value)
        except ValueRefused as error:
            raise Unusable(f"{name} holds {error.reason}") from error
        size += len(data)
        if size > PASSED_BYTES_MAX:
            limit = PASSED_BYTES_MAX // 1024
            raise Unusable(
                f"its values are larger than {limit} KiB together; a bare reference may be"
            )
        if b"\\u0000" in data or _LONG_INTEGER.search(data):
            _check_parts(name, value)


def _check_parts(name: str, value: Value) -> None:
    match value:
        case str():
            if "\0" in value:
                raise Unusable(
                    f"{name} holds a text with a NUL character, which cannot be computed with"
                )
        case bool() | float() | None:
            pass
        case int():
            if value not in _INT64:
                raise Unusable(
                    f"{name} holds an integer beyond 64 bits, which cannot be computed with"
                )
        case list():
            for item in value:
                _check_parts(name, item)
        case dict():
            for key, item in value.items():
                _check_parts(name, key)
                _check_parts(name, item)


_NOT_JSON: Final = {
    "bytearray": "bytes",
    "bytes": "bytes",
    "datetime": "a timestamp",
    "timedelta": "a duration",
    "Type": "a type",
}


def from_cel(result: object, depth: int = 0) -> Value:
    """Return a result as a JSON value: integers stay integers, floats stay floats.

    Raises `Unusable` for what has no JSON form.
    """
    if depth > DEPTH_MAX:
        raise Unusable(f"its value is nested more than {DEPTH_MAX} levels deep")
    match result:
        case None | bool() | int() | str():
            return result
        case float():
            if result - result != 0.0:
                raise Unusable("its value is not a finite number")
            return result
        case list():
            return [from_cel(item, depth + 1) for item in result]
        case dict():
            return {_key(key): from_cel(item, depth + 1) for key, item in result.items()}
        case _:
            kind = _NOT_JSON.get(type(result).__name__, f"a {type(result).__name__}")
            raise Unusable(f"its value holds {kind}; convert it, for example with string(…)")


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    raise Unusable("its value has a key that is not a string; convert it with string(…)")


def as_text(value: Value) -> str:
    """Return how a value is written inside a text. Raises `Unusable` but for str, int and bool."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case _:
            kind = {float: "a float", list: "a list", dict: "an object"}.get(type(value), "null")
            raise Unusable(
                f"{kind} inside a text, where strings, integers and booleans may stand; "
                "convert it with string(…), or let the expression be the whole string"
            )
