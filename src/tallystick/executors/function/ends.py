"""What it means that a function ended like this. Source: design §4.1, columns 1 and 2.

    asked to stop by   ended with        async                    in a thread
    ----------------   --------------    ----------------------   ------------------------
    nothing            an exception      failed(error)            failed(error)
    timeout            an exception      failed(error)            failed(timeout)
    cancel             an exception      failed(error)            failed(error)
    grace, lost        an exception      failed(error)            failed(error)
    nothing            CancelledError    failed(error)  or u.     failed(error)
    timeout            CancelledError    failed(timeout) or u.    failed(timeout)
    cancel             CancelledError    cancelled      or u.     cancelled
    grace, lost        CancelledError    interrupted    or u.     interrupted or u.

"or u." is *unknown*, for everything but the harmless classes `read_only` and `transactional`. In
every row `OutcomeUnknown` is unknown, `NotAccepted` is refused, and a value is a success. A
cancelled coroutine is abandoned at an `await`, so what it had sent may still succeed. A thread
cannot be abandoned: it raises where its author chose to, and is over.

`SystemExit` is an error of the function; it never ends the engine. `KeyboardInterrupt` in a
coroutine is a signal to the process that happened to arrive there: the executor lets it pass (see
`executor`).

A group is an error whatever it holds, with all its members listed; with one exception: an
`OutcomeUnknown` anywhere inside makes the whole unknown. A group of `NotAccepted` alone is no
proof that nothing was accepted, because it does not list the siblings that succeeded.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import traceback
from collections.abc import Iterator
from typing import Final

import msgspec

from tallystick.core.commands import (
    Cancelled,
    DispatchEnd,
    Failed,
    GivenUp,
    Interrupted,
    Refused,
    Unknown,
)
from tallystick.core.definition import Effect, Json
from tallystick.errors import NotAccepted, OutcomeUnknown
from tallystick.executors.contract import StopReason

HARMLESS: Final = frozenset({"read_only", "transactional"})
CANCELLED: Final = (asyncio.CancelledError, concurrent.futures.CancelledError)
DETAIL_BYTES_MAX: Final = 64 * 1024
MESSAGE_CHARACTERS_MAX: Final = 4_096
NAME_CHARACTERS_MAX: Final = 300
FRAMES_MAX: Final = 20
MEMBERS_MAX: Final = 50
OWN_FILES: Final = __file__.rpartition("/")[0]


def ended_by(
    error: BaseException, *, effect: Effect, stop: StopReason | None, in_thread: bool
) -> DispatchEnd:
    """The end of a dispatch whose function raised. stop: why it had been asked to, or None."""
    if isinstance(error, NotAccepted):
        return Refused(message_of(error))
    if any(isinstance(member, OutcomeUnknown) for member in members(error)):
        return Unknown(message_of(error))
    if isinstance(error, CANCELLED):
        if not in_thread or stop in ("grace", "lost"):
            return abandoned(effect, stop)
        if stop == "cancel":
            return Cancelled()
    if in_thread and stop == "timeout":
        return failed("timeout", error)
    return failed("error", error)


def abandoned(effect: Effect, stop: StopReason | None) -> DispatchEnd:
    """The end of a coroutine that was left at an `await`."""
    if effect not in HARMLESS:
        why = f"it was stopped ({stop})" if stop else "it was cancelled from inside"
        return Unknown(
            f"{why}, and what it had begun may still succeed", counted=counted(effect, stop)
        )
    match stop:
        case "timeout":
            return Failed("timeout", "it did not end in time and was stopped")
        case "cancel":
            return Cancelled()
        case "grace" | "lost":
            return Interrupted()
        case None:
            return Failed("error", "it was cancelled from inside, and nobody had asked for it")


def never_called(stop: StopReason) -> DispatchEnd:
    """The end of a dispatch that was asked to stop before its function was called."""
    match stop:
        case "timeout":
            return Failed("timeout", "its time was over before it was called", effect="none")
        case "cancel":
            return Cancelled(effect="none")
        case "grace" | "lost":
            return GivenUp()


def still_running(effect: Effect, stop: StopReason, what: str) -> DispatchEnd:
    """The end of a function that outlives the engine's grace: nobody will hear of it any more."""
    return Unknown(f"{what} was still running when the engine stopped", counted(effect, stop))


def counted(effect: Effect, stop: StopReason | None) -> bool:
    """An orderly stop is nobody's fault, and uncounted where the step is dispatched again."""
    return not (stop in ("grace", "lost") and effect != "mutating")


def failed(kind: str, error: BaseException) -> Failed:
    """A failure of this kind that shows people the exception."""
    return Failed(kind, message_of(error), detail=detail_of(error))


# --------------------------------------------------------------------------------- what people read


def members(error: BaseException) -> Iterator[BaseException]:
    """The exception itself; of a group, everything inside it at any depth."""
    waiting = [error]
    while waiting:
        current = waiting.pop()
        if isinstance(current, BaseExceptionGroup):
            waiting.extend(reversed(current.exceptions))
        else:
            yield current


def message_of(error: BaseException) -> str:
    """`ValueError: no such order`, bounded, and safe to store and to show."""
    text = _text(error)
    return f"{_name(error)}: {text}" if text else _name(error)


def detail_of(error: BaseException) -> Json:
    """Type, message, where it was raised; the members of a group. Never a local variable."""
    detail = _describe(error, FRAMES_MAX)
    if isinstance(error, BaseExceptionGroup):
        inside = list(members(error))
        detail["members"] = [_describe(m, FRAMES_MAX // 4) for m in inside[:MEMBERS_MAX]]
        detail["members_total"] = len(inside)
    if (cause := error.__cause__) is not None:
        detail["cause"] = _describe(cause, FRAMES_MAX // 4)
    return _bounded(detail)


def _describe(error: BaseException, frames: int) -> dict[str, Json]:
    return {
        "type": _name(error),
        "message": _text(error),
        "traceback": list(_frames(error, frames)),
    }


def _frames(error: BaseException, count: int) -> Iterator[str]:
    summary = [
        frame
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(OWN_FILES)
    ]
    lines = {id(frame): line for frame, line in traceback.walk_tb(error.__traceback__)}
    for frame in summary[-count:]:
        code = frame.f_code
        yield _safe(
            f"{code.co_filename}:{lines[id(frame)]} in {code.co_qualname}", NAME_CHARACTERS_MAX
        )


def _bounded(detail: dict[str, Json]) -> Json:
    """Leave parts out, the least telling first, until the whole is small enough."""
    for part in ("", "cause", "members", "traceback"):
        detail.pop(part, None)
        if len(msgspec.json.encode(detail)) <= DETAIL_BYTES_MAX:
            break
    return detail


def _name(error: BaseException) -> str:
    kind = type(error)
    in_builtins = kind.__module__ in ("builtins", "__main__")
    name = kind.__qualname__ if in_builtins else f"{kind.__module__}.{kind.__qualname__}"
    return _safe(name, NAME_CHARACTERS_MAX)


def _text(error: BaseException) -> str:
    # Cut before anything is made of it: a text of 300 MB blocked the loop for seconds.
    try:
        return _safe(str(error))
    except Exception:  # noqa: BLE001  an exception of the user that cannot even be shown
        return "(its text cannot be shown)"


def _safe(text: str, limit: int = MESSAGE_CHARACTERS_MAX) -> str:
    """Without NUL and lone surrogates, which some stores and every UTF-8 writer refuse."""
    shown = text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
    return shown.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
