"""Schemas are strict, reach nothing outside the definition, and never quote a value."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tallystick.core.schema_check import PROBLEMS_MAX
from tallystick.core.schemas import (
    SchemaRefused,
    Validator,
    Validators,
    check_schema,
    is_sensitive,
)

TYPES: dict[str, Any] = {
    "Order": {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "card": {"type": "string", "sensitive": True, "pattern": "^4"},
            "next": {"$ref": "#/types/Order"},
        },
        "required": ["id"],
        "additionalProperties": False,
    },
    "Self": {"anyOf": [{"type": "null"}, {"$ref": "#/types/Self"}]},
    **{
        f"L{n}": {"allOf": [{"$ref": f"#/types/L{n + 1}"}, {"$ref": f"#/types/L{n + 1}"}]}
        for n in range(60)
    },
    "L60": {"type": "string"},
    **{f"C{n}": {"$ref": f"#/types/C{n + 1}"} for n in range(2_000)},
    "C2000": {"type": "string"},
}


def nested(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {},
        {"type": "object", "properties": {"type": {"type": "integer"}, "$ref": True}},
        {"type": ["string", "null"], "enum": ["a", None], "default": {"$ref": "data"}},
        {"const": {"$ref": "http://example.com", "unknown": 1}, "examples": [{"$id": 1}]},
        {"$ref": "#/types/Order", "description": "with a note", "x-note": {"any": "thing"}},
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"if": {"type": "string"}, "then": {"minLength": 1}, "else": {"minimum": 0}},
        {"prefixItems": [{"type": "string"}], "items": False, "uniqueItems": True},
        {"maximum": 10**400, "maxLength": 10**30, "pattern": r"^\p{L}+$", "sensitive": True},
        nested(60),
    ],
)
def test_a_good_schema_has_no_problems(schema: Any) -> None:
    assert check_schema(schema, TYPES) == ()


@pytest.mark.invariant("K4")
@pytest.mark.parametrize(
    ("schema", "code", "path"),
    [
        (5, "schema-invalid", ()),
        (None, "schema-invalid", ()),
        ({"type": "strng"}, "schema-invalid", ("type",)),
        ({"requried": ["a"]}, "schema-invalid", ("requried",)),
        ({"properties": {"a": {"typ": "string"}}}, "schema-invalid", ("properties", "a", "typ")),
        ({"items": 5}, "schema-invalid", ("items",)),
        ({"allOf": [True, 1]}, "schema-invalid", ("allOf", 1)),
        ({"allOf": {}}, "schema-invalid", ("allOf",)),
        ({"properties": []}, "schema-invalid", ("properties",)),
        ({"minLength": -1}, "schema-invalid", ("minLength",)),
        ({"required": "a"}, "schema-invalid", ("required",)),
        ({"pattern": "("}, "schema-invalid", ("pattern",)),
        ({"pattern": "(?=a)"}, "schema-invalid", ("pattern",)),
        ({"pattern": r"(a)\1"}, "schema-invalid", ("pattern",)),
        ({"pattern": r"\pL{1,900}"}, "schema-invalid", ("pattern",)),
        ({"sensitive": "yes"}, "schema-invalid", ("sensitive",)),
        ({"enum": [float("nan")]}, "schema-invalid", ("enum", 0)),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "schema-invalid", ("$schema",)),
        ({"$ref": "Order"}, "schema-ref", ("$ref",)),
        ({"$ref": "#/types/Nope"}, "schema-ref", ("$ref",)),
        ({"$ref": "#/types/Order/properties/id"}, "schema-ref", ("$ref",)),
        ({"$ref": "#/$defs/a", "$defs": {"a": True}}, "schema-ref", ("$ref",)),
        ({"$ref": "#"}, "schema-ref", ("$ref",)),
        ({"$ref": 5}, "schema-ref", ("$ref",)),
        ({"not": {"$ref": "http://127.0.0.1:1/x"}}, "schema-ref", ("not", "$ref")),
        ({"anyOf": [{"$ref": "file:///etc/passwd"}]}, "schema-ref", ("anyOf", 0, "$ref")),
        ({"$dynamicRef": "#a"}, "schema-ref", ("$dynamicRef",)),
        ({"$id": "http://example.com/"}, "schema-ref", ("$id",)),
        ({"$ref": "#/types/Self"}, "schema-too-large", ()),
        ({"items": {"$ref": "#/types/L0"}}, "schema-too-large", ("items",)),
        ({"$ref": "#/types/C0"}, "schema-too-large", ()),
    ],
)
def test_a_bad_schema_is_told_where(schema: Any, code: str, path: tuple[str | int, ...]) -> None:
    found = check_schema(schema, TYPES)
    assert [(item.code, item.path) for item in found] == [(code, path)]
    with pytest.raises(SchemaRefused):
        Validator(schema, TYPES)


@pytest.mark.parametrize(
    "schema", [nested(70), nested(5_000), {"enum": list(range(10**6))}, {"allOf": [True] * 20_000}]
)
def test_the_size_of_a_schema_is_bounded(schema: Any) -> None:
    if "enum" in schema:
        assert check_schema(schema, {}) == ()
    else:
        assert len(check_schema(schema, {})) == 1


def test_all_problems_of_a_schema_are_told() -> None:
    schema = {"properties": {"a": {"$ref": "x"}, "b": {"typ": 1}}, "zz": 1}
    assert len(check_schema(schema, {})) == 3


@pytest.mark.case("P6")
@pytest.mark.parametrize(
    ("schema", "value", "valid"),
    [
        ({"type": "integer"}, 10**400, True),
        ({"type": "integer"}, -(2**63) - 1, True),
        ({"type": "integer"}, 2**64, True),
        ({"type": "integer"}, 1.0, True),
        ({"type": "integer"}, 1.5, False),
        ({"type": "integer"}, True, False),
        ({"type": "string"}, 10**400, False),
        ({"maximum": 2**53}, 2**53 + 1, False),
        ({"maximum": 10**400}, 10**400 + 1, False),
        ({"maximum": 10**400}, 10**400, True),
        ({"enum": [10**400 + 1]}, 10**400, False),
        ({"multipleOf": 7}, 7 * 10**400, True),
        ({"multipleOf": 7}, 7 * 10**400 + 1, False),
    ],
)
def test_large_integers_are_exact(schema: Any, value: Any, valid: bool) -> None:
    assert (Validator(schema, {}).validate(value) == ()) == valid


@pytest.mark.parametrize(
    ("schema", "value", "told"),
    [
        ({"$ref": "#/types/Order"}, {"id": "a", "next": {"id": "b"}}, []),
        (
            {"$ref": "#/types/Order"},
            {"next": {"id": 1}},
            ["$.next.id: must be string, is an integer", '$: lacks "id"'],
        ),
        ({"type": ["string", "null"]}, [1], ["$: must be null or string, is an array"]),
        ({"enum": ["a", None]}, 1, ['$: must be one of "a", null']),
        ({"minimum": 3}, 1, ["$: must be at least 3"]),
        ({"maxItems": 1}, [1, 2], ["$: must have at most this many items: 1"]),
        ({"additionalProperties": False}, {"a": 1}, ["$: is not allowed here"]),
        (False, 1, ["$: is not allowed here"]),
        ({"uniqueItems": True}, [1, 1], ['$: does not satisfy "uniqueItems"']),
        ({"not": {}}, 1, ['$: does not satisfy "not"']),
    ],
)
def test_a_value_is_told_what_is_wrong(schema: Any, value: Any, told: list[str]) -> None:
    assert sorted(map(str, Validator(schema, TYPES).validate(value))) == sorted(told)


SECRET = "s3cr3tvalue"


@pytest.mark.invariant("K2")
@pytest.mark.parametrize(
    "keywords",
    [
        {"type": "integer"},
        {"enum": ["a"]},
        {"const": "a"},
        {"pattern": "^x"},
        {"maxLength": 1},
        {"anyOf": [{"type": "integer"}, {"const": 1}]},
        {"oneOf": [{"type": "string"}, {"type": "string"}]},
        {"not": {"type": "string"}},
        {"allOf": [{"type": "integer"}]},
    ],
)
def test_no_message_quotes_a_value(keywords: Any) -> None:
    for schema in (keywords, {**keywords, "sensitive": True}):
        found = Validator({"properties": {"p": schema}}, {}).validate({"p": SECRET})
        assert found
        assert all(SECRET not in str(item) for item in found)


@pytest.mark.invariant("K2")
def test_below_sensitive_only_path_and_keyword_are_named() -> None:
    secret = {"sensitive": True, "enum": ["hidden-option"], "additionalProperties": False}
    for schema in (
        {"properties": {"p": secret}},
        {"properties": {"p": {"allOf": [secret]}}},
        {"patternProperties": {"^p": secret}},
        {"properties": {"p": {"$ref": "#/types/Secret"}}},
    ):
        found = Validator(schema, {"Secret": secret}).validate({"p": {SECRET: 1}})
        assert found
        assert all(item.message.startswith("a sensitive value") for item in found)
        assert all("hidden-option" not in str(item) for item in found)


@pytest.mark.parametrize(
    ("path", "sensitive"),
    [
        (("card",), True),
        (("card", "x"), True),
        (("id",), False),
        (("next", "next", "card"), True),
        ((), False),
    ],
)
def test_a_mark_is_found_through_types(path: tuple[str | int, ...], sensitive: bool) -> None:
    assert is_sensitive({"$ref": "#/types/Order"}, path, TYPES) == sensitive


def test_problems_are_bounded() -> None:
    validator = Validator({"items": {"type": "string"}}, {})
    assert len(validator.validate(list(range(1_000)))) == PROBLEMS_MAX
    assert len(validator.validate(list(range(100_000)))) == 1


def test_the_same_schema_is_compiled_once_and_the_oldest_goes() -> None:
    validators = Validators(size_max=2)
    first = validators.get({"type": "string", "minLength": 1}, {"Unused": True})
    assert validators.get({"minLength": 1, "type": "string"}, {}) is first
    validators.get({"minimum": 1}, {})
    assert validators.get({"type": "string", "minLength": 1}, {}) is first
    validators.get({"minimum": 2}, {})
    assert validators.get({"type": "string", "minLength": 1}, {}) is first
    other = validators.get({"$ref": "#/types/A"}, {"A": {"type": "string"}})
    assert validators.get({"$ref": "#/types/A"}, {"A": {"type": "integer"}}) is not other


def test_nothing_is_fetched_or_opened(tmp_path: Any) -> None:
    """The check refuses before the library sees the reference, and the retriever would too."""
    from tallystick.core.schema_check import compile_schema

    target = tmp_path / "schema.json"
    target.write_text(json.dumps({"type": "string"}))
    with pytest.raises(Exception, match="may not refer"):
        compile_schema({"$ref": target.as_uri()}, {})


def test_the_library_is_loaded_only_when_a_schema_is_checked() -> None:
    code = "import sys, tallystick.core.schemas; assert 'jsonschema_rs' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
