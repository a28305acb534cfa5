"""Decide what happens to a run, and nothing else: the pure state machine in the middle.

    decide(run, commands, now, seed) ──▶ Decision(next run, events, facts, starts, stops)

Nothing is read but the arguments: no clock, no store, no randomness but `seed`. The same arguments
give the same bytes. `run` itself is never changed: the next state is a fork, which the caller
settles once the decision is on disk and drops if it is not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import assert_never

import msgspec

from tallystick.core.advance import advance
from tallystick.core.authority import claim, hand_off, release, take
from tallystick.core.commands import (
    Accepted,
    Admission,
    Advance,
    Claim,
    Command,
    HandOff,
    PassDeadline,
    Prepare,
    Release,
    Report,
    RequestTimeout,
    Resolve,
)
from tallystick.core.deadline import pass_deadline
from tallystick.core.definition import Limits
from tallystick.core.draft import Draft, Start, Stop, names_of
from tallystick.core.facts import AnyFact, AttachReceipt, NewRun, RunHeader
from tallystick.core.facts import RequestTimeout as TimeoutFact
from tallystick.core.graph import Plan
from tallystick.core.identity import SEMANTICS, Authority
from tallystick.core.ledger import prepare
from tallystick.core.messages import (
    BarrierDropped,
    ReceiptAttached,
    Recorded,
    RunAdmitted,
    TimeoutRequested,
)
from tallystick.core.progress import begin, conclude
from tallystick.core.reports import report
from tallystick.core.resolution import resolve
from tallystick.core.run import Run
from tallystick.errors import NotReady, TallyError

_encode = msgspec.json.Encoder(order="sorted").encode


class Decision(msgspec.Struct, frozen=True):
    """What one transition does. No events: nothing changes and nothing need be written.

    run       the next copy; `settle()` it once the transition is on disk, else drop it
    header    the run's own row; `head` is filled in when the events are sealed
    verdicts  one for each command: None it was done (or was done before), else its refusal
    starts    dispatches to hand over after the commit · stops: those to ask to stop after it
    authority set where it changed · release: True where it was given up
    """

    run: Run
    events: tuple[Recorded, ...]
    facts: tuple[AnyFact, ...]
    header: RunHeader
    verdicts: tuple[TallyError | None, ...] = ()
    starts: tuple[Start, ...] = ()
    stops: tuple[Stop, ...] = ()
    new_run: NewRun | None = None
    authority: Authority | None = None
    release: bool = False


def request_digest(definition: str, given: bytes, limits: Limits) -> bytes:
    """What a start is compared by when its key comes again.

    definition: hex digest · given: the canonical input
    """
    parts = (definition.encode(), given, _encode(limits))
    digest = hashlib.sha256(b"tcj1:request\n")
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def admit(
    admission: Admission,
    plan: Plan,
    *,
    now: int,
    seed: bytes,
    slots: Mapping[str, int] | None = None,
) -> Decision:
    """The first transition: the run exists, is owned, and may prepare its first steps at once.

    slots  free slots by mode, if the owner is an engine that can begin now
    """
    bound = plan.bind(admission.bindings)
    draft = Draft(Run.new(admission.run, bound, admission.limits), now, seed)
    duration = admission.limits.duration_ms
    deadline = None if duration is None else draft.now + duration
    limits = _encode(admission.limits)
    payload = draft.payload(admission.input)
    draft.emit(
        RunAdmitted(
            at=draft.now,
            definition=admission.digest,
            payload=payload.digest,
            bindings=hashlib.sha256(b"tcj1:bindings\n" + bound.body).hexdigest(),
            limits=limits.decode(),
            semantics=SEMANTICS,
            key=admission.key,
            deadline=deadline,
        ),
        payload,
    )
    if admission.authority is not None:
        take(draft, admission.authority)
    begin(draft)
    if slots:
        advance(draft, dict(slots))
    conclude(draft)
    new = NewRun(
        admission.run,
        admission.key,
        request_digest(admission.digest, admission.input, admission.limits),
        plan.digest,
        plan.definition.workflow,
        SEMANTICS,
        bound.body,
        limits,
        draft.now,
        deadline,
    )
    return _decision(draft, (), new)


def decide(run: Run, commands: Sequence[Command], *, now: int, seed: bytes) -> Decision:
    """Fold the commands, in order, into one transition. `run` itself is never changed.

    A command that is refused changes nothing; those after it are decided all the same.
    """
    draft = Draft(run.fork(), now, seed)
    verdicts = tuple([_apply(draft, command) for command in commands])
    if draft.run.barrier and draft.run.in_flight == 0:
        draft.emit(BarrierDropped(at=draft.now))
    if draft.events:
        conclude(draft)
    return _decision(draft, verdicts, None)


def _decision(
    draft: Draft, verdicts: tuple[TallyError | None, ...], new: NewRun | None
) -> Decision:
    return Decision(
        draft.run,
        tuple(draft.events),
        tuple(draft.facts),
        draft.header(),
        verdicts,
        tuple(draft.starts),
        tuple(draft.stops),
        new,
        draft.authority,
        draft.release,
    )


def _apply(draft: Draft, command: Command) -> TallyError | None:
    match command:
        case Report():
            return report(draft, command)
        case Advance():
            return advance(draft, dict(command.slots))
        case RequestTimeout():
            return _request_timeout(draft, command)
        case PassDeadline():
            return pass_deadline(draft)
        case Accepted():
            return _accepted(draft, command)
        case Prepare():
            return prepare(draft, command)
        case Claim():
            return claim(draft, command)
        case HandOff():
            return hand_off(draft, command)
        case Release():
            return release(draft)
        case Resolve():
            return resolve(draft, command)
        case _:
            assert_never(command)


def _accepted(draft: Draft, command: Accepted) -> TallyError | None:
    """Acceptance is a fact about the world: nothing blocks it but an end."""
    activation = draft.run.live.get(command.key)
    attempt = activation.attempt if activation is not None else None
    if activation is None or attempt is None or attempt.number != command.attempt:
        return NotReady("the attempt is closed", check="receipt")
    if attempt.dispatch != command.dispatch:
        return NotReady("the dispatch is not the current one", check="dispatch")
    if attempt.receipt:
        return None
    node, instance = names_of(activation)
    payload = draft.payload(command.receipt)
    draft.emit(
        ReceiptAttached(
            at=draft.now,
            node=node,
            instance=instance,
            attempt=attempt.number,
            dispatch=attempt.dispatch,
            payload=payload.digest,
        ),
        payload,
        AttachReceipt(command.receipt.decode(), node, instance, attempt.number),
    )
    return None


# Requests to stop


def _request_timeout(draft: Draft, command: RequestTimeout) -> TallyError | None:
    activation = draft.run.live.get(command.key)
    attempt = activation.attempt if activation is not None else None
    if (
        activation is None
        or attempt is None
        or (attempt.number, attempt.dispatch) != (command.attempt, command.dispatch)
        or not attempt.in_flight
    ):
        return NotReady(f"{command.key} is not under way any more", check="in-flight")
    if attempt.timeout:
        return None
    node, instance = names_of(activation)
    draft.emit(
        TimeoutRequested(
            at=draft.now,
            node=node,
            instance=instance,
            attempt=attempt.number,
            dispatch=attempt.dispatch,
        ),
        None,
        TimeoutFact(draft.now, node, instance, attempt.number),
    )
    draft.stops.append(Stop(command.key, attempt.number, attempt.dispatch, "timeout"))
    return None
