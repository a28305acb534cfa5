"""Who is alive: lock files, and what they prove about an engine that may be gone.

    engine lock    one per engine epoch of a store, `engine-1.lock`: its holder is *the* engine
    instance lock  one per opening by an engine: the evidence about that instance's end

Both are `flock`s on files of a folder beside the database, taken by the kernel and freed by the
kernel when the last descriptor is closed, whatever killed the process. A descriptor is closed on
exec, and closed at once in a forked child, so that no child keeps a dead engine alive. Nothing else
is evidence: not a process id, not a heartbeat, not an age. Source: design §5, whose list is closed.

Ours are at the path that they were recorded at, with the same device and inode: a file that was put
in their place proves nothing.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import sys
import weakref
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from tallystick.errors import OwnerElsewhere, StoreUnavailable, TallyError
from tallystick.store.protocol import EngineRow

FOLDER_SUFFIX: Final = "-locks"
IDENTITY_BYTES_MAX: Final = 4_096
COMMAND_LENGTH_MAX: Final = 500
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class Holder(msgspec.Struct, frozen=True):
    """Who holds a lock, as it wrote into the file. For people: nothing is decided by it.

    since  wall clock, ms
    """

    pid: int
    host: str
    command: str
    since: int
    instance: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} ({self.command})"


class Lock:
    """A held lock. Freed by `release`, by the end of the process, and in a forked child."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        seen = os.fstat(descriptor)
        self.device = seen.st_dev
        self.inode = seen.st_ino
        self._descriptor: int | None = descriptor
        _held.add(self)
        _close_in_children()

    @property
    def held(self) -> bool:
        """False once it was released, and in a child of the process that took it."""
        return self._descriptor is not None

    def release(self, *, remove: bool = False) -> None:
        """Give it up; a second time does nothing. remove: the file has nothing left to prove."""
        if self._descriptor is None:
            return
        if remove:
            self.path.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Free(msgspec.Struct, frozen=True):
    """The kernel gave us the lock: whoever held it is gone."""


class Taken(msgspec.Struct, frozen=True):
    """The kernel refused: somebody holds it now."""

    holder: Holder | None


class Absent(msgspec.Struct, frozen=True):
    """The very file could not be asked: it is not there, is another one, or could not be opened."""

    reason: str


Asked: TypeAlias = Free | Taken | Absent


class Machine(msgspec.Struct, frozen=True):
    """Where this process runs. boot: a random id of this boot of the kernel; "": none is known."""

    host: str
    boot: str


class Evidence(msgspec.Struct, frozen=True):
    """What is known of a former owner. seen: one sentence for history and people."""

    kind: Literal["live", "ended", "fenced", "attested", "unverifiable"]
    seen: str


def this_machine() -> Machine:
    """This host's name and the id of this boot."""
    try:
        boot = Path(_BOOT_ID).read_text("ascii").strip()
    except OSError:
        boot = ""
    return Machine(socket.gethostname(), boot)


def folder_beside(database: Path) -> Path:
    """The folder that holds the lock files of a database."""
    return database.with_name(database.name + FOLDER_SUFFIX)


def take_engine(folder: Path, epoch: int, holder: Holder) -> Lock:
    """Take the engine lock of this epoch. Raises `OwnerElsewhere`, which names the holder."""
    return _take(
        folder, f"engine-{epoch}.lock", holder, "another process is the engine of this store"
    )


def take_instance(folder: Path, holder: Holder) -> Lock:
    """Take the lock of a new instance; its name is new, so nobody can hold it."""
    return _take(folder, f"{holder.instance}.lock", holder, "another process has this instance id")


def me(now: int, instance: str, machine: Machine) -> Holder:
    """What this process writes into the locks that it takes."""
    command = " ".join(sys.orig_argv)[:COMMAND_LENGTH_MAX]
    return Holder(os.getpid(), machine.host, command, now, instance)


def evidence(former: EngineRow | None, here: Machine) -> Evidence:
    """What is known of an instance that owned a run. The list of what counts is closed."""
    if former is None:
        return Evidence("unverifiable", "the instance left no record")
    if former.ended == "drained":
        return Evidence("ended", "it recorded a clean exit, with nothing still running")
    same_boot = here.boot != "" and former.boot == here.boot
    if not same_boot and former.host != here.host:
        return Evidence("unverifiable", f"it ran on another machine, {former.host}")
    path = Path(former.lock_path)
    match ask(path, former.lock_device, former.lock_inode, former.instance):
        case Free():
            how = "its lock is free" if same_boot else "the machine was restarted; its lock is free"
            return Evidence("ended", f"{how}: {former.lock_path}")
        case Taken(holder):
            return Evidence("live", f"its lock is held by {holder or 'a process without a name'}")
        case Absent(reason):
            return Evidence("unverifiable", f"its lock cannot be asked: {reason}")


def ask(path: Path, device: int, inode: int, instance: str | None = None) -> Asked:
    """Whether anybody holds exactly this lock file. Frees it again at once.

    instance  who must have written its name into it (inode numbers are used again);
              None: anybody
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        return Absent(f"{path}: {error.strerror}")
    try:
        seen = os.fstat(descriptor)
        if (seen.st_dev, seen.st_ino) != (device, inode):
            return Absent(f"{path} is not the file that was recorded")
        if not _lock(descriptor):
            return Taken(_read_holder(descriptor))
        writer = _read_holder(descriptor)
        if instance is not None and (writer is None or writer.instance != instance):
            return Absent(f"{path} does not name the instance")
        return Free()
    except OSError as error:
        return Absent(f"{path}: {error.strerror}")
    finally:
        os.close(descriptor)


def engine_holder(folder: Path, epoch: int) -> Holder | None:
    """Who holds the engine lock of this epoch now; None: nobody does."""
    path = folder / f"engine-{epoch}.lock"
    try:
        seen = path.stat()
    except FileNotFoundError:
        return None
    match ask(path, seen.st_dev, seen.st_ino):
        case Taken(holder):
            return holder or Holder(0, "", "a process without a name", 0)
        case _:
            return None


def _take(folder: Path, name: str, holder: Holder, refusal: str) -> Lock:
    path = folder / name
    try:
        _make_folder(folder)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if not _lock(descriptor):
                other = _read_holder(descriptor)
                os.close(descriptor)
                raise _elsewhere(refusal, path, other)
            if _still_there(path, descriptor):
                break
            os.close(descriptor)
        _write_holder(descriptor, holder)
    except OSError as error:
        raise StoreUnavailable(
            f"the lock file {path} cannot be used: {error.strerror}",
            code="lock-unusable",
            facts={"path": str(path), "why": str(error.strerror)},
        ) from error
    return Lock(path, descriptor)


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    mode = folder.stat()
    if mode.st_uid != os.geteuid() or stat.S_IMODE(mode.st_mode) & 0o022:
        raise StoreUnavailable(
            f"the folder {folder} can be written by others, who could put false locks there",
            code="lock-folder-open",
            facts={"path": str(folder), "mode": oct(stat.S_IMODE(mode.st_mode))},
            next_step=f"chmod 700 {folder}",
        )


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _still_there(path: Path, descriptor: int) -> bool:
    """False: between open and lock its last holder removed it, and the lock is on no file."""
    ours = os.fstat(descriptor)
    try:
        named = path.lstat()
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)


def _write_holder(descriptor: int, holder: Holder) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, msgspec.json.encode(holder), 0)


def _read_holder(descriptor: int) -> Holder | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, IDENTITY_BYTES_MAX, 0), type=Holder)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _elsewhere(refusal: str, path: Path, holder: Holder | None) -> TallyError:
    facts: dict[str, str | int | None] = {"lock": str(path)}
    if holder is not None:
        facts |= {
            "pid": holder.pid,
            "host": holder.host,
            "command": holder.command,
            "since": holder.since,
        }
    return OwnerElsewhere(
        f"{refusal}: {holder}" if holder else f"{refusal}, and does not say who it is",
        check="engine-lock",
        facts=dict(facts),
        next_step="wait for it to end, or stop it with SIGTERM",
    )


# Only to close descriptors in forked children; nothing is looked up here.
_held: Final[weakref.WeakSet[Lock]] = weakref.WeakSet()
_hooked: Final[list[int]] = []


def _close_in_children() -> None:
    if not _hooked:
        _hooked.append(os.getpid())
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    for lock in list(_held):
        lock._close()  # noqa: SLF001  of the same module
