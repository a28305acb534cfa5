"""Which schemas may be used: JSON Schema 2020-12, and stricter.

A schema may refer to the definition's named types, as `{"$ref": "#/types/Name"}`, and to nothing
else: the library would fetch addresses and open files while it compiles, so every other reference
is a compile error, and its retriever refuses as well. Types may refer to each other and to
themselves.

Stricter than the standard in this: an unknown keyword is an error, because a misspelled one would
check nothing (`x-…` is free for notes); `$id`, anchors and dynamic references do not exist; regular
expressions take linear time, so they have no look-around and no back-references. `format` is a
note, as the standard says. `sensitive: true` marks a value that must never be shown.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

from tallystick.core.pointer import ROOT, Path, quote, render
from tallystick.core.schema_words import standard_sentence
from tallystick.core.values import ValueRefused, encode

if TYPE_CHECKING:
    import jsonschema_rs

PROBLEMS_MAX: Final = 32
SCHEMA_NODES_MAX: Final = 10_000
IN_PLACE_DEPTH_MAX: Final = 64
IN_PLACE_MAX: Final = 1_000
"""Schemas that one value may have to meet at once, references followed each time."""

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
IN_PLACE_WORDS: Final = frozenset({
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


class SchemaRefused(ValueError):
    """The schema cannot be used. `problems` is never empty."""

    def __init__(self, problems: Sequence[SchemaProblem]) -> None:
        super().__init__("; ".join(f"{render(item.path)}: {item.message}" for item in problems))
        self.problems = tuple(problems)


def check_schema(schema: object, types: Mapping[str, object]) -> tuple[SchemaProblem, ...]:
    """Return everything that is wrong with a schema, in order of place; at most 32.

    `types` are the definition's named types, each of which is checked by a call of its own.
    """
    if (unusable := _no_json(schema)) is not None:
        return (unusable,)
    problems = _keyword_problems(schema, types)
    if not any(problem.code == "schema-too-large" for problem in problems):
        known = {problem.path for problem in problems}
        problems += [it for it in _standard_problems(schema) if it.path not in known]
    if not problems:
        problems = _compile_problems(schema, types)
    return tuple(problems[:PROBLEMS_MAX])


def _no_json(schema: object) -> SchemaProblem | None:
    try:
        encode(plain_schema(schema))
    except ValueRefused as error:
        return SchemaProblem("schema-invalid", error.path, error.reason)
    except RecursionError:
        return _too_large("the schema is nested too deep")
    return None


def _keyword_problems(schema: object, types: Mapping[str, object]) -> list[SchemaProblem]:
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
            stack.extend(((*path, *below), part) for below, part in reversed([*parts_of(item)]))
    return problems


_IN_PLACE_REASON: Final = f"one value would have to meet more than {IN_PLACE_MAX:,} schemas"


def _is_in_place(path: Path) -> bool:
    """Whether a part of a schema, by its path, is about the same value as the schema around it."""
    return any(key in IN_PLACE_WORDS for key in path[-2:])


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
    name = referred(schema)
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
    if (name := referred(schema)) is not None:
        if name not in known:
            known[name] = IN_PLACE_MAX  # while it is being counted, and if it comes back here
            inside = types.get(name)
            known[name] = (
                _in_place(inside, types, known, depth + 1)
                if depth < IN_PLACE_DEPTH_MAX
                else IN_PLACE_MAX
            )
        total += known[name]
    for path, part in parts_of(schema):
        if path[0] in IN_PLACE_WORDS:
            total += _in_place(part, types, known, depth + 1)
    return min(total, IN_PLACE_MAX + 1)


def _standard_problems(schema: object) -> list[SchemaProblem]:
    """Check the schema against the standard's own schema, which the library carries."""
    problems = [
        SchemaProblem("schema-invalid", tuple(error.instance_path), standard_sentence(error))
        for error in _standard().iter_errors(plain_schema(schema))
    ]
    return sorted(problems, key=lambda problem: (render(problem.path), problem.message))


@cache
def _standard() -> "jsonschema_rs.Draft202012Validator":
    # Once, because compiling it takes longer than all schemas of a large workflow.
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator({"$ref": _DIALECT}, retriever=_refuse)


def _compile_problems(schema: object, types: Mapping[str, object]) -> list[SchemaProblem]:
    import jsonschema_rs

    try:
        compile_schema(schema, types)
    except jsonschema_rs.ValidationError as error:
        pattern = "; a pattern has no look-around, no back-references and bounded repetition"
        return [SchemaProblem("schema-invalid", tuple(error.instance_path), "unusable" + pattern)]
    except ValueError:
        return [_too_large("the schema is nested too deep")]
    return []


def compile_schema(
    schema: object, types: Mapping[str, object]
) -> "jsonschema_rs.Draft202012Validator":
    """Compile a schema together with the types it reaches.

    Raises the library's `ValidationError` for what it cannot use, `ValueError` for one too deep.
    """
    import jsonschema_rs

    bundled: Any = plain_schema(schema)  # the library's stubs ask for plain dictionaries
    reachable = plain_schema(reachable_types(schema, types))
    if isinstance(bundled, dict) and reachable:
        bundled = {**bundled, "types": reachable}
    linear = jsonschema_rs.RegexOptions(size_limit=1 << 20, dfa_size_limit=1 << 20)
    return jsonschema_rs.Draft202012Validator(bundled, retriever=_refuse, pattern_options=linear)


def _refuse(uri: str) -> NoReturn:
    # Not reached for a checked schema. It stays, because without it the library fetches and
    # opens.
    raise PermissionError(f"a schema may not refer to {quote(uri)}")


def plain_schema(schema: object) -> object:
    """Return the schema in plain dictionaries and lists."""
    if isinstance(schema, Mapping):
        return {key: plain_schema(value) for key, value in schema.items()}
    if isinstance(schema, (list, tuple)):
        return [plain_schema(value) for value in schema]
    return schema


def _too_large(message: str) -> SchemaProblem:
    return SchemaProblem("schema-too-large", ROOT, message)


def parts_of(schema: Mapping[str, object]) -> Iterator[tuple[Path, object]]:
    """Yield the schemas directly inside one, with the path to each."""
    for keyword, inside in schema.items():
        if keyword in _ONE:
            yield (keyword,), inside
        elif keyword in _MANY and isinstance(inside, (list, tuple)):
            yield from (((keyword, index), part) for index, part in enumerate(inside))
        elif keyword in _NAMED and isinstance(inside, Mapping):
            yield from (((keyword, str(name)), part) for name, part in inside.items())


def referred(schema: Mapping[str, object]) -> str | None:
    """Return the name of the type that a schema refers to, None when it refers to none."""
    reference = schema.get("$ref")
    found = TYPE_REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
    return found.group(1) if found else None


def reachable_types(schema: object, types: Mapping[str, object]) -> dict[str, object]:
    """Return the types that a schema refers to, directly and through each other."""
    found: dict[str, object] = {}
    stack = [schema]
    while stack:
        item = stack.pop()
        if not isinstance(item, Mapping):
            continue
        stack.extend(part for _, part in parts_of(item))
        name = referred(item)
        if name is not None and name not in found and name in types:
            found[name] = types[name]
            stack.append(types[name])
    return found
