"""Import roots: two folders that each have a `shop.py`, in one process.

A definition's tasks are imported from the folder of its file. Python knows one module per name, so
the second `shop` would silently be the first one. There are two ways in, and the folder decides:

    shared    no top-level name of the folder means anything else in this process: the folder goes
              to the end of `sys.path`, and `import shop` is the same module for everybody. An
              application that embeds the engine and imports `shop` itself sees the engine's copy.
    private   a name clashes: the folder becomes a package of its own (`_tally_root_1f3a…`), and an
              `import` statement inside it finds the folder's modules first.

The private way rests on one documented property of CPython: an `import` statement calls the
`__import__` of its module's `__builtins__`. What it does not cover fails loudly instead of finding
the other folder's module: `importlib.import_module("shop")` inside such a folder.

The table below is per process because `sys.modules` is.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.abc
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

PRIVATE: Final = "_tally_root_"
NOT_FOR_TASKS: Final = frozenset({"__main__", "conftest", "noxfile", "setup"})
"""Modules that many folders have and no task imports: no reason to call it a clash."""

_lock = threading.RLock()
_prefixes: dict[str, str] = {}


def import_from(root: Path | None, name: str) -> ModuleType:
    """Import a module by its dotted name as seen from this folder. None: from the process's path.

    Raises whatever the import raises.
    """
    if root is None:
        return importlib.import_module(name)
    with _lock:
        prefix = _prefix_of(os.path.realpath(root))
        if prefix and _has(Path(sys.modules[prefix].__path__[0]), _top(name)):
            return importlib.import_module(f"{prefix}.{name}")
        return importlib.import_module(name)


def _prefix_of(folder: str) -> str:
    """The package that stands for this folder, or "" if it is shared. Decided once per process."""
    if folder not in _prefixes:
        clash = any(_means_something_else(name, folder) for name in _names_in(folder))
        _prefixes[folder] = _make_private(folder) if clash else _share(folder)
    return _prefixes[folder]


def _share(folder: str) -> str:
    if folder not in map(os.path.realpath, sys.path):
        sys.path.append(folder)
    importlib.invalidate_caches()
    return ""


def _make_private(folder: str) -> str:
    name = PRIVATE + hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    package = ModuleType(name, f"The import root {folder}.")
    package.__path__ = [folder]
    sys.modules[name] = package
    if not any(isinstance(finder, _PrivateFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PrivateFinder())
    return name


def _names_in(folder: str) -> Iterator[str]:
    """Top-level module and package names that this folder offers."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        name, dot, ending = entry.name.partition(".")
        source = dot and ending == "py"
        if name not in NOT_FOR_TASKS and (source or Path(entry.path, "__init__.py").is_file()):
            yield name


def _means_something_else(name: str, folder: str) -> bool:
    """Whether `import name` gives this process something that is not in the folder."""
    if (module := sys.modules.get(name)) is not None:
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    else:
        spec = _find(name)
        places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
        if not spec:
            return False
    return not any(
        place and os.path.realpath(place).startswith(folder + os.sep) for place in places
    )


def _find(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _has(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


def _top(name: str) -> str:
    return name.partition(".")[0]


class _PrivateFinder(importlib.abc.MetaPathFinder):
    """Finds modules of private roots as usual, and has them loaded with their own `__import__`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(PRIVATE):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _PrivateLoader(spec.loader.name, spec.loader.path)
        return spec


class _PrivateLoader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        prefix = _top(module.__name__)
        own = {**vars(builtins), "__import__": _import_of(prefix)}
        module.__dict__["__builtins__"] = own
        super().exec_module(module)


def _import_of(prefix: str) -> Callable[..., Any]:
    """The `__import__` of a private root: its own modules first, then everybody's."""
    folder = Path(sys.modules[prefix].__path__[0])

    def private_import(
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002  the name `__import__` gives it
        locals: Mapping[str, object] | None = None,  # noqa: A002  the same
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level or not _has(folder, _top(name)):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = builtins.__import__(
            f"{prefix}.{name}", globals, locals, fromlist or ("__name__",), 0
        )
        return module if fromlist else sys.modules[f"{prefix}.{_top(name)}"]

    return private_import
