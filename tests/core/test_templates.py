"""Expressions in a string end where they look like ending."""

import pytest

from tallystick.core.templates import Mixed, Template, TemplateRefused, Text, Whole, parse_template


@pytest.mark.parametrize(
    ("text", "template"),
    [
        ("", Text("")),
        ("a}} {{ $ ${ b", Text("a}} {{ $ ${ b")),
        ("${{a}}", Whole("a")),
        ("${{ a\n}}", Whole("a")),
        ("${{ a }}\n", Mixed((Whole("a"), Text("\n")))),
        ("x${{ a }}y${{ b }}", Mixed((Text("x"), Whole("a"), Text("y"), Whole("b")))),
        ("${{ {'a': {'b': 1}} }}", Whole("{'a': {'b': 1}}")),
        ("${{ {'a':1}}}", Whole("{'a':1}")),
        ('${{ "}}" }}', Whole('"}}"')),
        (r'${{ "\"}}" }}', Whole(r'"\"}}"')),
        (r"${{ r'\' + '}}' }}", Whole(r"r'\' + '}}'")),
        ('${{ """a"}}""" }}', Whole('"""a"}}"""')),
        ("${{ a // }}\n }}", Whole("a // }}")),
        ("$${{ a }}", Mixed((Text("$"), Whole("a")))),
    ],
)
def test_a_string_is_split_into_text_and_expressions(text: str, template: Template) -> None:
    assert parse_template(text) == template


@pytest.mark.parametrize(
    ("text", "code", "offset"),
    [
        ("${{", "expression-syntax", 0),
        ("ab${{ c }", "expression-syntax", 2),
        ("${{ { }}", "expression-syntax", 0),
        ("${{ }}", "expression-syntax", 0),
        ("${{ a }} ${{ }}", "expression-syntax", 9),
        ("${{" + "a" * 4_097 + "}}", "expression-too-large", 0),
        ("${{" + "é" * 2_049 + "}}", "expression-too-large", 0),
        ("${{" + "a" * 100_000, "expression-too-large", 0),
        ("${{a}}" * 257, "expression-too-large", 256 * 6),
    ],
)
def test_an_expression_that_does_not_end_is_refused(text: str, code: str, offset: int) -> None:
    with pytest.raises(TemplateRefused) as caught:
        parse_template(text)
    assert (caught.value.code, caught.value.offset) == (code, offset)


def test_the_longest_expression_is_accepted() -> None:
    assert parse_template("${{" + "a" * 4_096 + "}}") == Whole("a" * 4_096)
