"""The names of things: runs, activations, attempts, dispatches and who may write them.

The dispatch identity is what the outside world sees as the idempotency key. It is a pure function
of where the attempt stands in the run, so that it is the same before and after any crash, and no
two attempts share one: every field is preceded by its length.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NamedTuple

import msgspec

SEMANTICS = 1
"""Which `decide` and `evolve` a run is started under. A change of meaning is a new number."""

GENESIS_TAG = b"tcj1:history\n"
IDENTITY_TAG = b"tcj1:dispatch\n"


class ActivationKey(NamedTuple):
    """One visit to one node: the node path and one index for each repeating scope around it."""

    node: str
    instance: tuple[int, ...] = ()

    def __str__(self) -> str:
        """As people write it: `build`, `fix[2].build`, `each[17].publish`."""
        parts = self.node.split(".")
        indices = dict(zip(range(len(self.instance)), self.instance, strict=True))
        return ".".join(
            f"{part}[{indices[depth]}]" if depth in indices else part
            for depth, part in enumerate(parts)
        )


def instance_text(instance: tuple[int, ...]) -> str:
    """The instance path as it is stored: `""` at the root, `2/17` below two repeating scopes."""
    return "/".join(map(str, instance)) if instance else ""


def parse_instance(text: str) -> tuple[int, ...]:
    """The inverse of `instance_text`."""
    return tuple(map(int, text.split("/"))) if text else ()


def dispatch_identity(run: str, key: ActivationKey, attempt: int) -> bytes:
    """The 32 bytes of SHA-256 over the length-prefixed (run, node path, instance path, number)."""
    framed = _frame(run) + _frame(key.node) + _frame(instance_text(key.instance))
    number = b"%d" % attempt
    return hashlib.sha256(IDENTITY_TAG + framed + len(number).to_bytes(4, "big") + number).digest()


@lru_cache(maxsize=4_096)
def _frame(text: str) -> bytes:
    """A field with its length before it, so that no two lists of fields look the same."""
    field = text.encode()
    return len(field).to_bytes(4, "big") + field


class Authority(msgspec.Struct, frozen=True, gc=False):
    """Who may write a run: compared in SQL, in the transaction of every write.

    generation  ≥ 1, raised by one with every handoff
    token       16 random bytes, new with every claim and handoff
    engine      instance id of the engine; recorded beside it, not compared
    """

    generation: int
    token: bytes
    engine: str
