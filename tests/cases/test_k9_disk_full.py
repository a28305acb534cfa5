"""K9: the disk is full: nothing starts that is not durable, and everything goes on with space."""

import asyncio
import os
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

import tallystick as ts
from tests.cases import tasks
from tests.cases.field import World, definition, until_so

HEALED_S = 30
KEYS = 10

FLOW = """
    tally: 1
    workflow: k9
    steps:
      - {id: first, call: "TASKS:gate", with: {name: "${{ input }}"}}
      - {id: second, call: "TASKS:note", with: {x: "${{ steps.first.output }}"}}
    output: ${{ steps.second.output }}
    """
LARGE = """
    tally: 1
    workflow: k9
    steps:
      - {id: first, call: "TASKS:gate_then_large", with: {name: "${{ input }}"}}
      - {id: second, call: "TASKS:length", with: {x: "${{ steps.first.output }}"}}
    output: ${{ steps.second.output }}
    """

pytestmark = [pytest.mark.case("K9"), pytest.mark.slow, pytest.mark.invariant("D6")]


class Disk:
    """A file system of 2 MB with a store on it; the effect log lies elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "disk"
        self.path.mkdir()
        self.world = World(folder)
        self.world.store = self.path / "k9.db"

    def mount(self, size: str = "2m") -> str | None:
        """Mount it; why not, or None."""
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(self.path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            return "there is no mount here"
        return done.stderr.strip() or None if done.returncode else None

    def fill(self) -> None:
        """Leave not one byte."""
        handle = os.open(self.path / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        size = 1 << 16
        while size:
            try:
                os.write(handle, b"x" * size)
            except OSError:
                size //= 2
        os.close(handle)

    def grow(self) -> None:
        """Let it have 64 MB."""
        command = ["mount", "-o", "remount,size=64m", str(self.path)]
        subprocess.run(command, capture_output=True, check=True)

    def free(self) -> None:
        (self.path / "filler").unlink()

    def integrity(self) -> list[str]:
        with closing(sqlite3.connect(self.world.store)) as db:
            return [line for (line,) in db.execute("PRAGMA integrity_check")]


@pytest.fixture
def disk(tmp_path, monkeypatch):
    disk = Disk(tmp_path)
    if (why := disk.mount()) is not None:
        pytest.skip(f"a small tmpfs cannot be mounted: {why}")
    monkeypatch.setenv("TALLY_EFFECT_LOG", str(disk.world.effect_log))
    tasks.gates.clear()
    yield disk
    subprocess.run(["umount", "-l", str(disk.path)], check=True)


def open_gate(name: str) -> None:
    tasks.gates.setdefault(name, asyncio.Event()).set()


async def begun(disk: Disk, count: int) -> None:
    """Wait until so many effects happened."""
    await until_so(f"{count} effects", lambda: len(disk.world.effects()) >= count)


async def in_trouble(tally: ts.Tally) -> ts.TallyError:
    """Wait until the engine says that it cannot write, and why."""
    await until_so("trouble", lambda: tally.engine.state != "running")
    assert tally.engine.state == "storage", tally.engine.failure
    return tally.engine.trouble


@pytest.mark.parametrize("flow", [FLOW, LARGE], ids=["row", "file"])
async def test_a_settlement_waits_for_space_and_nothing_is_done_twice(disk, flow):
    async with ts.open(disk.world.store, engine=True) as tally:
        run = await tally.start(definition(flow), input="one")
        await begun(disk, 1)
        disk.fill()
        open_gate("one")
        why = await in_trouble(tally)
        assert (why.code, bool(why.next_step)) == ("disk-full", True)
        for key in ("a", "a", None):
            with pytest.raises(ts.CapacityUnavailable):
                await tally.start(definition(FLOW), input="two", key=key)
        assert [info.status for info in await tally.list()] == ["running"], "reading goes on"
        assert len(disk.world.effects()) == 1, "nothing starts that is not durable"
        disk.free()
        freed = time.monotonic()
        await run.result(HEALED_S)
        assert time.monotonic() - freed < HEALED_S
        assert tally.engine.state == "running"
        open_gate("two")
        again = await tally.start(definition(FLOW), input="two", key="a")
        assert again.created
        assert await again.result(HEALED_S) == "two"
    steps = [(line["run"], line["step"]) for line in disk.world.effects()]
    assert sorted(steps) == sorted(set(steps))
    assert len(steps) == 4
    assert disk.integrity() == ["ok"]
    assert disk.world.engines() == ["drained"]
    assert not disk.world.judged()


async def test_what_cannot_be_prepared_is_not_begun(disk):
    open_gate("one")
    async with ts.open(disk.world.store, engine=True) as tally:
        await (await tally.start(definition(FLOW), input="one")).result()
        done = len(disk.world.effects())
        disk.fill()
        started = [
            asyncio.ensure_future(tally.start(definition(FLOW), input="one", key=f"k{n}"))
            for n in range(KEYS)
        ]
        answers = await asyncio.gather(*started, return_exceptions=True)
        refused = [it for it in answers if isinstance(it, ts.CapacityUnavailable)]
        acknowledged = [it for it in answers if isinstance(it, ts.RunHandle)]
        assert refused
        assert len(refused) + len(acknowledged) == KEYS, answers
        disk.free()
        for run in acknowledged:
            assert await run.result(HEALED_S) == "one"
        await until_so("the end of it", lambda: tally.engine.state == "running", HEALED_S)
        assert len(await tally.list()) == 1 + len(acknowledged), "a refused start left nothing"
        for number in range(KEYS):
            run = await tally.start(definition(FLOW), input="one", key=f"k{number}")
            assert await run.result(HEALED_S) == "one"
    assert len(disk.world.effects()) - done == 2 * KEYS
    assert disk.integrity() == ["ok"]
    assert not disk.world.judged()


async def test_work_that_fills_the_disk_itself_loses_nothing(disk):
    """By and by, over log, checkpoint and every kind of write, until nothing goes any more."""
    open_gate("one")
    flow, acknowledged = definition(LARGE), []
    async with ts.open(disk.world.store, engine=True) as tally:
        try:
            while len(acknowledged) < 1_000:
                acknowledged += [await tally.start(flow, input="one")]
        except ts.CapacityUnavailable:
            pass
        assert 0 < len(acknowledged) < 1_000
        disk.grow()
        for run in acknowledged:
            assert await run.result(HEALED_S) == 100_000
    assert disk.integrity() == ["ok"]
    assert len(disk.world.effects()) == 2 * len(acknowledged)
    assert not disk.world.judged()


async def test_a_full_disk_at_the_start_is_told_and_no_store_is_harmed(disk):
    open_gate("one")
    disk.fill()
    with pytest.raises(ts.CapacityUnavailable) as refused:
        async with ts.open(disk.world.store, engine=True):
            raise AssertionError("there is no space for a store")
    assert refused.value.code == "disk-full"
    disk.free()
    async with ts.open(disk.world.store, engine=True) as tally:
        run = await tally.start(definition(FLOW), input="one")
        assert await run.result(HEALED_S) == "one"
    disk.fill()
    with pytest.raises(ts.CapacityUnavailable) as refused:
        async with ts.open(disk.world.store, engine=True):
            raise AssertionError("its start cannot be recorded")
    assert refused.value.code == "disk-full"
    disk.free()
    async with ts.open(disk.world.store, engine=True) as tally:
        assert [info.status for info in await tally.list()] == ["succeeded"]
    assert disk.integrity() == ["ok"]
    assert not disk.world.judged()


async def test_an_engine_can_be_stopped_while_the_disk_is_full(disk):
    """It cannot record its end; the next one finds out, and what was done is in doubt, not lost."""
    async with ts.open(disk.world.store, engine=True) as tally:
        run = await tally.start(definition(FLOW), input="one")
        await begun(disk, 1)
        disk.fill()
        open_gate("one")
        await in_trouble(tally)
        asked = time.monotonic()
        await tally.close(grace=0.2)
        assert time.monotonic() - asked < 15
    disk.free()
    async with ts.open(disk.world.store, engine=True) as tally:
        with pytest.raises(ts.RunInDoubt):
            await (await tally.get(run.id)).result(HEALED_S)
    assert len(disk.world.effects()) == 1
    assert disk.integrity() == ["ok"]
    assert not disk.world.judged()


def test_killed_while_the_disk_is_full(disk):
    world = disk.world
    world.acknowledged = world.folder / "acknowledged.jsonl"
    fifo = world.folder / "fifo"
    os.mkfifo(fifo)
    flow = """
        tally: 1
        workflow: k9
        steps:
          - {id: first, call: "TASKS:hang_thread"}
          - {id: second, call: "TASKS:note"}
        """
    with world.life(flow, 0, environment={"CASE_FIFO": str(fifo)}) as life:
        life.until("ready")
        disk.fill()
        fifo.write_bytes(b"go on")  # returns once the task reads: it is at its end now
        life.kill()
    disk.free()
    (run,) = world.run(flow, 0)["runs"].values()
    assert run["status"] == "in_doubt"
    assert [line["step"] for line in world.effects()] == ["first"]
    assert disk.integrity() == ["ok"]
    assert not world.judged(complete=False)
