"""What may begin now: next dispatches that are due, then steps that are ready, while slots last."""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.core.authority import not_yours
from tallystick.core.commands import Prepare
from tallystick.core.deadline import pass_deadline
from tallystick.core.draft import Draft
from tallystick.core.identity import ActivationKey
from tallystick.core.ledger import may_redispatch, prepare, redispatch
from tallystick.core.run import Run
from tallystick.errors import TallyError

STARTS_MAX = 1_000
"""No transition hands over more than this; the rest goes into the next."""


def advance(draft: Draft, slots: dict[str, int]) -> TallyError | None:
    """Dispatch again what is due, then prepare what is ready, while slots last."""
    run = draft.run
    if run.barrier or run.ended is not None:
        return None
    if run.authority is None:
        return not_yours(run)
    if run.deadline is not None and draft.now >= run.deadline and not run.stop:
        return pass_deadline(draft)
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
