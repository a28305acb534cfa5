"""What must hold before anything is prepared or dispatched again: each check, in order."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tallystick.core import ledger
from tallystick.core.commands import Advance, Prepare
from tallystick.core.definition import Limits, Retry
from tallystick.core.identity import ActivationKey
from tallystick.core.ledger import CHECKS
from tallystick.core.machine import decide
from tallystick.core.messages import Intent
from tallystick.core.run import Ended, Run
from tallystick.errors import AuthorityLost, CapacityUnavailable, Conflict, NotReady
from tests.core.world import (
    FAILED,
    OK,
    REFUSED,
    SLOTS,
    T0,
    UNKNOWN,
    World,
    authority,
    call,
    clone,
    fields_of,
    succeed,
)

A = ActivationKey("a")
Ask = dict[str, Any]
Breaker = Callable[[Run, Ask], None]


def ready_world(**rest: Any) -> World:
    """`a` is ready, `b` is under way; nothing refuses `a`."""
    return World(call("b"), call("a"), slots={"async": 1}, **rest)


def ask_of(world: World, **changes: Any) -> Prepare:
    asked = {"authority": world.holder, "key": A, "attempt": 1, "slots": 1, **changes}
    return Prepare(**asked)


def _set(**values: Any) -> Breaker:
    def breaks(run: Run, _ask: Ask) -> None:
        for name, value in values.items():
            setattr(run, name, value)

    return breaks


def _ask(**values: Any) -> Breaker:
    return lambda _run, ask: ask.update(values)


def _given_up(run: Run, _ask: Ask) -> None:
    run.done[A] = "given_up"


def _other_intent(run: Run, ask: Ask) -> None:
    run.settled[A] = Ended(ask["attempt"], 1, "another", "failed", b"", None)
    ask["intent"] = b"{}"


def _not_live(run: Run, _ask: Ask) -> None:
    for gone in (run.live, run.ready, run.due):
        gone.remove(A)


def _waits(run: Run, _ask: Ask) -> None:
    run.ready.remove(A)
    run.due[A] = T0 + 1


BREAKERS: list[tuple[str, Breaker]] = [
    ("shape", _ask(attempt=0)),
    ("run", _set(sequence=0)),
    ("authority", _ask(authority=authority(9))),
    ("barrier", _set(barrier=True)),
    ("given-up", _given_up),
    ("already-prepared", _other_intent),
    ("accepts-work", _set(stopping="failed")),
    ("ready", _not_live),
    ("number", _ask(attempt=2)),
    ("permission", _waits),
    ("deadline", _set(deadline=T0)),
    ("attempts", _set(limits=Limits(attempts=1, concurrency=1))),
    ("concurrency", _set(limits=Limits(concurrency=1))),
]
OTHER_WAYS: list[tuple[str, Breaker]] = [
    ("shape", _ask(attempt=-1)),
    ("shape", _ask(key=ActivationKey("é" * 513))),
    ("authority", _set(authority=None)),
    ("authority", _ask(authority=msgspec.structs.replace(authority(1), token=b"x" * 16))),
    ("authority", _ask(authority=msgspec.structs.replace(authority(1), generation=2))),
    ("cancel", _set(stopping="cancel")),
    ("accepts-work", _set(stopping="deadline")),
    ("accepts-work", _set(stopping="succeed")),
    ("accepts-work", _set(ended="succeeded")),
    ("node", _ask(key=ActivationKey("nobody"))),
    ("node", _ask(key=ActivationKey("end"))),
    ("ready", _ask(key=ActivationKey("a", (1,)))),
    ("ready", _ask(key=ActivationKey("b"), attempt=2)),
    ("slot", _ask(slots=0)),
    ("slot", _ask(slots=-1)),
    ("number", _ask(attempt=3)),
    ("permission", lambda run, _ask: run.ready.remove(A)),
    ("deadline", _set(deadline=T0 - 1)),
    ("attempts", _set(limits=Limits(attempts=0))),
    ("concurrency", _set(limits=Limits(concurrency=0))),
]


def judge(world: World, breakers: list[Breaker]) -> Any:
    """The verdict about `a` in a broken copy of the world; nothing else may have changed."""
    run, ask = clone(world.run), {"authority": world.holder, "key": A, "attempt": 1, "slots": 1}
    for breaks in breakers:
        breaks(run, ask)
    run = clone(run)
    before = fields_of(run)
    decision = decide(run, [Prepare(**ask)], now=T0, seed=bytes(32))
    if decision.verdicts[0] is not None:
        assert fields_of(decision.run) == before
        assert (decision.events, decision.facts, decision.starts, decision.stops) == ((),) * 4
    return decision.verdicts[0]


@pytest.fixture
def world() -> World:
    return World(call("b"), call("a"), succeed("end", needs=("a", "b")), slots={"async": 1})


def test_the_table_breaks_every_check_in_order():
    assert len(BREAKERS) == len(CHECKS) == 13


def test_nothing_broken_is_accepted(world):
    assert judge(world, []) is None


@pytest.mark.invariant("P11", "P6", "M2")
@pytest.mark.parametrize("at", range(len(BREAKERS)))
def test_the_first_check_that_fails_refuses_and_nothing_changes(world, at):
    """With this check and all after it broken, this one answers; alone, it answers too."""
    name, alone = BREAKERS[at]
    # What an earlier check broke on purpose must not be mended by a later one: later first.
    later = [breaks for _, breaks in reversed(BREAKERS[at + 1 :])]
    assert judge(world, [*later, alone]).check == name
    assert judge(world, [alone]).check == name


@pytest.mark.invariant("P11", "P6", "P7")
@pytest.mark.parametrize(("name", "breaks"), OTHER_WAYS)
def test_each_way_to_fail_a_check_is_refused_by_it(world, name, breaks):
    assert judge(world, [breaks]).check == name


def test_each_refusal_is_of_the_class_that_decides_for_the_caller(world):
    classes = {name: type(judge(world, [breaks])).__name__ for name, breaks in BREAKERS}
    assert classes == {
        "shape": "InvalidRequest",
        "run": "NotFound",
        "authority": "AuthorityLost",
        "barrier": "NotReady",
        "given-up": "NotReady",
        "already-prepared": "Conflict",
        "accepts-work": "NotReady",
        "ready": "NotReady",
        "number": "Conflict",
        "permission": "NotReady",
        "deadline": "NotReady",
        "attempts": "CapacityUnavailable",
        "concurrency": "CapacityUnavailable",
    }
    assert judge(world, [BREAKERS[11][1]]).transient is False
    assert judge(world, [BREAKERS[12][1]]).transient is True


# Repeats


def stored_intent(world: World, node: str = "a", attempt: int = 1) -> bytes:
    return world.row(node, attempt)["intent"]


@pytest.mark.invariant("P2", "P10")
def test_an_exact_repeat_changes_nothing_and_succeeds():
    world = ready_world()
    assert world.ask(ask_of(world)) is None
    assert (world.run.consumed, world.run.active) == (2, 2)
    before = fields_of(world.run)
    for intent in (None, stored_intent(world)):
        decision = world.do(ask_of(world, intent=intent))
        assert decision.verdicts == (None,)
        assert (decision.events, decision.starts) == ((), ())
    assert fields_of(world.run) == before


@pytest.mark.invariant("P3")
@pytest.mark.parametrize("at", range(0, 300, 7))
def test_one_changed_byte_of_the_intent_is_a_conflict(at):
    world = ready_world()
    world.ask(ask_of(world))
    intent = bytearray(stored_intent(world))
    at %= len(intent)
    intent[at] ^= 1
    refusal = world.ask(ask_of(world, intent=bytes(intent)))
    assert (type(refusal), refusal.check) == (Conflict, "already-prepared")


@pytest.mark.invariant("P4")
def test_a_repeat_is_refused_under_a_barrier_and_for_what_was_given_up():
    world = ready_world()
    world.ask(ask_of(world))
    world.crash()
    assert world.ask(ask_of(world)).check == "barrier"
    failed = ready_world()
    failed.tell("b", FAILED)
    assert failed.done()["a"] == "given_up"
    assert failed.ask(ask_of(failed)).check == "given-up"


@pytest.mark.invariant("P5")
def test_a_repeat_succeeds_at_the_cap_past_the_deadline_and_after_the_end():
    world = ready_world(limits=Limits(attempts=2, concurrency=2, duration_ms=1_000))
    world.ask(ask_of(world))
    assert world.ask(ask_of(world)) is None, "at the caps"
    world.pass_deadline()
    assert world.ask(ask_of(world)) is None, "past the deadline"
    world.tell("a", OK)
    world.tell("b", OK)
    assert world.run.ended == "failed"
    assert world.ask(ask_of(world, intent=stored_intent(world))) is None, "after the end"


@pytest.mark.invariant("P12")
def test_of_two_preparations_in_one_transition_one_inserts():
    world = ready_world()
    decision = world.do(ask_of(world), ask_of(world))
    assert decision.verdicts == (None, None)
    assert len(decision.starts) == 1
    assert world.run.consumed == 2


@pytest.mark.invariant("P12", "P9")
def test_of_two_preparations_at_the_last_place_exactly_one_succeeds():
    world = World(call("a"), call("b"), limits=Limits(attempts=1), slots=None)
    asks = [ask_of(world, key=ActivationKey(node)) for node in "ab"]
    first, second = world.do(*asks).verdicts
    assert first is None
    assert (type(second), second.check) == (CapacityUnavailable, "attempts")


# Boundaries


@pytest.mark.invariant("P8", "N8")
@pytest.mark.parametrize(("early", "accepted"), [(1, True), (0, False), (-1, False)])
def test_a_preparation_at_the_deadline_is_refused_and_a_millisecond_before_accepted(
    early, accepted
):
    world = ready_world(limits=Limits(duration_ms=5_000))
    world.now = T0 + 5_000 - early
    refusal = world.ask(ask_of(world))
    assert (refusal is None) == accepted
    if not accepted:
        assert refusal.check == "deadline"


@pytest.mark.invariant("P9")
@pytest.mark.parametrize(("name", "wide"), [("attempts", 2), ("concurrency", 2)])
def test_the_cap_refuses_and_one_less_accepts(name, wide):
    for cap, accepted in ((wide, True), (wide - 1, False), (None, True)):
        world = ready_world(limits=Limits(**{name: cap}))
        refusal = world.ask(ask_of(world))
        assert (refusal is None) == accepted, cap
        if not accepted:
            assert refusal.check == name


@pytest.mark.invariant("P10")
def test_a_doubt_frees_concurrency_and_keeps_what_was_consumed():
    world = ready_world(limits=Limits(concurrency=1))
    assert world.ask(ask_of(world)).check == "concurrency"
    world.do(world.report("b", UNKNOWN))
    assert (world.run.active, world.run.consumed, world.run.doubts) == (0, 1, 1)
    assert world.ask(ask_of(world)) is None
    assert (world.run.active, world.run.consumed) == (1, 2)


@pytest.mark.invariant("S5", "P10")
def test_a_lifted_doubt_counts_again_even_above_the_cap():
    world = World(
        call("b", "idempotent", retry=Retry(interruptions_max=0)),
        call("a"),
        slots={"async": 1},
        limits=Limits(concurrency=1),
    )
    world.tell("b", UNKNOWN)
    assert (world.run.doubts, world.run.active) == (1, 1)
    world.resolve("b", "never_happened")
    assert (world.run.doubts, world.run.active) == (0, 2)
    assert [start.key.node for start in world.advance().starts] == ["b"]


# Attempt numbers and permissions


@pytest.mark.invariant("R1", "R3", "P7")
def test_a_retry_is_refused_before_it_is_due_and_taken_once_when_it_is():
    world = World(call("a", "read_only", retry=Retry(max_attempts=2, backoff_ms=1_000)))
    world.tell("a", FAILED)
    due = world.run.due[A]
    assert T0 <= due <= T0 + 1_000
    if due > T0:
        world.now = due - 1
        assert world.ask(ask_of(world, attempt=2)).check == "permission"
    world.now = due
    assert world.ask(ask_of(world, attempt=3)).check == "number"
    assert world.ask(ask_of(world, attempt=2)) is None
    assert A not in world.run.due
    assert world.ask(ask_of(world, attempt=3)).check == "ready"


@pytest.mark.invariant("R4", "R9")
def test_without_policy_or_decision_no_retry_appears():
    world = World(call("a", "read_only"))
    world.tell("a", FAILED)
    assert world.ask(ask_of(world, attempt=2)).check == "accepts-work"
    assert len(world.rows.attempts) == 1


@pytest.mark.invariant("I1", "P1")
def test_the_intent_says_what_is_about_to_be_done():
    world = World(call("a", inputs={"x": "${{ input.y }}"}), given={"y": [1, 2.5, "z"]})
    intent = msgspec.json.decode(stored_intent(world), type=Intent)
    live = world.live("a")
    assert (intent.run, intent.node, intent.attempt) == (world.run.id, "a", 1)
    assert intent.input == live.input_digest
    assert live.input == b'{"x":[1,2.5,"z"]}'
    assert bytes.fromhex(intent.terms) in world.rows.terms
    assert world.starts[0].intent == intent
    assert world.starts[0].input == live.input


@pytest.mark.invariant("I11")
def test_every_dispatch_of_an_attempt_hands_over_the_stored_intent():
    """Across a crash too: what is handed over again is what was written then, byte for byte."""
    world = World(call("a", "idempotent", 5))
    world.now += 77
    world.tell("a", FAILED)
    world.crash()
    world.tell("a", UNKNOWN)
    world.advance()
    starts = [msgspec.json.encode(start.intent, order="sorted") for start in world.starts]
    assert len(starts) == 3
    assert set(starts) == {stored_intent(world)}
    assert [start.dispatch for start in world.starts] == [1, 2, 3]


# Slots


@pytest.mark.invariant("P14")
def test_nothing_is_prepared_without_a_free_slot():
    world = World(call("a"), call("b", "read_only"), slots=None)
    assert world.advance(thread=5).starts == ()
    assert len(world.do(Advance({"async": 1})).starts) == 1
    assert world.do(Advance({"async": 0})).starts == ()
    assert world.do(Advance({})).starts == ()


@pytest.mark.invariant("P14", "G13")
def test_a_step_without_a_slot_does_not_hold_up_one_that_has_one():
    """The ready threads stand first; the async step behind them goes all the same."""
    threads = {f"t{at}": "thread" for at in range(5)}
    world = World(*(call(name) for name in threads), call("a"), modes=threads, slots=None)
    started = world.do(Advance({"async": 1, "thread": 0})).starts
    assert [start.key.node for start in started] == ["a"]
    started = world.do(Advance({"thread": 2})).starts
    assert [start.key.node for start in started] == ["t0", "t1"]


@pytest.mark.invariant("P6")
def test_a_run_that_nobody_owns_is_not_advanced():
    world = World(call("a"), owned=False)
    refusal = world.ask(Advance(SLOTS))
    assert isinstance(refusal, AuthorityLost)
    assert world.run.consumed == 0


# Redispatch


def between_world(**rest: Any) -> World:
    return World(call("a", "idempotent", retry=Retry(max_attempts=9, backoff_ms=4_000)), **rest)


@pytest.mark.invariant("R6", "R8", "R10")
def test_a_dispatch_is_repeated_when_it_is_due_and_not_before():
    world = between_world()
    world.do(world.report("a", FAILED))
    due = world.run.due[A]
    assert (world.status.status, world.status.reason) == ("waiting", "retry")
    assert world.header.due_at == due
    world.now = due - 1
    assert world.advance().starts == ()
    world.now = due
    (start,) = world.advance().starts
    assert (start.attempt, start.dispatch) == (1, 2)
    assert start.identity == world.starts[0].identity
    assert world.advance().starts == (), "a due schedule is consumed once"


def test_each_thing_a_dispatch_needs_refuses_when_it_is_missing():
    world = between_world()
    world.do(world.report("a", FAILED))
    due = world.run.due[A]

    def refusal(breaks: Callable[[Run], None], now: int = due) -> str | None:
        run = clone(world.run)
        breaks(run)
        found = ledger.may_redispatch(run, run.live[A], now)
        return found and found.check

    def ended(run: Run) -> None:
        run.live[A] = msgspec.structs.replace(
            run.live[A], attempt=msgspec.structs.replace(run.live[A].attempt, end=None)
        )

    assert refusal(lambda run: None) is None
    assert refusal(lambda run: setattr(run, "barrier", True)) == "barrier"
    assert refusal(lambda run: setattr(run, "stopping", "deadline")) == "cancel"
    assert refusal(lambda run: setattr(run, "stopping", "failed")) is None
    assert refusal(ended) == "ended"
    assert refusal(lambda run: run.due.remove(A)) == "ended"
    assert refusal(lambda run: None, due - 1) == "due"
    assert refusal(lambda run: setattr(run, "deadline", due)) == "deadline"
    assert refusal(lambda run: setattr(run, "deadline", due + 1)) is None


@pytest.mark.invariant("C8")
def test_mutating_work_is_not_dispatched_again_whatever_the_run_says():
    world = World(call("a"))
    run = clone(world.run)
    attempt = msgspec.structs.replace(run.live[A].attempt, end="unknown")
    run.live[A] = msgspec.structs.replace(run.live[A], attempt=attempt)
    run.due[A] = T0
    assert isinstance(ledger.may_redispatch(run, run.live[A], T0), NotReady)


@pytest.mark.invariant("R10")
def test_a_refused_mutating_step_gets_a_new_attempt_and_a_new_key():
    world = World(call("a", tries=2))
    world.tell("a", REFUSED)
    assert [(s.attempt, s.dispatch) for s in world.starts] == [(1, 1), (2, 1)]
    assert world.starts[0].identity != world.starts[1].identity
