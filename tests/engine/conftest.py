"""A store in a folder of its own, and engines over it on a virtual clock."""

from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tallystick.core.definition import Definition, Limits, Node, Retry, Scope
from tallystick.core.graph import Plan
from tallystick.engine import locks
from tallystick.engine.opening import Opened, open_engine
from tallystick.testing.world import VirtualClock, world
from tests.engine import work

SETUP = "CREATE TABLE IF NOT EXISTS counted (name TEXT PRIMARY KEY, n INTEGER NOT NULL)"


@pytest.fixture(autouse=True)
def _nothing_done():
    work.forget()


def step(name: str, call: str = "do", effect: str = "read_only", needs=(), **rest) -> Node:
    rest.setdefault("inputs", {"name": name})
    return Node(
        name, "call", needs=tuple(needs), call=f"tests.engine.work:{call}", effect=effect, **rest
    )


def chain(*steps: Node, **rest) -> Definition:
    """Steps, one after the other."""
    linked = [node if i == 0 else _after(node, steps[i - 1].id) for i, node in enumerate(steps)]
    return Definition("chain", Scope(tuple(linked)), **rest)


def fan(count: int, call: str = "wait", **rest) -> Definition:
    """So many steps at once."""
    return Definition("fan", Scope(tuple(step(f"f{i}", call) for i in range(count))), **rest)


def _after(node: Node, before: str) -> Node:
    import msgspec

    return msgspec.structs.replace(node, needs=(before,))


class Place:
    """A database, and the engines that open it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "t.db"
        self.clock = VirtualClock()
        self.seed = 0

    @asynccontextmanager
    async def engine(self, *, faults=None, jumps=True, **rest):
        opened = await self.open(faults=faults, jumps=jumps, **rest)
        try:
            yield Life(opened)
        finally:
            await opened.stop(0)

    async def open(self, *, faults=None, jumps=True, **rest) -> Opened:
        self.seed += 1
        self.clock = VirtualClock(self.clock.now(), jumps=jumps)
        rest.setdefault("setup", SETUP)
        return await open_engine(
            self.path,
            build="test",
            world=world(self.clock, seed=self.seed, faults=faults),
            **rest,
        )

    async def crash(self, opened: Opened) -> None:
        """What is left of an engine whose process was killed: nothing but what is on disk."""
        engine, instance = opened.engine, opened.instance
        for task in engine._tasks:
            task.cancel()
        for lock in (instance._own, instance._engine):
            lock._close()
        engine.keeper.post = lambda run, letter: None
        engine.driver._post = lambda run, letter: None
        engine.driver.end_grace()
        for executor in engine.executors:
            executor.close()
        await opened.store.close()


class Life:
    """One engine, and the few things that tests ask of it."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.engine = opened.engine
        self.store = opened.store

    async def start(self, definition: Definition, given=None, **rest) -> str:
        prepared = self.engine.desk.prepare(Plan(definition), root=None)
        return (await self.engine.desk.start(prepared, given, **rest)).run

    async def idle(self) -> None:
        await self.engine.run_until_idle()

    async def status(self, run: str) -> str:
        return (await self.store.run(run)).header.status

    async def kinds(self, run: str) -> list[str]:
        import msgspec

        return [msgspec.json.decode(e.envelope)["kind"] async for e in self.store.events(run)]


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


__all__ = ["Definition", "Life", "Limits", "Place", "Retry", "chain", "fan", "locks", "step"]
