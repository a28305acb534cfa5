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
from tallystick.core.definition import Limits
from tallystick.core.draft import Draft, Start, Stop, names_of
from tallystick.core.facts import AnyFact, AttachReceipt, NewRun, RunHeader
from tallystick.core.facts import RequestTimeout as TimeoutFact
from tallystick.core.failure import failure_body, storable
from tallystick.core.graph import Plan
from tallystick.core.identity import SEMANTICS, ActivationKey, Authority
from tallystick.core.ledger import may_redispatch, prepare, redispatch
from tallystick.core.messages import (
    BarrierDropped,
    ReceiptAttached,
    Recorded,
    RunAdmitted,
    RunClaimed,
    RunHandedOff,
    RunReleased,
    TimeoutRequested,
)
from tallystick.core.progress import begin, conclude, stop_run
from tallystick.core.recovery import DOUBT_REASONS, Verdict, between
from tallystick.core.reports import report
from tallystick.core.resolution import resolve
from tallystick.core.run import Activation, Attempt, Run
from tallystick.core.settlement import abandon, doubt, settle_cancelled
from tallystick.errors import AuthorityLost, InvalidRequest, NotReady, TallyError

_encode = msgspec.json.Encoder(order="sorted").encode

EVIDENCE = frozenset({"ended", "fenced", "attested"})
"""What may move authority. Source: design §5."""

STARTS_MAX = 1_000
"""No transition hands over more than this; the rest goes into the next."""


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
        _take(draft, admission.authority)
    begin(draft)
    if slots:
        _advance(draft, dict(slots))
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
            return _advance(draft, dict(command.slots))
        case RequestTimeout():
            return _request_timeout(draft, command)
        case PassDeadline():
            return _pass_deadline(draft)
        case Accepted():
            return _accepted(draft, command)
        case Prepare():
            return prepare(draft, command)
        case Claim():
            return _claim(draft, command)
        case HandOff():
            return _hand_off(draft, command)
        case Release():
            return _release(draft)
        case Resolve():
            return resolve(draft, command)
        case _:
            assert_never(command)


# Work


def _advance(draft: Draft, slots: dict[str, int]) -> TallyError | None:
    """Dispatch again what is due, then prepare what is ready, while slots last."""
    run = draft.run
    if run.barrier or run.ended is not None:
        return None
    if run.authority is None:
        return _not_yours(run)
    if run.deadline is not None and draft.now >= run.deadline and not run.stop:
        return _pass_deadline(draft)
    for due, key in run.due.in_order() if len(run.due) else ():
        if due > draft.now or not _takes_more(draft, slots):
            break
        _advance_one(draft, key, slots)
    if run.stopping is None and len(run.ready):
        for key in _first_ready(run, slots):
            if not _advance_one(draft, key, slots):
                break
    return None


def _first_ready(run: Run, slots: Mapping[str, int]) -> list[ActivationKey]:
    """The ready steps that stand first for the slots of their mode: one mode never blocks another.

    Looks no further than the run's caps allow, and only for modes that it has and that have a slot.
    """
    left = {mode: slots[mode] for mode in run.bound.modes if slots.get(mode, 0) > 0}
    room = _room(run)
    keys: list[ActivationKey] = []
    for key, mode in ((key, run.bound.leaf(key.node).terms.mode) for key, _ in run.ready.items()):
        if not left or len(keys) >= room:
            break
        if mode in left:
            keys.append(key)
            left[mode] -= 1
            if left[mode] == 0:
                del left[mode]
    return keys


def _takes_more(draft: Draft, slots: Mapping[str, int]) -> bool:
    """Whether anything that is due can be handed over: a new attempt, or the next dispatch."""
    run = draft.run
    if len(draft.starts) >= STARTS_MAX or not any(slots.get(mode) for mode in run.bound.modes):
        return False
    return run.between > 0 or _room(run) > 0


def _room(run: Run) -> int:
    """How many new attempts the run's caps and the size of a transition allow."""
    caps = [STARTS_MAX]
    if run.limits.concurrency is not None:
        caps.append(run.limits.concurrency - run.active)
    if run.limits.attempts is not None:
        caps.append(run.limits.attempts - run.consumed)
    return min(caps)


def _advance_one(draft: Draft, key: ActivationKey, slots: dict[str, int]) -> bool:
    """False: the run as a whole takes no more now."""
    run = draft.run
    mode = run.bound.leaf(key.node).terms.mode
    if slots.get(mode, 0) < 1 or len(draft.starts) >= STARTS_MAX:
        return True
    activation = run.live[key]
    if activation.attempt is not None:
        refusal = may_redispatch(run, activation, draft.now)
        if refusal is None:
            redispatch(draft, activation)
    else:
        assert run.authority is not None, "only the owner advances a run"
        number = activation.attempts + 1
        refusal = prepare(draft, Prepare(run.authority, key, number, slots[mode]))
    if refusal is None:
        slots[mode] -= 1
    return refusal is None


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


def _pass_deadline(draft: Draft) -> TallyError | None:
    run = draft.run
    if run.deadline is None or draft.now < run.deadline:
        return NotReady("the deadline has not come", check="deadline", facts={"now": draft.now})
    if run.ended is None and not run.stop:
        body = failure_body("deadline", "the run took longer than `limits.duration` allows")
        stop_run(draft, "deadline", "", body)
        for activation, attempt in _between_dispatches(run):
            _stop_between(draft, activation, attempt)
    return None


def _between_dispatches(run: Run) -> list[tuple[Activation, Attempt]]:
    return [
        (activation, activation.attempt)
        for activation in run.live.values()
        if activation.attempt is not None
        and activation.attempt.end is not None
        and activation.attempt.doubt is None
    ]


def _stop_between(draft: Draft, activation: Activation, attempt: Attempt) -> None:
    effect = draft.run.bound.leaf(activation.key.node).terms.effect
    verdict = between(effect, attempt.earlier)
    if verdict is Verdict.DOUBT_STOPPED:
        doubt(draft, activation, DOUBT_REASONS[verdict])
    elif verdict is Verdict.ABANDON_CANCELLED:
        abandon(draft, activation, attempt, attempt.end or "given_up", status="cancelled")
    else:
        settle_cancelled(draft, activation, attempt, effect)


# Authority


def _take(draft: Draft, authority: Authority) -> None:
    draft.run.authority = authority
    draft.authority = authority
    draft.emit(RunClaimed(at=draft.now, generation=authority.generation, engine=authority.engine))


def _claim(draft: Draft, command: Claim) -> TallyError | None:
    run = draft.run
    if run.authority == command.authority:
        return None
    if run.authority is not None or command.authority.generation != run.generation + 1:
        return _not_yours(run)
    _take(draft, command.authority)
    return None


def _hand_off(draft: Draft, command: HandOff) -> TallyError | None:
    run = draft.run
    if command.evidence not in EVIDENCE:
        return InvalidRequest(
            f"`{command.evidence}` is no evidence that moves authority",
            check="evidence",
            facts={"evidence": command.evidence},
        )
    if run.authority == command.authority:
        return None
    former = run.authority
    if (
        former is None
        or former.engine != command.former
        or command.authority.generation != former.generation + 1
        or command.authority.token == former.token
    ):
        return _not_yours(run)
    run.authority = command.authority
    draft.authority = command.authority
    draft.emit(
        RunHandedOff(
            at=draft.now,
            generation=command.authority.generation,
            engine=command.authority.engine,
            former=command.former,
            evidence=command.evidence,
            seen=storable(command.seen),
            barrier=run.in_flight > 0,
        )
    )
    return None


def _release(draft: Draft) -> TallyError | None:
    run = draft.run
    if run.authority is None:
        return _not_yours(run)
    if run.open_attempts > run.doubts:
        return NotReady("an attempt is open", check="open-attempts")
    generation = run.authority.generation
    run.authority = None
    draft.release = True
    draft.emit(RunReleased(at=draft.now, generation=generation))
    return None


def _not_yours(run: Run) -> AuthorityLost:
    holder = run.authority
    return AuthorityLost(
        f"run {run.id} is not to be had under these terms",
        check="authority",
        facts={
            "generation": run.generation,
            "engine": holder.engine if holder else None,
        },
    )
