"""Fields of a definition: JSON whose strings may hold `${{ }}`, compiled once, evaluated per visit.

What an expression yields is data and is never parsed again. What holds no expression costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

import msgspec

from tallystick.core.definition import Definition, Json
from tallystick.core.diagnostics import NOWHERE, Problems
from tallystick.core.expression_values import ExpressionFailed
from tallystick.core.expressions import Expression, compile_template
from tallystick.core.pointer import Path, render
from tallystick.core.references import Names
from tallystick.core.templates import OPENING
from tallystick.core.values import encode

Scope: TypeAlias = Mapping[str, Json]
"""The values of names: `input`, `run`, `steps` (id → {"output": …} of those that have one)."""


class Field(msgspec.Struct, frozen=True):
    """A compiled field.

    evaluate  from the names in scope to a JSON value; raises `ExpressionFailed`
    steps     ids of the steps it reads · input: True where it reads the run's input
    constant  True where it reads nothing at all
    """

    evaluate: Callable[[Scope], Json]
    steps: frozenset[str] = frozenset()
    input: bool = False
    constant: bool = False


def names_of(definition: Definition) -> Names:
    """What the expressions of a definition may name, with the schemas that are declared."""
    steps = {node.id: node.output_schema for node in definition.root.nodes}
    return Names({"input": definition.input}, steps, definition.types)


def compile_field(value: Json, where: str, names: Names) -> Field:
    """Compile a JSON value; `where` names it in errors, e.g. `steps.charge.with`.

    Raises `ExpressionFailed` for an expression that cannot be compiled, `ValueRefused` for what is
    no JSON.
    """
    return _compile(value, where, (), names)


def _compile(value: Json, where: str, path: Path, names: Names) -> Field:
    if isinstance(value, str) and OPENING in value:
        return _text(value, where + render(path)[1:], names)
    if isinstance(value, dict):
        parts = {key: _compile(item, where, (*path, key), names) for key, item in value.items()}
        return _object(parts)
    if isinstance(value, list):
        return _array([_compile(item, where, (*path, i), names) for i, item in enumerate(value)])
    encode(value)
    return Field(lambda _scope: value, constant=True)


def _object(parts: dict[str, Field]) -> Field:
    pairs = [(key, part.evaluate) for key, part in parts.items()]
    return _joined(lambda scope: {key: run(scope) for key, run in pairs}, parts.values())


def _array(parts: list[Field]) -> Field:
    runs = [part.evaluate for part in parts]
    return _joined(lambda scope: [run(scope) for run in runs], parts)


def _joined(evaluate: Callable[[Scope], Json], parts: Collection[Field]) -> Field:
    if all(part.constant for part in parts):
        fixed = evaluate({})
        return Field(lambda _scope: fixed, constant=True)
    steps: frozenset[str] = frozenset().union(*(part.steps for part in parts))
    return Field(evaluate, steps, any(part.input for part in parts))


def _text(text: str, where: str, names: Names) -> Field:
    problems = Problems(where)
    template = compile_template(text, names, problems, NOWHERE)
    if template is None:
        reason = problems.diagnostics()[0].message
        raise ExpressionFailed(text, where, reason)
    reads_input = any(reference.name == "input" for reference in template.references)
    only = template.parts[0]
    if template.whole and isinstance(only, Expression):
        return Field(
            lambda scope: only.evaluate(scope, field=where), template.steps, input=reads_input
        )
    return Field(
        lambda scope: template.evaluate(scope, field=where), template.steps, input=reads_input
    )
