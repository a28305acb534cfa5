"""What can be said about a definition file before anything is started.

    file ─▶ compile ─▶ problems, warnings                     imports, calls and writes nothing
              └─▶ with `import_code`: each task is found ─▶ its effect, its retries, its arguments

Importing runs the code of the modules, so it is done only where it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from tallystick.core.compiler import compile_source
from tallystick.core.definition import Definition, Node, Retry
from tallystick.core.diagnostics import NOWHERE, Diagnostic, Place, Problems, SourceRefused
from tallystick.core.graph import retry_refusal
from tallystick.core.source import place_at
from tallystick.core.values import encode
from tallystick.core.yaml_reader import read_yaml
from tallystick.errors import InvalidRequest
from tallystick.executors.function.arguments import ArgumentsRefused
from tallystick.executors.function.resolve import ResolvedTask, resolve
from tallystick.surfaces.client.sources import read_source

EFFECT_DIFFERS = "effect-differs"
ARGUMENTS = "task-arguments"
UNDECLARED = "effect-undeclared"

Tasks: TypeAlias = Mapping[str, ResolvedTask | InvalidRequest | None]


@dataclass(frozen=True, slots=True)
class Validated:
    """What is to be said about a definition file. `problems` refuse it, `warnings` do not.

    definition, digest  None: the file itself has problems · digest: hex
    """

    definition: Definition | None
    digest: str | None
    problems: tuple[Diagnostic, ...]
    warnings: tuple[Diagnostic, ...]

    @property
    def valid(self) -> bool:
        """There are no problems."""
        return not self.problems

    @property
    def workflow(self) -> str | None:
        """Its name; None: the file itself has problems."""
        return None if self.definition is None else self.definition.workflow

    @property
    def steps(self) -> int:
        """How many steps it has; 0: the file itself has problems."""
        return 0 if self.definition is None else len(self.definition.root.nodes)


def validate(
    source: str | os.PathLike[str],
    *,
    import_code: bool = False,
    root: str | os.PathLike[str] | None = None,
) -> Validated:
    """Say everything that is wrong with a definition file, sorted by place. Writes nothing.

    Args:
        source: path of the file.
        import_code: also import its tasks, and check that they exist and take what they are given.
        root: folder that tasks are imported from. None: the file's own folder.

    Raises `InvalidRequest` if the file cannot be read.
    """
    path = Path(source)
    data = read_source(path)
    try:
        compiled = compile_source(data, str(path))
    except SourceRefused as refused:
        return Validated(None, None, refused.diagnostics, ())
    found = Validated(compiled.definition, compiled.digest, (), compiled.warnings)
    if not import_code:
        return found
    folder = path.parent.resolve() if root is None else Path(root)
    return _with_code(found, compiled.definition, data, str(path), folder)


def _with_code(
    found: Validated, definition: Definition, data: bytes, file: str, folder: Path
) -> Validated:
    tree = read_yaml(data, Problems(file))
    tasks = {node.id: _task(node, folder) for node in definition.root.nodes}
    problems: list[Diagnostic] = []
    warnings = [it for it in found.warnings if it.code != UNDECLARED or _silent(definition, tasks)]
    for at, node in enumerate(definition.root.nodes):
        for key, told in _told(node, tasks[node.id]):
            place = NOWHERE if tree is None else place_at(tree, ("steps", at, key))
            placed = _placed(told, file, place)
            (warnings if told.code == EFFECT_DIFFERS else problems).append(placed)
    return replace(
        found,
        problems=tuple(sorted(problems, key=_order)),
        warnings=tuple(sorted(warnings, key=_order)),
    )


def _task(node: Node, folder: Path) -> ResolvedTask | InvalidRequest | None:
    """The task of a step, or why it cannot be used; None: this kind of step has none."""
    if node.call is None:
        return None
    try:
        return resolve(node.call, folder)
    except InvalidRequest as refused:
        return refused


def _silent(definition: Definition, tasks: Tasks) -> bool:
    """Whether the effect of some step is said neither in the file nor by its task."""
    silent = [node for node in definition.root.nodes if node.call and node.effect is None]
    return any(getattr(tasks[node.id], "effect", None) is None for node in silent)


def _told(
    node: Node, task: ResolvedTask | InvalidRequest | None
) -> Iterator[tuple[str, Diagnostic]]:
    """What its code says about a step, each with the key of the step that it is about."""
    if task is None:
        return
    if isinstance(task, InvalidRequest):
        yield "call", Diagnostic(task.code, task.message, "", 0, 0, task.next_step)
        return
    effect = node.effect or task.effect or "mutating"
    if task.effect is not None and node.effect not in (None, task.effect):
        message = f"the file says `{node.effect}`, and the task's decorator `{task.effect}`"
        remedy = "the file wins; make them agree"
        yield "effect", Diagnostic(EFFECT_DIFFERS, message, "", 0, 0, remedy)
    if (wrong := retry_refusal(effect, node.retry or Retry())) is not None:
        yield "retry", Diagnostic("retry-repeats-effect", wrong[0], "", 0, 0, wrong[1])
    if (why := _misfit(task, node)) is not None:
        remedy = f"give it what `{node.call}` takes"
        yield "with", Diagnostic(ARGUMENTS, f"task {node.call}: {why}", "", 0, 0, remedy)


def _misfit(task: ResolvedTask, node: Node) -> str | None:
    """Why the task does not take these arguments: their names; where all are fixed their types."""
    given = node.inputs or {}
    why = task.signature.misfit(given)
    if why is not None or _computed(given):
        return why
    try:
        task.signature.arguments(encode(given))
    except ArgumentsRefused as refused:
        return str(refused)
    return None


def _computed(value: object) -> bool:
    if isinstance(value, str):
        return "${{" in value
    if isinstance(value, dict):
        return any(map(_computed, value.values()))
    return isinstance(value, list) and any(map(_computed, value))


def _placed(told: Diagnostic, file: str, place: Place) -> Diagnostic:
    return replace(told, file=file, line=place.line, column=place.column)


def _order(problem: Diagnostic) -> tuple[int, int, str]:
    return problem.line, problem.column, problem.code
