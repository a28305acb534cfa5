"""D3: a key that is written twice is refused, and both places are named; the last never wins."""

import pytest

from tallystick.core.compiler import compile_source
from tallystick.core.diagnostics import SourceRefused
from tallystick.core.values import ValueRefused, decode
from tests.cases.field import tally

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


@pytest.mark.slow
def test_the_command_says_it_too(tmp_path):
    (tmp_path / "d3.yaml").write_text(HEAD + CASES["a second `with:`"][0])
    done = tally("validate", "d3.yaml", status=2, folder=tmp_path)
    said = (done.stdout + done.stderr).decode()
    assert "d3.yaml:7:5" in said
    assert "stands on line 6 already" in said
    (tmp_path / "ok.yaml").write_text(HEAD + "  - {id: a, call: tests.cases.tasks:give}\n")
    (tmp_path / "twice.json").write_text('{"a":1,"a":2}')
    done = tally("run", "ok.yaml", "--input", "twice.json", status=2, folder=tmp_path)
    assert 'duplicate key "a"' in done.stderr.decode()
