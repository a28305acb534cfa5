"""How a dispatch ends and what is recorded about it, once and for ever."""

from typing import Any

import msgspec
import pytest

from tallystick.core import messages
from tallystick.core.commands import (
    Accepted,
    Cancelled,
    Failed,
    GivenUp,
    Interrupted,
    PassDeadline,
    Precluded,
    Report,
    RequestTimeout,
    Succeeded,
    Unknown,
)
from tallystick.core.definition import Limits, Retry
from tallystick.core.identity import ActivationKey
from tallystick.core.messages import LateFactKept
from tallystick.core.reports import OUTPUT_MAX
from tallystick.core.run import Run
from tallystick.errors import InvalidRequest, NotFound, NotReady
from tests.core.world import FAILED, OK, REFUSED, T0, UNKNOWN, World, call, fields_of

A = ActivationKey("a")
HARMLESS = ("read_only", "transactional")
EFFECTS = ("read_only", "idempotent", "transactional", "mutating")
ENDS: dict[str, Any] = {
    "succeeded": Succeeded(b'{"x":1}'),
    "failed": Failed("error", "it broke", "none", {"type": "ValueError"}),
    "output_invalid": Succeeded(b'"no number"'),
    "cancelled": Cancelled("none"),
    "refused": REFUSED,
    "given_up": GivenUp(),
    "precluded": Precluded(),
    "interrupted": Interrupted(),
    "unknown": UNKNOWN,
    "unknown_uncounted": Unknown("orderly", counted=False),
}


def one(effect: str = "mutating", *, deadline: bool = False, **rest: Any) -> World:
    limits = Limits(duration_ms=10_000) if deadline else Limits()
    return World(call("a", effect, **rest), call("z"), limits=limits)


@pytest.fixture(autouse=True)
def _schema(monkeypatch):
    """Outputs that are the text `"no number"` break the schema that these steps pretend to have."""

    def problem(_plan, path: str, output: bytes) -> str | None:
        return "not a number" if output == b'"no number"' else None

    monkeypatch.setattr("tallystick.core.graph.Plan.output_problem", problem)


# Once


@pytest.mark.invariant("S3", "M4", "S9")
@pytest.mark.parametrize("tries", [1, 3])
@pytest.mark.parametrize("deadline", [False, True])
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("name", ENDS)
def test_the_same_report_again_changes_nothing(name, effect, deadline, tries):
    """Whatever it says, whatever it led to, and also after a crash."""
    world = one(effect, deadline=True, tries=tries)
    if deadline:
        world.pass_deadline()
    told = world.report("a", ENDS[name])
    assert world.ask(told) is None
    before = fields_of(world.run)
    for _ in range(3):
        world.now += 1_000
        assert world.do(told).events == ()
    assert fields_of(world.run) == before
    world.run = world.reloaded()
    assert world.do(told).events == ()


@pytest.mark.invariant("S3", "S9", "M4", "I5")
@pytest.mark.parametrize("second", ["succeeded", "failed", "output_invalid", "cancelled"])
@pytest.mark.parametrize("first", ["succeeded", "failed", "output_invalid"])
def test_a_differing_report_after_the_end_is_kept_and_changes_nothing(first, second):
    world = one()
    world.do(world.report("a", ENDS[first]))
    row, before = dict(world.row("a")), fields_of(world.run)
    world.now += 5
    world.ask(Report(A, 1, 1, ENDS[second]))
    assert world.row("a") == row, "the first outcome and its time stay"
    after = fields_of(world.run)
    kept = world.said(LateFactKept)
    assert len(kept) == (first != second)
    if kept:
        assert kept[0].status in second.replace("output_invalid", "succeeded")
        volatile = ("sequence", "last_at", "head")
        assert {k: v for k, v in before.items() if k not in volatile} == {
            k: v for k, v in after.items() if k not in volatile
        }


@pytest.mark.invariant("S9")
@pytest.mark.parametrize("name", ["refused", "given_up", "unknown", "interrupted", "precluded"])
def test_what_proves_nothing_is_no_late_fact(name):
    world = one()
    world.do(world.report("a", OK))
    assert world.do(Report(A, 1, 1, ENDS[name])).events == ()


@pytest.mark.invariant("S9", "G12")
def test_a_late_result_after_the_end_of_the_run_is_kept():
    world = one()
    world.tell("a", FAILED)
    world.tell("z", OK)
    assert world.run.ended == "failed"
    world.ask(Report(A, 1, 1, OK))
    assert len(world.said(LateFactKept)) == 1
    assert (world.run.ended, world.done()["a"]) == ("failed", "failed")


@pytest.mark.invariant("S4")
@pytest.mark.parametrize(
    "told",
    [
        Report(ActivationKey("nobody"), 1, 1, OK),
        Report(A, 2, 1, OK),
        Report(A, 0, 1, OK),
        Report(ActivationKey("a", (1,)), 1, 1, OK),
    ],
)
def test_a_report_about_an_attempt_that_is_not_on_record_is_refused(told):
    assert isinstance(one().ask(told), NotFound)


@pytest.mark.invariant("S4")
@pytest.mark.parametrize("dispatch", [0, 2, -1])
def test_a_report_about_a_dispatch_that_is_not_on_record_is_refused(dispatch):
    world = one()
    refusal = world.ask(Report(A, 1, dispatch, OK))
    assert isinstance(refusal, InvalidRequest)
    assert refusal.check == "dispatch"


# Receipts


def _unaccepted(run: Run) -> None:
    """As an executor outside the engine leaves it: dispatched, and no receipt yet."""
    attempt = msgspec.structs.replace(run.live[A].attempt, receipt=False)
    run.live[A] = msgspec.structs.replace(run.live[A], attempt=attempt)


class Outside(World):
    """The same, for an executor whose acceptance is recorded apart from the intent."""

    def check(self) -> None:
        """The receipt was taken away by hand: the stored events know nothing of it."""

    def take_receipt(self) -> None:
        """The dispatch that has just begun is not accepted yet."""
        live = self.run.live.get(A)
        if live is not None and live.attempt is not None and live.attempt.in_flight:
            _unaccepted(self.run)
            self.run.settle()
            self.row("a", live.attempts)["receipt"] = None


def outside(effect: str = "mutating", tries: int = 1) -> Outside:
    world = Outside(
        call("a", effect, retry=Retry(max_attempts=tries, backoff_ms=100)),
        limits=Limits(duration_ms=10_000),
    )
    world.take_receipt()
    return world


@pytest.mark.invariant("S4", "I6")
@pytest.mark.parametrize("end", [OK, FAILED])
def test_nothing_is_settled_without_a_receipt(end):
    world = outside()
    refusal = world.ask(world.report("a", end))
    assert (type(refusal), refusal.check) == (NotReady, "receipt")
    assert world.row("a")["outcome"] is None


@pytest.mark.invariant("S1", "S2")
def test_a_receipt_is_attached_once_and_its_repeat_is_nothing():
    world = outside()
    accepted = Accepted(A, 1, 1, b'{"at":1}')
    assert world.ask(accepted) is None
    assert world.do(accepted).events == ()
    assert world.ask(world.report("a", OK)) is None


@pytest.mark.invariant("S2")
def test_a_receipt_is_attached_under_a_barrier_and_past_the_deadline():
    world = outside()
    world.pass_deadline()
    world.run.barrier = True
    assert world.ask(Accepted(A, 1, 1, b"{}")) is None


@pytest.mark.invariant("S2")
@pytest.mark.parametrize(
    "accepted", [Accepted(A, 1, 2, b"{}"), Accepted(A, 2, 1, b"{}"), Accepted(A, 1, 0, b"{}")]
)
def test_a_receipt_names_the_current_dispatch_of_the_open_attempt(accepted):
    world = outside()
    assert isinstance(world.ask(accepted), NotReady)
    world.ask(Accepted(A, 1, 1, b"{}"))
    world.do(world.report("a", OK))
    assert world.do(accepted).events == ()


@pytest.mark.invariant("I6")
@pytest.mark.parametrize("effect", ["read_only", "idempotent", "transactional"])
@pytest.mark.parametrize("end", [UNKNOWN, FAILED, REFUSED])
def test_a_rule_that_closes_without_a_receipt_writes_one(effect, end):
    """The deadline, while it is in flight or between dispatches, and the bound of unknown ends."""
    for stops in ("in flight", "between", "never"):
        world = outside(effect, tries=2)
        if stops == "in flight":
            world.pass_deadline()
        while world.run.in_flight:
            opened = world.attempt("a")
            if end is FAILED:
                world.ask(Accepted(A, opened.number, opened.dispatch, b"{}"))
            world.do(world.report("a", end))
            if stops == "between" and len(world.run.due):
                world.pass_deadline()
            world.now = world.run.due_at() or world.now
            world.advance()
            world.take_receipt()
        for row in world.rows.attempts.values():
            assert row["outcome"] or row["abandoned_at"] or row["doubt"]
            assert bool(row["receipt"]) or not row["outcome"]


@pytest.mark.invariant("S1", "M6")
def test_times_of_a_run_never_fall_whatever_the_clock_does():
    world = one()
    world.now = T0 - 10**9
    world.tell("a", OK)
    assert world.row("a")["outcome_at"] >= T0
    world.now = 0
    world.tell("z", OK)
    assert world.run.ended == "succeeded"


# Outputs


@pytest.mark.invariant("S7")
@pytest.mark.parametrize("effect", EFFECTS)
def test_an_output_that_breaks_its_schema_is_a_recorded_failure(effect):
    world = one(effect, tries=5)
    world.tell("a", ENDS["output_invalid"])
    (settled,) = world.said(messages.AttemptSettled)
    assert (settled.status, settled.failure, settled.retry_at) == ("failed", "output_invalid", None)
    assert settled.effect == ("none" if effect == "transactional" else "possible")
    assert len(world.rows.attempts) == 2, "never retried"


@pytest.mark.invariant("S7", "R5")
def test_an_output_that_is_too_large_is_a_failure_that_is_not_retried(monkeypatch):
    monkeypatch.setattr("tallystick.core.reports.OUTPUT_MAX", 10)
    world = one("read_only", tries=5)
    world.tell("a", Succeeded(b'"0123456789"'))
    (settled,) = world.said(messages.AttemptSettled)
    assert (settled.failure, settled.retry_at) == ("output_too_large", None)
    assert OUTPUT_MAX == 64 * 1024 * 1024
    exact = one()
    exact.tell("a", Succeeded(b'"01234567"'))
    assert exact.done()["a"] == "succeeded"


# Late and early dispatches


def twice(effect: str = "idempotent", first: Any = FAILED, tries: int = 5) -> World:
    """`a` is in flight for the second time."""
    world = one(effect, retry=Retry(max_attempts=tries, backoff_ms=0), deadline=True)
    world.tell("a", first)
    assert world.attempt("a").dispatch == 2
    return world


@pytest.mark.parametrize("dispatch", [1, 2])
@pytest.mark.parametrize("first", [FAILED, UNKNOWN, REFUSED])
def test_a_success_of_any_dispatch_settles(first, dispatch):
    world = twice(first=first)
    world.tell("a", OK, dispatch=dispatch)
    (settled,) = world.said(messages.AttemptSettled)
    assert (settled.status, settled.dispatch) == ("succeeded", dispatch)
    assert settled.late == (dispatch == 1)


@pytest.mark.invariant("R12")
@pytest.mark.parametrize("end", [FAILED, Failed("error", "another"), Cancelled()])
def test_a_failure_of_an_earlier_dispatch_ends_nothing(end):
    world = twice(first=UNKNOWN)
    before = world.attempt("a")
    world.tell("a", end, dispatch=1)
    assert world.attempt("a") == before
    assert len(world.said(LateFactKept)) == 1


def test_a_success_while_between_dispatches_settles_and_cancels_the_schedule():
    world = one("idempotent", retry=Retry(max_attempts=3, backoff_ms=10_000))
    world.do(world.report("a", FAILED))
    assert A in world.run.due
    world.tell("a", OK)
    assert A not in world.run.due
    assert world.done()["a"] == "succeeded"


@pytest.mark.invariant("R12", "R10")
def test_after_an_unknown_dispatch_failures_end_in_doubt_and_only_success_settles():
    world = twice(first=UNKNOWN, tries=2)
    world.tell("a", FAILED)
    world.tell("a", FAILED)
    assert world.attempt("a").doubt == "exhausted"
    world.tell("a", Failed("error", "late"))
    assert world.attempt("a").doubt == "exhausted"
    world.tell("a", OK)
    assert world.done()["a"] == "succeeded"
    assert {start.identity for start in world.starts if start.key == A} == {
        world.row("a")["identity"].hex()
    }


@pytest.mark.invariant("R12", "R5")
def test_a_failure_that_is_not_named_after_an_unknown_puts_it_in_doubt_at_once():
    retry = Retry(max_attempts=9, backoff_ms=0, on=("timeout",))
    world = one("idempotent", retry=retry)
    world.tell("a", UNKNOWN)
    world.tell("a", FAILED)
    assert world.attempt("a").doubt == "failed-after-unknown"


# What is left behind


@pytest.mark.invariant("S11", "R11")
@pytest.mark.parametrize("first", [FAILED, Failed("error", "clean", "none")])
@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("end", [Failed("error", "clean", "none"), Cancelled("none")])
def test_none_is_claimed_only_if_every_dispatch_proved_it(first, stop, end):
    """A clean end says nothing about the dispatch before it."""
    world = twice(first=first, tries=2)
    if stop:
        world.pass_deadline()
    world.tell("a", end)
    assert world.row("a")["outcome"] in ("failed", "cancelled")
    assert world.row("a")["effect"] == "possible"


@pytest.mark.invariant("S11")
def test_a_clean_cancel_of_harmless_work_after_an_unknown_one_may_have_left_something():
    world = one("read_only", deadline=True, retry=Retry(backoff_ms=0))
    world.tell("a", UNKNOWN)
    world.pass_deadline()
    world.tell("a", Cancelled("none"))
    assert (world.row("a")["outcome"], world.row("a")["effect"]) == ("cancelled", "possible")


@pytest.mark.invariant("S11")
@pytest.mark.parametrize("effect", EFFECTS)
def test_what_a_single_dispatch_proved_is_recorded(effect):
    world = one(effect)
    world.tell("a", Failed("error", "clean", "none"))
    assert world.row("a")["effect"] == "none"
    dirty = one(effect)
    dirty.tell("a", FAILED)
    assert dirty.row("a")["effect"] == ("none" if effect == "transactional" else "possible")


# Cancelled and overdue


@pytest.mark.invariant("S8")
def test_cancelled_without_a_request_is_a_failure():
    world = one()
    world.tell("a", Cancelled())
    assert (world.row("a")["outcome"], world.done()["a"]) == ("failed", "failed")


@pytest.mark.invariant("S8", "N8")
@pytest.mark.parametrize("effect", EFFECTS)
def test_a_request_to_stop_alone_settles_nothing_and_a_success_after_it_is_one(effect):
    world = one(effect, deadline=True)
    world.ask(RequestTimeout(A, 1, 1))
    world.pass_deadline()
    assert {(stop.key.node, stop.reason) for stop in world.stops} == {
        ("a", "timeout"),
        ("a", "cancel"),
        ("z", "cancel"),
    }
    assert world.row("a")["outcome"] is None
    world.tell("a", OK)
    (settled,) = world.said(messages.AttemptSettled)
    assert (settled.status, settled.late) == ("succeeded", True)


def test_a_timeout_is_requested_once_for_each_dispatch():
    world = twice()
    assert isinstance(world.ask(RequestTimeout(A, 1, 1)), NotReady)
    assert world.ask(RequestTimeout(A, 1, 2)) is None
    assert world.do(RequestTimeout(A, 1, 2)).events == ()
    world.tell("a", FAILED)
    assert not world.attempt("a").timeout
    assert world.ask(RequestTimeout(A, 1, 3)) is None
    world.tell("a", OK)
    assert isinstance(world.ask(RequestTimeout(A, 1, 3)), NotReady)
    assert [stop.dispatch for stop in world.stops] == [2, 3]


# Bounds


def drive(world: World, end: Any, rounds: int = 60) -> None:
    for _ in range(rounds):
        live = world.run.live.get(A)
        if live is None or live.attempt is None or not live.attempt.in_flight:
            return
        world.tell("a", end)
        world.now = max(world.now, world.run.due_at() or 0)
        world.advance()
    raise AssertionError("this does not end")


@pytest.mark.invariant("R3", "R9")
@pytest.mark.parametrize("tries", [1, 2, 5])
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("end", [FAILED, REFUSED, Precluded(recovery=False)])
def test_dispatches_that_failed_or_were_refused_are_bounded(effect, end, tries):
    world = one(effect, retry=Retry(max_attempts=tries, backoff_ms=5))
    drive(world, end)
    starts = [start for start in world.starts if start.key == A]
    retried = effect != "mutating" or end is not FAILED
    assert len(starts) == (tries if retried else 1)
    assert world.done()["a"] == "failed"
    assert len({s.identity for s in starts}) == (1 if effect == "idempotent" else len(starts))
    failure = world.said(messages.AttemptAbandoned) or world.said(messages.AttemptSettled)
    assert failure[-1].failure == ("error" if end is FAILED else "unavailable")


@pytest.mark.invariant("R9", "R11")
@pytest.mark.parametrize("most", [0, 1, 5])
@pytest.mark.parametrize("effect", EFFECTS)
def test_unknown_ends_are_counted_apart_and_bounded(effect, most):
    world = one(effect, retry=Retry(max_attempts=1, interruptions_max=most, backoff_ms=5))
    drive(world, UNKNOWN)
    starts = [start for start in world.starts if start.key == A]
    assert len(starts) == (1 if effect == "mutating" else most + 1)
    if effect in HARMLESS:
        assert world.said(messages.AttemptSettled)[-1].failure == "exhausted"
    else:
        doubt = "unknown" if effect == "mutating" else "exhausted"
        assert world.attempt("a").doubt == doubt


@pytest.mark.invariant("R9")
@pytest.mark.parametrize("effect", EFFECTS)
def test_preclusions_in_recovery_are_bounded_over_all_attempts(effect):
    world = one(effect, retry=Retry(max_attempts=1, interruptions_max=3, backoff_ms=5))
    drive(world, Precluded())
    assert len([start for start in world.starts if start.key == A]) == 4
    assert world.done()["a"] == "failed"
    assert world.said(messages.AttemptAbandoned)[-1].failure == "unavailable"


@pytest.mark.invariant("R9", "P14")
@pytest.mark.parametrize("effect", EFFECTS)
def test_giving_up_uncalled_is_free(effect):
    world = one(effect, retry=Retry(max_attempts=1, backoff_ms=0))
    for _ in range(20):
        world.tell("a", GivenUp())
    live = world.live("a")
    assert (live.failures, live.interruptions) == (0, 0)
    assert (live.attempts, world.attempt("a").dispatch) == (
        (1, 21) if effect == "idempotent" else (21, 1)
    )
    world.tell("a", OK)
    assert world.done()["a"] == "succeeded"


@pytest.mark.invariant("R13", "R3")
@pytest.mark.parametrize("effect", ["read_only", "idempotent"])
def test_the_death_of_the_owner_loses_no_count_no_schedule_and_no_try(effect):
    calm, dying = (one(effect, retry=Retry(max_attempts=4, backoff_ms=900)) for _ in range(2))
    for world in (calm, dying):
        for _ in range(3):
            world.do(world.report("a", FAILED))
            if world is dying:
                world.crash()
                world.do(*(world.report("z", UNKNOWN),) if world.run.barrier else ())
            world.now = world.run.due[A]
            world.advance()
        world.do(world.report("a", FAILED))
    assert calm.done()["a"] == dying.done()["a"] == "failed"
    assert len(calm.said(messages.AttemptPrepared)) == len(dying.said(messages.AttemptPrepared))


def test_the_wait_after_a_preclusion_by_the_living_owner_counts_refusals():
    """It is counted like a refusal, so its back-off grows like one."""
    retry = Retry(max_attempts=9, backoff_ms=1, factor=1000.0, backoff_max_ms=10**9)
    refused, precluded = (World(call("a", "idempotent", retry=retry)) for _ in range(2))
    for world, end in ((refused, REFUSED), (precluded, Precluded(recovery=False))):
        for _ in range(3):
            world.do(world.report("a", end))
            world.now = world.run.due[A]
            world.advance()
    assert refused.now - T0 > 1_000
    assert precluded.now == refused.now


# Orderly stops


@pytest.mark.invariant("R9")
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("end", [Interrupted(), Unknown("orderly", counted=False)])
def test_an_orderly_stop_costs_no_try(effect, end):
    world = one(effect, retry=Retry(max_attempts=1, interruptions_max=0))
    world.do(world.report("a", end))
    live = world.live("a")
    assert (live.failures, live.interruptions) == (0, 0)
    if effect == "mutating":
        assert live.attempt.doubt == "unknown"
    else:
        world.advance()
        assert world.attempt("a").dispatch == 2


# Never automatically


@pytest.mark.invariant("R5")
def test_assumed_failures_are_not_retried_and_say_what_they_are():
    world = one("mutating", tries=5, on_unknown="assume_failed")
    world.tell("a", UNKNOWN)
    (settled,) = world.said(messages.AttemptSettled)
    assert (settled.failure, settled.effect, settled.retry_at) == ("assumed", "possible", None)


@pytest.mark.invariant("R5", "R6", "N8")
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("end", [FAILED, REFUSED, UNKNOWN, GivenUp(), Interrupted(), Precluded()])
def test_after_the_deadline_nothing_is_dispatched_again(effect, end):
    world = one(effect, tries=5, deadline=True)
    world.pass_deadline()
    before = len(world.starts)
    world.tell("a", end)
    world.tell("z", OK)
    world.now += 10**9
    world.advance()
    assert len(world.starts) == before
    assert world.run.ended == "failed" or world.run.doubts == 1


@pytest.mark.invariant("R6")
@pytest.mark.parametrize("effect", ["read_only", "idempotent"])
@pytest.mark.parametrize("end", [FAILED, REFUSED, UNKNOWN])
def test_the_deadline_takes_back_what_was_scheduled(effect, end):
    world = one(
        effect, retry=Retry(max_attempts=5, backoff_ms=10**9, backoff_max_ms=10**9), deadline=True
    )
    world.do(world.report("a", end))
    assert world.run.due[A] > world.run.deadline
    world.pass_deadline()
    assert A not in world.run.due
    world.tell("z", OK)
    if effect == "idempotent" and end is UNKNOWN:
        assert world.attempt("a").doubt == "stop-requested"
    else:
        assert world.run.ended == "failed"
        assert world.done()["a"] == "cancelled"


def test_the_deadline_before_its_time_is_refused():
    world = one(deadline=True)
    world.now = world.run.deadline - 1
    assert isinstance(world.ask(PassDeadline()), NotReady)


# A settlement never depends on what comes after it


@pytest.mark.invariant("S6")
def test_a_settlement_stands_whatever_its_follower_is():
    world = World(call("a"), call("b", needs=("a",), inputs={"x": "${{ steps.a.output.missing }}"}))
    assert world.tell("a", Succeeded(b'{"y":1}')) is None
    assert world.done() == {"a": "succeeded", "b": "failed"}
    ended = world.said(messages.ActivationEnded)[-1]
    assert (ended.node, ended.failure) == ("b", "expression")
    assert world.run.ended == "failed"


@pytest.mark.invariant("S6")
def test_a_settlement_stands_where_its_follower_may_not_be_prepared():
    world = World(call("a"), call("b", needs=("a",)), limits=Limits(attempts=1))
    assert world.tell("a", OK) is None
    assert world.done() == {"a": "succeeded"}
    assert (world.status.status, world.status.reason) == ("waiting", "capacity")
