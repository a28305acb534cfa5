r"""The formulas that the ledger is checked with, written down a second time.

    genesis        SHA-256("tcj1:history\n" ‖ run id)
    link           SHA-256(previous ‖ sequence as 8 bytes ‖ transition as 8 bytes ‖ envelope)
    identity       SHA-256("tcj1:dispatch\n" ‖ for run, node, instance, attempt: length ‖ text)
    payload        SHA-256(salt ‖ body)
    content        SHA-256("tcj1:KIND\n" ‖ canonical bytes): definition, bindings, terms, intent

Numbers are big-endian; lengths have 4 bytes.
"""

import hashlib

GENESIS = b"tcj1:history\n"
DISPATCH = b"tcj1:dispatch\n"


def genesis(run: str) -> bytes:
    """The hash before a run's first event."""
    return hashlib.sha256(GENESIS + run.encode()).digest()


def link(previous: bytes, sequence: int, transition: int, envelope: bytes) -> bytes:
    """The hash of one event."""
    numbers = sequence.to_bytes(8, "big") + (transition % 2**64).to_bytes(8, "big")
    return hashlib.sha256(previous + numbers + envelope).digest()


def identity(run: str, node: str, instance: str, attempt: int) -> bytes:
    """The dispatch identity of an attempt: what the outside sees as the idempotency key."""
    fields = (text.encode() for text in (run, node, instance, str(attempt)))
    return hashlib.sha256(
        DISPATCH + b"".join(len(text).to_bytes(4, "big") + text for text in fields)
    ).digest()


def payload(salt: bytes, body: bytes) -> str:
    """What an envelope cites, hex."""
    return hashlib.sha256(salt + body).hexdigest()


def content(kind: str, body: bytes) -> bytes:
    """The address of immutable content."""
    return hashlib.sha256(f"tcj1:{kind}\n".encode() + body).digest()
