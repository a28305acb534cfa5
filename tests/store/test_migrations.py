"""Schema versions: what is refused without a byte being written, and how a store moves forward."""

from __future__ import annotations

import hashlib
from pathlib import Path

import apsw
import pytest

from tallystick.errors import MaintenanceRequired, NotFound, UnsupportedSchema
from tallystick.store import migrations
from tallystick.store.migrations import SCHEMA, Migration, steps
from tallystick.store.sqlite import migrate_sqlite, open_sqlite
from tests.store.conftest import Ids
from tests.store.contract import put
from tests.store.flows import DEFINITION, DEFINITION_BODY, Author


def fingerprint(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file()
    }


async def refused(path: Path, code: str) -> UnsupportedSchema:
    """Opening is refused with this code, and changes no byte of the folder."""
    before = fingerprint(path.parent)
    with pytest.raises(UnsupportedSchema) as error:
        await open_sqlite(path, now=lambda: 1, new_id=Ids())
    assert error.value.code == code
    assert fingerprint(path.parent) == before
    return error.value


@pytest.fixture
async def stored(tmp_path: Path) -> Path:
    """A closed store with one run."""
    path = tmp_path / "tally.db"
    store = await open_sqlite(path, now=lambda: 1, new_id=Ids())
    await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
    author = Author("run-1")
    await put(store, author, author.admit())
    await store.close()
    return path


def copied(path: Path, folder: Path) -> Path:
    """A copy of a database with its log, as a kill leaves it."""
    folder.mkdir()
    for suffix in ("", "-wal"):
        (folder / (path.name + suffix)).write_bytes(Path(f"{path}{suffix}").read_bytes())
    return folder / path.name


def edit(path: Path, sql: str) -> None:
    db = apsw.Connection(str(path))
    for statement in sql.split(";"):
        db.execute(statement).fetchall()
    db.close()


@pytest.mark.invariant("D3")
async def test_a_newer_schema_is_refused_without_a_byte(stored: Path) -> None:
    edit(stored, f"PRAGMA user_version = {SCHEMA + 1}")
    error = await refused(stored, "newer-schema")
    assert error.facts["stored"] == SCHEMA + 1


@pytest.mark.invariant("D3")
async def test_an_older_schema_names_the_command(stored: Path) -> None:
    edit(stored, f"PRAGMA user_version = {SCHEMA - 1}")
    error = await refused(stored, "older-schema")
    assert "tally db migrate" in (error.next_step or "")


@pytest.mark.invariant("D3")
async def test_a_newer_schema_that_lies_in_the_log_is_refused(tmp_path: Path) -> None:
    """The main file may not know yet: a killed process left its last commits in the log."""
    path = tmp_path / "tally.db"
    store = await open_sqlite(path, now=lambda: 1, new_id=Ids())
    await store.close()
    writer = apsw.Connection(str(path))
    writer.wal_autocheckpoint(0)
    writer.pragma("journal_mode", "WAL")
    writer.pragma("user_version", SCHEMA + 1)
    copy = copied(path, tmp_path / "copy")
    writer.close()
    before = fingerprint(copy.parent)
    with pytest.raises(UnsupportedSchema):
        await open_sqlite(copy, now=lambda: 1, new_id=Ids())
    after = fingerprint(copy.parent)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    "content",
    [b"hello, world\n" * 200, b"SQLite format 3\x00" + bytes(200), b"x"],
    ids=["text", "torn header", "one byte"],
)
@pytest.mark.invariant("D3")
async def test_a_file_that_is_no_database_is_refused_without_a_byte(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "tally.db"
    path.write_bytes(content)
    await refused(path, "foreign-file")


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
@pytest.mark.invariant("D3")
async def test_a_database_of_somebody_else_is_refused_without_a_byte(
    tmp_path: Path, mode: str
) -> None:
    path = tmp_path / "tally.db"
    edit(path, f"PRAGMA journal_mode = {mode}; CREATE TABLE orders (id INTEGER)")
    await refused(path, "foreign-database")


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    """A process that died while it made one leaves such a file."""
    path = tmp_path / "tally.db"
    edit(path, "PRAGMA user_version")
    store = await open_sqlite(path, now=lambda: 1, new_id=Ids())
    assert store.store_id == "id-1"
    await store.close()


async def test_what_is_not_there_is_not_made_unasked(tmp_path: Path) -> None:
    path = tmp_path / "tally.db"
    for keywords in ({"create": False}, {"read_only": True}):
        with pytest.raises(NotFound):
            await open_sqlite(path, now=lambda: 1, new_id=Ids(), **keywords)
    assert fingerprint(tmp_path) == {}


OLD = "DROP VIEW tally_attempt_row; DROP TRIGGER tally_run_delete; PRAGMA user_version = 0"
"""What a version 0 might have been: one view and one guard less."""


def forward() -> Migration:
    """The migration from that version: what is missing, as this version spells it."""
    view = migrations.creation()
    view = view[view.index("CREATE VIEW tally_attempt_row") :]
    guard = migrations.creation()
    guard = guard[guard.index("CREATE TRIGGER tally_run_delete") :]
    return Migration(1, view[: view.index(";") + 1] + guard[: guard.index("END;") + 4])


@pytest.fixture
def old(stored: Path) -> Path:
    edit(stored, OLD)
    return stored


@pytest.mark.invariant("D3")
async def test_a_store_moves_forward_after_its_backup_was_verified(
    old: Path, tmp_path: Path
) -> None:
    backup = tmp_path / "backup.db"
    await refused(old, "older-schema")
    before = fingerprint(tmp_path)["tally.db"]
    assert migrate_sqlite(old, backup, migrations=(forward(),)) == (0, 1)
    store = await open_sqlite(old, now=lambda: 1, new_id=Ids())
    assert (await store.run("run-1")).header.sequence == 1
    await store.close()
    assert backup.stat().st_mode & 0o777 == 0o600
    await refused(backup, "older-schema")
    assert before != fingerprint(tmp_path)["tally.db"]
    assert migrate_sqlite(old, tmp_path / "other.db", migrations=(forward(),)) == (1, 1)
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        (Migration(2, ""),),
        (Migration(1, "CREATE TABLE nonsense (")),
        (Migration(1, "CREATE TABLE tally_extra (x)")),
        (Migration(1, "DROP TRIGGER tally_event_update")),
    ],
    ids=["no way", "a gap", "no SQL", "something else", "less"],
)
@pytest.mark.invariant("D3")
async def test_a_migration_that_does_not_lead_there_changes_nothing(
    old: Path, tmp_path: Path, wrong: object
) -> None:
    chosen = wrong if isinstance(wrong, tuple) else (wrong,)
    before = fingerprint(old.parent)["tally.db"]
    with pytest.raises((UnsupportedSchema, MaintenanceRequired)):
        migrate_sqlite(old, tmp_path / "backup.db", migrations=chosen)
    assert fingerprint(old.parent)["tally.db"] == before


@pytest.mark.invariant("D3")
def test_no_migration_without_a_backup(old: Path, tmp_path: Path) -> None:
    (tmp_path / "backup.db").write_bytes(b"something of value")
    before = fingerprint(tmp_path)
    with pytest.raises(MaintenanceRequired):
        migrate_sqlite(old, tmp_path / "backup.db", migrations=(forward(),))
    assert fingerprint(tmp_path) == before


def test_numbers_rise_by_one() -> None:
    one, two, three = (Migration(number, "") for number in (1, 2, 3))
    assert steps(1, 3, (one, two, three)) == [two, three]
    assert steps(3, 3, (one, two, three)) == []
    for given in ((one, three), (one, two), (three, two), ()):
        with pytest.raises(UnsupportedSchema):
            steps(1, 3, given)
