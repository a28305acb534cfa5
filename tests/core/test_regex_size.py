"""The measure of a regular expression is above the truth, and lets ordinary ones through."""

import pytest

from tallystick.core.regex_size import REGEX_SIZE_MAX, RegexRefused, regex_size


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "abc",
        "^[a-z]+$",
        "(a+)+$",
        r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}$",
        r"v?\d+\.\d+\.\d+(-[\w.]+)?",
        r"^[\w.+-]+@[\w-]+(\.[\w-]+)+$",
        "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        r"\pL+ \p{Greek}*",
        "(?i)error",
        "[]a]{2}",
        "a{,5}",
    ],
)
def test_ordinary_patterns_are_allowed(pattern: str) -> None:
    assert 0 < regex_size(pattern) <= REGEX_SIZE_MAX


@pytest.mark.parametrize(
    "pattern",
    [
        "((a?){0,30}){0,30}b",
        "(a|aa|aaa|b*c*d*){100}x",
        "[a-z]{1,1000}",
        r"\pL{1,900}x",
        r"[\pL]{100}",
        r"[^\pL]{100}",
        "(a{1,100}){1,10}",
        "a{10}{10}{10}",
        "(((((((((a+)+)+)+)+)+)+)+)+)+",
        "((a{1000}",
        "(?:(?:a{30}){30}){2}",
        "a" * 257,
        r"\Q(\E{9}(a{20}){20}",
    ],
)
def test_patterns_that_multiply_are_refused(pattern: str) -> None:
    with pytest.raises(RegexRefused):
        regex_size(pattern)
