"""Expressions keep types, name their mistakes, and cannot hang, crash or leak."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tallystick.core.cel_library import _reason
from tallystick.core.diagnostics import Diagnostic, Place, Problems
from tallystick.core.expressions import (
    ExpressionFailed,
    Names,
    Reference,
    Template,
    compile_template,
)
from tallystick.core.values import encode

NAMES = Names(
    values={
        "input": {
            "type": "object",
            "properties": {
                "version": {"type": "string"},
                "count": {"type": "integer"},
                "price": {"type": "number"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "order": {"$ref": "#/types/Order"},
                "free": {},
            },
        },
        "item": None,
    },
    steps={"build": None, "my-step": None, "in": None, "typed": {"type": "string"}},
    types={
        "Order": {
            "type": "object",
            "properties": {"id": {"type": "string"}, "lines": {"type": "array"}},
            "additionalProperties": False,
        }
    },
)
FREE = Names(
    values={"input": None, "s": None, "l": None, "x": None},
    steps={"a": None, "b-c": None},
    types={},
)


def compiled(text: str, names: Names = FREE) -> tuple[Template | None, tuple[Diagnostic, ...]]:
    problems = Problems("flow.yaml")
    template = compile_template(text, names, problems, Place(1, 1))
    assert (template is None) == bool(problems)
    return template, problems.diagnostics()


def value(text: str, names: Names = FREE, **scope: Any) -> Any:
    template, found = compiled(text, names)
    assert template is not None, found
    return template.evaluate(scope, field="steps[0].with.x")


def failure(text: str, names: Names = FREE, **scope: Any) -> ExpressionFailed:
    with pytest.raises(ExpressionFailed) as caught:
        value(text, names, **scope)
    return caught.value


@pytest.mark.parametrize(
    ("text", "scope", "expected"),
    [
        ("plain", {}, "plain"),
        ("${{ x }}", {"x": {"a": [1, 1.0, None, True, "é"]}}, {"a": [1, 1.0, None, True, "é"]}),
        ("${{ x.a[1] }}", {"x": {"a": [1, 2.5]}}, 2.5),
        ("${{ x['a b'] }}", {"x": {"a b": 1}}, 1),
        ("${{ x + 1 }}", {"x": 1}, 2),
        ("${{ x + 1.0 }}", {"x": 1.0}, 2.0),
        ("${{ x * 2.5 }}", {"x": 2.0}, 5.0),
        ("${{ 1u + 1u }}", {}, 2),
        ("${{ x == 1 }}", {"x": 1.0}, True),
        ("${{ [1, 1.0] }}", {}, [1, 1.0]),
        ("${{ -9223372036854775808 }}", {}, -(2**63)),
        ("${{ x }}", {"x": 10**400}, 10**400),
        ("${{ x }}", {"x": "a\0b"}, "a\0b"),
        ("${{ {'k': x.map(i, i * 2)} }}", {"x": [1, 2]}, {"k": [2, 4]}),
        ("${{ [{'x': 5}].map(x, x.x) }}", {"x": {"x": 1}}, [5]),
        (
            "${{ x.filter(i, i.n > 1).map(i, i.s) }}",
            {"x": [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]},
            ["b"],
        ),
        ("${{ has(x.a) ? x.a : 'none' }}", {"x": {}}, "none"),
        ("${{ has(x.a) ? x.a : 'none' }}", {"x": {"a": "b"}}, "b"),
        ("${{ has(x.a) && x.a.b > 1 }}", {"x": {}}, False),
        ("${{ has(x.a) && x.a.b > 1 }}", {"x": {"a": {"b": 2}}}, True),
        ("${{ has(x.a.b) }}", {"x": {"a": {"b": None}}}, True),
        ("${{ has(steps.a.output) }}", {"steps": {}}, False),
        (
            "${{ has(steps.a.output) ? steps.a.output.n + 1 : 0 }}",
            {"steps": {"a": {"output": {"n": 1}}}},
            2,
        ),
        (
            '${{ steps["b-c"].output + steps.a.output }}',
            {"steps": {"b-c": {"output": 1}, "a": {"output": 2}}},
            3,
        ),
        ('${{ steps["b-c"].output }}', {"steps": {"b-c": {"output": None}}}, None),
        ("${{ run.id }}", {"run": {"id": "r1"}}, "r1"),
        ("${{ size(x) }}", {"x": "é\U0001f600"}, 2),
        ("${{ string(timestamp(x)) }}", {"x": "2020-01-01T00:00:00Z"}, "2020-01-01T00:00:00Z"),
        ("${{ x.matches('^v[0-9]+') }}", {"x": "v12"}, True),
        ("${{ type(x) == int }}", {"x": 1}, True),
        ("${{ '}}' + \"{{\" }}", {}, "}}{{"),
        ("${{ {'a': {'b': 1}} }}", {}, {"a": {"b": 1}}),
        ("v${{ x }}-${{ 1 + 1 }}${{ true }}", {"x": "1"}, "v1-2true"),
        ("${{ x }}${{ x }}", {"x": "a"}, "aa"),
        ("a ${{ '${{' }} b", {}, "a ${{ b"),
        (" ${{ x }}", {"x": 1}, " 1"),
    ],
)
def test_an_expression_has_its_cel_value_and_type(text: str, scope: Any, expected: Any) -> None:
    assert encode(value(text, **scope)) == encode(expected)


def test_data_is_never_read_as_a_template() -> None:
    for text in ("${{ x }}", "${{ x }}!", "${{ x + '!' }}"):
        assert "${{ run.id }}" in value(text, x="${{ run.id }}", run={"id": "secret"})


@pytest.mark.parametrize(
    ("text", "references"),
    [
        ("plain", set()),
        ("${{ input.a.b }}", {Reference("input", ("a", "b"))}),
        (
            "${{ input.a + input['b c'].d }}",
            {Reference("input", ("a",)), Reference("input", ("b c", "d"))},
        ),
        (
            "${{ steps.a.output }} ${{ steps['b-c'].output.n }}",
            {Reference("steps", ("a", "output")), Reference("steps", ("b-c", "output", "n"))},
        ),
        ("${{ l.all(i, i.a == x.a) }}", {Reference("l"), Reference("x", ("a",))}),
        ("${{ has(input.a) }}", {Reference("input", ("a",), tested=True)}),
        ("${{ x[l[0]].y }}", {Reference("x"), Reference("l")}),
        ("${{ 'input.a' + \"steps.a.output\" }}", set()),
    ],
)
def test_references_are_known_before_any_data(text: str, references: set[Reference]) -> None:
    template, found = compiled(text)
    assert template is not None, found
    assert template.references == references
    assert template.steps == {item.step for item in references if item.step}


def test_only_what_is_referenced_is_passed() -> None:
    """A large neighbour does not count against the limit."""
    scope = {"input": {"big": "a" * 1_000_000, "n": 1, "deep": {"big": "b" * 1_000_000, "m": 2}}}
    assert value("${{ input.n + input['deep'].m + input.deep.m }}", **scope) == 5
    assert value("${{ has(input.big) && input.n == 1 }}", **scope) is True
    assert "64 KiB" in failure("${{ input.big + 'x' }}", **scope).reason


@pytest.mark.parametrize(
    ("code", "text", "told"),
    [
        ("expression-unknown-name", "${{ nope }}", 'nothing called "nope" is in scope'),
        ("expression-unknown-name", "${{ nope + 1 }}", 'nothing called "nope" is in scope'),
        ("expression-unknown-name", "${{ input.versoin }}", 'there is no property "versoin"'),
        ("expression-unknown-name", "${{ input.versoin + 'x' }}", 'there is no property "versoin"'),
        ("expression-unknown-name", "${{ input.order.idd }}", 'there is no property "idd"'),
        ("expression-unknown-name", "${{ run.started }}", 'there is no property "started"'),
        ("expression-unknown-name", "${{ steps.bild.output }}", 'there is no step "bild"'),
        ("expression-unknown-name", "${{ steps.build }}", "is not the output of a step"),
        ("expression-unknown-name", "${{ size(steps) }}", "is not the output of a step"),
        (
            "expression-unknown-name",
            "${{ steps[input.version].output }}",
            "is not the output of a step",
        ),
        (
            "expression-quoted-id",
            "${{ steps.my-step.output }}",
            "the id my-step cannot stand after a dot",
        ),
        ("expression-quoted-id", "${{ steps.in.output }}", "the id in cannot stand after a dot"),
        ("expression-type", "${{ input.version + 1 }}", "found no matching overload for '_+_'"),
        ("expression-type", "${{ input.count + 'x' }}", "found no matching overload for '_+_'"),
        ("expression-type", "${{ input.order.id + 1 }}", "found no matching overload for '_+_'"),
        ("expression-type", "${{ input.tags[0] + 1 }}", "found no matching overload for '_+_'"),
        (
            "expression-type",
            "${{ steps.typed.output + 1 }}",
            "found no matching overload for '_+_'",
        ),
        ("expression-type", "${{ input.version.upper() }}", "undeclared reference to 'upper'"),
        (
            "expression-type",
            "a ${{ input.tags.map(t, t) }}",
            "a value of type list<string> inside a text",
        ),
        ("expression-type", "${{ google.protobuf.Struct{} }}", "messages cannot be made"),
        ("expression-syntax", "${{ 1 + }}", "Syntax error"),
        ("expression-syntax", "a ${{ b", "${{ without its }}"),
        ("expression-syntax", "${{ }}", "an empty expression"),
        ("expression-too-large", "${{ '" + "a" * 4_096 + "' }}", "more than 4 KiB"),
        ("expression-too-large", "${{ " + "(" * 500 + "1" + ")" * 500 + " }}", "nested too deep"),
        ("expression-too-large", "${{ " + "+".join(["1"] * 1_000) + " }}", "nested too deep"),
        ("expression-too-large", "${{ item.matches(item) }}", "must be a literal string"),
        (
            "expression-too-large",
            "${{ item.matches('((a?){0,30}){0,30}b') }}",
            "the pattern is too large",
        ),
    ],
)
def test_a_mistake_is_a_diagnostic(code: str, text: str, told: str) -> None:
    _, found = compiled(text, NAMES)
    assert [item.code for item in found] == [code]
    assert told in found[0].message


def test_the_remedy_of_an_id_that_needs_quotes() -> None:
    _, (found,) = compiled("${{ steps.my-step.output.n + 1 }}", NAMES)
    assert found.remedy == 'write steps["my-step"].output'
    assert compiled("${{ steps['my-step'].output.n + 1 }}", NAMES)[1] == ()


def test_all_problems_of_a_string_are_told() -> None:
    _, found = compiled("${{ nope + nada }} ${{ 1 + 'a' }}", NAMES)
    assert len(found) == 3


@pytest.mark.invariant("G4")
@pytest.mark.parametrize(
    ("text", "scope", "reason"),
    [
        ("${{ 1 / x }}", {"x": 0}, "divides by zero"),
        ("${{ x % 0 }}", {"x": 1}, "divides by zero"),
        ("${{ x + 1 }}", {"x": 2**63 - 1}, "leaves 64 bits"),
        ("${{ x + 1 }}", {"x": 2**63}, "beyond 64 bits"),
        ("${{ [x] }}", {"x": 10**400}, "beyond 64 bits"),
        ("${{ x + 'a' }}", {"x": "a\0b"}, "NUL"),
        ("${{ x + 'a' }}", {"x": 1}, "does not take values of these types"),
        ("${{ x ? 1 : 2 }}", {"x": "true"}, "does not take values of these types"),
        ("${{ x.a }}", {"x": {}}, "x has no a"),
        ("${{ x.a.b }}", {"x": {"a": [1]}}, "x.a has no b"),
        ("${{ x.a[3] }}", {"x": {"a": [1]}}, "x.a has no [3]"),
        ("${{ x.a + 1 }}", {"x": {}}, "a value is missing"),
        ("${{ x['a'] + 1 }}", {"x": {}}, "a key is missing"),
        ("${{ x[5] + 1 }}", {"x": [1]}, "an index is outside its list"),
        ("${{ steps.a.output }}", {"steps": {}}, "step a has no output"),
        ("${{ int(x) }}", {"x": "abc"}, "a text cannot be converted"),
        ("${{ 1.0 / x }}", {"x": 0.0}, "not a finite number"),
        ("${{ bytes(x) }}", {"x": "a"}, "holds bytes"),
        ("${{ timestamp(x) }}", {"x": "2020-01-01T00:00:00Z"}, "holds a timestamp"),
        ("${{ duration(x) }}", {"x": "1h"}, "holds a duration"),
        ("${{ type(x) }}", {"x": "1h"}, "holds a type"),
        ("${{ {1: x} }}", {"x": 1}, "a key that is not a string"),
        ("a${{ x }}", {"x": 1.5}, "a float inside a text"),
        ("a${{ x }}", {"x": None}, "null inside a text"),
        ("a${{ x }}", {"x": [1]}, "a list inside a text"),
        ("${{ x.map(k, k) }}", {"x": {"a": 1, "b": 2}}, "have no order"),
        ("${{ l.map(i, i.filter(k, true)) }}", {"l": [{"a": 1, "b": 2}]}, "have no order"),
        ("${{ [x].map(i, i.map(k, k)) }}", {"x": {"a": 1, "b": 2}}, "have no order"),
        ("${{ l.all(i, true) }}", {"l": [1] * 1_001}, "at most 1,000 items"),
        ("${{ l.all(i, l.all(j, true)) }}", {"l": [1] * 150}, "too many items"),
    ],
)
def test_an_error_value_fails_and_says_why(text: str, scope: Any, reason: str) -> None:
    error = failure(text, **scope)
    assert reason in error.reason
    assert error.field == "steps[0].with.x"
    assert error.expression in text


def test_an_integral_float_is_an_integer_where_the_schema_says_integer() -> None:
    assert value("${{ input.count + 1 }}", NAMES, input={"count": 3.0}) == 4


SECRET = "s3cr3tvalue"


@pytest.mark.invariant("K2")
@pytest.mark.parametrize(
    "text",
    [
        "${{ int(x) }}",
        "${{ {}[x] }}",
        "${{ x.a }}",
        "${{ x.a + 1 }}",
        "${{ x[0] + 1 }}",
        "${{ [1][x] }}",
        "${{ timestamp(x) }}",
        "${{ duration(x) }}",
        "${{ x.getHours(x) }}",
        "${{ x + 1 }}",
        "${{ {x: 1, x + '': 2}.a }}",
        "${{ timestamp('2020-01-01T00:00:00Z').getHours(x) }}",
        "${{ double(x) + 1 }}",
        "${{ bytes(x) }}",
        "${{ {'a': 1}[x] }}",
        "${{ bool(x) }}",
    ],
)
def test_no_error_quotes_data(text: str) -> None:
    template, _ = compiled(text)
    if template is None:
        return
    with pytest.raises(ExpressionFailed) as caught:
        template.evaluate({"x": SECRET}, field="f")
    chain: BaseException | None = caught.value
    while chain is not None:
        assert SECRET not in str(chain)
        chain = chain.__cause__


@pytest.mark.invariant("K2")
def test_a_message_of_the_library_that_is_not_known_is_not_shown() -> None:
    assert _reason(f"INTERNAL: {SECRET}") == "CEL gives an error"
    assert _reason(f'NOT_FOUND: Key not found in map : "{SECRET}"').startswith("a key is missing")


PRELUDE = """
import json, resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from tallystick.core.diagnostics import Place, Problems
from tallystick.core.expressions import ExpressionFailed, Names, compile_template
from tests.memory import peak_bytes
text, scope = json.load(sys.stdin)
names = Names(values={name: None for name in scope}, steps={}, types={})
start = time.process_time()
problems = Problems("f")
template = compile_template(text, names, problems, Place(1, 1))
if template is None:
    said = problems.diagnostics()[0].code
else:
    try:
        said = f"value {len(str(template.evaluate(scope, field='f')))}"
    except ExpressionFailed as error:
        said = error.reason
seconds = time.process_time() - start
print(json.dumps([said, seconds, peak_bytes() // 1024]))
"""

LIST = list(range(1_000))
WIDE = "a" * 60_000
HOSTILE: dict[str, tuple[str, dict[str, Any]]] = {
    "terms": ("+".join(["1"] * 50_000), {}),
    "terms-4k": ("+".join(["1"] * 2_000), {}),
    "parentheses": ("(" * 2_000 + "1" + ")" * 2_000, {}),
    "brackets": ("[" * 2_000 + "]" * 2_000, {}),
    "braces": ("{'a':" * 600 + "1" + "}" * 600, {}),
    "not": ("!" * 4_000 + "true", {}),
    "minus": ("-" * 4_000 + "1", {}),
    "ternaries": ("true?1:" * 500 + "1", {}),
    "selects": ("x" + ".a" * 2_000, {"x": {}}),
    "indexes": ("x" + "[0]" * 1_300, {"x": []}),
    "ands": ("&&".join(["true"] * 600), {}),
    "quotes": ('"' * 4_000, {}),
    "triple-quotes": ('"""a' * 1_000, {}),
    "nested-macros": ("l.all(i,l.all(j,l.all(k,true)))", {"l": LIST}),
    "nested-small": ("[0,1,2,3,4,5,6,7,8,9].all(a," * 7 + "true" + ")" * 7, {}),
    "product": ("l.map(i,l.map(j,l))", {"l": LIST}),
    "list-of-lists": ("l.map(i,l)", {"l": LIST * 1}),
    "doubling": ("[l]" + ".map(a,a+a)" * 28, {"l": LIST}),
    "doubling-text": ("[s]" + ".map(a,a+a)" * 28, {"s": WIDE}),
    "doubling-literal": ("['aaaaaaaa']" + ".map(a,a+a+a+a)" * 28, {}),
    "text-times-list": ("l.map(i,s+s)", {"l": LIST, "s": WIDE}),
    "hidden-work": ("l.all(i,(s+s+s+s+s+s+s+s).size()>0)", {"l": LIST, "s": WIDE}),
    "many-concats": ("[" + ",".join(["s+s"] * 1_000) + "]", {"s": WIDE}),
    "balanced-concats": ("(" + ")+(".join(["s+s+s+s+s+s+s+s+s+s+s+s"] * 12) + ")", {"s": WIDE}),
    "regex-backtracking": ("s.matches('(a+)+$')", {"s": WIDE + "b"}),
    "regex-counted": ("s.matches('((a?){0,30}){0,30}b')", {"s": WIDE}),
    "regex-unicode": (r"s.matches('\\pL{1,900}x')", {"s": WIDE}),
    "regex-alternatives": ("s.matches('(a|aa|aaa|b*c*d*){100}x')", {"s": WIDE}),
    "regex-loop": ("l.exists(i,s.matches('(.*){99}b'))", {"l": LIST, "s": WIDE}),
    "regex-loop-short": ("l.exists(i,string(i).matches('(.*){99}b'))", {"l": LIST}),
    "regex-dynamic": ("s.matches(s)", {"s": "(a?){1000}" * 6_000}),
    "regex-hidden": ("[s].map(p, 'a'.matches(p))", {"s": "(a?){1000}" * 6_000}),
    "contains-loop": ("l.exists(i,s.contains('b'))", {"l": LIST, "s": WIDE}),
    "compare-loop": ("l.exists(i,l==[i])", {"l": LIST}),
    "deep-value": ("x == x && x in [x]", {"x": json.loads("[" * 60 + "]" * 60)}),
    "huge-value": ("s + s", {"s": "a" * 5_000_000}),
    "wide-objects": ("x.all(k, x[k] == 1)", {"x": {f"k{n}": 1 for n in range(1_000)}}),
    "many-candidates": ("l" + ".map(a,[a,a,a,a,a,a,a,a])" * 12, {"l": LIST}),
    "digits": ("9" * 4_000, {}),
    "exponent": ("1e" + "9" * 3_000, {}),
    "power": ("*".join(["9223372036854775807"] * 30), {}),
    "unicode": ("'" + "\U0001f600" * 1_000 + "'", {}),
    "convert": ("double(s) + double(int(s))", {"s": "1" * 60_000}),
}


@pytest.mark.slow
@pytest.mark.invariant("K5")
@pytest.mark.parametrize("name", HOSTILE)
def test_no_expression_hangs_or_crashes(name: str) -> None:
    """Each in a process of its own with 1 GiB of address space. A value or an error is right."""
    source, scope = HOSTILE[name]
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE],
        input=json.dumps([f"${{{{ {source} }}}}", scope]),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr[-500:]
    said, seconds, kib = json.loads(done.stdout)
    assert said
    assert seconds < 1.5
    assert kib < 300 * 1024


def test_the_library_is_not_loaded_for_bare_references() -> None:
    code = """
import sys
import tallystick
from tallystick.core.diagnostics import Place, Problems
from tallystick.core.expressions import Names, compile_template
names = Names(values={"input": None}, steps={"a": None}, types={})
text = "${{ input.a }} and ${{ steps.a.output[0]['b'] }}"
t = compile_template(text, names, Problems("f"), Place(1, 1))
scope = {"input": {"a": 1}, "steps": {"a": {"output": [{"b": 2}]}}}
assert t.evaluate(scope, field="f") == "1 and 2"
assert not any("cel_expr" in name for name in sys.modules), "loaded"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
