"""D3: a key that is written twice is refused, and both places are named; the last never wins."""

import pytest

from tallystick.core.compiler import compile_source
from tallystick.core.diagnostics import SourceRefused
from tallystick.core.values import ValueRefused, decode

HEAD = "tally: 1\nworkflow: d3\nsteps:\n"
CASES = {
    "the same step twice": (
        "  - {id: a, call: m:f}\n  - {id: b, call: m:f}\n  - {id: a, call: m:g}\n",
        "step-id-repeated",
        (4, 6),
    ),
    "the same step twice in a row": (
        "  - {id: a, call: m:f}\n  - {id: a, call: m:g}\n",
        "step-id-repeated",
        (4, 5),
    ),
    "a second `with:`": (
        "  - id: a\n    call: m:f\n    with: {x: 1}\n    with: {x: 2}\n",
        "yaml-duplicate-key",
        (6, 7),
    ),
    "the same input twice": (
        "  - id: a\n    call: m:f\n    with:\n      x: 1\n      'x': 1\n",
        "yaml-duplicate-key",
        (7, 8),
    ),
    "`retry:` twice": (
        "  - id: a\n    retry: {backoff: 1s}\n    call: m:f\n    retry: {backoff: 1s}\n",
        "yaml-duplicate-key",
        (5, 7),
    ),
    "by an escape": (
        '  - id: a\n    call: m:f\n    with: {x: 1,\n      "\\u0078": 2}\n',
        "yaml-duplicate-key",
        (6, 7),
    ),
    "deep inside a value": (
        "  - id: a\n    call: m:f\n    with: {x: [1, {y: {z: 1,\n      z: 1}}]}\n",
        "yaml-duplicate-key",
        (6, 7),
    ),
    "a merge twice": (
        "  - &a {id: a, call: m:f}\n  - id: b\n    <<: *a\n    <<: *a\n",
        "yaml-duplicate-key",
        (6, 7),
    ),
    "two merges that disagree": (
        "  - &a {id: a,\n     call: m:f}\n  - &b {id: b,\n     call: m:g}\n"
        "  - {<<: [*a, *b], id: c}\n",
        "yaml-merge-conflict",
        (5, 7),
    ),
}

pytestmark = [pytest.mark.case("D3"), pytest.mark.invariant("K4")]


@pytest.mark.parametrize(("steps", "code", "lines"), CASES.values(), ids=CASES)
def test_both_places_are_named(steps, code, lines):
    with pytest.raises(SourceRefused) as refused:
        compile_source((HEAD + steps).encode(), "d3.yaml")
    (problem,) = refused.value.diagnostics
    named = {problem.line, *(other.place.line for other in problem.related)}
    assert problem.code == code
    assert set(lines) <= named, problem


def test_json_is_read_as_strictly_as_yaml():
    source = '{"tally": 1, "workflow": "d3",\n"steps": [{"id": "a", "call": "m:f",\n"id": "a"}]}'
    with pytest.raises(SourceRefused) as refused:
        compile_source(source.encode(), "d3.json")
    (problem,) = refused.value.diagnostics
    assert [problem.line, problem.related[0].place.line] == [3, 2]
    with pytest.raises(ValueRefused, match=r'\$\.x\[0\]: duplicate key "a"'):
        decode('{"x":[{"a":1,"b":2,"a":1}]}')


def test_a_key_of_its_own_wins_over_a_merged_one():
    source = HEAD + "  - &a {id: a, call: m:f, with: {x: 1}}\n  - {<<: *a, id: b, call: m:g}\n"
    definition = compile_source(source.encode(), "d3.yaml").definition
    assert [(n.id, n.call, n.inputs) for n in definition.root.nodes] == [
        ("a", "m:f", {"x": 1}),
        ("b", "m:g", {"x": 1}),
    ]
