"""Every small definition, every order of what can be reported: nothing waits for nothing.

A search over all states of a definition, from the admission on. In each state every dispatch in
flight may end in each way, its owner may die and be replaced, a person may decide each doubt, and
the deadline may pass. States that differ only in numbers and times are one. After each step what is
due and ready is advanced into free slots, as an engine does.
"""

import itertools
import os
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from tallystick.core.commands import (
    Admission,
    Advance,
    Command,
    GivenUp,
    HandOff,
    PassDeadline,
    Report,
    Resolve,
    Succeeded,
)
from tallystick.core.definition import Limits, Node, Retry
from tallystick.core.evolution import replay
from tallystick.core.graph import Plan
from tallystick.core.history import seal
from tallystick.core.machine import Decision, admit, decide
from tallystick.core.run import Run
from tallystick.core.status import TERMINAL, status
from tallystick.core.values import encode
from tests.core.world import (
    FAILED,
    REFUSED,
    SLOTS,
    T0,
    UNKNOWN,
    Event,
    authority,
    bindings_of,
    call,
    check_facts_belong,
    clone,
    definition_of,
    fail,
    fields_of,
    succeed,
)

DONE = Succeeded(b"1")
ENDS: Final = {
    "ok": DONE,
    "failed": FAILED,
    "refused": REFUSED,
    "unknown": UNKNOWN,
    "given_up": GivenUp(),
}
DECISIONS: Final = ("succeeded", "failed", "cancelled", "never_happened")
DEADLINE: Final = 1_000
GIVEN: Final = {"yes": True, "no": False}
# How many of the larger definitions are searched: all of them takes minutes.
NIGHT: Final = os.environ.get("HYPOTHESIS_PROFILE") == "night"


class State(NamedTuple):
    run: Run
    events: tuple[Event, ...]


class Search:
    """All states of one definition."""

    def __init__(
        self, nodes: tuple[Node, ...], *, ends: tuple[str, ...], limits: Limits, crash: bool
    ) -> None:
        self.ends = ends
        self.crash = crash
        self.limits = limits
        definition = definition_of(*nodes, output="${{ input }}")
        self.plan = Plan(definition)
        self.bindings = bindings_of(definition)
        self.states: dict[Any, State] = {}
        self.next: dict[Any, set[Any]] = {}
        self.steps = 0

    def run(self) -> "Search":
        self.waiting = deque([self._add(self._first())])
        while self.waiting:
            key = self.waiting.popleft()
            state = self.states[key]
            for now, commands in self._choices(state.run):
                self.steps += 1
                self.next[key].add(self._add(self._step(state, now, commands)))
        return self

    def _first(self) -> State:
        asked = Admission(
            "r",
            self.plan.definition,
            self.plan.digest.hex(),
            encode(GIVEN),
            self.bindings,
            self.limits,
            authority=authority(1),
        )
        decision = admit(asked, self.plan, now=T0, seed=bytes(64), slots=SLOTS)
        return self._commit(State(self._empty(), ()), decision)

    def _empty(self) -> Run:
        return Run.new("r", self.plan.bind(self.bindings), self.limits)

    def _step(self, state: State, now: int, commands: list[Command]) -> State:
        """One transition and all that follows from it without anybody's doing."""
        state = self._decide(state, now, [*commands, Advance(SLOTS)])
        while True:
            events = len(state.events)
            state = self._decide(state, now, [Advance(SLOTS)])
            if len(state.events) == events:
                return state

    def _decide(self, state: State, now: int, commands: list[Command]) -> State:
        decision = decide(clone(state.run), commands, now=now, seed=bytes(64))
        assert decision.verdicts == (None,) * len(commands)
        return self._commit(state, decision)

    def _commit(self, state: State, decision: Decision) -> State:
        run, number = decision.run.settle(), len(state.events)
        sealed = seal(decision.events, head=state.run.head, sequence=number, transition=number)
        if sealed:
            run.head = sealed[-1].hash
        check_facts_belong(decision)
        new = ((s.sequence, number, s.envelope, s.hash, s.payload) for s in sealed)
        return State(run, (*state.events, *new))

    def _add(self, state: State) -> Any:
        key = key_of(state.run)
        if key not in self.states:
            self.states[key] = state
            self.next[key] = set()
            self._check(state)
            self.waiting.append(key) if hasattr(self, "waiting") else None
        return key

    def _choices(self, run: Run) -> Iterator[tuple[int, list[Command]]]:
        now = run.last_at
        for activation, attempt in run.open_dispatches():
            for name in self.ends:
                told = Report(activation.key, attempt.number, attempt.dispatch, ENDS[name])
                yield now, [told]
        for activation, _ in run.in_doubt():
            for decision in DECISIONS:
                output = b"1" if decision == "succeeded" else None
                yield now, [Resolve(activation.key, decision, "ann", "", output)]
        if run.deadline is not None and not run.stop and run.ended is None:
            yield run.deadline, [PassDeadline()]
        if self.crash and run.in_flight and not run.barrier:
            yield now, [HandOff(authority(run.generation + 1), run.authority.engine, "ended", "")]

    # What must hold in every state

    def _check(self, state: State) -> None:
        run = state.run
        again = replay(self._empty(), state.events)
        again.authority = run.authority
        assert fields_of(again) == fields_of(run)
        opened = [live.attempt for live in run.live.values() if live.attempt]
        assert run.open_attempts == len(opened)
        assert run.doubts == sum(a.doubt is not None for a in opened)
        assert run.active == run.open_attempts - run.doubts
        assert run.in_flight == sum(a.in_flight for a in opened)
        for live in run.live.values():
            terms = run.bound.leaf(live.key.node).terms
            assert live.failures <= terms.max_attempts + self._permissions(state)
        check_status(run)

    def _permissions(self, state: State) -> int:
        return sum(b'"DoubtResolved"' in envelope for _, _, envelope, _, _ in state.events)

    def check_every_state_can_end(self) -> None:
        """From every state some end can be reached: no corner without a way out."""
        before: dict[Any, set[Any]] = {key: set() for key in self.states}
        for key, others in self.next.items():
            for other in others:
                before[other].add(key)
        reached = {key for key, state in self.states.items() if state.run.ended}
        waiting = list(reached)
        while waiting:
            for key in before[waiting.pop()] - reached:
                reached.add(key)
                waiting.append(key)
        stuck = set(self.states) - reached
        assert not stuck, next(iter(stuck))

    @property
    def ends_reached(self) -> set[Any]:
        return {key for key, state in self.states.items() if state.run.ended}


def key_of(run: Run) -> Any:
    """What decides how it goes on. Numbers, times, salts and generations do not."""
    live = []
    for activation in run.live.values():
        terms = run.bound.leaf(activation.key.node).terms
        tries = terms.max_attempts + activation.permissions - activation.failures
        tries = max(0, min(tries, 3))  # with one left or none, it is the last
        left = max(terms.interruptions_max - activation.interruptions, -1)
        attempt = activation.attempt
        shape = attempt and (
            attempt.end,
            attempt.earlier,
            attempt.failed,
            attempt.doubt,
            attempt.permitted,
        )
        failed = activation.last_failure
        live.append((activation.key, tries, left, shape, failed, activation.key in run.ready))
    ended = (run.ended, run.failure, run.stopping, run.stop_node, run.barrier)
    outputs = frozenset(run.outputs.items())
    return frozenset(live), frozenset(run.done.items()), outputs, ended


def check_status(run: Run) -> None:
    """After all that can move by itself has moved: an end, work under way, or one reason."""
    now = status(run)
    if run.ended:
        assert (now.status, now.reason) == (run.ended, None)
        assert now.status in TERMINAL
        assert (run.open_attempts, run.doubts, run.barrier) == (0, 0, False)
    elif run.barrier:
        assert now.status == "recovering"
        assert run.in_flight
    elif run.in_flight:
        assert now.status == ("cancelling" if run.stop else "running")
    elif run.doubts:
        assert (now.status, now.person) == ("in_doubt", True)
    else:
        assert (now.status, now.reason, now.person) == ("waiting", "capacity", True), now
    assert (now.reason is not None) == (now.status == "waiting")


# Definitions


def renamed(node: Node, at: int, needs: tuple[int, ...], run_if_skipped: bool) -> Node:
    names = "abcd"
    return msgspec.structs.replace(
        node,
        id=names[at],
        needs=tuple(names[need] for need in needs),
        if_skipped="run" if run_if_skipped and needs else "skip",
    )


def shapes(count: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every acyclic graph over nodes in written order."""
    earlier = [
        [tuple(i for i in range(at) if mask >> i & 1) for mask in range(2**at)]
        for at in range(count)
    ]
    return itertools.product(*earlier)


def definitions(menu: list[Node], count: int) -> Iterator[tuple[Node, ...]]:
    for nodes in itertools.product(menu, repeat=count):
        for needs in shapes(count):
            for keen in (False, True) if any(needs) else (False,):
                yield tuple(renamed(nodes[at], at, needs[at], keen) for at in range(count))


RETRY = Retry(max_attempts=2, backoff_ms=0, interruptions_max=1)
ONCE = Retry(max_attempts=1, backoff_ms=0, interruptions_max=0)
NO, YES = "${{ input.no }}", "${{ input.yes }}"
EFFECTS = ("read_only", "idempotent", "transactional", "mutating")
WIDE_MENU = [
    *(
        call("x", effect, retry=retry, on_failure=on_failure)
        for effect in EFFECTS
        for retry in (RETRY, ONCE)
        for on_failure in ("fail", "continue")
    ),
    call("x", on_unknown="assume_failed"),
    call("x", when=YES),
    call("x", when=NO),
    call("x", when="${{ input.missing }}"),
    call("x", when="${{ input }}", on_failure="continue"),
    call("x", inputs={"v": "${{ input.missing }}"}, on_failure="continue"),
    fail("x"),
    fail("x", when=NO),
    fail("x", on_failure="continue"),
    succeed("x", value="${{ input.yes }}"),
    succeed("x", when=NO),
]
NARROW_MENU = [
    call("x", "idempotent", retry=RETRY),
    call("x", "read_only", retry=RETRY, on_failure="continue"),
    call("x", "mutating", retry=RETRY),
    call("x", when=NO),
    fail("x"),
    succeed("x"),
]
TIMED = Limits(duration_ms=DEADLINE)
ALL_ENDS = tuple(ENDS)


def search(found: list[tuple[Node, ...]], **options: Any) -> list[Search]:
    options = {"ends": ALL_ENDS, "limits": Limits(), "crash": True, **options}
    searched = []
    for nodes in found:
        one = Search(nodes, **options).run()
        one.check_every_state_can_end()
        searched.append(one)
    states, steps = sum(len(s.states) for s in searched), sum(s.steps for s in searched)
    print(f"\n{len(searched)} definitions, {states} states, {steps} steps")  # noqa: T201  the tally
    return searched


def part(found: list[tuple[Node, ...]], most: int) -> list[tuple[Node, ...]]:
    """An even part of a long list, always the same; all of it at night."""
    if NIGHT or len(found) <= most:
        return found
    return [found[at * len(found) // most] for at in range(most)]


@pytest.mark.invariant("G13", "M5", "M7", "S5", "G10", "R3", "C15")
@pytest.mark.parametrize("limits", [Limits(), TIMED], ids=["unbounded", "deadline"])
def test_every_definition_of_one_step_ends_or_names_one_reason(limits):
    search(list(definitions(WIDE_MENU, 1)), limits=limits)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.invariant("G13", "M5", "M7", "S5", "G10", "R3", "C15")
def test_definitions_of_two_steps_end_or_name_one_reason():
    search(part(list(definitions(WIDE_MENU, 2)), 50), ends=ALL_ENDS)
    found = part(list(definitions(WIDE_MENU, 2)), 29)
    search(found, limits=TIMED, ends=("ok", "failed", "unknown"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.invariant("G13", "M5", "M7", "S5", "G10")
def test_definitions_of_three_steps_end_or_name_one_reason():
    found = part(list(definitions(NARROW_MENU, 3)), 16)
    search(found, ends=("ok", "failed", "unknown"), crash=NIGHT)


@pytest.mark.slow
@pytest.mark.invariant("G13", "G15", "P9")
@pytest.mark.parametrize("limits", [Limits(attempts=2), Limits(concurrency=1)], ids=str)
def test_limits_end_or_are_named(limits):
    """At the cap of attempts a run waits for a higher one, and says so; concurrency only delays."""
    for nodes in part(list(definitions(NARROW_MENU[:3], 2)), 20):
        one = Search(nodes, ends=("ok", "failed", "unknown"), limits=limits, crash=False).run()
        if limits.attempts is None:
            one.check_every_state_can_end()
        assert all(s.run.consumed <= (limits.attempts or 10**9) for s in one.states.values())


# Order


def outcomes(count: int) -> Iterator[tuple[str, ...]]:
    return itertools.product(("ok", "failed"), repeat=count)


class Scripted(Search):
    """Each step ends in one way; only the order is free."""

    def __init__(self, nodes: tuple[Node, ...], script: dict[str, str]) -> None:
        super().__init__(nodes, ends=(), limits=Limits(), crash=False)
        self.script = script

    def _choices(self, run: Run) -> Iterator[tuple[int, list[Command]]]:
        for activation, attempt in run.open_dispatches():
            end = ENDS[self.script[activation.key.node]]
            yield T0, [Report(activation.key, attempt.number, attempt.dispatch, end)]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.invariant("G14", "G2", "I3")
def test_the_order_of_completion_does_not_change_the_end():
    """Steps may fail where that counts as done; what stops a run is out of this."""
    menu = [
        call("x", on_failure="continue"),
        call("x", when=NO),
        call("x", "idempotent", retry=RETRY, on_failure="continue"),
    ]
    found = part(list(definitions(menu, 4)), 400)
    states = 0
    for at, nodes in enumerate(found):
        script = list(outcomes(4))[at % 16]
        one = Scripted(nodes, dict(zip("abcd", script, strict=True))).run()
        states += len(one.states)
        (end,) = one.ends_reached
        assert one.states[end].run.ended == "succeeded"
    print(f"\n{len(found)} definitions, {states} states")  # noqa: T201  the tally
