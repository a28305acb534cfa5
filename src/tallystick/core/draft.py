"""One transition under construction: the next state, and what will be written for it.

A `Draft` is handed through the rules; each says what it decided with `emit`, which applies the
event to the draft at once, so that the next rule sees it. Nothing outside the draft changes.
"""

from __future__ import annotations

import hashlib

import msgspec

from tallystick.core.evolution import evolve
from tallystick.core.facts import AnyFact, CountActivation, RunHeader
from tallystick.core.history import payload_digest
from tallystick.core.identity import ActivationKey, Authority, instance_text
from tallystick.core.messages import AnyEvent, Intent, Payload, Recorded, Terms
from tallystick.core.run import Activation, Run
from tallystick.core.status import status

DRAWN = 16


class Start(msgspec.Struct, frozen=True, gc=False):
    """A dispatch that its owner must hand over as soon as the commit is answered."""

    key: ActivationKey
    attempt: int
    dispatch: int
    identity: str
    intent: Intent
    terms: Terms
    input: bytes


class Stop(msgspec.Struct, frozen=True, gc=False):
    """A dispatch that must be asked to stop once the request is on disk. reason.

    Timeout, cancel.
    """

    key: ActivationKey
    attempt: int
    dispatch: int
    reason: str


class Draft:
    """See the module's text.

    now   the run's time for this transition: never before its last event
    seed  at least 32 random bytes; salts and jitter are cut from it in order. The last 16 are never
          handed out: what follows is derived from them, so that no salt can be computed from others
    """

    __slots__ = (
        "_drawn",
        "authority",
        "events",
        "facts",
        "now",
        "release",
        "run",
        "seed",
        "starts",
        "stops",
    )

    def __init__(self, run: Run, now: int, seed: bytes) -> None:
        self.run = run
        self.now = max(now, run.last_at)
        self.seed = seed
        self._drawn = 0
        self.events: list[Recorded] = []
        self.facts: list[AnyFact] = []
        self.starts: list[Start] = []
        self.stops: list[Stop] = []
        self.authority: Authority | None = None
        self.release = False

    def draw(self) -> bytes:
        """The next 16 bytes of this transition's randomness."""
        at = self._drawn
        self._drawn = at + DRAWN
        if self._drawn <= len(self.seed) - DRAWN:
            return self.seed[at : self._drawn]
        return hashlib.sha256(self.seed + at.to_bytes(8, "big")).digest()[:DRAWN]

    def payload(self, body: bytes) -> Payload:
        """Canonical JSON, made citable under a fresh salt."""
        salt = self.draw()
        return Payload(salt, body, payload_digest(salt, body))

    def emit(self, event: AnyEvent, payload: Payload | None = None, *facts: AnyFact) -> None:
        """Record an event, apply it, and write what it changes."""
        evolve(self.run, event, payload)
        self.events.append(Recorded(event, payload))
        self.facts.extend(facts)

    @property
    def next_sequence(self) -> int:
        """The number that the next event will have."""
        return self.run.sequence + 1

    def count(self, key: ActivationKey) -> None:
        """Write the counts and the retry time of a live activation as they are now."""
        activation = self.run.live[key]
        due = self.run.due.get(key) if activation.attempt is None else None
        self.facts.append(
            CountActivation(
                activation.failures,
                activation.interruptions,
                activation.permissions,
                due,
                key.node,
                instance_text(key.instance),
            )
        )

    def header(self, head: bytes = b"") -> RunHeader:
        """The run's own row after this transition; the hash is set when the events are sealed."""
        run = self.run
        now = status(run)
        return RunHeader(
            run.sequence,
            head,
            run.last_at,
            now.status,
            now.reason,
            run.due_at(),
            run.consumed,
            run.active,
            run.open_attempts,
            len(run.ready),
            run.barrier,
            run.stopping,
            run.last_at if run.ended else None,
        )


def names_of(activation: Activation) -> tuple[str, str]:
    """Node path and instance path as events and rows write them."""
    return activation.key.node, instance_text(activation.key.instance)
