"""A run that this engine works on: its copy in memory, its mailbox, and what is under way for it.

    mail ──fold──▶ flight ──commit──▶ copy
      ▲                                │
      └──────── reports ◀── work ◀─────┘

At most one transition of a run is in flight. What arrives meanwhile waits in the mailbox, and
everything that waits is folded, in order, into the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import msgspec

from tallystick.core.commands import Admission, Command
from tallystick.core.graph import Plan
from tallystick.core.identity import Authority
from tallystick.core.machine import Decision
from tallystick.core.run import Run
from tallystick.errors import TallyError
from tallystick.store.protocol import Expected, KeyTaken, Transition, UserStatement

LETTERS_PER_FOLD: Final = 100
"""More than this wait for the next transition, so that a transition stays bounded."""


class Letter(msgspec.Struct):
    """A command on its way to a run.

    statements  what a transactional function handed back; they run if its success settles
    reply       is given the verdict once it is on disk: None, or the refusal
    """

    command: Command
    statements: tuple[UserStatement, ...] = ()
    reply: asyncio.Future[None] | None = None


class Birth(msgspec.Struct):
    """A run that is about to be admitted. reply: its id, whose key it is, or why not."""

    admission: Admission
    plan: Plan
    reply: asyncio.Future[str | KeyTaken]


class Flight(msgspec.Struct):
    """A transition on its way to the disk, with what it was made of.

    barred  the barrier stood before it
    """

    held: Held
    letters: list[Letter]
    decision: Decision
    transition: Transition
    barred: bool = False


class Held:
    """One run in the hands of this engine.

    run       the copy in memory: what is on disk. None: it is not loaded, or not yet born
    stored    the authority and sequence that the next transition expects to find
    mail      letters that wait · birth: the admission that comes before them
    flight    the transition on its way to the disk, or None
    queued    it stands in line for the next batch · hungry: it waits for a free slot
    broken    why nothing is done for it any more: its stored facts contradict each other
    """

    __slots__ = (
        "birth",
        "broken",
        "flight",
        "hungry",
        "id",
        "loading",
        "mail",
        "queued",
        "run",
        "stored",
        "workflow",
    )

    def __init__(self, run: str) -> None:
        self.id = run
        self.run: Run | None = None
        self.workflow = ""
        self.stored = Expected(0, None, 0)
        self.mail: deque[Letter] = deque()
        self.birth: Birth | None = None
        self.flight: Flight | None = None
        self.queued = False
        self.hungry = False
        self.loading = False
        self.broken: TallyError | None = None

    @property
    def at_rest(self) -> bool:
        """Nothing is under way and nothing waits: its copy could be read again at any time."""
        return self.flight is None and not self.mail and self.birth is None and not self.loading

    def take_letters(self) -> list[Letter]:
        """What the next transition folds.

        Only one letter with statements is among them, so that their refusal names its settlement.
        """
        taken: list[Letter] = []
        spoken_for = False
        while self.mail and len(taken) < LETTERS_PER_FOLD:
            if self.mail[0].statements:
                if spoken_for:
                    break
                spoken_for = True
            taken.append(self.mail.popleft())
        return taken

    def return_letters(self, letters: list[Letter]) -> None:
        """Put back what was taken, in front and in order."""
        self.mail.extendleft(reversed(letters))

    def replace(self, flight: Flight) -> None:
        """The transition is on disk: this is the copy now."""
        decision = flight.decision
        self.run = run = decision.run.settle()
        run.head = flight.transition.header.head
        authority: Authority | None = decision.authority
        if decision.release:
            self.stored = Expected(self.stored.generation, None, run.sequence)
        elif authority is not None:
            self.stored = Expected(authority.generation, authority.token, run.sequence)
        else:
            self.stored = Expected(self.stored.generation, self.stored.token, run.sequence)

    def refuse_all(self, error: TallyError) -> list[Letter]:
        """Tell everybody who waits for a verdict; return the letters nobody waits for."""
        kept = []
        for letter in self.mail:
            if letter.reply is None:
                kept.append(letter)
            else:
                answer(letter.reply, error)
        self.mail.clear()
        if self.birth is not None:
            fail(self.birth.reply, error)
            self.birth = None
        return kept


def answer(reply: asyncio.Future[None] | None, verdict: TallyError | None) -> None:
    """Tell the sender of a letter what became of it. One who went away is not told."""
    if reply is None or reply.done():
        return
    if verdict is None:
        reply.set_result(None)
    else:
        reply.set_exception(verdict)


def fail(reply: asyncio.Future[str | KeyTaken], error: TallyError) -> None:
    """Tell who asked for a run that it was not admitted."""
    if not reply.done():
        reply.set_exception(error)
