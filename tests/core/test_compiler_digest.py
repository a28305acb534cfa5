"""What the digest covers, and what it does not; and that no source, however bad, is a crash."""

import copy
import json
import random
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tallystick.core.canonical import definition_bytes, definition_digest
from tallystick.core.compiler import Compiled, compile_source
from tallystick.core.definition import Definition, Limits, Node, Retry, Scope
from tallystick.core.diagnostics import SHOWN_MAX, SourceRefused
from tallystick.core.graph import Plan
from tallystick.core.soundness import problems
from tallystick.core.values import canonical
from tests import project
from tests.core.definitions import definitions, outline, source_of

ORDER = (project.ROOT / "examples/orders/order.yaml").read_text("utf-8")


def compiled(text: str) -> Compiled:
    return compile_source(text.encode("utf-8", "surrogatepass"), "flow.yaml")


@pytest.mark.invariant("I9")
@given(definitions(), st.integers(0, 2**32))
def test_a_definition_from_python_and_its_source_are_one(definition: Definition, seed: int) -> None:
    """Order of keys, escapes and spelled-out defaults do not show."""
    assert problems(definition) == []
    expected = definition_digest(definition).hex()
    for spelled_out in (False, True):
        found = compiled(source_of(outline(definition, spelled_out=spelled_out), seed))
        assert found.definition == definition
        assert found.digest == expected
        assert definition_bytes(found.definition) == Plan(definition).body


@pytest.mark.invariant("I9")
@given(definitions())
def test_what_is_stored_decodes_to_what_was_stored(definition: Definition) -> None:
    body = definition_bytes(definition)
    again = msgspec.json.decode(body, type=Definition)
    assert again == definition
    assert definition_bytes(again) == body
    assert canonical(body) == body


@pytest.mark.invariant("I9")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Node("a", "call", needs=(), if_skipped="run"), Node("a", "call")),
        (Node("a", "call", inputs={}), Node("a", "call")),
        (Node("a", "call", retry=Retry()), Node("a", "call")),
        (
            Node("a", "call", retry=Retry(2, factor=3)),
            Node("a", "call", retry=Retry(2, factor=3.0)),
        ),
        (Node("a", "call", output_schema=True), Node("a", "call", output_schema={})),
        (Node("a", "call", output_schema=True), Node("a", "call")),
        (Node("a", "succeed", value=None), Node("a", "succeed")),
        (Node("a", "call", on_failure=str(b"fail", "ascii")), Node("a", "call")),  # type: ignore[arg-type]
    ],
)
def test_what_python_can_say_in_two_ways_is_one(one: Node, other: Node) -> None:
    assert definition_digest(Definition("w", Scope((one,)), limits=Limits())) == definition_digest(
        Definition("w", Scope((other,)))
    )


@pytest.mark.invariant("I9")
def test_words_for_people_do_not_change_the_digest() -> None:
    changed = ORDER.replace("tally: 1", "tally: 1\ntitle: T\nlabels: {a: b}\ndescription: D")
    changed = changed.replace("  - id: check", "  # a note\n  - title: Check\n    id: check")
    assert changed.count("itle: ") == 2
    assert compiled(changed).digest == compiled(ORDER).digest


@pytest.mark.invariant("I9")
@pytest.mark.parametrize(
    ("written", "changed"),
    [
        ("workflow: order", "workflow: orders"),
        ("maxLength: 200", "maxLength: 201"),
        ("{duration: 30m, attempts: 100}", "{duration: 31m, attempts: 100}"),
        ("{duration: 30m, attempts: 100}", "{duration: 30m, attempts: 101}"),
        ("{duration: 30m, attempts: 100}", "{duration: 30m, attempts: 100, concurrency: 1}"),
        ("effect: mutating", "effect: idempotent"),
        ("timeout: 20s", "timeout: 21s"),
        ("    timeout: 20s\n", ""),
        ("max_attempts: 5, backoff", "max_attempts: 6, backoff"),
        ("interruptions_max: 20", "interruptions_max: 21"),
        ("on: [unavailable], ", ""),
        ("backoff: 50ms", "backoff: 51ms"),
        ("id: price\n", "id: price\n    needs: [check]\n"),
        ("id: price\n", "id: price\n    on_failure: continue\n"),
        ("id: price\n", "id: price\n    if_skipped: skip\n"),
        ("id: price\n", "id: price\n    when: false\n"),
        ("id: price\n", "id: price\n    output: {type: object}\n"),
        ("shop:price", "shop:prices"),
        ('{row: "${{ input }}"}', '{line: "${{ input }}"}'),
        ("number: ${{ input.number }}", "number: ${{ input.customer }}"),
        ("id: refuse", "id: reject"),
    ],
)
def test_what_is_done_and_how_changes_the_digest(written: str, changed: str) -> None:
    assert written in ORDER
    assert compiled(ORDER.replace(written, changed, 1)).digest != compiled(ORDER).digest


@pytest.mark.invariant("I9")
@given(definitions(), definitions())
def test_different_definitions_have_different_digests(one: Definition, other: Definition) -> None:
    assume(one != other)
    assert compiled(source_of(outline(one))).digest != compiled(source_of(outline(other))).digest


# Sources that are wrong.


def told(data: bytes) -> int:
    """Return how many problems a source has, after looking at what is told of them."""
    try:
        found = compile_source(data, "f")
    except SourceRefused as refused:
        diagnostics = refused.diagnostics
        assert 1 <= len(diagnostics) <= SHOWN_MAX
        places = [
            (it.line, it.column, it.code) for it in diagnostics if it.code != "too-many-problems"
        ]
        assert places == sorted(places)
        return len(diagnostics)
    assert problems(found.definition) == []
    assert len(found.digest) == 64
    return 0


WORDS = ("tally", "steps", "id", "call", "with", "retry", "on", "needs", "when", "output", "types")
SCALARS: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**80,
    1e300,
    "",
    "x",
    "5s",
    "m:f",
    "${{ input }}",
    "${{ steps.check.output }}",
    "${{ steps['check'] }}",
    "${{",
    "#/types/Row",
    "\u202e",
)
PARTS = st.sampled_from(SCALARS) | st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from((*WORDS, "$ref", "type", "items")), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.invariant("K1", "K4")
@given(definitions(), st.integers(0, 2**32), st.lists(PARTS, min_size=1, max_size=3))
def test_a_mutated_document_compiles_or_is_refused(
    definition: Definition, seed: int, parts: list[Any]
) -> None:
    document = copy.deepcopy(outline(definition))
    chance = random.Random(seed)
    for part in parts:
        mutate(document, part, chance)
    told(json.dumps(document).encode())


def mutate(document: dict[str, Any], part: Any, chance: random.Random) -> None:
    """Replace, remove or add one thing somewhere in a document."""
    places: list[Any] = []
    stack: list[Any] = [document]
    while stack:
        item = stack.pop()
        if isinstance(item, (dict, list)) and item:
            places.append(item)
            stack.extend(item.values() if isinstance(item, dict) else item)
    place = chance.choice(places) if places else document
    if isinstance(place, list):
        place[chance.randrange(len(place))] = part
    elif chance.random() < 0.3:
        place[chance.choice(WORDS)] = part
    else:
        key = chance.choice(list(place)) if place else "tally"
        if chance.random() < 0.3:
            place.pop(key, None)
        else:
            place[key] = part


@given(st.integers(0, len(ORDER)), st.integers(0, 40), st.text(max_size=8) | st.binary(max_size=8))
@example(0, 0, b"\xff")
@example(10, 5, "\x00")
def test_a_source_with_a_hole_or_a_splinter_compiles_or_is_refused(
    at: int, length: int, put: str | bytes
) -> None:
    data = ORDER.encode()
    piece = put.encode("utf-8", "surrogatepass") if isinstance(put, str) else put
    told(data[:at] + piece + data[at + length :])


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_compile_or_are_refused(data: bytes) -> None:
    told(data)


HEAD = "tally: 1\nworkflow: w\n"
STEP = '{id: a, call: "m:f"}'
LADDER = "".join(
    f"  - &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE = {
    "the ladder of aliases": f"{HEAD}steps:\n  - &a [x]\n{LADDER}",
    "depth": f"{HEAD}steps: {'[' * 100_000}",
    "depth of flow mappings": f"{HEAD}steps: {'{a: ' * 50_000}",
    "size": f"{HEAD}title: {'x' * 3_000_000}",
    "aliases of a long text": f"{HEAD}title: &a {'x' * 200_000}\nsteps: [{'*a,' * 50_000}]",
    "steps": f"{HEAD}steps: [{'1,' * 20_000}]",
    "a type inside itself": f"{HEAD}types: {{T: {{not: {{$ref: '#/types/T'}}}}}}\nsteps: [{STEP}]",
    "types that double": HEAD
    + "types:\n"
    + "".join(
        f"  T{n}: {{allOf: [{{$ref: '#/types/T{n + 1}'}}, {{$ref: '#/types/T{n + 1}'}}]}}\n"
        for n in range(60)
    )
    + f"  T60: true\nsteps: [{STEP}]",
    "a pattern that explodes": HEAD
    + 'input: {pattern: "(((a{1,99}){1,99}){1,99})*$"}\n'
    + f"steps: [{STEP}]",
    "braces": f'{HEAD}steps: [{{id: a, fail: "{"${{ " * 20_000}"}}]',
    "an expression in depth": f'{HEAD}steps: [{{id: a, fail: "${{{{ {"(" * 2_000} }}}}"}}]',
}


@pytest.mark.case("D5")
@pytest.mark.invariant("K5")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_source_is_refused_quickly(name: str) -> None:
    data = HOSTILE[name].encode()
    told(b"tally: 1\nworkflow: w\nsteps: [{id: a, fail: '${{ 1 + '}]")  # load what is loaded once
    times = []
    for _ in range(3):  # a busy machine is not a slow compiler
        begin = time.process_time()
        assert told(data) >= 1
        times.append(time.process_time() - begin)
        if times[-1] < 0.2:
            break
    assert min(times) < 0.2


@pytest.mark.slow
@pytest.mark.invariant("K5")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_source_takes_little_memory(name: str) -> None:
    code = """
import sys
from tests.memory import peak_bytes as peak
from tallystick.core.compiler import compile_source
from tallystick.core.diagnostics import SourceRefused
data = sys.stdin.buffer.read()
try: compile_source(b"tally: 1\\nworkflow: w\\nsteps: [{id: a, fail: '${{ 1 + '}]", "f")
except SourceRefused: pass
before = peak()
try: compile_source(data, "f")
except SourceRefused: pass
print(peak() - before)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], input=HOSTILE[name].encode(), capture_output=True, check=True
    )
    assert int(ran.stdout) < 50 * 1024 * 1024
