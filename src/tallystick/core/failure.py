"""What is written about what did not succeed: a small JSON object, for people and programs.

kind     stable word: a retryable `FailureKind`, or input_invalid, output_invalid,
         output_too_large, expression, exhausted, assumed, deadline, fail, output
message  one sentence · step: where, or absent for the run itself
detail   whatever the executor added: exception type, traceback, members of a group
"""

from __future__ import annotations

from tallystick.core.definition import Json
from tallystick.core.values import ValueRefused, encode

MESSAGE_MAX = 64 * 1024


def storable(text: str) -> str:
    """The text as it can be written as UTF-8: cut, and with lone surrogates escaped."""
    return text[:MESSAGE_MAX].encode("utf-8", "backslashreplace").decode("utf-8")


def failure_body(kind: str, message: str, *, step: str | None = None, detail: Json = None) -> bytes:
    """The canonical JSON of a failure. Any text is taken.

    What JSON cannot hold is escaped or left out.
    """
    body: dict[str, Json] = {"kind": kind, "message": storable(message)}
    if step is not None:
        body["step"] = step
    if detail is not None:
        try:
            encode(detail)
            body["detail"] = detail
        except ValueRefused:
            body["detail"] = "left out: not representable as JSON"
    return encode(body)
