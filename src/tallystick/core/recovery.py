"""What follows when one dispatch ends, alive or in recovery: one table, design §4.2.

The question is always the same: may this be done again, and under which name?

    a new attempt    has a new identity, which no receiver can recognise. It needs proof that
    nothing
                     happened, or a class whose repetition is harmless
    a new dispatch   of the same attempt keeps the identity. It needs a class that allows it
    neither          then a person decides

Absence of evidence is not evidence of absence: an unknown end of mutating work is held in doubt.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import product
from typing import Literal, NamedTuple, TypeAlias

from tallystick.core.definition import EFFECTS, Effect

End: TypeAlias = Literal[
    "succeeded",
    "failed",
    "cancelled",
    "refused",
    "given_up",
    "precluded",
    "interrupted",
    "unknown",
    "unknown_uncounted",
]
ENDS: tuple[End, ...] = (
    "succeeded",
    "failed",
    "cancelled",
    "refused",
    "given_up",
    "precluded",
    "interrupted",
    "unknown",
    "unknown_uncounted",
)
Earlier: TypeAlias = Literal["nothing", "failed", "unknown"]
"""The worst that is known of the attempt's earlier dispatches.

None began, some failed, some unknown.
"""


class Verdict(Enum):
    """What the owner of the run does about it. The value is the sentence that the docs print."""

    SETTLE = "the attempt is settled as reported"
    SETTLE_CANCELLED = "the attempt is settled as cancelled"
    SETTLE_EXHAUSTED = "the attempt is settled as failed (exhausted)"
    SETTLE_ASSUMED = "the attempt is settled as failed (assumed)"
    SETTLE_UNAVAILABLE = "the attempt is settled as failed (unavailable)"
    RETRY = "settled as failed; a new attempt follows after its back-off"
    AGAIN = "the attempt stays open; its next dispatch, same key, follows after its back-off"
    AGAIN_NOW = "the attempt stays open; its next dispatch, same key, is due at once"
    DOUBT_UNKNOWN = "in doubt: the outcome is unknown"
    DOUBT_EXHAUSTED = "in doubt: an earlier outcome is unknown and the tries are exhausted"
    DOUBT_FAILED = "in doubt: an earlier outcome is unknown, and this failure is not retried"
    DOUBT_STOPPED = "in doubt: stop requested, outcome unknown"
    DOUBT_PERMITTED = "in doubt again: the one permitted dispatch did not succeed"
    ABANDON_RETRY = "abandoned, it never began; a new attempt follows after its back-off"
    ABANDON_NOW = "abandoned, it never began; a new attempt is due at once"
    ABANDON_FAILED = "abandoned, it never began; the step has failed (unavailable)"
    ABANDON_CANCELLED = "abandoned, it never began; the step is cancelled"
    ABANDON_GIVEN_UP = "abandoned, it never began; the step is given up"


DOUBT_REASONS: dict[Verdict, str] = {
    Verdict.DOUBT_UNKNOWN: "unknown",
    Verdict.DOUBT_EXHAUSTED: "exhausted",
    Verdict.DOUBT_FAILED: "failed-after-unknown",
    Verdict.DOUBT_STOPPED: "stop-requested",
    Verdict.DOUBT_PERMITTED: "permitted-dispatch-did-not-succeed",
}
"""How a doubt is recorded, for each verdict that is one."""


class Situation(NamedTuple):
    """Everything the table looks at.

    end      how the current dispatch ended
    earlier  see `Earlier`
    named    the policy retries this failure kind (true where the end has no kind)
    left     the bound that this end counts against is not reached
    stop     a cancel request or the deadline is recorded
    closing  the run starts no new attempt for another reason (a sibling failed, `fail`, `succeed`)
    permitted  this was the one dispatch that a person permitted for an attempt in doubt
    assume   the step says `on_unknown: assume_failed`
    """

    effect: Effect
    end: End
    earlier: Earlier = "nothing"
    named: bool = True
    left: bool = True
    stop: bool = False
    closing: bool = False
    permitted: bool = False
    assume: bool = False


HARMLESS: frozenset[Effect] = frozenset({"read_only", "transactional"})


def judge(case: Situation) -> Verdict:
    """The verdict. Pure, total over all situations."""
    match case.end:
        case "succeeded":
            return Verdict.SETTLE
        case "cancelled":
            return (
                Verdict.SETTLE if not _undecided_key(case) else _doubt(case, Verdict.DOUBT_FAILED)
            )
        case "failed":
            return _failed(case)
        case "refused" | "given_up" | "precluded":
            return _never_began(case)
        case "interrupted":
            return _interrupted(case)
        case "unknown" | "unknown_uncounted":
            return _unknown(case)


def _undecided_key(case: Situation) -> bool:
    """An earlier dispatch under this key may still succeed: only a success settles it."""
    return case.effect == "idempotent" and (case.earlier == "unknown" or case.permitted)


def _doubt(case: Situation, otherwise: Verdict) -> Verdict:
    if case.stop:
        return Verdict.DOUBT_STOPPED
    return Verdict.DOUBT_PERMITTED if case.permitted else otherwise


def _failed(case: Situation) -> Verdict:
    again = case.named and case.left and not case.stop
    if case.effect in HARMLESS:
        return Verdict.RETRY if again and not case.closing else Verdict.SETTLE
    if case.effect == "mutating":
        return Verdict.SETTLE
    if not _undecided_key(case):
        return Verdict.AGAIN if again else Verdict.SETTLE
    if again and not case.permitted:
        return Verdict.AGAIN
    return _doubt(case, Verdict.DOUBT_EXHAUSTED if case.named else Verdict.DOUBT_FAILED)


def _never_began(case: Situation) -> Verdict:
    if case.earlier == "unknown" or (case.permitted and case.effect == "idempotent"):
        return _never_began_after_unknown(case)
    if case.earlier == "failed":
        return _never_began_after_failure(case)
    if case.stop:
        return Verdict.ABANDON_CANCELLED
    if case.end == "given_up":
        if case.effect == "idempotent":
            return Verdict.AGAIN_NOW
        return Verdict.ABANDON_GIVEN_UP if case.closing else Verdict.ABANDON_NOW
    if not (case.named and case.left):
        return Verdict.ABANDON_FAILED
    if case.effect == "idempotent":
        return Verdict.AGAIN
    return Verdict.ABANDON_FAILED if case.closing else Verdict.ABANDON_RETRY


def _never_began_after_unknown(case: Situation) -> Verdict:
    if case.effect in HARMLESS:
        if case.stop:
            return Verdict.SETTLE_CANCELLED
        if case.end == "given_up":
            return Verdict.AGAIN_NOW
        return Verdict.AGAIN if case.left else Verdict.SETTLE_EXHAUSTED
    if case.stop or case.effect == "mutating":
        return _doubt(case, Verdict.DOUBT_UNKNOWN)
    if case.end == "given_up" or (case.permitted and case.end == "precluded"):
        return Verdict.AGAIN_NOW
    if case.named and case.left and not case.permitted:
        return Verdict.AGAIN
    return _doubt(case, Verdict.DOUBT_EXHAUSTED if case.named else Verdict.DOUBT_FAILED)


def _never_began_after_failure(case: Situation) -> Verdict:
    if case.stop:
        return Verdict.SETTLE_CANCELLED
    if case.effect == "mutating":
        return Verdict.SETTLE_UNAVAILABLE
    if case.end == "given_up":
        return Verdict.AGAIN_NOW
    return Verdict.AGAIN if case.named and case.left else Verdict.SETTLE_UNAVAILABLE


def _unknown(case: Situation) -> Verdict:
    if case.effect == "mutating":
        if case.assume and not case.stop:
            return Verdict.SETTLE_ASSUMED
        return _doubt(case, Verdict.DOUBT_UNKNOWN)
    harmless = case.effect in HARMLESS
    if case.stop:
        return Verdict.SETTLE_CANCELLED if harmless else Verdict.DOUBT_STOPPED
    if case.permitted and not harmless:
        return Verdict.DOUBT_PERMITTED
    if case.end == "unknown_uncounted":
        return Verdict.AGAIN_NOW
    if case.left:
        return Verdict.AGAIN
    return Verdict.SETTLE_EXHAUSTED if harmless else Verdict.DOUBT_EXHAUSTED


def _interrupted(case: Situation) -> Verdict:
    """Harmless work goes on elsewhere. Of any other work the word proves nothing."""
    if case.effect not in HARMLESS:
        return _unknown(case._replace(end="unknown_uncounted"))
    return Verdict.SETTLE_CANCELLED if case.stop else Verdict.AGAIN_NOW


def between(effect: Effect, earlier: Earlier) -> Verdict:
    """What a recorded cancel request or deadline does to an open attempt between dispatches."""
    if earlier == "unknown" and effect not in HARMLESS:
        return Verdict.DOUBT_STOPPED
    return Verdict.ABANDON_CANCELLED if earlier == "nothing" else Verdict.SETTLE_CANCELLED


def situations() -> Iterator[Situation]:
    """Every situation there is, in the order in which the docs print the table."""
    flags = (True, False)
    for effect, end, earlier, named, left, stop, closing, permitted, assume in product(
        EFFECTS, ENDS, ("nothing", "failed", "unknown"), flags, flags, flags, flags, flags, flags
    ):
        yield Situation(effect, end, earlier, named, left, stop, closing, permitted, assume)  # type: ignore[arg-type]  # product widens the literals
