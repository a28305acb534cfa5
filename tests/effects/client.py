"""How a test starts a receiver, tells it how to behave, and asks it for an effect."""

import http.client
import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.effects import log

ROOT = Path(__file__).parents[2]


class EffectServer:
    """A receiver process, for the length of a `with` block.

    log         its effect log · store: the database that it looks into at each effect
    deduplicate it recognises a key that it knows, answers the same and does nothing
    """

    def __init__(
        self, path: Path, *, store: Path | None = None, deduplicate: bool = False, port: int = 0
    ) -> None:
        self.log, self.port = path, port
        self._command = [sys.executable, "-m", "tests.effects.server", "--log", str(path)]
        self._command += ["--store", str(store)] if store else []
        self._command += ["--deduplicate"] if deduplicate else []

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        command = [*self._command, "--port", str(self.port)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def behave(self, *orders: str) -> None:
        """Say how the next requests are to be treated, one word each; see `server`."""
        _post(self.port, "/behave", orders, {}, timeout_s=10)

    def effects(self) -> list[dict[str, Any]]:
        """What happened so far, in order."""
        return log.read(self.log)


def ask(port: int, ctx: log.Context, body: object, *, timeout_s: float = 30) -> Any:
    """Ask for an effect under the context's key; the answer's JSON.

    Raises OSError or http.client.HTTPException where the answer did not come: the effect may have
    happened. `Refused` if the receiver said that it did nothing.
    """
    headers = {"Idempotency-Key": ctx.idempotency_key, "Dispatch": str(ctx.dispatch)}
    return _post(port, "/effect", body, headers, timeout_s=timeout_s)


class Refused(Exception):
    """The receiver did nothing, and says so."""


def _post(port: int, path: str, body: object, headers: dict[str, str], *, timeout_s: float) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
    finally:
        connection.close()
    if response.status != 200:
        raise Refused(answer)
    return answer
