"""The one write path: decide, commit, then act.

    letters ─▶ mailbox of a run ─▶ one transition ─┐
    letters ─▶ mailbox of a run ─▶ one transition ─┼─▶ one database transaction ─▶ answers ─▶ act
    letters ─▶ mailbox of a run ─▶ one transition ─┘

One batch is on its way at any time. While the store writes, letters wait in their mailboxes; when
the answer is there, everything that waits of all runs becomes the next batch. So a lone run pays
one fsync for a step, and a thousand share one.

A copy in memory is replaced only after its transition is on disk, and nothing outside happens
before. There are three ways to fail, and `outcomes` holds what each of them leads to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from tallystick.core.commands import Advance, Command, Report
from tallystick.core.history import genesis, seal
from tallystick.core.machine import Decision, admit, decide
from tallystick.core.messages import AttemptSettled
from tallystick.engine.clock import Clock, Entropy
from tallystick.engine.held import Flight, Held, Letter, answer
from tallystick.engine.turns import Turns
from tallystick.store.protocol import Transition, UserStatement

ROWS_MAX: Final = 1_000
"""A batch is closed once it holds this many rows; what waits goes into the next."""

_replace = msgspec.structs.replace


class Committer:
    """Folds letters into transitions, and transitions into batches.

    write   carries a batch to the disk and acts on the answers; see `outcomes`
    folded  is told of every run whose mailbox was emptied without anything to write
    broke   is told of a run whose commands could not be decided, with the exception
    load    is asked to read a run whose copy is not in memory, and to queue it again

    decided_at is the wall clock that the present batch was decided by; `quiet` is set while nothing
    waits and nothing is on its way.
    """

    def __init__(
        self,
        clock: Clock,
        entropy: Entropy,
        turns: Turns,
        *,
        folded: Callable[[Held], None],
        broke: Callable[[Held, Exception], None],
        load: Callable[[Held], None],
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self._turns = turns
        self._folded = folded
        self._broke = broke
        self._load = load
        self._line: deque[Held] = deque()
        self._wake = asyncio.Event()
        self.decided_at = 0
        self.quiet = asyncio.Event()
        self.quiet.set()

    def post(self, held: Held, letter: Letter) -> None:
        """Put a letter into a run's mailbox. Returns at once; nothing is decided yet."""
        held.mail.append(letter)
        self.queue(held)

    def queue(self, held: Held) -> None:
        """This run has something to decide, if only whether it can go on."""
        if held.queued or held.flight is not None or held.loading or held.broken is not None:
            return
        if held.run is None and held.birth is None:
            self._load(held)
            return
        held.queued = True
        self._line.append(held)
        if self.quiet.is_set():
            self.quiet.clear()
            self._clock.hold("store")
        self._wake.set()

    def waiting(self) -> bool:
        """Something is in line for the next batch."""
        return bool(self._line)

    def look(self) -> None:
        """Slots became free, or may be given out again: see whose turn it is."""
        if len(self._turns):
            self._wake.set()

    async def work(self, write: Callable[[list[Flight]], Awaitable[None]]) -> None:
        """Carry batch after batch to `write`, which returns when one is answered and acted on."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self.collect():
                await write(batch)
                # What was just started gets its turn: what ends at once is in the next batch.
                await asyncio.sleep(0)
            if not self._line and not self.quiet.is_set():
                self.quiet.set()
                self._clock.release("store")

    def collect(self) -> list[Flight]:
        """The next batch: of every run in line one transition, then of those whose turn it is."""
        now = self._clock.now()
        self.decided_at = now
        self._turns.count()
        batch: list[Flight] = []
        rows = 0
        while rows < ROWS_MAX:
            held = self._next()
            if held is None:
                break
            flight = self._fold(held, now)
            if flight is not None:
                batch.append(flight)
                rows += len(flight.transition.events) + len(flight.transition.facts)
        return batch

    def _next(self) -> Held | None:
        held: Held | None
        while self._line:
            held = self._line.popleft()
            held.queued = False
            if held.flight is None and not held.loading and held.broken is None:
                return held
        while (held := self._turns.next()) is not None:
            if held.run is not None:
                return held
            self._load(held)
        return None

    def _fold(self, held: Held, now: int) -> Flight | None:
        """Decide everything that waits for this run. None: nothing need be written."""
        letters = [] if held.birth is not None else held.take_letters()
        try:
            flight = self._decide(held, letters, now)
        except Exception as error:  # noqa: BLE001  one run's damage must not stop the others
            held.return_letters(letters)
            self._broke(held, error)
            return None
        self._turns.took(flight.decision.starts)
        if flight.transition.events:
            held.flight = flight
            return flight
        for letter, verdict in zip(letters, flight.decision.verdicts, strict=False):
            answer(letter.reply, verdict)
        self._folded(held)
        return None

    def _decide(self, held: Held, letters: list[Letter], now: int) -> Flight:
        seed, number = self._entropy.transition()
        if held.birth is not None:
            asked, plan = held.birth.admission, held.birth.plan
            slots = self._turns.offer(held, 0) if asked.authority is not None else None
            decision = admit(asked, plan, now=now, seed=seed, slots=slots)
            return Flight(
                held, letters, decision, self._transition(held, letters, decision, number)
            )
        assert held.run is not None, "a run that is not loaded cannot be decided"
        commands: list[Command] = []
        ending = 0
        for letter in letters:
            commands.append(letter.command)
            ending += type(letter.command) is Report
        slots = self._turns.offer(held, ending)
        if slots:
            commands.append(Advance(slots))
        decision = decide(held.run, commands, now=now, seed=seed)
        transition = self._transition(held, letters, decision, number)
        return Flight(held, letters, decision, transition, held.run.barrier)

    def _transition(
        self, held: Held, letters: list[Letter], decision: Decision, number: int
    ) -> Transition:
        born = decision.new_run is not None
        head = genesis(held.id) if held.run is None else held.run.head
        sequence = 0 if held.run is None else held.run.sequence
        sealed = seal(decision.events, head=head, sequence=sequence, transition=number)
        if sealed:
            head = sealed[-1].hash
        return Transition(
            held.id,
            number,
            None if born else held.stored,
            _replace(decision.header, head=head),
            sealed,
            decision.facts,
            decision.new_run,
            decision.authority,
            decision.release,
            _statements(letters, decision),
        )


def _statements(letters: list[Letter], decision: Decision) -> tuple[UserStatement, ...]:
    """The statements of the one settlement that brought some, if it became a success.

    A late, repeated or invalid success has no effect: what it handed back is refused with it.
    """
    for letter in letters:
        if not letter.statements:
            continue
        report = letter.command
        assert isinstance(report, Report), "only a report brings statements"
        for recorded in decision.events:
            event = recorded.event
            if (
                isinstance(event, AttemptSettled)
                and event.key == report.key
                and (event.attempt, event.dispatch) == (report.attempt, report.dispatch)
                and event.status == "succeeded"
            ):
                return letter.statements
    return ()
