"""Runs from admission to end, on a virtual clock."""

import asyncio

import pytest

from tallystick.core.definition import Limits, Retry
from tallystick.core.graph import Plan
from tallystick.errors import Conflict, NotAccepted, OutcomeUnknown
from tests.engine import work
from tests.engine.conftest import chain, fan, step


async def test_a_chain_runs_to_its_end_with_one_commit_for_a_step(place):
    async with place.engine() as life:
        batches = count_batches(life)
        run = await life.start(chain(step("a"), step("b"), step("c", "in_thread")))
        await life.idle()
        assert await life.status(run) == "succeeded"
        assert work.calls == {"a": 1, "b": 1, "c": 1}
        assert batches == [1, 1, 1, 1]


@pytest.mark.invariant("R6", "R13")
async def test_a_retry_waits_its_back_off_in_virtual_time(place):
    work.failures["a"] = [ValueError("one"), ValueError("two")]
    retry = Retry(max_attempts=3, backoff_ms=3_600_000, backoff_max_ms=86_400_000)
    async with place.engine() as life:
        began = place.clock.now()
        run = await life.start(chain(step("a", retry=retry)))
        await life.idle()
        assert await life.status(run) == "succeeded"
        assert place.clock.now() > began + 1_000
        assert [attempt for _, attempt, _ in work.keys] == [1, 2, 3]


@pytest.mark.invariant("R10")
async def test_an_idempotent_step_is_dispatched_again_under_the_same_key(place):
    work.failures["a"] = [OutcomeUnknown("?"), NotAccepted("busy")]
    async with place.engine() as life:
        run = await life.start(chain(step("a", effect="idempotent", retry=Retry(max_attempts=3))))
        await life.idle()
        assert await life.status(run) == "succeeded"
    assert len({key for key, _, _ in work.keys}) == 1
    assert [(a, d) for _, a, d in work.keys] == [(1, 1), (1, 2), (1, 3)]


async def test_an_unknown_end_of_mutating_work_waits_for_a_person(place):
    work.failures["a"] = [OutcomeUnknown("?")]
    async with place.engine() as life:
        run = await life.start(chain(step("a", effect="mutating"), step("b")))
        await life.idle()
        assert await life.status(run) == "in_doubt"
        assert work.calls == {"a": 1}


async def test_a_timeout_is_requested_before_the_function_is_cancelled(place):
    async with place.engine() as life:
        run = await life.start(chain(step("a", "wait", timeout_ms=60_000)))
        await place.clock.advance(59_999)
        assert await life.status(run) == "running"
        await place.clock.advance(1)
        await life.idle()
        assert await life.status(run) == "failed"
        kinds = await life.kinds(run)
        assert kinds.index("TimeoutRequested") < kinds.index("AttemptSettled")


async def test_a_late_success_in_a_thread_is_a_success(place):
    async with place.engine() as life:
        run = await life.start(chain(step("a", "wait_in_thread", timeout_ms=60_000)))
        await place.clock.advance(60_000)
        assert "TimeoutRequested" in await life.kinds(run)
        work.thread_gates["a"].set()
        await life.idle()
        assert await life.status(run) == "succeeded"


@pytest.mark.invariant("N8")
async def test_the_deadline_ends_a_run_once_nothing_is_open(place):
    async with place.engine() as life:
        run = await life.start(
            chain(step("a", "wait"), step("b")), limits=Limits(duration_ms=10_000)
        )
        await place.clock.advance(10_000)
        await life.idle()
        assert await life.status(run) == "failed"
        assert (await life.kinds(run)).count("RunStopping") == 1
        assert work.calls == {"a": 1}


@pytest.mark.invariant("P14")
async def test_nothing_is_prepared_without_a_free_slot(place):
    async with place.engine() as life:
        wide = await life.start(fan(130))
        await place.clock.settled()
        assert len(life.engine.driver) == 100
        attempts = await life.store.attempts(wide)
        assert len(attempts) == 100
        release_gates()
        while len(work.calls) < 130:
            await place.clock.settled()
            release_gates()
        await life.idle()
        assert await life.status(wide) == "succeeded"


async def test_a_wide_run_leaves_slots_to_others(place):
    """While others wait, what a wide run frees goes to them until each has its share."""
    async with place.engine() as life:
        await life.start(fan(150))
        await place.clock.settled()
        late = await life.start(chain(step("late")))
        await place.clock.settled()
        assert work.calls["late"] == 0
        work.open_gates["f0"].set()
        await place.clock.settled()
        assert work.calls["late"] == 1
        assert await life.status(late) == "succeeded"
        while len(work.calls) < 151:
            release_gates()
            await place.clock.settled()
        release_gates()
        await life.idle()


@pytest.mark.invariant("X2")
async def test_fifty_starts_with_one_key_are_one_run(place):
    async with place.engine() as life:
        prepared = life.engine.desk.prepare(Plan(chain(step("a"))), root=None)
        told = await asyncio.gather(
            *(life.engine.desk.start(prepared, {"n": 1}, key="k") for _ in range(50))
        )
        assert len({admitted.run for admitted in told}) == 1
        assert sum(admitted.created for admitted in told) == 1
        with pytest.raises(Conflict) as refused:
            await life.engine.desk.start(prepared, {"n": 2}, key="k")
        assert refused.value.facts["differs"] == ["input"]
        await life.idle()
        assert work.calls == {"a": 1}


async def test_a_thousand_starts_share_their_batches(place):
    async with place.engine() as life:
        batches = count_batches(life)
        prepared = life.engine.desk.prepare(Plan(chain(step("a"))), root=None)
        await asyncio.gather(*(life.engine.desk.start(prepared, n) for n in range(1_000)))
        await life.idle()
        assert work.calls == {"a": 1_000}
        assert len(batches) < 60


async def test_runs_that_only_wait_are_let_go_and_come_back(place):
    """Memory is bounded by what is under way, not by what exists."""
    for n in range(12):
        work.failures[f"s{n}"] = [ValueError("once")]
    retry = Retry(max_attempts=2, backoff_ms=60_000)
    async with place.engine(resident_max=3) as life:
        runs = [await life.start(chain(step(f"s{n}", retry=retry))) for n in range(12)]
        await life.idle()
        assert [await life.status(run) for run in runs] == ["succeeded"] * 12
        assert len(life.engine.keeper.residence.held) <= 3


async def test_statements_commit_with_the_settlement_or_not_at_all(place):
    async with place.engine() as life:
        good = await life.start(chain(step("w", "write", "transactional")))
        bad = await life.start(
            chain(step("x", "write_nowhere", "transactional", retry=Retry(max_attempts=2)))
        )
        await life.idle()
        assert await life.status(good) == "succeeded"
        assert await life.status(bad) == "failed"
        assert await life.store.query("SELECT name, n FROM counted") == [("w", 1)]
        assert work.calls["x"] == 2
        events = [e async for e in life.store.events(bad)]
        assert b'"failure":"conflict"' in b"".join(e.envelope for e in events)


@pytest.mark.invariant("M6")
async def test_a_clock_that_goes_back_makes_nothing_unrecordable(place):
    async with place.engine() as life:
        run = await life.start(chain(step("a", "wait"), step("b")))
        await place.clock.settled()
        place.clock.step(-3_600_000)
        release_gates()
        await life.idle()
        assert await life.status(run) == "succeeded"
        times = [e.at async for e in history(life, run)]
        assert times == sorted(times)


def release_gates():
    for gate in work.open_gates.values():
        gate.set()


def count_batches(life) -> list[int]:
    batches: list[int] = []
    write = life.engine.outcomes.write

    async def counted(batch):
        batches.append(len(batch))
        await write(batch)

    life.engine.outcomes.write = counted
    return batches


async def history(life, run):
    from tallystick.surfaces.client.runs import history_of

    async for event in history_of(life.store, run):
        yield event
