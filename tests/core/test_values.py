"""One value, one spelling: canonical JSON refuses what it cannot spell and says where."""

import enum
import hashlib
import json
import math
import struct
from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.values import (
    DEPTH_MAX,
    ValueRefused,
    canonical,
    decode,
    decode_trusted,
    digest,
    encode,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def same(left: object, right: object) -> bool:
    """Compare as JSON does: 1, 1.0 and true are three values, and so are 0.0 and -0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float) and isinstance(right, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@given(VALUES)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    data = encode(value)
    assert same(decode(data), value)
    assert same(decode_trusted(data), value)
    assert encode(decode(data)) == data


@given(VALUES, VALUES)
def test_equal_bytes_mean_the_same_value(left: Any, right: Any) -> None:
    assert (encode(left) == encode(right)) == same(left, right)


@given(VALUES, st.randoms(use_true_random=False))
def test_spaces_escapes_and_key_order_do_not_change_the_bytes(value: Any, random: Any) -> None:
    def shuffled(item: Any) -> Any:
        if isinstance(item, list):
            return [shuffled(inner) for inner in item]
        if isinstance(item, dict):
            return {key: shuffled(item[key]) for key in random.sample(list(item), len(item))}
        return item

    text = json.dumps(
        shuffled(value), indent=random.choice([None, 3]), ensure_ascii=random.choice([True, False])
    )
    assert canonical(text) == encode(value)


@given(st.lists(TEXTS, unique=True))
def test_keys_are_sorted_by_their_utf8_bytes(keys: list[str]) -> None:
    written = list(json.loads(encode(dict.fromkeys(keys, 0))))
    assert written == sorted(keys, key=lambda key: key.encode())


def test_keys_are_not_sorted_by_utf16_units() -> None:
    assert encode({"\U0001f600": 1, "\uffff": 2}) == '{"\uffff":2,"\U0001f600":1}'.encode()


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (0.1, "0.1"),
        (0.0001, "0.0001"),
        (0.00001, "0.00001"),
        (0.000001, "1e-6"),
        (1e-7, "1e-7"),
        (123456.789, "123456.789"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e16"),
        (1e21, "1e21"),
        (1e22, "1e22"),
        (1e23, "1e23"),
        (1e308, "1e308"),
        (1.7976931348623157e308, "1.7976931348623157e308"),
        (2.2250738585072014e-308, "2.2250738585072014e-308"),
        (5e-324, "5e-324"),
        (2.0**53, "9007199254740992.0"),
        (123456789012345680.0, "1.2345678901234568e17"),
        (-1.5e-300, "-1.5e-300"),
        (1 / 3, "0.3333333333333333"),
    ],
)
def test_floats_have_one_spelling_for_ever(number: float, text: str) -> None:
    """Golden: a digest that is stored depends on these. A change here is a new tag."""
    assert encode(number) == text.encode()


def test_the_whole_spelling_for_ever() -> None:
    value = {"z": [1, 1.0, True, None], "a": {"é": '\x00\x1f\x7f\u2028/<"\\\n'}, "": -(2**70)}
    assert encode(value) == (
        '{"":-1180591620717411303424,"a":{"é":"\\u0000\\u001f\x7f\u2028/<\\"\\\\\\n"},"z":[1,1.0,true,null]}'.encode()
    )


def test_one_and_one_point_zero_differ() -> None:
    assert len({encode(1), encode(1.0), encode(True), encode("1")}) == 4


class Text(str):
    __slots__ = ()


class Colour(enum.IntEnum):
    RED = 1


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
CYCLE.append(CYCLE)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (math.nan, (), "NaN"),
        ({"a": [1, {"b": math.inf}]}, ("a", 1, "b"), "infinities"),
        ({"a": "\ud800"}, ("a",), "surrogate"),
        ({"\udfff": 1}, (), "surrogate"),
        ({"a": {1: 2}}, ("a",), "keys are strings"),
        ({"a": {Text("k"): 2}}, ("a",), "keys are strings"),
        ([10**4300], (0,), "4,300 digits"),
        ([-(10**4300)], (0,), "4,300 digits"),
        ([Text("a")], (0,), "convert it to str"),
        ([Colour.RED], (0,), "convert it to int"),
        ([OrderedDict(a=1)], (0,), "convert it to dict"),
        ([{1, 2}], (0,), "type set"),
        ([b"a"], (0,), "type bytes"),
        ([object()], (0,), "type object"),
        (nested(65), (0,) * 64, "64 levels"),
        (CYCLE, (0,) * 64, "inside itself"),
    ],
)
def test_what_is_not_json_is_refused_with_its_path(
    value: Any, path: tuple[str | int, ...], reason: str
) -> None:
    with pytest.raises(ValueRefused, match=reason) as caught:
        encode(value)
    assert caught.value.path == path


def test_the_first_fault_is_named_and_never_its_value() -> None:
    with pytest.raises(ValueRefused) as caught:
        encode({"a": 1, "b": ["secret\ud800"], "c": math.nan})
    assert caught.value.path == ("b", 0)
    assert "secret" not in str(caught.value)


def test_the_deepest_and_the_longest_are_accepted() -> None:
    assert decode(encode(nested(DEPTH_MAX))) == nested(DEPTH_MAX)
    for number in (10**4300 - 1, -(10**4300) + 1, 2**63, -(2**63) - 1, 2**64, 10**400):
        assert decode(encode([number])) == [number]
        assert decode_trusted(encode([number])) == [number]


def test_a_small_value_that_expands_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.core.values.NODES_MAX", 10_000)
    ladder: list[Any] = [1]
    for _ in range(60):
        ladder = [ladder, ladder]
    with pytest.raises(ValueRefused, match="more than"):
        encode(ladder)


def test_tuples_are_lists() -> None:
    assert encode((1, (2,))) == encode([1, [2]])


@pytest.mark.case("D3")
@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        ('{"a":1,"a":2}', (), 'duplicate key "a"'),
        (r'{"a":1,"\u0061":2}', (), 'duplicate key "a"'),
        ('{"a":[0,{"x":1,"x":1}]}', ("a", 1), 'duplicate key "x"'),
        ('{"a":[NaN]}', ("a", 0), "NaN"),
        ('{"a":-Infinity}', ("a",), "infinities"),
        ('{"a":1e999}', ("a",), "infinities"),
        ('{"a":' + "9" * 4_301 + "}", ("a",), "4,300 digits"),
        (r'{"a":"\ud800"}', ("a",), "surrogate"),
        (r'{"a":"\uDC00\uD800"}', ("a",), "surrogate"),
        (r'{"\ud800":1}', (), "surrogate"),
        ('{"a":"\ud800"}', ("a",), "surrogate"),
        ("[" * 65 + "]" * 65, (0,) * 64, "64 levels"),
        ("[" * 200_000, (), "64 levels"),
        (b'{"a":\xff}', (), "not UTF-8 at byte 5"),
        (b"\xef\xbb\xbf1", (), "not JSON"),
        ("[1,\n 2,]", (), "line 2, column 4"),
        ("", (), "not JSON"),
        ("[1] x", (), "not JSON"),
        ("'a'", (), "not JSON"),
        ('"a\nb"', (), "not JSON"),
        ("01", (), "not JSON"),
        ("[1.]", (), "not JSON"),
        ("+1", (), "not JSON"),
    ],
)
def test_text_that_is_not_strict_json_is_refused(
    text: bytes | str, path: tuple[str | int, ...], reason: str
) -> None:
    with pytest.raises(ValueRefused, match=reason) as caught:
        decode(text)
    assert caught.value.path == path


def test_a_surrogate_pair_is_one_character() -> None:
    assert decode(r'"\ud83d\ude00"') == "\U0001f600"


@pytest.mark.case("P3")
def test_a_nul_survives() -> None:
    assert decode(encode("a\u0000b")) == "a\u0000b"


def test_stored_bytes_that_are_damaged_are_refused() -> None:
    with pytest.raises(ValueRefused, match="not JSON"):
        decode_trusted(b'{"a":')


def test_the_tag_opens_every_digest() -> None:
    assert digest(b"{}") == hashlib.sha256(b"tcj1\0{}").digest()
    assert digest(b"{}", tag=b"other") == hashlib.sha256(b"other\0{}").digest()
