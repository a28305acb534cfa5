"""What an executor promises. The engine relies on these sentences and on nothing else.

    accept    take (identity, dispatch). A second call with the same pair returns the first receipt.
              It returns at acceptance; the completion arrives as a report.
    observe   read-only: what is known of it, at the place recorded for it.
    preclude  True: it never began and now never can. Acceptance and preclusion can never both
              exist.
    cancel    a request, not a fact. The end arrives as a report, or not at all.

An executor *inside* the engine (`in_engine`) is accepted by the commit of the intent itself: its
`accept` starts the work and returns at once, without waiting for anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol, TypeAlias

import msgspec

from tallystick.core.commands import DispatchEnd
from tallystick.core.identity import ActivationKey
from tallystick.core.messages import Terms

StopReason: TypeAlias = Literal["timeout", "cancel", "grace", "lost"]
"""Why a dispatch is asked to stop: its timeout, a cancel request or deadline, the end of the
engine's grace, or the loss of the run's authority."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """One dispatch, as it is handed over. Everything comes from the stored intent.

    identity  64 hex digits: the idempotency key that the outside sees
    input     canonical JSON of the step's `with:`, always an object
    timeout_ms  None: none
    """

    run: str
    key: ActivationKey
    attempt: int
    dispatch: int
    identity: str
    terms: Terms
    input: bytes
    workflow: str = ""


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The statement "I accepted this (identity, dispatch) at this time".

    accepted_at  the executor's own instant, ms · handle: what it needs to observe or cancel later
    """

    identity: str
    dispatch: int
    accepted_at: int
    kind: str
    handle: str = ""


class NotAcceptedYet(msgspec.Struct, frozen=True, gc=False):
    """Observation: nothing here shows an acceptance. By itself no proof that there is none."""


class Running(msgspec.Struct, frozen=True, gc=False):
    """Observation: accepted, not over, and it will report to whoever asked."""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """Observation: it is over, and this is how. Never `GivenUp`, `Interrupted`."""

    end: DispatchEnd


class UnknownFate(msgspec.Struct, frozen=True, gc=False):
    """Observation: nobody here can say any more."""

    reason: str


class Unreachable(msgspec.Struct, frozen=True, gc=False):
    """Observation: the place could not be asked now. Decides nothing."""

    reason: str


Observation: TypeAlias = NotAcceptedYet | Running | Ended | UnknownFate | Unreachable


class Statement(msgspec.Struct, frozen=True, gc=False):
    """What a transactional function hands back with `ctx.write`.

    expect_rows  number of rows it must change; None: any
    """

    sql: str
    params: tuple[object, ...] = ()
    expect_rows: int | None = None


ReportTo: TypeAlias = Callable[[Call, DispatchEnd, tuple[Statement, ...]], None]
"""How an in-engine executor reports an end.

Called on the engine's loop, exactly once for a dispatch.
"""


class Executor(Protocol):
    """See the module's text; every sentence there is tested by `testing/contracts`."""

    name: str
    contract: str
    in_engine: bool

    def free(self, mode: str) -> int:
        """How many more dispatches of this mode can start now."""
        ...

    def accept(self, call: Call) -> Receipt | Awaitable[Receipt]:
        """Take the dispatch. Raises `NotAccepted` only if it certainly was not taken."""
        ...

    async def observe(self, call: Call, place: str, receipt: Receipt | None) -> Observation:
        """What is known of this dispatch. Changes nothing."""
        ...

    async def preclude(self, call: Call, place: str) -> bool:
        """Make it impossible for this dispatch to begin. False.

        It began, or that cannot be done.
        """
        ...

    def cancel(self, call: Call, reason: StopReason) -> None:
        """Ask it to stop. A dispatch that is not running here is ignored."""
        ...
