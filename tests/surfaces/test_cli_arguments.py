"""What is typed after --input and --output becomes exactly the JSON that was meant."""

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.values import decode, encode
from tallystick.errors import InvalidRequest
from tallystick.surfaces.cli.arguments import input_value, outcome_of, output_bytes

FIELDS = {
    "n=5": {"n": 5},
    "n=-1": {"n": -1},
    "n=2.5": {"n": 2.5},
    "n=9007199254740993": {"n": 2**53 + 1},
    "b=true": {"b": True},
    "b=null": {"b": None},
    "b=True": {"b": "True"},
    "version=1.10": {"version": "1.10"},  # as a number it would come back as 1.1
    "order=007": {"order": "007"},
    "e=1e5": {"e": "1e5"},
    "nan=NaN": {"nan": "NaN"},
    "t=hello world": {"t": "hello world"},
    "t=": {"t": ""},
    "t=a=b": {"t": "a=b"},
    't="5"': {"t": "5"},
    't="\\u00e9"': {"t": "é"},
    "t=[a-z]+": {"t": "[a-z]+"},
    't=["a"]': {"t": '["a"]'},  # := says that it is JSON
    't:=["a", 1]': {"t": ["a", 1]},
    "t:=1.10": {"t": 1.1},
    "a.b-c_d=1": {"a.b-c_d": 1},
}
REFUSED = {
    ("a=1", "a=2"): "input-repeated",
    ("a=1", "a:=1"): "input-repeated",
    ('t="open',): "input-not-json",
    ("t:=hello",): "input-not-json",
    ('t:={"a":1,"a":2}',): "input-not-json",
    ("t:=NaN",): "input-not-json",
    ('t:="\\ud800"',): "input-not-json",
    ("t=\udcff",): "input-encoding",
    ("a=1", "file.json"): "input-mixed",
    ("-", "a=1"): "input-mixed",
    ("no-such-file.json",): "input-unreadable",
    ("a=@no-such-file",): "input-unreadable",
    (".",): "input-unreadable",
    ("nul\0byte",): "input-unreadable",
}


@pytest.mark.parametrize(("word", "value"), FIELDS.items())
def test_a_field_is_read_as_documented(word, value):
    found = input_value([word])
    assert encode(found) == encode(value)


@pytest.mark.case("D3")
@pytest.mark.parametrize(("words", "code"), REFUSED.items())
def test_what_is_not_clear_is_refused_by_name(words, code):
    with pytest.raises(InvalidRequest) as refused:
        input_value(words)
    assert refused.value.code == code
    assert refused.value.next_step
    assert str(refused.value).isprintable()


def test_without_any_input_it_is_an_empty_object():
    assert input_value([]) == {}


def test_several_fields_make_one_object():
    assert input_value(["a=1", "b=x", "c:=[]"]) == {"a": 1, "b": "x", "c": []}


@given(st.integers() | st.booleans() | st.none() | st.text(st.characters(codec="utf-8")))
def test_every_scalar_can_be_typed(value):
    text = encode(value).decode()
    assert input_value([f"k={text}"]) == {"k": value}
    assert input_value([f"k:={text}"]) == {"k": value}


@given(st.text(st.characters(codec="utf-8")))
def test_a_text_is_never_changed_into_another_one(text):
    """It arrives as itself, or as the JSON value that is spelled so, or not at all."""
    try:
        value = input_value([f"k={text}"])["k"]
    except InvalidRequest:
        return
    assert value == text or encode(value).decode() == text or value == decode(text)


def test_files_and_standard_input_are_read_strictly(tmp_path, monkeypatch):
    whole, part = tmp_path / "in.json", tmp_path / "letter.txt"
    whole.write_text('{"n": 9007199254740993}')
    part.write_text("Dear\n")
    assert input_value([str(whole)]) == {"n": 2**53 + 1}
    assert input_value([f"body=@{part}", f"doc:=@{whole}"]) == {
        "body": "Dear\n",
        "doc": {"n": 2**53 + 1},
    }
    for text, good in {b"[1]": True, b'{"a":1,"a":2}': False, b"\xff": False}.items():
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        if good:
            assert input_value(["-"]) == [1]
        else:
            with pytest.raises(InvalidRequest):
                input_value(["-"])


def test_a_file_whose_name_looks_like_a_field_is_reached_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").write_text("1")
    assert input_value(["./a=b"]) == 1


def test_an_output_is_json_a_file_or_standard_input(tmp_path, monkeypatch):
    file = tmp_path / "out.json"
    file.write_text('{"b": 1, "a": 2}')
    assert output_bytes("null") == b"null"
    assert output_bytes(f"@{file}") == b'{"a":2,"b":1}'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b' "sent" ')))
    assert output_bytes("-") == b'"sent"'
    with pytest.raises(InvalidRequest) as refused:
        output_bytes("sent")
    assert "'\"text\"'" in refused.value.next_step


@pytest.mark.parametrize(
    ("outcome", "output"),
    [("done", None), ("succeeded", None), ("failed", "1"), ("never_happened", "null")],
)
def test_an_outcome_and_its_output_go_together(outcome, output):
    with pytest.raises(InvalidRequest) as refused:
        outcome_of(outcome, output)
    assert refused.value.next_step
