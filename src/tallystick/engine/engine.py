"""An engine: one opening of a store by a process that may own runs and moves them.

    start ─▶ running ⇄ storage ─▶ stopping ─▶ stopped
                └──────────────▶ failed ──────▲

Here the parts are put together, and here they end. Everything happens on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Literal, TypeAlias

from tallystick.core.commands import Advance, Command
from tallystick.core.identity import Authority
from tallystick.core.run import Run
from tallystick.engine.admission import TOKEN_BYTES, Desk, Resolve
from tallystick.engine.audit import Audit
from tallystick.engine.driver import Driver
from tallystick.engine.held import Birth, Flight, Held, Letter, answer
from tallystick.engine.keeper import Keeper, Role
from tallystick.engine.outcomes import EngineFailed, Outcomes
from tallystick.engine.recovery import Recovery
from tallystick.engine.residence import RESIDENT_MAX
from tallystick.engine.scene import Scene
from tallystick.engine.turns import Turns
from tallystick.errors import MaintenanceRequired, NotReady, StoreUnavailable, TallyError
from tallystick.executors.contract import Executor, ReportTo

State: TypeAlias = Literal["new", "running", "storage", "stopping", "stopped", "failed"]

_log: Final = logging.getLogger("tallystick.engine")


class Engine:
    """See the module's text. Made by `opening.open_engine`, stopped by `stopping.stop`.

    role   which runs it moves, if any; see `keeper.Role`
    audited  compare the copies with the store after every batch; for tests
    """

    def __init__(
        self,
        scene: Scene,
        *,
        executors: Callable[[ReportTo], Iterable[Executor]],
        resolve: Resolve,
        fatal: Callable[[StoreUnavailable], bool],
        role: Role = "engine",
        resident_max: int = RESIDENT_MAX,
        audited: bool = False,
    ) -> None:
        self.scene = scene
        self.role = role
        self.failure: TallyError | None = None
        self._phase: Literal["new", "running", "stopping", "stopped"] = "new"
        self._tasks: list[asyncio.Task[None]] = []
        self.over = asyncio.Event()
        self.driver = Driver(
            scene.clock, lambda run, letter: self.keeper.post(run, letter), scene.fault
        )
        self.executors = tuple(executors(self.driver.report))
        self.driver.use(self.executors)
        self.turns = Turns(self.executors)
        self.recovery = Recovery(scene.store, scene.entropy, scene.machine, scene.instance)
        self.keeper = Keeper(
            scene,
            self.driver,
            self.turns,
            self.recovery,
            role=role,
            resident_max=resident_max,
        )
        self._audit: Audit | None = None
        if audited:
            self._audit = Audit(scene.store, self.keeper.plans, scene.instance)
            self.keeper.touched = {}
        self.committer = self.keeper.committer
        self.outcomes = Outcomes(scene, self.keeper, fatal=fatal, waiting=self.committer.waiting)
        self.desk = Desk(
            scene,
            resolve=resolve,
            authority=self._first_authority,
            check=self.check,
            born=self._born,
        )

    @property
    def state(self) -> State:
        """`storage` is running, with a store that cannot be written now; `trouble` says why."""
        if self.failure is not None and self._phase == "running":
            return "failed"
        return "storage" if self._phase == "running" and self.trouble else self._phase

    @property
    def trouble(self) -> TallyError | None:
        """Why the store cannot be written now, or None."""
        return self.keeper.trouble

    async def start(self) -> None:
        """Look through the unfinished runs and begin to move them."""
        self._phase = "running"
        work = {
            "tally-commit": self.committer.work(self._write),
            "tally-load": self.keeper.residence.work(),
        }
        self._tasks = [
            asyncio.create_task(self._guarded(coroutine), name=name)
            for name, coroutine in work.items()
        ]
        await self.keeper.survey()

    async def command(self, run: str, command: Command) -> None:
        """Ask something of a run, and return once the verdict is on disk.

        Raises the refusal. A run that another engine owned is taken first, on evidence.
        """
        self.check()
        held = self.keeper.residence.summon(run)
        if held.broken is not None:
            raise held.broken
        reply: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.committer.post(held, Letter(command, reply=reply))
        await reply

    async def take(self, run: str) -> None:
        """Own a run that exists, and move it on. Returns once it is ours on disk, or has ended.

        Raises `OwnerElsewhere` where nothing proves that its former engine has ended.
        """
        self.keeper.adopt(run)
        await self.command(run, Advance({}))

    def copy(self, run: str) -> Run | None:
        """The copy in memory, to be read only; None: it is not there now, read the store."""
        held = self.keeper.residence.get(run)
        return None if held is None else held.run

    def check(self) -> None:
        """Raise if nothing is taken now: the engine stops or failed, or its store has no space."""
        if self.failure is not None:
            raise self.failure
        if self._phase != "running":
            raise stopped()
        if self.trouble is not None:
            raise self.trouble

    async def run_until_idle(self) -> None:
        """Return once every run is over, in doubt or waiting for a person.

        A pending timer is not idle. Raises what the engine failed with.
        """
        await self.keeper.idle.wait()
        if self.failure is not None:
            raise self.failure

    async def wait_over(self) -> None:
        """Return once the engine has stopped. Raises what it failed with."""
        await self.over.wait()
        if self.failure is not None:
            raise self.failure

    # ------------------------------------------------------------------- the end, by `stopping`

    def begin_stop(self) -> None:
        """No new dispatch: what is prepared and not called from now on is given up."""
        self._phase = "stopping"
        self.turns.closed = True
        self.driver.closed = True
        self.keeper.timers.stop()

    async def end(self) -> None:
        """Nothing is decided or written any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.driver.close()
        self.keeper.watchers.fail(self.failure or stopped())
        self._phase = "stopped"
        self.over.set()

    # --------------------------------------------------------------------------------- inside

    def _first_authority(self) -> Authority | None:
        """A run that this engine admits is its own; one that is only written down is nobody's."""
        if self.role == "client":
            return None
        return Authority(1, self.scene.entropy.draw(TOKEN_BYTES), self.scene.instance)

    def _born(self, birth: Birth) -> None:
        self.check()
        held = Held(birth.admission.run)
        held.birth, held.workflow = birth, birth.plan.definition.workflow
        self.keeper.plans.keep(birth.plan)
        self.keeper.enter(held)

    async def _write(self, batch: list[Flight]) -> None:
        await self.outcomes.write(batch)
        if self._audit is not None:
            touched, self.keeper.touched = self.keeper.touched or {}, {}
            await self._audit.check(touched.values())

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except EngineFailed as failed:
            self._fail(failed.cause)
        except TallyError as error:
            self._fail(error)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  a defect: the engine must not go on
            _log.exception("the engine failed")
            self._fail(_unexpected(error))
        except BaseException as error:  # an interrupt that hit the loop just here
            self._fail(_unexpected(error))
            raise

    def _fail(self, error: TallyError) -> None:
        """Nothing is written any more: stop what runs here, and tell everybody why."""
        _log.error("the engine stops: %s", error.message)
        self.failure = self.failure or error
        self.turns.closed = True
        self.driver.closed = True
        self.keeper.timers.stop()
        for held in list(self.keeper.residence.held.values()):
            if held.flight is not None:
                for letter in held.flight.letters:
                    answer(letter.reply, error)
            held.refuse_all(error)
        self.keeper.watchers.fail(error)
        self.keeper.idle.set()
        self.over.set()


def stopped() -> NotReady:
    """The engine has stopped, or is about to."""
    return NotReady("the engine is not running", code="engine-stopped", check="engine")


def _unexpected(error: BaseException) -> MaintenanceRequired:
    return MaintenanceRequired(
        f"the engine failed unexpectedly: {type(error).__name__}: {error}",
        code="engine-failed",
        facts={"why": f"{type(error).__name__}: {error}"},
        next_step="start it again: what was recorded holds; please report this with its log",
    )
