"""Declared JSON Schemas as CEL types, so that mistakes in expressions are diagnostics.

CEL is stricter than JSON Schema in one way and looser in another. What has no exact type becomes
`dyn`, which is checked when it runs. `number` is `dyn`, because JSON lets an integer stand for it.
"""

from collections.abc import Mapping
from typing import Final

from tallystick.core.pointer import Path, quote
from tallystick.core.references import Schema

DYNAMIC: Final = "dyn"

_SIMPLE: Final = {"string": "string", "integer": "int", "boolean": "bool"}
_OPEN: Final = frozenset(
    [
        "additionalProperties",
        "patternProperties",
        "allOf",
        "anyOf",
        "oneOf",
        "if",
        "dependentSchemas",
        "$dynamicRef",
        "not",
        "unevaluatedProperties",
        "$ref",
    ]
)
"""Keywords beside `properties` that can allow others."""

_REF: Final = "#/types/"
_DEPTH_MAX: Final = 8


class UnknownProperty(ValueError):
    """A declared object has no such property. `remedy` names those that it has."""

    def __init__(self, key: str, declared: list[str]) -> None:
        super().__init__(f"there is no property {quote(key)}")
        listed = ", ".join(sorted(declared)[:20])
        self.remedy = f"declared are {listed}; or set additionalProperties" if declared else None


def resolve(schema: Schema | None, types: Mapping[str, Schema]) -> Mapping[str, object]:
    """Follow `$ref` to a named type. Anything that says nothing is an empty schema."""
    for _ in range(_DEPTH_MAX):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith(_REF):
            return schema
        schema = types.get(reference.removeprefix(_REF))
    return {}


def schema_at(schema: Schema | None, path: Path, types: Mapping[str, Schema]) -> Schema | None:
    """Return the schema of what a path leads to, None when nothing is declared of it.

    Raises `UnknownProperty` when the object on the way is declared without such a property.
    """
    for key in path:
        known = resolve(schema, types)
        schema = _item(known) if isinstance(key, int) else _property(known, key)
    return schema


def _item(known: Mapping[str, object]) -> Schema | None:
    items = known.get("items")
    return items if isinstance(items, (Mapping, bool)) and "prefixItems" not in known else None


def _property(known: Mapping[str, object], key: str) -> Schema | None:
    properties = known.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        found = properties[key]
        return found if isinstance(found, (Mapping, bool)) else None
    others = known.get("additionalProperties")
    if isinstance(others, Mapping) and "patternProperties" not in known:
        return others
    closed = others is False and "patternProperties" not in known
    if isinstance(properties, Mapping) and (closed or not _OPEN & known.keys()):
        raise UnknownProperty(key, [str(name) for name in properties])
    return None


def cel_type(schema: Schema | None, types: Mapping[str, Schema], depth: int = 0) -> str:
    """Return the signature of the CEL type of a schema, such as `list<map<string, dyn>>`."""
    known = resolve(schema, types)
    kind = known.get("type")
    if depth > _DEPTH_MAX or not isinstance(kind, str):
        return DYNAMIC
    if kind == "array":
        return f"list<{cel_type(_item(known), types, depth + 1)}>"
    if kind == "object":
        return f"map<string, {_values(known, types, depth)}>"
    return _SIMPLE.get(kind, DYNAMIC)


def _values(known: Mapping[str, object], types: Mapping[str, Schema], depth: int) -> str:
    others = known.get("additionalProperties")
    alone = "properties" not in known and "patternProperties" not in known
    return cel_type(others, types, depth + 1) if alone and isinstance(others, Mapping) else DYNAMIC
