"""R3: the wait stays within [0, cap] for every number of failures, and no policy makes it raise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tallystick as ts
from tallystick.core.compiler import compile_source
from tallystick.core.diagnostics import SourceRefused
from tallystick.core.retry import DELAY_MAX_MS, backoff_bound_ms, draw_ms
from tallystick.engine.opening import World
from tallystick.surfaces.client.tally import open_tally
from tallystick.testing.world import VirtualClock, entropy
from tests.cases.field import definition

NUMBERS = (1, 2, 46, 47, 62, 63, 64, 65, 1_023, 1_024, 1_025, 10**6, 10**9)
YEAR_9999 = 253_402_300_799_000

pytestmark = [pytest.mark.case("R3"), pytest.mark.invariant("R7")]


def unchecked(clock: VirtualClock) -> World:
    """A world without faults, and so without the comparisons that cost the square of a history."""
    return World(clock, entropy(0), None)


policies = st.tuples(
    st.integers(0, DELAY_MAX_MS),
    st.floats(0, allow_nan=False, allow_infinity=False)
    | st.sampled_from([0.0, 5e-324, 0.5, 1.0, 1 + 2**-52, 2.0, 1e300, 1.7e308]),
    st.integers(0, DELAY_MAX_MS),
)


@given(policies, st.integers(1, 10**9) | st.sampled_from(NUMBERS), st.binary(min_size=8))
def test_every_wait_of_every_policy_is_within_its_cap(policy, failures, seed):
    base, factor, cap = policy
    bound = backoff_bound_ms(base, factor, cap, failures)
    assert 0 <= bound <= cap
    assert 0 <= draw_ms(bound, seed) <= bound
    if factor >= 1:
        assert bound >= backoff_bound_ms(base, factor, cap, max(1, failures - 1)), "never shorter"


@pytest.mark.parametrize(
    ("backoff", "factor", "cap", "failures", "bound"),
    [
        (1_000, 2.0, 60_000, 1, 1_000),
        (1_000, 2.0, 60_000, 6, 32_000),
        (1_000, 2.0, 60_000, 7, 60_000),
        (1_000, 2.0, 60_000, 1_025, 60_000),
        (0, 2.0, 60_000, 1_025, 0),
        (1_000, 1.0, 60_000, 10**6, 1_000),
        (1_000, 0.5, 60_000, 1_025, 0),
        (1, 1e300, 60_000, 2, 60_000),
        (120_000, 2.0, 60_000, 1, 60_000),
    ],
)
def test_the_numbers_that_others_overflow_at(backoff, factor, cap, failures, bound):
    assert backoff_bound_ms(backoff, factor, cap, failures) == bound


POLICIES = {
    "silent": "",
    "doubling": "backoff: 1s, factor: 2",
    "enormous factor": "backoff: 1ms, factor: 1.0e+300",
    "shrinking": "backoff: 1h, factor: 0.5",
    "no wait": "backoff: 0s",
    "cap below base": "backoff: 1h, backoff_max: 1s",
}
CAPS_MS = {"cap below base": 1_000}


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("now", [0, YEAR_9999], ids=["1970", "9999"])
async def test_an_engine_goes_on_past_the_numbers_that_overflow(tmp_path, name, now):
    """Attempt 70 for each policy, and attempt 1,100 for the one that everybody has."""
    attempts = 1_100 if name == "doubling" and now == 0 else 70
    source = definition(
        f"""
        tally: 1
        workflow: r3
        steps:
          - id: a
            call: TASKS:always_fail
            retry: {{max_attempts: {attempts}, {POLICIES[name]}}}
        """.replace(", }", "}")
    )
    cap = CAPS_MS.get(name, 60_000)
    async with open_tally(
        tmp_path / "r3.db", engine=True, world=unchecked(VirtualClock(now))
    ) as tally:
        run = await tally.start(source)
        with pytest.raises(ts.RunFailed):
            await run.result()
        waits = [
            event.fields["retry_at"] - event.at
            async for event in tally.history(run.id)
            if event.fields.get("retry_at") is not None
        ]
    assert len(waits) == attempts - 1
    assert all(0 <= wait <= cap for wait in waits)


@pytest.mark.parametrize("now", [0, YEAR_9999], ids=["1970", "9999"])
async def test_a_wait_of_a_century_is_a_date_like_any_other(tmp_path, now):
    source = definition(
        """
        tally: 1
        workflow: r3
        steps:
          - id: a
            call: TASKS:always_fail
            timeout: 36525d
            retry: {max_attempts: 2, backoff: 36525d, backoff_max: 36525d}
        """
    )
    clock = VirtualClock(now, jumps=False)
    async with open_tally(tmp_path / "r3.db", engine=True, world=unchecked(clock)) as tally:
        run = await tally.start(source)
        async for event in run.events():
            if event.kind == "AttemptSettled":
                break
        info = await run.status()
        assert (info.status, info.reason) == ("waiting", "retry")
        assert now <= info.due_at <= now + DELAY_MAX_MS
        assert [listed.due_at for listed in await tally.list()] == [info.due_at]
        ctx = ts.TaskContext(started_at_ms=0, timeout_ms=DELAY_MAX_MS)
        assert ctx.deadline.year == 2069 or ctx.deadline.year == 2070
        await tally.close(grace=0)


@pytest.mark.parametrize(
    "policy", ["factor: .inf", "factor: .nan", "factor: -1", "factor: 1.0e+999", "backoff: -1s",
               "backoff: 10", "backoff: 36526d", "backoff_max: 99999999999999999999d"]
)  # fmt: skip
def test_a_policy_without_meaning_is_refused(policy):
    source = (
        "tally: 1\nworkflow: r3\nsteps:\n  - id: a\n    call: m:f\n    effect: read_only\n"
        f"    retry: {{max_attempts: 2, {policy}}}\n"
    )
    with pytest.raises(SourceRefused) as refused:
        compile_source(source.encode(), "r3.yaml")
    assert {problem.line for problem in refused.value.diagnostics} == {7}
