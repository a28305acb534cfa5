"""The instant after which a run starts nothing: recorded once, it acts like a cancel request.

What is in flight is asked to stop and may still end in any way. What is between dispatches, and so
would wait for one that never comes, is closed or held in doubt at once.
"""

from __future__ import annotations

from tallystick.core.draft import Draft
from tallystick.core.failure import failure_body
from tallystick.core.progress import stop_run
from tallystick.core.recovery import DOUBT_REASONS, Verdict, between
from tallystick.core.run import Activation, Attempt, Run
from tallystick.core.settlement import abandon, doubt, settle_cancelled
from tallystick.errors import NotReady, TallyError


def pass_deadline(draft: Draft) -> TallyError | None:
    """Record the deadline, once. A refusal (returned) before its time has changed nothing."""
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
