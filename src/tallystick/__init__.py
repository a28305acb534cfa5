"""Tallystick: a durable workflow engine that never repeats what it cannot account for.

    import tallystick as ts

    @ts.task(effect="idempotent", max_attempts=3)
    async def charge(order: Order, *, ctx: ts.TaskContext) -> Receipt: ...

    async with ts.open("orders.db", engine=True) as tally:
        run = await tally.start("orders.yaml", input={...}, key="order-17")
        print(await run.result())

Names are imported when they are first used, so that `import tallystick` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.core.definition import Definition, Limits
    from tallystick.errors import (
        AuthorityLost,
        CapacityUnavailable,
        Conflict,
        ForkedClient,
        InvalidRequest,
        MaintenanceRequired,
        NotAccepted,
        NotFound,
        NotReady,
        OutcomeUnknown,
        OwnerElsewhere,
        RunFailed,
        RunInDoubt,
        StoreUnavailable,
        TallyError,
        UnsupportedSchema,
    )
    from tallystick.executors.function.task import TaskContext, task
    from tallystick.surfaces.client import (
        BlockingRun,
        BlockingTally,
        Doubt,
        HistoryEvent,
        RunHandle,
        RunInfo,
        Tally,
        Validated,
        open,  # noqa: A004  it is meant to be read as `ts.open`
        open_blocking,
        validate,
    )

_CLIENT = "tallystick.surfaces.client"
_ERRORS = "tallystick.errors"
_HOMES = {
    "AuthorityLost": _ERRORS,
    "BlockingRun": _CLIENT,
    "BlockingTally": _CLIENT,
    "CapacityUnavailable": _ERRORS,
    "Conflict": _ERRORS,
    "Definition": "tallystick.core.definition",
    "Doubt": _CLIENT,
    "ForkedClient": _ERRORS,
    "HistoryEvent": _CLIENT,
    "InvalidRequest": _ERRORS,
    "Limits": "tallystick.core.definition",
    "MaintenanceRequired": _ERRORS,
    "NotAccepted": _ERRORS,
    "NotFound": _ERRORS,
    "NotReady": _ERRORS,
    "OutcomeUnknown": _ERRORS,
    "OwnerElsewhere": _ERRORS,
    "RunFailed": _ERRORS,
    "RunHandle": _CLIENT,
    "RunInDoubt": _ERRORS,
    "RunInfo": _CLIENT,
    "StoreUnavailable": _ERRORS,
    "Tally": _CLIENT,
    "TallyError": _ERRORS,
    "TaskContext": "tallystick.executors.function.task",
    "UnsupportedSchema": _ERRORS,
    "Validated": _CLIENT,
    "open": _CLIENT,
    "open_blocking": _CLIENT,
    "task": "tallystick.executors.function.task",
    "validate": _CLIENT,
}

__all__ = [
    "AuthorityLost",
    "BlockingRun",
    "BlockingTally",
    "CapacityUnavailable",
    "Conflict",
    "Definition",
    "Doubt",
    "ForkedClient",
    "HistoryEvent",
    "InvalidRequest",
    "Limits",
    "MaintenanceRequired",
    "NotAccepted",
    "NotFound",
    "NotReady",
    "OutcomeUnknown",
    "OwnerElsewhere",
    "RunFailed",
    "RunHandle",
    "RunInDoubt",
    "RunInfo",
    "StoreUnavailable",
    "Tally",
    "TallyError",
    "TaskContext",
    "UnsupportedSchema",
    "Validated",
    "open",
    "open_blocking",
    "task",
    "validate",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
