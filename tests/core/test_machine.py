"""Authority, barriers and the fold of commands into one transition."""

import itertools

import msgspec
import pytest

from tallystick.core.commands import (
    Accepted,
    Admission,
    Advance,
    Claim,
    HandOff,
    PassDeadline,
    Prepare,
    Release,
    RequestTimeout,
    Resolve,
    Succeeded,
)
from tallystick.core.definition import Limits, Retry
from tallystick.core.graph import Plan
from tallystick.core.identity import ActivationKey
from tallystick.core.machine import admit, decide, request_digest
from tallystick.core.messages import (
    BarrierDropped,
    RunAdmitted,
    RunClaimed,
    RunHandedOff,
    RunReleased,
)
from tallystick.core.values import encode
from tallystick.errors import AuthorityLost, InvalidRequest, NotReady
from tests.core.world import (
    FAILED,
    OK,
    SLOTS,
    T0,
    UNKNOWN,
    World,
    authority,
    bindings_of,
    call,
    clone,
    definition_of,
    fields_of,
)

A = ActivationKey("a")


# Authority


@pytest.mark.invariant("A1")
def test_a_claim_is_possible_once_and_its_repeat_is_identical_or_refused():
    world = World(call("a"), owned=False)
    assert world.ask(Claim(authority(1))) is None
    assert world.do(Claim(authority(1))).events == ()
    for other in (authority(2), msgspec.structs.replace(authority(1), token=b"other")):
        assert isinstance(world.ask(Claim(other)), AuthorityLost)


@pytest.mark.invariant("A1", "A2", "A10")
@pytest.mark.parametrize("generation", [-1, 0, 1, 3, 100])
def test_a_claim_after_a_release_raises_the_generation_by_one(generation):
    world = World(call("a"), slots=None)
    assert world.ask(Release()) is None
    assert isinstance(
        world.ask(Claim(msgspec.structs.replace(authority(7), generation=generation))),
        AuthorityLost,
    )
    assert world.ask(Claim(authority(2))) is None
    assert [event.generation for event in world.said(RunClaimed)] == [1, 2]


@pytest.mark.invariant("A10")
def test_only_a_run_without_open_attempts_is_released_those_in_doubt_excepted():
    world = World(call("a"), call("b"))
    assert isinstance(world.ask(Release()), NotReady)
    world.tell("a", UNKNOWN)
    assert isinstance(world.ask(Release()), NotReady)
    world.tell("b", OK)
    assert world.run.doubts == 1
    assert world.ask(Release()) is None
    assert isinstance(world.ask(Release()), AuthorityLost)
    assert len(world.said(RunReleased)) == 1


@pytest.mark.invariant("A2", "A4")
def test_every_handoff_raises_the_generation_by_one_and_of_two_engines_one_wins():
    world = World(call("a"), slots=None)
    for generation in range(2, 6):
        former = world.holder.engine
        mine = HandOff(authority(generation, "mine"), former, "ended", "lock")
        other = msgspec.structs.replace(authority(generation, "other"), token=b"x" * 16)
        theirs = HandOff(other, former, "ended", "lock")
        verdicts = world.do(mine, theirs).verdicts
        assert verdicts[0] is None
        assert isinstance(verdicts[1], AuthorityLost)
        assert world.run.generation == generation
        assert world.do(mine).events == (), "an exact repeat is nothing"
        world.holder = authority(generation, "mine")


@pytest.mark.invariant("A2", "A5")
@pytest.mark.parametrize(
    "wrong",
    [
        HandOff(authority(2), "somebody", "ended", ""),
        HandOff(authority(3), "engine-1", "ended", ""),
        HandOff(authority(1, "engine-2"), "engine-1", "ended", ""),
        HandOff(
            msgspec.structs.replace(authority(2), token=authority(1).token), "engine-1", "ended", ""
        ),
    ],
)
def test_a_handoff_names_the_exact_former_owner_and_the_next_generation(wrong):
    world = World(call("a"))
    assert isinstance(world.ask(wrong), AuthorityLost)
    assert world.holder == authority(1)


@pytest.mark.invariant("A5")
@pytest.mark.parametrize("evidence", ["live", "unverifiable", "", "heartbeat", "ENDED"])
def test_only_what_is_evidence_moves_authority(evidence):
    world = World(call("a"))
    refusal = world.ask(HandOff(authority(2), "engine-1", evidence, ""))
    assert isinstance(refusal, InvalidRequest)
    assert refusal.check == "evidence"
    for good in ("ended", "fenced", "attested"):
        assert World(call("a")).ask(HandOff(authority(2), "engine-1", good, "")) is None


@pytest.mark.invariant("A9")
@pytest.mark.parametrize("seen", ["its lock was free", "/tmp/\udcff.lock"])
def test_the_evidence_is_in_the_history(seen):
    world = World(call("a"))
    world.ask(HandOff(authority(2), "engine-1", "attested", seen))
    (event,) = world.said(RunHandedOff)
    assert (event.former, event.evidence) == ("engine-1", "attested")
    assert event.seen.startswith(seen[:5])


@pytest.mark.invariant("A7", "A2")
def test_a_handoff_changes_no_attempt_counter_output_or_activation():
    world = World(
        call("a"),
        call("b", "idempotent", retry=Retry(max_attempts=3, backoff_ms=10**6)),
        call("c"),
        call("d", needs=("c",), inputs={"x": "${{ steps.c.output }}"}),
        call("e"),
    )
    world.tell("b", FAILED)
    world.tell("c", Succeeded(b"7"))
    world.tell("e", UNKNOWN)
    before, rows = fields_of(world.run), [dict(row) for row in world.rows.attempts.values()]
    world.crash()
    after = fields_of(world.run)
    moved = {name for name in after if after[name] != before[name]}
    assert moved == {"head", "authority", "generation", "sequence", "barrier"}
    assert rows == list(world.rows.attempts.values())


@pytest.mark.invariant("P6", "A3")
def test_the_former_owner_prepares_nothing():
    world = World(call("a"), slots=None)
    former = world.holder
    world.crash()
    assert isinstance(world.ask(Prepare(former, A, 1, 1)), AuthorityLost)
    assert world.ask(Prepare(world.holder, A, 1, 1)) is None


# The barrier


def recovering(*nodes) -> World:
    world = World(*(nodes or (call("a"), call("b", "idempotent"), call("c", needs=("b",)))))
    world.crash()
    assert world.run.barrier
    return world


@pytest.mark.invariant("A7", "P4")
def test_nothing_starts_while_an_attempt_is_undecided():
    world = recovering()
    world.tell("b", OK)
    assert world.run.barrier
    assert world.advance().starts == ()
    assert world.status.status == "recovering"
    world.tell("a", UNKNOWN)
    assert not world.run.barrier
    assert [start.key.node for start in world.advance().starts] == ["c"]


@pytest.mark.parametrize("order", list(itertools.permutations("ab")))
def test_the_commit_that_decides_the_last_attempt_drops_the_barrier(order):
    world = recovering()
    for at, name in enumerate(order):
        world.do(world.report(name, UNKNOWN))
        assert world.run.barrier == (at == 0)
    assert len(world.said(BarrierDropped)) == 1


def test_a_run_without_undecided_attempts_gets_one_event_and_no_barrier():
    """Nothing open, in doubt, between dispatches: none of it needs anybody's answer."""
    idle = World(call("a"), slots=None)
    doubtful = World(call("a"))
    doubtful.tell("a", UNKNOWN)
    between = World(call("a", "idempotent", retry=Retry(max_attempts=2, backoff_ms=10**6)))
    between.tell("a", FAILED)
    for world in (idle, doubtful, between):
        before = len(world.events)
        world.crash()
        assert len(world.events) == before + 1
        assert not world.run.barrier


def test_a_second_death_during_recovery_starts_it_anew():
    world = recovering()
    world.do(world.report("a", UNKNOWN))
    world.crash()
    assert world.run.barrier
    world.do(world.report("b", UNKNOWN))
    assert not world.run.barrier
    assert world.run.generation == 3


@pytest.mark.invariant("S2")
def test_reports_and_decisions_are_taken_under_the_barrier():
    world = recovering()
    assert world.ask(RequestTimeout(A, 1, 1)) is None
    assert world.ask(Accepted(A, 1, 1, b"{}")) is None
    assert world.ask(world.report("b", OK)) is None
    world.do(world.report("a", UNKNOWN))
    assert world.ask(Resolve(A, "failed", "ann", "")) is None


@pytest.mark.invariant("N8")
def test_a_deadline_is_recorded_under_the_barrier_and_asks_what_is_in_flight_to_stop():
    world = World(call("a"), call("b"), limits=Limits(duration_ms=5))
    world.crash()
    world.pass_deadline()
    assert {stop.reason for stop in world.stops} == {"cancel"}
    world.tell("a", OK)
    world.tell("b", UNKNOWN)
    assert world.status.status == "in_doubt"
    world.resolve("b", "cancelled")
    assert (world.run.ended, world.run.failure) == ("failed", "deadline")


@pytest.mark.invariant("N8")
def test_the_deadline_is_recorded_once():
    world = World(call("a"), limits=Limits(duration_ms=5))
    world.pass_deadline()
    assert world.do(PassDeadline()).events == ()
    world.now += 10**6
    assert world.advance().events == ()
    assert world.header.due_at is None


@pytest.mark.invariant("N8", "P8")
def test_advancing_at_the_deadline_records_it_instead():
    world = World(call("a"), limits=Limits(duration_ms=5), slots=None)
    world.now = T0 + 4
    assert world.do(Advance({})).events == ()
    world.now = T0 + 5
    assert world.advance().starts == ()
    assert (world.run.ended, world.run.failure) == ("failed", "deadline")
    assert world.done() == {"a": "cancelled"}


# One transition, many commands


@pytest.mark.invariant("M2")
def test_a_refused_command_changes_nothing_and_those_around_it_count():
    world = World(call("a"), call("b"))
    decision = world.do(
        world.report("a", OK),
        world.report("a", OK, attempt=5, dispatch=1),
        Release(),
        world.report("b", OK),
    )
    assert [verdict is None for verdict in decision.verdicts] == [True, False, False, True]
    assert world.run.ended == "succeeded"


@pytest.mark.invariant("M1", "M2")
def test_a_decision_that_is_dropped_leaves_no_trace():
    world = World(call("a"), call("b", needs=("a",)))
    before = fields_of(world.run)
    for _ in range(3):
        decide(world.run, [world.report("a", OK), Advance(SLOTS)], now=T0, seed=bytes(64))
    assert fields_of(world.run) == before
    world.tell("a", OK)
    assert world.done() == {"a": "succeeded"}


@pytest.mark.invariant("M1")
def test_the_same_arguments_give_the_same_bytes():
    world = World(call("a", tries=3), call("b"))
    commands = [world.report("a", FAILED), world.report("b", UNKNOWN), Advance(SLOTS)]
    one, two = (decide(clone(world.run), commands, now=T0 + 1, seed=b"s" * 64) for _ in range(2))
    assert msgspec.json.encode((one.events, one.facts, one.starts, one.header)) == (
        msgspec.json.encode((two.events, two.facts, two.starts, two.header))
    )


@pytest.mark.invariant("S6")
def test_a_step_and_the_preparation_of_the_next_are_one_transition():
    world = World(call("a"), call("b", needs=("a",)))
    decision = world.do(world.report("a", OK), Advance(SLOTS))
    assert [start.key.node for start in decision.starts] == ["b"]


@pytest.mark.invariant("P14")
def test_no_more_is_handed_over_in_one_transition_than_its_limit(monkeypatch):
    monkeypatch.setattr("tallystick.core.advance.STARTS_MAX", 3)
    world = World(*(call(f"s{at}") for at in range(8)), slots=None)
    assert [len(world.advance().starts) for _ in range(4)] == [3, 3, 2, 0]


# Admission


def test_an_admission_says_what_a_repeat_is_compared_with():
    definition = definition_of(call("a"))
    plan = Plan(definition)
    base = (plan.digest.hex(), b"1", Limits())
    digests = {
        request_digest(*base),
        request_digest(base[0], b"2", base[2]),
        request_digest("other", b"1", Limits()),
        request_digest(base[0], b"1", Limits(attempts=1)),
    }
    assert len(digests) == 4
    assert request_digest(*base) == request_digest(*base)


@pytest.mark.invariant("I8")
@pytest.mark.parametrize("owned", [True, False])
def test_the_first_event_cites_all_that_never_changes(owned):
    definition = definition_of(call("a"))
    plan = Plan(definition)
    asked = Admission(
        "r",
        definition,
        plan.digest.hex(),
        encode({"x": 1}),
        bindings_of(definition),
        Limits(duration_ms=9, attempts=3),
        key="k",
        authority=authority(1) if owned else None,
    )
    decision = admit(asked, plan, now=T0, seed=bytes(64))
    first = decision.events[0].event
    assert isinstance(first, RunAdmitted)
    assert (first.definition, first.key, first.deadline) == (plan.digest.hex(), "k", T0 + 9)
    assert msgspec.json.decode(first.limits, type=Limits) == asked.limits
    new = decision.new_run
    assert (new.key, new.definition, new.deadline, new.admitted_at) == (
        "k",
        plan.digest,
        T0 + 9,
        T0,
    )
    assert decision.starts == ()
    assert decision.authority == asked.authority


def test_a_definition_without_steps_succeeds_at_once():
    world = World(output="${{ input }}", given=[1])
    assert world.run.ended == "succeeded"
