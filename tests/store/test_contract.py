"""The contract, met by SQLite and by a deliberately different store in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallystick.store.protocol import Answer, Committed, RowRefused, RunFilter, Store, Transition
from tallystick.store.sqlite import open_sqlite
from tests.store.conftest import Ids
from tests.store.contract import StoreContract, everything
from tests.store.flows import DEFINITION, DEFINITION_BODY, Author
from tests.store.memory import Memory


class SqliteHome:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.ids = Ids()

    async def open(self) -> Store:
        return await open_sqlite(self.path, now=lambda: 1_700_000_000_000, new_id=self.ids)


class TestSqlite(StoreContract):
    @pytest.fixture
    def home(self, tmp_path: Path) -> SqliteHome:
        return SqliteHome(tmp_path / "tally.db")


class TestMemory(StoreContract):
    @pytest.fixture
    def home(self) -> Memory:
        return Memory()


async def test_the_store_in_memory_has_two_writers_that_meet(tmp_path: Path) -> None:
    """Else it would differ from SQLite in name only."""
    store = await Memory().open()
    await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
    authors = [Author(f"run-{n}", seed=n) for n in range(20)]
    await asyncio.gather(*(store.commit([author.admit()], epoch=1) for author in authors))
    assert store.collisions > 0
    assert len(await store.runs(RunFilter())) == 20
    await store.close()


KINDS = ("admit", "begin", "step", "settle", "stale", "twice", "end", "redispatch", "doubt")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.sampled_from(KINDS)), min_size=1, max_size=5),
        max_size=12,
    )
)
@pytest.mark.slow
@pytest.mark.invariant("P11", "M3")
def test_both_stores_answer_alike_and_hold_the_same(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[tuple[int, str]]]
) -> None:
    """Whatever is asked of them, in whatever batches: the same answers and the same rows."""
    asyncio.run(_compare(tmp_path_factory.mktemp("both") / "tally.db", batches))


async def _compare(path: Path, batches: list[list[tuple[int, str]]]) -> None:
    stores: list[Store] = [await SqliteHome(path).open(), await Memory().open()]
    for store in stores:
        await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
    authors = [Author(f"run-{n}", key=f"key-{n % 3}", seed=n) for n in range(4)]
    for batch in batches:
        asked = [(authors[n], _asked(authors[n], kind)) for n, kind in batch]
        one, other = [await s.commit([t for _, t in asked], epoch=1) for s in stores]
        assert [_kind(a) for a in one] == [_kind(a) for a in other]
        for (author, transition), answer in zip(asked, one, strict=True):
            if isinstance(answer, Committed):
                author.committed(transition)
    runs = [author.run for author in authors]
    assert await everything(stores[0], *runs) == await everything(stores[1], *runs)
    for store in stores:
        await store.close()


def _asked(author: Author, kind: str) -> Transition:
    """A transition of a kind that may or may not be allowed now."""
    if author.expected is None or kind == "admit":
        return (author if author.expected is None else Author(author.run, seed=5)).admit()
    number = author.header.consumed - 1
    match kind:
        case "begin":
            return author.begin(f"n{number + 1}")
        case "step":
            return author.step(f"n{number}", f"n{number + 1}")
        case "stale":
            stale = msgspec.structs.replace(author.expected, token=bytes(16))
            return msgspec.structs.replace(author.begin(f"n{number + 1}"), expected=stale)
        case "twice":
            return author.begin(f"n{number}")
        case "end":
            return author.end()
    return getattr(author, kind)(f"n{number}")


def _kind(answer: Answer) -> object:
    """Two databases need not say in the same words why a row was refused."""
    return "refused" if isinstance(answer, RowRefused) else answer
