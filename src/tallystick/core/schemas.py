"""JSON Schema 2020-12, checked when a definition is compiled and applied to values.

A schema may refer to the definition's named types, as `{"$ref": "#/types/Name"}`, and to nothing
else: the library would fetch addresses and open files while it compiles, so every other reference
is a compile error, and its retriever refuses as well. Names come from the `types` block; types
may refer to each other and to themselves.

Stricter than the standard in this: an unknown keyword is an error, because a misspelled one would
check nothing (`x-…` is free for notes); `$id`, anchors and dynamic references do not exist;
regular expressions take linear time, so they have no look-around and no back-references. `format`
is a note, as the standard says. `sensitive: true` marks a value that must never be shown.

Messages never quote values. Below `sensitive` they name path and keyword only.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tallystick.core.pointer import ROOT, Path, quote, render
from tallystick.core.references import Schema
from tallystick.core.values import Value, ValueRefused, digest, encode

if TYPE_CHECKING:
    import jsonschema_rs

SCHEMA_NODES_MAX: Final = 10_000
IN_PLACE_DEPTH_MAX: Final = 64
IN_PLACE_MAX: Final = 1_000
"""Schemas that one value may have to meet at once, references followed each time."""

PROBLEMS_MAX: Final = 32
MANY_VALUES: Final = 10_000
"""In larger values only the first problem is looked for: finding all takes memory for each."""

SENSITIVE: Final = "sensitive"
TYPE_REFERENCE: Final = re.compile(r"#/types/([A-Za-z_][A-Za-z0-9_-]*)", re.ASCII)

_ONE: Final = frozenset({
    "additionalProperties", "items", "contains", "not", "if", "then", "else", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_MANY: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs"})
_PLAIN: Final = frozenset({
    "$ref", "$schema", "$comment", "type", "enum", "const", "multipleOf", "maximum",
    "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength", "minLength", "pattern",
    "maxItems", "minItems", "uniqueItems", "maxContains", "minContains", "maxProperties",
    "minProperties", "required", "dependentRequired", "title", "description", "default",
    "deprecated", "readOnly", "writeOnly", "examples", "format", SENSITIVE,
})  # fmt: skip
_FORBIDDEN: Final = frozenset({
    "$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor",
    "$vocabulary",
})  # fmt: skip
_IN_PLACE: Final = frozenset({
    "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas",
})  # fmt: skip
"""Keywords whose schemas are about the same value, not about a part of it."""

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """What is wrong with a schema: a diagnostic code, where in the schema, and one sentence."""

    code: str
    path: Path
    message: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a value does not satisfy its schema. The message quotes no value."""

    path: Path
    message: str

    def __str__(self) -> str:
        """Write `$.path: message`."""
        return f"{render(self.path)}: {self.message}"


class SchemaRefused(ValueError):
    """The schema cannot be used. `problems` is never empty."""

    def __init__(self, problems: Sequence[SchemaProblem]) -> None:
        super().__init__("; ".join(f"{render(item.path)}: {item.message}" for item in problems))
        self.problems = tuple(problems)


def check_schema(schema: object, types: Mapping[str, object]) -> tuple[SchemaProblem, ...]:
    """Return everything that is wrong with a schema, in order of place; at most 32.

    `types` are the definition's named types, each of which is checked by a call of its own.
    """
    problems = _keyword_problems(schema, types)
    if not problems:
        problems = _standard_problems(schema)
    if not problems:
        problems = _compile_problems(schema, types)
    return tuple(problems[:PROBLEMS_MAX])


class Validator:
    """Applies one schema. Make it once and keep it: compiling costs more than validating.

    Raises `SchemaRefused` for a schema that `check_schema` refuses.
    """

    def __init__(self, schema: Schema, types: Mapping[str, Schema]) -> None:
        if problems := check_schema(schema, types):
            raise SchemaRefused(problems)
        self._schema = schema
        self._types = types
        self._library = _compile(schema, types)

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
        return Problem(path, _sentence(error, _part(value, path)))


class Validators:
    """Compiled validators by schema, for an owner that meets the same schemas again.

    Holds at most `size_max`; the one that was used longest ago goes first.
    """

    def __init__(self, size_max: int = 1_024) -> None:
        self._size_max = size_max
        self._known: dict[bytes, Validator] = {}

    def get(self, schema: Schema, types: Mapping[str, Schema]) -> Validator:
        """Return the validator of a schema. Raises `SchemaRefused` as `Validator` does."""
        key = digest(encode([_plain(schema), _plain(_reachable(schema, types))]))
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


# Walking schemas.


def _parts(schema: Mapping[str, object]) -> Iterator[tuple[Path, object]]:
    """Yield the schemas directly inside one, with the path to each."""
    for keyword, inside in schema.items():
        if keyword in _ONE:
            yield (keyword,), inside
        elif keyword in _MANY and isinstance(inside, (list, tuple)):
            yield from (((keyword, index), part) for index, part in enumerate(inside))
        elif keyword in _NAMED and isinstance(inside, Mapping):
            yield from (((keyword, str(name)), part) for name, part in inside.items())


def _referred(schema: Mapping[str, object]) -> str | None:
    reference = schema.get("$ref")
    found = TYPE_REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
    return found.group(1) if found else None


def _applied(schema: object, types: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """Yield the schemas that are about the same value, each type once."""
    seen: set[str] = set()
    stack = [schema]
    while stack:
        item = stack.pop()
        if not isinstance(item, Mapping):
            continue
        yield item
        stack.extend(part for path, part in _parts(item) if path[0] in _IN_PLACE)
        name = _referred(item)
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


def _reachable(schema: object, types: Mapping[str, object]) -> dict[str, object]:
    """Return the types that a schema refers to, directly and through each other."""
    found: dict[str, object] = {}
    stack = [schema]
    while stack:
        item = stack.pop()
        if not isinstance(item, Mapping):
            continue
        stack.extend(part for _, part in _parts(item))
        name = _referred(item)
        if name is not None and name not in found and name in types:
            found[name] = types[name]
            stack.append(types[name])
    return found


# Checks of schemas.


def _keyword_problems(schema: object, types: Mapping[str, object]) -> list[SchemaProblem]:
    try:
        encode(_plain(schema))
    except ValueRefused as error:
        return [SchemaProblem("schema-invalid", error.path, error.reason)]
    problems: list[SchemaProblem] = []
    stack: list[tuple[Path, object]] = [(ROOT, schema)]
    nodes, known = 0, dict[str, int]()
    while stack:
        path, item = stack.pop()
        nodes += 1
        if nodes > SCHEMA_NODES_MAX:
            return [_too_large(f"a schema has at most {SCHEMA_NODES_MAX:,} parts")]
        if not isinstance(item, (Mapping, bool)):
            problems.append(
                SchemaProblem("schema-invalid", path, "a schema is an object or boolean")
            )
        elif isinstance(item, Mapping):
            problems.extend(_own_problems(path, item, types))
            if not _is_in_place(path) and _in_place(item, types, known) > IN_PLACE_MAX:
                problems.append(SchemaProblem("schema-too-large", path, _IN_PLACE_REASON))
            stack.extend(((*path, *below), part) for below, part in reversed([*_parts(item)]))
    return problems


_IN_PLACE_REASON: Final = f"one value would have to meet more than {IN_PLACE_MAX:,} schemas"


def _is_in_place(path: Path) -> bool:
    """Whether a part of a schema, by its path, is about the same value as the schema around it."""
    return any(key in _IN_PLACE for key in path[-2:])


def _own_problems(
    path: Path, schema: Mapping[str, object], types: Mapping[str, object]
) -> Iterator[SchemaProblem]:
    for keyword, value in schema.items():
        at = (*path, keyword)
        if keyword == "$ref":
            yield from _reference_problems(at, schema, types)
        elif keyword in _FORBIDDEN:
            yield SchemaProblem("schema-ref", at, f"{keyword} is not supported", _REFERENCE_REMEDY)
        elif keyword == "$schema" and value != _DIALECT:
            yield SchemaProblem("schema-invalid", at, "only JSON Schema 2020-12", f"use {_DIALECT}")
        elif keyword == SENSITIVE and not isinstance(value, bool):
            yield SchemaProblem("schema-invalid", at, "sensitive is true or false")
        elif keyword not in _ONE | _MANY | _NAMED | _PLAIN and not keyword.startswith("x-"):
            yield SchemaProblem(
                "schema-invalid",
                at,
                f"unknown keyword {quote(keyword)}",
                "correct it, or begin the name of a note with x-",
            )


_REFERENCE_REMEDY: Final = 'refer to a type of this definition, as {"$ref": "#/types/Name"}'


def _reference_problems(
    path: Path, schema: Mapping[str, object], types: Mapping[str, object]
) -> Iterator[SchemaProblem]:
    name = _referred(schema)
    if name is None:
        yield SchemaProblem("schema-ref", path, "a $ref outside types", _REFERENCE_REMEDY)
    elif name not in types:
        listed = ", ".join(sorted(types)[:20]) or "none"
        yield SchemaProblem("schema-ref", path, f"no type {name}", f"declared types: {listed}")


def _in_place(
    schema: object, types: Mapping[str, object], known: dict[str, int], depth: int = 0
) -> int:
    """Count the schemas that one value may have to meet at once, from above.

    `known` keeps the counts of types. A type that is inside itself, in place, counts as too many.
    """
    if not isinstance(schema, Mapping):
        return 1
    total = 1
    if (name := _referred(schema)) is not None:
        if name not in known:
            known[name] = IN_PLACE_MAX  # while it is being counted, and if it comes back here
            inside = types.get(name)
            known[name] = (
                _in_place(inside, types, known, depth + 1)
                if depth < IN_PLACE_DEPTH_MAX
                else IN_PLACE_MAX
            )
        total += known[name]
    for path, part in _parts(schema):
        if path[0] in _IN_PLACE:
            total += _in_place(part, types, known, depth + 1)
    return min(total, IN_PLACE_MAX + 1)


def _standard_problems(schema: object) -> list[SchemaProblem]:
    """Check the schema against the standard's own schema, which the library carries."""
    import jsonschema_rs

    standard = jsonschema_rs.Draft202012Validator({"$ref": _DIALECT}, retriever=_refuse)
    problems = [
        SchemaProblem("schema-invalid", tuple(error.instance_path), _standard_sentence(error))
        for error in standard.iter_errors(_plain(schema))
    ]
    return sorted(problems, key=lambda problem: (render(problem.path), problem.message))


def _compile_problems(schema: object, types: Mapping[str, object]) -> list[SchemaProblem]:
    import jsonschema_rs

    try:
        _compile(schema, types)
    except jsonschema_rs.ValidationError as error:
        pattern = "; a pattern has no look-around, no back-references and bounded repetition"
        return [SchemaProblem("schema-invalid", tuple(error.instance_path), "unusable" + pattern)]
    except ValueError:
        return [_too_large("the schema is nested too deep")]
    return []


def _compile(schema: object, types: Mapping[str, object]) -> "jsonschema_rs.Draft202012Validator":
    import jsonschema_rs

    bundled: Any = _plain(schema)  # the library's stubs ask for plain dictionaries
    reachable = _plain(_reachable(schema, types))
    if isinstance(bundled, dict) and reachable:
        bundled = {**bundled, "types": reachable}
    linear = jsonschema_rs.RegexOptions(size_limit=1 << 20, dfa_size_limit=1 << 20)
    return jsonschema_rs.Draft202012Validator(bundled, retriever=_refuse, pattern_options=linear)


def _refuse(uri: str) -> NoReturn:
    # Not reached for a checked schema. It stays, because without it the library fetches and
    # opens.
    raise PermissionError(f"a schema may not refer to {quote(uri)}")


def _plain(schema: object) -> object:
    """Return the schema in plain dictionaries and lists."""
    if isinstance(schema, Mapping):
        return {key: _plain(value) for key, value in schema.items()}
    if isinstance(schema, (list, tuple)):
        return [_plain(value) for value in schema]
    return schema


def _too_large(message: str) -> SchemaProblem:
    return SchemaProblem("schema-too-large", ROOT, message)


# Sentences.


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


def _kind(value: Value) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "an object"


_LIMITS: Final = {
    "minimum": "must be at least",
    "maximum": "must be at most",
    "exclusiveMinimum": "must be more than",
    "exclusiveMaximum": "must be less than",
    "multipleOf": "must be a multiple of",
    "minLength": "must have at least this many characters:",
    "maxLength": "must have at most this many characters:",
    "minItems": "must have at least this many items:",
    "maxItems": "must have at most this many items:",
    "minProperties": "must have at least this many properties:",
    "maxProperties": "must have at most this many properties:",
    "pattern": "must match",
    "const": "must be",
    "enum": "must be one of",
}
"""Keywords whose value in the schema completes the sentence."""


def _sentence(error: "jsonschema_rs.ValidationError", value: Value) -> str:
    """Say what the schema asks for. Only the schema is quoted, and keys."""
    keyword, asked = error.kind.name, error.kind.value
    if keyword == "type":
        names = " or ".join(asked) if isinstance(asked, list) else str(asked)
        return f"must be {names}, is {_kind(value)}"
    if keyword == "required":
        return f"lacks {_shown(asked)}"
    if keyword in _LIMITS:
        return f"{_LIMITS[keyword]} {_shown(asked)}"
    if keyword == "falseSchema":
        return "is not allowed here"
    if keyword in {"additionalProperties", "unevaluatedProperties"} and isinstance(asked, list):
        return f"has properties that are not declared: {_shown(asked)}"
    return f"does not satisfy {quote(keyword)}"


def _standard_sentence(error: "jsonschema_rs.ValidationError") -> str:
    if error.kind.name == "anyOf" and tuple(error.instance_path)[-1:] == ("type",):
        return "not a type; types are null, boolean, integer, number, string, array and object"
    part: Any = error.instance  # the part of the schema that is wrong
    return _sentence(error, part)


def _shown(asked: object) -> str:
    if isinstance(asked, list):
        listed = ", ".join(_shown(item) for item in asked[:20])
        return listed if len(asked) <= 20 else f"{listed}, …"
    if isinstance(asked, int) and not isinstance(asked, bool) and asked.bit_length() > 256:
        return "a very large integer"
    if isinstance(asked, str):
        return quote(asked)
    text = encode(asked).decode()
    return text if len(text) <= 80 else f"{text[:80]}…"
