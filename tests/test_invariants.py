"""The bookkeeping of invariants is itself in order.

Whether any id is uncovered is asked by `make invariants`, not here: a test that is missing is work
to do, not a fault of the change at hand.
"""

import pytest

from tests.invariants import ROOT, Report, marks, read_later, read_texts, survey

MARKED = {
    "decorator": ('@pytest.mark.invariant("P1")\ndef test_a(): ...', ["P1"]),
    "several ids": ('@pytest.mark.invariant("P1", "P2")\ndef test_a(): ...', ["P1", "P2"]),
    "short form": ('@mark.invariant("P1")\ndef test_a(): ...', ["P1"]),
    "whole module": ('pytestmark = [pytest.mark.invariant("P1"), pytest.mark.slow]', ["P1"]),
    "parameter": ('x = pytest.param(1, marks=pytest.mark.invariant("P1"))', ["P1"]),
    "class": ('@pytest.mark.invariant("P1")\nclass TestA:\n  def test_a(self): ...', ["P1"]),
    "not a plain string": ("@pytest.mark.invariant(name)\ndef test_a(): ...", [None]),
    "no id at all": ("@pytest.mark.invariant()\ndef test_a(): ...", [None]),
    "another mark": ('@pytest.mark.case("P1")\ndef test_a(): ...', []),
    "skipped": ('@pytest.mark.skip\n@pytest.mark.invariant("P1")\ndef test_a(): ...', []),
    "expected to fail": (
        '@pytest.mark.xfail(reason="x")\nclass TestA:\n'
        '  @pytest.mark.invariant("P1")\n  def test_a(self): ...',
        [],
    ),
    "in a string": ("'@pytest.mark.invariant(\"P1\")'", []),
}


def test_every_id_that_a_test_carries_exists_and_is_not_also_listed_as_later():
    assert survey(ROOT).mistakes == []


@pytest.mark.parametrize(("source", "names"), MARKED.values(), ids=MARKED)
def test_marks_are_found_wherever_pytest_finds_them(source, names):
    assert [name for name, _ in marks(source)] == names


def test_an_unknown_id_an_overlap_and_an_unreadable_mark_are_mistakes():
    report = Report(
        texts={"P1": "one", "P2": "two", "P3": "three", "P4": "four"},
        carried={"P1": ["a:1"], "P2": ["b:2"], "P9": ["c:3"]},
        later={"P2": "later", "P3": "later", "P8": "later"},
        partly={"P3": "partly"},
        unreadable=["d:4"],
    )
    assert [mistake.split(":")[0] for mistake in report.mistakes] == ["P8", "P9", "P2", "P3", "d"]
    assert report.uncovered == ["P4"]


def test_an_id_is_given_once():
    assert read_texts("# x\n- P1 one\n- P2 two\n- not one\n") == {"P1": "one", "P2": "two"}
    with pytest.raises(ValueError, match="two lines"):
        read_texts("- P1 one\n- P1 two\n")
    with pytest.raises(ValueError, match="P1 twice"):
        read_later('partly={}\n[[later]]\nfeature="f"\nwhy="w"\nids=["P1","P1"]\n')
