"""The command `tally`.

    main ▶ border ▶ words ▶ verbs ▶ port ◀ connect ▶ tallystick.surfaces.client
                              │
                              ▼
                documents ▶ pages, sayings ▶ screen

At the border every error becomes a refusal on stderr and an exit code there, and nowhere
else. `tally version` is answered before typer is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.surfaces.cli.words import app as app

__all__ = ["app", "main"]


def main(words: Sequence[str] | None = None) -> int:
    """Do what the words of a command line say, and return the exit code.

    words None: those of this process.
    """
    words = sys.argv[1:] if words is None else list(words)
    if words in (["version"], ["--version"]):
        from tallystick.surfaces.cli.about import print_version

        return print_version(json=False)
    from tallystick.surfaces.cli.border import carry_out

    return carry_out(words)


def __getattr__(name: str) -> object:
    if name == "app":
        from tallystick.surfaces.cli.words import app

        return app
    raise AttributeError(name)
