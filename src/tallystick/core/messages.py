"""What is said: events, which are recorded, and the commands that ask for them.

An event is an *envelope*: kind, time, names and digests, small and kept for ever. What is large or
private (an input, an output, the text of an error) is its *payload*, stored beside it under a
salted digest, so that payloads can go and the proof stays. One event records one fact.

Every envelope is canonical JSON: keys sorted, defaults left out. `seal` in `core/history` chains
them.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from tallystick.core.definition import Effect
from tallystick.core.identity import ActivationKey, parse_instance

EffectSeen: TypeAlias = Literal["none", "possible"]
"""What a failed or cancelled operation may have left behind. `none` needs proof."""

DispatchEndKind: TypeAlias = Literal[
    "failed",  # it is over and did not succeed
    "cancelled",  # the executor confirmed that it stopped
    "refused",  # the receiver certainly did not take it: never began, counted
    "given_up",  # its owner never called it: never began, free
    "precluded",  # it can no longer begin: never began, counted as an interruption in recovery
    "interrupted",  # harmless work stopped at the end of the grace: uncounted
    "unknown",  # it may have happened; counted as an interruption
    "unknown_uncounted",  # the same, ended by the engine's own orderly stop
]
ActivationEndKind: TypeAlias = Literal["succeeded", "failed", "cancelled", "skipped", "given_up"]
StopCause: TypeAlias = Literal["failed", "fail", "succeed", "deadline", "cancel"]
RunEndKind: TypeAlias = Literal["succeeded", "failed", "cancelled"]
Decision: TypeAlias = Literal["succeeded", "failed", "cancelled", "never_happened"]


IN_ENGINE = "engine"
"""The place of executors inside the engine: nothing outlives the process there."""


class Event(
    msgspec.Struct,
    frozen=True,
    gc=False,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag=True,
):
    """The parent of all events.

    `at` is the run's time in milliseconds since 1970, never falling.
    """

    at: int


class RunAdmitted(Event, frozen=True):
    """The run exists. Payload: its input.

    definition, bindings  digests (hex) · limits: canonical JSON of the baseline limits
    deadline    the instant after which nothing starts, or None
    """

    definition: str
    payload: str
    bindings: str
    limits: str
    semantics: int
    key: str | None = None
    deadline: int | None = None


class RunClaimed(Event, frozen=True):
    """An unclaimed or released run got an owner."""

    generation: int
    engine: str


class RunHandedOff(Event, frozen=True):
    """Authority moved, on evidence. `barrier` stands until every open attempt is decided.

    evidence  `ended`, `fenced` or `attested` · seen: what proved it, for people
    """

    generation: int
    engine: str
    former: str
    evidence: str
    seen: str
    barrier: bool = False


class RunReleased(Event, frozen=True):
    """The owner gave the run up in order; the next claim raises the generation."""

    generation: int


class BarrierDropped(Event, frozen=True):
    """No attempt is undecided any more."""


class OfNode(Event, frozen=True, kw_only=True):
    """The parent of all events about one activation. `instance` as in `identity.instance_text`."""

    node: str
    instance: str = ""

    @property
    def key(self) -> ActivationKey:
        """Which activation this is about."""
        instance = self.instance
        return ActivationKey(self.node, parse_instance(instance) if instance else ())


class ActivationReady(OfNode, frozen=True, kw_only=True):
    """All needs are met and the input is fixed. Payload: the input, if this is a leaf."""

    payload: str | None = None


class ActivationEnded(OfNode, frozen=True, kw_only=True):
    """A visit ended without (or beyond) an attempt of its own. Payload.

    The failure, if it failed.
    """

    status: ActivationEndKind
    failure: str | None = None
    payload: str | None = None


class OfAttempt(OfNode, frozen=True, kw_only=True):
    """The parent of all events about one attempt."""

    attempt: int


class AttemptPrepared(OfAttempt, frozen=True, kw_only=True):
    """The intent is on disk; its dispatch 1 is about to be handed over.

    intent    digest (hex) of the stored intent
    place     where an acceptance of dispatch 1 would be recorded
    accepted  True where acceptance is recorded with the intent (executors inside the engine)
    """

    intent: str
    place: str = IN_ENGINE
    accepted: bool = False


class OfDispatch(OfAttempt, frozen=True, kw_only=True):
    """The parent of all events about one dispatch."""

    dispatch: int


class ReceiptAttached(OfDispatch, frozen=True, kw_only=True):
    """The executor accepted. Payload: the receipt, with the executor's own instant."""

    payload: str


class AttemptRedispatched(OfDispatch, frozen=True, kw_only=True):
    """The same attempt is about to be handed over again, under the same identity."""

    place: str = IN_ENGINE
    accepted: bool = False


class DispatchEnded(OfDispatch, frozen=True, kw_only=True):
    """This dispatch is closed and its attempt stays open. Payload: what was reported, if anything.

    due      when the next dispatch is scheduled; None: none is (the attempt goes in doubt)
    failure  failure kind of a `failed` or `refused` end
    """

    end: DispatchEndKind
    due: int | None = None
    failure: str | None = None
    effect: EffectSeen | None = None
    payload: str | None = None


class TimeoutRequested(OfDispatch, frozen=True, kw_only=True):
    """The dispatch took too long and is asked to stop. A request, not an outcome."""


class AttemptSettled(OfDispatch, frozen=True, kw_only=True):
    """The outcome. Payload: the output of a success, the failure of anything else.

    receipt  kind of the receipt written with it where there was none: observed, attested, ruled
    late     it came after its timeout had been requested, or from an earlier dispatch
    retry_at when the next attempt is due; None: the activation ends with this outcome
    """

    status: RunEndKind
    payload: str | None = None
    failure: str | None = None
    effect: EffectSeen | None = None
    receipt: str | None = None
    late: bool = False
    retry_at: int | None = None


class AttemptAbandoned(OfAttempt, frozen=True, kw_only=True):
    """The attempt never began and never can.

    end       how its last dispatch ended: refused, given_up, precluded; or attested
    retry_at  when the next attempt is due; None: the activation ends, as `status` says
    """

    end: str
    retry_at: int | None = None
    status: ActivationEndKind | None = None
    failure: str | None = None
    payload: str | None = None


class AttemptDoubted(OfDispatch, frozen=True, kw_only=True):
    """The attempt may have happened and nobody can prove its outcome: a person decides."""

    reason: str


class DoubtResolved(OfAttempt, frozen=True, kw_only=True):
    """A person's decision about a doubt. Payload: the reason given."""

    decision: Decision
    actor: str
    payload: str
    due: int | None = None


class LateFactKept(OfDispatch, frozen=True, kw_only=True):
    """A report that contradicts what is settled. It changes nothing. Payload: the report."""

    status: str
    payload: str | None = None


class RunStopping(Event, frozen=True):
    """The run starts nothing more. Payload: the failure, or the output of a `succeed` step.

    node  the step that stopped it, `""` for the deadline or a cancel request
    """

    cause: StopCause
    node: str = ""
    payload: str | None = None


class RunEnded(Event, frozen=True):
    """The end. Payload: the run's output, or its failure."""

    status: RunEndKind
    payload: str | None = None
    failure: str | None = None


AnyEvent: TypeAlias = (
    RunAdmitted
    | RunClaimed
    | RunHandedOff
    | RunReleased
    | BarrierDropped
    | ActivationReady
    | ActivationEnded
    | AttemptPrepared
    | ReceiptAttached
    | AttemptRedispatched
    | DispatchEnded
    | TimeoutRequested
    | AttemptSettled
    | AttemptAbandoned
    | AttemptDoubted
    | DoubtResolved
    | LateFactKept
    | RunStopping
    | RunEnded
)


class Payload(msgspec.Struct, frozen=True, gc=False):
    """Bytes that an event cites by `digest` = hex SHA-256(salt ‖ body). body is canonical JSON."""

    salt: bytes
    body: bytes
    digest: str


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """An event with what it cites. payload None: it has none, or it was deleted."""

    event: AnyEvent
    payload: Payload | None = None


class Terms(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """What an attempt was prepared under, as resolved then. Shared by digest between intents.

    Recovery reads this and never today's decorator, file or setting.
    """

    definition: str
    executor: str
    contract: str
    effect: Effect
    kind: str
    max_attempts: int
    on: tuple[str, ...]
    backoff_ms: int
    factor: float
    backoff_max_ms: int
    interruptions_max: int
    on_unknown: str = "ask"
    timeout_ms: int | None = None
    mode: str = "async"
    task: str = ""
    root: str | None = None
    cwd: str | None = None


class Intent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """What is about to be done, durable before anything outside happens. Never changes.

    terms  digest (hex) of the `Terms` row · input: salted digest (hex) of the activation's input
    place  where an acceptance of dispatch 1 would be recorded
    """

    run: str
    node: str
    attempt: int
    terms: str
    input: str
    place: str
    prepared_at: int
    instance: str = ""
