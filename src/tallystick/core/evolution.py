"""How each event changes a run: the second half of the state machine.

`machine` decides what is said; here is what it means. Replaying a run's events from nothing gives
the state that its owner holds in memory, so nothing here looks at anything but the run, the event
and its payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from tallystick.core.history import link, open_envelope
from tallystick.core.identity import ActivationKey, dispatch_identity
from tallystick.core.messages import (
    ActivationEnded,
    ActivationReady,
    AnyEvent,
    AttemptAbandoned,
    AttemptDoubted,
    AttemptPrepared,
    AttemptRedispatched,
    AttemptSettled,
    BarrierDropped,
    DispatchEnded,
    DoubtResolved,
    LateFactKept,
    OfAttempt,
    Payload,
    ReceiptAttached,
    RunAdmitted,
    RunClaimed,
    RunEnded,
    RunHandedOff,
    RunReleased,
    RunStopping,
    TimeoutRequested,
)
from tallystick.core.recovery import Earlier
from tallystick.core.run import Activation, Attempt, Ended, Run
from tallystick.core.values import decode_trusted
from tallystick.errors import MaintenanceRequired


def replay(run: Run, events: Iterable[tuple[int, int, bytes, bytes, Payload | None]]) -> Run:
    """Rebuild a run from (sequence, transition, envelope, hash, payload) rows, checking the chain.

    `run` is fresh (`Run.new`). Authority is not in history and is set by the caller.
    Raises `MaintenanceRequired` for a broken chain, an unreadable envelope or a missing payload.
    """
    for sequence, transition, envelope, stored, payload in events:
        if sequence != run.sequence + 1 or link(run.head, sequence, transition, envelope) != stored:
            raise MaintenanceRequired(
                f"the history of {run.id} is broken at event {sequence}",
                code="history-broken",
                check="hash-chain",
                facts={"run": run.id, "sequence": sequence},
            )
        evolve(run, open_envelope(envelope), payload)
        run.head = stored
    return run.settle()


def evolve(run: Run, event: AnyEvent, payload: Payload | None) -> None:
    """Apply one event to a draft. Total over all events that `machine` emits."""
    run.sequence += 1
    run.last_at = event.at
    _EVOLVE[type(event)](run, event, payload)


def _admitted(run: Run, event: RunAdmitted, payload: Payload | None) -> None:
    run.admitted_at, run.deadline, run.key = event.at, event.deadline, event.key
    run.input = _body(run, payload)
    run.input_value = decode_trusted(run.input)


def _activation_ready(run: Run, event: ActivationReady, payload: Payload | None) -> None:
    key = event.key
    if event.payload is None:
        return
    run.live[key] = Activation(key, run.sequence, _body(run, payload), event.payload)
    run.ready[key] = True
    _consume(run, key.node)


def _attempt_prepared(run: Run, event: AttemptPrepared, _payload: Payload | None) -> None:
    activation = run.live[event.key]
    attempt = Attempt(
        event.attempt,
        dispatch_identity(run.id, activation.key, event.attempt),
        event.intent,
        event.at,
        event.place,
        receipt=event.accepted,
    )
    run.live[activation.key] = msgspec.structs.replace(
        activation, attempts=event.attempt, attempt=attempt
    )
    run.ready.remove(activation.key)
    run.due.remove(activation.key)
    run.consumed += 1
    run.active += 1
    run.open_attempts += 1
    run.in_flight += 1


def _redispatched(run: Run, event: AttemptRedispatched, _payload: Payload | None) -> None:
    _change(
        run,
        event,
        dispatch=event.dispatch,
        place=event.place,
        receipt=event.accepted,
        timeout=False,
        end=None,
        end_salt=b"",
        end_payload=None,
    )
    run.due.remove(event.key)
    run.in_flight += 1


def _dispatch_ended(run: Run, event: DispatchEnded, payload: Payload | None) -> None:
    activation = run.live[event.key]
    attempt = activation.attempt
    assert attempt is not None, "a dispatch of a closed attempt cannot end"
    unknown = event.end in ("unknown", "unknown_uncounted")
    earlier: Earlier = attempt.earlier
    if unknown or (event.end == "interrupted"):
        earlier = "unknown"
    elif event.end in ("failed", "cancelled") and earlier == "nothing":
        earlier = "failed"
    run.in_flight -= 1
    keeps_permission = attempt.permitted and event.end in ("given_up", "precluded")
    attempt = msgspec.structs.replace(
        attempt,
        end=event.end,
        end_salt=payload.salt if payload else b"",
        end_payload=event.payload,
        earlier=earlier,
        failed=attempt.failed or event.end in ("failed", "cancelled"),
        permitted=keeps_permission,
    )
    run.live[activation.key] = msgspec.structs.replace(
        activation,
        attempt=attempt,
        failures=activation.failures + (event.end in ("failed", "cancelled", "refused")),
        interruptions=activation.interruptions + (event.end in ("unknown", "precluded")),
    )
    if event.due is not None:
        run.due[activation.key] = event.due


def _attempt_settled(run: Run, event: AttemptSettled, payload: Payload | None) -> None:
    key = event.key
    _close(run, key, event.dispatch, event.status, payload)
    if event.status == "failed" and event.retry_at is not None:
        activation = run.live[key]
        run.live[key] = msgspec.structs.replace(
            activation, failures=activation.failures + 1, last_failure=event.failure
        )
        run.due[key] = event.retry_at
        return
    output = payload.body if payload is not None and event.status == "succeeded" else None
    _finish(run, key, event.status, output)


def _abandoned(run: Run, event: AttemptAbandoned, _payload: Payload | None) -> None:
    key = event.key
    _close(run, key, 0, "abandoned", None)
    activation = run.live[key]
    run.live[key] = msgspec.structs.replace(
        activation,
        failures=activation.failures + (event.end == "refused"),
        interruptions=activation.interruptions + (event.end == "precluded"),
        permissions=activation.permissions + (event.end == "attested"),
    )
    if event.status is not None:
        _finish(run, key, event.status, None)
    elif event.retry_at is not None and event.retry_at > event.at:
        run.due[key] = event.retry_at
    else:
        run.ready[key] = True


def _doubted(run: Run, event: AttemptDoubted, _payload: Payload | None) -> None:
    activation = run.live[event.key]
    if activation.attempt is not None and activation.attempt.in_flight:
        run.in_flight -= 1
    run.due.remove(event.key)
    _change(run, event, doubt=event.reason)
    run.active -= 1
    run.doubts += 1


def _resolved(run: Run, event: DoubtResolved, _payload: Payload | None) -> None:
    _change(run, event, doubt=None, permitted=event.due is not None)
    run.active += 1
    run.doubts -= 1
    if event.due is not None:
        run.due[event.key] = event.due


def _activation_ended(run: Run, event: ActivationEnded, _payload: Payload | None) -> None:
    _finish(run, event.key, event.status, None)


def _receipt_attached(run: Run, event: ReceiptAttached, _payload: Payload | None) -> None:
    _change(run, event, receipt=True)


def _timeout_requested(run: Run, event: TimeoutRequested, _payload: Payload | None) -> None:
    _change(run, event, timeout=True)


def _claimed(run: Run, event: RunClaimed, _payload: Payload | None) -> None:
    run.generation = event.generation


def _handed_off(run: Run, event: RunHandedOff, _payload: Payload | None) -> None:
    run.generation, run.barrier = event.generation, event.barrier


def _barrier_dropped(run: Run, _event: BarrierDropped, _payload: Payload | None) -> None:
    run.barrier = False


def _stopping(run: Run, event: RunStopping, payload: Payload | None) -> None:
    run.stopping, run.stop_node = event.cause, event.node
    run.stop_payload = payload.body if payload else None


def _ended(run: Run, event: RunEnded, _payload: Payload | None) -> None:
    run.ended, run.failure = event.status, event.failure


def _noted(_run: Run, _event: AnyEvent, _payload: Payload | None) -> None:
    """History alone: nothing in the run depends on it."""


def _close(
    run: Run, key: ActivationKey, dispatch: int, status: str, payload: Payload | None
) -> None:
    """The attempt is closed: out of every count."""
    activation = run.live[key]
    attempt = activation.attempt
    assert attempt is not None, "only an open attempt can be closed"
    run.open_attempts -= 1
    if attempt.doubt is None:
        run.active -= 1
    else:
        run.doubts -= 1
    if attempt.in_flight:
        run.in_flight -= 1
    run.due.remove(key)
    run.live[key] = msgspec.structs.replace(activation, attempt=None)
    run.settled[key] = Ended(
        attempt.number,
        dispatch or attempt.dispatch,
        attempt.intent,
        status,
        payload.salt if payload else b"",
        payload.digest if payload else None,
    )


def _finish(run: Run, key: ActivationKey, status: str, output: bytes | None) -> None:
    """The visit is over: out of what is live, into what its followers wait for."""
    plan = run.bound.plan
    planned = plan.nodes[key.node]
    if key not in run.live:
        _consume(run, key.node)
    run.live.remove(key)
    run.ready.remove(key)
    run.due.remove(key)
    run.done[key] = status
    if plan.readers.get(key.node):
        if (
            output is None
            and status in ("failed", "cancelled")
            and planned.node.on_failure == "continue"
        ):
            output = b"null"
        if output is not None and run.reads_left.get(key.node) != 0:
            run.outputs[key.node] = output
    for follower in planned.followers:
        follower_key = ActivationKey(follower, key.instance)
        left = run.joins.get(follower_key)
        needs = len(plan.nodes[follower].needs)
        run.joins[follower_key] = (needs if left is None else left) - 1


def _consume(run: Run, node: str) -> None:
    """This node has read what it reads: outputs that nobody else will read are let go."""
    plan = run.bound.plan
    for path in plan.nodes[node].reads:
        left = run.reads_left.get(path)
        left = (plan.readers[path] if left is None else left) - 1
        run.reads_left[path] = left
        if left == 0:
            run.outputs.remove(path)


def _change(run: Run, event: OfAttempt, **changes: object) -> None:
    activation = run.live[event.key]
    assert activation.attempt is not None, "an event about an attempt that is not open"
    attempt = msgspec.structs.replace(activation.attempt, **changes)
    run.live[activation.key] = msgspec.structs.replace(activation, attempt=attempt)


def _body(run: Run, payload: Payload | None) -> bytes:
    if payload is None:
        raise MaintenanceRequired(
            f"a payload that {run.id} still needs is missing",
            code="payload-missing",
            facts={"run": run.id, "sequence": run.sequence},
        )
    return payload.body


_Handler: TypeAlias = Callable[[Run, Any, "Payload | None"], None]
_EVOLVE: dict[type[AnyEvent], _Handler] = {
    ActivationEnded: _activation_ended,
    ActivationReady: _activation_ready,
    AttemptAbandoned: _abandoned,
    AttemptDoubted: _doubted,
    AttemptPrepared: _attempt_prepared,
    AttemptRedispatched: _redispatched,
    AttemptSettled: _attempt_settled,
    BarrierDropped: _barrier_dropped,
    DispatchEnded: _dispatch_ended,
    DoubtResolved: _resolved,
    LateFactKept: _noted,
    ReceiptAttached: _receipt_attached,
    RunAdmitted: _admitted,
    RunClaimed: _claimed,
    RunEnded: _ended,
    RunHandedOff: _handed_off,
    RunReleased: _noted,
    RunStopping: _stopping,
    TimeoutRequested: _timeout_requested,
}
"""One entry for each event: a table, because it is asked for every event of every run."""
