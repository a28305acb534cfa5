"""What a watched run is doing: a moving picture on a terminal, one line for each event elsewhere.

On a terminal only what is open is drawn, and counts for the rest, so that a run of ten thousand
steps fits on a screen. Rich is imported by the picture alone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from tallystick.surfaces.cli.sayings import event_line, said
from tallystick.surfaces.cli.screen import Screen
from tallystick.surfaces.render import safe

if TYPE_CHECKING:
    from rich.live import Live

    from tallystick.surfaces.cli.port import EventDocument

_CLOSED: Final = frozenset({"succeeded", "failed", "cancelled", "skipped", "given_up"})
_HEIGHT_MAX: Final = 12
_QUIET: Final = frozenset({"ActivationReady", "ReceiptAttached", "RunReleased", "RunClaimed"})


class Progress(Protocol):
    """Shows events of one run as they come."""

    def show(self, event: EventDocument) -> None:
        """An event was committed."""
        ...

    def pause(self) -> None:
        """Something else wants the terminal. A second call is a no-op."""
        ...

    def resume(self) -> None:
        """The terminal is free again."""
        ...


class PlainProgress:
    """One line for each event, on stderr."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def show(self, event: EventDocument) -> None:
        if self._screen.json or event.get("kind") not in _QUIET:
            self._screen.event(event, event_line(event, self._screen.notice_style))

    def pause(self) -> None:
        return

    def resume(self) -> None:
        return


class LiveProgress:
    """Counts, and a line for each open step, redrawn in place."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._open: dict[str, str] = {}
        self._ended: dict[str, str] = {}
        self._live: Live | None = None

    def show(self, event: EventDocument) -> None:
        self._note(event)
        if self._live is not None:
            self._live.update("\n".join(self.picture()))

    def pause(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def resume(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(
            file=self._screen.err, markup=False, highlight=False, emoji=False, soft_wrap=False
        )
        self._live = Live(
            "\n".join(self.picture()), console=console, transient=True, refresh_per_second=8
        )
        self._live.start()

    def picture(self) -> list[str]:
        """The lines that are drawn now."""
        counts = Counter(self._ended.values())
        parts = [f"{count} {name}" for name, count in sorted(counts.items())]
        lines = [", ".join([*parts, f"{len(self._open)} open"])]
        shown = list(self._open.items())[:_HEIGHT_MAX]
        lines += [f"  {safe(step)}  {what}" for step, what in shown]
        if len(shown) < len(self._open):
            lines.append(f"  … and {len(self._open) - len(shown)} more")
        return lines

    def _note(self, event: EventDocument) -> None:
        step = event.get("step")
        if not isinstance(step, str) or not step or event.get("kind") == "LateFactKept":
            return
        status = event.get("status")
        if isinstance(status, str) and status in _CLOSED and event.get("retry_at") is None:
            self._open.pop(step, None)
            self._ended[step] = status
        else:
            self._ended.pop(step, None)
            self._open[step] = said(event)
