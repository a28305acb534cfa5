"""From a definition file, or a `Definition`, to something that can be started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TypeAlias

from tallystick.core.compiler import Compiled, compile_source
from tallystick.core.definition import Definition
from tallystick.core.diagnostics import Diagnostic, Finding, SourceRefused
from tallystick.core.graph import Plan
from tallystick.core.soundness import problems
from tallystick.core.source import BYTES_MAX
from tallystick.engine.admission import Desk, Prepared
from tallystick.errors import Fact, InvalidRequest

Stamp: TypeAlias = tuple[int, int, int]
"""What tells whether a file is still the same: time, size, inode."""

PREPARED_MAX: Final = 64
"""Definitions that are kept ready to start; a file that changed is read again."""


class Sources:
    """Definitions as they are started. root: folder of tasks; None: each file's own folder."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._compiled: dict[Path, tuple[Stamp, Compiled]] = {}
        self._files: dict[tuple[str, Path | None], tuple[Stamp, Prepared]] = {}
        self._objects: list[tuple[Definition, Path | None, Desk, Prepared]] = []

    def prepared(
        self, desk: Desk, source: str | os.PathLike[str] | Definition, root: Path | None
    ) -> Prepared:
        """The definition, compiled and bound. Raises `InvalidRequest`."""
        if isinstance(source, Definition):
            return self._of_object(desk, source, root or self._root)
        return self._of_file(desk, Path(source), root or self._root)

    def compiled(self, path: Path) -> Compiled:
        """The definition file, compiled; kept, as long as the file stays as it is."""
        stamp = _stamp(path)
        known = self._compiled.get(path)
        if known is None or known[0] != stamp:
            if len(self._compiled) >= PREPARED_MAX:
                self._compiled.pop(next(iter(self._compiled)))
            known = self._compiled[path] = (stamp, compiled_file(path))
        return known[1]

    def _of_object(self, desk: Desk, source: Definition, root: Path | None) -> Prepared:
        for known, under, at, prepared in self._objects:
            if known is source and under == root and at is desk:
                return prepared
        found = problems(source)
        if found:
            raise InvalidRequest(
                f"the definition {source.workflow!r} cannot run: {found[0]}",
                code="definition-invalid",
                check="definition",
                facts={"problems": [problem_fact(_told(it, source.workflow)) for it in found]},
            )
        prepared = desk.prepare(Plan(source), root=root)
        self._objects = [*self._objects[1 - PREPARED_MAX :], (source, root, desk, prepared)]
        return prepared

    def _of_file(self, desk: Desk, path: Path, root: Path | None) -> Prepared:
        stamp = _stamp(path)
        known = self._files.get((str(path), root))
        if known is not None and known[0] == stamp:
            return known[1]
        compiled = self.compiled(path)
        plan = Plan(compiled.definition)
        prepared = desk.prepare(
            plan, root=root or path.parent.resolve(), description=compiled.description
        )
        if len(self._files) >= PREPARED_MAX:
            self._files.pop(next(iter(self._files)))
        self._files[str(path), root] = (stamp, prepared)
        return prepared


def compiled_file(path: Path) -> Compiled:
    """Read and compile a definition file. Raises `InvalidRequest` with all its problems."""
    try:
        return compile_source(read_source(path), str(path))
    except SourceRefused as refused:
        raise _refused(path, refused) from refused


def read_source(path: Path) -> bytes:
    """The bytes of a definition file; of one that is too large as many as show that.

    Raises `InvalidRequest`.
    """
    try:
        with path.open("rb") as file:
            return file.read(BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def problem_fact(problem: Diagnostic) -> dict[str, Fact]:
    """A problem as plain JSON; line and column from 1, 0: the source as a whole."""
    return {
        "file": problem.file,
        "line": problem.line,
        "column": problem.column,
        "code": problem.code,
        "message": problem.message,
        "remedy": problem.remedy,
    }


def _told(finding: Finding, workflow: str) -> Diagnostic:
    """A problem of a definition that has no source: its place is a path of the language."""
    where = ".".join(map(str, finding.path))
    message = f"{where}: {finding.message}" if where else finding.message
    return Diagnostic(finding.code, message, workflow, 0, 0, finding.remedy)


def _stamp(path: Path) -> Stamp:
    try:
        seen = path.stat()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


def _unreadable(path: Path, error: OSError | ValueError) -> InvalidRequest:
    why = getattr(error, "strerror", None) or str(error)
    return InvalidRequest(
        f"the definition {path} cannot be read: {why}",
        code="definition-unreadable",
        check="definition",
        facts={"path": str(path)},
        next_step="name a definition file, YAML",
    )


def _refused(path: Path, refused: SourceRefused) -> InvalidRequest:
    found = refused.diagnostics
    return InvalidRequest(
        f"{path} has {len(found)} problem{'s' if len(found) > 1 else ''}: {found[0]}",
        code="definition-invalid",
        check="definition",
        facts={"path": str(path), "problems": [problem_fact(problem) for problem in found]},
        next_step=f"repair them, then: tally validate {path}",
    )
