"""The conformance suite against two executors; and it fails for each one that breaks a sentence."""

import asyncio
import copy

import pytest

from tallystick.core.commands import Succeeded
from tallystick.errors import NotAccepted
from tallystick.executors.contract import Ended, Receipt
from tallystick.executors.function.executor import FunctionExecutor
from tallystick.testing import contracts
from tallystick.testing.contracts import EXECUTOR_CHECKS, Pauses
from tallystick.testing.scripted import Place, ScriptedExecutor, Tombstone
from tests.executors.bench import Bench, make_call


class FunctionSubject:
    """Coroutines that go on until they are let."""

    place = "engine"

    def __init__(self) -> None:
        self.bench = Bench()
        self.executor: FunctionExecutor = self.bench.executor
        self.counts: dict[str, int] = {}
        self.let: dict[str, asyncio.Event] = {}
        self.started: dict[str, asyncio.Event] = {}
        self.pause = Pauses()

        async def function(ctx) -> None:
            key = ctx.idempotency_key
            self.counts[key] = self.counts.get(key, 0) + 1
            self.started[key].set()
            await self.let[key].wait()

        self.bench.functions["suite:function"] = function

    @property
    def reports(self):
        return [(call, end) for call, end, _ in self.bench.reports]

    def call(self, number):
        call = make_call(number, task="suite:function", effect="read_only")
        self.let[call.identity], self.started[call.identity] = asyncio.Event(), asyncio.Event()
        return call

    async def begun(self, call):
        if (call.identity, call.dispatch) in self.executor._receipts:
            await self.started[call.identity].wait()
        return self.counts.get(call.identity, 0)

    async def finish(self, call):
        self.let[call.identity].set()
        await self.bench.end_of(call)

    def footprint(self):
        executor = self.executor
        return (dict(executor._open), dict(executor._receipts), dict(executor._free), self.reports)


class ScriptedSubject:
    def __init__(self, executor=ScriptedExecutor, **settings) -> None:
        self.world = Place()
        self.place = self.world.name
        self.reports = []
        self.pause = Pauses()
        self.executor = executor(self.world, report=self.report, pause=self.pause, **settings)

    def report(self, call, end, statements) -> None:
        self.reports.append((call, end))

    def call(self, number):
        return make_call(number)

    async def begun(self, call):
        return self.world.begun.count(call.identity)

    async def finish(self, call):
        self.executor.finish(call, Succeeded(b"null"))

    def footprint(self):
        return copy.deepcopy((self.world, self.reports, list(self.executor._calls)))


SUBJECTS = {
    "function": FunctionSubject,
    "scripted": ScriptedSubject,
    "obedient": lambda: ScriptedSubject(obedient=True),
}


@pytest.mark.invariant("S8")
@pytest.mark.parametrize("check", EXECUTOR_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("make", SUBJECTS.values(), ids=SUBJECTS)
async def test_an_executor_keeps_its_contract(make, check):
    subject = make()
    await check(subject)
    if isinstance(subject, FunctionSubject):
        subject.executor.close()


# ---- it is able to fail


class TwoReceipts(ScriptedExecutor):
    given = 0

    async def accept(self, call):
        receipt = await super().accept(call)
        self.given += 1
        return Receipt(receipt.identity, receipt.dispatch, self.given, self.name)


class BeginsTwice(ScriptedExecutor):
    async def accept(self, call):
        self.place.begun.append(call.identity)
        return await super().accept(call)


class LooksThenWrites(ScriptedExecutor):
    """Acceptance in two steps, with room for a tombstone in between."""

    async def accept(self, call):
        slot = (call.identity, call.dispatch)
        if isinstance(self.place.records.get(slot), Tombstone):
            raise NotAccepted("it was precluded")
        await self._pause()
        self.place.records[slot] = receipt = Receipt(*slot, 0, self.name)
        if call.identity not in self.place.begun:
            self.place.begun.append(call.identity)
        self._calls[slot] = call
        return receipt


class PrecludesWhatItAccepted(ScriptedExecutor):
    async def preclude(self, call, place):
        await super().preclude(call, place)
        return True


class ForgetsTombstones(ScriptedExecutor):
    async def preclude(self, call, place):
        return (call.identity, call.dispatch) not in self.place.records


class NeverPrecludesButSaysSo(ScriptedExecutor):
    in_engine = True


class ReportsTwice(ScriptedExecutor):
    def finish(self, call, end):
        super().finish(call, end)
        self._report(call, end, ())


class ReportsAtAcceptance(ScriptedExecutor):
    async def accept(self, call):
        receipt = await super().accept(call)
        self._report(call, Succeeded(b"null"), ())
        return receipt


class ReportsEveryRequest(ScriptedExecutor):
    def cancel(self, call, reason):
        self._report(call, Succeeded(b"null"), ())


class ObservingLeavesATrace(ScriptedExecutor):
    async def observe(self, call, place, receipt):
        self.place.asked.append(((call.identity, call.dispatch), "lost"))
        return await super().observe(call, place, receipt)


class ObservingAccepts(ScriptedExecutor):
    async def observe(self, call, place, receipt):
        await self.accept(call)
        return await super().observe(call, place, receipt)


class SeesAnEndThatIsNone(ScriptedExecutor):
    async def observe(self, call, place, receipt):
        return Ended(Succeeded(b"null"))


class NamesAnotherDispatch(ScriptedExecutor):
    async def accept(self, call):
        receipt = await super().accept(call)
        return Receipt(receipt.identity, receipt.dispatch + 1, receipt.accepted_at, self.name)


class KeepsItsSlots(ScriptedExecutor):
    def free(self, mode):
        return 100 - len(self.place.begun)


class TakesASlotForARepeat(ScriptedExecutor):
    taken = 0

    async def accept(self, call):
        self.taken += 1
        return await super().accept(call)

    def free(self, mode):
        return 100 - self.taken


BROKEN = [
    (TwoReceipts, contracts.a_second_accept_returns_the_first_receipt_and_begins_nothing),
    (BeginsTwice, contracts.a_second_accept_returns_the_first_receipt_and_begins_nothing),
    (BeginsTwice, contracts.accepts_at_once_begin_once),
    (LooksThenWrites, contracts.acceptance_and_preclusion_never_both_exist),
    (PrecludesWhatItAccepted, contracts.what_was_accepted_cannot_be_precluded),
    (PrecludesWhatItAccepted, contracts.acceptance_and_preclusion_never_both_exist),
    (ForgetsTombstones, contracts.what_was_precluded_can_never_begin),
    (ForgetsTombstones, contracts.acceptance_and_preclusion_never_both_exist),
    (NeverPrecludesButSaysSo, contracts.what_was_precluded_can_never_begin),
    (ReportsTwice, contracts.an_end_is_reported_once),
    (ReportsTwice, contracts.a_request_to_stop_is_no_outcome),
    (ReportsAtAcceptance, contracts.accept_returns_at_acceptance),
    (ReportsEveryRequest, contracts.an_end_is_reported_once),
    (ReportsEveryRequest, contracts.a_request_to_stop_what_is_not_there_is_ignored),
    (ObservingLeavesATrace, contracts.observe_changes_nothing),
    (ObservingAccepts, contracts.observe_changes_nothing),
    (ObservingAccepts, contracts.observe_tells_what_is),
    (SeesAnEndThatIsNone, contracts.observe_tells_what_is),
    (NamesAnotherDispatch, contracts.a_receipt_names_what_was_accepted),
    (KeepsItsSlots, contracts.a_slot_is_taken_at_acceptance_and_given_back_at_the_end),
    (TakesASlotForARepeat, contracts.a_slot_is_taken_at_acceptance_and_given_back_at_the_end),
]


@pytest.mark.parametrize(("broken", "check"), BROKEN)
async def test_the_suite_catches_an_executor_that_breaks_a_sentence(broken, check):
    with pytest.raises(AssertionError):
        await check(ScriptedSubject(broken))


def test_every_check_was_seen_to_fail():
    assert {check for _, check in BROKEN} == set(EXECUTOR_CHECKS)


# ---- the script


async def test_a_place_outlives_the_executor_that_wrote_it():
    place, call = Place(), make_call(1)
    first = ScriptedExecutor(place, now=lambda: 7)
    receipt = await first.accept(call)
    second = ScriptedExecutor(place)
    assert await second.accept(call) == receipt
    assert place.begun == [call.identity]
    second.finish(call, Succeeded(b"1"))
    assert await second.observe(call, place.name, None) == Ended(Succeeded(b"1"))


async def test_what_cannot_be_reached_decides_nothing():
    place, call = Place(reachable=False), make_call(1)
    executor = ScriptedExecutor(place)
    with pytest.raises(NotAccepted):
        await executor.accept(call)
    assert type(await executor.observe(call, place.name, None)).__name__ == "Unreachable"
    assert not await executor.preclude(call, place.name)
    assert place.records == {}


async def test_another_place_knows_nothing():
    place, call = Place(), make_call(1)
    executor = ScriptedExecutor(place)
    await executor.accept(call)
    assert type(await executor.observe(call, "elsewhere", None)).__name__ == "UnknownFate"
    assert not await executor.preclude(make_call(2), "elsewhere")
    place.lost.add((call.identity, call.dispatch))
    assert type(await executor.observe(call, place.name, None)).__name__ == "UnknownFate"
