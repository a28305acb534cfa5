"""What follows when a visit ends: joins, skips, failures and the end of the run."""

import itertools

import pytest

from tallystick.core.commands import Succeeded
from tallystick.core.definition import Limits, Retry
from tallystick.core.messages import (
    ActivationEnded,
    ActivationReady,
    AttemptPrepared,
    RunEnded,
    RunStopping,
)
from tests.core.world import FAILED, OK, UNKNOWN, World, call, chain, fail, succeed

NO = "${{ input.no }}"
GIVEN = {"yes": True, "no": False, "text": "t", "n": 3}


def run(*nodes, script=None, **rest) -> World:
    world = World(*nodes, given=GIVEN, **rest)
    script = script or {}
    world.finish(lambda start: script.get(start.key.node, OK))
    return world


# Joins


@pytest.mark.invariant("G2", "G14")
@pytest.mark.parametrize("order", list(itertools.permutations("abcd")))
def test_a_join_fires_once_after_its_last_need_in_every_order(order):
    world = World(
        *(call(name) for name in "abcd"),
        call("e", needs=tuple("abcd"), inputs={n: f"${{{{ steps.{n}.output }}}}" for n in "abcd"}),
        output="${{ steps.e.output }}",
    )
    for at, name in enumerate(order):
        assert "e" not in {event.node for event in world.said(ActivationReady)}
        world.tell(name, Succeeded(str("abcd".index(name)).encode()))
        assert (len(world.said(AttemptPrepared)) == 5) == (at == 3)
    assert world.live("e").input == b'{"a":0,"b":1,"c":2,"d":3}'
    world.tell("e", Succeeded(b'"end"'))
    assert world.run.ended == "succeeded"


@pytest.mark.invariant("G2", "G14")
def test_a_diamond_of_skips_and_failures_joins_once_in_every_order():
    for order in itertools.permutations("abc"):
        world = World(
            call("a"),
            call("b", on_failure="continue"),
            call("c"),
            call("d", needs=("a",), when=NO),
            call("e", needs=("a", "b", "c", "d")),
            given=GIVEN,
        )
        for name in order:
            world.tell(name, FAILED if name == "b" else OK)
        assert [e.node for e in world.said(ActivationReady)].count("e") == 1
        assert world.done() == {"a": "succeeded", "b": "failed", "c": "succeeded", "d": "skipped"}


# Skips


@pytest.mark.invariant("G16", "G3")
def test_in_written_order_a_step_whose_when_is_false_is_skipped_alone():
    world = run(*chain(call("a"), call("b", when=NO), call("c"), call("d", when=NO)))
    assert world.done() == {"a": "succeeded", "b": "skipped", "c": "succeeded", "d": "skipped"}
    assert {event.node for event in world.said(AttemptPrepared)} == {"a", "c"}
    assert world.run.ended == "succeeded"


@pytest.mark.invariant("G16", "G3")
def test_with_needs_a_step_is_skipped_only_if_all_its_needs_were():
    nodes = (
        call("a", when=NO),
        call("b", when=NO),
        call("c"),
        call("all", needs=("a", "b")),
        call("some", needs=("a", "c")),
        call("keen", needs=("a", "b"), if_skipped="run"),
        call("after", needs=("all",)),
    )
    world = run(*nodes)
    done = world.done()
    assert {name: done[name] for name in ("all", "some", "keen", "after")} == {
        "all": "skipped",
        "some": "succeeded",
        "keen": "succeeded",
        "after": "skipped",
    }


@pytest.mark.invariant("G16")
def test_a_step_without_needs_is_never_skipped_for_them():
    assert run(call("a")).done() == {"a": "succeeded"}


def test_a_run_of_which_every_step_is_skipped_succeeds_at_once():
    world = World(*chain(*(call(f"s{at}", when=NO) for at in range(50))), given=GIVEN)
    assert world.run.ended == "succeeded"
    assert set(world.done().values()) == {"skipped"}
    assert world.transition == 1


# Failures


@pytest.mark.invariant("G10", "R5")
def test_a_failure_gives_up_what_is_not_prepared_and_lets_run_what_is():
    world = World(call("a"), call("b"), call("c"), call("d", needs=("b",)), slots={"async": 2})
    world.do(world.report("a", FAILED))
    assert world.done() == {"a": "failed", "c": "given_up"}
    assert (world.run.ended, world.status.status) == (None, "running")
    world.tell("b", OK)
    assert world.run.ended == "failed"
    assert "d" not in world.done()
    (stopping,) = world.said(RunStopping)
    assert (stopping.cause, stopping.node) == ("failed", "a")
    assert b'"step":"a"' in world.events[-1][4].body


def test_what_waited_for_a_retry_when_the_run_stopped_ends_as_it_failed():
    retry = Retry(max_attempts=3, backoff_ms=10**6)
    world = World(call("a", "read_only", retry=retry), call("b"))
    world.do(world.report("a", FAILED))
    world.tell("b", FAILED)
    assert world.done() == {"a": "failed", "b": "failed"}
    assert world.run.ended == "failed"


@pytest.mark.invariant("G1")
def test_a_step_that_may_fail_counts_as_done_with_null():
    world = run(
        call("a", on_failure="continue"),
        call("b", needs=("a",), inputs={"x": "${{ steps.a.output }}"}),
        script={"a": FAILED},
        output="${{ steps.a.output }}",
    )
    assert world.done() == {"a": "failed", "b": "succeeded"}
    assert world.starts[-1].input == b'{"x":null}'
    assert world.run.ended == "succeeded"
    assert world.events[-1][4].body == b"null"


@pytest.mark.parametrize("when", ["${{ input.missing }}", "${{ input.text }}", "${{ input.n }}"])
@pytest.mark.parametrize("on_failure", ["fail", "continue"])
@pytest.mark.invariant("G4")
def test_a_condition_that_is_no_boolean_fails_the_step_and_is_never_false(when, on_failure):
    world = run(call("a", when=when, on_failure=on_failure), call("b", needs=("a",)))
    assert world.done()["a"] == "failed"
    (ended,) = [event for event in world.said(ActivationEnded) if event.node == "a"]
    assert ended.failure == "expression"
    body = next(p.body for s, _, _, _, p in world.events if p and p.digest == ended.payload)
    assert b"steps.a.when" in body
    assert when.encode() in body
    assert b'"t"' not in body, "the sentence quotes no data"
    assert world.run.ended == ("failed" if on_failure == "fail" else "succeeded")


@pytest.mark.invariant("G4", "S6")
def test_an_input_that_has_no_value_fails_its_step():
    world = run(
        call("a", when=NO),
        call("b", inputs={"x": ["${{ steps.a.output.y }}"]}, needs=("a",), if_skipped="run"),
    )
    assert world.done() == {"a": "skipped", "b": "failed"}
    assert world.run.ended == "failed"
    assert b"step a has no output" in world.events[-1][4].body


# fail and succeed


@pytest.mark.invariant("G10", "G11")
def test_succeed_ends_the_run_with_its_value_once_nothing_is_open():
    world = World(
        call("a"),
        call("b"),
        succeed("s", needs=("a",), value={"n": "${{ input.n }}", "l": [1, "${{ input.yes }}"]}),
        call("c", needs=("s",)),
        given=GIVEN,
        output="${{ input.text }}",
    )
    world.tell("a", OK)
    assert world.run.ended is None
    assert world.status.status == "running"
    world.tell("b", FAILED)
    assert world.run.ended == "succeeded", "what was running could not change it"
    assert world.events[-1][4].body == b'{"l":[1,true],"n":3}'
    assert "c" not in world.done()


@pytest.mark.invariant("G10")
def test_fail_ends_the_run_with_its_message():
    world = World(call("a"), fail("f", needs=("a",), message="${{ input.text }}"), given=GIVEN)
    world.tell("a", OK)
    assert (world.run.ended, world.run.failure) == ("failed", "fail")
    assert b'"message":"t"' in world.events[-1][4].body


def test_a_fail_step_whose_message_has_no_value_fails_all_the_same():
    world = World(fail("f", message="${{ input.missing }}"), given=GIVEN)
    assert (world.run.ended, world.run.failure) == ("failed", "step")
    world = World(fail("f", message="${{ input.n }}"), given=GIVEN)
    assert (world.run.ended, world.run.failure) == ("failed", "fail")


def test_a_fail_step_that_is_skipped_fails_nothing():
    assert run(*chain(fail("f", when=NO), call("a"))).run.ended == "succeeded"


@pytest.mark.invariant("G14")
def test_the_first_stop_is_the_one_that_counts():
    world = World(call("a"), call("b"), succeed("s", needs=("a",)), fail("f", needs=("b",)))
    world.do(world.report("a", OK), world.report("b", OK))
    assert world.run.ended == "succeeded"
    assert len(world.said(RunStopping)) == 1


# The end


@pytest.mark.invariant("G11")
@pytest.mark.parametrize("end", [OK, FAILED])
def test_the_output_exists_only_if_the_run_succeeded_and_comes_with_its_end(end):
    world = run(call("a"), script={"a": end}, output={"x": "${{ input.n }}"})
    (ended,) = world.said(RunEnded)
    payload = world.events[-1][4]
    assert ended.payload == payload.digest
    assert (payload.body == b'{"x":3}') == (ended.status == "succeeded")


def test_an_output_that_has_no_value_fails_the_run():
    world = run(call("a", when=NO), output="${{ steps.a.output }}")
    assert (world.run.ended, world.run.failure) == ("failed", "output")


@pytest.mark.invariant("G10", "G12")
def test_a_run_with_a_doubt_does_not_end_and_ends_when_it_is_decided():
    world = World(call("a"), call("b"))
    world.tell("a", UNKNOWN)
    world.tell("b", FAILED)
    assert (world.run.ended, world.status.status) == (None, "in_doubt")
    world.resolve("a", "succeeded", b"1")
    assert world.run.ended == "failed"
    before = world.run.ended
    world.resolve("a", "failed")
    world.advance()
    assert world.run.ended == before


@pytest.mark.invariant("N8", "R6", "G13")
@pytest.mark.parametrize("effect", ["idempotent"])
@pytest.mark.parametrize("cause", ["failed", "succeed", "fail"])
def test_the_deadline_ends_what_a_stopping_run_left_between_dispatches(effect, cause):
    """Nothing is dispatched past it, so what waits for a dispatch would wait for ever."""
    stop = {"failed": call("s", needs=("b",)), "succeed": succeed("s", needs=("b",))}
    world = World(
        call("a", effect, retry=Retry(max_attempts=9, backoff_ms=10**6, backoff_max_ms=10**6)),
        call("b"),
        stop.get(cause, fail("s", needs=("b",))),
        limits=Limits(duration_ms=10),
    )
    world.do(world.report("a", FAILED))
    assert world.run.due_at() == world.run.deadline
    world.tell("b", FAILED if cause == "failed" else OK)
    assert world.run.stopping == cause
    assert world.header.due_at == world.run.deadline, "the deadline still is a timer"
    world.pass_deadline()
    assert world.run.ended == "failed"
    assert world.done()["a"] == "cancelled"


# Outputs are kept as long as somebody reads them


def test_an_output_is_let_go_when_its_last_reader_has_read_it():
    read = {"x": "${{ steps.a.output }}"}
    world = World(
        call("a"),
        call("b", needs=("a",), inputs=read),
        call("c", needs=("b",), inputs=read),
        call("d", needs=("c",)),
    )
    world.tell("a", Succeeded(b'"kept"'))
    assert world.run.outputs.get("a") == b'"kept"'
    world.tell("b", Succeeded(b'"unread"'))
    assert world.run.outputs.get("b") is None
    assert world.run.outputs.get("a") is None
    world.tell("c", OK)
    world.tell("d", OK)
    assert world.run.ended == "succeeded"


def test_what_a_skipped_reader_would_have_read_is_let_go_too():
    read = {"x": "${{ steps.a.output }}"}
    world = World(
        call("a"),
        call("b", needs=("a",), inputs=read, when=NO),
        call("c", needs=("b",)),
        given=GIVEN,
    )
    world.tell("a", OK)
    assert world.run.outputs.get("a") is None
