"""Expressions: CEL, behind an interface of ours.

Compiling finds out everything that can be known without data: the syntax, which values are used
(`references`), whether they are in scope, whether the types fit. Evaluating passes just those
values, bounded in size and cost, and gives a JSON value or says why there is none.

A bare reference (`input.order`, `steps.build.output.files[0]`) is not computed with: it is looked
up here, keeps any type and size, and the CEL library is not even loaded for it.

What passes into CEL: null, booleans, integers of 64 bits, floats, strings without NUL (the
library cuts them there), lists and objects; together at most 64 KiB. What comes out: the same
types. Bytes, timestamps, durations and types have no JSON form, so a result that holds one is
refused: convert it in the expression, with `string(…)`.

Errors name the expression, the field and the reason in words of ours, never in values of the run.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tallystick.core import cel_library
from tallystick.core.cel_bounds import TooCostly, check_cost, check_patterns, needs_bounds
from tallystick.core.cel_library import Compiled, NotCompiled
from tallystick.core.cel_tree import Call, MapOf, Tree, walk
from tallystick.core.cel_types import DYNAMIC, UnknownProperty, cel_type, schema_at
from tallystick.core.diagnostics import Place, Problems
from tallystick.core.expression_values import (
    ExpressionFailed,
    Unusable,
    as_text,
    check_passed,
    look_up,
    prune,
    steps_in,
)
from tallystick.core.pointer import Path, quote
from tallystick.core.references import (
    LITERAL_WORDS,
    OUTPUT,
    RUN,
    STEPS,
    Names,
    Reference,
    Schema,
    Use,
    bare_reference,
    uses,
)
from tallystick.core.templates import Mixed, TemplateRefused, Text, Whole, parse_template
from tallystick.core.values import Value

__all__ = ["Expression", "ExpressionFailed", "Names", "Reference", "Template", "compile_template"]

_RUN_SCHEMA: Final[Schema] = {
    "type": "object",
    "properties": {"id": {"type": "string"}},
    "additionalProperties": False,
}
_QUOTED_ID: Final = re.compile(r"\bsteps\.([A-Za-z_][A-Za-z0-9_-]*)", re.ASCII)
_INT: Final = "int"
_LATER: Final = frozenset({"secret"})
"""Functions of the language that this version refuses by name."""


@dataclass(frozen=True, slots=True)
class _Variable:
    """What is passed under one name: a value that a path leads to, or parts of a named one."""

    name: str
    signature: str
    paths: tuple[tuple[Path, bool], ...] = ()
    reference: Reference | None = None


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression. `references` is all that it may use; `source` is its text."""

    source: str
    references: frozenset[Reference]
    _compiled: Compiled | None
    _variables: tuple[_Variable, ...]
    _measured: bool
    _declared: str = DYNAMIC

    @property
    def steps(self) -> frozenset[str]:
        """The ids of the steps whose outputs it uses."""
        return frozenset(found.step for found in self.references if found.step is not None)

    @property
    def result_type(self) -> str:
        """CEL's name of its static type, or of the declared one; `DYN` when it is not known."""
        return self._compiled.result_type if self._compiled is not None else self._declared.upper()

    @property
    def is_bare(self) -> bool:
        """Whether it only looks up one reference."""
        return self._compiled is None

    def evaluate(self, scope: Mapping[str, Value], *, field: str) -> Value:
        """Return the value of the expression.

        `scope` has a value for each name: `input`, `run` (`{"id": …}`), `steps` (`{ID: {"output":
        …}}`, without those that have none), and what else `Names.values` listed. `field` says
        what the value is for, in error messages.

        Raises `ExpressionFailed` when CEL's value is an error, or when values are too large.
        """
        try:
            return self._evaluate(scope)
        except (Unusable, TooCostly) as error:
            raise ExpressionFailed(self.source, field, error.reason) from error

    def _evaluate(self, scope: Mapping[str, Value]) -> Value:
        if self._compiled is None:
            (reference,) = self.references
            return look_up(scope, reference)
        values = self._passed(scope)
        check_passed(values)
        if self._measured:
            check_cost(self._compiled.tree, values)
        return cel_library.run(self._compiled, values)

    def _passed(self, scope: Mapping[str, Value]) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for variable in self._variables:
            if variable.reference is None:
                if variable.name == STEPS:
                    value = steps_in(scope, self.steps)
                else:
                    value = look_up(scope, Reference(variable.name))
                values[variable.name] = prune(value, variable.paths)
                continue
            try:
                value = look_up(scope, variable.reference)
            except Unusable:
                continue  # only an error if the expression comes to it, as after has(…)
            values[variable.name] = _fitted(value, variable.signature)
        return values


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled string of a definition: text and expressions in turn, or one expression alone."""

    parts: tuple[str | Expression, ...]
    whole: bool

    @property
    def references(self) -> frozenset[Reference]:
        """All that its expressions may use."""
        return frozenset().union(*(part.references for part in self._expressions()))

    @property
    def steps(self) -> frozenset[str]:
        """The ids of the steps whose outputs it uses."""
        return frozenset().union(*(part.steps for part in self._expressions()))

    @property
    def result_type(self) -> str:
        """CEL's name of the static type of its value; `DYN` when it is not known."""
        only = self.parts[0] if self.parts else ""
        return only.result_type if self.whole and isinstance(only, Expression) else "STRING"

    def evaluate(self, scope: Mapping[str, Value], *, field: str) -> Value:
        """Return the text, or the value of the one expression. See `Expression.evaluate`."""
        if self.whole and isinstance(self.parts[0], Expression):
            return self.parts[0].evaluate(scope, field=field)
        return "".join(_rendered(part, scope, field) for part in self.parts)

    def _expressions(self) -> Iterable[Expression]:
        return (part for part in self.parts if isinstance(part, Expression))


def compile_template(text: str, names: Names, problems: Problems, place: Place) -> Template | None:
    """Compile a string of a definition. Adds every problem; returns None when there was one."""
    try:
        template = parse_template(text)
    except TemplateRefused as error:
        problems.add(error.code, place, error.reason)
        return None
    sources = template.parts if isinstance(template, Mixed) else (template,)
    parts = [
        part.text
        if isinstance(part, Text)
        else compile_expression(part.source, names, problems, place)
        for part in sources
    ]
    compiled = tuple(part for part in parts if part is not None)
    if len(compiled) < len(parts):
        return None
    whole = isinstance(template, Whole)
    fitting = [whole or _fits_in_text(part, problems, place) for part in compiled]
    return Template(compiled, whole) if all(fitting) else None


def compile_expression(
    source: str, names: Names, problems: Problems, place: Place
) -> Expression | None:
    """Compile one expression. Adds every problem; returns None when there was one."""
    report = _Report(source, names, problems, place)
    bare = bare_reference(source)
    if bare is not None:
        if not report.in_scope((Use(bare, dotted=True),)):
            return None
        declared = cel_type(_schema_of(bare, names), names.types)
        return Expression(source, frozenset({bare}), None, (), _measured=False, _declared=declared)
    tree = report.parsed()
    found = uses(tree) if tree is not None else ()
    if tree is None or not report.in_scope(found) or not report.allowed(tree):
        return None
    variables = _variables(found, names)
    compiled = report.checked({variable.name: variable.signature for variable in variables})
    if compiled is None:
        return None
    references = frozenset(use.reference for use in found)
    return Expression(source, references, compiled, variables, needs_bounds(compiled.tree))


class _Report:
    """Adds the problems of one expression."""

    def __init__(self, source: str, names: Names, problems: Problems, place: Place) -> None:
        self._shown = "${{ " + (source if len(source) <= 80 else source[:80] + "…") + " }}"
        self._source = source
        self._names = names
        self._problems = problems
        self._place = place

    def _add(self, code: str, reason: str, remedy: str | None = None) -> None:
        self._problems.add(code, self._place, f"{self._shown}: {reason}", remedy=remedy)

    def in_scope(self, found: Iterable[Use]) -> bool:
        """Whether every use names something in scope, down to declared properties."""
        if self._unquoted_id():
            return False
        known = [self._one_in_scope(use.reference) for use in found]  # all, not up to the first
        return all(known)

    def _one_in_scope(self, reference: Reference) -> bool:
        if reference.name not in self._names.values.keys() | {STEPS, RUN}:
            listed = ", ".join(sorted(self._names.values.keys() | {STEPS, RUN}))
            self._add(
                "expression-unknown-name",
                f"nothing called {quote(reference.name)} is in scope",
                f"in scope are {listed}",
            )
            return False
        try:
            _schema_of(reference, self._names)
        except UnknownProperty as error:
            self._add("expression-unknown-name", f"{reference}: {error}", error.remedy)
            return False
        return reference.name != STEPS or self._step_in_scope(reference)

    def _step_in_scope(self, reference: Reference) -> bool:
        if len(reference.path) < 2 or reference.path[1] != OUTPUT:
            self._add(
                "expression-unknown-name",
                f"{reference} is not the output of a step",
                "write steps.ID.output, with the id as it stands in the definition",
            )
            return False
        if reference.path[0] not in self._names.steps:
            self._add(
                "expression-unknown-name",
                f"there is no step {quote(str(reference.path[0]))} to use here",
                "correct the id; a step may use what it needs or what is written before it",
            )
            return False
        return True

    def _unquoted_id(self) -> bool:
        """Whether a step is named after a dot though its id cannot stand there."""
        for written in _QUOTED_ID.findall(self._source):
            plain = "-" not in written and written not in LITERAL_WORDS
            if not plain and written in self._names.steps:
                self._add(
                    "expression-quoted-id",
                    f"the id {written} cannot stand after a dot",
                    f'write steps["{written}"].{OUTPUT}',
                )
                return True
        return False

    def allowed(self, tree: Tree) -> bool:
        """Whether it has no part that cannot be bounded or that has no JSON value."""
        if reason := check_patterns(tree):
            self._add("expression-too-large", reason)
            return False
        for node in walk(tree):
            if isinstance(node, MapOf) and node.message:
                self._add("expression-type", "messages cannot be made in expressions")
                return False
            if isinstance(node, Call) and node.function in _LATER:
                self._add(
                    "expression-not-yet",
                    f"{node.function}(…) is part of the language, but not of this version",
                    "let the task read it from where it runs",
                )
                return False
        return True

    def parsed(self) -> Tree | None:
        """Return the tree, or None after adding why there is none."""
        try:
            return cel_library.parse(self._source)
        except NotCompiled as error:
            if not self._unquoted_id():
                self._not_compiled(error, "expression-syntax")
            return None

    def checked(self, variables: Mapping[str, str]) -> Compiled | None:
        """Return the checked expression, or None after adding what does not fit."""
        try:
            return cel_library.compile_checked(self._source, variables)
        except NotCompiled as error:
            self._not_compiled(error, "expression-type")
            return None

    def _not_compiled(self, error: NotCompiled, code: str) -> None:
        for reason in error.reasons:
            self._add("expression-too-large" if error.too_large else code, reason)


def _variables(found: Iterable[Use], names: Names) -> tuple[_Variable, ...]:
    """Decide what is passed under which name.

    A path of dots becomes a variable of its own, named like the path and typed by its schema: CEL
    takes the longest declared name. A path that `has(…)` tests must stay a key of its parent.
    """
    every = tuple(found)
    tested = {(use.reference.name, use.reference.path) for use in every if use.reference.tested}
    roots: dict[str, list[Reference]] = {}
    variables: list[_Variable] = []
    for use in every:
        reference = use.reference
        own = use.dotted and bool(reference.path) and (reference.name, reference.path) not in tested
        if not own:
            roots.setdefault(reference.name, []).append(reference)
            continue
        signature = cel_type(_schema_of(reference, names), names.types)
        variables.append(_Variable(_dotted(reference), signature, reference=reference))
    for name, references in roots.items():
        paths = tuple((reference.path, reference.tested) for reference in references)
        variables.append(_Variable(name, _root_signature(name, references, names), paths))
    return tuple(variables)


def _dotted(reference: Reference) -> str:
    return ".".join((reference.name, *map(str, reference.path)))


def _root_signature(name: str, references: Iterable[Reference], names: Names) -> str:
    whole = any(not reference.path for reference in references)
    return cel_type(names.values.get(name), names.types) if whole else DYNAMIC


def _schema_of(reference: Reference, names: Names) -> Schema | None:
    """Return the declared schema of a reference. Raises `UnknownProperty`."""
    if reference.name == RUN:
        return schema_at(_RUN_SCHEMA, reference.path, names.types)
    if reference.name == STEPS:
        declared = names.steps.get(str(reference.path[0])) if reference.path else None
        return schema_at(declared, reference.path[2:], names.types)
    return schema_at(names.values.get(reference.name), reference.path, names.types)


def _fitted(value: Value, signature: str) -> Value:
    # JSON Schema counts 3.0 as an integer; CEL does not.
    if signature == _INT and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _fits_in_text(part: str | Expression, problems: Problems, place: Place) -> bool:
    if isinstance(part, str) or part.result_type in cel_library.TEXT_TYPES:
        return True
    problems.add(
        "expression-type",
        place,
        f"${{{{ {part.source[:80]} }}}}: a value of type {part.result_type.lower()} inside a text",
        remedy="convert it with string(…), or let the expression be the whole string",
    )
    return False


def _rendered(part: str | Expression, scope: Mapping[str, Value], field: str) -> str:
    if isinstance(part, str):
        return part
    value = part.evaluate(scope, field=field)
    try:
        return as_text(value)
    except Unusable as error:
        raise ExpressionFailed(part.source, field, error.reason) from error
