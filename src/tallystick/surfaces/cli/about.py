"""The version, said without waking anything else up."""

from __future__ import annotations

import sys


def print_version(*, json: bool) -> int:
    """Print the version of tallystick and of the interpreter, on one line or as JSON."""
    from importlib.metadata import version

    number = version("tallystick")
    python = ".".join(map(str, sys.version_info[:3]))
    if json:
        # The two hold digits, dots and letters only.
        text = f'{{\n  "version": "{number}",\n  "python": "{python}"\n}}'
    else:
        text = f"tallystick {number} (Python {python})"
    sys.stdout.write(text + "\n")
    return 0
