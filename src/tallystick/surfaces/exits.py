"""Exit codes of `tally`, and which of them an error or a run means.

They are stable: scripts match on them. One code is one thing for the caller to do next.

    0    it succeeded                       nothing to do
    1    the run failed or was cancelled    read why
    2    the request is wrong               fix it; nothing was written
    3    in doubt, or waits for a person    decide
    4    another process is the owner       ask it, or wait for it
    5    the store did not do it            look at the disk and the file; the same again is safe
    70   a defect in tally itself           report it
    130  stopped by SIGINT                  start it again; nothing is lost
    143  stopped by SIGTERM                 the same
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from tallystick import errors


class ExitCode(IntEnum):
    """What the process says to its parent; see the table on top of the module."""

    SUCCEEDED = 0
    FAILED = 1
    INVALID = 2
    PERSON = 3
    ELSEWHERE = 4
    STORAGE = 5
    DEFECT = 70
    INTERRUPTED = 130
    PIPE_CLOSED = 141
    TERMINATED = 143


_OF_ERROR: Final[dict[type[BaseException], ExitCode]] = {
    errors.InvalidRequest: ExitCode.INVALID,
    errors.NotFound: ExitCode.INVALID,
    errors.Conflict: ExitCode.INVALID,
    errors.NotReady: ExitCode.INVALID,
    errors.ForkedClient: ExitCode.INVALID,
    errors.AuthorityLost: ExitCode.ELSEWHERE,
    errors.OwnerElsewhere: ExitCode.ELSEWHERE,
    errors.CapacityUnavailable: ExitCode.STORAGE,
    errors.MaintenanceRequired: ExitCode.STORAGE,
    errors.UnsupportedSchema: ExitCode.STORAGE,
    errors.StoreUnavailable: ExitCode.STORAGE,
    errors.RunFailed: ExitCode.FAILED,
    errors.RunInDoubt: ExitCode.PERSON,
    OSError: ExitCode.STORAGE,
}

_OF_STATUS: Final = {
    "succeeded": ExitCode.SUCCEEDED,
    "failed": ExitCode.FAILED,
    "cancelled": ExitCode.FAILED,
    "damaged": ExitCode.STORAGE,
}


def of_error(error: BaseException) -> ExitCode:
    """The exit code of an error, by its nearest known class; `DEFECT` for one that is not ours."""
    for kind in type(error).__mro__:
        if kind in _OF_ERROR:
            return _OF_ERROR[kind]
    return ExitCode.DEFECT


def of_status(status: str) -> ExitCode:
    """The exit code of a watched run that was left in this status.

    A watch ends at a terminal status or where nothing moves before a person acts.
    """
    return _OF_STATUS.get(status, ExitCode.PERSON)


def of_signal(number: int) -> int:
    """128 + the number of the signal, as shells say it."""
    return 128 + number
