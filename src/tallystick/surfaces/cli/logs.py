"""What the engine logs, beside everything else that is not the result: on standard error.

As a line for people, or with `--json` as one more notice, so that every line there is JSON.
"""

from __future__ import annotations

import logging
import sys
from typing import Final

from tallystick.surfaces.cli.screen import Screen
from tallystick.surfaces.render import safe_lines

LOGGER: Final = "tallystick"
SAID_ELSEWHERE: Final = "tallystick.client"
"""What it logs is for programs; here a notice says the same."""


def show_logs(screen: Screen) -> None:
    """Show warnings and errors of the engine on this screen, and on no other."""
    logger = logging.getLogger(LOGGER)
    for handler in [it for it in logger.handlers if isinstance(it, _OnScreen)]:
        logger.removeHandler(handler)
    logger.addHandler(_OnScreen(screen))
    logger.propagate = False


class _OnScreen(logging.Handler):
    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.WARNING)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == SAID_ELSEWHERE:
            return
        text = self.format(record)
        if self._screen.json:
            self._screen.notice("log", text, level=record.levelname, logger=record.name)
            return
        # While progress moves on a terminal, `sys.stderr` writes above it; the screen's does not.
        lines = [f"tally: {line}" for line in safe_lines(text)]
        self._screen.lines(sys.stderr, lines)
