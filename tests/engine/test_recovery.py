"""Runs whose engine is gone: taken on evidence, judged by class, moved on."""

import os

import pytest

from tallystick.core.commands import Resolve
from tallystick.core.definition import Retry
from tallystick.core.identity import ActivationKey
from tallystick.errors import NotReady, OwnerElsewhere
from tests.engine import work
from tests.engine.conftest import Life, chain, fan, step
from tests.engine.test_running import release_gates


async def killed_at(place, definition, **rest) -> str:
    """A run whose engine was killed while whatever waits in it was under way."""
    opened = await place.open(**rest)
    run = await Life(opened).start(definition)
    await place.clock.settled()
    await place.crash(opened)
    return run


@pytest.mark.invariant("D7", "A9", "C12")
async def test_a_run_with_nothing_in_flight_is_taken_with_one_event_and_no_barrier(place):
    work.failures["a"] = [ValueError("once")]
    retry = Retry(max_attempts=2, backoff_ms=600_000)
    run = await killed_at(place, chain(step("a", retry=retry)), jumps=False)
    async with place.engine() as life:
        await life.idle()
        assert await life.status(run) == "succeeded"
        kinds = await life.kinds(run)
        assert kinds.count("RunHandedOff") == 1
        assert "BarrierDropped" not in kinds
        handed = [e async for e in life.store.events(run) if b"RunHandedOff" in e.envelope]
        assert b'"evidence":"ended"' in handed[0].envelope
        assert b"its lock is free" in handed[0].envelope


@pytest.mark.invariant("C8", "D2")
@pytest.mark.parametrize(
    ("effect", "call", "status", "calls"),
    [
        ("read_only", "wait", "succeeded", 2),
        ("idempotent", "wait", "succeeded", 2),
        ("transactional", "write", "succeeded", 1),
        ("mutating", "wait", "in_doubt", 1),
    ],
)
async def test_what_was_under_way_is_judged_by_its_class(place, effect, call, status, calls):
    run = await killed_at(place, chain(step("a", call, effect)))
    first = list(work.keys)
    async with place.engine() as life:
        while work.calls["a"] < calls:
            await place.clock.advance(1_000)
        release_gates()
        await life.idle()
        assert await life.status(run) == status
        assert work.calls["a"] == calls
        if effect == "idempotent":
            assert {key for key, _, _ in work.keys} == {key for key, _, _ in first}
        assert "RunHandedOff" in await life.kinds(run) or call == "write"


@pytest.mark.invariant("C6", "C7")
async def test_many_undecided_attempts_are_reconciled_in_pages_under_the_barrier(place):
    run = await killed_at(place, fan(70))
    async with place.engine() as life:
        while work.calls["f69"] < 2:
            await place.clock.advance(1_000)
        kinds = await life.kinds(run)
        handed, dropped = kinds.index("RunHandedOff"), kinds.index("BarrierDropped")
        assert set(kinds[handed + 1 : dropped]) == {"DispatchEnded"}
        assert dropped - handed - 1 == 70
        release_gates()
        await life.idle()
        assert await life.status(run) == "succeeded"


@pytest.mark.invariant("A2", "A7", "C7")
async def test_taken_over_again_and_again_nothing_is_lost_and_nothing_done_twice(place):
    run = await killed_at(place, chain(step("a", "wait", "mutating"), step("b")))
    generations = []
    for _ in range(3):
        opened = await place.open()
        await place.clock.settled()
        generations.append((await opened.store.run(run)).generation)
        assert (await opened.store.run(run)).header.status == "in_doubt"
        await place.crash(opened)
    assert generations == [2, 2, 2], "one that only waits for a person is left alone"
    assert work.calls == {"a": 1}
    async with place.engine() as life:
        await life.engine.command(
            run, Resolve(ActivationKey("a"), "succeeded", "me", "seen", b'{"done":"a"}')
        )
        await life.idle()
        assert await life.status(run) == "succeeded"
        assert (await life.store.run(run)).generation == 3
        assert work.calls == {"a": 1, "b": 1}


@pytest.mark.invariant("A10")
async def test_a_clean_stop_releases_what_is_not_under_way(place):
    work.failures["a"] = [ValueError("once")]
    retry = Retry(max_attempts=2, backoff_ms=600_000)
    async with place.engine(jumps=False) as life:
        run = await life.start(chain(step("a", retry=retry)))
        await place.clock.settled()
    async with place.engine() as life:
        await life.idle()
        stored = await life.store.run(run)
        assert stored.header.status == "succeeded"
        assert stored.generation == 2
        kinds = await life.kinds(run)
        assert kinds.count("RunReleased") == 1
        assert kinds.count("RunClaimed") == 2
        assert "RunHandedOff" not in kinds


@pytest.mark.invariant("A5")
@pytest.mark.parametrize("loss", ["no lock file", "another file", "another machine"])
async def test_without_evidence_a_run_is_left_alone_and_says_whose_it_is(place, loss, monkeypatch):
    run = await killed_at(place, chain(step("a", "wait")))
    locks = place.path.with_name("t.db-locks")
    (own,) = locks.glob("e_*.lock")
    if loss == "no lock file":
        own.unlink()
    elif loss == "another file":
        (locks / "other").touch()
        os.replace(locks / "other", own)
    else:
        from tallystick.engine import instance
        from tallystick.engine import locks as module

        here = module.Machine("elsewhere", "another-boot")
        monkeypatch.setattr(instance, "this_machine", lambda: here)
    async with place.engine() as life:
        await life.idle()
        assert await life.status(run) == "running"
        assert work.calls == {"a": 1}
        assert len(life.engine.recovery.stranded) == 1
        with pytest.raises(OwnerElsewhere) as refused:
            await life.engine.command(run, Resolve(ActivationKey("a"), "failed", "me", ""))
        assert refused.value.facts["evidence"] == "unverifiable"


@pytest.mark.invariant("A5")
async def test_a_rebooted_machine_with_the_same_lock_file_is_evidence(place, monkeypatch):
    run = await killed_at(place, chain(step("a", "wait")))
    from tallystick.engine import instance
    from tallystick.engine import locks as module

    here = module.this_machine()
    monkeypatch.setattr(instance, "this_machine", lambda: module.Machine(here.host, "other-boot"))
    async with place.engine() as life:
        while work.calls["a"] < 2:
            await place.clock.advance(1_000)
        release_gates()
        await life.idle()
        assert await life.status(run) == "succeeded"


@pytest.mark.invariant("X6")
async def test_a_client_without_an_engine_resolves_and_dispatches_nothing(place):
    run = await killed_at(place, chain(step("a", "wait", "mutating"), step("b")))
    async with place.engine() as life:
        await life.idle()
    async with place.engine(role="client") as life:
        await life.engine.command(run, Resolve(ActivationKey("a"), "never_happened", "me", ""))
        await place.clock.settled()
        with pytest.raises(NotReady):
            await life.engine.command(run, Resolve(ActivationKey("b"), "failed", "me", ""))
    assert work.calls == {"a": 1}
    async with place.engine() as life:
        await place.clock.settled()
        release_gates()
        await life.idle()
        assert await life.status(run) == "succeeded"
    assert work.calls == {"a": 2, "b": 1}


async def test_an_engine_of_its_own_runs_leaves_the_others_alone(place):
    old = await killed_at(place, chain(step("a", "wait")))
    async with place.engine(role="own") as life:
        mine = await life.start(chain(step("b")), 1)
        await life.idle()
        assert await life.status(mine) == "succeeded"
        assert await life.status(old) == "running"
        assert work.calls == {"a": 1, "b": 1}
        life.engine.keeper.adopt(old)
        while work.calls["a"] < 2:
            await place.clock.advance(1_000)
        release_gates()
        await life.idle()
        assert await life.status(old) == "succeeded"
