"""A person's decision about an attempt in doubt. Recorded first, then carried out.

Never a dispatch.
"""

from __future__ import annotations

import msgspec
from msgspec import structs

from tallystick.core.commands import Report, Resolve, Succeeded
from tallystick.core.draft import Draft, names_of
from tallystick.core.facts import EndDispatch, MarkDoubt, SetResolution
from tallystick.core.failure import failure_body, storable
from tallystick.core.history import payload_digest
from tallystick.core.messages import DoubtResolved, EffectSeen
from tallystick.core.reports import checked
from tallystick.core.run import Activation, Attempt, Ended, Run
from tallystick.core.settlement import abandon, settle
from tallystick.core.values import encode
from tallystick.errors import Conflict, InvalidRequest, NotFound, NotReady, TallyError

_encode = msgspec.json.Encoder(order="sorted").encode


def resolve(draft: Draft, asked: Resolve) -> TallyError | None:
    """Record the decision and do what it says. A refusal (returned) has changed nothing."""
    run = draft.run
    activation = run.live.get(asked.key)
    attempt = activation.attempt if activation is not None else None
    if activation is None or attempt is None or attempt.doubt is None:
        return _not_in_doubt(run, asked)
    problem = _output_problem(draft, attempt, asked)
    if problem is not None:
        return problem
    permits = (
        asked.decision == "never_happened" and _is_idempotent(run, activation) and not run.stop
    )
    asked = structs.replace(asked, actor=storable(asked.actor), reason=storable(asked.reason))
    _record(draft, activation, attempt, asked, due=draft.now if permits else None)
    if not permits:
        _carry_out(draft, activation.key.node, asked)
    return None


def _not_in_doubt(run: Run, asked: Resolve) -> TallyError | None:
    ended = run.settled.get(asked.key)
    if ended is not None and asked.key not in run.live:
        outcome = "abandoned" if asked.decision == "never_happened" else asked.decision
        if ended.status == outcome and _same_output(ended, asked):
            return None
        return Conflict(
            f"{asked.key} is decided already: {ended.status}",
            check="doubt",
            facts={"recorded": ended.status, "asked": asked.decision},
        )
    if asked.key.node not in run.bound.plan.nodes:
        return NotFound(f"run {run.id} has no step `{asked.key}`", check="node")
    return NotReady(
        f"{asked.key} is not in doubt: there is nothing to decide",
        check="doubt",
        next_step=f"tally show {run.id}",
    )


def _same_output(ended: Ended, asked: Resolve) -> bool:
    if asked.output is None:
        return True
    return payload_digest(ended.salt, asked.output) == ended.payload


def _output_problem(draft: Draft, attempt: Attempt, asked: Resolve) -> TallyError | None:
    if (asked.decision == "succeeded") != (asked.output is not None):
        return InvalidRequest(
            "an output is given with `succeeded`, and only with it", check="output"
        )
    if asked.output is None:
        return None
    told = Report(asked.key, attempt.number, attempt.dispatch, Succeeded(asked.output))
    end = checked(draft, told)
    if isinstance(end, Succeeded):
        return None
    message = getattr(end, "message", "the output is not valid")
    return InvalidRequest(f"the output of {asked.key} is refused: {message}", check="output")


def _is_idempotent(run: Run, activation: Activation) -> bool:
    return run.bound.leaf(activation.key.node).terms.effect == "idempotent"


def _record(
    draft: Draft, activation: Activation, attempt: Attempt, asked: Resolve, due: int | None
) -> None:
    node, instance = names_of(activation)
    payload = draft.payload(encode(asked.reason))
    resolution = {"actor": asked.actor, "at": draft.now, "decision": asked.decision}
    draft.emit(
        DoubtResolved(
            at=draft.now,
            node=node,
            instance=instance,
            attempt=attempt.number,
            decision=asked.decision,
            actor=asked.actor,
            payload=payload.digest,
            due=due,
        ),
        payload,
        SetResolution(_encode(resolution).decode(), node, instance, attempt.number),
        MarkDoubt(None, node, instance, attempt.number),
        *_scheduled(attempt, due, node, instance),
    )


def _scheduled(attempt: Attempt, due: int | None, node: str, instance: str) -> list[EndDispatch]:
    """The row of a permitted attempt says when its next dispatch is due; its end stays."""
    if due is None:
        return []
    assert attempt.end is not None, "an attempt is in doubt only after its dispatch has ended"
    unknown, number = attempt.earlier == "unknown", attempt.number
    return [EndDispatch(attempt.end, due, unknown, attempt.failed, node, instance, number)]


def _carry_out(draft: Draft, step: str, asked: Resolve) -> None:
    run = draft.run
    activation = run.live[asked.key]
    attempt = activation.attempt
    assert attempt is not None
    receipt = None if attempt.receipt else "attested"
    effect: EffectSeen = "possible"
    match asked.decision:
        case "succeeded":
            assert asked.output is not None
            output = draft.payload(asked.output)
            settle(
                draft,
                activation,
                attempt,
                attempt.dispatch,
                "succeeded",
                output,
                receipt=receipt,
            )
        case "failed":
            message = f"{asked.actor} decided that it failed"
            payload = draft.payload(failure_body("attested", message, step=step))
            settle(
                draft,
                activation,
                attempt,
                attempt.dispatch,
                "failed",
                payload,
                failure="attested",
                effect=effect,
                receipt=receipt,
            )
        case "cancelled":
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
        case "never_happened":
            _never_happened(draft, activation, attempt)


def _never_happened(draft: Draft, activation: Activation, attempt: Attempt) -> None:
    """Closed as never begun; the next attempt is permitted unless the run starts nothing more."""
    run = draft.run
    if run.stop:
        abandon(draft, activation, attempt, "attested", status="cancelled")
    elif run.stopping is not None:
        abandon(draft, activation, attempt, "attested", status="given_up")
    else:
        abandon(draft, activation, attempt, "attested", retry_at=draft.now)
