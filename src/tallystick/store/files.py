"""The one place where durable files are written: whole, under their final name, or not at all.

    write under a temporary name ─▶ fsync ─▶ rename ─▶ fsync the directory

Only after the last step may anything refer to the file. The operating system is reached through
`System`, so that a test can lose what was not synced, and tear it.

`Blobs` are files of this kind beside the database: payload bodies that are too large for a row,
each under a random name that nothing else ever gets.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from tallystick.errors import (
    CapacityUnavailable,
    InvalidRequest,
    MaintenanceRequired,
    StoreUnavailable,
)
from tallystick.store.faults import Fault, no_fault

INLINE_MAX = 64 * 1024
"""Payload bodies above this many bytes go to a file."""
VALUE_MAX = 64 * 1024 * 1024
"""Payload bodies above this many bytes are refused. Source: design §9."""
ORPHAN_AGE_MS = 24 * 60 * 60 * 1000
"""A file that nothing cites is kept this long: the transaction that cites it may be under way."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class System:
    """The calls into the operating system that durable writing is made of."""

    def create(self, path: Path, body: bytes) -> int:
        """Make a new file, readable by its owner alone, and write it. Returns a descriptor."""
        fd = os.open(path, _NEW, 0o600)
        try:
            os.fchmod(fd, 0o600)
            view = memoryview(body)
            while view:
                view = view[os.write(fd, view) :]
        except BaseException:
            os.close(fd)
            raise
        return fd

    def sync(self, fd: int) -> None:
        """Bring a file, or a directory, to the disk itself."""
        if sys.platform == "darwin":  # fsync stops at the drive's cache. Source: fsync(2) of macOS
            import fcntl

            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        else:
            os.fsync(fd)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file its final name."""
        os.rename(old, new)

    def sync_directory(self, directory: Path) -> None:
        """Bring the names in a directory to the disk."""
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(fd)
        finally:
            os.close(fd)

    def make_directory(self, directory: Path) -> bool:
        """Make a directory for its owner alone. False: it was there."""
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            return False
        directory.chmod(0o700)
        return True

    def read(self, path: Path) -> bytes:
        """The whole content of a regular file; never follows a link."""
        fd = os.open(path, _READ)
        with os.fdopen(fd, "rb") as file:
            return file.read()

    def listing(self, directory: Path) -> list[tuple[str, int]]:
        """Names of the regular files in a directory, with the time of their last change in ms."""
        with os.scandir(directory) as entries:
            found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
        return [
            (name, seen.st_mtime_ns // 1_000_000)
            for name, seen in found
            if stat.S_ISREG(seen.st_mode)
        ]

    def remove(self, path: Path) -> None:
        """Remove a file; one that is gone is no error."""
        path.unlink(missing_ok=True)


class Blobs:
    """Payload bodies in files, in a directory of their own.

    new_name  a random name that was never used before; safe in a file name
    """

    def __init__(
        self,
        directory: Path,
        *,
        new_name: Callable[[], str],
        system: System | None = None,
        fault: Fault = no_fault,
    ) -> None:
        self.directory = directory
        self._new_name = new_name
        self._system = system or System()
        self._fault = fault
        self._ready = False

    def put(self, body: bytes) -> str:
        """Write a body durably and return the name to cite it by.

        Raises `InvalidRequest` above `VALUE_MAX`, `CapacityUnavailable` when the disk is full and
        `StoreUnavailable` for any other failure; a file may stay behind that nothing cites.
        """
        if len(body) > VALUE_MAX:
            raise InvalidRequest(
                f"a value of {len(body)} bytes exceeds the limit of {VALUE_MAX}",
                code="value-too-large",
                check="size",
                facts={"size": len(body), "limit": VALUE_MAX},
                next_step="store the data elsewhere and pass a reference",
            )
        try:
            return self._put(body)
        except OSError as error:
            raise _failed(error, self.directory) from error

    def _put(self, body: bytes) -> str:
        self._prepare()
        name = self._new_name()
        temporary = self.directory / f"{name}.tmp"
        self._fault("blob.before-write")
        fd = self._system.create(temporary, body)
        try:
            self._fault("blob.after-write")
            self._system.sync(fd)
        finally:
            self._system.close(fd)
        self._system.rename(temporary, self.directory / name)
        self._fault("blob.after-rename")
        self._system.sync_directory(self.directory)
        self._fault("blob.after-sync")
        return name

    def _prepare(self) -> None:
        if self._ready:
            return
        self._system.make_directory(self.directory)
        # Also where it was there already: whoever made it may have died before this.
        self._system.sync_directory(self.directory.parent)
        self._ready = True

    def get(self, name: str, size: int) -> bytes:
        """The body under a name; `MaintenanceRequired` if it is missing or has another size."""
        try:
            body = self._system.read(self.directory / name)
        except OSError as error:
            raise _lost(name, f"cannot be read: {error.strerror}") from error
        if len(body) != size:
            raise _lost(name, f"has {len(body)} bytes instead of {size}")
        return body

    def sweep(self, now: int, is_cited: Callable[[str], bool]) -> list[str]:
        """Remove files older than a day that nothing cites; return their names. now: in ms."""
        try:
            found = self._system.listing(self.directory)
        except FileNotFoundError:
            return []
        orphans = [
            name
            for name, changed in sorted(found)
            if now - changed > ORPHAN_AGE_MS and not is_cited(name)
        ]
        for name in orphans:
            self._system.remove(self.directory / name)
        return orphans


def _failed(error: OSError, directory: Path) -> CapacityUnavailable | StoreUnavailable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CapacityUnavailable(
            f"no space for a value beside the database: {error.strerror}",
            which="disk",
            transient=True,
            code="disk-full",
            facts={"directory": str(directory)},
            next_step="free some space; the engine goes on by itself",
        )
    return StoreUnavailable(
        f"a value could not be written beside the database: {error.strerror}",
        code="blob-not-written",
        facts={"directory": str(directory)},
    )


def _lost(name: str, what: str) -> MaintenanceRequired:
    return MaintenanceRequired(
        f"the file {name} that a payload cites {what}",
        code="blob-damaged",
        check="blob",
        facts={"blob": name},
        next_step="restore the file from a backup of the database and its blobs",
    )


def grow(path: Path, *, to: int, free: int) -> None:
    """Write zeros behind a file's end until it has `to` bytes; for speed alone, so never an error.

    free  bytes that must be free on the disk, else the file stays as it is
    """
    try:
        space = os.statvfs(path)
        size = path.stat().st_size
        if size >= to or space.f_bavail * space.f_frsize < free:
            return
        with path.open("r+b", buffering=0) as file:
            file.seek(size)
            file.write(bytes(to - size))
            os.fsync(file.fileno())
    except OSError:
        return
