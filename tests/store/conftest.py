"""What the tests of the stores share."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.store.sqlite import SqliteStore, open_sqlite
from tests.store.flows import DEFINITION, DEFINITION_BODY


class Ids:
    """Ids that are never used twice, in the order in which they are asked for."""

    def __init__(self, prefix: str = "id") -> None:
        self._numbers = itertools.count(1)
        self._prefix = prefix

    def __call__(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"


@pytest.fixture
def ids() -> Ids:
    return Ids()


@pytest.fixture
def opened(tmp_path: Path, ids: Ids) -> Callable[..., object]:
    """Open a store in a fresh directory; keywords as for `open_sqlite`."""

    async def open_it(path: Path | None = None, **keywords: object) -> SqliteStore:
        store = await open_sqlite(
            path or tmp_path / "tally.db",
            **{"now": lambda: 1_700_000_000_000, "new_id": ids} | keywords,
        )
        if not keywords.get("read_only"):
            await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
        return store

    return open_it
