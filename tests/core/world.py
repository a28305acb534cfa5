"""A tiny owner of one run, in memory: it decides, seals, writes rows and checks everything.

`World.do` is one transition. After each of them, refused or not, the world checks what must hold
at every moment: the copy in memory equals a replay of the events and agrees with the rows that the
facts make, each fact belongs to one event, counters equal a recount, and the run that was decided
on is as it was. The rows refuse what the guards of a real store refuse.
"""

import copy
import hashlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from tallystick.core import facts, messages
from tallystick.core.commands import (
    Admission,
    Advance,
    Command,
    Failed,
    HandOff,
    PassDeadline,
    Refused,
    Report,
    Resolve,
    Succeeded,
    Unknown,
)
from tallystick.core.definition import Binding, Bindings, Definition, Limits, Node, Retry, Scope
from tallystick.core.draft import Start
from tallystick.core.evolution import replay
from tallystick.core.graph import Plan
from tallystick.core.history import cited, payload_digest, seal, verify
from tallystick.core.identity import (
    ActivationKey,
    Authority,
    dispatch_identity,
    instance_text,
    parse_instance,
)
from tallystick.core.layered import Layered, Overlay
from tallystick.core.ledger import intent_digest
from tallystick.core.machine import Decision, admit, decide
from tallystick.core.messages import Payload
from tallystick.core.run import Activation, Attempt, Run
from tallystick.core.schedule import Schedule
from tallystick.core.status import TERMINAL, Status, status
from tallystick.core.values import encode

T0 = 1_700_000_000_000
SLOTS = {"async": 1_000, "thread": 1_000, "transactional": 1_000}
EFFECTS = ("read_only", "idempotent", "transactional", "mutating")
MODES = {"transactional": "transactional"}
Event = tuple[int, int, bytes, bytes, Payload | None]

NO_LIMITS = Limits()

OK = Succeeded(b"null")
FAILED = Failed("error", "it broke")
REFUSED = Refused("not taken")
UNKNOWN = Unknown("nobody knows")


def authority(generation: int, engine: str = "") -> Authority:
    return Authority(generation, generation.to_bytes(16, "big"), engine or f"engine-{generation}")


# Definitions


def call(name: str, effect: str = "mutating", tries: int = 1, **rest: Any) -> Node:
    """A step that does work; its retries follow at once unless `retry` says otherwise."""
    retry = rest.pop("retry", None) or Retry(max_attempts=tries, backoff_ms=0)
    return Node(id=name, kind="call", call="tasks:work", effect=effect, retry=retry, **rest)


def fail(name: str, **rest: Any) -> Node:
    return Node(id=name, kind="fail", **rest)


def succeed(name: str, **rest: Any) -> Node:
    return Node(id=name, kind="succeed", **rest)


def chain(*nodes: Node) -> tuple[Node, ...]:
    """Default order, as the compiler writes it: each step waits for the one before it."""
    first, *others = nodes
    linked = [
        msgspec.structs.replace(node, needs=(before.id,), if_skipped="run")
        for before, node in itertools.pairwise(nodes)
    ]
    assert len(linked) == len(others)
    return (first, *linked)


def definition_of(*nodes: Node, output: Any = UNSET, limits: Limits = NO_LIMITS) -> Definition:
    return Definition(workflow="w", root=Scope(nodes), output=output, limits=limits)


def bindings_of(definition: Definition, modes: dict[str, str] | None = None) -> Bindings:
    steps = {}
    for node in definition.root.nodes:
        if node.kind == "call":
            effect = node.effect or "mutating"
            tries = node.retry.max_attempts if node.retry and node.retry.max_attempts else 1
            mode = (modes or {}).get(node.id) or MODES.get(effect, "async")
            steps[node.id] = Binding("tasks:work", effect, mode=mode, max_attempts=tries)
    return Bindings(steps)


# Comparing


def fields_of(run: Run) -> dict[str, Any]:
    """Every field of a run, maps as lists in their order. What is shared by digest is left out."""
    every = {name: getattr(run, name) for name in run.__struct_fields__ if name != "bound"}
    return {k: list(v.items()) if isinstance(v, Layered | Overlay) else v for k, v in every.items()}


def clone(run: Run) -> Run:
    """A settled copy that shares nothing that can change."""
    other = copy.copy(run)
    for name in run.__struct_fields__:
        value = getattr(run, name)
        if isinstance(value, Schedule):
            due = Schedule()
            for key, item in value.items():
                due[key] = item
            setattr(other, name, due.keep())
        elif isinstance(value, Layered):
            setattr(other, name, Layered(value))
    return other


# Rows

FACTS_OF: dict[type, tuple[tuple[type, ...], ...]] = {
    messages.ActivationReady: ((facts.InsertActivation,),),
    messages.ActivationEnded: ((facts.InsertActivation, facts.EndActivation),),
    messages.AttemptPrepared: (
        (facts.InsertTerms,),
        (facts.InsertAttempt,),
        (facts.CountActivation, type(None)),
    ),
    messages.AttemptRedispatched: ((facts.BeginDispatch,),),
    messages.DispatchEnded: ((facts.EndDispatch,), (facts.CountActivation,)),
    messages.TimeoutRequested: ((facts.RequestTimeout,),),
    messages.ReceiptAttached: ((facts.AttachReceipt,),),
    messages.AttemptSettled: (
        (facts.SetOutcome,),
        (facts.EndActivation, facts.CountActivation),
    ),
    messages.AttemptAbandoned: (
        (facts.Abandon,),
        (facts.EndActivation, facts.CountActivation),
    ),
    messages.AttemptDoubted: ((facts.MarkDoubt,),),
    messages.DoubtResolved: (
        (facts.SetResolution,),
        (facts.MarkDoubt,),
        (facts.EndDispatch, type(None)),
    ),
}
"""Which rows each event changes, in order; the events that are missing change the run's own row."""


def check_facts_belong(decision: Decision) -> None:
    """Each fact is the work of exactly one event, about the same node, in the same order."""
    left = list(decision.facts)
    for recorded in decision.events:
        for allowed in FACTS_OF.get(type(recorded.event), ()):
            if left and isinstance(left[0], allowed):
                fact = left.pop(0)
                node = getattr(fact, "node", None)
                assert node is None or node == recorded.event.node, (recorded, fact)
            else:
                assert type(None) in allowed, (recorded.event, left[:1])
    assert not left, left


class Rows:
    """The tables of activations and attempts, with the guards of a store."""

    def __init__(self) -> None:
        self.activations: dict[ActivationKey, dict[str, Any]] = {}
        self.attempts: dict[tuple[ActivationKey, int], dict[str, Any]] = {}
        self.terms: dict[bytes, bytes] = {}

    def write(self, fact: Any) -> None:
        if isinstance(fact, facts.InsertTerms):
            assert self.terms.setdefault(fact.digest, fact.body) == fact.body
            return
        key = ActivationKey(fact.node, parse_instance(fact.instance))
        match fact:
            case facts.InsertActivation():
                assert key not in self.activations
                self.activations[key] = {
                    "ready_sequence": fact.ready_sequence,
                    "status": fact.status,
                    "end_sequence": fact.end_sequence,
                    "failures": 0,
                    "interruptions": 0,
                    "permissions": 0,
                    "due_at": None,
                }
            case facts.EndActivation():
                row = self._live(key)
                row.update(status=fact.status, end_sequence=fact.end_sequence, due_at=None)
            case facts.CountActivation():
                row = self._live(key)
                for name in ("failures", "interruptions", "permissions"):
                    assert getattr(fact, name) >= row[name]
                    row[name] = getattr(fact, name)
                row["due_at"] = fact.due_at
            case facts.InsertAttempt():
                self._insert_attempt(key, fact)
            case _:
                self._change_attempt(self._open(key, fact.attempt), fact)

    def _live(self, key: ActivationKey) -> dict[str, Any]:
        row = self.activations[key]
        assert row["status"] is None, f"{key} has ended"
        return row

    def _open(self, key: ActivationKey, attempt: int) -> dict[str, Any]:
        row = self.attempts[key, attempt]
        assert row["outcome"] is None, "an outcome is written once"
        assert row["abandoned_at"] is None, "an abandoned attempt stays abandoned"
        return row

    def _insert_attempt(self, key: ActivationKey, fact: facts.InsertAttempt) -> None:
        assert self._live(key)
        assert (key, fact.attempt) not in self.attempts
        assert fact.attempt == 1 or (key, fact.attempt - 1) in self.attempts, "a gap"
        if fact.attempt > 1:
            former = self.attempts[key, fact.attempt - 1]
            assert former["outcome"] == "failed" or former["abandoned_at"] is not None
        assert fact.terms in self.terms
        self.attempts[key, fact.attempt] = {
            "identity": fact.identity,
            "intent": fact.intent,
            "terms": fact.terms,
            "place": fact.place,
            "receipt": fact.receipt,
            "dispatch": 1,
            "timeout_at": None,
            "end": None,
            "due_at": None,
            "earlier_unknown": False,
            "earlier_failed": False,
            "doubt": None,
            "resolution": None,
            "outcome": None,
            "effect": None,
            "outcome_at": None,
            "outcome_sequence": None,
            "abandoned_at": None,
        }

    def _change_attempt(self, row: dict[str, Any], fact: Any) -> None:
        match fact:
            case facts.AttachReceipt():
                assert row["receipt"] is None, "a receipt is written once for each dispatch"
                row["receipt"] = fact.receipt
            case facts.BeginDispatch():
                assert fact.dispatch == row["dispatch"] + 1
                assert row["end"] is not None
                assert row["doubt"] is None
                row.update(dispatch=fact.dispatch, place=fact.place, receipt=fact.receipt)
                row.update(timeout_at=None, end=None, due_at=None)
            case facts.EndDispatch():
                assert row["end"] in (None, fact.end), "only the next dispatch empties the end"
                assert fact.earlier_unknown >= row["earlier_unknown"]
                assert fact.earlier_failed >= row["earlier_failed"]
                row.update(end=fact.end, due_at=fact.due_at)
                row["earlier_unknown"] = fact.earlier_unknown
                row["earlier_failed"] = fact.earlier_failed
            case facts.RequestTimeout():
                assert row["timeout_at"] is None
                row["timeout_at"] = fact.timeout_at
            case facts.MarkDoubt():
                row["doubt"] = fact.doubt
            case facts.SetResolution():
                row["resolution"] = fact.resolution
            case facts.SetOutcome():
                row.update(outcome=fact.outcome, effect=fact.effect, doubt=None)
                row.update(outcome_at=fact.outcome_at, outcome_sequence=fact.outcome_sequence)
                row["receipt"] = row["receipt"] or fact.receipt
                assert row["receipt"], "an outcome needs a receipt"
            case facts.Abandon():
                row.update(abandoned_at=fact.abandoned_at, end=fact.end, doubt=None)
            case _:
                raise AssertionError(fact)


def check_rows(run: Run, rows: Rows) -> None:
    """What the facts say and what the run says are one."""
    for key, row in rows.activations.items():
        live = run.live.get(key)
        assert run.done.get(key) == row["status"]
        assert (live is None) == (row["status"] is not None), key
        if live is not None:
            for name in ("ready_sequence", "failures", "interruptions", "permissions"):
                assert getattr(live, name) == row[name], (key, name)
            waits = run.due.get(key) if live.attempt is None else None
            assert row["due_at"] == waits, (key, "due_at")
    assert set(rows.activations) == {k for k, _ in run.done.items()} | {
        k for k, _ in run.live.items()
    }
    _check_attempts(run, rows)
    _check_counts(run, rows)


def _check_attempts(run: Run, rows: Rows) -> None:
    for (key, number), row in rows.attempts.items():
        assert row["identity"] == dispatch_identity(run.id, key, number)
        assert not (row["outcome"] and row["abandoned_at"] is not None)
        assert (row["outcome"] is None) == (row["outcome_at"] is None)
        live = run.live.get(key)
        opened = live.attempt if live is not None else None
        closed = row["outcome"] is not None or row["abandoned_at"] is not None
        assert closed == (opened is None or opened.number != number), (key, number)
        if not closed:
            assert opened is not None
            check_attempt(run, key, opened, row)
    for key, live in run.live.items():
        numbers = [n for k, n in rows.attempts if k == key]
        assert numbers == list(range(1, live.attempts + 1))


def check_attempt(run: Run, key: ActivationKey, opened: Attempt, row: dict[str, Any]) -> None:
    seen = (opened.dispatch, opened.end, opened.doubt, opened.place, opened.identity)
    assert seen == (row["dispatch"], row["end"], row["doubt"], row["place"], row["identity"])
    assert (opened.receipt, opened.timeout) == (bool(row["receipt"]), bool(row["timeout_at"]))
    assert opened.intent == intent_digest(row["intent"])
    assert opened.failed == row["earlier_failed"]
    worst = "failed" if opened.failed else "nothing"
    assert opened.earlier == ("unknown" if row["earlier_unknown"] else worst)
    if opened.doubt is None and opened.end is not None:
        assert run.due.get(key) == row["due_at"], "an attempt between dispatches has its due time"
    else:
        assert key not in run.due


def _check_counts(run: Run, rows: Rows) -> None:
    opened = [
        row
        for row in rows.attempts.values()
        if row["outcome"] is None and row["abandoned_at"] is None
    ]
    assert run.consumed == len(rows.attempts)
    assert run.open_attempts == len(opened)
    assert run.doubts == sum(row["doubt"] is not None for row in opened)
    assert run.active == len(opened) - run.doubts
    assert run.in_flight == sum(row["end"] is None and row["doubt"] is None for row in opened)
    ready = {k for k, live in run.live.items() if live.attempt is None and k not in run.due}
    assert ready == {k for k, _ in run.ready.items()}
    for key, left in run.joins.items():
        needs = run.bound.plan.nodes[key.node].needs
        assert left == sum(ActivationKey(need, key.instance) not in run.done for need in needs)


# The owner


class World:
    """One run and everything written about it. `now` is the wall clock, moved by hand."""

    def __init__(
        self,
        *nodes: Node,
        given: Any = None,
        output: Any = UNSET,
        limits: Limits = NO_LIMITS,
        modes: dict[str, str] | None = None,
        owned: bool = True,
        slots: dict[str, int] | None = SLOTS,
        run: str = "run-1",
    ) -> None:
        definition = definition_of(*nodes, output=output)
        self.plan = Plan(definition)
        self.now = T0
        self.rows = Rows()
        self.events: list[Event] = []
        self.recorded: list[Any] = []
        self.starts: list[Start] = []
        self.stops: list[Any] = []
        self.transition = 0
        self.holder: Authority | None = None
        bindings = bindings_of(definition, modes)
        admission = Admission(
            run,
            definition,
            self.plan.digest.hex(),
            encode(given),
            bindings,
            limits,
            authority=authority(1) if owned else None,
        )
        decision = admit(
            admission,
            self.plan,
            now=self.now,
            seed=self._seed(),
            slots=slots if owned else None,
        )
        self.new = decision.new_run
        assert self.new is not None
        self._commit(decision, head=Run.new(run, self.plan.bind(bindings), limits).head, sequence=0)

    def _seed(self) -> bytes:
        return hashlib.sha256(b"seed %d" % self.transition).digest()

    @property
    def status(self) -> Status:
        return status(self.run)

    def do(self, *commands: Command) -> Decision:
        """One transition, checked and committed."""
        before = fields_of(self.run)
        decision = decide(self.run, commands, now=self.now, seed=self._seed())
        again = decide(self.run, commands, now=self.now, seed=self._seed())
        assert fields_of(self.run) == before, "the run that was decided on has changed"
        assert (decision.events, decision.facts) == (again.events, again.facts)
        assert decision.header == again.header
        assert fields_of(decision.run) == fields_of(again.run)
        if not decision.events:
            assert not decision.facts
            assert not decision.starts
            assert fields_of(decision.run) == before, "a change without an event"
        self._commit(decision, self.run.head, self.run.sequence)
        return decision

    def ask(self, *commands: Command) -> Any:
        """One transition; returns the verdict of the last command: None or its refusal."""
        return self.do(*commands).verdicts[-1]

    def _commit(self, decision: Decision, head: bytes, sequence: int) -> None:
        self.transition += 1
        check_facts_belong(decision)
        sealed = seal(decision.events, head=head, sequence=sequence, transition=self.transition)
        for one, recorded in zip(sealed, decision.events, strict=True):
            payload = one.payload
            assert cited(recorded.event) == (payload.digest if payload else None)
            if payload:
                assert payload.digest == payload_digest(payload.salt, payload.body)
            self.events.append((one.sequence, self.transition, one.envelope, one.hash, payload))
        for fact in decision.facts:
            self.rows.write(fact)
        self.recorded.extend(recorded.event for recorded in decision.events)
        self.starts.extend(decision.starts)
        self.stops.extend(decision.stops)
        run = decision.run.settle()
        if sealed:
            run.head = sealed[-1].hash
        self.run = run
        self.holder = None if decision.release else decision.authority or self.holder
        self.header = decision.header
        self.check()

    def check(self) -> None:
        """Everything that holds at every moment."""
        run = self.run
        assert fields_of(self.reloaded()) == fields_of(run)
        check_rows(run, self.rows)
        head = verify(run.id, ((s, t, e, h) for s, t, e, h, _ in self.events))
        assert head == run.head
        header = self.header
        assert (header.sequence, header.consumed, header.active) == (
            run.sequence,
            run.consumed,
            run.active,
        )
        assert (header.status == run.ended) == (header.status in TERMINAL)
        assert run.ended is None or run.open_attempts == 0
        assert not (run.barrier and run.in_flight == 0)
        ats = [event.at for event in self.recorded]
        assert ats == sorted(ats)

    def reloaded(self) -> Run:
        """The run as another process reads it: from what is stored, and nothing else."""
        assert self.new is not None
        plan = Plan(msgspec.json.decode(self.plan.body, type=Definition))
        bound = plan.bind(msgspec.json.decode(self.new.bindings, type=Bindings))
        limits = msgspec.json.decode(self.new.limits, type=Limits)
        run = replay(Run.new(self.new.run, bound, limits), self.events)
        run.authority = self.holder
        return run

    def crash(self) -> None:
        """The owner dies and another takes over from what is stored: barrier and all."""
        self.run = self.reloaded()
        if self.run.authority is not None:
            former = self.run.authority
            taken = HandOff(authority(former.generation + 1), former.engine, "ended", "its lock")
            assert self.ask(taken) is None

    # Shorthands

    def key(self, node: str) -> ActivationKey:
        return ActivationKey(node)

    def live(self, node: str) -> Activation:
        return self.run.live[self.key(node)]

    def attempt(self, node: str) -> Attempt:
        attempt = self.live(node).attempt
        assert attempt is not None
        return attempt

    def report(self, node: str, end: Any, *, attempt: int = 0, dispatch: int = 0) -> Report:
        """The report about the current dispatch, unless another is named."""
        if not attempt or not dispatch:
            opened = self.attempt(node)
            attempt, dispatch = attempt or opened.number, dispatch or opened.dispatch
        return Report(self.key(node), attempt, dispatch, end)

    def tell(self, node: str, end: Any, **which: int) -> Any:
        """Report and go on, as an engine does: in one transition. Returns the report's verdict."""
        return self.do(self.report(node, end, **which), Advance(SLOTS)).verdicts[0]

    def advance(self, **slots: int) -> Decision:
        return self.do(Advance(slots or SLOTS))

    def resolve(self, node: str, decision: Any, output: bytes | None = None) -> Any:
        return self.ask(Resolve(self.key(node), decision, "ann", "I looked", output))

    def pass_deadline(self) -> Any:
        assert self.run.deadline is not None
        self.now = max(self.now, self.run.deadline)
        return self.ask(PassDeadline())

    def row(self, node: str, attempt: int = 1) -> dict[str, Any]:
        return self.rows.attempts[self.key(node), attempt]

    def activation_row(self, node: str) -> dict[str, Any]:
        return self.rows.activations[self.key(node)]

    def done(self) -> dict[str, str]:
        return {str(key): how for key, how in self.run.done.items()}

    def said(self, kind: type) -> list[Any]:
        return [event for event in self.recorded if type(event) is kind]

    def finish(self, script: Callable[[Start], Any] = lambda _start: OK) -> str:
        """Report every dispatch by the script, in order, until nothing is in flight."""
        while self.run.in_flight:
            activation, attempt = next(self.run.open_dispatches())
            start = next(
                s
                for s in reversed(self.starts)
                if (s.key, s.attempt, s.dispatch)
                == (activation.key, attempt.number, attempt.dispatch)
            )
            self.tell(activation.key.node, script(start))
            self.now = max(self.now, self.run.due_at() or 0)
            self.advance()
        return self.status.status


def in_flight(run: Run) -> Iterator[tuple[str, int, int]]:
    for activation, attempt in run.open_dispatches():
        yield activation.key.node, attempt.number, attempt.dispatch


def text_of(key: ActivationKey) -> tuple[str, str]:
    return key.node, instance_text(key.instance)
