"""From a definition file, or a `Definition`, to something that can be started."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tallystick.core.definition import Definition, Description
from tallystick.core.graph import Plan
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
        return _compiled(Path(source))[2]

    def _of_object(self, desk: Desk, source: Definition, root: Path | None) -> Prepared:
        for known, under, at, prepared in self._objects:
            if known is source and under == root and at is desk:
                return prepared
        prepared = desk.prepare(Plan(source), root=root)
        self._objects = [*self._objects[1 - PREPARED_MAX :], (source, root, desk, prepared)]
        return prepared

    def _of_file(self, desk: Desk, path: Path, root: Path | None) -> Prepared:
        stamp = _stamp(path)
        known = self._files.get((str(path), root))
        if known is not None and known[0] == stamp:
            return known[1]
        definition, description, problems = _compiled(path)
        if definition is None:
            raise InvalidRequest(
                f"{path} has {len(problems)} problem(s): {problems[0]}",
                code="definition-invalid",
                check="definition",
                facts={"path": str(path), "problems": [str(problem) for problem in problems]},
                next_step=f"tally validate {path}",
            )
        folder = root or path.parent.resolve()
        prepared = desk.prepare(Plan(definition), root=folder, description=description)
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


def _compiled(path: Path) -> tuple[Definition | None, Description, Sequence[object]]:
    """What is in a file: a definition and no problem, or no definition and every problem.

    Raises `InvalidRequest` for a file that cannot be read.
    """
    from tallystick.core.compiler import compile_source  # only where a file is started
    from tallystick.core.diagnostics import SourceRefused

    try:
        compiled = compile_source(_read(path), str(path))
    except SourceRefused as refused:
        return None, Description(), refused.diagnostics
    return compiled.definition, compiled.description, ()


def _read(path: Path) -> bytes:
    """The bytes of a file. One that is too large is cut where the compiler sees that it is."""
    from tallystick.core.source import BYTES_MAX

    try:
        with path.open("rb") as file:
            return file.read(BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> InvalidRequest:
    return InvalidRequest(
        f"the definition {path} cannot be read: {error.strerror}",
        code="definition-unreadable",
        facts={"path": str(path)},
    )
