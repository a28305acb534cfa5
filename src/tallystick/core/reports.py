"""How a dispatch ended, as reported, and which verdict that leads to.

    a success of any dispatch settles the attempt
    a failure ends only its own dispatch, and settles only the current one, if nothing follows
    whoever cannot say that it is over says *unknown*

The verdict comes from the table in `recovery`; this module gathers what the table looks at.
`settlement` writes what it says.
"""

from __future__ import annotations

from typing import assert_never

from tallystick.core import commands as said
from tallystick.core.commands import DispatchEnd, Report
from tallystick.core.draft import Draft
from tallystick.core.history import payload_digest
from tallystick.core.identity import instance_text
from tallystick.core.messages import (
    LateFactKept,
    Terms,
)
from tallystick.core.recovery import DOUBT_REASONS, Situation, Verdict, judge
from tallystick.core.retry import due_at
from tallystick.core.run import Activation, Attempt, Ended
from tallystick.core.settlement import (
    abandon,
    between,
    doubt,
    failed_body,
    kind_of,
    settle,
    settle_by_rule,
    settle_cancelled,
    settle_failed,
)
from tallystick.errors import InvalidRequest, NotFound, NotReady, TallyError

OUTPUT_MAX = 64 * 1024 * 1024


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
    return payload_digest(ended.salt, failed_body(end, told.key.node)) == ended.payload


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
        return payload_digest(attempt.end_salt, failed_body(end, step)) == attempt.end_payload
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
            return "failed", failed_body(end, step)
        case said.Cancelled():
            return "cancelled", None
        case _:
            return None, None


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
            settle_by_rule(draft, activation, attempt, "exhausted", terms)
        case Verdict.SETTLE_ASSUMED:
            settle_by_rule(draft, activation, attempt, "assumed", terms)
        case Verdict.SETTLE_UNAVAILABLE:
            settle_by_rule(draft, activation, attempt, "unavailable", terms)
        case Verdict.AGAIN:
            between(draft, activation, attempt, end, due_at(terms, tries, draft.now, draft.draw()))
        case Verdict.AGAIN_NOW:
            between(draft, activation, attempt, end, draft.now)
        case (
            Verdict.DOUBT_UNKNOWN
            | Verdict.DOUBT_EXHAUSTED
            | Verdict.DOUBT_FAILED
            | Verdict.DOUBT_STOPPED
            | Verdict.DOUBT_PERMITTED
        ):
            between(draft, activation, attempt, end, None)
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


def _named(end: DispatchEnd, terms: Terms) -> bool:
    if isinstance(end, said.Failed | said.Refused):
        return end.kind in terms.on
    return not isinstance(end, said.Precluded) or end.recovery or "unavailable" in terms.on
