"""Where a database may lie: on a local file system, in a directory and files of our own.

A network file system does not keep SQLite's promises about locks and shared memory, and a file that
somebody else can replace is not ours. So a place is looked at before it is touched.
Source: sqlite.org/howtocorrupt.html §2.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tallystick.errors import InvalidRequest, NotFound

LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "apfs", "tmpfs", "ramfs"}
)
"""File systems by their names in the kernel's list of mounts. Source: design §10."""
VOLATILE = frozenset({"tmpfs", "ramfs"})
COMPANIONS = ("-wal", "-shm", "-journal", "-blobs")
"""What lies beside a database, by what is appended to its name."""

FileSystemOf: TypeAlias = Callable[[Path], str | None]


def file_system_of(directory: Path) -> str | None:
    """The type of the file system that holds a directory, or None where the system does not say."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    return _type_at(mounts, str(directory.resolve()))


def _type_at(mounts: str, path: str) -> str | None:
    """The type of the deepest mount above a path; a later one covers an earlier one."""
    found: tuple[int, str | None] = (-1, None)
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split(" ")[4].encode().decode("unicode_escape")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= found[0]:
            found = (len(point), after.split(" ")[0])
    return found[1]


def check_place(
    path: Path, *, create: bool, any_file_system: bool, file_system_of: FileSystemOf
) -> list[str]:
    """Look at where a database lies or shall lie; return warnings for people.

    Raises `InvalidRequest` for a place that must not be used and `NotFound` where there is none.
    Nothing is written.
    """
    directory = path.parent
    if not directory.is_dir():
        raise NotFound(
            f"the directory {directory} does not exist",
            code="no-directory",
            facts={"path": str(path)},
            next_step=f"mkdir -m 700 {directory}",
        )
    _check_directory(directory)
    for suffix in ("", *COMPANIONS):
        _check_file(path.with_name(path.name + suffix), directory=suffix == "-blobs")
    if not path.exists() and not create:
        raise NotFound(
            f"there is no database at {path}", code="no-database", facts={"path": str(path)}
        )
    return [] if any_file_system else _check_file_system(directory, file_system_of)


def _check_directory(directory: Path) -> None:
    seen = directory.stat()
    if seen.st_uid not in (os.geteuid(), 0):
        raise _refused(directory, "belongs to another user", f"uid {seen.st_uid}")
    if seen.st_mode & stat.S_IWOTH and not seen.st_mode & stat.S_ISVTX:
        raise _refused(directory, "can be written by everybody", oct(stat.S_IMODE(seen.st_mode)))


def _check_file(path: Path, *, directory: bool) -> None:
    try:
        seen = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(seen.st_mode):
        raise _refused(path, "is a symbolic link", "symlink")
    right = stat.S_ISDIR if directory else stat.S_ISREG
    if not right(seen.st_mode):
        raise _refused(path, "is not what it should be", stat.filemode(seen.st_mode))
    if seen.st_uid != os.geteuid():
        raise _refused(path, "belongs to another user", f"uid {seen.st_uid}")


def _check_file_system(directory: Path, file_system_of: FileSystemOf) -> list[str]:
    kind = file_system_of(directory)
    if kind is None and sys.platform != "linux":
        return [f"the file system of {directory} is unknown; it must be a local one"]
    if kind not in LOCAL:
        raise InvalidRequest(
            f"{directory} lies on a file system of type {kind}, which is not known to be safe",
            code="file-system-refused",
            check="file-system",
            facts={"directory": str(directory), "type": kind},
            next_step="choose a local directory, or allow any file system if you know this one",
        )
    if kind in VOLATILE:
        return [f"{directory} lies in memory ({kind}): it does not survive a reboot"]
    return []


def _refused(path: Path, what: str, seen: str) -> InvalidRequest:
    return InvalidRequest(
        f"{path} {what} ({seen})",
        code="place-refused",
        check="place",
        facts={"path": str(path), "seen": seen},
        next_step="keep the database in a directory of your own that only you can write",
    )


def make_private(path: Path) -> None:
    """Make an empty file that only its owner can read, whatever the umask.

    One that is there is closed to others, by its name: to open and close a database that this
    process has open would drop its locks. Source: sqlite.org/howtocorrupt.html §2.2.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        if stat.S_IMODE(path.lstat().st_mode) & 0o077:
            path.chmod(0o600)
        return
    except OSError as error:
        raise _refused(path, "cannot be made", error.strerror or "?") from error
    try:
        os.fchmod(fd, 0o600)
    finally:
        os.close(fd)
