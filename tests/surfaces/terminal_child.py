"""A process at a terminal: the command line over a fake client that a test scripted in JSON.

    python -m tests.surfaces.terminal_child SCENARIO WORD...

It takes the terminal on its standard input as its own, so that Ctrl-C reaches it.
"""

import fcntl
import json
import sys
import termios
import threading

from tallystick.errors import InvalidRequest
from tallystick.surfaces import cli
from tallystick.surfaces.cli import connect, stopping
from tests.surfaces.fake_client import FakeOpener, FakeTally


class Scripted(FakeTally):
    """Writes what it was asked to the file `log`; refuses outputs named by `refuse`."""

    def __init__(self, *, log, refuse=None, stuck=False, **rest):
        super().__init__(**rest)
        self._log, self._refuse, self._stuck = log, refuse, stuck

    def _note(self, *what):
        with open(self._log, "a") as log:
            log.write(json.dumps(what) + "\n")

    async def resolve(self, run, step, outcome, *, output, reason):
        if self._refuse is not None and output == self._refuse.encode():
            raise InvalidRequest("the output is refused: /total is not an integer")
        self._note(step, outcome, output and output.decode())
        return await super().resolve(run, step, outcome, output=output, reason=reason)

    async def stop(self, grace_ms):
        self._note("stop", grace_ms)
        if self._stuck:
            threading.Event().wait()  # a loop that nothing gets through to


if __name__ == "__main__":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    scenario = json.loads(sys.argv[1])
    stopping.GRACE_MS = scenario.pop("grace_ms", stopping.GRACE_MS)
    connect.opener = lambda: FakeOpener(Scripted(**scenario))
    sys.exit(cli.main(sys.argv[2:]))
