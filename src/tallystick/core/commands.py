"""What may be asked of a run. Every act of the outside ends in one of these.

`Report` is the most common: it says how one dispatch of one attempt ended, and who says it does not
matter: a function that returned, an executor that was asked, a rule that applies to a dead
engine's work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from tallystick.core.definition import Bindings, Definition, Json, Limits
from tallystick.core.identity import ActivationKey, Authority
from tallystick.core.messages import Decision, EffectSeen


class Succeeded(msgspec.Struct, frozen=True, gc=False):
    """The operation happened and this is its output, canonical JSON."""

    output: bytes


class Failed(msgspec.Struct, frozen=True, gc=False):
    """The operation is over and did not succeed: nothing of it happens any more.

    kind    a `FailureKind`, or `input_invalid`, `output_invalid`, `output_too_large`
    effect  `none` only with proof
    detail  JSON for people: message, exception type, members of a group
    """

    kind: str
    message: str
    effect: EffectSeen = "possible"
    detail: Json = None


class Cancelled(msgspec.Struct, frozen=True, gc=False):
    """The executor confirms that it stopped before it succeeded."""

    effect: EffectSeen = "possible"


class Refused(msgspec.Struct, frozen=True, gc=False):
    """The receiver certainly did not take it: this dispatch never began. Counts."""

    message: str
    kind: str = "unavailable"


class GivenUp(msgspec.Struct, frozen=True, gc=False):
    """Its owner never called it and never will: this dispatch never began. Free."""


class Precluded(msgspec.Struct, frozen=True, gc=False):
    """It never began and now never can, says the place recorded for it."""

    recovery: bool = True


class Interrupted(msgspec.Struct, frozen=True, gc=False):
    """Harmless work (`read_only`, `transactional`) that the engine's orderly stop ended.

    Uncounted.
    """


class Unknown(msgspec.Struct, frozen=True, gc=False):
    """It may have happened, and whoever reports cannot say. counted False: an orderly stop."""

    reason: str
    counted: bool = True


DispatchEnd: TypeAlias = (
    Succeeded | Failed | Cancelled | Refused | GivenUp | Precluded | Interrupted | Unknown
)


class Report(msgspec.Struct, frozen=True, gc=False):
    """How a dispatch ended."""

    key: ActivationKey
    attempt: int
    dispatch: int
    end: DispatchEnd


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """An executor outside the engine accepted. receipt: canonical JSON."""

    key: ActivationKey
    attempt: int
    dispatch: int
    receipt: bytes


class RequestTimeout(msgspec.Struct, frozen=True, gc=False):
    """A dispatch has run longer than its step's timeout."""

    key: ActivationKey
    attempt: int
    dispatch: int


class PassDeadline(msgspec.Struct, frozen=True, gc=False):
    """The run's deadline is reached. Refused before it."""


class Advance(msgspec.Struct, frozen=True, gc=False):
    """Prepare what is ready and dispatch again what is due, into free slots.

    slots  free slots by execution mode (`Binding.mode`); what is not named has none
    """

    slots: Mapping[str, int]


class Prepare(msgspec.Struct, frozen=True, gc=False):
    """Prepare one attempt. `Advance` asks for these itself; asked from outside it shows a repeat.

    intent  canonical bytes that the caller believes to be the intent; None: whatever it is
    slots   free slots of the executor's mode
    """

    authority: Authority
    key: ActivationKey
    attempt: int
    slots: int
    intent: bytes | None = None


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Take an unclaimed or released run. `authority.generation` is the former one + 1."""

    authority: Authority


class HandOff(msgspec.Struct, frozen=True, gc=False):
    """Take a run from a former owner, on evidence that the store checks again in the swap.

    evidence  `ended`, `fenced` or `attested` · seen: what proved it, for people
    """

    authority: Authority
    former: str
    evidence: str
    seen: str


class Release(msgspec.Struct, frozen=True, gc=False):
    """Give the run up in order. Only without open attempts, those in doubt excepted."""


class Resolve(msgspec.Struct, frozen=True, gc=False):
    """A person's decision about an attempt in doubt.

    output  canonical JSON; only and always with `succeeded`
    actor   who, from the kernel (user name and uid) · reason: what they say, may be ""
    """

    key: ActivationKey
    decision: Decision
    actor: str
    reason: str
    output: bytes | None = None


Command: TypeAlias = (
    Report
    | Accepted
    | RequestTimeout
    | PassDeadline
    | Advance
    | Prepare
    | Claim
    | HandOff
    | Release
    | Resolve
)


class Admission(msgspec.Struct, frozen=True, gc=False):
    """A request to start a run, checked and bound.

    run          id chosen for it · key: the caller's idempotency key, or None
    definition   with its digest (hex) · input: canonical JSON, valid by the definition's schema
    authority    who owns it from the start; None: unclaimed
    """

    run: str
    definition: Definition
    digest: str
    input: bytes
    bindings: Bindings
    limits: Limits
    key: str | None = None
    authority: Authority | None = None
