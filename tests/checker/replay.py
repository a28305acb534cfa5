"""What the events of a run say, told again, and which of them could never have followed the others.

The replay knows the rules of the ledger and nothing of the program that applies them. It keeps, for
each activation and attempt, what the events said so far; each event is first held against that, and
then told. `agree.py` holds the result against the stored rows.

    AttemptPrepared ──▶ dispatch 1 ──▶ DispatchEnded ──▶ AttemptRedispatched ──▶ dispatch 2 …
                             │               │
                             ▼               ▼
             AttemptSettled | AttemptAbandoned (closed)      AttemptDoubted (open, in doubt)
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.checker import violation
from tests.checker.violation import Violation

Event = dict[str, Any]
IN_ENGINE = "engine"
NEVER_BEGAN = {"refused", "given_up", "precluded"}
BY_RULE = {"exhausted", "assumed"}
UNKNOWN = {"unknown", "unknown_uncounted"}
FAILED = {"failed", "cancelled", "refused"}
INTERRUPTED = {"unknown", "precluded"}
AFTER_THE_END = {"LateFactKept", "RunClaimed", "RunReleased", "RunHandedOff", "BarrierDropped"}
WHILE_UNOWNED = {"RunClaimed", "RunHandedOff"}
STARTS = {"AttemptPrepared", "AttemptRedispatched"}


@dataclass(slots=True)
class Attempt:
    """What the events say of one attempt. The names are those of the stored columns."""

    node: str
    instance: str
    number: int
    sequence: int
    at: int
    intent: str
    accepted: bool
    place: str
    dispatch: int = 1
    timeout_at: int | None = None
    end: str | None = None
    due_at: int | None = None
    ends: dict[int, str] = field(default_factory=dict)
    doubt: str | None = None
    decisions: list[str] = field(default_factory=list)
    outcome: str | None = None
    effect: str | None = None
    outcome_at: int | None = None
    outcome_sequence: int | None = None
    abandoned_at: int | None = None
    retry_at: int | None = None

    @property
    def open(self) -> bool:
        return self.outcome is None and self.abandoned_at is None

    @property
    def in_flight(self) -> bool:
        """Handed over, and nobody said yet what became of it."""
        return self.open and self.doubt is None and self.end is None

    @property
    def name(self) -> str:
        return violation.attempt(self.node, self.instance, self.number)


@dataclass(slots=True)
class Activation:
    """What the events say of one visit. `ended_with` is the attempt whose end ended it, too."""

    node: str
    instance: str
    ready_sequence: int | None = None
    payload: str | None = None
    status: str | None = None
    end_sequence: int | None = None
    due_at: int | None = None
    attempts: list[Attempt] = field(default_factory=list)
    failures: int = 0
    interruptions: int = 0
    decisions: int = 0

    @property
    def live(self) -> bool:
        return self.status is None

    @property
    def between(self) -> bool:
        """Live, and no attempt is open: the next one has not been prepared."""
        return self.live and not any(attempt.open for attempt in self.attempts)

    @property
    def ready(self) -> bool:
        """The next attempt could be prepared now; nothing has to become due first."""
        return self.between and self.due_at is None


@dataclass(slots=True)
class Told:
    """A run as its events tell it."""

    run: str
    activations: dict[tuple[str, str], Activation] = field(default_factory=dict)
    admitted: Event | None = None
    last_at: int = 0
    generation: int | None = None
    owned: bool = True
    barrier: bool = False
    stopping: Event | None = None
    ended: Event | None = None
    found: list[Violation] = field(default_factory=list)

    @property
    def attempts(self) -> list[Attempt]:
        return [attempt for visit in self.activations.values() for attempt in visit.attempts]


def replay(run: str, events: list[Event], effects: dict[tuple[str, str, int], str]) -> Told:
    """Tell a run's events in order.

    effects  effect class of each attempt, by (node, instance, number), from the terms it cites
    """
    told = Told(run)
    for event in events:
        told.found += [
            Violation(code, run, f"event {event['sequence']}", detail)
            for code, detail in _offences(told, event, effects)
        ]
        told.last_at = max(told.last_at, event["at"])
    return told


def _offences(told: Told, event: Event, effects) -> Iterator[tuple[str, str]]:
    kind = event["kind"]
    if event["at"] < told.last_at:
        yield "time-fell", f"{event['at']} follows {told.last_at}"
    if (kind == "RunAdmitted") != (told.admitted is None):
        yield "admission", f"{kind} at event {event['sequence']}"
    if told.ended and kind not in AFTER_THE_END:
        yield "after-the-end", f"{kind} after the run ended"
    if not told.owned and kind not in WHILE_UNOWNED:
        yield "without-owner", f"{kind} while nobody owns the run"
    if kind in STARTS:
        yield from _start(told, event)
    tell = TELL.get(kind)
    if tell is None:
        yield "event-unknown", f"{kind} is no event of this checker"
    else:
        yield from tell(told, event, effects)


def _start(told: Told, event: Event) -> Iterator[tuple[str, str]]:
    """What forbids every hand-over: a barrier, a stop, the deadline."""
    kind, deadline = event["kind"], (told.admitted or {}).get("deadline")
    if told.barrier:
        yield "start-under-barrier", kind
    if told.stopping:
        yield "start-after-stop", f"{kind} after the run was stopping"
    if deadline is not None and event["at"] >= deadline:
        yield "start-past-deadline", f"{kind} at {event['at']}, the deadline is {deadline}"


def _run_admitted(told: Told, event: Event, _effects):
    told.admitted = event
    yield from ()


def _authority(told: Told, event: Event, _effects):
    if told.generation is not None and event["generation"] != told.generation + 1:
        yield "generation", f"{event['generation']} follows {told.generation}"
    told.generation, told.owned = event["generation"], True
    if event["kind"] == "RunHandedOff":
        told.barrier = event.get("barrier", False)
        if told.barrier != any(attempt.in_flight for attempt in told.attempts):
            yield "barrier", "a handoff sets the barrier exactly if an attempt is undecided"


def _released(told: Told, event: Event, _effects):
    told.owned = False
    if any(attempt.open and attempt.doubt is None for attempt in told.attempts):
        yield "released-busy", "an attempt is open and not in doubt"


def _barrier_dropped(told: Told, event: Event, _effects):
    if not told.barrier:
        yield "barrier", "there was none to drop"
    told.barrier = False
    undecided = [attempt.name for attempt in told.attempts if attempt.in_flight]
    if undecided:
        yield "barrier", f"dropped while {', '.join(undecided)} was undecided"


def _ready(told: Told, event: Event, _effects):
    key = _key(event)
    if key in told.activations:
        yield "activation-twice", violation.visit(*key)
        return
    visit = told.activations[key] = Activation(*key)
    visit.ready_sequence, visit.payload = event["sequence"], event.get("payload")


def _activation_ended(told: Told, event: Event, _effects):
    key = _key(event)
    visit = told.activations.setdefault(key, Activation(*key))
    if event["status"] == "skipped" and visit.attempts:
        yield "skipped-attempted", violation.visit(*key)
    yield from _end(visit, event, event["status"])


def _end(visit: Activation, event: Event, status: str) -> Iterator[tuple[str, str]]:
    name = violation.visit(visit.node, visit.instance)
    if not visit.live:
        yield "activation-ended-twice", name
    if any(attempt.open for attempt in visit.attempts):
        yield "activation-ended-open", f"{name} ended while an attempt is open"
    visit.status, visit.end_sequence, visit.due_at = status, event["sequence"], None


def _prepared(told: Told, event: Event, effects):
    key, number = _key(event), event["attempt"]
    visit = told.activations.get(key)
    if visit is None or not visit.live:
        yield "prepared-not-ready", violation.attempt(*key, number)
        visit = told.activations.setdefault(key, Activation(*key))
    earlier = visit.attempts[-1] if visit.attempts else None
    if number != len(visit.attempts) + 1:
        yield "attempt-gap", f"{violation.attempt(*key, number)} after {len(visit.attempts)}"
    if earlier is not None:
        yield from _successor(earlier, event, effects.get((*key, earlier.number), "mutating"))
    visit.due_at = None
    said = event["intent"], event.get("accepted", False), event.get("place", IN_ENGINE)
    visit.attempts.append(Attempt(*key, number, event["sequence"], event["at"], *said))


def _successor(earlier: Attempt, event: Event, effect: str) -> Iterator[tuple[str, str]]:
    """May an attempt with a new identity follow this one: R1, R2, R10."""
    if earlier.open or earlier.outcome in {"succeeded", "cancelled"}:
        yield "successor", f"{earlier.name} is {earlier.outcome or 'open'} and has a successor"
        return
    if earlier.retry_at is None and not earlier.decisions:
        yield "retry-unpermitted", f"nothing permitted a successor of {earlier.name}"
    elif event["at"] < (earlier.retry_at or 0):
        yield "retry-early", f"{event['at']} is before {earlier.retry_at}"
    by_itself = not earlier.decisions
    if by_itself and effect == "idempotent":
        yield "key-changed", f"idempotent {earlier.name} got a successor by itself"
    if by_itself and effect == "mutating" and earlier.abandoned_at is None:
        yield "mutating-repeated", f"{earlier.name} may have happened and has a successor"


def _redispatched(told: Told, event: Event, effects):
    attempt = _attempt(told, event)
    if attempt is None or not attempt.open:
        yield "redispatch", f"{_named(event)} is not open"
        return
    if event["dispatch"] != attempt.dispatch + 1:
        yield "dispatch-gap", f"{event['dispatch']} follows {attempt.dispatch}"
    if attempt.end is None or attempt.doubt is not None:
        yield (
            "redispatch",
            f"{attempt.name} is not between dispatches",
        )
    elif attempt.due_at is None or event["at"] < attempt.due_at:
        yield "redispatch-early", f"at {event['at']}, due at {attempt.due_at}"
    if effects.get((attempt.node, attempt.instance, attempt.number)) == "mutating":
        yield "mutating-repeated", f"{attempt.name} is mutating and was handed over again"
    attempt.dispatch, attempt.place = event["dispatch"], event.get("place", IN_ENGINE)
    attempt.accepted = event.get("accepted", False)
    attempt.timeout_at = attempt.end = attempt.due_at = None


def _receipt(told: Told, event: Event, _effects):
    attempt = _attempt(told, event)
    if attempt is None or attempt.accepted or not attempt.open:
        yield "receipt", f"{_named(event)} has a receipt already, or is closed"
    elif event["dispatch"] != attempt.dispatch:
        yield "receipt", f"of dispatch {event['dispatch']}, the current one is {attempt.dispatch}"
    if attempt is not None:
        attempt.accepted = True


def _dispatch_ended(told: Told, event: Event, _effects):
    attempt = _attempt(told, event)
    if attempt is None or not attempt.open:
        yield "dispatch-end", f"{_named(event)} is not open"
        return
    if event["dispatch"] != attempt.dispatch:
        yield "dispatch-end", f"of {event['dispatch']}, the current one is {attempt.dispatch}"
    if attempt.end is not None and not attempt.decisions:
        yield "dispatch-end", f"dispatch {attempt.dispatch} of {attempt.name} ended twice"
    attempt.end, attempt.due_at = event["end"], event.get("due")
    attempt.ends[event["dispatch"]] = event["end"]
    visit = told.activations[_key(event)]
    visit.failures += event["end"] in FAILED
    visit.interruptions += event["end"] in INTERRUPTED


def _timeout(told: Told, event: Event, _effects):
    attempt = _attempt(told, event)
    if attempt is None or event["dispatch"] != attempt.dispatch:
        yield "timeout", f"{_named(event)}: no such dispatch is current"
    else:
        attempt.timeout_at = event["at"]


def _settled(told: Told, event: Event, _effects):
    attempt = _attempt(told, event)
    if attempt is None or not attempt.open:
        yield "settled-closed", f"{_named(event)} is not open"
        return
    status, current = event["status"], event["dispatch"] == attempt.dispatch
    if not attempt.accepted and event.get("receipt") is None:
        yield "outcome-without-receipt", f"{attempt.name} settled, nobody accepted it"
    if not current and (status != "succeeded" or event["dispatch"] > attempt.dispatch):
        yield "settled-other", f"dispatch {event['dispatch']}, the current is {attempt.dispatch}"
    if event.get("effect") == "none" and UNKNOWN & set(attempt.ends.values()):
        yield "none-unproved", f"{attempt.name}: a dispatch of unknown fate, yet effect none"
    attempt.accepted, attempt.doubt = True, None
    attempt.outcome, attempt.effect = status, event.get("effect")
    attempt.outcome_at, attempt.outcome_sequence = event["at"], event["sequence"]
    visit = told.activations[_key(event)]
    if status == "failed" and attempt.end is None and not attempt.decisions:
        visit.failures += event.get("failure") not in BY_RULE
    attempt.retry_at = visit.due_at = event.get("retry_at")
    if attempt.retry_at is None:
        yield from _end(visit, event, status)
    elif status != "failed":
        yield "retry-unpermitted", f"{attempt.name} is {status} and schedules another"


def _abandoned(told: Told, event: Event, _effects):
    attempt = _attempt(told, event)
    if attempt is None or not attempt.open:
        yield "abandoned-closed", f"{_named(event)} is not open"
        return
    began = set(attempt.ends.values()) - NEVER_BEGAN
    if began and not attempt.decisions:
        yield "abandoned-begun", f"{attempt.name}: a dispatch ended {', '.join(sorted(began))}"
    visit = told.activations[_key(event)]
    if attempt.end is None:
        visit.failures += event["end"] in FAILED
        visit.interruptions += event["end"] in INTERRUPTED
    attempt.end, attempt.abandoned_at, attempt.doubt = event["end"], event["at"], None
    attempt.retry_at = event.get("retry_at")
    if attempt.retry_at is not None and attempt.retry_at > event["at"]:
        visit.due_at = attempt.retry_at  # what is due at once is ready
    if attempt.retry_at is None and event.get("status") is not None:
        yield from _end(visit, event, event["status"])


def _doubted(told: Told, event: Event, effects):
    attempt = _attempt(told, event)
    if attempt is None or not attempt.open or attempt.doubt is not None:
        yield "doubt", f"{_named(event)} is not open, or in doubt already"
        return
    key = (attempt.node, attempt.instance, attempt.number)
    if effects.get(key) in {"read_only", "transactional"}:
        yield "doubt", f"{attempt.name} is {effects[key]}: it is never in doubt"
    attempt.doubt = event["reason"]


def _resolved(told: Told, event: Event, _effects):
    attempt = _attempt(told, event)
    if attempt is None or attempt.doubt is None:
        yield "resolved", f"{_named(event)} was not in doubt"
        return
    attempt.decisions.append(event["decision"])
    attempt.doubt = None
    told.activations[_key(event)].decisions += 1
    if event.get("due") is not None:
        attempt.due_at = event["due"]


def _nothing(told: Told, event: Event, _effects):
    yield from ()


def _stopping(told: Told, event: Event, _effects):
    if told.stopping:
        yield "stopped-twice", f"{event['cause']} after {told.stopping['cause']}"
    told.stopping = event


def _run_ended(told: Told, event: Event, _effects):
    told.ended = event
    left = [attempt.name for attempt in told.attempts if attempt.open]
    left += [violation.visit(*key) for key, visit in told.activations.items() if visit.live]
    if left:
        yield "ended-open", f"the run ended while {', '.join(left)} was open"


def _key(event: Event) -> tuple[str, str]:
    return event["node"], event.get("instance", "")


def _named(event: Event) -> str:
    return violation.attempt(*_key(event), event["attempt"])


def _attempt(told: Told, event: Event) -> Attempt | None:
    visit = told.activations.get(_key(event))
    found = [a for a in visit.attempts if a.number == event["attempt"]] if visit else []
    return found[0] if found else None


TELL = {
    "RunAdmitted": _run_admitted,
    "RunClaimed": _authority,
    "RunHandedOff": _authority,
    "RunReleased": _released,
    "BarrierDropped": _barrier_dropped,
    "ActivationReady": _ready,
    "ActivationEnded": _activation_ended,
    "AttemptPrepared": _prepared,
    "ReceiptAttached": _receipt,
    "AttemptRedispatched": _redispatched,
    "DispatchEnded": _dispatch_ended,
    "TimeoutRequested": _timeout,
    "AttemptSettled": _settled,
    "AttemptAbandoned": _abandoned,
    "AttemptDoubted": _doubted,
    "DoubtResolved": _resolved,
    "LateFactKept": _nothing,
    "RunStopping": _stopping,
    "RunEnded": _run_ended,
}
