"""Text from data is safe to print and exact to read."""

import json
import shlex
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tallystick.surfaces.render import (
    Column,
    Paint,
    cells,
    clip,
    colour_wanted,
    command,
    instant,
    json_text,
    preview,
    safe,
    safe_lines,
    table,
)

POISON = [
    "\x1b[2J\x1b[31mred",  # clears the screen
    "\x1b]0;title\x07",  # renames the window
    "a\x00b",
    "back\x08\x08\x08spaced",
    "one\ntwo\r\nthree",
    "\u202egnp.exe",  # reads backwards
    "\u2066x\u2069",
    "\udc80lone",
    "\x9b31m",  # the eight-bit introducer
    "\u2028line",
    "\ufeffmark",
    "\U000e0041tag",
    "\x7f",
]
anything = st.text(st.characters())  # lone surrogates too
values = st.recursive(
    st.none() | st.booleans() | st.integers() | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything, inner, max_size=3),
    max_leaves=8,
)


@given(anything)
@example("\x1b[0m")
def test_safe_text_is_one_line_that_moves_nothing(text):
    assert all(char.isprintable() or char in "\u200c\u200d" for char in safe(text))


@pytest.mark.parametrize("text", POISON)
def test_poison_is_shown_as_an_escape(text):
    assert "\\" in safe(text)
    assert safe(text) != text


def test_plain_text_stays_as_it_is():
    for text in ("order-17", "Größe", "注文", "a b", "ok ✓", "\U0001f469\u200d\U0001f680"):
        assert safe(text) == text


@pytest.mark.parametrize("value", [b"\x1b[31m", object(), ["\x1b"], 2**70, None, {"a": "\x00"}])
def test_whatever_is_not_text_is_shown_too(value):
    assert safe(value).isprintable()


def test_lines_are_separated_by_line_feeds_alone():
    assert safe_lines("a\r\n\tb\x1b\u2028c") == ["a", "    b\\x1b\\u2028c"]


@given(values)
@example({"n": 2**53 + 1, "big": 10**4299})
@example({"\ud800": "\udfff", "a": "\U0010ffff\U000e0001\x7f\x9b"})
def test_json_is_exact_and_prints(value):
    """Integers of every size, and lone surrogates, come back as they were."""
    for indent in (None, 2):
        text = json_text(value, indent=indent)
        assert json.loads(text) == value
        assert all(c.isprintable() or c in "\n\u200c\u200d" for c in text)
        assert json.loads(json_text(value, ascii_only=True)) == value
        assert json_text(value, ascii_only=True).isascii()


def test_one_odd_value_does_not_stop_a_page_of_json():
    assert json.loads(json_text({"a": b"\xff", "b": 1})) == {"a": "b'\\xff'", "b": 1}


def test_a_preview_says_how_much_it_leaves_out():
    assert preview("ab", 10) == '"ab"'
    assert preview("a" * 100, 10) == '"aaaaaaaaa… (92 more characters; --json shows all)'


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01 00:00:00.000Z"),
        (1_740_830_400_250, "2025-03-01 12:00:00.250Z"),
        (-1, "1969-12-31 23:59:59.999Z"),
        (10**30, str(10**30)),
        (-(10**15), str(-(10**15))),
        (None, "-"),
        ("\x1b", "\\x1b"),
        (True, "True"),
    ],
)
def test_an_instant_is_utc_and_an_odd_one_is_shown(ms, text):
    assert instant(ms) == text


@pytest.mark.slow
def test_a_command_to_paste_says_exactly_these_words():
    words = ["a b", "it's", "$HOME", "`id`", "-x", "*", "é", "each[17].publish", "", *POISON]
    words = [word for word in words if "\x00" not in word]
    line = command(["printf", r"%s\0", *words])
    ran = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    expected = [word.encode("utf-8", "surrogateescape") for word in words]
    assert ran.stdout.split(b"\0")[:-1] == expected
    assert line.isprintable()


@given(st.text(st.characters(exclude_categories=["C", "Z"])))
def test_printable_words_are_quoted_as_any_shell_reads_them(word):
    assert shlex.split(command([word])) == [word]


@pytest.mark.parametrize(
    ("text", "width"), [("abc", 3), ("注文", 4), ("e\u0301", 1), ("\U0001f680", 2), ("", 0)]
)
def test_columns_are_counted_as_terminals_do(text, width):
    assert cells(text) == width


@given(st.text(st.characters(exclude_categories=["C", "Z"])), st.integers(1, 20))
def test_clipped_text_fits(text, width):
    assert cells(clip(text, width)) <= width


def test_a_table_cuts_then_drops_columns_and_never_cuts_what_is_for_copying():
    columns = (Column("ID"), Column("NAME", least=4), Column("WHEN", drop=1), Column("KEY", drop=2))
    rows = [("r_0123456789", "a long name", "yesterday", "k-1")]
    full = [
        "ID            NAME         WHEN       KEY",
        "r_0123456789  a long name  yesterday  k-1",
    ]
    assert table(columns, rows, None) == full
    assert table(columns, rows, 80) == full
    assert table(columns, rows, 36) == [
        "ID            NAME    WHEN       KEY",
        "r_0123456789  a lon…  yesterday  k-1",
    ]
    assert table(columns, rows, 33) == [
        "ID            NAME      WHEN",
        "r_0123456789  a long …  yesterday",
    ]
    assert table(columns, rows, 20) == ["ID            NAME", "r_0123456789  a lon…"]
    assert table(columns, rows, 5) == ["ID            NAME", "r_0123456789  a l…"]


def test_a_poisoned_cell_keeps_the_table_straight():
    lines = table((Column("A"), Column("B")), [("\x1b[2J", "x"), ("b", "y")], 80)
    assert lines == ["A        B", "\\x1b[2J  x", "b        y"]


@pytest.mark.parametrize(
    ("environ", "terminal", "wanted"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(environ, terminal, wanted):
    assert colour_wanted(environ, terminal=terminal) is wanted


def test_paint_is_on_or_nothing():
    assert Paint(on=True)("failed", "x") == "\x1b[31mx\x1b[0m"
    assert Paint(on=False)("failed", "x") == "x"
    assert Paint(on=True)("no such style", "x") == "x"
