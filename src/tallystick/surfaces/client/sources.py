"""From a definition file, or a `Definition`, to something that can be started."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tallystick.core.compiler import compile_source
from tallystick.core.definition import Definition
from tallystick.core.diagnostics import Diagnostic, SourceRefused
from tallystick.core.graph import Plan
from tallystick.core.soundness import problems
from tallystick.engine.admission import Desk, Prepared
from tallystick.errors import InvalidRequest

SOURCE_BYTES_MAX: Final = 2 * 1024 * 1024
"""One byte more is read, so that the compiler says what is wrong. Source: design §9."""

PREPARED_MAX: Final = 64
"""Definitions that are kept ready to start; a file that changed is read again."""


@dataclass(frozen=True, slots=True)
class Validated:
    """What is to be said about a definition file. `problems` refuse it, `warnings` do not.

    definition, digest  None: there are problems
    """

    definition: Definition | None
    digest: str | None
    problems: tuple[Diagnostic, ...]
    warnings: tuple[Diagnostic, ...]


def validate(source: str | os.PathLike[str]) -> Validated:
    """Compile a definition file and say everything that is wrong with it, sorted by place.

    Imports, calls and writes nothing. Raises `InvalidRequest` if the file cannot be read.
    """
    path = Path(source)
    try:
        compiled = compile_source(_read(path), str(path))
    except SourceRefused as refused:
        return Validated(None, None, refused.diagnostics, ())
    return Validated(compiled.definition, compiled.digest, (), compiled.warnings)


class Sources:
    """Definitions as they are started. root: folder of tasks; None: each file's own folder."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._files: dict[tuple[str, Path | None], tuple[tuple[int, int, int], Prepared]] = {}
        self._objects: list[tuple[Definition, Path | None, Desk, Prepared]] = []

    def prepared(
        self, desk: Desk, source: str | os.PathLike[str] | Definition, root: Path | None
    ) -> Prepared:
        """The definition, compiled and bound. Raises `InvalidRequest`."""
        if isinstance(source, Definition):
            return self._of_object(desk, source, root or self._root)
        return self._of_file(desk, Path(source), root or self._root)

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
                facts={"problems": [str(finding) for finding in found]},
            )
        prepared = desk.prepare(Plan(source), root=root)
        self._objects = [*self._objects[1 - PREPARED_MAX :], (source, root, desk, prepared)]
        return prepared

    def _of_file(self, desk: Desk, path: Path, root: Path | None) -> Prepared:
        stamp = _stamp(path)
        known = self._files.get((str(path), root))
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            compiled = compile_source(_read(path), str(path))
        except SourceRefused as refused:
            raise _refused(path, refused) from refused
        folder = root or path.parent.resolve()
        plan = Plan(compiled.definition)
        prepared = desk.prepare(plan, root=folder, description=compiled.description)
        if len(self._files) >= PREPARED_MAX:
            self._files.pop(next(iter(self._files)))
        self._files[str(path), root] = (stamp, prepared)
        return prepared


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        seen = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(SOURCE_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> InvalidRequest:
    return InvalidRequest(
        f"the definition {path} cannot be read: {error.strerror}",
        code="definition-unreadable",
        check="definition",
        facts={"path": str(path)},
    )


def _refused(path: Path, refused: SourceRefused) -> InvalidRequest:
    found = refused.diagnostics
    return InvalidRequest(
        f"{path} has {len(found)} problem{'s' if len(found) > 1 else ''}: {found[0]}",
        code="definition-invalid",
        check="definition",
        facts={"path": str(path), "problems": [str(problem) for problem in found]},
        next_step=f"tally validate {path}",
    )
