"""Who may write a run: taken when nobody has it, moved on evidence, given up by its holder.

Each is done at most once: an exact repeat is a success without effect, anything else is refused.
What proves the end of a former owner is looked at in the engine, and again in the store's swap.
"""

from __future__ import annotations

from tallystick.core.commands import Claim, HandOff
from tallystick.core.draft import Draft
from tallystick.core.failure import storable
from tallystick.core.identity import Authority
from tallystick.core.messages import RunClaimed, RunHandedOff, RunReleased
from tallystick.core.run import Run
from tallystick.errors import AuthorityLost, InvalidRequest, NotReady, TallyError

EVIDENCE = frozenset({"ended", "fenced", "attested"})
"""What may move authority. Source: design §5."""


def take(draft: Draft, authority: Authority) -> None:
    """Write that this is the owner now. Whether it may be was decided before."""
    draft.run.authority = authority
    draft.authority = authority
    draft.emit(RunClaimed(at=draft.now, generation=authority.generation, engine=authority.engine))


def claim(draft: Draft, command: Claim) -> TallyError | None:
    """Take an unclaimed or released run. A refusal (returned) has changed nothing."""
    run = draft.run
    if run.authority == command.authority:
        return None
    if run.authority is not None or command.authority.generation != run.generation + 1:
        return not_yours(run)
    take(draft, command.authority)
    return None


def hand_off(draft: Draft, command: HandOff) -> TallyError | None:
    """Move authority from its exact holder, on evidence. A refusal has changed nothing.

    What is in flight is undecided: nobody knows what became of it, and the barrier stands.
    """
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
        return not_yours(run)
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


def release(draft: Draft) -> TallyError | None:
    """Give the run up. Refused while anything is open but doubts."""
    run = draft.run
    if run.authority is None:
        return not_yours(run)
    if run.open_attempts > run.doubts:
        return NotReady("an attempt is open", check="open-attempts")
    generation = run.authority.generation
    run.authority = None
    draft.release = True
    draft.emit(RunReleased(at=draft.now, generation=generation))
    return None


def not_yours(run: Run) -> AuthorityLost:
    """The refusal of whoever asks for a run that it cannot have, with who has it."""
    holder = run.authority
    return AuthorityLost(
        f"run {run.id} is not to be had under these terms",
        check="authority",
        facts={
            "generation": run.generation,
            "engine": holder.engine if holder else None,
        },
    )
