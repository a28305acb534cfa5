"""What the expressions of a definition use, and what is wrong with them in themselves.

Each distinct text is compiled once, with the declared schemas as types. Whether a step that is used
is over by then is the business of `soundness`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET

from tallystick.core.definition import Definition, Json, Node
from tallystick.core.diagnostics import NOWHERE, SHOWN_MAX, Finding, Problems
from tallystick.core.expressions import Template, compile_template
from tallystick.core.fields import names_of
from tallystick.core.pointer import Path
from tallystick.core.templates import OPENING
from tallystick.core.values import ValueRefused, encode

COMPUTED_MAX: Final = 10_000
"""Distinct expressions that compute: each takes CEL about a millisecond to compile."""


@dataclass(frozen=True, slots=True)
class Usage:
    """A string with expressions.

    path      where it is · step: position of the step it belongs to; None: the run's output
    template  compiled; None when it has problems of its own
    """

    path: Path
    step: int | None
    template: Template | None


@dataclass(frozen=True, slots=True)
class Usages:
    """Every string with expressions of one definition, and the problems of compiling them."""

    found: tuple[Usage, ...]
    problems: tuple[Finding, ...]


def usages(definition: Definition) -> Usages:
    """Compile every expression of a definition.

    It ends early where there are more problems than would be shown.
    """
    compiler = _Compiler(definition)
    found: list[Usage] = []
    for path, step, value in _fields(definition):
        if (refused := _refused(value, path)) is not None:
            compiler.problems.append(refused)
            continue
        for below, text in _texts(value):
            found.append(Usage((*path, *below), step, compiler.compiled(text, (*path, *below))))
            if compiler.is_over:
                return Usages(tuple(found), tuple(compiler.problems))
    return Usages(tuple(found), tuple(compiler.problems))


class _Compiler:
    """Compiles each distinct text once; its problems are told at every place that has it."""

    def __init__(self, definition: Definition) -> None:
        self._names = names_of(definition)
        self._known: dict[str, tuple[Template | None, tuple[Finding, ...]]] = {}
        self._computed = 0
        self.problems: list[Finding] = []
        self.is_over = False

    def compiled(self, text: str, path: Path) -> Template | None:
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._compile(text)
            if self._computed > COMPUTED_MAX:
                message = f"more than {COMPUTED_MAX:,} different expressions compute something"
                self._end(Finding("too-many-expressions", path, message, "split the workflow"))
        template, problems = known
        for problem in problems:
            self.problems.append(Finding(problem.code, path, problem.message, problem.remedy))
        if len(self.problems) > SHOWN_MAX:
            self.is_over = True
        return template

    def _compile(self, text: str) -> tuple[Template | None, tuple[Finding, ...]]:
        problems = Problems("")
        template = compile_template(text, self._names, problems, NOWHERE)
        if template is None or not all(map(_is_bare, template.parts)):
            self._computed += 1
        found = problems.diagnostics()
        return template, tuple(Finding(it.code, (), it.message, it.remedy) for it in found)

    def _end(self, problem: Finding) -> None:
        self.problems.append(problem)
        self.is_over = True


def _is_bare(part: object) -> bool:
    return isinstance(part, str) or bool(getattr(part, "is_bare", False))


def _fields(definition: Definition) -> Iterator[tuple[Path, int | None, Json]]:
    for at, node in enumerate(definition.root.nodes):
        for name, value in _of_node(node):
            yield ("steps", at, name), at, value
    if definition.output is not UNSET:
        yield ("output",), None, definition.output


def _of_node(node: Node) -> Iterator[tuple[str, Json]]:
    if node.when is not None:
        yield "when", node.when
    if node.inputs is not None:
        yield "with", node.inputs
    if node.message is not None:
        yield "fail", node.message
    if node.value is not UNSET:
        yield "succeed", node.value


def _refused(value: Json, path: Path) -> Finding | None:
    """Say where a value is no JSON. One that a source held always is."""
    try:
        encode(value)
    except ValueRefused as error:
        return Finding("value-not-json", (*path, *error.path), error.reason)
    return None


def _texts(value: Json) -> Iterator[tuple[Path, str]]:
    """Yield every string that holds an expression, in the order written."""
    stack: list[tuple[Path, Json]] = [((), value)]
    while stack:
        path, item = stack.pop()
        if isinstance(item, str):
            if OPENING in item:
                yield path, item
        elif isinstance(item, dict):
            stack.extend([((*path, key), part) for key, part in reversed(item.items())])
        elif isinstance(item, (list, tuple)):
            stack.extend([((*path, at), item[at]) for at in reversed(range(len(item)))])
