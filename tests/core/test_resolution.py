"""A person's decision about a doubt: recorded, carried out once, and never a dispatch."""

import json

import pytest

from tallystick.core.commands import Report, Resolve, Succeeded
from tallystick.core.definition import Limits, Retry
from tallystick.core.identity import ActivationKey
from tallystick.core.messages import AttemptPrepared, DoubtResolved
from tallystick.errors import Conflict, InvalidRequest, NotFound, NotReady
from tests.core.world import FAILED, OK, REFUSED, UNKNOWN, World, call, fields_of

A = ActivationKey("a")
DECISIONS = ("succeeded", "failed", "cancelled", "never_happened")


def doubtful(effect: str = "mutating", **rest) -> World:
    retry = Retry(max_attempts=1, interruptions_max=0, backoff_ms=0)
    world = World(
        call("a", effect, retry=retry, **rest),
        call("b", needs=("a",)),
        limits=Limits(duration_ms=10_000),
    )
    world.tell("a", UNKNOWN)
    assert world.run.doubts == 1
    return world


def output_of(decision: str) -> bytes | None:
    return b"1" if decision == "succeeded" else None


@pytest.mark.invariant("C10", "R2")
@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("effect", ["mutating", "idempotent"])
def test_a_decision_is_recorded_and_hands_nothing_over(effect, decision):
    world = doubtful(effect)
    made = world.do(Resolve(A, decision, "ann (1000)", "the ledger says so", output_of(decision)))
    assert made.verdicts == (None,)
    assert made.starts == ()
    (event,) = world.said(DoubtResolved)
    assert (event.decision, event.actor) == (decision, "ann (1000)")
    row = json.loads(world.row("a")["resolution"])
    assert row == {"actor": "ann (1000)", "at": world.now, "decision": decision}
    assert world.row("a")["doubt"] is None


def test_each_decision_does_what_it_says():
    ends = {}
    for decision in DECISIONS:
        world = doubtful()
        world.resolve("a", decision, output_of(decision))
        row = world.row("a")
        ends[decision] = (row["outcome"], row["effect"], row["abandoned_at"] is not None)
    assert ends == {
        "succeeded": ("succeeded", None, False),
        "failed": ("failed", "possible", False),
        "cancelled": ("cancelled", "possible", False),
        "never_happened": (None, None, True),
    }


@pytest.mark.invariant("R4", "R10")
def test_that_it_never_happened_permits_one_next_attempt_of_mutating_work():
    world = doubtful()
    world.resolve("a", "never_happened")
    (start,) = world.advance().starts
    assert (start.attempt, start.dispatch) == (2, 1)
    world.tell("a", UNKNOWN)
    assert world.run.doubts == 1
    assert world.advance().starts == ()


@pytest.mark.invariant("R4", "R10")
def test_that_it_never_happened_permits_one_next_dispatch_of_idempotent_work():
    world = doubtful("idempotent")
    for round_ in range(2, 5):
        world.resolve("a", "never_happened")
        (start,) = world.advance().starts
        assert (start.attempt, start.dispatch) == (1, round_)
        assert start.identity == world.starts[0].identity
        world.tell("a", [FAILED, REFUSED, UNKNOWN][round_ - 2])
        assert world.attempt("a").doubt == "permitted-dispatch-did-not-succeed"
        assert world.advance().starts == ()


@pytest.mark.invariant("R4")
def test_that_it_failed_permits_nothing():
    world = doubtful()
    world.resolve("a", "failed")
    assert world.run.ended == "failed"
    assert len(world.said(AttemptPrepared)) == 1


@pytest.mark.invariant("R5")
@pytest.mark.parametrize("effect", ["mutating", "idempotent"])
def test_after_the_deadline_that_it_never_happened_closes_the_attempt(effect):
    world = doubtful(effect)
    world.pass_deadline()
    assert world.run.doubts == 1
    world.resolve("a", "never_happened")
    assert world.row("a")["abandoned_at"] is not None
    assert world.run.ended == "failed"
    assert world.done()["a"] == "cancelled"


@pytest.mark.parametrize("decision", DECISIONS)
def test_only_what_is_in_doubt_can_be_decided(decision):
    world = World(call("a"), call("b", needs=("a",)))
    asked = Resolve(A, decision, "ann", "", output_of(decision))
    assert isinstance(world.ask(asked), NotReady)
    nobody = Resolve(ActivationKey("x"), decision, "ann", "", output_of(decision))
    assert isinstance(world.ask(nobody), NotFound)
    waiting = Resolve(ActivationKey("b"), decision, "ann", "", output_of(decision))
    assert isinstance(world.ask(waiting), NotReady)


@pytest.mark.invariant("M4", "M2")
@pytest.mark.parametrize("second", DECISIONS)
@pytest.mark.parametrize("first", ["succeeded", "failed", "cancelled"])
def test_the_same_decision_again_is_nothing_and_another_is_refused(first, second):
    world = doubtful()
    world.resolve("a", first, output_of(first))
    before = fields_of(world.run)
    verdict = world.resolve("a", second, output_of(second))
    assert (verdict is None) == (first == second)
    assert verdict is None or isinstance(verdict, Conflict)
    assert fields_of(world.run) == before


@pytest.mark.invariant("M4")
def test_another_output_is_another_decision():
    world = doubtful()
    world.resolve("a", "succeeded", b"1")
    assert world.resolve("a", "succeeded", b"1") is None
    assert isinstance(world.resolve("a", "succeeded", b"2"), Conflict)


@pytest.mark.parametrize("decision", DECISIONS)
def test_an_output_comes_with_success_and_only_with_it(decision):
    world = doubtful()
    wrong = None if decision == "succeeded" else b"1"
    refusal = world.resolve("a", decision, wrong)
    assert isinstance(refusal, InvalidRequest)
    assert world.run.doubts == 1


@pytest.mark.invariant("S7")
def test_an_output_that_breaks_the_schema_is_refused(monkeypatch):
    monkeypatch.setattr("tallystick.core.graph.Plan.output_problem", lambda *_: "not a number")
    world = doubtful()
    assert isinstance(world.resolve("a", "succeeded", b"1"), InvalidRequest)
    assert world.run.doubts == 1


@pytest.mark.parametrize("text", ["\ud800", "a" * 200_000, "\x00\x1b[2J", ""])
def test_any_text_may_be_a_reason(text):
    """What comes from a command line can hold anything, lone surrogates too."""
    world = doubtful()
    assert world.ask(Resolve(A, "failed", f"ann{text}", text)) is None


@pytest.mark.invariant("S9", "C10")
def test_a_proof_that_comes_while_in_doubt_settles():
    for end, outcome in ((OK, "succeeded"), (FAILED, "failed")):
        world = doubtful()
        world.do(world.report("a", end))
        assert world.row("a")["outcome"] == outcome
        assert world.run.doubts == 0


@pytest.mark.invariant("S9")
def test_a_success_after_the_decision_that_it_failed_is_kept_and_changes_nothing():
    world = doubtful()
    world.resolve("a", "failed")
    world.ask(Report(A, 1, 1, Succeeded(b"1")))
    assert (world.run.ended, world.row("a")["outcome"]) == ("failed", "failed")
    assert type(world.recorded[-1]).__name__ == "LateFactKept"


@pytest.mark.invariant("S5")
def test_deciding_while_another_step_runs_reopens_only_that_activation():
    world = World(call("a"), call("b"))
    world.tell("a", UNKNOWN)
    before = world.attempt("b")
    world.resolve("a", "never_happened")
    assert world.attempt("b") == before
    assert (world.run.active, world.run.doubts) == (1, 0)
