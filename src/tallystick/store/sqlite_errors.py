"""What a failure of SQLite says about the disk, and so what a caller is told.

    before COMMIT              nothing was written
    COMMIT: the disk is full   nothing was written: the last frame of the log is not there
    COMMIT: anything else      it may have succeeded, and the connection writes no more

The last line is about fsync. After one that failed the kernel may have forgotten what it could not
write, and says success the next time; and a commit that was reported as failed may be found in the
log by the next process. Source: "Can Applications Recover from fsync Failures?", USENIX ATC 2020.

Errors are told apart by their result code. Source: sqlite.org/rescode.html.
"""

from __future__ import annotations

from tallystick.errors import (
    CapacityUnavailable,
    Fact,
    InvalidRequest,
    MaintenanceRequired,
    StoreUnavailable,
    TallyError,
)

BUSY, LOCKED, READONLY, IOERR, CORRUPT, FULL, NOTADB = 5, 6, 8, 10, 11, 13, 26
FATAL = frozenset({IOERR, CORRUPT, FULL, NOTADB})
"""What is about the database and not about the statement."""

SHM_NOT_GROWN = IOERR | 19 << 8
"""The index of the log could not grow, which is how a full disk shows when a store is opened."""


def code_of(error: Exception) -> int:
    """The primary result code of a driver's error, or 0."""
    found = getattr(error, "result", 0)
    return found & 0xFF if isinstance(found, int) else 0


def translate(error: Exception, doing: str) -> TallyError:
    """The error of a statement that is not a COMMIT: nothing was written."""
    facts: dict[str, Fact] = {"doing": doing, "error": _named(error), "written": False}
    if getattr(error, "extendedresult", 0) == SHM_NOT_GROWN:
        return full(error)
    match code_of(error):
        case 13:  # FULL
            return full(error)
        case 11 | 26:  # CORRUPT, NOTADB
            return MaintenanceRequired(
                f"the database is damaged: {error}",
                code="database-damaged",
                facts=facts,
                next_step="restore a backup; keep the file for an investigation",
            )
        case 8:  # READONLY
            return InvalidRequest(
                f"the database cannot be written: {error}", code="read-only", facts=facts
            )
        case 5 | 6:  # BUSY, LOCKED
            return StoreUnavailable(
                f"another process holds the database's write lock: {error}",
                code="store-busy",
                facts=facts,
                next_step="end the other transaction; the same command again is safe",
            )
        case _:
            return StoreUnavailable(
                f"the database did not answer: {error}", code="store-failed", facts=facts
            )


def full(error: Exception) -> CapacityUnavailable:
    """No space: nothing was written, and it heals when there is space again."""
    return CapacityUnavailable(
        f"the disk is full: {error}",
        which="disk",
        transient=True,
        code="disk-full",
        check="disk",
        facts={"error": _named(error), "written": False},
        next_step="free some space; the engine goes on by itself",
    )


def unknown(error: Exception) -> StoreUnavailable:
    """A COMMIT that failed and may have succeeded."""
    return StoreUnavailable(
        f"the commit reported a failure; it may have succeeded: {error}",
        code="commit-unknown",
        check="commit",
        facts={"error": _named(error)},
        next_step="open the store anew and read each run of the batch again",
    )


def broken(first: TallyError) -> StoreUnavailable:
    """What a connection answers after that. `first` is the error that began it."""
    return StoreUnavailable(
        f"this store writes no more after: {first.message}",
        code="store-broken",
        check="commit",
        facts={**first.facts, "written": False},
        next_step="open the store anew",
    )


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
