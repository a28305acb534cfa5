"""What follows when a commit does not simply succeed. The store is real; its answers are staged."""

import pytest

from tallystick.core.commands import Claim, RequestTimeout
from tallystick.core.definition import Retry
from tallystick.core.graph import Plan
from tallystick.core.identity import ActivationKey, Authority
from tallystick.errors import (
    AuthorityLost,
    CapacityUnavailable,
    MaintenanceRequired,
    StoreUnavailable,
    TallyError,
)
from tallystick.store.protocol import AuthorityMoved, EpochMoved, Expected, RowRefused
from tests.engine import work
from tests.engine.conftest import chain, step
from tests.engine.test_running import release_gates


class Staged:
    """Stands before `commit`: each call does what is next in the plan; an empty one lets pass."""

    def __init__(self, store) -> None:
        self.commit = store.commit
        self.plan: list = []
        self.batches: list[int] = []
        store.commit = self

    async def __call__(self, batch, *, epoch):
        self.batches.append(len(batch))
        act = self.plan.pop(0) if self.plan else None
        if act is None:
            return await self.commit(batch, epoch=epoch)
        return await act(batch, lambda: self.commit(batch, epoch=epoch))


def unknown(code: str = "commit-unknown") -> StoreUnavailable:
    return StoreUnavailable("the commit reported a failure", code=code)


async def written_and_unknown(batch, commit):
    await commit()
    raise unknown()


async def not_written_and_unknown(batch, commit):
    raise unknown()


async def disk_full(batch, commit):
    raise CapacityUnavailable("the disk is full", which="disk", transient=True, code="disk-full")


async def commit(batch, commit):
    return await commit()


@pytest.mark.invariant("S12", "D6")
@pytest.mark.parametrize("act", [written_and_unknown, not_written_and_unknown, disk_full])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_failed_commit_neither_loses_nor_repeats_anything(place, act, nth):
    """The second commit settles `a` and prepares `b`; the third settles `b`."""
    async with place.engine() as life:
        stage = Staged(life.store)
        run = await life.start(chain(step("a"), step("b", effect="mutating"), step("c")))
        stage.plan = [commit] * (nth - 1) + [act, act]
        await life.idle()
        assert await life.status(run) == "succeeded"
        assert work.calls == {"a": 1, "b": 1, "c": 1}
        await place.clock.advance(60_000)
        assert life.engine.state == "running"


@pytest.mark.invariant("P1")
async def test_nothing_is_called_before_its_intent_is_on_disk(place):
    called_before = []

    async def slow(batch, commit):
        called_before.append(dict(work.calls))
        answers = await commit()
        called_before.append(dict(work.calls))
        return answers

    async with place.engine() as life:
        Staged(life.store).plan = [slow]
        await life.start(chain(step("a")))
        await life.idle()
    assert called_before == [{}, {}]
    assert work.calls == {"a": 1}


@pytest.mark.invariant("D6")
async def test_while_the_disk_is_full_reports_are_kept_and_starts_are_refused(place):
    async with place.engine(jumps=False) as life:
        prepared = life.engine.desk.prepare(Plan(chain(step("a", "wait"), step("b"))), root=None)
        run = (await life.engine.desk.start(prepared, 1)).run
        await place.clock.settled()
        stage = Staged(life.store)
        stage.plan = [disk_full] * 4
        release_gates()
        await place.clock.settled()
        assert life.engine.state == "storage"
        assert isinstance(life.engine.trouble, CapacityUnavailable)
        with pytest.raises(CapacityUnavailable):
            await life.engine.desk.start(prepared, 2)
        await place.clock.advance(30_000)
        await life.idle()
        assert life.engine.state == "running"
        assert await life.status(run) == "succeeded"
        assert work.calls == {"a": 1, "b": 1}


async def test_a_start_that_finds_the_disk_full_is_refused_and_nothing_is_written(place):
    async with place.engine() as life:
        prepared = life.engine.desk.prepare(Plan(chain(step("a"))), root=None)
        Staged(life.store).plan = [disk_full]
        with pytest.raises(CapacityUnavailable):
            await life.engine.desk.start(prepared, 1)
        await life.idle()
        assert work.calls == {}
        await place.clock.advance(1_000)
        await life.engine.desk.start(prepared, 1)
        await life.idle()
        assert work.calls == {"a": 1}


@pytest.mark.invariant("A3", "P6")
async def test_a_run_that_was_lost_is_dropped_and_its_work_here_is_cancelled(place):
    async def moved(batch, commit):
        return [AuthorityMoved(Expected(9, b"x" * 16, 99))]

    async with place.engine() as life:
        run = await life.start(chain(step("a", "stubborn", "mutating"), step("b", "wait")))
        await place.clock.settled()
        stage = Staged(life.store)
        stage.plan = [moved]
        with pytest.raises(AuthorityLost):
            await life.engine.command(run, RequestTimeout(ActivationKey("a"), 1, 1))
        await place.clock.settled()
        assert work.calls["a cancelled"] == 1
        assert life.engine.copy(run) is None
        release_gates()
        await place.clock.settled()
        assert stage.batches == [1], "what it reports is not written under the old authority"
        assert work.calls["b"] == 0


async def test_a_stale_copy_of_an_own_run_is_read_again(place):
    async with place.engine() as life:
        run = await life.start(chain(step("a", "wait"), step("b")))
        await place.clock.settled()
        mine = life.engine.copy(run).authority

        async def moved(batch, commit):
            return [AuthorityMoved(Expected(mine.generation, mine.token, 1))]

        stage = Staged(life.store)
        stage.plan = [moved]
        release_gates()
        await life.idle()
        assert await life.status(run) == "succeeded"
        assert work.calls == {"a": 1, "b": 1}


async def test_another_epoch_stops_the_engine(place):
    async def moved(batch, commit):
        return [EpochMoved(2)] * len(batch)

    async with place.engine() as life:
        run = await life.start(chain(step("a", "wait"), step("b")))
        await place.clock.settled()
        Staged(life.store).plan = [moved]
        release_gates()
        with pytest.raises(TallyError) as failed:
            await life.idle()
        assert failed.value.code == "epoch-moved"
        assert life.engine.state == "failed"
        assert work.calls["b"] == 0
        assert await life.status(run) == "running"


async def test_a_store_that_writes_no_more_stops_the_engine(place):
    async def broken(batch, commit):
        raise unknown("store-broken")

    async with place.engine() as life:
        await life.start(chain(step("a", "wait"), step("b")))
        await place.clock.settled()
        Staged(life.store).plan = [broken]
        release_gates()
        with pytest.raises(StoreUnavailable):
            await life.idle()
        with pytest.raises(StoreUnavailable):
            await life.start(chain(step("c")))
        assert work.calls == {"a": 1}


async def test_damage_in_one_run_leaves_the_others_alone(place):
    async def refuse_first(batch, commit):
        return [RowRefused("a guard")] + [None] * (len(batch) - 1)

    async with place.engine() as life:
        run = await life.start(chain(step("a", "wait"), step("b")))
        await place.clock.settled()
        Staged(life.store).plan = [refuse_first]
        work.open_gates["a"].set()
        await life.idle()
        with pytest.raises(MaintenanceRequired):
            await life.engine.command(run, resolve_nothing())
        other = await life.start(chain(step("c")))
        await life.idle()
        assert await life.status(other) == "succeeded"


async def test_a_bug_in_one_decision_leaves_the_other_runs_alone(place, monkeypatch):
    from tallystick.engine import commit as module

    decide = module.decide
    async with place.engine() as life:
        run = await life.start(chain(step("a", "wait"), step("b")))
        await place.clock.settled()
        bad = life.engine.copy(run)

        def broken(run, commands, **rest):
            if run is bad:
                raise AssertionError("a bug")
            return decide(run, commands, **rest)

        monkeypatch.setattr(module, "decide", broken)
        work.open_gates["a"].set()
        other = await life.start(chain(step("c"), step("d")))
        await life.idle()
        assert await life.status(other) == "succeeded"
        with pytest.raises(MaintenanceRequired):
            await life.engine.command(run, resolve_nothing())


@pytest.mark.invariant("M7")
async def test_a_copy_that_differs_from_the_store_stops_the_engine(place):
    async with place.engine() as life:
        run = await life.start(chain(step("a", "wait"), step("b")))
        await place.clock.settled()
        life.engine.copy(run).consumed += 1
        release_gates()
        with pytest.raises(MaintenanceRequired) as failed:
            await life.idle()
        assert failed.value.code == "copy-differs"
        assert "consumed" in failed.value.facts["differ"]


async def test_the_report_of_a_run_in_trouble_waits_for_the_store(place):
    """Retried with back-off, each time what is waiting, and never handed over meanwhile."""
    work.failures["a"] = [ValueError("once")]
    async with place.engine() as life:
        stage = Staged(life.store)
        run = await life.start(chain(step("a", retry=Retry(max_attempts=2)), step("b")))
        stage.plan = [not_written_and_unknown] * 6
        await life.idle()
        assert await life.status(run) == "succeeded"
        assert work.calls == {"a": 2, "b": 1}


def resolve_nothing():
    return Claim(Authority(77, b"y" * 16, "somebody"))
