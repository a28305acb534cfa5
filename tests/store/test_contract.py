"""The contract, met by SQLite and by a deliberately different store in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.store.protocol import Store
from tallystick.store.sqlite import open_sqlite
from tests.store.conftest import Ids
from tests.store.contract import StoreContract


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
