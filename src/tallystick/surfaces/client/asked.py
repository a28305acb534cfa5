"""What a caller asks with, looked at before anything is looked for.

No stored text has a lone surrogate and no stored number more than 64 bits: what has is refused
here, with a sentence, and not by whatever meets it first. (An argument of a command that is not
UTF-8 arrives as such text.)
"""

from __future__ import annotations

import os
import pwd
from typing import Final

from tallystick.core.values import ValueRefused, encode
from tallystick.errors import InvalidRequest

INTEGER_MAX: Final = 2**63 - 1


def text(what: str, given: str) -> str:
    """The text, if it can be stored. Raises `InvalidRequest`, without showing it."""
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the {what} is not text that UTF-8 can write, at character {error.start}",
            code="text-not-utf8",
            check=what,
        ) from error
    return given


def number(what: str, given: int, *, least: int = 0) -> int:
    """The number, if it is from `least` to 2**63 - 1. Raises `InvalidRequest`."""
    if least <= given <= INTEGER_MAX:
        return given
    raise InvalidRequest(
        f"the {what} is a number from {least} to {INTEGER_MAX}",
        code="number-out-of-range",
        check=what,
    )


def output_body(value: object) -> bytes:
    """The canonical JSON of an output. Raises `InvalidRequest`."""
    try:
        return encode(value)
    except ValueRefused as refused:
        raise InvalidRequest(
            f"the output is not JSON: {refused}", code="output-not-json"
        ) from refused


def actor_here() -> str:
    """The user of this process, as the kernel and the password file name them."""
    uid = os.getuid()
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
