"""Always on under test: the copy in memory equals a fresh load, after every commit and refusal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tallystick.core.run import Run
from tallystick.engine.engine import Engine
from tallystick.engine.held import Held
from tallystick.engine.loading import differences, load
from tallystick.errors import MaintenanceRequired

EVENTS_MAX: Final = 2_000
"""Longer histories are not replayed after every step: that costs the square of their length."""


async def audit(engine: Engine, touched: Iterable[Held]) -> None:
    """Compare each run's copy with what the store says. Raises `MaintenanceRequired`."""
    for held in touched:
        copy = held.run
        if copy is None or copy.sequence > EVENTS_MAX or copy.authority is None:
            continue
        if copy.authority.engine != engine.scene.instance:
            continue
        _, fresh = await load(engine.scene.store, engine.keeper.plans, held.id)
        _compare(copy, fresh)


def _compare(copy: Run, fresh: Run) -> None:
    found = differences(copy, fresh)
    if found:
        raise MaintenanceRequired(
            f"the copy of run {copy.id} in memory is not what is stored: {', '.join(found)} differ",
            code="copy-differs",
            check="M7",
            facts={
                "run": copy.id,
                "sequence": copy.sequence,
                "differ": {name: _both(copy, fresh, name) for name in found},
            },
        )


def _both(copy: Run, fresh: Run, name: str) -> str:
    return f"{_shown(getattr(copy, name))} in memory, {_shown(getattr(fresh, name))} stored"


def _shown(value: object) -> str:
    items = getattr(value, "items", None)
    return repr(dict(items()) if items is not None else value)[:500]
