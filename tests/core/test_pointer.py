"""Paths are readable, bounded and safe to print."""

import pytest

from tallystick.core.pointer import KEY_CHARS_MAX, PARTS_SHOWN_MAX, quote, render


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), "$"),
        (("a", 3, "b"), "$.a[3].b"),
        (("my-step", "output"), "$.my-step.output"),
        (("my key",), '$["my key"]'),
        (("",), '$[""]'),
        (('a"b',), r'$["a\"b"]'),
        (("3",), '$["3"]'),
        (("é",), '$["é"]'),
        (("a\n\x1b[31m",), r'$["a\n\u001b[31m"]'),
        (("\u202egpj",), r'$["\u202egpj"]'),
        (("\ud800",), r'$["\ud800"]'),
    ],
)
def test_a_path_is_written_for_people(path: tuple[str | int, ...], text: str) -> None:
    assert render(path) == text


def test_long_keys_and_paths_are_cut() -> None:
    assert len(render(("x" * 10_000,))) < KEY_CHARS_MAX + 10
    assert render([0] * 1_000) == "$" + "[0]" * PARTS_SHOWN_MAX + "…"
    assert quote("abcdef", 3) == '"abc…"'
