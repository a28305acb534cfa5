"""From the JSON of a step's `with:` to typed arguments, and from a result back to JSON.

`with:` is an object, and its keys are argument names. The annotations say what the values become:
dataclasses, msgspec Structs, TypedDict, enums, dates, Decimal, unions …, and pydantic models where
the user has them. Conversion is strict: a text is not a number, and 1 is not true. Nothing that
does not fit ever reaches the function.

The way back is the same by type: what a function returns is written as canonical JSON, and has to
read back as its return annotation.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from tallystick.core.values import encode
from tallystick.errors import InvalidRequest
from tallystick.executors.function.task import TaskContext

OUTPUT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Source: design, limits of values. Above it a result is `output_too_large`, never retried."""

_REFUSED_KINDS: Final[dict[object, str]] = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only, and arguments are passed by name",
    inspect.Parameter.VAR_POSITIONAL: "is positional, and arguments are passed by name",
}
_MISMATCH: Final = re.compile(
    r"^(?P<reason>.*?)(?: - at (?:key in )?`(?P<path>\$.*)`)?$", re.DOTALL
)


class ArgumentsRefused(ValueError):
    """The arguments do not fit the signature. The function was not called."""


class ResultRefused(ValueError):
    """The function ran, and what it returned is not what it declared or not JSON."""


class Signature:
    """What a function takes and gives, ready to be used many times.

    context  name of the parameter that gets the `TaskContext`, or None
    digest   hex SHA-256 over names, types and defaults' presence; docstrings do not count
    """

    def __init__(self, function: Callable[..., object], where: str) -> None:
        parameters = _parameters(function, where)
        hints = _hints(function, where)
        self.context = _context_of(parameters, hints)
        named = [p for p in parameters if p.kind is not p.VAR_KEYWORD and p.name != self.context]
        self._names = frozenset(p.name for p in named)
        self._rest = _rest_of(parameters, hints)
        self._model = _model(named, hints, closed=self._rest is None, where=where)
        self._decoder = _decoder(self._model, where)
        returns = hints.get("return", Any)
        self._checker = _checker(returns, f"the return type of {where}")
        self.digest = _digest(self._model, self._rest, returns)

    def arguments(self, text: bytes) -> dict[str, Any]:
        """Turn canonical JSON into keyword arguments; defaults fill what is missing.

        Raises:
            ArgumentsRefused: with the path of the first thing that does not fit.
        """
        try:
            if self._rest is not None:
                return self._open_arguments(text)
            return msgspec.structs.asdict(self._decoder.decode(text))
        except msgspec.ValidationError as error:
            raise ArgumentsRefused(_readable(str(error), argument=True)) from error
        except Exception as error:  # a type of the user's that fails on its own terms
            raise ArgumentsRefused(f"{type(error).__name__}: {error}") from error

    def misfit(self, names: Iterable[str]) -> str | None:
        """Why arguments of these names cannot be passed, in one sentence; None: they can."""
        given = set(names)
        if self._rest is None and (unknown := sorted(given - self._names)):
            return f"unknown argument {', '.join(unknown)}; it takes {self._taken()}"
        needed = {it.name for it in msgspec.structs.fields(self._model) if it.required}
        missing = sorted(needed - given)
        return f"argument {', '.join(missing)} is missing" if missing else None

    def _taken(self) -> str:
        return ", ".join(it.name for it in msgspec.structs.fields(self._model)) or "none"

    def result(self, value: object) -> bytes:
        """Turn what the function returned into canonical JSON.

        One above `OUTPUT_BYTES_MAX` is not read back: it is refused for its size, and reading it
        would cost as much memory again.

        Raises:
            ResultRefused: it does not satisfy the return annotation, or JSON cannot say it.
        """
        if inspect.isawaitable(value):
            raise ResultRefused(_never_awaited(value))
        try:
            plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_plain)
            output = encode(plain)
            if self._checker is not None and len(output) <= OUTPUT_BYTES_MAX:
                self._checker.decode(output)
            return output
        except msgspec.ValidationError as error:
            raise ResultRefused(_readable(str(error))) from error
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            text = str(error).removeprefix("$").removeprefix(".").removeprefix(": ")
            raise ResultRefused(text or type(error).__name__) from error

    def _open_arguments(self, text: bytes) -> dict[str, Any]:
        given = msgspec.json.decode(text)
        if not isinstance(given, dict):
            raise msgspec.ValidationError(f"Expected `object`, got `{type(given).__name__}`")
        known = {name: value for name, value in given.items() if name in self._names}
        rest = {name: value for name, value in given.items() if name not in self._names}
        fixed = msgspec.convert(known, self._model, str_keys=True, dec_hook=_custom)
        more = msgspec.convert(rest, dict[str, self._rest], str_keys=True, dec_hook=_custom)  # type: ignore[name-defined]  # a type known at run time
        return {**msgspec.structs.asdict(fixed), **more}


# ------------------------------------------------------------------------------ reading a signature


def _parameters(function: Callable[..., object], where: str) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise _unusable(
            where, "has no signature that Python can tell", "wrap it in a def"
        ) from error
    for parameter in signature.parameters.values():
        if (why := _REFUSED_KINDS.get(parameter.kind)) is not None:
            raise _unusable(
                where, f"parameter {parameter.name!r} {why}", "give it a name of its own"
            )
    return list(signature.parameters.values())


def _hints(function: Callable[..., object], where: str) -> dict[str, Any]:
    target = inspect.unwrap(function)
    if not (inspect.isroutine(target) or isinstance(target, type)):
        target = type(target).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception as error:
        raise _unusable(
            where,
            f"an annotation cannot be read: {error}",
            "import what it names at the top of the module, not only under TYPE_CHECKING",
        ) from error


def _context_of(parameters: list[inspect.Parameter], hints: Mapping[str, Any]) -> str | None:
    """A parameter of type `TaskContext`; or one named `ctx` that has no annotation."""
    for parameter in parameters:
        hint = hints.get(parameter.name)
        if hint is TaskContext or TaskContext in typing.get_args(hint):
            return parameter.name
        if parameter.name == "ctx" and hint is None:
            return parameter.name
    return None


def _rest_of(parameters: list[inspect.Parameter], hints: Mapping[str, Any]) -> object:
    """Type of the values of `**kwargs`. None: it takes none."""
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            return hints.get(parameter.name, Any)
    return None


def _model(
    named: list[inspect.Parameter], hints: Mapping[str, Any], *, closed: bool, where: str
) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for parameter in named:
        hint = hints.get(parameter.name, Any)
        _supported(hint, f"parameter {parameter.name!r} of {where}")
        default = parameter.default
        fields.append(
            (parameter.name, hint)
            if default is parameter.empty
            else (parameter.name, hint, _default(default))
        )
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=closed)


def _default(value: object) -> object:
    """The function's own default object, as Python passes it: shared, never copied."""
    return msgspec.field(default_factory=lambda: value)


def _decoder(model: type[msgspec.Struct], where: str) -> msgspec.json.Decoder[Any]:
    try:
        return msgspec.json.Decoder(model, dec_hook=_custom)
    except TypeError as error:  # pragma: no cover - each parameter was tried by itself
        raise _unusable(where, str(error), "use a type that JSON can be turned into") from error


def _checker(returns: object, where: str) -> msgspec.json.Decoder[Any] | None:
    """Reads a result back as the type that was promised. None: nothing was."""
    if returns in (Any, object, typing.NoReturn, typing.Never):
        return None
    _supported(returns, where)
    return msgspec.json.Decoder(returns, dec_hook=_custom)


def _supported(hint: object, where: str) -> None:
    """Refuse a type that no JSON can become, now and not at the first call."""
    try:
        strangers = list(_strangers(msgspec.inspect.type_info(hint), set()))
    except (TypeError, NameError, ValueError) as error:
        raise _unusable(where, str(error), "use a type that JSON can be turned into") from error
    if strangers:
        name = getattr(strangers[0], "__qualname__", str(strangers[0]))
        raise _unusable(
            where,
            f"JSON cannot become {'an' if name[0] in 'AEIOU' else 'a'} {name}",
            "use a dataclass, a Struct, a TypedDict, a pydantic model or a type of JSON",
        )


def _strangers(node: object, seen: set[int]) -> Iterator[type]:
    """Classes in a type that neither msgspec nor pydantic can make from JSON."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, msgspec.inspect.CustomType):
        if node.cls is not object and not _is_pydantic(node.cls):
            yield node.cls
    elif isinstance(node, tuple):
        for member in node:
            yield from _strangers(member, seen)
    elif isinstance(node, msgspec.inspect.Type | msgspec.inspect.Field):
        for name in node.__struct_fields__:
            yield from _strangers(getattr(node, name), seen)


def _unusable(where: str, why: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(
        f"{where} cannot be used in a task: {why}",
        code="task-signature",
        facts={"where": where, "reason": why},
        next_step=f"{remedy[0].upper()}{remedy[1:]}.",
    )


def _digest(model: type[msgspec.Struct], rest: object, returns: object) -> str:
    text = "\n".join(_shape(hint) for hint in (model, rest, returns))
    return hashlib.sha256(text.encode()).hexdigest()


def _shape(hint: object) -> str:
    """Write a type as its JSON schema, without what is written for people."""
    try:
        schema = msgspec.json.schema(hint, schema_hook=_schema_of_custom)
        return msgspec.json.encode(_without_prose(schema), order="sorted").decode()
    except (TypeError, ValueError, RuntimeError):
        return str(hint)


def _without_prose(schema: object) -> object:
    if isinstance(schema, list):
        return [_without_prose(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(required := schema.get("required"), list):
        schema = {**schema, "required": sorted(required)}  # the order of names means nothing
    return {
        key: _without_prose(value)
        for key, value in schema.items()
        if not (key in ("title", "description") and isinstance(value, str))
    }


# ------------------------------------------------------------------- pydantic, without importing it


def _is_pydantic(kind: object) -> bool:
    return isinstance(kind, type) and hasattr(kind, "__pydantic_validator__")


def _schema_of_custom(kind: Any) -> dict[str, Any]:  # noqa: ANN401  pydantic is never imported
    return dict(kind.model_json_schema()) if _is_pydantic(kind) else {}


def _custom(kind: Any, value: object) -> object:  # noqa: ANN401  pydantic is never imported
    """Make what msgspec does not know: pydantic models. The text of an error never holds values."""
    if kind is object:
        return value
    try:
        return kind.model_validate_json(msgspec.json.encode(value), strict=True)
    except ValueError as error:
        raise ValueError(_pydantic_text(error)) from error


def _pydantic_text(error: Any) -> str:  # noqa: ANN401  pydantic is never imported
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = ".".join(map(str, first["loc"]))
    return f"{path}: {first['msg']}" if path else str(first["msg"])


def _plain(value: Any) -> object:  # noqa: ANN401  pydantic is never imported
    """What msgspec cannot write by itself: pydantic models, and subclasses of plain types."""
    if _is_pydantic(type(value)):
        return value.model_dump(mode="json", by_alias=True)
    for plain in (str, int, float):
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(f"a {type(value).__name__} is not JSON")


# --------------------------------------------------------------------------------- what people read


def _readable(text: str, *, argument: bool = False) -> str:
    """`order.items[2].qty: expected int, got str`, from what msgspec says."""
    found = _MISMATCH.match(text)
    assert found is not None  # every text matches
    path, reason = (found["path"] or "$").removeprefix("$").lstrip("."), found["reason"]
    if argument and not path:
        reason = re.sub(
            r"^Object (missing|contains) (required|unknown) field", r"\2 argument", reason
        )
        reason = re.sub(r"^required argument (`\w+`)", r"argument \1 is missing", reason)
    reason = reason.replace("`", "") if reason.startswith("Expected") else reason
    reason = reason[:1].lower() + reason[1:]
    return f"{path}: {reason}" if path else reason


def _never_awaited(value: object) -> str:
    if inspect.iscoroutine(value):
        value.close()
    return (
        "it returned something to await, but was called like any function: nothing ran. "
        "Define the task with async def (a decorator around it as well)"
    )
