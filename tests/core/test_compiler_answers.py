"""Each diagnostic code has a bad source and a golden answer.

A bad source is `bad/CODE.yaml`, or is grown here where it would be large. Its answer is all that a
person is told about it, in `bad/CODE.txt`. After a change that is meant, write the answers anew
with `TALLY_WRITE_ANSWERS=1` and read the difference.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tallystick.core import usage
from tallystick.core.compiler import compile_source
from tallystick.core.diagnostics import CODES, SourceRefused

BAD: Final = Path(__file__).parent / "bad"
HEAD: Final = "tally: 1\nworkflow: bad\n"
STEP: Final = '{id: a, call: "m:f", effect: read_only}'

PYTHON_ONLY: Final = {
    "kind-unknown",  # in a source, a kind that does not exist is an unknown key
    "value-not-json",  # what a source holds always is JSON
}
WARNINGS: Final = {"effect-undeclared", "reference-maybe-missing", "step-unreachable"}


def computed(count: int) -> str:
    """Return items of a list, each a different expression."""
    return ", ".join(f'"${{{{ {number} + 1 }}}}"' for number in range(count))


GROWN: Final[dict[str, Callable[[], str]]] = {
    "source-too-large": lambda: f"{HEAD}title: {'x' * 2**21}\nsteps: [{STEP}]\n",
    "too-many-steps": lambda: f"{HEAD}output: &a {STEP}\nsteps: [{'*a,' * 10_001}]\n",
    "too-many-expressions": lambda: f"{HEAD}output: [{computed(12)}]\nsteps: [{STEP}]\n",
}
IN_SOURCES: Final = sorted(CODES.keys() - PYTHON_ONLY)


def test_every_code_has_a_bad_source_and_an_answer() -> None:
    assert {path.stem for path in BAD.glob("*.yaml")} | GROWN.keys() == {*IN_SOURCES}
    assert {path.stem for path in BAD.glob("*.txt")} == {*IN_SOURCES}


@pytest.mark.invariant("K1", "K4")
@pytest.mark.parametrize("code", IN_SOURCES)
def test_what_is_told_of_a_bad_source_stays_the_same(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "COMPUTED_MAX", 10)  # ten thousand take too long to compile
    told = answer(code)
    golden = BAD / f"{code}.txt"
    if os.environ.get("TALLY_WRITE_ANSWERS"):
        golden.write_text(told, "utf-8")
    assert told == golden.read_text("utf-8")
    assert f"({code})" in told


@pytest.mark.parametrize("code", IN_SOURCES)
def test_only_a_warning_lets_a_bad_source_pass(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "COMPUTED_MAX", 10)
    first = answer(code).splitlines()[0]
    assert first.startswith("warning: ") == (code in WARNINGS)


def answer(code: str) -> str:
    """Return what a person is told of a bad source, a line for each problem or warning."""
    data = GROWN[code]().encode() if code in GROWN else (BAD / f"{code}.yaml").read_bytes()
    try:
        compiled = compile_source(data, f"{code}.yaml")
    except SourceRefused as refused:
        return "".join(f"{problem}\n" for problem in refused.diagnostics)
    return "".join(f"warning: {warning}\n" for warning in compiled.warnings)
