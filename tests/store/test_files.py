"""Values in files beside the database: durable before they are cited, whole or damaged, swept."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import msgspec
import pytest

from tallystick.errors import (
    CapacityUnavailable,
    InvalidRequest,
    MaintenanceRequired,
    StoreUnavailable,
)
from tallystick.store import files
from tallystick.store.files import INLINE_MAX, ORPHAN_AGE_MS, Blobs, System, grow
from tallystick.store.protocol import Committed, RunFilter
from tallystick.store.sqlite import SqliteStore, open_sqlite
from tests.store.conftest import Ids
from tests.store.contract import put
from tests.store.flows import DEFINITION, DEFINITION_BODY, Author, payload_of

LARGE = msgspec.json.encode("x" * INLINE_MAX)


class Recording(System):
    """Says in which order the disk was asked for what; may fail at one call."""

    def __init__(self, fails: str = "", code: int = errno.EIO) -> None:
        self.calls: list[str] = []
        self.fails, self.code = fails, code

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails:
            raise OSError(self.code, "as told")

    def create(self, path: Path, body: bytes) -> int:
        self._called("create")
        return super().create(path, body)

    def sync(self, fd: int) -> None:
        self._called("sync directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "sync")
        super().sync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self._called("rename")
        super().rename(old, new)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tally.db-blobs"


async def opened(tmp_path: Path, **keywords: object) -> SqliteStore:
    store = await open_sqlite(
        tmp_path / "tally.db", **{"now": lambda: 1, "new_id": Ids()} | keywords
    )
    await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
    return store


def cited(folder: Path) -> Path:
    """The one file in a folder of values."""
    (file,) = folder.iterdir()
    return file


def test_a_file_is_synced_before_it_has_its_name_and_its_name_before_it_is_cited(
    folder: Path,
) -> None:
    system = Recording()
    blobs = Blobs(folder, new_name=Ids(), system=system)
    name = blobs.put(b"body")
    assert system.calls == ["sync directory", "create", "sync", "rename", "sync directory"]
    assert blobs.get(name, 4) == b"body"
    system.calls.clear()
    blobs.put(b"body")
    assert system.calls == ["create", "sync", "rename", "sync directory"]
    assert len(list(folder.iterdir())) == 2


@pytest.mark.invariant("D4")
def test_files_and_their_folder_are_private(folder: Path) -> None:
    before = os.umask(0)
    try:
        Blobs(folder, new_name=Ids()).put(b"body")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(cited(folder).stat().st_mode) == 0o600


@pytest.mark.parametrize("call", ["create", "sync", "rename", "sync directory"])
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOSPC, CapacityUnavailable),
        (errno.EDQUOT, CapacityUnavailable),
        (errno.EIO, StoreUnavailable),
    ],
)
@pytest.mark.invariant("D6")
async def test_a_value_that_cannot_be_written_leaves_no_transition(
    tmp_path: Path, call: str, code: int, kind: type[Exception]
) -> None:
    system = Recording()
    store = await opened(tmp_path, system=system)
    system.fails, system.code = call, code
    author = Author("run-1")
    transition = author.admit(LARGE)
    with pytest.raises(kind):
        await store.commit([transition], epoch=1)
    assert await store.runs(RunFilter()) == []
    system.fails = ""
    await put(store, author, transition)
    assert await store.payload("run-1", 1) == payload_of(LARGE)
    await store.close()


async def test_only_large_values_go_to_files(tmp_path: Path, folder: Path) -> None:
    store = await opened(tmp_path)
    author = Author("run-1")
    await put(store, author, author.admit(LARGE[2:]))
    assert "tally.db-blobs" not in os.listdir(tmp_path)
    await put(store, author, author.begin("one", LARGE))
    assert os.stat(cited(folder)).st_size == len(LARGE)
    await store.close()


@pytest.mark.case("P1")
async def test_a_value_beyond_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "VALUE_MAX", len(LARGE) - 1)
    store = await opened(tmp_path)
    with pytest.raises(InvalidRequest) as refused:
        await store.commit([Author("run-1").admit(LARGE)], epoch=1)
    assert refused.value.facts == {"size": len(LARGE), "limit": len(LARGE) - 1}
    assert await store.runs(RunFilter()) == []
    await store.close()


def _harm(file: Path, how: str) -> None:
    match how:
        case "missing":
            file.unlink()
        case "shorter":
            file.write_bytes(file.read_bytes()[:-1])
        case "altered":
            file.write_bytes(file.read_bytes().replace(b"xx", b"xy", 1))
        case "a link":
            copy = file.with_name("copy")
            file.rename(copy)
            file.symlink_to(copy)
        case "a folder":
            file.unlink()
            file.mkdir()


@pytest.mark.parametrize("how", ["missing", "shorter", "altered", "a link", "a folder"])
async def test_a_run_whose_value_is_missing_or_altered_is_damaged(
    tmp_path: Path, folder: Path, how: str
) -> None:
    store = await opened(tmp_path)
    author, other = Author("run-1"), Author("run-2", seed=2)
    await put(store, author, author.admit(LARGE))
    _harm(cited(folder), how)
    await put(store, other, other.admit())
    for read in (store.payload("run-1", 1), anext(store.events("run-1"))):
        with pytest.raises(MaintenanceRequired):
            await read
    assert await store.payload("run-2", 1) is not None
    await store.close()


async def test_what_nothing_cites_is_removed_after_a_day(tmp_path: Path, folder: Path) -> None:
    store = await opened(tmp_path)
    author = Author("run-1")
    await put(store, author, author.admit(LARGE))
    kept = cited(folder)
    _orphans(folder)
    now = int(os.stat(kept).st_mtime * 1000)
    assert await store.sweep_blobs(now) == []
    assert await store.sweep_blobs(now + ORPHAN_AGE_MS) == []
    later = now + ORPHAN_AGE_MS + 60_000
    assert await store.sweep_blobs(later) == ["id-9", "id-9.tmp"]
    assert cited(folder) == kept
    assert await store.payload("run-1", 1) == payload_of(LARGE)
    await store.close()


def _orphans(folder: Path) -> None:
    (folder / "id-9").write_bytes(b"orphan")
    (folder / "id-9.tmp").write_bytes(b"half")
    (folder / "folder").mkdir()
    os.rmdir(folder / "folder")


async def test_sweeping_where_there_never_was_a_value_is_nothing(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    assert await store.sweep_blobs(2**50) == []
    await store.close()


async def test_a_refused_transition_leaves_a_file_that_nothing_cites(
    tmp_path: Path, folder: Path
) -> None:
    store = await opened(tmp_path)
    author = Author("run-1")
    await put(store, author, author.admit())
    again = Author("run-1", seed=4)
    (answer,) = await store.commit([again.admit(LARGE)], epoch=1)
    assert not isinstance(answer, Committed)
    later = int(os.stat(cited(folder)).st_mtime * 1000) + ORPHAN_AGE_MS + 60_000
    assert len(await store.sweep_blobs(later)) == 1
    await store.close()


def test_a_file_is_grown_once_and_only_where_there_is_space(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"abc")
    grow(file, to=10_000, free=2**60)
    assert file.read_bytes() == b"abc"
    grow(file, to=10_000, free=0)
    assert file.read_bytes() == b"abc" + bytes(9_997)
    grow(file, to=5_000, free=0)
    assert file.stat().st_size == 10_000
    grow(tmp_path / "none", to=5_000, free=0)
    assert not (tmp_path / "none").exists()
