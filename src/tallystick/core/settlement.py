"""What is written when a dispatch is over: an outcome, a next dispatch, a doubt, an abandonment.

Each function writes one verdict of the table in `recovery`: the event, the rows it changes, and
what follows in the graph. What comes after the end of a step is `progress`, and never undoes the
settlement.
"""

from __future__ import annotations

from typing import assert_never

from tallystick.core import commands as said
from tallystick.core.commands import DispatchEnd
from tallystick.core.definition import Effect
from tallystick.core.draft import Draft, names_of
from tallystick.core.facts import Abandon, EndActivation, EndDispatch, MarkDoubt, SetOutcome
from tallystick.core.failure import failure_body
from tallystick.core.messages import (
    ActivationEndKind,
    AttemptAbandoned,
    AttemptDoubted,
    AttemptSettled,
    DispatchEnded,
    DispatchEndKind,
    EffectSeen,
    Payload,
    RunEndKind,
    Terms,
)
from tallystick.core.progress import after_failure, follow
from tallystick.core.run import Activation, Attempt


def settle(
    draft: Draft,
    activation: Activation,
    attempt: Attempt,
    dispatch: int,
    status: RunEndKind,
    payload: Payload | None,
    *,
    failure: str | None = None,
    effect: EffectSeen | None = None,
    receipt: str | None = None,
    late: bool = False,
    retry_at: int | None = None,
) -> None:
    """Write the outcome, and what follows from it, in this transition."""
    node, instance = names_of(activation)
    sequence = draft.next_sequence
    draft.emit(
        AttemptSettled(
            at=draft.now,
            node=node,
            instance=instance,
            attempt=attempt.number,
            dispatch=dispatch,
            status=status,
            payload=payload.digest if payload else None,
            failure=failure,
            effect=effect,
            receipt=receipt,
            late=late,
            retry_at=retry_at,
        ),
        payload,
        SetOutcome(
            status,
            effect,
            draft.now,
            sequence,
            None if receipt is None else f'{{"kind":"{receipt}"}}',
            node,
            instance,
            attempt.number,
        ),
    )
    if retry_at is not None:
        draft.count(activation.key)
        return
    draft.facts.append(EndActivation(status, sequence, node, instance))
    if status != "succeeded":
        body = payload.body if payload else failure_body("cancelled", "it was cancelled", step=node)
        after_failure(draft, activation.key, body)
    follow(draft, activation.key)


def settle_failed(
    draft: Draft,
    activation: Activation,
    attempt: Attempt,
    end: DispatchEnd,
    *,
    receipt: str | None = None,
    late: bool = False,
    retry_at: int | None = None,
) -> None:
    """Write a failure or a confirmed cancellation as the outcome."""
    terms = draft.run.bound.leaf(activation.key.node).terms
    late = late or attempt.timeout
    assert isinstance(end, said.Failed | said.Cancelled), f"{end!r} is not an outcome"
    effect = "possible" if attempt.earlier != "nothing" else end.effect
    if terms.effect == "transactional":
        effect = "none"
    match end:
        case said.Failed():
            settle(
                draft,
                activation,
                attempt,
                attempt.dispatch,
                "failed",
                draft.payload(failed_body(end, activation.key.node)),
                failure=end.kind,
                effect=effect,
                receipt=receipt,
                late=late,
                retry_at=retry_at,
            )
        case said.Cancelled():
            settle(
                draft,
                activation,
                attempt,
                attempt.dispatch,
                "cancelled",
                None,
                effect=effect,
                receipt=receipt,
            )


def settle_cancelled(
    draft: Draft, activation: Activation, attempt: Attempt, effect: Effect
) -> None:
    """Write by rule that it was cancelled: nothing of it is dispatched again."""
    settle(
        draft,
        activation,
        attempt,
        attempt.dispatch,
        "cancelled",
        None,
        effect=_ruled_effect(effect),
        receipt=None if attempt.receipt else "ruled",
    )


def _ruled_effect(effect: Effect) -> EffectSeen:
    """What an end without a report may have left behind: only a transaction surely left nothing."""
    return "none" if effect == "transactional" else "possible"


def settle_by_rule(
    draft: Draft, activation: Activation, attempt: Attempt, kind: str, terms: Terms
) -> None:
    """Write a failure that a bound or a declared rule decides, not a report."""
    message = {
        "exhausted": "its outcome stayed unknown as often as the policy allows",
        "assumed": "its outcome is unknown, and the step says to assume that it failed",
        "unavailable": "the receiver did not take it, as often as the policy allows",
    }[kind]
    settle(
        draft,
        activation,
        attempt,
        attempt.dispatch,
        "failed",
        draft.payload(failure_body(kind, message, step=activation.key.node)),
        failure=kind,
        effect=_ruled_effect(terms.effect),
        receipt=None if attempt.receipt else "ruled",
    )


def failed_body(end: said.Failed, step: str | None = None) -> bytes:
    """The payload of a reported failure, canonical JSON."""
    return failure_body(end.kind, end.message, step=step, detail=end.detail)


def between(
    draft: Draft, activation: Activation, attempt: Attempt, end: DispatchEnd, due: int | None
) -> None:
    """The dispatch ends and its attempt stays open."""
    node, instance = names_of(activation)
    body = _told_body(end, node)
    payload = None if body is None else draft.payload(body)
    draft.emit(
        DispatchEnded(
            at=draft.now,
            node=node,
            instance=instance,
            attempt=attempt.number,
            dispatch=attempt.dispatch,
            end=kind_of(end),
            due=due,
            failure=end.kind if isinstance(end, said.Failed | said.Refused) else None,
            effect=end.effect if isinstance(end, said.Failed | said.Cancelled) else None,
            payload=payload.digest if payload else None,
        ),
        payload,
    )
    ended = draft.run.live[activation.key].attempt
    assert ended is not None
    draft.facts.append(
        EndDispatch(
            kind_of(end),
            due,
            ended.earlier == "unknown",
            ended.failed,
            node,
            instance,
            attempt.number,
        )
    )
    draft.count(activation.key)


def _told_body(end: DispatchEnd, step: str) -> bytes | None:
    match end:
        case said.Failed():
            return failed_body(end, step)
        case said.Refused(message, kind):
            return failure_body(kind, message, step=step)
        case said.Unknown(reason):
            return failure_body("unknown", reason, step=step)
        case _:
            return None


def doubt(draft: Draft, activation: Activation, reason: str) -> None:
    """Hold the attempt for a person."""
    attempt = draft.run.live[activation.key].attempt
    assert attempt is not None
    node, instance = names_of(activation)
    draft.emit(
        AttemptDoubted(
            at=draft.now,
            node=node,
            instance=instance,
            attempt=attempt.number,
            dispatch=attempt.dispatch,
            reason=reason,
        ),
        None,
        MarkDoubt(reason, node, instance, attempt.number),
    )


def abandon(
    draft: Draft,
    activation: Activation,
    attempt: Attempt,
    kind: str,
    *,
    message: str = "it never began",
    retry_at: int | None = None,
    status: ActivationEndKind | None = None,
) -> None:
    """Close an attempt that never began. kind: how its last dispatch ended, or `attested`."""
    node, instance = names_of(activation)
    body = None
    if status == "failed":
        body = failure_body("unavailable", message, step=node)
    payload = None if body is None else draft.payload(body)
    sequence = draft.next_sequence
    draft.emit(
        AttemptAbandoned(
            at=draft.now,
            node=node,
            instance=instance,
            attempt=attempt.number,
            end=kind,
            retry_at=retry_at,
            status=status,
            failure="unavailable" if status == "failed" else None,
            payload=payload.digest if payload else None,
        ),
        payload,
        Abandon(draft.now, kind, node, instance, attempt.number),
    )
    if status is None:
        draft.count(activation.key)
        return
    draft.facts.append(EndActivation(status, sequence, node, instance))
    after_failure(
        draft, activation.key, body or failure_body("cancelled", "it never began", step=node)
    )
    follow(draft, activation.key)


def kind_of(end: DispatchEnd) -> DispatchEndKind:
    """The word under which an end that is no success is recorded."""
    match end:
        case said.Failed():
            return "failed"
        case said.Cancelled():
            return "cancelled"
        case said.Refused():
            return "refused"
        case said.GivenUp():
            return "given_up"
        case said.Precluded(recovery):
            return "precluded" if recovery else "refused"
        case said.Interrupted():
            return "interrupted"
        case said.Unknown(_, counted):
            return "unknown" if counted else "unknown_uncounted"
        case said.Succeeded():
            raise AssertionError("a success is settled before the table is asked")
        case _:
            assert_never(end)
