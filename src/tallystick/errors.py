"""Every exception a caller can catch. One class is one decision for the caller.

All of them carry the same facts as attributes, so that a person reads the sentence and a program
reads `as_json()`:

    code        stable, kebab-case; the thing to match on, never the text
    check       the name of the check that failed, or None
    facts       what was seen, as plain JSON values
    retryable   whether the same request may succeed later without anything being changed by hand
    next_step   one sentence: what to do now, or None

What was or was not written is part of each class's contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, TypeAlias

Fact: TypeAlias = "str | int | float | bool | list[Fact] | dict[str, Fact] | None"
Facts: TypeAlias = Mapping[str, Fact]


class TallyError(Exception):
    """The parent of everything Tallystick raises on purpose. Catch a subclass instead."""

    default_code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        check: str | None = None,
        facts: Facts | None = None,
        next_step: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.check = check
        self.facts: dict[str, Fact] = dict(facts or {})
        self.next_step = next_step

    def as_json(self) -> dict[str, Fact]:
        """The refusal as plain JSON values; human output is rendered from this."""
        return {
            "error": type(self).__name__,
            "code": self.code,
            "message": self.message,
            "check": self.check,
            "facts": self.facts,
            "retryable": self.retryable,
            "next_step": self.next_step,
        }


class InvalidRequest(TallyError):
    """The request itself is wrong: fix it and send it again. Nothing was written."""

    default_code = "invalid-request"


class NotFound(TallyError):
    """What the request names does not exist in this store. Nothing was written."""

    default_code = "not-found"


class Conflict(TallyError):
    """An immutable fact with other content is already recorded. Nothing was written."""

    default_code = "conflict"


class AuthorityLost(TallyError):
    """Somebody else owns the run now: stop, discard what you hold of it. Nothing was written."""

    default_code = "authority-lost"


class OwnerElsewhere(TallyError):
    """Another process holds the engine lock or the run; `facts` name it. Nothing was written.

    Wait for it to end, ask it, or go through it.
    """

    default_code = "owner-elsewhere"
    retryable = True


class CapacityUnavailable(TallyError):
    """A limit, a slot or a claim is taken. Nothing was written.

    `which` names it; `transient` is True where it frees itself as work ends.
    """

    default_code = "capacity-unavailable"

    def __init__(self, message: str, *, which: str, transient: bool, **rest: object) -> None:
        super().__init__(message, **rest)  # type: ignore[arg-type]  # the keywords of TallyError
        self.which = which
        self.transient = transient
        self.facts.update({"which": which, "transient": transient})


class NotReady(TallyError):
    """The state does not allow this yet (or any more); `facts` say which state.

    Nothing was written.
    """

    default_code = "not-ready"
    retryable = True


class MaintenanceRequired(TallyError):
    """Stored data contradict themselves or their guards are gone: stop, do not reinterpret.

    Nothing was written, and nothing should be until a person has looked.
    """

    default_code = "maintenance-required"


class UnsupportedSchema(TallyError):
    """The store was written by an unknown or newer version. Not a byte of it was changed."""

    default_code = "unsupported-schema"


class StoreUnavailable(TallyError):
    """The store did not answer, is full or failed. The outcome of a write is unknown.

    The same command again is safe: it is recognised if it was written after all.
    """

    default_code = "store-unavailable"
    retryable = True


class ForkedClient(TallyError):
    """A client was used in a forked child. Open a new one there. Nothing was written."""

    default_code = "forked-client"


class RunFailed(TallyError):
    """`result()` of a run that ended `failed` or `cancelled`. The record is in the store.

    `facts` hold the run's id, status and recorded failure.
    """

    default_code = "run-failed"


class RunInDoubt(TallyError):
    """`result()` of a run that waits for a person: an operation may or may not have happened.

    Nothing more happens to that operation until somebody resolves it.
    """

    default_code = "run-in-doubt"


class OutcomeUnknown(Exception):
    """Raised inside a task: the operation may have happened, and nobody here can say.

    The dispatch ends *unknown*, and the step's effect class decides what follows.
    """


class NotAccepted(Exception):
    """Raised inside a task: the receiver certainly did not take the operation (`unavailable`).

    The dispatch never began. It counts against `max_attempts` and waits its back-off.
    """
