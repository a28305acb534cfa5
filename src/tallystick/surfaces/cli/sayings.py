"""One line for each kind of event, for people who watch or read a history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tallystick.surfaces.cli.screen import Style
from tallystick.surfaces.render import instant, preview, safe

Saying = Callable[[Mapping[str, object]], str]
PAYLOAD_MAX: Final = 160


def event_line(event: Mapping[str, object], style: Style, *, run: bool = False) -> str:
    """The event on one line: when, where, what. run: name the run too."""
    where = [safe(event[name]) for name in ("run",) if run]
    if event.get("step"):
        where.append(safe(event["step"]))
    when = style.paint("faint", instant(event.get("at")))
    colour = event.get("status") or _COLOURS.get(str(event.get("kind")))
    return " ".join([when, *where, style.paint(colour, said(event))])


def history_line(event: Mapping[str, object], style: Style) -> str:
    """An event of a history: its number in front, what it cites behind."""
    line = f"{safe(event.get('sequence')).rjust(5)}  {event_line(event, style)}"
    if event.get("payload") is None:
        return line
    return f"{line}  {style.paint('faint', preview(event['payload'], PAYLOAD_MAX))}"


def said(event: Mapping[str, object]) -> str:
    """What happened, in a few words. A kind that is not known is shown by its name."""
    kind = safe(event.get("kind"))
    saying = SAYINGS.get(kind)
    return kind if saying is None else saying(event)


def _field(event: Mapping[str, object], name: str, default: object = "?") -> str:
    return safe(event.get(name, default))


def _why(event: Mapping[str, object]) -> str:
    return f" ({safe(event['failure'])})" if event.get("failure") else ""


def _next(event: Mapping[str, object], name: str, what: str) -> str:
    return "" if event.get(name) is None else f", {what} at {instant(event[name])}"


def _settled(event: Mapping[str, object]) -> str:
    late = ", late" if event.get("late") else ""
    again = _next(event, "retry_at", "next attempt")
    return f"{_field(event, 'status')}{_why(event)}{late}{again}"


def _abandoned(event: Mapping[str, object]) -> str:
    again = _next(event, "retry_at", "next attempt")
    return f"attempt {_field(event, 'attempt')} never began ({_field(event, 'end')}){again}"


def _dispatch_ended(event: Mapping[str, object]) -> str:
    again = _next(event, "due", "next dispatch")
    return f"dispatch {_field(event, 'dispatch')} ended {_field(event, 'end')}{_why(event)}{again}"


def _handed_off(event: Mapping[str, object]) -> str:
    return (
        f"taken over from {_field(event, 'former')}: "
        f"{_field(event, 'evidence')} ({_field(event, 'seen')})"
    )


SAYINGS: Final[Mapping[str, Saying]] = {
    "RunAdmitted": lambda _: "admitted",
    "RunClaimed": lambda e: f"owned by {_field(e, 'engine')}, generation {_field(e, 'generation')}",
    "RunHandedOff": _handed_off,
    "RunReleased": lambda _: "released by its owner",
    "BarrierDropped": lambda _: "recovered: every open attempt is decided",
    "ActivationReady": lambda _: "ready",
    "ActivationEnded": lambda e: f"{_field(e, 'status')}{_why(e)}",
    "AttemptPrepared": lambda e: f"attempt {_field(e, 'attempt')} begins",
    "ReceiptAttached": lambda _: "accepted",
    "AttemptRedispatched": lambda e: f"handed over again, dispatch {_field(e, 'dispatch')}",
    "DispatchEnded": _dispatch_ended,
    "TimeoutRequested": lambda _: "took too long, asked to stop",
    "AttemptSettled": _settled,
    "AttemptAbandoned": _abandoned,
    "AttemptDoubted": lambda e: f"in doubt: {_field(e, 'reason')}",
    "DoubtResolved": lambda e: f"{_field(e, 'actor')} decided: {_field(e, 'decision')}",
    "LateFactKept": lambda e: f"a late report is kept: {_field(e, 'status')}",
    "RunStopping": lambda e: f"starts nothing more ({_field(e, 'cause')})",
    "RunEnded": lambda e: f"{_field(e, 'status')}{_why(e)}",
}
"""The words for each kind of event; `tests/surfaces` checks that none is missing."""

_COLOURS: Final = {"AttemptDoubted": "in_doubt", "TimeoutRequested": "waiting"}
