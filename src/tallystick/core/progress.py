"""What follows when a visit ends: which steps become ready, are skipped, or stop the run.

Worked off from a list, never by recursion, so that a chain of ten thousand skipped steps costs ten
thousand small steps. Nothing here can fail a settlement: an input that cannot be computed becomes
the failure of the step that needs it.
"""

from __future__ import annotations

from tallystick.core.definition import Json
from tallystick.core.draft import Draft, Stop, names_of
from tallystick.core.expression_values import ExpressionFailed
from tallystick.core.facts import EndActivation, InsertActivation
from tallystick.core.failure import failure_body
from tallystick.core.fields import Field, Scope
from tallystick.core.graph import PlannedNode
from tallystick.core.identity import ActivationKey, instance_text
from tallystick.core.messages import (
    ActivationEnded,
    ActivationEndKind,
    ActivationReady,
    RunEnded,
    RunEndKind,
    RunStopping,
    StopCause,
)
from tallystick.core.run import Activation
from tallystick.core.values import ValueRefused, decode_trusted, encode


def begin(draft: Draft) -> None:
    """Activate the roots of a new run."""
    _work_off(draft, [ActivationKey(path) for path in draft.run.bound.plan.roots])


def follow(draft: Draft, ended: ActivationKey) -> None:
    """Activate whatever waited only for this visit."""
    _work_off(draft, _followers(draft, ended))


def _followers(draft: Draft, ended: ActivationKey) -> list[ActivationKey]:
    run = draft.run
    keys = (
        ActivationKey(path, ended.instance) for path in run.bound.plan.nodes[ended.node].followers
    )
    return [key for key in keys if run.joins.get(key) == 0]


def _work_off(draft: Draft, keys: list[ActivationKey]) -> None:
    waiting = keys[::-1]
    while waiting and draft.run.stopping is None:
        key = waiting.pop()
        if _activate(draft, key):
            waiting.extend(reversed(_followers(draft, key)))


def _activate(draft: Draft, key: ActivationKey) -> bool:
    """Visit a node whose needs are all over. True: the visit has ended already."""
    planned = draft.run.bound.plan.nodes[key.node]
    try:
        if _is_skipped(draft, planned, key):
            _end_at_once(draft, key, "skipped", None, None)
            return True
        return _enter(draft, planned, key)
    except ExpressionFailed as error:
        return fail_visit(draft, key, "expression", str(error))


def _enter(draft: Draft, planned: PlannedNode, key: ActivationKey) -> bool:
    match planned.node.kind:
        case "fail":
            _reach_fail(draft, planned, key)
            return True
        case "succeed":
            _reach_succeed(draft, planned, key)
            return True
        case _:
            return _make_ready(draft, planned, key)


def _is_skipped(draft: Draft, planned: PlannedNode, key: ActivationKey) -> bool:
    done = draft.run.done
    needs = [ActivationKey(need, key.instance) for need in planned.needs]
    if needs and planned.node.if_skipped == "skip" and all(done.get(n) == "skipped" for n in needs):
        return True
    if planned.when is None:
        return False
    value = planned.when.evaluate(names(draft, planned.when))
    if not isinstance(value, bool):
        raise ExpressionFailed(
            planned.node.when or "", f"steps.{planned.path}.when", "the value must be true or false"
        )
    return not value


def names(draft: Draft, template: Field) -> Scope:
    """What this template reads, and no more, decoded."""
    run = draft.run
    scope: dict[str, Json] = {"run": {"id": run.id}}
    if template.input:
        scope["input"] = run.input_value
    steps: dict[str, Json] = {}
    for path in template.steps:
        output = run.outputs.get(path)
        if output is not None:
            steps[path] = {"output": decode_trusted(output)}
    scope["steps"] = steps
    return scope


def _make_ready(draft: Draft, planned: PlannedNode, key: ActivationKey) -> bool:
    template = planned.inputs
    try:
        value = {} if template is None else template.evaluate(names(draft, template))
        body = encode(value)
    except ValueRefused as error:
        return fail_visit(draft, key, "input_invalid", f"steps.{planned.path}.with: {error}")
    payload = draft.payload(body)
    sequence, instance = draft.next_sequence, instance_text(key.instance)
    draft.emit(
        ActivationReady(at=draft.now, node=key.node, instance=instance, payload=payload.digest),
        payload,
        InsertActivation(key.node, instance, sequence, None, None),
    )
    return False


def _reach_fail(draft: Draft, planned: PlannedNode, key: ActivationKey) -> None:
    message = planned.message.evaluate(names(draft, planned.message)) if planned.message else None
    text = message if isinstance(message, str) else f"step `{planned.path}` failed the run"
    body = failure_body("fail", text, step=planned.path)
    _end_at_once(draft, key, "failed", "fail", body)
    stop_run(draft, "fail", planned.path, body)


def _reach_succeed(draft: Draft, planned: PlannedNode, key: ActivationKey) -> None:
    value = planned.value.evaluate(names(draft, planned.value)) if planned.value else None
    try:
        body = encode(value)
    except ValueRefused as error:
        raise ExpressionFailed("output", f"steps.{planned.path}", str(error)) from error
    _end_at_once(draft, key, "succeeded", None, None)
    stop_run(draft, "succeed", planned.path, body)


def _end_at_once(
    draft: Draft,
    key: ActivationKey,
    status: ActivationEndKind,
    failure: str | None,
    body: bytes | None,
) -> None:
    """End a visit that never was live: its row is inserted with its end."""
    instance = instance_text(key.instance)
    payload = None if body is None else draft.payload(body)
    sequence = draft.next_sequence
    event = ActivationEnded(
        at=draft.now,
        node=key.node,
        instance=instance,
        status=status,
        failure=failure,
        payload=payload.digest if payload else None,
    )
    draft.emit(event, payload, InsertActivation(key.node, instance, None, status, sequence))


def fail_visit(draft: Draft, key: ActivationKey, kind: str, message: str) -> bool:
    """A visit that could not begin has failed. True, for the followers of a step that may fail."""
    body = failure_body(kind, message, step=key.node)
    _end_at_once(draft, key, "failed", kind, body)
    after_failure(draft, key, body)
    return True


def after_failure(draft: Draft, key: ActivationKey, body: bytes) -> None:
    """A visit has failed for good: unless the step may fail, the run stops."""
    if draft.run.bound.plan.nodes[key.node].node.on_failure == "fail":
        stop_run(draft, "failed", key.node, body)


def stop_run(draft: Draft, cause: StopCause, node: str, body: bytes | None) -> None:
    """Record once that the run starts nothing more; give up what was not prepared.

    The deadline is recorded even if the run was stopping for another reason: what that one would
    have left to finish is stopped too.
    """
    if draft.run.stopping is not None and (cause != "deadline" or draft.run.stop):
        return
    payload = None if body is None else draft.payload(body)
    digest = payload.digest if payload else None
    draft.emit(RunStopping(at=draft.now, cause=cause, node=node, payload=digest), payload)
    for activation in list(draft.run.live.values()):
        if activation.attempt is None:
            _give_up(draft, activation)
        elif draft.run.stop and activation.attempt.in_flight:
            attempt = activation.attempt
            draft.stops.append(Stop(activation.key, attempt.number, attempt.dispatch, "cancel"))


def _give_up(draft: Draft, activation: Activation) -> None:
    status: ActivationEndKind = "given_up"
    if draft.run.stop:
        status = "cancelled"
    elif activation.last_failure is not None:
        status = "failed"
    node, instance = names_of(activation)
    sequence = draft.next_sequence
    event = ActivationEnded(
        at=draft.now,
        node=node,
        instance=instance,
        status=status,
        failure=activation.last_failure if status == "failed" else None,
    )
    draft.emit(event, None, EndActivation(status, sequence, node, instance))


def conclude(draft: Draft) -> None:
    """End the run once nothing of any kind is open."""
    run = draft.run
    if run.ended is not None or run.open_attempts or run.barrier:
        return
    if run.stopping is not None:
        _end_stopped(draft, run.stopping)
    elif len(run.done) == len(run.bound.plan.nodes):
        _end_completed(draft)


def _end_stopped(draft: Draft, cause: StopCause) -> None:
    body = draft.run.stop_payload
    match cause:
        case "succeed":
            _end_run(draft, "succeeded", None, body or b"null")
        case "cancel":
            _end_run(draft, "cancelled", None, body)
        case "failed":
            _end_run(draft, "failed", "step", body)
        case "fail" | "deadline":
            _end_run(draft, "failed", cause, body)


def _end_completed(draft: Draft) -> None:
    template = draft.run.bound.plan.output
    try:
        value = None if template is None else template.evaluate(names(draft, template))
        _end_run(draft, "succeeded", None, encode(value))
    except (ExpressionFailed, ValueRefused) as error:
        _end_run(draft, "failed", "output", failure_body("output", str(error)))


def _end_run(draft: Draft, status: RunEndKind, failure: str | None, body: bytes | None) -> None:
    payload = None if body is None else draft.payload(body)
    digest = payload.digest if payload else None
    draft.emit(RunEnded(at=draft.now, status=status, failure=failure, payload=digest), payload)
