"""The checker is red on a real engine with a real bug in it."""

import pytest

from tests.simulation.crash import Case, play
from tests.simulation.plants import PLANTS

# A death just after mutating work was handed over: the fifth dispatch is of `letter`, or near it.
IN_FLIGHT = tuple(f"driver.report:{nth}:kill" for nth in range(3, 10))

SEEN = {
    "hands_over_twice": ({"effect-repeated", "effect-without-dispatch"}, ("",)),
    "acts_before_the_commit": ({"effect-without-intent"}, ("commit.before-commit:3:kill",)),
    "takes_mutating_for_harmless": ({"mutating-repeated"}, IN_FLIGHT),
    "retries_under_a_new_key": ({"key-changed"}, ("",)),
    "believes_without_calling": ({"effect-missing"}, ("",)),
    "lets_the_key_depend_on_the_process": ({"identity"}, ("",)),
    "miscounts": ({"run-row"}, ("",)),
    "chains_nothing": ({"chain-broken"}, ("",)),
    "forgets_the_salt": ({"payload-digest"}, ("",)),
    "writes_a_statement_twice": ({"applied"}, ("",)),
    "drops_the_barrier_and_the_doubt": ({"effect-denied", "abandoned-begun"}, IN_FLIGHT),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_each_plant_is_looked_for():
    assert set(SEEN) == set(PLANTS)


@pytest.mark.parametrize("name", SEEN)
def test_a_planted_bug_is_found(tmp_path, name):
    """Where it takes a death at the right moment, some moments in a row are tried."""
    expected, faults = SEEN[name]
    found: set[str] = set()
    for number, fault in enumerate(faults):
        folder = tmp_path / str(number)
        folder.mkdir()
        case = Case(faults=(fault,) if fault else (), plant=name)
        verdict = play(case, folder)
        found |= {violation.code for violation in verdict.violations}
        if expected & found:
            return
    pytest.fail(f"{name} went unseen; found {sorted(found)}, {verdict}")
