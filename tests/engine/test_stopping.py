"""The orderly end: grace, what was prepared and never called, the record of the end."""

import asyncio

import msgspec
import pytest

from tallystick.errors import NotReady
from tests.engine import work
from tests.engine.conftest import Life, chain, fan, step
from tests.engine.test_outcomes import Staged
from tests.engine.test_running import release_gates


async def stop_during(place, opened, act) -> None:
    """Stop with a grace of a second, and do something while it lasts."""
    stopping = asyncio.create_task(opened.stop(1_000))
    await place.clock.settled()
    act()
    await place.clock.settled()
    await place.clock.advance(1_000)
    await stopping


async def ended(place, instance: str) -> str | None:
    async with place.engine() as life:
        row = await life.store.engine(instance)
        return row.ended


@pytest.mark.case("K3")
async def test_a_function_that_ends_within_the_grace_has_ended(place):
    opened = await place.open()
    run = await Life(opened).start(chain(step("a", "wait", "mutating"), step("b")))
    await place.clock.settled()
    await stop_during(place, opened, release_gates)
    assert work.calls == {"a": 1}, "nothing new is dispatched"
    assert await ended(place, opened.instance.id) == "drained"
    async with place.engine() as life:
        await life.idle()
        assert await life.status(run) == "succeeded"
        assert work.calls == {"a": 1, "b": 1}


@pytest.mark.case("K3")
@pytest.mark.parametrize(
    ("call", "effect", "then", "calls"),
    [
        ("wait", "read_only", "succeeded", 2),
        ("wait", "idempotent", "succeeded", 2),
        ("wait", "mutating", "in_doubt", 1),
        ("wait_in_thread", "mutating", "in_doubt", 1),
    ],
)
async def test_what_outlives_the_grace_is_judged_by_its_class(place, call, effect, then, calls):
    opened = await place.open()
    run = await Life(opened).start(chain(step("a", call, effect)))
    await place.clock.settled()
    await stop_during(place, opened, lambda: None)
    release_gates()
    for gate in work.thread_gates.values():
        gate.set()
    if call == "wait_in_thread":
        opened.instance._own._close()  # as if the process had ended, and the thread with it
    async with place.engine() as life:
        while work.calls["a"] < calls:
            await place.clock.advance(60_000)
        release_gates()
        await life.idle()
        assert await life.status(run) == then
        assert work.calls["a"] == calls


async def test_an_engine_whose_thread_still_runs_is_not_drained_and_keeps_its_lock(place):
    opened = await place.open()
    run = await Life(opened).start(chain(step("a", "wait_in_thread"), step("b")))
    await place.clock.settled()
    identity = (await opened.store.attempts(run))[0].identity.hex()
    await stop_during(place, opened, lambda: None)
    async with place.engine() as life:
        row = await life.store.engine(opened.instance.id)
        assert msgspec.json.decode(row.ended) == [identity]
        await life.idle()
        assert len(life.engine.recovery.stranded) == 1, "its lock says that it lives"
    work.thread_gates["a"].set()
    opened.instance._own._close()
    async with place.engine() as life:
        await life.idle()
        assert await life.status(run) == "succeeded"


@pytest.mark.invariant("P14")
async def test_what_was_prepared_and_never_called_never_began(place):
    """The stop comes while the commit that prepares is on its way."""
    opened = await place.open()
    life = Life(opened)
    run = await life.start(chain(step("a", "wait"), step("b", effect="mutating")))
    await place.clock.settled()
    stopping: list[asyncio.Task] = []

    async def stop_meanwhile(batch, commit):
        stopping.append(asyncio.create_task(opened.stop(0)))
        await asyncio.sleep(0)
        return await commit()

    Staged(opened.store).plan = [stop_meanwhile]
    release_gates()
    await place.clock.settled()
    await stopping[0]
    assert work.calls == {"a": 1}
    async with place.engine() as again:
        attempts = await again.store.attempts(run)
        assert [(row.node, row.end) for row in attempts] == [("a", None), ("b", "given_up")]
        await again.idle()
        assert await again.status(run) == "succeeded"
    assert work.calls == {"a": 1, "b": 1}


async def test_a_stopped_engine_takes_nothing_and_a_second_stop_is_the_first(place):
    opened = await place.open()
    life = Life(opened)
    await asyncio.gather(opened.stop(0), opened.stop(0))
    with pytest.raises(NotReady):
        await life.start(chain(step("a")))
    assert life.engine.state == "stopped"


async def test_a_clean_end_leaves_no_lock_of_the_instance(place):
    async with place.engine() as life:
        await life.start(chain(step("a")))
        await life.idle()
        folder = place.path.with_name("t.db-locks")
        assert len(list(folder.glob("e_*.lock"))) == 1
    assert [path.name for path in folder.iterdir()] == ["engine-1.lock"]


async def test_hungry_runs_are_released_and_carried_on(place):
    opened = await place.open()
    life = Life(opened)
    await life.start(fan(100))
    await place.clock.settled()
    late = await life.start(chain(step("late")))
    await stop_during(place, opened, release_gates)
    assert work.calls["late"] == 0
    async with place.engine() as again:
        await again.idle()
        assert await again.status(late) == "succeeded"
        assert sum(work.calls.values()) == 101
