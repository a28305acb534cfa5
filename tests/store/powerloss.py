"""A disk that forgets: what was not synced may be lost, or half there, when power fails.

    Disk    inodes with what is durable and what was written since; names, durable or not
    Vfs     SQLite's files on that disk
    Files   the system calls of `store/files` on that disk

A crash keeps, drops or tears each write since the file's last sync, by sectors of 512 bytes and in
any order, and undoes the newest changes of names that no sync covered. What a real disk may do is
less. The disk also keeps a log of every call, so that a test can cut it anywhere, and can be told
to fail.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from tallystick.store.files import System

SECTOR = 512


def lost(call: str, path: str) -> OSError:
    """Power fails at this call: nothing works any more."""
    return OSError(errno.EIO, f"power lost at {call}", path)


def full(call: str, path: str) -> OSError:
    """No space for this call."""
    return OSError(errno.ENOSPC, f"no space at {call}", path)


@contextmanager
def _as_sqlite_says_it() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = apsw.FullError if error.errno == errno.ENOSPC else apsw.IOError
        raise kind(str(error)) from error


@dataclass
class Inode:
    """A file: its bytes as a reader sees them, as the disk holds them, and what lies between."""

    number: int
    current: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes] | int] = field(default_factory=list)

    def write(self, offset: int, body: bytes) -> None:
        _apply(self.current, (offset, body))
        self.pending.append((offset, body))

    def truncate(self, size: int) -> None:
        _apply(self.current, size)
        self.pending.append(size)

    def sync(self) -> None:
        self.durable = bytes(self.current)
        self.pending.clear()

    def after_crash(self, chance: random.Random) -> bytes:
        """What is found: the durable bytes, and of each later write all, nothing or a part."""
        found = bytearray(self.durable)
        pending = list(self.pending)
        fate = chance.random()
        if fate < 0.3:  # written out in order up to some moment: what most disks do
            pending = pending[: chance.randint(0, len(pending))]
        elif fate < 0.6:  # in any order
            chance.shuffle(pending)
        for change in pending:
            kept = chance.choice(("all", "none", "torn"))
            if kept == "all" or (kept == "torn" and isinstance(change, int)):
                _apply(found, change)
            elif kept == "torn":
                offset, body = change
                for at in range(0, len(body), SECTOR):
                    if chance.random() < 0.5:
                        _apply(found, (offset + at, body[at : at + SECTOR]))
        return bytes(found)


def _apply(content: bytearray, change: tuple[int, bytes] | int) -> None:
    if isinstance(change, int):
        del content[change:]
        content.extend(bytes(change - len(content)))
        return
    offset, body = change
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(body)] = body


@dataclass
class Disk:
    """Files by path. `before`: called before every call that changes something; it may raise."""

    names: dict[str, Inode] = field(default_factory=dict)
    durable_names: dict[str, Inode] = field(default_factory=dict)
    unsynced_names: list[tuple[str, Inode | None]] = field(default_factory=list)
    log: list[tuple[object, ...]] = field(default_factory=list)
    before: Callable[[str, str], None] = lambda call, path: None
    forgets_names: bool = True
    made: int = 0

    def open(self, path: str, *, create: bool) -> Inode:
        inode = self.names.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            self.before("create", path)
            self.made += 1
            inode = Inode(self.made)
            self._name(path, inode)
        return inode

    def _name(self, path: str, inode: Inode | None) -> None:
        if inode is None:
            self.names.pop(path, None)
        else:
            self.names[path] = inode
        self.unsynced_names.append((path, inode))
        self.log.append(("name", path, inode.number if inode else None))

    def write(self, path: str, inode: Inode, offset: int, body: bytes) -> None:
        self.before("write", path)
        inode.write(offset, body)
        self.log.append(("write", inode.number, offset, body))

    def truncate(self, path: str, inode: Inode, size: int) -> None:
        self.before("truncate", path)
        inode.truncate(size)
        self.log.append(("truncate", inode.number, size))

    def sync(self, path: str, inode: Inode) -> None:
        self.before("sync", path)
        inode.sync()
        self.log.append(("sync", inode.number))

    def sync_names(self) -> None:
        self.before("sync", "names")
        self.durable_names = dict(self.names)
        self.unsynced_names.clear()
        self.log.append(("sync names",))

    def rename(self, old: str, new: str) -> None:
        self.before("rename", new)
        inode = self.names[old]
        self._name(new, inode)
        self._name(old, None)

    def remove(self, path: str) -> None:
        self.before("remove", path)
        if path in self.names:
            self._name(path, None)

    def crash(self, chance: random.Random) -> Disk:
        """The disk as it is found when power is back."""
        names = dict(self.durable_names)
        kept = chance.randint(0, len(self.unsynced_names)) if self.forgets_names else None
        for path, inode in self.unsynced_names[:kept]:
            if inode is None:
                names.pop(path, None)
            else:
                names[path] = inode
        found = {inode.number: inode.after_crash(chance) for inode in names.values()}
        return _disk({path: found[inode.number] for path, inode in names.items()})

    def copy(self) -> Disk:
        """The same files, all of it durable."""
        return _disk({path: bytes(inode.current) for path, inode in self.names.items()})


def _disk(files: dict[str, bytes]) -> Disk:
    disk = Disk()
    for number, (path, content) in enumerate(files.items(), 1):
        disk.names[path] = Inode(number, bytearray(content), content)
        disk.log.append(("found", number, path, content))
    disk.durable_names = dict(disk.names)
    disk.made = len(files)
    return disk


def cut(log: list[tuple[object, ...]], at: int, chance: random.Random | None) -> Disk:
    """The disk after the first `at` calls of a log. chance None: only the process was killed."""
    disk = Disk()
    inodes: dict[object, Inode] = {}
    for call in log[:at]:
        match call:
            case ("found", number, path, content):
                inodes[number] = disk.names[path] = Inode(number, bytearray(content), content)
                disk.durable_names[path] = inodes[number]
            case ("name", path, number):
                if number is not None and number not in inodes:
                    inodes[number] = Inode(number)
                disk._name(path, None if number is None else inodes[number])
            case ("write", number, offset, body):
                inodes[number].write(offset, body)
            case ("truncate", number, size):
                inodes[number].truncate(size)
            case ("sync", number):
                inodes[number].sync()
            case ("sync names",):
                disk.durable_names = dict(disk.names)
                disk.unsynced_names.clear()
    return disk.copy() if chance is None else disk.crash(chance)


class _File:
    """One open file. SQLite's own words for what a file does."""

    def __init__(self, disk: Disk, path: str, inode: Inode) -> None:
        self.disk, self.path, self.inode = disk, path, inode

    def xRead(self, amount: int, offset: int) -> bytes:
        return bytes(self.inode.current[offset : offset + amount])

    def xWrite(self, body: bytes, offset: int) -> None:
        with _as_sqlite_says_it():
            self.disk.write(self.path, self.inode, offset, bytes(body))

    def xTruncate(self, size: int) -> None:
        with _as_sqlite_says_it():
            self.disk.truncate(self.path, self.inode, size)

    def xSync(self, flags: int) -> None:
        with _as_sqlite_says_it():
            self.disk.sync(self.path, self.inode)
            if self.disk.durable_names.get(self.path) is not self.inode:  # as for any new file
                self.disk.sync_names()

    def xFileSize(self) -> int:
        return len(self.inode.current)

    def xLock(self, level: int) -> None:
        return

    def xUnlock(self, level: int) -> None:
        return

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, op: int, pointer: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return 4096

    def xDeviceCharacteristics(self) -> int:
        # What SQLite takes for granted on Unix; tearing here keeps to it.
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE

    def xClose(self) -> None:
        return


class Vfs(apsw.VFS):
    """SQLite on a `Disk`. Temporary files are kept in memory by SQLite itself."""

    def __init__(self, name: str, disk: Disk) -> None:
        self.disk = disk
        super().__init__(name, "")

    def xOpen(self, name: object, flags: list[int]) -> _File:
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        create = bool(flags[0] & apsw.SQLITE_OPEN_CREATE)
        if not create and path not in self.disk.names:
            raise apsw.CantOpenError(path)
        with _as_sqlite_says_it():
            inode = self.disk.open(path, create=create)
        flags[1] = flags[0]
        return _File(self.disk, path, inode)

    def xDelete(self, path: str, syncdir: bool) -> None:
        with _as_sqlite_says_it():
            self.disk.remove(path)
            if syncdir:
                self.disk.sync_names()

    def xAccess(self, path: str, flags: int) -> bool:
        return path in self.disk.names

    def xFullPathname(self, path: str) -> str:
        return path


class Files(System):
    """The system calls of `store/files` on a `Disk`. forgets: a call that is left out, by name."""

    def __init__(self, disk: Disk, forgets: str | None = None) -> None:
        self.disk, self.forgets = disk, forgets
        self.open: dict[int, str] = {}

    def create(self, path: Path, body: bytes) -> int:
        if str(path) in self.disk.names:
            raise FileExistsError(errno.EEXIST, "there already", str(path))
        inode = self.disk.open(str(path), create=True)
        for at in range(0, len(body), 4096):
            self.disk.write(str(path), inode, at, body[at : at + 4096])
        self.open[inode.number] = str(path)
        return inode.number

    def sync(self, fd: int) -> None:
        if self.forgets != "sync":
            path = self.open[fd]
            self.disk.sync(path, self.disk.names[path])

    def close(self, fd: int) -> None:
        del self.open[fd]

    def rename(self, old: Path, new: Path) -> None:
        self.disk.rename(str(old), str(new))

    def sync_directory(self, directory: Path) -> None:
        if self.forgets != "sync_directory":
            self.disk.sync_names()

    def make_directory(self, directory: Path) -> bool:
        return True

    def read(self, path: Path) -> bytes:
        if str(path) not in self.disk.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return bytes(self.disk.names[str(path)].current)

    def listing(self, directory: Path) -> list[tuple[str, int]]:
        inside = [Path(path) for path in self.disk.names if Path(path).parent == directory]
        return [(path.name, 0) for path in inside]

    def remove(self, path: Path) -> None:
        self.disk.remove(str(path))
