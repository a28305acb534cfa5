"""What follows from the answer to a batch: the three ways to fail, and the one to succeed.

on disk            the copy is replaced, the verdicts are told, and what was prepared is handed over
another owner      the run is dropped; what only this process can be doing for it is stopped
a guard refused    the run decides again, knowing it: a key that is taken, a statement that failed
outcome unknown    every run of the batch is read again before anything is handed over. Whoever
                   finds its own transition there goes on as if it had been answered
no space           nothing was written: what was reported is kept, nothing new starts, and the
                   batch is tried again until there is space
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol, assert_never

from tallystick.core.commands import Failed, Report
from tallystick.engine.held import Flight, Held, Letter, answer, fail
from tallystick.engine.scene import Scene
from tallystick.errors import (
    AuthorityLost,
    CapacityUnavailable,
    Facts,
    MaintenanceRequired,
    NotFound,
    StoreUnavailable,
    TallyError,
)
from tallystick.store.protocol import (
    Answer,
    AuthorityMoved,
    Committed,
    EpochMoved,
    Expected,
    KeyTaken,
    RowRefused,
    StatementRefused,
)

BACKOFF_MIN_MS: Final = 100
BACKOFF_MAX_MS: Final = 5_000

_log: Final = logging.getLogger("tallystick.engine")


class EngineFailed(Exception):
    """The engine must stop: `cause` says why. Nothing is written any more."""

    def __init__(self, cause: TallyError) -> None:
        super().__init__(cause.message)
        self.cause = cause


class Acting(Protocol):
    """Whoever owns the runs, and acts once something is known of them."""

    def landed(self, held: Held, flight: Flight) -> None:
        """The transition is on disk and the copy was replaced."""
        ...

    def lost(self, held: Held, error: AuthorityLost) -> None:
        """Another engine owns this run."""
        ...

    def stale(self, held: Held) -> None:
        """It is still ours, and our copy is not what is on disk: read it again."""
        ...

    def broke(self, held: Held, error: Exception) -> None:
        """What is stored of this run contradicts itself."""
        ...

    def again(self, held: Held) -> None:
        """It has something to decide."""
        ...

    def troubled(self, trouble: TallyError | None) -> None:
        """The store cannot be written now; None: it can again."""
        ...


class Outcomes:
    """Carries batches to the store and follows what comes of them.

    fatal    says of a `StoreUnavailable` whether the engine must stop for it
    waiting  says whether something is in line for the next batch
    """

    def __init__(
        self,
        scene: Scene,
        acting: Acting,
        *,
        fatal: Callable[[StoreUnavailable], bool],
        waiting: Callable[[], bool],
    ) -> None:
        self._store = scene.store
        self._epoch = scene.epoch
        self._clock = scene.clock
        self._fault = scene.fault
        self._acting = acting
        self._fatal = fatal
        self._waiting = waiting
        self._backoff_ms = BACKOFF_MIN_MS
        self._in_trouble = False

    async def write(self, batch: list[Flight]) -> None:
        """Commit a batch and act on what comes of it. Returns when that is known.

        Raises `EngineFailed` if the engine must stop.
        """
        self._fault("batch.before")
        try:
            answers = await self._store.commit([f.transition for f in batch], epoch=self._epoch)
        except CapacityUnavailable as full:
            self._nothing_written(batch, full)
            await self._recover(full)
        except StoreUnavailable as unknown:
            if self._fatal(unknown):
                raise EngineFailed(unknown) from unknown
            await self._read_again(batch, unknown)
        else:
            self._fault("batch.after")
            self._answered(batch, answers)

    def _answered(self, batch: list[Flight], answers: list[Answer]) -> None:
        self._leave_trouble()
        for flight, told in zip(batch, answers, strict=True):
            flight.held.flight = None
            if type(told) is Committed:  # nearly always
                self._land(flight)
                continue
            match told:
                case Committed():
                    self._land(flight)
                case AuthorityMoved(seen):
                    self._moved(flight, seen)
                case KeyTaken():
                    self._key_taken(flight, told)
                case StatementRefused():
                    self._refused(flight, told)
                case RowRefused(message):
                    self._contradicts(flight, message)
                case EpochMoved(epoch):
                    raise EngineFailed(_epoch_moved(self._epoch, epoch))
                case _:
                    assert_never(told)
        self._fault("batch.landed")

    def _land(self, flight: Flight) -> None:
        held, decision = flight.held, flight.decision
        held.replace(flight)
        birth = held.birth
        if birth is not None:
            held.birth = None
            if not birth.reply.done():
                birth.reply.set_result(held.id)
        for letter, verdict in zip(flight.letters, decision.verdicts, strict=False):
            if letter.reply is not None:
                answer(letter.reply, verdict)
        self._acting.landed(held, flight)

    def _moved(self, flight: Flight, seen: Expected | None) -> None:
        """Somebody else wrote the run. Under our own authority that can only be an older write."""
        held, ours = flight.held, flight.held.stored
        held.return_letters(flight.letters)
        if seen is not None and (seen.generation, seen.token) == (ours.generation, ours.token):
            self._acting.stale(held)
            return
        facts: Facts = {
            "run": held.id,
            "generation": ours.generation,
            "seen": None if seen is None else seen.generation,
        }
        self._acting.lost(
            held,
            AuthorityLost(
                f"run {held.id} is owned by another engine", check="authority", facts=facts
            ),
        )

    def _key_taken(self, flight: Flight, told: KeyTaken) -> None:
        birth = flight.held.birth
        assert birth is not None, "only an admission brings a key"
        flight.held.birth = None
        if not birth.reply.done():
            birth.reply.set_result(told)
        self._acting.again(flight.held)

    def _refused(self, flight: Flight, told: StatementRefused) -> None:
        """Nothing of the settlement happened: the dispatch failed, and that is decided next."""
        kind = "conflict" if told.kind == "conflict" else "error"
        flight.held.return_letters(
            [
                Letter(_failed(letter.command, kind, told.message))
                if letter.statements and isinstance(letter.command, Report)
                else letter
                for letter in flight.letters
            ]
        )
        self._acting.again(flight.held)

    def _contradicts(self, flight: Flight, message: str) -> None:
        flight.held.return_letters(flight.letters)
        error = MaintenanceRequired(
            f"run {flight.held.id}: a row was refused that contradicts what is stored: {message}",
            code="row-refused",
            facts={"run": flight.held.id, "why": message},
            next_step="nothing more is done for this run; keep the file for an investigation",
        )
        self._acting.broke(flight.held, error)

    def _nothing_written(self, batch: list[Flight], error: TallyError) -> None:
        """Whoever waits for a verdict is told; what was reported stays and is decided again."""
        for flight in batch:
            held = flight.held
            held.flight = None
            if held.birth is not None:
                birth, held.birth = held.birth, None
                fail(birth.reply, error)
            for letter in flight.letters:
                answer(letter.reply, error)
            held.return_letters([letter for letter in flight.letters if letter.reply is None])
            self._acting.again(held)

    async def _read_again(self, batch: list[Flight], error: StoreUnavailable) -> None:
        """The outcome is unknown: see what is there, and only then act."""
        _log.warning("the outcome of a commit is unknown, reading it again: %s", error.message)
        self._enter_trouble(error)
        landed = [await self._is_there(flight) for flight in batch]
        for flight, there in zip(batch, landed, strict=True):
            flight.held.flight = None
            match there:
                case True:
                    self._land(flight)
                case False:
                    flight.held.return_letters(flight.letters)
                    self._acting.again(flight.held)
                case Expected():
                    self._moved(flight, there)
        await self._recover(error)

    async def _is_there(self, flight: Flight) -> bool | Expected:
        """Whether this very transition is on disk. `Expected`: neither it nor what it expected."""
        while True:
            try:
                return await self._look(flight)
            except StoreUnavailable as error:
                if self._fatal(error):
                    raise EngineFailed(error) from error
                await self._pause(error)

    async def _look(self, flight: Flight) -> bool | Expected:
        transition = flight.transition
        try:
            stored = await self._store.run(transition.run)
        except NotFound:
            return False
        before = 0 if transition.expected is None else transition.expected.sequence
        if stored.header.sequence == before:
            return False
        last = transition.events[-1].sequence
        async for event in self._store.events(transition.run, after=last - 1):
            if event.transition == transition.id:
                return True
            break
        return Expected(stored.generation, stored.token, stored.header.sequence)

    def _enter_trouble(self, error: TallyError) -> None:
        if not self._in_trouble:
            self._in_trouble = True
            self._acting.troubled(error)

    def _leave_trouble(self) -> None:
        if self._in_trouble:
            self._in_trouble = False
            self._backoff_ms = BACKOFF_MIN_MS
            self._acting.troubled(None)

    async def _recover(self, error: TallyError) -> None:
        """Wait before the next try. The next try is what waits; if nothing does, whatever comes."""
        await self._pause(error)
        if not self._waiting():
            self._leave_trouble()

    async def _pause(self, error: TallyError) -> None:
        """Wait a little longer each time, up to a bound that is well below 30 s."""
        self._enter_trouble(error)
        self._clock.release("store")
        try:
            await self._clock.sleep(self._backoff_ms)
        finally:
            self._clock.hold("store")
        self._backoff_ms = min(2 * self._backoff_ms, BACKOFF_MAX_MS)


def _failed(report: Report, kind: str, message: str) -> Report:
    end = Failed(kind, message, effect="none")
    return Report(report.key, report.attempt, report.dispatch, end)


def _epoch_moved(ours: int, now: int) -> AuthorityLost:
    return AuthorityLost(
        f"another engine took this store over: its epoch is {now}, and ours was {ours}",
        code="epoch-moved",
        check="epoch",
        facts={"epoch": ours, "seen": now},
    )
