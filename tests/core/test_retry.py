"""The wait grows, stays within its bound and never overflows."""

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tallystick.core.messages import Terms
from tallystick.core.retry import DELAY_MAX_MS, backoff_bound_ms, draw_ms, due_at

YEAR_9999 = 253_402_300_799_999
BASES = st.integers(0, 10**12) | st.sampled_from([0, 1, 2**31, 2**63, 10**30])
FACTORS = st.sampled_from([0.0, 0.5, 1.0, 1.0000001, 1.5, 2.0, 10.0, 1e300, 1.7e308]) | st.floats(
    0, 1e308
)
CAPS = st.integers(0, 10**14) | st.sampled_from([0, 1, 2**63, 10**40])
FAILURES = st.integers(1, 10**6) | st.sampled_from([1, 2, 46, 47, 63, 64, 65, 1024, 1025, 10**6])
SEEDS = st.binary(min_size=16, max_size=32)


def terms(base: int, factor: float, cap: int) -> Terms:
    return Terms(
        definition="",
        executor="function",
        contract="",
        effect="read_only",
        kind="call",
        max_attempts=1,
        on=(),
        backoff_ms=base,
        factor=factor,
        backoff_max_ms=cap,
        interruptions_max=5,
    )


@pytest.mark.invariant("R7")
@given(BASES, FACTORS, CAPS, FAILURES)
@example(0, 2.0, 60_000, 64)
@example(1_000, 2.0, 60_000, 63)
@example(1, 2.0, 2**63, 1024)
@example(1, 1e300, 10**40, 10**6)
def test_the_bound_never_passes_its_maximum(base, factor, cap, failures):
    bound = backoff_bound_ms(base, factor, cap, failures)
    assert isinstance(bound, int)
    assert 0 <= bound <= min(cap, DELAY_MAX_MS)


@pytest.mark.invariant("R7")
@given(
    st.integers(1, 10**9),
    st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0, 10.0]),
    st.integers(1, 10**12),
    st.integers(1, 80),
)
def test_the_bound_is_the_formula(base, factor, cap, failures):
    """min(max, base · factor^(n-1)), computed exactly; a float may lose its last digits."""
    exact = min(Fraction(cap), base * Fraction(factor) ** (failures - 1))
    got = backoff_bound_ms(base, factor, cap, failures)
    assert abs(got - exact) <= 1 + exact / 10**9


@pytest.mark.invariant("R7")
@given(st.integers(1, 10**6), st.floats(1, 100), st.integers(1, 10**9), st.integers(1, 2_000))
def test_the_bound_never_shrinks_as_failures_grow(base, factor, cap, failures):
    assert backoff_bound_ms(base, factor, cap, failures + 1) >= (
        backoff_bound_ms(base, factor, cap, failures) - 1
    )


@pytest.mark.invariant("R7")
@given(BASES, FACTORS, CAPS, FAILURES, st.integers(0, YEAR_9999), SEEDS)
def test_a_due_time_fits_its_column(base, factor, cap, failures, now, seed):
    due = due_at(terms(base, factor, cap), failures, now, seed)
    assert now <= due <= now + min(cap, DELAY_MAX_MS)
    assert due < 2**63


@given(st.integers(0, 50))
def test_every_wait_up_to_the_bound_can_be_drawn(bound):
    drawn = {draw_ms(bound, seed.to_bytes(8, "big")) for seed in range(bound + 1)}
    assert drawn == set(range(bound + 1))
