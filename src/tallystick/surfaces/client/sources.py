"""From a definition file, or a `Definition`, to something that can be started."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tallystick.core.compiler import Compiled, compile_source
from tallystick.core.definition import Definition
from tallystick.core.diagnostics import SourceRefused
from tallystick.core.graph import Plan
from tallystick.core.soundness import problems
from tallystick.core.source import BYTES_MAX
from tallystick.engine.admission import Desk, Prepared
from tallystick.errors import InvalidRequest

PREPARED_MAX: Final = 64
"""Definitions that are kept ready to start; a file that changed is read again."""


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

    def problems(self, source: str | os.PathLike[str]) -> Sequence[object]:
        """Every problem of a file, without importing anything."""
        try:
            _compiled(Path(source))
        except SourceRefused as refused:
            return refused.diagnostics
        return ()

    def _of_object(self, desk: Desk, source: Definition, root: Path | None) -> Prepared:
        for known, under, at, prepared in self._objects:
            if known is source and under == root and at is desk:
                return prepared
        if found := problems(source):
            raise _invalid(source.workflow, found, None)
        prepared = desk.prepare(Plan(source), root=root)
        self._objects = [*self._objects[1 - PREPARED_MAX :], (source, root, desk, prepared)]
        return prepared

    def _of_file(self, desk: Desk, path: Path, root: Path | None) -> Prepared:
        stamp = _stamp(path)
        known = self._files.get((str(path), root))
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            compiled = _compiled(path)
        except SourceRefused as refused:
            next_step = f"tally validate {path}"
            raise _invalid(str(path), refused.diagnostics, next_step) from refused
        folder = root or path.parent.resolve()
        prepared = desk.prepare(
            Plan(compiled.definition), root=folder, description=compiled.description
        )
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


def _compiled(path: Path) -> Compiled:
    """Compile a file. Raises `InvalidRequest` if it cannot be read, else as `compile_source`."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)  # one byte more is enough to be refused
    except OSError as error:
        raise _unreadable(path, error) from error
    return compile_source(data, str(path))


def _unreadable(path: Path, error: OSError) -> InvalidRequest:
    return InvalidRequest(
        f"the definition {path} cannot be read: {error.strerror}",
        code="definition-unreadable",
        facts={"path": str(path)},
    )


def _invalid(name: str, problems: Sequence[object], next_step: str | None) -> InvalidRequest:
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return InvalidRequest(
        f"{name} has {count}: {problems[0]}",
        code="definition-invalid",
        check="definition",
        facts={"definition": name, "problems": [str(problem) for problem in problems]},
        next_step=next_step,
    )
