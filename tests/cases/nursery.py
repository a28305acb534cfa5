"""A process that has everything imported and forks a life of an engine in milliseconds.

    python -m tests.cases.nursery

takes one JSON object a line: `{"life": …, "environment": …, "folder": …}` is answered with the pid
of a child that lives it (see `lives`), with its output in `FOLDER/out` and `FOLDER/err`;
`{"wait": PID}` is answered with how it ended. It ends with its standard input.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import tallystick.core.compiler
import tallystick.core.expressions
import tallystick.core.schemas
import tallystick.engine.opening
import tallystick.surfaces.client
import tallystick.surfaces.exits  # noqa: F401  all of them, so that no child has to
from tests.cases import lives, tasks  # noqa: F401  the same


def born(order: dict[str, Any]) -> int:
    """Fork a life. Returns its pid, and never in the child."""
    if pid := os.fork():
        return pid
    status = 70
    try:
        folder = Path(order["folder"])
        for number, name in ((1, "out"), (2, "err")):
            file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(file, number)
        os.close(0)
        os.environ.update(order["environment"])
        status = lives.main(order["life"])
    except BaseException:  # noqa: BLE001  whatever it is, it is not the nursery's
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Serve until standard input ends."""
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer = os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1])
        else:
            answer = born(order)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
