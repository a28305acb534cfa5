"""JSON values whose strings may hold `${{ }}`, compiled once and evaluated for every activation.

A whole string that is one bare reference (`${{ steps.charge.output.id }}`) is resolved here: the
value travels as it is, of any size and type. Everything else is CEL, in `expressions`, which is
imported only when such an expression exists. Data that an expression yields is never parsed again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

import msgspec

from tallystick.core.definition import Json
from tallystick.core.pointer import Path, render
from tallystick.core.values import encode

Names: TypeAlias = Mapping[str, Json]
"""What an expression can see: `input`, `run`, `steps` (id → {"output".

…} of those that have one).
"""

_BARE = re.compile(
    r"\$\{\{\s*(input|run|steps)((?:\.[A-Za-z_][A-Za-z0-9_]*|\[\"[A-Za-z_][A-Za-z0-9_-]*\"\])*)\s*\}\}"
)
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[\"([A-Za-z_][A-Za-z0-9_-]*)\"\]")


class ExpressionFailed(Exception):
    """The value of an expression is an error. The step fails and names expression and field.

    expression  as written · field: where it stands, for people · reason: never quotes data
    """

    def __init__(self, expression: str, field: str, reason: str) -> None:
        super().__init__(f"{field}: `{expression}`: {reason}")
        self.expression = expression
        self.field = field
        self.reason = reason


class Template(msgspec.Struct, frozen=True):
    """A compiled JSON value.

    evaluate  from the names in scope to a JSON value; raises `ExpressionFailed`
    steps     ids of the steps it reads · input: True where it reads the run's input
    constant  True where it reads nothing at all
    """

    evaluate: Callable[[Names], Json]
    steps: frozenset[str] = frozenset()
    input: bool = False
    constant: bool = False


def compile_template(value: Json, field: str) -> Template:
    """Compile a JSON value; `field` names it in errors, e.g. `steps.charge.with`."""
    return _compile(value, field, ())


def _compile(value: Json, field: str, path: Path) -> Template:
    if isinstance(value, str) and "${{" in value:
        return _text(value, field + render(path)[1:])
    if isinstance(value, dict):
        return _object({key: _compile(item, field, (*path, key)) for key, item in value.items()})
    if isinstance(value, list):
        return _array([_compile(item, field, (*path, at)) for at, item in enumerate(value)])
    encode(value)
    return Template(lambda _names: value, constant=True)


def _object(parts: dict[str, Template]) -> Template:
    if all(part.constant for part in parts.values()):
        fixed: dict[str, Json] = {key: part.evaluate({}) for key, part in parts.items()}
        return Template(lambda _names: fixed, constant=True)
    pairs = [(key, part.evaluate) for key, part in parts.items()]
    return _joined(lambda names: {key: run(names) for key, run in pairs}, parts.values())


def _array(parts: list[Template]) -> Template:
    runs = [part.evaluate for part in parts]
    return _joined(lambda names: [run(names) for run in runs], parts)


def _joined(evaluate: Callable[[Names], Json], parts: Collection[Template]) -> Template:
    steps: frozenset[str] = frozenset().union(*(part.steps for part in parts))
    reads_input = any(part.input for part in parts)
    return Template(evaluate, steps, reads_input, all(part.constant for part in parts))


def _text(text: str, field: str) -> Template:
    bare = _BARE.fullmatch(text)
    if bare is None or text.strip("${} ") == "steps":
        from tallystick.core.expressions import compile_text  # CEL costs 17 MB: only when needed

        return compile_text(text, field)
    return _reference(text, field, bare)


def _reference(text: str, field: str, bare: re.Match[str]) -> Template:
    keys = (bare[1], *(dotted or quoted for dotted, quoted in _STEP.findall(bare[2])))
    steps = frozenset(keys[1:2]) if keys[0] == "steps" else frozenset()

    def resolve(names: Names) -> Json:
        value: Json = names  # type: ignore[assignment]  # the scope is itself read like an object
        for depth, key in enumerate(keys):
            if not isinstance(value, Mapping) or key not in value:
                raise ExpressionFailed(text, field, _missing(keys, depth))
            value = value[key]
        return value

    return Template(resolve, steps, input=keys[0] == "input")


def _missing(keys: tuple[str, ...], depth: int) -> str:
    if keys[0] == "steps" and depth <= 2:
        step = keys[1] if len(keys) > 1 else ""
        return f"step `{step}` has no output here: it was skipped or failed"
    return f"no such key: {'.'.join(keys[: depth + 1])}"
