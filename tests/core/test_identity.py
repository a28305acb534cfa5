"""Names are pure functions of the place in the run, and no two places share one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.identity import (
    ActivationKey,
    dispatch_identity,
    instance_text,
    parse_instance,
)
from tests.core.world import OK, UNKNOWN, World, call

IDS = st.text(st.sampled_from("ab./\x00[]1 é"), max_size=6)
INSTANCES = st.lists(st.integers(0, 10**6), max_size=4).map(tuple)
PLACES = st.tuples(IDS, IDS, INSTANCES, st.integers(1, 10**6))


def identity(place) -> bytes:
    run, node, instance, attempt = place
    return dispatch_identity(run, ActivationKey(node, instance), attempt)


@pytest.mark.invariant("I1")
def test_the_identity_is_fixed_for_ever():
    """Golden: it is the key that receivers outside have on record."""
    assert dispatch_identity("run-1", ActivationKey("a"), 1).hex() == (
        "1638d3a9ca26cce326b43977d7a0b3feb9fe70999a5d8e4b76d967b9538c0cbe"
    )


@pytest.mark.invariant("I2")
@given(PLACES, PLACES)
def test_two_places_share_no_identity(one, other):
    assert (identity(one) == identity(other)) == (one == other)


@pytest.mark.invariant("I2")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c", (), 1), ("a", "bc", (), 1)),
        (("a", "b/1", (), 1), ("a", "b", (1,), 1)),
        (("a", "b", (1, 2), 1), ("a", "b", (12,), 1)),
        (("a", "b", (), 11), ("a", "b", (1,), 1)),
        (("a", "b", (1,), 1), ("a", "b1", (), 1)),
    ],
)
def test_a_shifted_border_is_another_identity(one, other):
    assert identity(one) != identity(other)


@given(INSTANCES)
def test_an_instance_path_comes_back_as_it_was(instance):
    assert parse_instance(instance_text(instance)) == instance


def test_a_key_reads_as_people_write_it():
    assert str(ActivationKey("build")) == "build"
    assert str(ActivationKey("fix.build", (2,))) == "fix[2].build"
    assert str(ActivationKey("each.publish", (17,))) == "each[17].publish"


@pytest.mark.invariant("I1", "I3", "R10")
def test_owner_time_and_order_do_not_change_an_identity():
    """Two worlds that differ in all three give every attempt the same key."""
    calm, wild = (
        World(call("a", "idempotent"), call("b")),
        World(call("a", "idempotent"), call("b")),
    )
    calm.tell("a", OK)
    calm.tell("b", OK)
    wild.now += 10**9
    wild.crash()
    wild.tell("b", OK)
    wild.tell("a", UNKNOWN)
    wild.advance()
    assert wild.attempt("a").dispatch == 2
    wild.tell("a", OK)
    for place, row in calm.rows.attempts.items():
        assert wild.rows.attempts[place]["identity"] == row["identity"]
    assert {start.identity for start in wild.starts} == {start.identity for start in calm.starts}
