"""What a source means, and that what is wrong with it is told, all of it, in its place."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tallystick.core import compiler, soundness
from tallystick.core.compiler import Compiled, compile_source
from tallystick.core.definition import Definition, Limits, Node, Retry, Scope
from tallystick.core.diagnostics import SHOWN_MAX, Diagnostic, SourceRefused
from tallystick.core.graph import RETRIED_BY_CLASS, Plan, definition_digest
from tallystick.core.recovery import EFFECTS
from tests import project

HEAD = "tally: 1\nworkflow: w\n"


def compiled(text: str) -> Compiled:
    return compile_source(text.encode(), "flow.yaml")


def refused(text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(SourceRefused) as caught:
        compiled(text)
    return caught.value.diagnostics


def codes(text: str) -> list[str]:
    return [problem.code for problem in refused(text)]


def steps(*written: str, head: str = HEAD) -> str:
    return head + "steps:\n" + "".join(f"  - {{{step}}}\n" for step in written)


def nodes(*written: str, head: str = HEAD) -> tuple[Node, ...]:
    return compiled(steps(*written, head=head)).definition.root.nodes


A = 'id: a, call: "m:f"'
B = 'id: b, call: "m:f"'
C = 'id: c, call: "m:f"'


def test_everything_has_its_place_in_the_definition() -> None:
    source = """
tally: 1
workflow: release
title: Release
description: What is released, and to whom.
labels: {team: infra}
input: {type: object, properties: {n: {type: integer}}}
types: {Id: {type: string}}
limits: {duration: 1h30m, attempts: 100, concurrency: 4}
steps:
  - id: build
    title: Build it
    call: "shop.work:build"
    with: {n: "${{ input.n }}", list: [1, 2.5, null]}
    retry: {max_attempts: 3, on: [error, timeout], backoff: 5s, factor: 3, backoff_max: 1m,
            interruptions_max: 7}
    timeout: 10m
    effect: read_only
    output: {$ref: "#/types/Id"}
    on_failure: continue
  - id: stop
    needs: [build]
    when: ${{ input.n > 3 }}
    fail: "too many: ${{ input.n }}"
  - id: done
    needs: stop
    if_skipped: run
    succeed: {id: "${{ steps.build.output }}"}
output: ${{ steps.build.output }}
"""
    found = compiled(source)
    assert found.definition == Definition(
        workflow="release",
        input={"type": "object", "properties": {"n": {"type": "integer"}}},
        types={"Id": {"type": "string"}},
        limits=Limits(5_400_000, 100, 4),
        root=Scope(
            (
                Node(
                    "build",
                    "call",
                    call="shop.work:build",
                    inputs={"n": "${{ input.n }}", "list": [1, 2.5, None]},
                    retry=Retry(3, ("timeout", "error"), 5_000, 3.0, 60_000, 7),
                    timeout_ms=600_000,
                    effect="read_only",
                    output_schema={"$ref": "#/types/Id"},
                    on_failure="continue",
                ),
                Node(
                    "stop",
                    "fail",
                    needs=("build",),
                    when="${{ input.n > 3 }}",
                    message="too many: ${{ input.n }}",
                ),
                Node(
                    "done",
                    "succeed",
                    needs=("stop",),
                    if_skipped="run",
                    value={"id": "${{ steps.build.output }}"},
                ),
            )
        ),
        output="${{ steps.build.output }}",
    )
    assert found.digest == definition_digest(found.definition).hex()
    assert found.description.titles == {"": "Release", "build": "Build it"}
    assert found.description.labels == {"team": "infra"}
    assert found.description.text == "What is released, and to whom."


@pytest.mark.invariant("G16")
def test_default_order_runs_after_a_skipped_step_and_explicit_needs_do_not() -> None:
    written = (A, B, f"{C}, needs: [b]", 'id: d, call: "m:f", needs: []')
    shape = [(node.needs, node.if_skipped) for node in nodes(*written)]
    assert shape == [((), "skip"), (("a",), "run"), (("b",), "skip"), ((), "skip")]


def test_defaults_are_for_steps_that_work_and_are_silent() -> None:
    head = (
        HEAD + "defaults: {effect: idempotent, timeout: 5s, on_failure: continue, "
        "retry: {max_attempts: 4, backoff: 9s}}\n"
    )
    silent, loud, stop = nodes(
        A,
        f"{B}, effect: read_only, timeout: 1s, on_failure: fail, retry: {{max_attempts: 2}}",
        "id: c, needs: b, fail: stop",
        head=head,
    )
    assert silent.retry == Retry(max_attempts=4, backoff_ms=9_000)
    assert (silent.effect, silent.timeout_ms, silent.on_failure) == (
        "idempotent",
        5_000,
        "continue",
    )
    assert loud.retry == Retry(max_attempts=2, backoff_ms=9_000)
    assert (loud.effect, loud.timeout_ms, loud.on_failure) == ("read_only", 1_000, "fail")
    assert stop == Node("c", "fail", needs=("b",), message="stop")


@pytest.mark.parametrize(
    ("written", "when"),
    [
        ("true", None),
        ("false", "${{ false }}"),
        ('"${{ input.x }}"', "${{ input.x }}"),
        ('"  ${{ input.x == 1 }}\\n"', "${{ input.x == 1 }}"),
    ],
)
def test_a_condition_has_one_form(written: str, when: str | None) -> None:
    assert nodes(f"{A}, when: {written}")[0].when == when


@pytest.mark.invariant("K1", "K4")
def test_all_problems_are_told_at_once_and_in_order() -> None:
    source = """
tally: 1
workflow: w
colour: blue
input: {type: objekt}
limits: {attempts: 0}
defaults: {timeout: 30}
steps:
  - id: a
    call: shop
    needs: [z]
    when: ${{ inptu.x }}
    retry: {max_attempts: -1, on: never}
  - id: a
    effect: none
output: ${{ steps.q.output }}
"""
    found = refused(source)
    assert [(it.line, it.code) for it in found] == [
        (4, "key-unknown"),
        (5, "schema-invalid"),
        (6, "out-of-range"),
        (7, "wrong-type"),
        (10, "call-invalid"),
        (11, "needs-unknown"),
        (12, "expression-unknown-name"),
        (13, "out-of-range"),
        (13, "value-unknown"),
        (14, "kind-missing"),
        (14, "step-id-repeated"),
        (15, "value-unknown"),
        (16, "expression-unknown-name"),
    ]
    assert all(it.file == "flow.yaml" and it.column > 0 for it in found)
    assert refused(source) == found


@pytest.mark.invariant("K1")
def test_problems_are_bounded() -> None:
    found = refused(HEAD + "".join(f"k{n}: 1\n" for n in range(10_000)) + "steps: []\n")
    assert len(found) == SHOWN_MAX
    assert found[-1].code == "too-many-problems"


@pytest.mark.invariant("K2")
def test_no_value_is_echoed() -> None:
    secret = "hunter2"
    source = f"""
tally: {secret}
---
"""
    places = f"""
tally: 1
workflow: [{secret}]
labels: {{a: [{secret}]}}
input: {{type: object, properties: {{p: {{type: {secret}, sensitive: true, default: {secret}}}}}}}
limits: {{duration: {secret}, attempts: {secret}}}
defaults: {{effect: {secret}, on_failure: {secret}}}
steps:
  - {{id: [{secret}], call: {secret}, timeout: {secret}, when: {secret}, if_skipped: {secret}}}
  - {{id: b, call: "m:f", with: {secret}, retry: {{max_attempts: {secret}, on: {secret}}}}}
  - {{id: c, call: "m:f", retry: {{factor: {secret}, backoff: {secret}, on: [{secret}]}}}}
"""
    for text in (source, places):
        assert not [it for it in refused(text) if secret in str(it)]


@pytest.mark.invariant("K3")
def test_compiling_imports_opens_and_writes_nothing() -> None:
    """The CEL library is loaded by the first computed expression, the task's module never."""
    code = """
import os, sys
from tallystick.core.compiler import compile_source
import tallystick.core.yaml_reader
seen = []
sys.addaudithook(lambda event, args: seen.append((event, args)) if event in WATCHED else None)
WATCHED = {"open", "os.mkdir", "os.remove", "socket.connect", "subprocess.Popen"}
SOURCE = b'''
tally: 1
workflow: w
steps:
  - {id: a, call: "antigravity:f", with: {a: "${{ input.x.y[0] }}"}}
'''
compile_source(SOURCE, "f")
print([(event, args[0]) for event, args in seen], "antigravity" in sys.modules,
      "cel_expr_python" in sys.modules)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "[] False False\n"


@pytest.mark.case("R1")
@pytest.mark.invariant("K4")
@pytest.mark.parametrize("written", ["0", "-1", '"3"', "true", "null", "1.0", "[3]", "10000000"])
def test_a_number_of_attempts_is_a_number_from_1(written: str) -> None:
    (problem,) = refused(steps(f"{A}, retry: {{max_attempts: {written}}}"))
    assert problem.code in {"wrong-type", "out-of-range"}
    assert "`max_attempts` is an integer" in problem.message
    assert (problem.line, problem.column) == (4, 34)


@pytest.mark.case("R1")
@pytest.mark.parametrize("written", [1, 2, 3])
def test_a_number_of_attempts_is_taken_as_it_is(written: int) -> None:
    (node,) = nodes(f"{A}, retry: {{max_attempts: {written}}}")
    assert node.retry == Retry(max_attempts=written)


@pytest.mark.invariant("K4")
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("kind", ["timeout", "error", "exit", "status", "conflict", "unavailable"])
def test_a_retry_that_repeats_an_effect_is_refused_with_what_is_allowed(
    effect: str, kind: str
) -> None:
    source = steps(f"{A}, effect: {effect}, retry: {{max_attempts: 2, on: [{kind}]}}")
    allowed = RETRIED_BY_CLASS[effect]  # type: ignore[index]
    if kind in allowed:
        assert compiled(source).definition.root.nodes[0].retry == Retry(2, (kind,))  # type: ignore[arg-type]
        return
    (problem,) = refused(source)
    assert problem.code == "retry-repeats-effect"
    assert problem.remedy is not None
    assert all(other in problem.remedy for other in allowed)


@pytest.mark.case("D1")
@pytest.mark.invariant("K4")
@pytest.mark.parametrize("word", ["on", "off", "y", "n", "no", "yes"])
def test_a_word_that_yaml_1_1_took_for_a_boolean_is_a_word(word: str) -> None:
    source = f"""
tally: 1
workflow: w
input: {{type: object, properties: {{{word}: {{type: string}}}}}}
steps:
  - {{id: {word}, call: "m:f", with: {{{word}: {word}, read: "${{{{ input.{word} }}}}"}}}}
"""
    (node,) = compiled(source).definition.root.nodes
    assert node.id == word
    assert node.inputs == {word: word, "read": f"${{{{ input.{word} }}}}"}


@pytest.mark.case("D3")
@pytest.mark.invariant("K4")
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (steps(A, B) + "steps: []\n", (6, 3)),
        (HEAD + "steps:\n- id: a\n  call: m:f\n  with: {x: 1}\n  with: {x: 2}\n", (7, 6)),
        ('{"tally": 1, "workflow": "w",\n"steps": [],\n"steps": []}', (3, 2)),
    ],
)
def test_a_key_that_stands_twice_is_told_with_both_lines(text: str, lines: tuple[int, int]) -> None:
    problem = next(it for it in refused(text) if it.code == "yaml-duplicate-key")
    assert (problem.line, problem.related[0].place.line) == lines
    assert f"line {lines[1]}" in problem.message


@pytest.mark.case("D3")
def test_two_steps_of_one_name_are_told() -> None:
    assert codes(steps(A, B, A)) == ["step-id-repeated"]


def test_what_a_merge_brings_an_explicit_key_overrides() -> None:
    source = HEAD + (
        "steps:\n  - &a {id: a, call: m:f, effect: read_only}\n  - {<<: *a, id: b, timeout: 1s}\n"
    )
    assert [(node.id, node.timeout_ms) for node in compiled(source).definition.root.nodes] == [
        ("a", None),
        ("b", 1_000),
    ]


@pytest.mark.parametrize("key", ["on_unknown", "env", "resources", "probe"])
def test_a_key_of_a_later_version_is_refused_by_name(key: str) -> None:
    (problem,) = refused(steps(f"{A}, {key}: x"))
    assert problem.code == "key-not-yet"
    assert f"`{key}`" in problem.message


@pytest.mark.parametrize("kind", sorted(soundness.KINDS_LATER))
def test_a_kind_of_a_later_version_is_refused_by_name_whatever_else_it_has(kind: str) -> None:
    (problem,) = refused(steps(f"id: s, {kind}: {{x: 1}}, other: [1], output: json"))
    assert problem.code == "kind-not-yet"
    assert f"`{kind}`" in problem.message


def test_a_default_that_is_wrong_is_told_once_and_in_its_place() -> None:
    head = HEAD + "defaults:\n  effect: reed_only\n"
    (problem,) = refused(steps(A, B, C, head=head))
    assert (problem.code, problem.line, problem.remedy) == (
        "value-unknown",
        4,
        "did you mean `read_only`?",
    )


def test_a_default_that_does_not_fit_a_step_is_told_at_the_step() -> None:
    head = HEAD + "defaults: {retry: {max_attempts: 2, on: [error]}}\n"
    (problem,) = refused(steps(f"{A}, effect: mutating", f"{B}, effect: read_only", head=head))
    assert (problem.code, problem.line) == ("retry-repeats-effect", 5)
    assert problem.related[0].place.line == 3


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ('"${{ steps.b.output }}"', "reference-not-before"),
        ('"${{ steps.a.output }}"', "reference-not-before"),
        ('"${{ steps.nope.output }}"', "expression-unknown-name"),
        ('"${{ steps.a }}"', "expression-unknown-name"),
        ('"${{ input.order.numbr }}"', "expression-unknown-name"),
        ('"${{ input.order.number + 1 > 1 }}"', "expression-type"),
        ('"at ${{ input.order }}"', "expression-type"),
        ('"${{ 1 +"', "expression-syntax"),
    ],
)
def test_a_mistake_in_an_expression_is_found_before_anything_runs(written: str, code: str) -> None:
    head = HEAD + (
        "input:\n  type: object\n  properties:\n    order:\n      type: object\n"
        "      properties: {number: {type: string}}\n"
    )
    (problem,) = refused(steps(f"{A}, with: {{x: {{y: {written}}}}}", B, head=head))
    assert (problem.code, problem.line) == (code, 10)


@pytest.mark.invariant("G4")
@pytest.mark.parametrize("when", ["input.n", "input.name", "input.n + 1", "'x'", "[1]", "null"])
def test_a_condition_of_a_known_other_type_is_refused(when: str) -> None:
    head = HEAD + (
        "input: {type: object, properties: {n: {type: integer}, name: {type: string}}}\n"
    )
    assert codes(steps(f'{A}, when: "${{{{ {when} }}}}"', head=head)) == ["when-not-boolean"]


@pytest.mark.parametrize("when", ["input.paid", "input.any", "input.n > 3", "true", "run.id != ''"])
def test_a_condition_that_is_or_may_be_a_boolean_is_accepted(when: str) -> None:
    head = HEAD + (
        "input: {type: object, properties: {n: {type: integer}, paid: {type: boolean}, any: {}}}\n"
    )
    assert nodes(f'{A}, when: "${{{{ {when} }}}}"', head=head)[0].when == f"${{{{ {when} }}}}"


@pytest.mark.parametrize(
    ("written", "warned"),
    [
        ((f'{A}, when: "${{{{ input.x }}}}"', f'{B}, with: {{x: "${{{{ steps.a.output }}}}"}}'), 1),
        (
            (
                f'{A}, when: "${{{{ input.x }}}}"',
                f'{B}, when: "${{{{ input.x }}}}", with: {{x: "${{{{ steps.a.output }}}}"}}',
            ),
            0,
        ),
        (
            (
                f'{A}, when: "${{{{ input.x }}}}"',
                f'{B}, when: "${{{{ has(steps.a.output) }}}}", '
                'with: {x: "${{ steps.a.output }}"}',
            ),
            0,
        ),
        (
            (
                f'{A}, when: "${{{{ input.x }}}}"',
                f"{B}, needs: a",
                f'{C}, needs: [a, b], with: {{x: "${{{{ steps.a.output }}}}"}}',
            ),
            0,
        ),
        (
            (
                f'{A}, when: "${{{{ input.x }}}}"',
                B,
                f'{C}, needs: [a, b], with: {{x: "${{{{ steps.a.output }}}}"}}',
            ),
            1,
        ),
        ((f"{A}, on_failure: continue", f'{B}, with: {{x: "${{{{ steps.a.output.y }}}}"}}'), 1),
        ((f"{A}, on_failure: continue", f'{B}, with: {{x: "${{{{ steps.a.output }}}}"}}'), 0),
    ],
)
def test_an_output_that_may_be_missing_is_warned_of(written: tuple[str, ...], warned: int) -> None:
    head = HEAD + "defaults: {effect: read_only}\n"
    found = compiled(steps(*written, head=head)).warnings
    assert [it.code for it in found] == ["reference-maybe-missing"] * warned


def test_steps_without_an_effect_are_one_warning_with_their_count() -> None:
    (warning,) = compiled(steps(A, f"{B}, effect: mutating", C)).warnings
    assert warning.code == "effect-undeclared"
    assert warning.message.startswith("2 steps")


@pytest.mark.slow
def test_ten_thousand_steps_compile_and_can_be_planned() -> None:
    head = HEAD + "defaults: {effect: read_only}\n"
    written = [A.replace("a,", "s0,")] + [
        f'id: s{n}, call: "m:f", with: {{x: "${{{{ steps.s{n - 1}.output }}}}"}}'
        for n in range(1, 10_000)
    ]
    found = compiled(steps(*written, head=head))
    assert found.warnings == ()
    assert Plan(found.definition).digest.hex() == found.digest


EXAMPLES = [path for path in project.files() if path.suffix == ".yaml" and "examples" in path.parts]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_compile_without_a_warning(path: Path) -> None:
    assert compile_source(path.read_bytes(), path.name).warnings == ()


def test_there_are_examples() -> None:
    assert {path.name for path in EXAMPLES} >= {"order.yaml", "summary.yaml"}


# Definitions that were built in Python.


@pytest.mark.parametrize(
    ("node", "code"),
    [
        (Node("a", "loop"), "kind-unknown"),
        (Node("a", "map"), "kind-not-yet"),
        (Node("a", "call", call="m:f", inputs={"x": float("nan")}), "value-not-json"),
        (Node("a", "call", call="m:f", inputs={"x": object()}), "value-not-json"),  # type: ignore[dict-item]
        (Node("a", "call", call="m:f", retry=Retry(max_attempts="3")), "out-of-range"),  # type: ignore[arg-type]
        (Node("a", "call", call="m:f", retry=Retry(max_attempts=True)), "out-of-range"),
        (Node("a", "call", call="m:f", timeout_ms=0), "out-of-range"),
        (Node("a", "call", call="m:f", effect="none"), "value-unknown"),  # type: ignore[arg-type]
        (Node("a", "call"), "call-invalid"),
        (Node("a", "fail", call="m:f", message="x"), "field-not-here"),
        (Node("a", "call", call="m:f", output_schema={"type": 1}), "schema-invalid"),
        (Node("a", "call", call="m:f", needs=("a",)), "needs-itself"),
    ],
)
def test_a_definition_from_python_is_judged_by_the_same_rules(node: Node, code: str) -> None:
    (problem,) = soundness.problems(Definition("w", Scope((node,))))
    assert problem.code == code
    assert problem.path[:2] == ("steps", 0)


def test_a_sound_definition_has_no_problems() -> None:
    sound = compiled(steps(A, B)).definition
    assert soundness.problems(sound) == []
    assert soundness.problems(msgspec.structs.replace(sound, root=Scope(()))) != []


def test_the_budget_of_aliases_is_for_text(monkeypatch: pytest.MonkeyPatch) -> None:
    text = steps(A) + 'output: [&x "abcdefghij", *x, *x]\n'
    assert compiled(text).definition.output == ["abcdefghij"] * 3
    monkeypatch.setattr(compiler, "EXPANDED_BYTES_MAX", 50)
    assert codes(text) == ["source-expands"]


def test_the_budget_of_aliases_of_one_text_is_told_before_the_tree_is_built() -> None:
    text = f"tally: 1\nworkflow: w\ntitle: &a {'x' * 200_000}\nsteps: [{'*a,' * 50}]\n"
    assert codes(text) == ["source-expands"]
