"""YAML is read as YAML 1.2, strictly, and nothing hostile costs more than its budget."""

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.diagnostics import Diagnostic, Problems
from tallystick.core.source import BYTES_MAX, Located, Mapping, Scalar, Sequence, kind, plain
from tallystick.core.values import encode
from tallystick.core.yaml_reader import read_yaml

MIB = 1024 * 1024


def read(text: bytes | str) -> tuple[Located | None, tuple[Diagnostic, ...]]:
    problems = Problems("flow.yaml")
    tree = read_yaml(text, problems)
    return tree, problems.diagnostics()


def value(text: bytes | str) -> Any:
    tree, diagnostics = read(text)
    assert diagnostics == ()
    assert tree is not None
    return plain(tree)


@pytest.mark.case("D1")
def test_only_true_and_false_are_booleans() -> None:
    text = "on: off\noff: on\ny: n\nn: y\nno: yes\nyes: no\nOn: Off\nt: [true, True, TRUE, false]\n"
    assert value(text) == {
        "on": "off",
        "off": "on",
        "y": "n",
        "n": "y",
        "no": "yes",
        "yes": "no",
        "On": "Off",
        "t": [True, True, True, False],
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("null", None),
        ("~", None),
        ("Null", None),
        ("---", None),
        ("nULL", "nULL"),
        ("tRUE", "tRUE"),
        ("0", 0),
        ("-0", 0),
        ("+12", 12),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("-0x1F", "-0x1F"),
        ("0b1", "0b1"),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2024-01-01", "2024-01-01"),
        ("1.0", 1.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.5e-3", -0.0005),
        ("1e3", 1000.0),
        ("+1E+3", 1000.0),
        ("-0.0", -0.0),
        ("1e", "1e"),
        (".", "."),
        ("-", [None]),
        ("+", "+"),
        ("0x", "0x"),
        ("0o8", "0o8"),
        ("9007199254740993", 9007199254740993),
        ("1" * 400, int("1" * 400)),
        ("'1'", "1"),
        ('"null"', "null"),
        ("|\n 1", "1"),
        ("'<<': 1", {"<<": 1}),
        ("\ufeffa", "a"),
        (b"\xef\xbb\xbfa: \xc3\xa9", {"a": "é"}),
        ('"a\\u0000b"', "a\u0000b"),
        ("'a%\n  %b'", "a% %b"),
        ("${{ steps.a.output }}", "${{ steps.a.output }}"),
    ],
)
def test_plain_scalars_follow_the_core_schema(text: bytes | str, expected: Any) -> None:
    assert encode(value(text)) == encode(expected)


NOT_PLAIN = "\x7f\x85\u2028\u2029"
JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("abcxyz \n\t\"'\\#:-[]{}é\U0001f600\u2028\x00\x1b"),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("ab:- 1"), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSONS)
def test_canonical_json_is_yaml_with_the_same_value(item: Any) -> None:
    data = encode(item)
    text = "".join(rf"\u{ord(char):04x}" if char in NOT_PLAIN else char for char in data.decode())
    assert encode(value(text)) == data


def test_every_node_and_key_knows_where_it_was_written() -> None:
    tree, _ = read("# c\na: 1\nbé:\n  - x\n  - {k: 'v'}\n")
    assert isinstance(tree, Mapping)
    assert (tree.line, tree.column) == (2, 1)
    entry = tree.entries["bé"]
    assert (entry.line, entry.column) == (3, 1)
    assert isinstance(entry.node, Sequence)
    assert (entry.node.line, entry.node.column) == (4, 3)
    inner = entry.node.items[1]
    assert isinstance(inner, Mapping)
    assert (inner.entries["k"].node.line, inner.entries["k"].node.column) == (5, 9)
    assert [kind(node) for node in (tree, entry.node, inner.entries["k"].node)] == [
        "object",
        "array",
        "string",
    ]


def test_an_alias_is_the_node_of_its_anchor() -> None:
    assert value("a: &x {k: [1]}\nb: *x\n") == {"a": {"k": [1]}, "b": {"k": [1]}}
    assert value("- &x 1\n- *x\n- &x 2\n- *x\n") == [1, 1, 2, 2]
    assert value("- &k key\n- {*k : 1}\n") == ["key", {"key": 1}]


@pytest.mark.case("D3")
def test_an_own_key_wins_over_a_merged_one() -> None:
    base = "a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\n"
    assert value(base + "c: {<<: *a, x: 9}")["c"] == {"x": 9, "y": 2}
    assert value(base + "c: {x: 9, <<: *a}")["c"] == {"x": 9, "y": 2}
    assert value(base + "c: {<<: [*a, *b], y: 0}")["c"] == {"x": 1, "y": 0, "z": 4}


GOLDEN = [
    ("yaml-duplicate-key", "a: 1\nb: 2\na: 3\n", '3:1 the key "a" stands on line 1 already'),
    ("yaml-duplicate-key", '{"a": 1, "\\u0061": 2}', '1:10 the key "a" stands on line 1 already'),
    (
        "yaml-duplicate-key",
        "steps:\n- retry: {}\n  id: x\n  retry: {}\n",
        '4:3 the key "retry" stands on line 2 already',
    ),
    (
        "yaml-duplicate-key",
        "a: &a {}\nb: {<<: *a, <<: *a}\n",
        '2:13 the key "<<" stands on line 2 already',
    ),
    (
        "yaml-merge-conflict",
        "a: &a {y: 2}\nb: &b {y: 3}\nd: {<<: [*a, *b]}\n",
        '3:5 two merged mappings bring the key "y", from line 1 and from line 2',
    ),
    ("yaml-merge-value", "<<: 1\n", "1:1 << merges a mapping or a list of mappings, not integer"),
    ("yaml-key-not-string", "a: {1: b}\n", "1:5 a key of type integer; keys are strings"),
    ("yaml-key-not-string", "true: b\n", "1:1 a key of type boolean; keys are strings"),
    ("yaml-key-not-string", "~: b\n", "1:1 a key of type null; keys are strings"),
    ("yaml-key-not-string", "[a]: b\n", "1:1 a key of type array; keys are strings"),
    ("yaml-tag", "a: !!python/object/apply:os.system [x]\n", "1:4 a YAML tag"),
    ("yaml-tag", "a: !!str 1\n", "1:4 a YAML tag"),
    ("yaml-unknown-alias", "a: *x\n", '1:4 no anchor "x" comes before this alias'),
    ("yaml-alias-cycle", "a: &x [1, *x]\n", '1:11 this alias is inside the node "x" itself'),
    ("yaml-number", "a: .nan\n", "1:4 NaN and infinities are not JSON"),
    ("yaml-number", "a: -.INF\n", "1:4 NaN and infinities are not JSON"),
    ("yaml-number", "a: 1e999\n", "1:4 a float beyond 1.8e308"),
    ("yaml-number", f"a: {'9' * 4_301}\n", "1:4 an integer of more than 4,300 digits"),
    ("yaml-number", f"a: 0x{'f' * 4_301}\n", "1:4 an integer of more than 4,300 digits"),
    ("yaml-multiple-documents", "a: 1\n---\nb: 1\n", "2:1 a second document begins here"),
    ("yaml-empty", "# nothing\n", "0:0 the source holds no document"),
    (
        "yaml-directive",
        "%YAML 1.1\n---\na: on\n",
        "1:1 a line that begins with % is a YAML directive",
    ),
    ("source-encoding", b"a: \xff\n", "1:4 the source is not UTF-8 here"),
    ("source-encoding", "a: \0\n", "1:4 the character U+0000 may not stand in a source"),
    ("source-encoding", "a:\n  \x1b\n", "2:3 the character U+001B may not stand in a source"),
    ("source-encoding", "a: x\u2028y\n", "1:5 the character U+2028 may not stand in a source"),
    ("source-encoding", "a: \ud800\n", "1:4 the character U+D800 may not stand in a source"),
    ("source-encoding", "a: 1\n".encode("utf-16"), "1:1 the source is not UTF-8 here"),
    ("source-too-large", "#" * (BYTES_MAX + 1), "0:0 the source is larger than 2 MiB"),
    ("source-too-large", "é" * (MIB + 1), "0:0 the source is larger than 2 MiB"),
    ("yaml-too-deep", "[" * 65 + "]" * 65, "1:65 nested more than 64 levels deep"),
    (
        "yaml-too-many-nodes",
        "- a\n" * 150_000,
        "149998:3 the source expands to more than 150,000 nodes (aliases count each time)",
    ),
    (
        "yaml-syntax",
        "a:\n\tb: 1\n",
        "2:1 found character that cannot start any token, while scanning for the next token",
    ),
    ("yaml-syntax", "a: b: c\n", "1:5 mapping values are not allowed in this context"),
]


@pytest.mark.case("D3")
@pytest.mark.invariant("K4")
@pytest.mark.parametrize(("code", "text", "told"), GOLDEN)
def test_a_bad_source_is_told_what_is_wrong_and_where(
    code: str, text: bytes | str, told: str
) -> None:
    _, (found,) = read(text)
    assert found.code == code
    assert f"{found.line}:{found.column} {found.message}" == told


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("a:\n\tb: 1\n", "indent with spaces"),
        ("a: {v: ${{ input.a }}}\n", 'put the expression in quotes: "${{ … }}"'),
        ("a: b: c\n", "in quotes"),
        ("a: @x\n", "begins with @ in quotes"),
        ("1: x\n", 'put it in quotes: "1"'),
    ],
)
def test_the_remedy_says_what_to_type(text: str, remedy: str) -> None:
    _, (found,) = read(text)
    assert found.remedy is not None
    assert remedy in found.remedy


@pytest.mark.case("D3")
def test_both_places_of_a_duplicate_are_given() -> None:
    _, (found,) = read("a: 1\nb: 2\na: 3\n")
    assert (found.line, found.related[0].place.line) == (3, 1)


@pytest.mark.invariant("K1")
def test_all_problems_are_told_at_once() -> None:
    tree, found = read("a: !x 1\na: 2\n3: x\nb: .nan\nc: *d\n")
    assert [item.code for item in found] == [
        "yaml-tag",
        "yaml-duplicate-key",
        "yaml-key-not-string",
        "yaml-number",
        "yaml-unknown-alias",
    ]
    assert isinstance(tree, Mapping)
    assert isinstance(tree.entries["a"].node, Scalar)
    assert tree.entries["a"].node.value == "1"


@pytest.mark.invariant("K2")
def test_no_message_quotes_a_value() -> None:
    secret = "s3cr3t"
    for text in (
        f"a: !{secret} {secret}\n",
        f"a: {secret}\na: {secret}\n",
        f"[{secret}]: {secret}\n",
    ):
        _, found = read(text)
        assert found
        assert all(secret not in str(item) for item in found)


def ladder(rungs: int, width: int) -> str:
    lines = ["a0: &a0 [" + ",".join(["x"] * width) + "]"]
    lines += [
        f"a{rung}: &a{rung} [" + ",".join([f"*a{rung - 1}"] * width) + "]"
        for rung in range(1, rungs)
    ]
    return "\n".join(lines)


HOSTILE = {
    "ladder": ladder(9, 9),
    "ladder-of-mappings": "a0: &a0 {k: v}\n"
    + "\n".join(f"a{n}: &a{n} {{<<: *a{n - 1}, l: *a{n - 1}, r: *a{n - 1}}}" for n in range(1, 30)),
    "deep-aliases": "a0: &a0 [x]\n" + "\n".join(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 100)),
    "depth-flow": "[" * (2 * MIB),
    "depth-mapping": "{a: " * (MIB // 2),
    "depth-block": "- " * MIB,
    "depth-keys": "? " * MIB,
    "events": "[" + "a," * (MIB - 2) + "]",
    "keys": "".join(f"k{n}: 1\n" for n in range(150_000)),
    "directives": "%TAG !a ! \n" * 100_000,
    "late-directives": "a\n...\n" + "%TAG !a ! \n" * 100_000,
    "size": "a" * (2 * MIB + 1),
    "nul": "a" * MIB + "\0",
    "tags": "- !x a\n" * 40_000,
    "duplicates": "a: 1\n" * 70_000,
    "unclosed": '"' + "a" * (2 * MIB - 1),
}

MEASURE = """
import sys, time
from tests.memory import peak_bytes
from tallystick.core.diagnostics import Problems
from tallystick.core.yaml_reader import read_yaml
text = sys.stdin.read()
before = peak_bytes() // 1024
times = []
for _ in range(3):
    problems = Problems("flow.yaml")
    start = time.process_time()
    read_yaml(text, problems)
    found = problems.diagnostics()
    times.append(time.process_time() - start)
start = time.process_time()
for _ in range(2_000_000):
    pass
slow = max(1, (time.process_time() - start) / 0.04)
print(min(times) / slow, peak_bytes() // 1024 - before, len(found))
"""


@pytest.mark.case("D5")
@pytest.mark.invariant("K5")
@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_source_is_refused_quickly_and_in_little_memory(name: str) -> None:
    """The best of three, in processor time of a machine that counts to 50 million in a second."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE],
        input=HOSTILE[name],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    seconds, kib, found = done.stdout.split()
    assert int(found) >= 1
    assert float(seconds) < (0.2 if name not in {"tags", "duplicates"} else 1.0)
    assert int(kib) < 50 * 1024


@pytest.mark.case("D5")
def test_the_limit_counts_expanded_nodes() -> None:
    """Nine rungs of nine would be 400 million nodes; four are 7,380 and fit."""
    _, (found,) = read(ladder(9, 9))
    assert found.code == "yaml-too-many-nodes"
    _, found_none = read(ladder(4, 9))
    assert found_none == ()
    _, (deep,) = read(HOSTILE["deep-aliases"])
    assert deep.code == "yaml-too-deep"


def test_the_deepest_and_the_largest_are_read() -> None:
    assert value("[" * 64 + "]" * 64)
    assert len(value("- a\n" * 149_994)) == 149_994
    assert math.isclose(value("1e308"), 1e308)
