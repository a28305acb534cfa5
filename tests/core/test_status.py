"""The status is the first line of the table that holds, for every state there is."""

import itertools

import pytest

from tallystick.core.commands import Release
from tallystick.core.definition import Limits, Retry
from tallystick.core.graph import Plan
from tallystick.core.identity import ActivationKey
from tallystick.core.run import Activation, Attempt, Run
from tallystick.core.status import status
from tests.core.world import (
    FAILED,
    OK,
    REFUSED,
    SLOTS,
    UNKNOWN,
    World,
    authority,
    bindings_of,
    call,
    definition_of,
)

DEFINITION = definition_of(*(call(name) for name in "abcde"))
BOUND = Plan(DEFINITION).bind(bindings_of(DEFINITION))


def made(
    *,
    flight: bool,
    between: bool,
    doubt: bool,
    ready: bool,
    retry: bool,
    stopping: str | None,
    barrier: bool,
    ended: str | None,
    limits: Limits,
    owned: bool,
) -> Run:
    """A run with exactly this in it, made by hand."""
    run = Run.new("r", BOUND, limits)
    run.authority = authority(1) if owned else None
    run.stopping, run.barrier, run.ended = stopping, barrier, ended
    shapes = {"a": (flight, {}), "b": (between, {"end": "unknown"})}
    shapes["c"] = (doubt, {"end": "unknown", "doubt": "unknown"})
    for name, (there, fields) in shapes.items():
        if there:
            key = ActivationKey(name)
            attempt = Attempt(1, b"", "", 0, "engine", **fields)
            run.live[key] = Activation(key, 1, b"", "", 1, attempt=attempt)
            run.open_attempts += 1
            run.consumed += 1
            run.in_flight += attempt.in_flight
            run.doubts += attempt.doubt is not None
            if name == "b":
                run.due[key] = 5
    run.active = run.open_attempts - run.doubts
    for name, there in (("d", ready), ("e", retry)):
        key = ActivationKey(name)
        if there:
            run.live[key] = Activation(key, 1, b"", "", int(name == "e"))
            (run.ready if name == "d" else run.due)[key] = True if name == "d" else 7
    return run


FLAGS = (True, False)
CAPS = (Limits(), Limits(attempts=1), Limits(concurrency=1))


@pytest.mark.invariant("M5", "R8", "G13")
def test_every_run_shows_the_first_line_of_the_table_that_holds():
    """The table of the design, line by line, against every combination of what a run can hold."""
    seen = set()
    for flight, between, doubt, ready, retry, barrier, owned in itertools.product(FLAGS, repeat=7):
        for stopping, ended, limits in itertools.product(
            (None, "failed", "succeed", "deadline"), (None, "succeeded", "failed"), CAPS
        ):
            run = made(
                flight=flight,
                between=between,
                doubt=doubt,
                ready=ready,
                retry=retry,
                stopping=stopping,
                barrier=barrier,
                ended=ended,
                limits=limits,
                owned=owned,
            )
            opened = flight + between
            free = limits.attempts is None or flight + between + doubt < limits.attempts
            free = free and (limits.concurrency is None or opened < limits.concurrency)
            prepares = ready and owned and free and stopping is None
            if ended:
                line = ended
            elif barrier:
                line = "recovering"
            elif doubt and not flight and not prepares:
                line = "in_doubt"
            elif stopping == "deadline":
                line = "cancelling"
            elif flight or prepares:
                line = "running"
            else:
                line = "waiting"
            now = status(run)
            assert now.status == line
            assert (now.reason is None) == (line != "waiting")
            if line == "waiting" and (between or (retry and free)):
                assert now.reason == "retry"
            seen.add((now.status, now.reason))
    assert {reason for _, reason in seen} == {None, "retry", "capacity", "owner", "start"}


@pytest.mark.invariant("R8", "M5")
@pytest.mark.parametrize("effect", ["read_only", "idempotent"])
def test_a_run_whose_only_work_waits_for_a_retry_says_so(effect):
    world = World(
        call("a", effect, retry=Retry(max_attempts=3, backoff_ms=10_000)),
        call("b"),
        call("c", needs=("a",)),
    )
    world.do(world.report("a", FAILED))
    assert world.status.status == "running", "b is under way"
    world.tell("b", OK)
    assert (world.status.status, world.status.reason) == ("waiting", "retry")
    assert world.header.due_at == world.run.due[ActivationKey("a")]
    assert world.header.status == "waiting"
    assert world.header.reason == "retry"


@pytest.mark.invariant("R8", "M5", "G13")
def test_a_step_held_up_by_the_concurrency_of_one_that_waits_is_not_about_to_run():
    world = World(
        call("a", "idempotent", retry=Retry(max_attempts=3, backoff_ms=10_000)),
        call("b"),
        limits=Limits(concurrency=1),
    )
    world.tell("a", FAILED)
    assert (world.status.status, world.status.reason) == ("waiting", "retry")


@pytest.mark.invariant("G13", "M5", "P9")
@pytest.mark.parametrize("end", [FAILED, REFUSED])
def test_a_retry_that_the_cap_forbids_waits_for_capacity_and_has_no_timer(end):
    """A due time in the past with nothing to do at it would be a timer that never stops."""
    retry = Retry(max_attempts=3, backoff_ms=0)
    world = World(call("a", "read_only", retry=retry), limits=Limits(attempts=1))
    world.tell("a", end)
    assert (world.status.status, world.status.reason, world.status.person) == (
        "waiting",
        "capacity",
        True,
    )
    assert world.header.due_at is None


@pytest.mark.invariant("C10", "M5")
def test_a_doubt_shows_once_nothing_else_moves():
    world = World(call("a"), call("b"), call("c", needs=("b",)))
    world.tell("a", UNKNOWN)
    assert world.status.status == "running"
    world.tell("b", OK)
    assert world.status.status == "running", "the other branch goes on"
    world.tell("c", OK)
    assert (world.status.status, world.status.person) == ("in_doubt", True)


@pytest.mark.invariant("M5", "A10")
def test_a_run_that_nobody_owns_waits_for_an_owner():
    world = World(call("a"), owned=False)
    assert (world.status.status, world.status.reason) == ("waiting", "owner")
    owned = World(call("a"), slots=None)
    assert owned.status.status == "running"
    owned.do(Release())
    assert (owned.header.status, owned.header.reason) == ("waiting", "owner")


@pytest.mark.invariant("M5", "N8")
def test_a_stopped_run_is_cancelling_until_nothing_is_open():
    world = World(call("a"), limits=Limits(duration_ms=1))
    world.pass_deadline()
    assert world.status.status == "cancelling"
    world.tell("a", FAILED)
    assert world.status.status == "failed"


def test_a_status_of_a_takeover_is_recovering():
    world = World(call("a"), slots=SLOTS)
    world.crash()
    assert world.status.status == "recovering"
    world.tell("a", UNKNOWN)
    assert world.status.status == "in_doubt"
