"""Decide what happens to a run, and nothing else: the pure state machine in the middle.

`decide` answers with events and facts, or with a refusal for each command that the rules forbid, and
changes nothing. The caller commits the answer and replaces its copy of the run only after the fsync.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.commands import Admission, Command
from tallystick.core.facts import AnyFact, NewRun, RunHeader
from tallystick.core.identity import ActivationKey, Authority
from tallystick.core.messages import Intent, Recorded, Terms
from tallystick.errors import TallyError

if TYPE_CHECKING:
    from tallystick.core.graph import Plan
    from tallystick.core.run import Run


class Start(msgspec.Struct, frozen=True):
    """A dispatch that its owner must hand over as soon as the commit is answered."""

    key: ActivationKey
    attempt: int
    dispatch: int
    identity: str
    intent: Intent
    terms: Terms
    input: bytes


class Stop(msgspec.Struct, frozen=True):
    """A dispatch that must be asked to stop once the request is on disk. reason: timeout, cancel."""

    key: ActivationKey
    attempt: int
    dispatch: int
    reason: str


class Decision(msgspec.Struct, frozen=True):
    """What one transition does. No events: nothing changes and nothing need be written.

    run       the next copy; becomes the copy in memory only after the fsync
    verdicts  one for each command: None it was done (or was done before), else its refusal
    """

    run: Run
    events: tuple[Recorded, ...]
    facts: tuple[AnyFact, ...]
    header: RunHeader
    verdicts: tuple[TallyError | None, ...] = ()
    starts: tuple[Start, ...] = ()
    stops: tuple[Stop, ...] = ()
    new_run: NewRun | None = None
    authority: Authority | None = None
    release: bool = False


def admit(admission: Admission, plan: Plan, *, now: int, seed: bytes) -> Decision:
    """The first transition of a run. `seed`: 32 random bytes, from which salts are derived."""
    raise NotImplementedError


def decide(run: Run, commands: Sequence[Command], *, now: int, seed: bytes) -> Decision:
    """Fold the commands, in order, into one transition. `run` itself is never changed.

    A command that is refused changes nothing; those after it are decided all the same.
    """
    raise NotImplementedError
