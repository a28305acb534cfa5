"""The whole machine against anything that can be said to it, in any order, by anybody.

Hypothesis draws definitions and commands: reports about right and wrong dispatches, repeats, stale
authorities, crashes, decisions, timeouts, the deadline, clocks that jump. After every step the
world checks what holds at every moment (see `world`); here is what holds over time.
"""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tallystick.core.commands import (
    Accepted,
    Advance,
    Cancelled,
    Claim,
    Failed,
    GivenUp,
    HandOff,
    Interrupted,
    PassDeadline,
    Precluded,
    Prepare,
    Refused,
    Release,
    Report,
    RequestTimeout,
    Resolve,
    Succeeded,
    Unknown,
)
from tallystick.core.definition import Limits, Node, Retry
from tallystick.core.identity import ActivationKey
from tallystick.core.messages import AttemptPrepared, AttemptRedispatched, AttemptSettled
from tests.core.world import EFFECTS, World, authority, call, fail, fields_of, succeed

NAMES = "abcde"
OUTPUTS = st.sampled_from([b"1", b'{"x":2}', b"null"])
ENDS = st.one_of(
    st.builds(Succeeded, OUTPUTS),
    st.builds(
        Failed,
        st.sampled_from(["error", "timeout", "output_invalid"]),
        st.just("it broke"),
        st.sampled_from(["none", "possible"]),
    ),
    st.builds(Cancelled, st.sampled_from(["none", "possible"])),
    st.just(Refused("no")),
    st.just(GivenUp()),
    st.builds(Precluded, st.booleans()),
    st.just(Interrupted()),
    st.builds(Unknown, st.just("gone"), st.booleans()),
)
LIMITS = st.builds(
    Limits,
    duration_ms=st.sampled_from([None, None, 5_000]),
    attempts=st.sampled_from([None, None, 3, 12]),
    concurrency=st.sampled_from([None, 1, 2]),
)


@st.composite
def definitions(draw: Any) -> list[Node]:
    nodes = []
    for at in range(draw(st.integers(1, 5))):
        needs = tuple(NAMES[i] for i in range(at) if draw(st.booleans()))
        shared = {
            "needs": needs,
            "when": draw(st.sampled_from([None, None, None, "${{ input.no }}", "${{ input.x }}"])),
            "if_skipped": draw(st.sampled_from(["skip", "run"])) if needs else "skip",
            "on_failure": draw(st.sampled_from(["fail", "continue"])),
        }
        kind = draw(st.sampled_from(["call"] * 8 + ["fail", "succeed"]))
        if kind == "call":
            retry = Retry(
                max_attempts=draw(st.integers(1, 3)),
                backoff_ms=draw(st.sampled_from([0, 50])),
                interruptions_max=draw(st.integers(0, 2)),
            )
            nodes.append(call(NAMES[at], draw(st.sampled_from(EFFECTS)), retry=retry, **shared))
        else:
            make = fail if kind == "fail" else succeed
            nodes.append(make(NAMES[at], **shared))
    return nodes


class Machine(RuleBasedStateMachine):
    """One run, its owners, and everybody who talks to it."""

    world: World
    ended: str | None = None

    @initialize(nodes=definitions(), limits=LIMITS, owned=st.booleans())
    def admit(self, nodes: list[Node], limits: Limits, owned: bool) -> None:
        modes = {NAMES[1]: "thread"} if len(nodes) > 1 and nodes[1].kind == "call" else {}
        self.world = World(*nodes, given={"no": False}, limits=limits, modes=modes, owned=owned)
        self.told: list[Report] = []
        self.doubted: set[tuple[Any, int]] = set()

    def _say(self, *commands: Any) -> Any:
        self.world.do(*commands)

    def _pick(self, data: Any, found: list[Any]) -> Any:
        return data.draw(st.sampled_from(found)) if found else None

    @rule(data=st.data(), end=ENDS, advance=st.booleans())
    def report(self, data: Any, end: Any, advance: bool) -> None:
        flying = list(self.world.run.open_dispatches())
        picked = self._pick(data, flying)
        if picked:
            activation, attempt = picked
            told = Report(activation.key, attempt.number, attempt.dispatch, end)
            self.told.append(told)
            self._say(told, *([Advance({"async": 2, "thread": 1, "transactional": 9})] * advance))

    @rule(data=st.data(), end=ENDS)
    def report_about_anything(self, data: Any, end: Any) -> None:
        key = ActivationKey(data.draw(st.sampled_from([*NAMES, "x"])))
        told = Report(key, data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4)), end)
        self._say(told)

    @rule(data=st.data())
    def repeat_a_report(self, data: Any) -> None:
        told = self._pick(data, self.told)
        if told:
            row = self.world.rows.attempts[told.key, told.attempt]
            outcome = row["outcome"], row["outcome_at"], row["abandoned_at"]
            self._say(told)
            after = row["outcome"], row["outcome_at"], row["abandoned_at"]
            assert outcome == after or outcome == (None, None, None)

    @rule(data=st.data())
    def repeat_the_last_report_at_once(self, data: Any) -> None:
        """What was just told is known: nothing is written for it again."""
        flying = list(self.world.run.open_dispatches())
        picked = self._pick(data, flying)
        if picked:
            activation, attempt = picked
            told = Report(activation.key, attempt.number, attempt.dispatch, data.draw(ENDS))
            self._say(told)
            assert self.world.do(told).events == ()

    @rule(free=st.integers(0, 3), threads=st.integers(0, 1))
    def advance(self, free: int, threads: int) -> None:
        slots = {"async": free, "thread": threads, "transactional": 1}
        started = self.world.do(Advance(slots)).starts
        assert len(started) <= free + threads + 1
        modes = [start.terms.mode for start in started]
        assert all(modes.count(mode) <= most for mode, most in slots.items())

    @rule(
        data=st.data(),
        number=st.integers(0, 4),
        generation=st.integers(0, 4),
        slots=st.integers(0, 1),
    )
    def prepare(self, data: Any, number: int, generation: int, slots: int) -> None:
        key = ActivationKey(data.draw(st.sampled_from(NAMES)))
        mine = self.world.holder is not None and self.world.holder.generation == generation
        asked = self.world.holder if mine else authority(generation)
        before = self.world.run.consumed
        verdict = self.world.ask(Prepare(asked, key, number, slots))
        if not mine:
            assert verdict is not None
        assert self.world.run.consumed - before <= 1

    @rule(ms=st.sampled_from([-10_000, 0, 1, 60, 4_000]))
    def pass_time(self, ms: int) -> None:
        self.world.now += ms

    @rule()
    def pass_the_deadline(self) -> None:
        self._say(PassDeadline())

    @rule(data=st.data())
    def time_out(self, data: Any) -> None:
        picked = self._pick(data, list(self.world.run.open_dispatches()))
        if picked:
            activation, attempt = picked
            self._say(RequestTimeout(activation.key, attempt.number, attempt.dispatch))

    @rule(data=st.data(), dispatch=st.integers(1, 3))
    def accept(self, data: Any, dispatch: int) -> None:
        self._say(Accepted(ActivationKey(data.draw(st.sampled_from(NAMES))), 1, dispatch, b"{}"))

    @rule(
        data=st.data(),
        decision=st.sampled_from(["succeeded", "failed", "cancelled", "never_happened"]),
    )
    def resolve(self, data: Any, decision: Any) -> None:
        names = [live.key.node for live, _ in self.world.run.in_doubt()]
        node = data.draw(st.sampled_from(names or list(NAMES)))
        output = b"1" if decision == "succeeded" else None
        self._say(Resolve(ActivationKey(node), decision, "ann", "", output))

    @precondition(lambda self: self.world.holder is not None)
    @rule()
    def die(self) -> None:
        self.world.crash()

    @precondition(lambda self: self.world.run.barrier)
    @rule()
    def recover(self) -> None:
        told = [
            Report(live.key, attempt.number, attempt.dispatch, Unknown("its engine died"))
            for live, attempt in self.world.run.open_dispatches()
        ]
        self._say(*told)
        assert not self.world.run.barrier

    @rule(generation=st.integers(0, 5), former=st.sampled_from(["engine-1", "engine-2"]))
    def hand_off(self, generation: int, former: str) -> None:
        self._say(HandOff(authority(generation), former, "ended", "lock"))

    @rule(generation=st.integers(0, 5))
    def claim(self, generation: int) -> None:
        self._say(Claim(authority(generation)))

    @rule()
    def release(self) -> None:
        self._say(Release())

    @invariant()
    def what_ended_stays_ended(self) -> None:
        if not hasattr(self, "world"):
            return
        now = self.world.run.ended
        assert self.ended is None or now == self.ended
        self.ended = now

    @invariant()
    def keys_change_only_where_they_may(self) -> None:
        """By class: who was dispatched again, who got a new key, and after what."""
        if not hasattr(self, "world"):
            return
        world = self.world
        effects = {node.id: node.effect for node in world.plan.definition.root.nodes}
        for event in world.said(AttemptRedispatched):
            assert effects[event.node] != "mutating"
        settled = {(e.node, e.attempt): e for e in world.said(AttemptSettled)}
        for event in world.said(AttemptPrepared):
            if event.attempt > 1 and effects[event.node] in ("mutating", "idempotent"):
                former = world.row(event.node, event.attempt - 1)
                assert former["abandoned_at"] is not None
                assert (event.node, event.attempt - 1) not in settled

    @invariant()
    def nothing_waits_for_nothing(self) -> None:
        if not hasattr(self, "world"):
            return
        status = self.world.status
        assert (status.reason is not None) == (status.status == "waiting")
        assert status.reason != "start"

    def teardown(self) -> None:
        """Whatever happened: everything can still be brought to an end, or to one named reason."""
        if not hasattr(self, "world"):
            return
        world = self.world
        if world.holder is None:
            world.do(Claim(authority(world.run.generation + 1)))
        for _ in range(60):
            if world.run.ended:
                break
            self.recover() if world.run.barrier else None
            world.finish()
            for activation, _ in list(world.run.in_doubt()):
                world.resolve(activation.key.node, "succeeded", b"1")
            world.now = max(world.now, world.run.due_at() or 0)
            world.advance()
        assert world.run.ended or world.status.reason == "capacity"
        before = fields_of(world.run)
        world.advance()
        assert fields_of(world.run) == before


@pytest.mark.slow
@pytest.mark.invariant("M5", "M7", "M2", "R3", "G12", "G13", "R10", "R2", "P10", "S5", "A2", "M6")
def test_nothing_that_can_be_said_breaks_a_run():
    run_state_machine_as_test(Machine, settings=settings(stateful_step_count=40))
