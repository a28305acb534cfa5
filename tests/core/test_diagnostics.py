"""Problems come out sorted, bounded and the same every time."""

import random

import pytest

from tallystick.core.diagnostics import (
    CODES,
    KEPT_MAX,
    NOWHERE,
    SHOWN_MAX,
    Place,
    Problems,
    SourceRefused,
    refuse_if_any,
)


def collect(places: list[Place]) -> Problems:
    problems = Problems("flow.yaml")
    for place in places:
        problems.add("yaml-tag", place, "a YAML tag")
    return problems


@pytest.mark.invariant("K1")
def test_the_order_of_finding_does_not_show() -> None:
    places = [Place(line, column) for line in range(1, 11) for column in range(1, 11)]
    expected = collect(places).diagnostics()
    for seed in range(20):
        shuffled = random.Random(seed).sample(places, len(places))
        assert collect(shuffled).diagnostics() == expected
    assert [(found.line, found.column) for found in expected] == [
        (p.line, p.column) for p in places
    ]


@pytest.mark.invariant("K1")
@pytest.mark.parametrize("count", [SHOWN_MAX, SHOWN_MAX + 1, 1_000, KEPT_MAX + 500])
def test_problems_are_bounded_and_the_last_says_how_many_more(count: int) -> None:
    shown = collect([Place(line, 1) for line in range(1, count + 1)]).diagnostics()
    assert len(shown) == SHOWN_MAX
    if count == SHOWN_MAX:
        assert shown[-1].code == "yaml-tag"
    else:
        assert shown[-1].code == "too-many-problems"
        assert shown[-1].message.startswith(f"{count - SHOWN_MAX + 1} more")


def test_the_same_problem_is_told_once() -> None:
    assert len(collect([Place(1, 1), Place(1, 1)]).diagnostics()) == 1


def test_a_diagnostic_reads_as_one_line() -> None:
    problems = Problems("flow.yaml")
    problems.add("yaml-tag", Place(3, 5), "a YAML tag", remedy="remove it")
    problems.add("yaml-empty", NOWHERE, "nothing here")
    assert [str(found) for found in problems.diagnostics()] == [
        "flow.yaml: nothing here (yaml-empty)",
        "flow.yaml:3:5: a YAML tag — remove it (yaml-tag)",
    ]


def test_problems_refuse_the_source() -> None:
    refuse_if_any(Problems("flow.yaml"))
    with pytest.raises(SourceRefused) as caught:
        refuse_if_any(collect([Place(1, 1)]))
    assert caught.value.diagnostics[0].code == "yaml-tag"


def test_a_code_without_a_meaning_cannot_be_used() -> None:
    with pytest.raises(AssertionError):
        Problems("f").add("no-such-code", NOWHERE, "…")
    assert all(code == code.lower() and meaning for code, meaning in CODES.items())
