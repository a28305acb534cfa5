"""What was acknowledged survives the loss of power, the death of the process, and a full disk.

`TALLY_SCHEDULES` says how many seeded schedules are tried (500 shows what the design promises).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from tallystick.core.history import verify
from tallystick.errors import CapacityUnavailable, MaintenanceRequired, StoreUnavailable
from tallystick.store import sqlite, threaded
from tallystick.store.files import Blobs
from tallystick.store.protocol import Committed, RunFilter, Transition
from tallystick.store.sqlite import SqliteStore, open_sqlite
from tests.store.conftest import Ids
from tests.store.contract import put
from tests.store.flows import DEFINITION, DEFINITION_BODY, Author
from tests.store.powerloss import Disk, Files, Vfs, cut, full, lost

SCHEDULES = int(os.environ.get("TALLY_SCHEDULES", "60"))
THOROUGH = SCHEDULES >= 500
GROUP = 10
NAMES = (f"forgetful-{number}" for number in itertools.count())
LARGE = 3_000
"""Bodies above this go to files in these tests: many of them, and quickly."""


@contextmanager
def mounted(disk: Disk) -> Iterator[str]:
    """The disk as a VFS; its name."""
    name = next(NAMES)
    vfs = Vfs(name, disk)
    try:
        yield name
    finally:
        vfs.unregister()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A path for the database; nothing is ever there."""
    return tmp_path_factory.mktemp("nowhere") / "tally.db"


@dataclass
class World:
    """A store on a forgetful disk, and what it was promised.

    acked   for each run the author who knows its last acknowledged state
    """

    place: Path
    disk: Disk
    synchronous: str = "FULL"
    acked: dict[str, Author] = field(default_factory=dict)
    ids: Ids = field(default_factory=Ids)

    async def open(self, name: str) -> SqliteStore:
        return await open_sqlite(
            self.place,
            now=lambda: 1,
            new_id=self.ids,
            synchronous=self.synchronous,
            system=Files(self.disk),
            vfs=name,
        )

    async def commit(self, store: SqliteStore, batch: list[tuple[Author, Transition]]) -> None:
        """Commit and remember what was acknowledged."""
        answers = await store.commit([transition for _, transition in batch], epoch=1)
        for (author, _), answer in zip(batch, answers, strict=True):
            assert isinstance(answer, Committed), answer
            author.done()
            self.acked[author.run] = author

    async def verified(self, store: SqliteStore) -> list[str]:
        """Acknowledged runs whose last acknowledged state is not there; everything else holds."""
        assert [*store._session._connection.execute("PRAGMA integrity_check")] == [("ok",)]
        missing = []
        found = {run.stored.new.run: run.stored for run in await store.runs(RunFilter(limit=1000))}
        for run, stored in found.items():
            events = [event async for event in store.events(run)]
            head = verify(run, [(e.sequence, e.transition, e.envelope, e.hash) for e in events])
            assert (stored.header.sequence, stored.header.head) == (len(events), head)
            await store.attempts(run)
        for run, author in self.acked.items():
            if run not in found or found[run].header.sequence < author.expected.sequence:
                missing.append(run)
        return missing


def next_transition(author: Author, chance: random.Random) -> Transition:
    """What this run does next; some bodies are large."""
    if author.expected is None:
        return author.admit(_body(chance))
    open_step = author.header.consumed - 1
    if author.header.open_attempts == 0:
        return author.begin(f"n{author.header.consumed}", _body(chance))
    if chance.random() < 0.8:
        return author.step(f"n{open_step}", f"n{open_step + 1}")
    return author.settle(f"n{open_step}", _body(chance))


def _body(chance: random.Random) -> bytes:
    return msgspec.json.encode("x" * chance.choice((5, 50, 500, 2 * LARGE)))


def cut_power(disk: Disk, chance: random.Random, *, within: int) -> None:
    """Let power fail at one of the next calls."""
    left = chance.randint(1, within)

    def before(call: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise lost(call, path)

    disk.before = before


async def schedule(world: World, seed: int) -> list[str]:
    """Work until power fails, twice; return the acknowledged runs that lost something."""
    chance = random.Random(seed)
    authors = [Author(f"run-{n}", seed=n) for n in range(chance.randint(1, 4))]
    for _ in range(2):
        with mounted(world.disk) as name:
            store = await world.open(name)
            cut_power(world.disk, chance, within=400)
            try:
                for _ in range(60):
                    chosen = chance.sample(authors, chance.randint(1, len(authors)))
                    batch = [(author, next_transition(author, chance)) for author in chosen]
                    await world.commit(store, batch)
            except StoreUnavailable:
                pass
            await store.close()
        world.disk = world.disk.crash(chance)
        with mounted(world.disk) as name:
            store = await world.open(name)
            missing = await world.verified(store)
            if missing:
                await store.close()
                return missing
            authors = [await resumed(store, author) for author in authors]
            await store.close()
    return []


async def resumed(store: SqliteStore, author: Author) -> Author:
    """An author who knows what the store knows: also what was written and not acknowledged."""
    rows = {run.stored.new.run: run.stored for run in await store.runs(RunFilter())}
    fresh = Author(author.run, seed=author.seed + 1000)
    if author.run in rows:
        stored = rows[author.run]
        fresh.header, fresh.now = stored.header, stored.header.last_at
        fresh.expected = msgspec.structs.replace(
            author.expected or first_expected(), sequence=stored.header.sequence
        )
    return fresh


def first_expected():
    author = Author("any")
    author.admit()
    author.done()
    return author.expected


@pytest.fixture(scope="module")
def template(place: Path) -> Disk:
    """A disk with an empty store."""

    async def make(disk: Disk) -> None:
        with mounted(disk) as name:
            store = await World(place, disk).open(name)
            await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
            await store.close()

    disk = Disk()
    asyncio.run(make(disk))
    return disk.copy()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large bodies are small, and the log is copied often: everything happens in few calls."""
    monkeypatch.setattr(threaded, "INLINE_MAX", LARGE)
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", 40)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("group", range(0, SCHEDULES, GROUP))
@pytest.mark.invariant("D1", "S6", "H2")
async def test_power_loss_takes_nothing_that_was_acknowledged(
    template: Disk, place: Path, group: int
) -> None:
    acknowledged = 0
    for seed in range(group, min(group + GROUP, SCHEDULES)):
        world = World(place, template.copy())
        assert await schedule(world, seed) == [], f"seed {seed}"
        acknowledged += sum(author.expected.sequence for author in world.acked.values())
    assert acknowledged > 100, "hardly anything was tried"


@pytest.mark.slow
async def test_with_less_than_full_synchrony_the_same_schedules_lose(
    template: Disk, place: Path
) -> None:
    """The test above can fail: with NORMAL a commit is acknowledged before it is on disk."""
    losses = 0
    for seed in range(10):
        losses += bool(await schedule(World(place, template.copy(), synchronous="NORMAL"), seed))
    assert losses >= 3


# The log of calls, cut anywhere


async def recorded(place: Path, disk: Disk) -> list[tuple[int, int]]:
    """Run a flow; for each acknowledged transition, the length of the call log and its number."""
    world = World(place, disk)
    chance = random.Random(7)
    marks = []
    with mounted(disk) as name:
        store = await world.open(name)
        author = Author("run-1")
        marks.append((len(disk.log), 0))
        for number in range(1, 15):
            await world.commit(store, [(author, next_transition(author, chance))])
            marks.append((len(disk.log), author.expected.sequence))
            if number == 9:
                store._session._checkpoint()
        await store.close()
    return marks


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
@pytest.mark.invariant("D1", "D2", "S6")
async def test_every_prefix_of_the_calls_leaves_an_acknowledged_state(
    template: Disk, place: Path, power: bool
) -> None:
    disk = template.copy()
    marks = await recorded(place, disk)
    log = disk.log
    sequences = [0, *(sequence for _, sequence in marks)]
    step = 1 if THOROUGH else 3
    for at in range(marks[0][0], len(log) + 1, step):
        acked = max(sequence for length, sequence in marks if length <= at)
        found = cut(log, at, random.Random(at) if power else None)
        world = World(place, found)
        with mounted(found) as name:
            store = await world.open(name)
            await world.verified(store)
            runs = await store.runs(RunFilter())
            sequence = runs[0].stored.header.sequence if runs else 0
            await store.close()
        assert sequence in sequences, f"a torn transition after call {at}"
        assert sequence >= acked, f"lost after call {at}"
        following = min([s for s in sequences if s > acked], default=acked)
        assert sequence <= following


# Values in files


@pytest.mark.parametrize("forgets", [None, "sync", "sync_directory"])
@pytest.mark.invariant("D1")
def test_a_value_in_a_file_is_whole_or_not_there(forgets: str | None) -> None:
    """Forgetting either sync shows, so the test can fail."""
    broken = 0
    for seed in range(200):
        chance = random.Random(seed)
        disk = Disk()
        blobs = Blobs(Path("/blobs"), new_name=Ids(), system=Files(disk, forgets))
        cut_power(disk, chance, within=60)
        kept: dict[str, bytes] = {}
        try:
            for size in (10, 5_000, 20_000, 9_000):
                body = chance.randbytes(size)
                kept[blobs.put(body)] = body
        except StoreUnavailable:
            pass
        after = Blobs(Path("/blobs"), new_name=Ids("x"), system=Files(disk.crash(chance)))
        for name, body in kept.items():
            try:
                broken += after.get(name, len(body)) != body
            except MaintenanceRequired:
                broken += 1
    assert (broken > 0) == (forgets is not None)


# A disk that is full, or broken


def full_once(
    disk: Disk, at: int, error: Callable[[str, str], OSError], call: str, times: int
) -> None:
    """Let calls of one kind fail, from the `at`-th on, `times` times."""
    seen = 0

    def before(made: str, path: str) -> None:
        nonlocal seen
        if made != call:
            return
        seen += 1
        if at <= seen < at + times:
            raise error(made, path)

    disk.before = before
    disk.seen = lambda: seen  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("times", [1, 7])
@pytest.mark.case("K9")
@pytest.mark.invariant("D6", "P11", "S6")
async def test_a_full_disk_at_any_write_loses_nothing_and_heals(
    template: Disk, place: Path, times: int
) -> None:
    for at in itertools.count(1, 1 if THOROUGH else 4):
        disk = template.copy()
        world = World(place, disk)
        chance = random.Random(3)
        with mounted(disk) as name:
            store = await world.open(name)
            full_once(disk, at, full, "write", times)
            author = Author("run-1")
            refusals = 0
            for _ in range(8):
                transition = next_transition(author, chance)
                while True:
                    try:
                        await world.commit(store, [(author, transition)])
                        break
                    except CapacityUnavailable as refused:
                        which = (refused.which, refused.transient)
                    refusals += 1
                    assert which == ("disk", True)
                    assert refusals <= times
                    assert await world.verified(store) == []
            calls = disk.seen()
            assert await world.verified(store) == []
            await store.close()
        with mounted(disk) as name:
            store = await world.open(name)
            assert await world.verified(store) == []
            assert (await store.run("run-1")).header == author.header
            await store.close()
        if calls < at:
            return


@pytest.mark.slow
@pytest.mark.parametrize("at", range(1, 24))
@pytest.mark.invariant("D6", "S12")
async def test_a_failed_sync_leaves_the_outcome_unknown_and_the_store_writes_no_more(
    template: Disk, place: Path, at: int
) -> None:
    disk = template.copy()
    world = World(place, disk)
    chance = random.Random(at)
    with mounted(disk) as name:
        store = await world.open(name)
        full_once(disk, at, lost, "sync", 1)
        author = Author("run-1")
        failed = False
        for _ in range(30):
            transition = next_transition(author, chance)
            try:
                await world.commit(store, [(author, transition)])
            except StoreUnavailable as error:
                failed = error.code == "commit-unknown"
                break
        if failed:
            with pytest.raises(StoreUnavailable) as broken:
                await store.commit([transition], epoch=1)
            assert broken.value.code == "store-broken"
            assert "may have succeeded" in broken.value.message
        await store.close()
    with mounted(disk) as name:
        store = await world.open(name)
        assert await world.verified(store) == []
        sequence = (await store.runs(RunFilter()) or [None])[0]
        written = transition.header.sequence if sequence else 0
        if sequence:
            assert sequence.stored.header.sequence in {
                author.expected.sequence if author.expected else 0,
                written,
            }
        await store.close()


@pytest.mark.case("K9")
@pytest.mark.invariant("D6")
async def test_a_database_that_may_not_grow_says_so_and_heals(tmp_path: Path) -> None:
    store = await open_sqlite(tmp_path / "tally.db", now=lambda: 1, new_id=Ids())
    await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
    connection = store._session._connection
    author = Author("run-1")
    await put(store, author, author.admit())
    await put(store, author, author.begin("n0"))
    connection.pragma("max_page_count", connection.pragma("page_count"))
    refused = None
    for number in range(100):
        transition = author.step(f"n{number}", f"n{number + 1}")
        try:
            await put(store, author, transition)
        except CapacityUnavailable as error:
            refused = error
            break
    assert refused is not None
    assert refused.facts["written"] is False
    assert "FullError" in str(refused.facts["error"])
    assert (await store.run("run-1")).header == author.header
    connection.pragma("max_page_count", 100_000)
    await put(store, author, transition)
    assert [*connection.execute("PRAGMA integrity_check")] == [("ok",)]
    await store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 2 MB in memory."""
    import subprocess

    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.slow
@pytest.mark.case("K9")
@pytest.mark.invariant("D6")
async def test_a_real_disk_that_is_full_loses_nothing_and_heals(small_disk: Path) -> None:
    path = small_disk / "tally.db"
    store = await open_sqlite(path, now=lambda: 1, new_id=Ids())
    assert "does not survive" in store.warnings[0]
    await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
    ballast = small_disk / "ballast"
    author = Author("run-1")
    await put(store, author, author.admit())
    await put(store, author, author.begin("n0"))
    refusals = 0
    for number in range(300):
        transition = author.step(f"n{number}", f"n{number + 1}")
        if number % 60 == 20:
            fill(ballast)
        try:
            await put(store, author, transition)
        except CapacityUnavailable:
            refusals += 1
            assert (await store.run("run-1")).header == author.header
            free(ballast)
            await put(store, author, transition)
    assert refusals > 0
    large = author.settle("n300", msgspec.json.encode("x" * 1_500_000))
    fill(ballast)
    with pytest.raises(CapacityUnavailable):
        await store.commit([large], epoch=1)
    free(ballast)
    await store.close()
    store = await open_sqlite(path, now=lambda: 1, new_id=Ids())
    assert (await store.run("run-1")).header == author.header
    await store.close()


def fill(ballast: Path) -> None:
    """Write until there is no space left."""
    try:
        with ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        return


def free(ballast: Path) -> None:
    ballast.unlink()
