"""Sentences about what a schema asks for. They quote the schema and keys, never a value."""

from typing import TYPE_CHECKING, Any, Final

from tallystick.core.pointer import quote
from tallystick.core.values import Value, encode

if TYPE_CHECKING:
    import jsonschema_rs


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


def sentence(error: "jsonschema_rs.ValidationError", value: Value) -> str:
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


def standard_sentence(error: "jsonschema_rs.ValidationError") -> str:
    """Say what the standard asks of a part of a schema. Only the standard is quoted."""
    if error.kind.name == "anyOf" and tuple(error.instance_path)[-1:] == ("type",):
        return "not a type; types are null, boolean, integer, number, string, array and object"
    part: Any = error.instance  # the part of the schema that is wrong
    return sentence(error, part)


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
