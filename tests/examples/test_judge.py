"""The demo's judge goes red on everything that the demo says does not happen."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from demo import PROBLEMS_SHOWN_MAX, Moment, Pass, plan_kills, problems_of, verdict
from judge import Evidence, amounts, compare


def charge(number: str, amount: int) -> dict[str, object]:
    return {"reference": number, "amount": amount, "currency": "EUR"}


def message(number: str) -> dict[str, object]:
    return {"reference": number, "digest": f"digest of {number}"}


def told(number: str, total: int, status: str = "succeeded") -> dict[str, object]:
    return {
        "number": number,
        "status": status,
        "total": total,
        "currency": "EUR",
        "problem": "",
    }


REFUSED = {"number": "C", "status": "failed", "total": 0, "currency": "", "problem": "bad_email"}
GOOD = Evidence(
    numbers=("A", "B", "C"),
    refusals={"C": "bad_email"},
    charges=(charge("A", 100), charge("B", 11)),
    messages=(message("B"), message("A")),
    files={"A": "digest of A", "B": "digest of B"},
    told={"A": told("A", 100), "B": told("B", 11), "C": REFUSED},
    summary={"charged": {"EUR": 111}, "refused": {"bad_email": 1}},
)
Spoil = Callable[[Evidence], Evidence]


def test_good_evidence_is_good():
    found = compare(GOOD)
    assert found.good
    counts = (found.orders, found.refused, found.accepted, found.charges, found.messages)
    assert counts == (3, 1, 2, 2, 2)


@pytest.mark.parametrize(
    ("spoil", "kinds"),
    [
        (lambda e: replace(e, charges=(*e.charges, charge("A", 100))), {"duplicates", "wrong"}),
        (lambda e: replace(e, messages=(*e.messages, message("A"))), {"duplicates"}),
        (lambda e: replace(e, charges=e.charges[1:]), {"lost", "wrong"}),
        (lambda e: replace(e, messages=e.messages[1:]), {"lost", "wrong"}),
        (lambda e: replace(e, told={k: e.told[k] for k in "AB"}), {"lost", "wrong"}),
        (lambda e: replace(e, told={**e.told, "A": told("A", 100, "failed")}), {"wrong"}),
        (lambda e: replace(e, told={**e.told, "A": told("A", 99)}), {"wrong"}),
        (lambda e: replace(e, told={**e.told, "C": told("C", 5)}), {"wrong"}),
        (lambda e: replace(e, told={**e.told, "C": {**REFUSED, "problem": "error"}}), {"wrong"}),
        (lambda e: replace(e, messages=(*e.messages, message("C"))), {"wrong"}),
        (lambda e: replace(e, charges=(*e.charges, charge("C", 5))), {"wrong"}),
        (lambda e: replace(e, files={**e.files, "A": "another"}), {"wrong"}),
        (lambda e: replace(e, files={"A": "digest of A"}), {"wrong"}),
        (lambda e: replace(e, summary={**e.summary, "charged": {"EUR": 110}}), {"wrong"}),
        (lambda e: replace(e, summary={**e.summary, "refused": {}}), {"wrong"}),
        (lambda e: replace(e, summary={}), {"wrong"}),
    ],
)
def test_what_must_not_be_is_found(spoil: Spoil, kinds: set[str]):
    found = compare(spoil(GOOD))
    assert not found.good
    assert {kind for kind in ("duplicates", "lost", "wrong") if getattr(found, kind)} == kinds


def one_pass(evidence: Evidence, kills: int) -> Pass:
    return Pass(compare(evidence), amounts(evidence), kills, 0, 0, {}, 1.0)


def test_two_good_passes_are_good():
    assert problems_of(one_pass(GOOD, 0), one_pass(GOOD, 13), kills_min=6) == []


def test_a_demo_that_hardly_killed_shows_nothing():
    assert problems_of(one_pass(GOOD, 0), one_pass(GOOD, 1), kills_min=6)


def test_passes_that_charge_differently_are_found():
    other = replace(
        GOOD,
        charges=(charge("A", 101), charge("B", 10)),
        told={**GOOD.told, "A": told("A", 101), "B": told("B", 10)},
    )
    assert compare(other).good
    assert problems_of(one_pass(GOOD, 0), one_pass(other, 13), kills_min=6)


def test_the_verdict_counts_every_finding_and_shows_the_first():
    findings = [f"finding {n}" for n in range(PROBLEMS_SHOWN_MAX + 3)]
    assert verdict([]) == "Every order exactly once."
    first, *shown, last = verdict(findings).splitlines()
    assert str(len(findings)) in first
    assert shown == findings[:PROBLEMS_SHOWN_MAX]
    assert last == "and 3 more"


def test_a_seed_repeats_its_kills():
    one, two = (plan_kills(random.Random(7), 584, 13) for _ in range(2))
    assert one == two
    assert Counter(moment.effects is None for moment in one) == {True: 3, False: 10}
    at = [moment.effects for moment in one if isinstance(moment.effects, int)]
    assert at == sorted(at)
    assert all(1 <= effects <= 584 for effects in at)
    assert all(isinstance(moment, Moment) and moment.seconds >= 0 for moment in one)
