"""Clock, entropy, timers, turns and fault points: the small parts, each alone."""

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.engine.clock import LOOK_AGAIN_MS, Entropy, SystemClock
from tallystick.engine.faults import Faults, Injected, faults_from, parse
from tallystick.engine.opening import POINTS
from tallystick.engine.timers import Timers
from tallystick.errors import InvalidRequest
from tallystick.testing.world import VirtualClock, entropy


@given(st.lists(st.integers(0, 2**48 - 1), min_size=1, max_size=50))
def test_ids_of_one_process_sort_in_the_order_in_which_they_were_made(times):
    source = entropy(1)
    made = [source.readable("r", max(times[: i + 1])) for i in range(len(times))]
    assert made == sorted(set(made))
    assert all(len(name) == 28 and name.startswith("r_") for name in made)


def test_transition_ids_are_positive_63_bits_and_bytes_are_never_given_twice():
    source = Entropy()
    numbers = {source.transition()[1] for _ in range(2_000)}
    assert len(numbers) == 2_000
    assert all(0 < number < 2**63 for number in numbers)
    chunks = [source.draw(32) for _ in range(500)]
    assert len(set(chunks)) == 500


def test_a_forked_child_draws_other_bytes():
    source = Entropy()
    source.draw(8)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, source.draw(32))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 32) != source.draw(32)


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 5), st.integers(1, 200)),
        st.tuples(st.just("drop"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("advance"), st.just(0), st.integers(1, 60)),
    ),
    max_size=40,
)


@given(ACTS)
def test_a_timer_comes_up_once_when_it_is_due_and_never_before(acts):
    """Against the obvious: a dictionary that is looked through."""

    async def play():
        clock = VirtualClock(jumps=False)
        came: list[tuple[int, int]] = []
        timers = Timers(clock, clock.monotonic, lambda key: came.append((clock.monotonic(), key)))
        model: dict[int, int] = {}
        expected: list[tuple[int, int]] = []
        for what, key, number in acts:
            if what == "set":
                model[key] = clock.monotonic() + number
                timers.set(key, model[key])
            elif what == "drop":
                model.pop(key, None)
                timers.drop(key)
            else:
                until = clock.monotonic() + number
                expected += sorted((at, k) for k, at in model.items() if at <= until)
                model = {k: at for k, at in model.items() if at > until}
                await clock.advance(number)
            assert len(timers) == len(model)
        assert sorted(came) == sorted(expected)
        assert [at for at, _ in came] == sorted(at for at, _ in came)

    asyncio.run(play())


async def test_a_wait_for_a_wall_instant_notices_that_the_wall_clock_was_set():
    clock = VirtualClock(jumps=False, look_again_ms=LOOK_AGAIN_MS)
    came: list[str] = []
    timers = Timers(clock, clock.now, came.append)
    timers.set("day", clock.now() + 86_400_000)
    clock.step(86_400_000)
    await clock.advance(LOOK_AGAIN_MS)
    assert came == ["day"]


async def test_ten_thousand_timers_ask_the_clock_for_one_call():
    clock = VirtualClock(jumps=False)
    timers = Timers(clock, clock.now, lambda key: None)
    for n in range(10_000):
        timers.set(n, clock.now() + 1_000 + n)
    assert sum(call.call is not None for _, _, call in clock._heap) == 1
    for n in range(10_000):
        timers.drop(n)
        timers.set(0, clock.now() + 5_000_000 + n)
    assert len(timers._heap) < 200


async def test_the_real_clock_calls_and_sleeps():
    clock = SystemClock()
    began = clock.monotonic()
    called = asyncio.Event()
    clock.call_in(1, called.set)
    await called.wait()
    await clock.sleep(1)
    assert clock.monotonic() - began >= 1
    assert clock.now() > 1_700_000_000_000


@pytest.mark.parametrize(
    "text", ["", "a", "a:b:kill", "batch.after:0:kill", "batch.after:1:explode", "a:-1:exit"]
)
def test_a_fault_that_cannot_be_read_is_refused(text):
    with pytest.raises(InvalidRequest):
        parse(text)


def test_faults_exist_only_in_a_test():
    planned = {"TALLY_FAULT": "batch.after:1:kill"}
    assert faults_from(planned, POINTS) is None
    assert faults_from({**planned, "TALLY_TESTING": "1"}, POINTS) is not None
    with pytest.raises(InvalidRequest):
        faults_from({"TALLY_TESTING": "1", "TALLY_FAULT": "batch.aftr:1:kill"}, POINTS)


def test_a_fault_happens_at_its_visit_and_every_visit_is_reported(tmp_path):
    faults = Faults((parse("batch.after:2:raise"),), str(tmp_path / "hits"))
    faults.hit("batch.after")
    faults.hit("timer.due")
    with pytest.raises(Injected):
        faults.hit("batch.after")
    faults.hit("batch.after")
    assert (tmp_path / "hits").read_text().split() == [
        "batch.after",
        "timer.due",
        "batch.after",
        "batch.after",
    ]
    assert faults.hits == {"batch.after": 3, "timer.due": 1}


def test_the_points_are_named_once():
    assert len(POINTS) == len(set(POINTS))
