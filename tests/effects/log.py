"""The effect log: one line for each thing that happened, on disk before its cause goes on.

A task of a crash test calls `record_effect` where a real one would call the outside world. The line
is written in one piece and fsynced, so that a process killed one instruction later has caused it.
"""

import json
import os
from pathlib import Path
from typing import Any, Protocol

PATH = "TALLY_EFFECT_LOG"
"""Environment variable that names the log for tasks in a process of their own."""


class Context(Protocol):
    """What is read of a `TaskContext`."""

    run_id: str
    step: str
    attempt: int
    dispatch: int
    idempotency_key: str


def record_effect(path: str | os.PathLike[str], ctx: Context, **body: Any) -> None:
    """Append what a call did. body: anything JSON, for whoever judges or resolves."""
    place = {} if "[" in ctx.step else {"node": ctx.step, "instance": ""}
    append(
        path,
        {
            "identity": ctx.idempotency_key,
            "dispatch": ctx.dispatch,
            "run": ctx.run_id,
            "attempt": ctx.attempt,
            "step": ctx.step,
            **place,
            "body": body,
        },
    )


def append(path: str | os.PathLike[str], line: dict[str, Any]) -> None:
    """Append one line and fsync it."""
    data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        written = os.write(handle, data)
        assert written == len(data), "a line is written in one piece"
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the whole log; none: nothing happened. A line that was never finished is left out."""
    if not Path(path).exists():
        return []
    lines = Path(path).read_text("utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
