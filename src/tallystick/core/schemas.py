"""Values against their schemas.

Messages never quote values; below `sensitive: true` they name path and keyword only. Which schemas
may be used is in `schema_check`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tallystick.core.pointer import ROOT, Path, quote, render
from tallystick.core.references import Schema
from tallystick.core.schema_check import (
    IN_PLACE_MAX,
    IN_PLACE_WORDS,
    PROBLEMS_MAX,
    SENSITIVE,
    SchemaProblem,
    SchemaRefused,
    check_schema,
    compile_schema,
    parts_of,
    plain_schema,
    reachable_types,
    referred,
)
from tallystick.core.schema_words import sentence
from tallystick.core.values import Value, digest, encode

if TYPE_CHECKING:
    import jsonschema_rs

__all__ = [
    "Problem",
    "SchemaProblem",
    "SchemaRefused",
    "Validator",
    "Validators",
    "check_schema",
    "is_sensitive",
]

MANY_VALUES: Final = 10_000
"""In larger values only the first problem is looked for: finding all takes memory for each."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a value does not satisfy its schema. The message quotes no value."""

    path: Path
    message: str

    def __str__(self) -> str:
        """Write `$.path: message`."""
        return f"{render(self.path)}: {self.message}"


class Validator:
    """Applies one schema. Make it once and keep it: compiling costs more than validating.

    Raises `SchemaRefused` for a schema that `check_schema` refuses.
    """

    def __init__(self, schema: Schema, types: Mapping[str, Schema]) -> None:
        if problems := check_schema(schema, types):
            raise SchemaRefused(problems)
        self._schema = schema
        self._types = types
        self._library = compile_schema(schema, types)

    def validate(self, value: Value) -> tuple[Problem, ...]:
        """Return why the value does not satisfy the schema, in order of path; empty when it does.

        At most 32 problems; of a value with more than 10,000 parts, the first.
        """
        try:
            if self._library.is_valid(value):
                return ()
            errors = self._errors(value)
        except ValueError as error:  # a lone surrogate, a key that is no string, too deep
            return (Problem(ROOT, f"not a JSON value ({type(error).__name__})"),)
        found = {self._problem(error, value) for error in errors}
        return tuple(sorted(found, key=_order)[:PROBLEMS_MAX])

    def _errors(self, value: Value) -> "Iterator[jsonschema_rs.ValidationError]":
        import jsonschema_rs

        if not _is_large(value):
            yield from self._library.iter_errors(value)
            return
        try:
            self._library.validate(value)
        except jsonschema_rs.ValidationError as error:
            yield error

    def _problem(self, error: "jsonschema_rs.ValidationError", value: Value) -> Problem:
        path = tuple(error.instance_path)
        if is_sensitive(self._schema, path, self._types):
            return Problem(path, f"a sensitive value does not satisfy {quote(error.kind.name)}")
        return Problem(path, sentence(error, _part(value, path)))


class Validators:
    """Compiled validators by schema, for an owner that meets the same schemas again.

    Holds at most `size_max`; the one that was used longest ago goes first.
    """

    def __init__(self, size_max: int = 1_024) -> None:
        self._size_max = size_max
        self._known: dict[bytes, Validator] = {}

    def get(self, schema: Schema, types: Mapping[str, Schema]) -> Validator:
        """Return the validator of a schema. Raises `SchemaRefused` as `Validator` does."""
        key = digest(encode([plain_schema(schema), plain_schema(reachable_types(schema, types))]))
        found = self._known.pop(key, None) or Validator(schema, types)
        self._known[key] = found
        if len(self._known) > self._size_max:
            del self._known[next(iter(self._known))]
        return found


def is_sensitive(schema: Schema, path: Path, types: Mapping[str, Schema]) -> bool:
    """Whether the schema marks the place, or one that contains it, as sensitive."""
    here: list[Mapping[str, object]] = list(_applied(schema, types))
    for key in path:
        if any(known.get(SENSITIVE) is True for known in here):
            return True
        below = [part for known in here for part in _below(known, key)]
        here = [known for part in below[:IN_PLACE_MAX] for known in _applied(part, types)]
    return any(known.get(SENSITIVE) is True for known in here)


def _applied(schema: object, types: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """Yield the schemas that are about the same value, each type once."""
    seen: set[str] = set()
    stack = [schema]
    while stack:
        item = stack.pop()
        if not isinstance(item, Mapping):
            continue
        yield item
        stack.extend(part for path, part in parts_of(item) if path[0] in IN_PLACE_WORDS)
        name = referred(item)
        if name is not None and name not in seen:
            seen.add(name)
            stack.append(types.get(name))


def _below(schema: Mapping[str, object], key: str | int) -> Iterator[object]:
    """Yield the schemas that may be about the part of a value under `key`."""
    if isinstance(key, int):
        prefix = schema.get("prefixItems")
        if isinstance(prefix, (list, tuple)) and key < len(prefix):
            yield prefix[key]
        yield from (schema.get(word) for word in ("items", "contains", "unevaluatedItems"))
        return
    for word in ("properties", "patternProperties"):
        named = schema.get(word)
        if isinstance(named, Mapping):
            # Which patterns match is not asked: a mark too many hides more, never less.
            yield from named.values() if word == "patternProperties" else [named.get(key)]
    yield from (schema.get(word) for word in ("additionalProperties", "unevaluatedProperties"))


def _order(problem: Problem) -> tuple[str, str]:
    return render(problem.path), problem.message


def _is_large(value: Value) -> bool:
    """Whether a value has more than `MANY_VALUES` parts."""
    stack, count = [value], 0
    while stack:
        item = stack.pop()
        if isinstance(item, (list, dict)):
            count += len(item)
            if count > MANY_VALUES:
                return True
            stack.extend(item if isinstance(item, list) else item.values())
    return False


def _part(value: Value, path: Path) -> Value:
    for key in path:
        if isinstance(value, dict) and isinstance(key, str):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int):
            value = value[key]
    return value
