"""What every executor promises, as checks that can be run against any of them.

A *subject* wraps one executor for the suite; write one for yours and run every check, each on a
fresh subject. With pytest:

    @pytest.mark.parametrize("check", EXECUTOR_CHECKS, ids=lambda check: check.__name__)
    async def test_my_executor_keeps_the_contract(check):
        await check(MySubject())

A check that fails raises `AssertionError` and says which sentence of `executors/contract` is
broken.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias

from tallystick.core.commands import (
    Cancelled,
    DispatchEnd,
    Failed,
    GivenUp,
    Interrupted,
    Succeeded,
    Unknown,
)
from tallystick.errors import NotAccepted
from tallystick.executors.contract import (
    Call,
    Ended,
    Executor,
    NotAcceptedYet,
    Receipt,
    Running,
    StopReason,
    UnknownFate,
)

RACES: Final = 1_000
STOP_REASONS: Final[tuple[StopReason, ...]] = ("timeout", "cancel", "lost", "grace")


class Subject(Protocol):
    """One executor, and what the suite has to know about its world.

    executor  under test · place: what the engine would record as its place
    reports   every end that it reported, in order; the subject passes a callback that appends
    """

    executor: Executor
    place: str
    reports: list[tuple[Call, DispatchEnd]]

    def call(self, number: int) -> Call:
        """A dispatch whose work, once it began, goes on until `finish`. One for each number."""
        ...

    async def begun(self, call: Call) -> int:
        """How often work on this identity began; waits until what was accepted has begun."""
        ...

    async def finish(self, call: Call) -> None:
        """Let the work succeed, and return when its end was reported, if it is reported at all."""
        ...

    def footprint(self) -> object:
        """Everything that a write would change, to be compared by `==`."""
        ...

    async def pause(self) -> None:
        """Let everybody else go first, a while that is random with a seed."""
        ...


Check: TypeAlias = Callable[[Subject], Awaitable[None]]


async def accepted(subject: Subject, call: Call) -> Receipt:
    """Call `accept`, whether it answers at once or has to be awaited."""
    answer = subject.executor.accept(call)
    return await answer if inspect.isawaitable(answer) else answer


# ---- accept


async def a_receipt_names_what_was_accepted(subject: Subject) -> None:
    """Identity and dispatch of the receipt are those of the call."""
    call = subject.call(1)
    receipt = await accepted(subject, call)
    assert (receipt.identity, receipt.dispatch) == (call.identity, call.dispatch)
    await subject.finish(call)


async def accept_returns_at_acceptance(subject: Subject) -> None:
    """It does not wait for the work: nothing is reported while the work goes on."""
    call = subject.call(1)
    await accepted(subject, call)
    assert _ends(subject, call) == [], "accept reported an end of work that goes on"
    await subject.finish(call)


async def a_second_accept_returns_the_first_receipt_and_begins_nothing(subject: Subject) -> None:
    """Of the same identity and dispatch; while it runs and after its end."""
    call = subject.call(1)
    first = await accepted(subject, call)
    assert await subject.begun(call) == 1
    assert await accepted(subject, call) == first, "a second receipt for one dispatch"
    await subject.finish(call)
    assert await accepted(subject, call) == first, "a second receipt after the end"
    assert await subject.begun(call) == 1, "one dispatch began twice"


async def accepts_at_once_begin_once(subject: Subject) -> None:
    """Many concurrent `accept` of one dispatch: equal receipts, one beginning."""
    call = subject.call(1)
    receipts = await asyncio.gather(*(accepted(subject, call) for _ in range(10)))
    assert len(set(receipts)) == 1, "different receipts for one dispatch"
    assert await subject.begun(call) == 1, "one dispatch began twice"
    await subject.finish(call)


async def an_end_is_reported_once(subject: Subject) -> None:
    """Whatever is asked afterwards."""
    call = subject.call(1)
    await accepted(subject, call)
    await subject.finish(call)
    reported = _ends(subject, call)
    assert len(reported) <= 1, "one dispatch was reported twice"
    assert all(isinstance(end, Succeeded) for end in reported), "a success was not reported as one"
    for reason in STOP_REASONS:
        subject.executor.cancel(call, reason)
    await accepted(subject, call)
    await subject.pause()
    assert _ends(subject, call) == reported, "one dispatch was reported twice"


# ---- observe


async def observe_changes_nothing(subject: Subject) -> None:
    """Before acceptance, while the work goes on, and after its end."""
    call = subject.call(1)
    receipt = None

    async def look() -> None:
        before = subject.footprint()
        for _ in range(3):
            await subject.executor.observe(call, subject.place, receipt)
        assert subject.footprint() == before, "observe changed something"

    await look()
    receipt = await accepted(subject, call)
    assert await subject.begun(call) == 1, (
        "observe made a dispatch begin, or kept it from beginning"
    )
    await look()
    await subject.finish(call)
    await look()
    assert await subject.begun(call) == 1, "observe made a dispatch begin"


async def observe_tells_what_is(subject: Subject) -> None:
    """And says that it does not know, where it does not."""
    call = subject.call(1)
    executor = subject.executor
    seen = await executor.observe(call, subject.place, None)
    assert isinstance(seen, NotAcceptedYet | UnknownFate), f"not accepted, and observed as {seen}"
    receipt = await accepted(subject, call)
    await subject.begun(call)
    seen = await executor.observe(call, subject.place, receipt)
    assert isinstance(seen, Running), f"it runs, and was observed as {seen}"
    await subject.finish(call)
    seen = await executor.observe(call, subject.place, receipt)
    match seen:
        case Ended(end):
            assert not isinstance(end, GivenUp | Interrupted), f"observed as {end}"
            assert isinstance(end, Succeeded), f"it succeeded, and was observed as {end}"
        case _:
            assert isinstance(seen, UnknownFate), f"it is over, and was observed as {seen}"


# ---- preclude


async def what_was_accepted_cannot_be_precluded(subject: Subject) -> None:
    """While it runs and after its end; and it ends as if nobody had tried."""
    call = subject.call(1)
    await accepted(subject, call)
    await subject.begun(call)
    assert not await subject.executor.preclude(call, subject.place), "accepted, and precluded too"
    await subject.finish(call)
    assert not await subject.executor.preclude(call, subject.place), "ended, and precluded too"
    assert not any(not isinstance(end, Succeeded) for end in _ends(subject, call))


async def what_was_precluded_can_never_begin(subject: Subject) -> None:
    """And stays precluded. An executor inside the engine never precludes."""
    call = subject.call(1)
    if not await subject.executor.preclude(call, subject.place):
        return
    assert not subject.executor.in_engine, "acceptance was committed with the intent"
    for _ in range(2):
        try:
            await accepted(subject, call)
        except NotAccepted:
            pass
        else:
            raise AssertionError("precluded, and accepted afterwards")
        assert await subject.executor.preclude(call, subject.place), "it was precluded before"
    assert await subject.begun(call) == 0, "precluded, and begun"


async def acceptance_and_preclusion_never_both_exist(subject: Subject) -> None:
    """1,000 races. Won by either side, never by both, and the loser's answer says so."""
    won = {True: 0, False: 0}
    for number in range(RACES):
        call = subject.call(number)
        by_accept, by_preclude = await asyncio.gather(
            _accept_later(subject, call), _preclude_later(subject, call)
        )
        assert not (by_accept and by_preclude), f"race {number}: accepted and precluded"
        assert await subject.begun(call) == int(by_accept), f"race {number}: begun although lost"
        won[by_accept] += 1
        if by_accept:
            await subject.finish(call)
    assert subject.executor.in_engine or min(won.values()) > 0, f"one side always won: {won}"


async def _accept_later(subject: Subject, call: Call) -> bool:
    await subject.pause()
    try:
        await accepted(subject, call)
    except NotAccepted:
        return False
    return True


async def _preclude_later(subject: Subject, call: Call) -> bool:
    await subject.pause()
    return await subject.executor.preclude(call, subject.place)


# ---- cancel


async def a_request_to_stop_is_no_outcome(subject: Subject) -> None:
    """Whatever happens then is told once; and a success that came all the same is a success."""
    for number, reason in enumerate(STOP_REASONS):
        call = subject.call(number)
        await accepted(subject, call)
        await subject.begun(call)
        subject.executor.cancel(call, reason)
        subject.executor.cancel(call, reason)
        await subject.finish(call)
        told = _ends(subject, call)
        assert len(told) <= 1, "one dispatch was reported twice"
        allowed = Succeeded | Failed | Cancelled | Interrupted | Unknown
        assert all(isinstance(end, allowed) for end in told), f"{reason}: reported as {told}"


async def a_request_to_stop_what_is_not_there_is_ignored(subject: Subject) -> None:
    """It neither reports nor keeps the dispatch from being accepted later."""
    call = subject.call(1)
    for reason in STOP_REASONS:
        subject.executor.cancel(call, reason)
    await subject.pause()
    assert _ends(subject, call) == [], "an end of what never began"
    await accepted(subject, call)
    assert await subject.begun(call) == 1, "it did not begin"
    await subject.finish(call)


# ---- slots


async def a_slot_is_taken_at_acceptance_and_given_back_at_the_end(subject: Subject) -> None:
    """Exactly one, exactly once."""
    call = subject.call(1)
    mode = call.terms.mode
    before = subject.executor.free(mode)
    assert before > 0, "no slot is free for the suite"
    await accepted(subject, call)
    assert subject.executor.free(mode) == before - 1
    await accepted(subject, call)
    assert subject.executor.free(mode) == before - 1, "a repeat took a slot"
    await subject.finish(call)
    assert subject.executor.free(mode) == before


EXECUTOR_CHECKS: Final[tuple[Check, ...]] = (
    a_receipt_names_what_was_accepted,
    accept_returns_at_acceptance,
    a_second_accept_returns_the_first_receipt_and_begins_nothing,
    accepts_at_once_begin_once,
    an_end_is_reported_once,
    observe_changes_nothing,
    observe_tells_what_is,
    what_was_accepted_cannot_be_precluded,
    what_was_precluded_can_never_begin,
    acceptance_and_preclusion_never_both_exist,
    a_request_to_stop_is_no_outcome,
    a_request_to_stop_what_is_not_there_is_ignored,
    a_slot_is_taken_at_acceptance_and_given_back_at_the_end,
)


class Pauses:
    """Random pauses with a seed: each lets the loop take from none to `turns` other steps."""

    def __init__(self, seed: int = 0, turns: int = 3) -> None:
        self._random = random.Random(seed)  # noqa: S311  the same races every time
        self._turns = turns

    async def __call__(self) -> None:
        """Let others go first."""
        for _ in range(self._random.randint(0, self._turns)):
            await asyncio.sleep(0)


def _ends(subject: Subject, call: Call) -> list[DispatchEnd]:
    key = (call.identity, call.dispatch)
    return [end for told, end in subject.reports if (told.identity, told.dispatch) == key]
