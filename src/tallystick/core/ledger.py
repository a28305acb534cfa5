"""The ledger's doors: what must hold before an attempt is prepared or dispatched again.

    intent ──▶ receipt ──▶ outcome

The checks of `prepare` stand in one tuple, in the order of design §4; the first that fails
refuses, and then nothing has changed. A check enters the tuple with its feature: those for pauses,
fan-out slots, resource claims and the allotment of a run tree are not there yet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

import msgspec

from tallystick.core.commands import Prepare
from tallystick.core.draft import Draft, Start
from tallystick.core.facts import BeginDispatch, InsertAttempt, InsertTerms
from tallystick.core.graph import BoundNode
from tallystick.core.identity import ActivationKey, instance_text
from tallystick.core.messages import (
    IN_ENGINE,
    AttemptPrepared,
    AttemptRedispatched,
    Intent,
)
from tallystick.core.run import Activation, Attempt, Run, at_attempts_cap, at_concurrency_cap
from tallystick.errors import (
    AuthorityLost,
    CapacityUnavailable,
    Conflict,
    InvalidRequest,
    NotFound,
    NotReady,
    TallyError,
)

NODE_PATH_MAX = 1_024
INPUT_MAX = 64 * 1024 * 1024
RECEIPT_IN_ENGINE = '{"kind":"engine"}'

_encode = msgspec.json.Encoder(order="sorted").encode


class Repeat(Enum):
    """The same intent is on disk already: a success that changes nothing."""

    REPEAT = 1


Check: TypeAlias = Callable[[Run, Prepare, int], TallyError | Repeat | None]


def intent_digest(intent: bytes) -> str:
    """What the event of a preparation cites: hex SHA-256 of the intent under its tag."""
    return hashlib.sha256(b"tcj1:intent\n" + intent).hexdigest()


def _shape(_run: Run, ask: Prepare, _now: int) -> TallyError | None:
    if ask.attempt < 1 or (
        len(ask.key.node) * 4 > NODE_PATH_MAX and len(ask.key.node.encode()) > NODE_PATH_MAX
    ):
        return InvalidRequest(
            "an attempt number starts at 1 and a node path has at most 1 KiB",
            check="shape",
            facts={"attempt": ask.attempt},
        )
    return None


def _run_exists(run: Run, _ask: Prepare, _now: int) -> TallyError | None:
    return NotFound(f"no run {run.id}", check="run") if run.sequence == 0 else None


def _authority(run: Run, ask: Prepare, _now: int) -> TallyError | None:
    mine = run.authority
    asked = ask.authority
    if mine is asked or (
        mine is not None and mine.generation == asked.generation and mine.token == asked.token
    ):
        return None
    return AuthorityLost(
        f"run {run.id} is not owned by this authority",
        check="authority",
        facts={"asked": ask.authority.generation, "holds": mine.generation if mine else None},
    )


def _barrier(run: Run, _ask: Prepare, _now: int) -> TallyError | None:
    if run.barrier:
        return NotReady(
            f"run {run.id} is recovering: nothing starts while an attempt is undecided",
            check="barrier",
        )
    if run.stopping == "cancel":
        return NotReady(f"run {run.id} is being cancelled", check="cancel")
    return None


def _given_up(run: Run, ask: Prepare, _now: int) -> TallyError | None:
    if run.done.get(ask.key) == "given_up":
        return NotReady(f"{ask.key} was given up when another step failed", check="given-up")
    return None


def _already(run: Run, ask: Prepare, _now: int) -> TallyError | Repeat | None:
    recorded = recorded_intent(run, ask.key, ask.attempt)
    if recorded is None:
        return None
    if ask.intent is None or intent_digest(ask.intent) == recorded:
        return Repeat.REPEAT
    return Conflict(
        f"attempt {ask.attempt} of {ask.key} is on record with another intent",
        check="already-prepared",
        facts={"recorded": recorded},
    )


def _accepts_work(run: Run, _ask: Prepare, _now: int) -> TallyError | None:
    if run.ended is not None or run.stopping is not None:
        return NotReady(
            f"run {run.id} starts nothing any more",
            check="accepts-work",
            facts={"stopping": run.stopping, "ended": run.ended},
        )
    return None


def _ready(run: Run, ask: Prepare, _now: int) -> TallyError | None:
    planned = run.bound.plan.nodes.get(ask.key.node)
    if planned is None or not planned.leaf:
        return InvalidRequest(f"{ask.key} is not a step that does work", check="node")
    activation = run.live.get(ask.key)
    if activation is None or activation.attempt is not None:
        return NotReady(f"{ask.key} is not ready", check="ready")
    if ask.slots < 1:
        return CapacityUnavailable(
            "the executor has no free slot", which="slots", transient=True, check="slot"
        )
    return None


def _number(run: Run, ask: Prepare, _now: int) -> TallyError | None:
    wanted = run.live[ask.key].attempts + 1
    if ask.attempt == wanted:
        return None
    return Conflict(
        f"the next attempt of {ask.key} is number {wanted}",
        check="number",
        facts={"asked": ask.attempt, "next": wanted},
    )


def _permission(run: Run, ask: Prepare, now: int) -> TallyError | None:
    """A scheduled retry is the permission; it is consumed by being dispatched, once it is due."""
    due = run.due.get(ask.key)
    if due is None and ask.key in run.ready:
        return None
    if due is None or due > now:
        return NotReady(
            f"the next attempt of {ask.key} is not due yet", check="permission", facts={"due": due}
        )
    return None


def _deadline(run: Run, _ask: Prepare, now: int) -> TallyError | None:
    if run.deadline is not None and now >= run.deadline:
        return NotReady(
            f"the deadline of run {run.id} has passed",
            check="deadline",
            facts={"deadline": run.deadline, "now": now},
        )
    return None


def _attempts_cap(run: Run, _ask: Prepare, _now: int) -> TallyError | None:
    if at_attempts_cap(run):
        return CapacityUnavailable(
            f"run {run.id} has used its {run.limits.attempts} attempts",
            which="attempts",
            transient=False,
            check="attempts",
        )
    return None


def _concurrency_cap(run: Run, _ask: Prepare, _now: int) -> TallyError | None:
    if at_concurrency_cap(run):
        return CapacityUnavailable(
            f"run {run.id} has {run.active} attempts under way, as many as it may",
            which="concurrency",
            transient=True,
            check="concurrency",
        )
    return None


CHECKS: tuple[Check, ...] = (
    _shape,  # 1
    _run_exists,  # 2
    _authority,  # 3
    _barrier,  # 4
    _given_up,  # 5
    _already,  # 6
    _accepts_work,  # 7
    _ready,  # 8
    _number,  # 9
    _permission,  # 10
    _deadline,  # 11
    _attempts_cap,  # 12
    _concurrency_cap,  # 13
)


def recorded_intent(run: Run, key: ActivationKey, attempt: int) -> str | None:
    """The recorded intent's digest, if this attempt is the newest of its activation."""
    activation = run.live.get(key)
    if activation is not None and activation.attempt is not None:
        opened = activation.attempt
        if opened.number == attempt:
            return opened.intent
    closed = run.settled.get(key)
    return closed.intent if closed is not None and closed.attempt == attempt else None


def prepare(draft: Draft, ask: Prepare) -> TallyError | None:
    """Check, then write the intent. A refusal (returned, not raised) has changed nothing."""
    run = draft.run
    for check in CHECKS:
        answer = check(run, ask, draft.now)
        if answer is Repeat.REPEAT:
            return None
        if answer is not None:
            return answer
    _write_intent(draft, run.live[ask.key], ask.attempt)
    return None


def _write_intent(draft: Draft, activation: Activation, number: int) -> None:
    run, key = draft.run, activation.key
    leaf = run.bound.leaf(key.node)
    waited = key in run.due
    node, instance = key.node, instance_text(key.instance)
    intent = intent_of(run, activation, number, leaf, draft.now)
    body = _encode(intent)
    digest = intent_digest(body)
    event = AttemptPrepared(
        at=draft.now, node=node, instance=instance, attempt=number, intent=digest, accepted=True
    )
    draft.emit(event)
    attempt = run.live[key].attempt
    assert attempt is not None
    draft.facts.append(InsertTerms(leaf.digest, leaf.body))
    draft.facts.append(
        InsertAttempt(
            node,
            instance,
            number,
            attempt.identity,
            body,
            leaf.digest,
            IN_ENGINE,
            RECEIPT_IN_ENGINE,
        )
    )
    if waited:
        draft.count(key)
    draft.starts.append(
        Start(key, number, 1, attempt.identity.hex(), intent, leaf.terms, activation.input)
    )


def intent_of(
    run: Run, activation: Activation, number: int, leaf: BoundNode, prepared_at: int
) -> Intent:
    """The intent of one attempt. Everything in it is immutable from here on."""
    return Intent(
        run=run.id,
        node=activation.key.node,
        instance=instance_text(activation.key.instance),
        attempt=number,
        terms=leaf.name,
        input=activation.input_digest,
        place=IN_ENGINE,
        prepared_at=prepared_at,
    )


def may_redispatch(run: Run, activation: Activation, now: int) -> TallyError | None:
    """Why the attempt's next dispatch may not begin now, or None. Source: design §4, redispatch."""
    attempt = activation.attempt
    due = run.due.get(activation.key)
    if run.barrier:
        return NotReady("the run is recovering", check="barrier")
    if run.stop or run.ended:
        return NotReady("the run dispatches nothing again", check="cancel")
    if attempt is None or attempt.end is None or due is None:
        return NotReady("no dispatch is scheduled", check="ended")
    if run.bound.leaf(activation.key.node).terms.effect == "mutating":
        return NotReady("mutating work is never dispatched again", check="effect")
    if due > now:
        return NotReady("the next dispatch is not due yet", check="due", facts={"due": due})
    if run.deadline is not None and now >= run.deadline:
        return NotReady("the deadline has passed", check="deadline")
    return None


def redispatch(draft: Draft, activation: Activation) -> None:
    """Write that the same attempt is handed over again. `may_redispatch` has agreed."""
    run, key = draft.run, activation.key
    attempt = activation.attempt
    assert attempt is not None
    node, instance = key.node, instance_text(key.instance)
    number = attempt.dispatch + 1
    draft.emit(
        AttemptRedispatched(
            at=draft.now,
            node=node,
            instance=instance,
            attempt=attempt.number,
            dispatch=number,
            accepted=True,
        ),
        None,
        BeginDispatch(number, IN_ENGINE, RECEIPT_IN_ENGINE, node, instance, attempt.number),
    )
    draft.starts.append(start_of(run, activation, attempt, number))


def start_of(run: Run, activation: Activation, attempt: Attempt, dispatch: int) -> Start:
    """What is handed over for a dispatch of an open attempt."""
    leaf = run.bound.leaf(activation.key.node)
    intent = intent_of(run, activation, attempt.number, leaf, attempt.prepared_at)
    return Start(
        activation.key,
        attempt.number,
        dispatch,
        attempt.identity.hex(),
        intent,
        leaf.terms,
        activation.input,
    )
