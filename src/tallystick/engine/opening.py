"""How an engine comes to be: a store, the locks, a record of the start, the parts put together."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import msgspec

from tallystick.engine import faults as engine_points
from tallystick.engine.clock import Clock, Entropy, SystemClock
from tallystick.engine.engine import Engine
from tallystick.engine.faults import Faults, faults_from, hook
from tallystick.engine.instance import Instance, enter
from tallystick.engine.keeper import Role
from tallystick.engine.residence import RESIDENT_MAX
from tallystick.engine.scene import Scene
from tallystick.engine.stopping import GRACE_MS, stop
from tallystick.errors import InvalidRequest, StoreUnavailable
from tallystick.executors.contract import Executor, ReportTo
from tallystick.executors.function.executor import FunctionExecutor
from tallystick.executors.function.resolve import resolve
from tallystick.store.faults import FAULT_POINTS as STORE_POINTS
from tallystick.store.sqlite import SqliteStore, open_sqlite

POINTS: Final = (*engine_points.POINTS, *STORE_POINTS)
"""Every fault point that there is, of the engine and of the store below it."""

ExecutorsOf = Callable[[ReportTo], Iterable[Executor]]


class World(msgspec.Struct, frozen=True):
    """Time, chance and planned faults. Tests bring their own; None: this machine's.

    faults  None: those that the environment plans, which are none outside of tests
    """

    clock: Clock
    entropy: Entropy
    faults: Faults | None

    @property
    def fault(self) -> Callable[[str], None]:
        """What is called at every fault point."""
        return hook(self.faults)


def this_world(environment: Mapping[str, str] | None = None) -> World:
    """The real clock and entropy, with the faults that the environment plans."""
    seen = os.environ if environment is None else environment
    return World(SystemClock(), Entropy(), faults_from(seen, POINTS))


class Opened:
    """An engine that runs, with what has to be closed after it.

    began_at  position of the newest event before its first
    """

    def __init__(
        self, engine: Engine, instance: Instance, store: SqliteStore, began_at: int
    ) -> None:
        self.engine = engine
        self.began_at = began_at
        self.instance = instance
        self.store = store
        self._end: asyncio.Task[None] | None = None

    async def stop(self, grace_ms: int = GRACE_MS) -> None:
        """Stop the engine in order and close its store. A second call waits for the first.

        It is carried out even if whoever asked for it is cancelled meanwhile.
        """
        if self._end is None:
            self._end = asyncio.create_task(self._stop(grace_ms), name="tally-stop")
        await asyncio.shield(self._end)

    async def _stop(self, grace_ms: int) -> None:
        try:
            await stop(self.engine, self.instance, grace_ms)
        finally:
            await self.store.close()


async def open_store(
    path: Path, world: World, *, create: bool, read_only: bool = False
) -> SqliteStore:
    """Open the store at this path. Raises as `open_sqlite` does."""
    return await open_sqlite(
        path,
        now=world.clock.now,
        new_id=lambda: world.entropy.draw(16).hex(),
        create=create,
        read_only=read_only,
        fault=world.fault,
    )


async def open_engine(
    path: Path,
    *,
    build: str,
    world: World | None = None,
    create: bool = True,
    role: Role = "engine",
    setup: str | None = None,
    executors: ExecutorsOf | None = None,
    resident_max: int = RESIDENT_MAX,
) -> Opened:
    """Open a store as its engine, and begin to move its runs.

    build     which version of the package this is, for the record
    create    make the database if there is none; else `NotFound`
    role      which runs it moves, if any; see `keeper.Role`
    setup     SQL script for tables of the user's own, run at every opening: it says IF NOT EXISTS
    executors made with where they report to; None: the function executor

    Raises `OwnerElsewhere` naming the process that is the engine now, and what `open_store` raises.
    """
    here = world or this_world()
    store = await open_store(path, here, create=create)
    try:
        return await _begin(store, path, here, build, role, setup, executors, resident_max)
    except BaseException:
        await store.close()
        raise


async def _begin(
    store: SqliteStore,
    path: Path,
    world: World,
    build: str,
    role: Role,
    setup: str | None,
    executors: ExecutorsOf | None,
    resident_max: int,
) -> Opened:
    instance = await enter(store, path, world.clock, world.entropy, build=build)
    try:
        world.fault("engine.locked")
        await instance.record_start()
        world.fault("engine.recorded")
        if setup is not None:
            await store.setup(setup)
        scene = Scene(
            store,
            world.clock,
            world.entropy,
            world.fault,
            instance.machine,
            instance.id,
            instance.epoch,
        )
        engine = Engine(
            scene,
            executors=executors or (lambda report: (_functions(report, world, store),)),
            resolve=resolve,
            fatal=is_fatal,
            role=role,
            resident_max=resident_max,
            audited=world.faults is not None,
        )
        began_at = await store.position()
        await engine.start()
    except BaseException:
        instance.unlock(gone=True)
        raise
    return Opened(engine, instance, store, began_at)


def is_fatal(error: StoreUnavailable) -> bool:
    """After this only a new opening knows what is on the disk.

    A failed fsync may have made the kernel forget what it could not write; the next one succeeds
    all the same. The store says so by writing no more, and by citing the database's own error.
    """
    return error.code == "store-broken" or (
        error.code == "commit-unknown" and "error" in error.facts
    )


def _functions(report: ReportTo, world: World, store: SqliteStore) -> FunctionExecutor:
    loop, home = asyncio.get_running_loop(), threading.get_ident()

    def read(sql: str, params: Sequence[object]) -> Sequence[tuple[object, ...]]:
        if threading.get_ident() == home:
            raise InvalidRequest(
                "ctx.read would block the engine's loop in an async function",
                code="read-in-loop",
                next_step="make the step an ordinary function, which runs in a thread",
            )
        return asyncio.run_coroutine_threadsafe(store.query(sql, params), loop).result()

    return FunctionExecutor(report, now=world.clock.now, snapshot=lambda: nullcontext(read))
