"""What becomes of each run that this engine holds: after a commit, a load, a loss.

landed ─▶ starts, stops ─▶ what it waits for now: letters · a slot · a time · a person · nothing
lost   ─▶ stop what only this process can be doing ─▶ forget it
broke  ─▶ leave it alone, tell everybody why
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Literal, TypeAlias

from tallystick.core.messages import RunEnded
from tallystick.core.run import Run, at_attempts_cap
from tallystick.core.status import status
from tallystick.engine.commit import Committer
from tallystick.engine.driver import Driver
from tallystick.engine.held import Flight, Held, Letter
from tallystick.engine.loading import Plans, load
from tallystick.engine.recovery import Recovery
from tallystick.engine.residence import RESIDENT_MAX, Residence
from tallystick.engine.scene import Scene
from tallystick.engine.timers import Timers
from tallystick.engine.turns import Turns
from tallystick.engine.watch import End, Watchers
from tallystick.errors import AuthorityLost, MaintenanceRequired, StoreUnavailable, TallyError
from tallystick.store.protocol import Expected

Role: TypeAlias = Literal["client", "own", "engine"]
"""`engine` moves every run of the store, `own` only those that are started or adopted through it.
A `client` applies single commands: it hands nothing over, reconciles nothing, and fires no timer.
"""

READ_AGAIN_MS: Final = 1_000
"""A run that could not be read is tried again after this."""

_log: Final = logging.getLogger("tallystick.engine")


class Keeper:
    """The runs in the hands of one engine, and what each of them waits for.

    role     what it does with them; see `Role`
    idle      set while no run moves by itself
    trouble   why the store cannot be written now, or None
    touched  runs that were decided since it was last emptied, where somebody audits; else None
    """

    def __init__(
        self,
        scene: Scene,
        driver: Driver,
        turns: Turns,
        recovery: Recovery,
        *,
        role: Role,
        resident_max: int = RESIDENT_MAX,
    ) -> None:
        self._scene = scene
        self._driver = driver
        self._turns = turns
        self._recovery = recovery
        self._role = role
        self._dispatch = role != "client"
        self.plans = Plans(scene.store)
        self.watchers = Watchers()
        self.timers: Timers[str] = Timers(scene.clock, scene.clock.now, self._due)
        self.residence = Residence(self._bring, self._brought, self._not_brought, resident_max)
        self.committer = Committer(
            scene.clock,
            scene.entropy,
            turns,
            folded=self._folded,
            broke=self.broke,
            load=self.residence.load,
        )
        self.trouble: TallyError | None = None
        self.idle = asyncio.Event()
        self._restless: set[str] = set()
        self.touched: dict[str, Held] | None = None
        turns.closed = not self._dispatch

    async def survey(self) -> None:
        """Look through the unfinished runs and begin to take those for which something is to do."""
        if self._role == "engine":
            await self._recovery.survey(self.timers.set, self._restless.add)
            self._feed()
        self._look_idle()

    def post(self, run: str, letter: Letter) -> None:
        """A letter from the driver, about a run that this engine held when it was prepared."""
        held = self.residence.get(run)
        if held is None:
            _log.warning("run %s has another owner: a report about it is testimony", run)
            self.committer.look()
        else:
            self.committer.post(held, letter)

    def adopt(self, run: str) -> None:
        """Move this run, whoever owned it, on evidence. An `engine` has every run in hand."""
        if self._role == "own" and run not in self._restless:
            self._stir(run)
            self.residence.summon(run)

    def enter(self, held: Held) -> None:
        """A run that is about to be born."""
        self.residence.enter(held)
        if self._dispatch:
            self._stir(held.id)
        self.committer.queue(held)

    # ------------------------------------------------------------------- what came of a commit

    def landed(self, held: Held, flight: Flight) -> None:
        """The transition is on disk: act on it."""
        decision = flight.decision
        for start in decision.starts:
            self._driver.start(held.id, held.workflow, start)
        for stop in decision.stops:
            self._driver.stop(held.id, stop)
        self.watchers.changed(held.id)
        if self.touched is not None:
            self.touched[held.id] = held
        run = decision.run
        if run.ended is not None:
            self.watchers.rested(held.id, _end_of(flight))
        if run.authority is None or run.authority.engine != self._scene.instance:
            self._let_go(held)
            return
        if run.barrier:
            self._reconcile(held)
        elif flight.barred:
            self.committer.queue(held)  # what the barrier held back can be decided now
        self._settle_down(held, run, decision.header.status)

    def lost(self, held: Held, error: AuthorityLost) -> None:
        """Another engine owns it: stop what only this process can be doing, forget the rest."""
        _log.warning("run %s was lost: %s", held.id, error.message)
        self._let_go(held)
        held.refuse_all(error)
        self._driver.lose(held.id)
        self.watchers.changed(held.id)

    def stale(self, held: Held) -> None:
        """Our copy is not what is on disk: read it again, and reconcile what it does not know."""
        _log.error("the copy of run %s was stale and is read again", held.id)
        held.run = None
        self.residence.load(held)

    def broke(self, held: Held, error: Exception) -> None:
        """Nothing more is done for this run, and everybody who asks is told why."""
        _log.error("run %s is left alone: %s", held.id, error, exc_info=error)
        held.broken = error if isinstance(error, TallyError) else _broken(held.id, error)
        held.mail.extend(held.refuse_all(held.broken))
        self._turns.leave(held)
        self.timers.drop(held.id)
        self._calm(held.id)
        self.watchers.changed(held.id)

    def again(self, held: Held) -> None:
        """It decides again. One that was never born is forgotten."""
        if held.run is None and held.birth is None:
            self._let_go(held)
        else:
            self.committer.queue(held)

    def troubled(self, trouble: TallyError | None) -> None:
        """Nothing new is handed over while the store cannot be written."""
        self.trouble = trouble
        self._turns.closed = trouble is not None or not self._dispatch or self._driver.closed
        if trouble is None:
            _log.warning("the store can be written again")
            self.committer.look()
        else:
            _log.error("the store cannot be written: %s", trouble.message)

    def _folded(self, held: Held) -> None:
        """Its mailbox was emptied without anything to write."""
        if self.touched is not None:
            self.touched[held.id] = held
        if held.run is not None:
            self._settle_down(held, held.run, status(held.run).status)

    def _settle_down(self, held: Held, run: Run, seen: str) -> None:
        """What this run waits for now. seen: its status."""
        if run.ended is not None:
            self._end(held)
            return
        if held.mail:
            self.committer.queue(held)
        now = self.committer.decided_at
        due = run.due_at()
        if due is not None and due > now:
            self.timers.set(held.id, due)
        else:
            self.timers.drop(held.id)
        if _wants_a_slot(run, due, now):
            self._turns.wait(held)
        else:
            self._turns.leave(held)
        if seen != "running" and status(run).person:
            self._calm(held.id)
        else:
            self._stir(held.id)
        if self.residence.crowded and run.in_flight == 0 and held.at_rest and not held.queued:
            held.run = None
            if not held.hungry:
                self.residence.drop(held)

    def _end(self, held: Held) -> None:
        self.timers.drop(held.id)
        self._turns.leave(held)
        self._calm(held.id)
        if held.mail:
            self.committer.queue(held)
        else:
            self.residence.drop(held)
            self._feed()

    def _let_go(self, held: Held) -> None:
        self.timers.drop(held.id)
        self._turns.leave(held)
        self.residence.drop(held)
        self._calm(held.id)
        self._feed()

    # ----------------------------------------------------------------------- loading, takeover

    async def _bring(self, held: Held) -> None:
        """Read a run; if it is not ours, put the letter in front that makes it so."""
        self._scene.clock.hold("store")
        try:
            stored, run = await load(self._scene.store, self.plans, held.id)
            letter = await self._recovery.letter(stored)
        finally:
            self._scene.clock.release("store")
        held.run, held.workflow = run, stored.new.workflow
        held.stored = Expected(stored.generation, stored.token or None, run.sequence)
        if letter is not None:
            self._scene.fault("takeover.before")
            held.mail.appendleft(letter)
        elif run.in_flight and self._owns(run):
            held.mail.extend(self._recovery.undecided(held, self._driver.knows))

    def _owns(self, run: Run) -> bool:
        return run.authority is not None and run.authority.engine == self._scene.instance

    def _brought(self, held: Held) -> None:
        self.committer.queue(held)

    def _not_brought(self, held: Held, error: Exception) -> None:
        held.loading = False
        if isinstance(error, MaintenanceRequired) or not isinstance(error, TallyError):
            self.broke(held, error)
            return
        held.refuse_all(error)
        self._let_go(held)
        if isinstance(error, StoreUnavailable) and self._dispatch:
            self._stir(held.id)
            self.timers.set(held.id, self._scene.clock.now() + READ_AGAIN_MS)

    def _reconcile(self, held: Held) -> None:
        """Decide what was under way when the former engine ended, page by page."""
        if not self._dispatch:
            return
        self._scene.fault("takeover.after")
        letters = self._recovery.undecided(held, self._driver.knows)
        if letters:
            self._scene.fault("reconcile.page")
        for letter in letters:
            self.committer.post(held, letter)

    def _feed(self) -> None:
        """Take the next runs whose engine is gone, as long as there is room."""
        candidates = self._recovery.candidates
        while candidates and self.residence.room > 0 and not self._driver.closed:
            self.residence.summon(candidates.popleft())

    def _due(self, run: str) -> None:
        self._scene.fault("timer.due")
        held = self.residence.get(run)
        if held is None:
            self.residence.summon(run)
        else:
            self.committer.queue(held)

    # --------------------------------------------------------------------------------- idleness

    def _stir(self, run: str) -> None:
        if run not in self._restless:
            self._restless.add(run)
            self.idle.clear()

    def _calm(self, run: str) -> None:
        self._restless.discard(run)
        self.watchers.rested(run, None)
        self._look_idle()

    def _look_idle(self) -> None:
        if not self._restless:
            self.idle.set()


def _end_of(flight: Flight) -> End | None:
    """The end that this very transition brought; None: it came earlier, the store has it."""
    for recorded in reversed(flight.decision.events):
        if type(recorded.event) is RunEnded:
            return End(recorded.event.status, recorded.payload.body if recorded.payload else None)
    return None


def _wants_a_slot(run: Run, due: int | None, now: int) -> bool:
    """It could start something now, if there were a place for it."""
    if run.barrier:
        return False
    if due is not None and due <= now:
        return True
    if run.stopping is not None or not len(run.ready) or at_attempts_cap(run):
        return False
    cap = run.limits.concurrency
    return cap is None or run.active < cap


def _broken(run: str, error: Exception) -> MaintenanceRequired:
    return MaintenanceRequired(
        f"run {run} cannot be decided: {type(error).__name__}: {error}",
        code="run-undecidable",
        facts={"run": run, "why": f"{type(error).__name__}: {error}"},
        next_step="nothing more is done for this run; please report this with the run's history",
    )
