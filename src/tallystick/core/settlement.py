"""How one dispatch ended, and what that does: settle, schedule, abandon, or hold in doubt.

    a success of any dispatch settles the attempt
    a failure ends only its own dispatch, and settles only if that is the current one and nothing
    follows whoever cannot say that it is over says *unknown*

The verdict comes from the table in `recovery`; this module gathers what the table looks at and
writes what it says. What comes after the end of a step is `progress`, and can never undo the
settlement.
"""

from __future__ import annotations

from typing import assert_never

from tallystick.core import commands as said
from tallystick.core.commands import DispatchEnd, Report
from tallystick.core.definition import Effect
from tallystick.core.draft import Draft, names_of
from tallystick.core.facts import Abandon, EndActivation, EndDispatch, MarkDoubt, SetOutcome
from tallystick.core.failure import failure_body
from tallystick.core.history import payload_digest
from tallystick.core.identity import instance_text
from tallystick.core.messages import (
    ActivationEndKind,
    AttemptAbandoned,
    AttemptDoubted,
    AttemptSettled,
    DispatchEnded,
    DispatchEndKind,
    EffectSeen,
    LateFactKept,
    Payload,
    RunEndKind,
    Terms,
)
from tallystick.core.progress import after_failure, follow
from tallystick.core.recovery import Situation, Verdict, judge
from tallystick.core.retry import due_at
from tallystick.core.run import Activation, Attempt, Ended
from tallystick.errors import InvalidRequest, NotFound, NotReady, TallyError

OUTPUT_MAX = 64 * 1024 * 1024

DOUBT_REASONS: dict[Verdict, str] = {
    Verdict.DOUBT_UNKNOWN: "unknown",
    Verdict.DOUBT_EXHAUSTED: "exhausted",
    Verdict.DOUBT_FAILED: "failed-after-unknown",
    Verdict.DOUBT_STOPPED: "stop-requested",
    Verdict.DOUBT_PERMITTED: "permitted-dispatch-did-not-succeed",
}


def report(draft: Draft, told: Report) -> TallyError | None:
    """Take a report. A refusal (returned) has changed nothing.

    A late or repeated report is no refusal.
    """
    run = draft.run
    activation = run.live.get(told.key)
    attempt = activation.attempt if activation is not None else None
    if activation is None or attempt is None or attempt.number != told.attempt:
        return _report_to_closed(draft, told)
    if not 1 <= told.dispatch <= attempt.dispatch:
        return InvalidRequest(
            f"attempt {told.attempt} of {told.key} has no dispatch {told.dispatch}",
            check="dispatch",
            facts={"current": attempt.dispatch},
        )
    end = checked(draft, told)
    if isinstance(end, said.Succeeded):
        return _succeed(draft, activation, attempt, told.dispatch, end)
    if told.dispatch < attempt.dispatch or attempt.end is not None or attempt.doubt is not None:
        return _report_to_ended(draft, activation, attempt, told.dispatch, end)
    if not attempt.receipt and isinstance(end, said.Failed | said.Cancelled):
        return _no_receipt(told)
    _end_dispatch(draft, activation, attempt, end)
    return None


def checked(draft: Draft, told: Report) -> DispatchEnd:
    """The end as it counts.

    An output that is too large or breaks its schema is no success, and what stopped without having
    been asked to is a failure.
    """
    end = told.end
    if isinstance(end, said.Cancelled) and not draft.run.stop:
        return _unasked(end)
    if not isinstance(end, said.Succeeded):
        return end
    if len(end.output) > OUTPUT_MAX:
        return said.Failed(
            "output_too_large",
            f"the output of step `{told.key}` has {len(end.output)} bytes; "
            f"at most {OUTPUT_MAX} are kept",
        )
    problem = draft.run.bound.plan.output_problem(told.key.node, end.output)
    return end if problem is None else said.Failed("output_invalid", problem)


def _unasked(end: said.Cancelled) -> said.Failed:
    """What a confirmed cancellation is that nobody had asked for."""
    return said.Failed("error", "it was cancelled from outside", end.effect)


def _no_receipt(told: Report) -> NotReady:
    return NotReady(
        f"attempt {told.attempt} of {told.key} has no receipt: it cannot be settled",
        check="receipt",
    )


# Reports about what is over


def _report_to_closed(draft: Draft, told: Report) -> TallyError | None:
    ended = draft.run.settled.get(told.key)
    live = draft.run.live.get(told.key)
    newest = live.attempts if live is not None else (ended.attempt if ended else 0)
    if told.attempt < 1 or told.attempt > newest:
        return NotFound(
            f"no attempt {told.attempt} of {told.key} is on record",
            check="attempt",
            facts={"newest": newest},
        )
    if ended is not None and ended.attempt == told.attempt and _same(draft, ended, told):
        return None
    _keep_late(draft, told)
    return None


def _same(draft: Draft, ended: Ended, told: Report) -> bool:
    """Whether this report says again what is on record. What proves nothing says nothing new."""
    end = told.end
    if isinstance(end, said.Succeeded) and ended.status == "succeeded":
        return payload_digest(ended.salt, end.output) == ended.payload
    if isinstance(end, said.Cancelled):
        if ended.status == "cancelled":
            return True
        end = _unasked(end)
    elif isinstance(end, said.Succeeded):
        end = checked(draft, told)
    elif not isinstance(end, said.Failed):
        return True
    if ended.status != "failed" or not isinstance(end, said.Failed):
        return False
    return payload_digest(ended.salt, _failed_body(end, told.key.node)) == ended.payload


def _report_to_ended(
    draft: Draft, activation: Activation, attempt: Attempt, dispatch: int, end: DispatchEnd
) -> TallyError | None:
    """The dispatch has ended already, or its attempt is in doubt: only a proof still counts."""
    effect = draft.run.bound.leaf(activation.key.node).terms.effect
    proves = isinstance(end, said.Failed | said.Cancelled)
    if proves and dispatch == attempt.dispatch and _same_end(attempt, end, activation.key.node):
        return None
    if proves and attempt.doubt is not None and effect == "mutating" and attempt.dispatch == 1:
        receipt = None if attempt.receipt else "observed"
        settle_failed(draft, activation, attempt, end, receipt=receipt, late=True)
        return None
    if proves:
        _keep_late(draft, Report(activation.key, attempt.number, dispatch, end))
    return None


def _same_end(attempt: Attempt, end: DispatchEnd, step: str) -> bool:
    """Whether the current dispatch ended just so."""
    if isinstance(end, said.Failed):
        return payload_digest(attempt.end_salt, _failed_body(end, step)) == attempt.end_payload
    return attempt.end == kind_of(end)


def _keep_late(draft: Draft, told: Report) -> None:
    status, body = _late(told.end, told.key.node)
    if status is None:
        return
    payload = None if body is None else draft.payload(body)
    draft.emit(
        LateFactKept(
            at=draft.now,
            node=told.key.node,
            instance=instance_text(told.key.instance),
            attempt=told.attempt,
            dispatch=told.dispatch,
            status=status,
            payload=payload.digest if payload else None,
        ),
        payload,
    )


def _late(end: DispatchEnd, step: str) -> tuple[str | None, bytes | None]:
    match end:
        case said.Succeeded(output):
            return "succeeded", output
        case said.Failed():
            return "failed", _failed_body(end, step)
        case said.Cancelled():
            return "cancelled", None
        case _:
            return None, None


# Ends that count


def _succeed(
    draft: Draft, activation: Activation, attempt: Attempt, dispatch: int, end: said.Succeeded
) -> TallyError | None:
    if not attempt.receipt and attempt.doubt is None and attempt.end is None:
        return _no_receipt(Report(activation.key, attempt.number, dispatch, end))
    late = attempt.timeout or dispatch != attempt.dispatch or attempt.end is not None
    receipt = None if attempt.receipt else "observed"
    settle(
        draft,
        activation,
        attempt,
        dispatch,
        "succeeded",
        draft.payload(end.output),
        receipt=receipt,
        late=late,
    )
    return None


def _end_dispatch(draft: Draft, activation: Activation, attempt: Attempt, end: DispatchEnd) -> None:
    """The current dispatch, in flight until now, is over: ask the table and write its verdict."""
    terms = draft.run.bound.leaf(activation.key.node).terms
    verdict = judge(situation(draft, activation, attempt, terms, end))
    interrupted = kind_of(end) in ("unknown", "precluded")
    tries = 1 + (activation.interruptions if interrupted else activation.failures)
    match verdict:
        case Verdict.SETTLE:
            settle_failed(draft, activation, attempt, end)
        case Verdict.RETRY:
            due = due_at(terms, tries, draft.now, draft.draw())
            settle_failed(draft, activation, attempt, end, retry_at=due)
        case Verdict.SETTLE_CANCELLED:
            settle_cancelled(draft, activation, attempt, terms.effect)
        case Verdict.SETTLE_EXHAUSTED:
            _settle_by_rule(draft, activation, attempt, "exhausted", terms)
        case Verdict.SETTLE_ASSUMED:
            _settle_by_rule(draft, activation, attempt, "assumed", terms)
        case Verdict.SETTLE_UNAVAILABLE:
            _settle_by_rule(draft, activation, attempt, "unavailable", terms)
        case Verdict.AGAIN:
            _between(draft, activation, attempt, end, due_at(terms, tries, draft.now, draft.draw()))
        case Verdict.AGAIN_NOW:
            _between(draft, activation, attempt, end, draft.now)
        case (
            Verdict.DOUBT_UNKNOWN
            | Verdict.DOUBT_EXHAUSTED
            | Verdict.DOUBT_FAILED
            | Verdict.DOUBT_STOPPED
            | Verdict.DOUBT_PERMITTED
        ):
            _between(draft, activation, attempt, end, None)
            doubt(draft, activation, DOUBT_REASONS[verdict])
        case Verdict.ABANDON_RETRY:
            due = due_at(terms, tries, draft.now, draft.draw())
            abandon(draft, activation, attempt, kind_of(end), retry_at=due)
        case Verdict.ABANDON_NOW:
            abandon(draft, activation, attempt, kind_of(end), retry_at=draft.now)
        case Verdict.ABANDON_FAILED:
            message = end.message if isinstance(end, said.Refused) else "it never began"
            abandon(draft, activation, attempt, kind_of(end), message=message, status="failed")
        case Verdict.ABANDON_CANCELLED:
            abandon(draft, activation, attempt, kind_of(end), status="cancelled")
        case Verdict.ABANDON_GIVEN_UP:
            abandon(draft, activation, attempt, kind_of(end), status="given_up")
        case _:
            assert_never(verdict)


def situation(
    draft: Draft, activation: Activation, attempt: Attempt, terms: Terms, end: DispatchEnd
) -> Situation:
    """What the table looks at, gathered from the run as it stands."""
    run = draft.run
    kind = kind_of(end)
    if kind in ("unknown", "precluded"):
        left = activation.interruptions < terms.interruptions_max
    else:
        left = activation.failures + 1 < terms.max_attempts + activation.permissions
    return Situation(
        effect=terms.effect,
        end=kind,
        earlier=attempt.earlier,
        named=_named(end, terms),
        left=left,
        stop=run.stop,
        closing=run.stopping is not None,
        permitted=attempt.permitted,
        assume=terms.on_unknown == "assume_failed",
    )


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


def _named(end: DispatchEnd, terms: Terms) -> bool:
    if isinstance(end, said.Failed | said.Refused):
        return end.kind in terms.on
    return not isinstance(end, said.Precluded) or end.recovery or "unavailable" in terms.on


# Writing a verdict


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
                draft.payload(_failed_body(end, activation.key.node)),
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


def _settle_by_rule(
    draft: Draft, activation: Activation, attempt: Attempt, kind: str, terms: Terms
) -> None:
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


def _failed_body(end: said.Failed, step: str | None = None) -> bytes:
    return failure_body(end.kind, end.message, step=step, detail=end.detail)


def _between(
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
            return _failed_body(end, step)
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
