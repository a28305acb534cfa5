"""The one place where the commands meet the client: its values become the documents of `port`."""

from __future__ import annotations

from tallystick.errors import NotReady
from tallystick.surfaces.cli.port import Opener


def opener() -> Opener:
    """How this process reaches a database."""
    raise NotReady("this build has no engine yet", check="engine", next_step="use a later version")
