"""Always on under test: the copy in memory equals a fresh load, after every commit and refusal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tallystick.core.run import Run
from tallystick.engine.held import Held
from tallystick.engine.loading import Plans, differences, load
from tallystick.errors import MaintenanceRequired
from tallystick.store.protocol import Store

EVENTS_FEW: Final = 300
"""Up to this length a history is replayed after every step; that costs the square of its length."""

SELDOM: Final = 64
"""A longer one is replayed after every so many of its steps …"""

EVENTS_MANY: Final = 5_000
"""… and one that is longer than this is not replayed at all."""


class Audit:
    """Compares copies with what is stored, for the engine of this instance."""

    def __init__(self, store: Store, plans: Plans, instance: str) -> None:
        self._store = store
        self._plans = plans
        self._instance = instance
        self._long = 0

    async def check(self, touched: Iterable[Held]) -> None:
        """Compare each of these runs. Raises `MaintenanceRequired`, naming what differs."""
        for held in touched:
            copy = held.run
            if copy is not None and self._is_due(copy):
                _, fresh = await load(self._store, self._plans, held.id)
                _compare(copy, fresh)

    def _is_due(self, copy: Run) -> bool:
        if copy.authority is None or copy.authority.engine != self._instance:
            return False
        if copy.sequence <= EVENTS_FEW:
            return True
        self._long += 1
        return copy.sequence <= EVENTS_MANY and self._long % SELDOM == 0


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
