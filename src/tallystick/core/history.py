"""The history of a run: every event sealed into a chain that shows any change, gap or swap.

    hash(0) = SHA-256(GENESIS_TAG ‖ run id)
    hash(n) = SHA-256(hash(n-1) ‖ n as 8 bytes ‖ transition id as 8 bytes ‖ envelope)

Numbers are big-endian. The chain covers envelopes; an envelope covers its payload by a salted
digest, so that a payload can be deleted and the chain still verifies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from tallystick.core.identity import GENESIS_TAG
from tallystick.core.messages import AnyEvent, Payload, Recorded
from tallystick.errors import MaintenanceRequired

_encode = msgspec.json.Encoder(order="sorted").encode
_decode = msgspec.json.Decoder(AnyEvent).decode


class Sealed(msgspec.Struct, frozen=True, gc=False):
    """One event, ready to be written. envelope: canonical JSON · hash: 32 bytes."""

    sequence: int
    envelope: bytes
    hash: bytes
    payload: Payload | None = None


def genesis(run: str) -> bytes:
    """The hash before the first event of a run."""
    return hashlib.sha256(GENESIS_TAG + run.encode()).digest()


def link(previous: bytes, sequence: int, transition: int, envelope: bytes) -> bytes:
    """The hash of one event, given the one before it."""
    numbers = sequence.to_bytes(8, "big") + transition.to_bytes(8, "big")
    return hashlib.sha256(previous + numbers + envelope).digest()


def seal(
    events: Sequence[Recorded], *, head: bytes, sequence: int, transition: int
) -> tuple[Sealed, ...]:
    """Number and chain the events that follow number `sequence`, whose hash is `head`."""
    sealed = []
    for recorded in events:
        sequence += 1
        envelope = _encode(recorded.event)
        head = link(head, sequence, transition, envelope)
        sealed.append(Sealed(sequence, envelope, head, recorded.payload))
    return tuple(sealed)


def envelope_of(event: AnyEvent) -> bytes:
    """The canonical bytes of an event."""
    return _encode(event)


def open_envelope(envelope: bytes) -> AnyEvent:
    """Read an envelope that this or an older version wrote.

    Raises `MaintenanceRequired` for anything else; there is no fallback.
    """
    try:
        return _decode(envelope)
    except msgspec.MsgspecError as error:
        raise MaintenanceRequired(
            "a stored event cannot be read", code="envelope-unreadable", facts={"why": str(error)}
        ) from error


def payload_digest(salt: bytes, body: bytes) -> str:
    """Hex SHA-256 over salt ‖ body: what an envelope cites."""
    found = hashlib.sha256(salt)
    found.update(body)  # not salt + body: that is a copy of a body of up to 64 MiB
    return found.hexdigest()


def cited(event: AnyEvent) -> str | None:
    """The payload digest that an envelope cites, or None: it has no payload."""
    return getattr(event, "payload", None)


def verify(run: str, chain: Iterable[tuple[int, int, bytes, bytes]]) -> bytes:
    """Check (sequence, transition, envelope, hash) rows from the first on; return the head.

    Raises `MaintenanceRequired` naming the first event that is missing, out of order or changed.
    """
    head = genesis(run)
    for expected, (sequence, transition, envelope, stored) in enumerate(chain, start=1):
        if sequence != expected:
            raise _broken(run, expected, f"event {expected} is missing; {sequence} follows instead")
        head = link(head, sequence, transition, envelope)
        if head != stored:
            raise _broken(run, sequence, f"event {sequence} was changed or moved")
    return head


def _broken(run: str, sequence: int, what: str) -> MaintenanceRequired:
    return MaintenanceRequired(
        f"the history of {run} is broken: {what}",
        code="history-broken",
        check="hash-chain",
        facts={"run": run, "sequence": sequence},
        next_step="restore a backup, or keep the file for an investigation; do not write to it",
    )
