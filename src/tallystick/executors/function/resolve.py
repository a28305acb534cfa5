"""From "module:function" and a folder to something that can be called.

Every refusal here says what is wrong, where, and what to do; nothing was written, and what was
imported stays imported.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, Literal, TypeAlias

from tallystick.core.definition import Effect
from tallystick.errors import InvalidRequest
from tallystick.executors.function.arguments import Signature
from tallystick.executors.function.roots import PRIVATE, import_from
from tallystick.executors.function.task import options_of

Mode: TypeAlias = Literal["async", "thread", "transactional"]

_NAME: Final = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")

_LAMBDA: Final = ("is a lambda, which has no name of its own", "define it with def in a module")


@dataclass(frozen=True, slots=True)
class ResolvedTask:
    """A task that was found.

    effect        what the decorator says. None: it is silent
    max_attempts  what the decorator says. None: it is silent
    contract      digest of the signature (hex): changes with names and types, not with prose
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    effect: Effect | None
    max_attempts: int | None
    signature: Signature

    @property
    def contract(self) -> str:
        """Digest of the signature, hex."""
        return self.signature.digest

    @property
    def mode(self) -> Mode:
        """How it runs if the decorator's effect holds."""
        return self.mode_under(self.effect)

    def mode_under(self, effect: Effect | None) -> Mode:
        """How it runs under the effect that was bound: the file's wins over the decorator's."""
        if effect == "transactional":
            return "transactional"
        return "async" if self.is_async else "thread"


def resolve(task_name: str, root: Path | None) -> ResolvedTask:
    """Find a task by its importable name.

    Args:
        task_name: `module:function`; both parts may be dotted (`shop.orders:Orders.charge`).
        root: folder that is looked in first, the definition file's. None: the process's own path.

    Raises:
        InvalidRequest: it cannot be imported, is not there, or cannot be called with JSON.
    """
    module_name, function_name = _split(task_name)
    module = _import(task_name, module_name, root)
    function = _member(task_name, module, function_name)
    _check_kind(task_name, function)
    options = options_of(function)
    return ResolvedTask(
        name=task_name,
        function=function,
        is_async=_is_async(function),
        effect=options.effect,
        max_attempts=options.max_attempts,
        signature=Signature(function, task_name),
    )


def task_name(function: Callable[..., object]) -> str:
    """The name under which a function can be found again after a restart: `module:function`.

    Raises:
        InvalidRequest: a lambda, a local function or one of `__main__`: no other process finds it.
    """
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise _refused(f"{function!r}", "has no importable name", "define it with def in a module")
    _check_findable(f"{module}:{name}")
    return f"{module}:{name}"


def _split(name: str) -> tuple[str, str]:
    _check_findable(name)
    if not _NAME.fullmatch(name):
        raise _refused(
            name, "is not of the form module:function", "write, for example, call: shop:charge"
        )
    module, _, function = name.partition(":")
    return module, function


def _check_findable(name: str) -> None:
    if "<lambda>" in name:
        raise _refused(name, *_LAMBDA)
    if "<locals>" in name:
        raise _refused(
            name,
            "is defined inside another function, and gone when the process ends",
            "move it to the top level of its module",
        )
    if name.partition(":")[0] == "__main__":
        raise _refused(
            name,
            "lies in __main__, which is another module in every process",
            "move it into a module of its own, beside the definition file",
        )


def _import(name: str, module: str, root: Path | None) -> ModuleType:
    where = f"in {root}" if root is not None else "on the import path"
    try:
        return import_from(root, module)
    except ModuleNotFoundError as error:
        if _is_itself(module, error.name or ""):
            raise _refused(
                name,
                f"there is no module {module!r} {where}",
                "check the spelling; tasks are imported from the folder of the definition file, "
                "or from --root",
                code="task-import",
            ) from error
        raise _refused(
            name,
            f"importing {module!r} {where} failed: {error}",
            "install what it imports, or put it beside the definition file",
            code="task-import",
        ) from error
    except (Exception, SystemExit) as error:
        raise _refused(
            name,
            f"importing {module!r} {where} failed: {type(error).__name__}: {error}",
            f"make `python -c 'import {module}'` work in that folder",
            code="task-import",
        ) from error


def _is_itself(module: str, missing: str) -> bool:
    """Whether the module that was not found is the task's own (or a package around it)."""
    missing = missing.partition(".")[2] if missing.startswith(PRIVATE) else missing
    return module == missing or module.startswith(f"{missing}.")


def _member(name: str, module: ModuleType, path: str) -> Any:  # noqa: ANN401  whatever is there
    found: Any = module
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise _refused(
                name,
                f"there is no {path!r} in {module.__file__ or module.__name__}",
                "check the spelling, and that it is defined at the top level",
                code="task-missing",
            ) from error
    return found


def _check_kind(name: str, function: Any) -> None:  # noqa: ANN401  whatever was found
    if isinstance(function, type) or not callable(function):
        kind = "class" if isinstance(function, type) else type(function).__name__
        raise _refused(name, f"is a {kind}, and not a function", "name a function")
    if getattr(function, "__name__", "") == "<lambda>":
        raise _refused(name, *_LAMBDA)
    called = function if inspect.isroutine(function) else type(function).__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise _refused(name, "is a generator", "return one value, for example a list")
    if inspect.isfunction(function) and _takes_self(function):
        raise _refused(name, "is a method and needs an object", "make it a function")


def _takes_self(function: FunctionType) -> bool:
    in_class = "." in function.__qualname__.rpartition("<locals>.")[2]
    return in_class and next(iter(inspect.signature(function).parameters), "") == "self"


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or (
        not inspect.isroutine(function) and inspect.iscoroutinefunction(type(function).__call__)
    )


def _refused(name: str, why: str, remedy: str, *, code: str = "task-name") -> InvalidRequest:
    return InvalidRequest(
        f"task {name}: {why}",
        code=code,
        facts={"task": name},
        next_step=f"{remedy[0].upper()}{remedy[1:]}.",
    )
