"""Facts: what one transition changes in the stored rows, one for each event that changes any.

A fact's fields stand in the order in which the statement of the same name binds them, after the
run's number. The store writes them and decides nothing: every value was decided in `machine`.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Fact(msgspec.Struct, frozen=True, gc=False):
    """The parent of all facts."""


class InsertActivation(Fact, frozen=True):
    """A visit exists. `ready_sequence` is the event that brought its input. status None: live."""

    node: str
    instance: str
    ready_sequence: int | None
    status: str | None
    end_sequence: int | None


class EndActivation(Fact, frozen=True):
    """A visit ended; its output or failure is the payload of event `end_sequence`."""

    status: str
    end_sequence: int
    node: str
    instance: str


class CountActivation(Fact, frozen=True):
    """The counts of design §4.2 and the next due time changed; the visit stays live.

    failures, interruptions, permissions: all since the visit began
    """

    failures: int
    interruptions: int
    permissions: int
    due_at: int | None
    node: str
    instance: str


class InsertTerms(Fact, frozen=True):
    """A content-addressed terms row that may be there already. Not bound to the run's number."""

    digest: bytes
    body: bytes


class InsertAttempt(Fact, frozen=True):
    """The intent (canonical JSON, immutable) with dispatch 1. receipt None: not accepted yet.

    identity, terms: 32 bytes · input_sequence: the event whose payload the intent's input cites
    """

    node: str
    instance: str
    attempt: int
    identity: bytes
    intent: bytes
    terms: bytes
    place: str
    receipt: str | None


class AttachReceipt(Fact, frozen=True):
    """The executor's acceptance of the current dispatch, canonical JSON."""

    receipt: str
    node: str
    instance: str
    attempt: int


class BeginDispatch(Fact, frozen=True):
    """The number rises by one, which empties receipt, timeout request, end and due time."""

    dispatch: int
    place: str
    receipt: str | None
    node: str
    instance: str
    attempt: int


class EndDispatch(Fact, frozen=True):
    """The current dispatch is closed, its attempt open. due_at None: nothing is scheduled."""

    end: str
    due_at: int | None
    earlier_unknown: bool
    earlier_failed: bool
    node: str
    instance: str
    attempt: int


class RequestTimeout(Fact, frozen=True):
    """The current dispatch was asked to stop."""

    timeout_at: int
    node: str
    instance: str
    attempt: int


class MarkDoubt(Fact, frozen=True):
    """reason None lifts the mark."""

    doubt: str | None
    node: str
    instance: str
    attempt: int


class SetResolution(Fact, frozen=True):
    """A person's decision, canonical JSON {actor, at, decision}.

    May be repeated after a new doubt.
    """

    resolution: str
    node: str
    instance: str
    attempt: int


class SetOutcome(Fact, frozen=True):
    """Write-once. `receipt` is used only where the row has none. Lifts the doubt."""

    outcome: str
    effect: str | None
    outcome_at: int
    outcome_sequence: int
    receipt: str | None
    node: str
    instance: str
    attempt: int


class Abandon(Fact, frozen=True):
    """Write-once: it never began and never can. Lifts the doubt."""

    abandoned_at: int
    end: str
    node: str
    instance: str
    attempt: int


AnyFact: TypeAlias = (
    InsertActivation
    | EndActivation
    | CountActivation
    | InsertTerms
    | InsertAttempt
    | AttachReceipt
    | BeginDispatch
    | EndDispatch
    | RequestTimeout
    | MarkDoubt
    | SetResolution
    | SetOutcome
    | Abandon
)


class RunHeader(msgspec.Struct, frozen=True, gc=False):
    """The columns of the run's own row that a transition may change; written with its guard.

    sequence, head   number and hash of the run's last event
    last_at          the run's time: the newest `at`
    status, reason   as `core/status` derives them, for lists
    due_at           the earliest instant at which something is due, or None
    open_attempts    not closed; `active` leaves out those in doubt
    ready            ready activations without an open attempt
    stopping         `StopCause`, or None
    ended_at         None until the end
    """

    sequence: int
    head: bytes
    last_at: int
    status: str
    reason: str | None
    due_at: int | None
    consumed: int
    active: int
    open_attempts: int
    ready: int
    barrier: bool
    stopping: str | None
    ended_at: int | None


class NewRun(msgspec.Struct, frozen=True, gc=False):
    """The immutable columns of a new run.

    request     32 bytes: digest of definition digest, canonical input and limits; what a repeated
                start with the same key is compared with
    definition  32 bytes · bindings, limits: canonical JSON
    """

    run: str
    key: str | None
    request: bytes
    definition: bytes
    workflow: str
    semantics: int
    bindings: bytes
    limits: bytes
    admitted_at: int
    deadline: int | None
