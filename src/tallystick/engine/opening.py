"""How an engine comes to be: a store, the locks, a record of the start, and the parts put together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from tallystick.engine import faults as fault_points
from tallystick.engine.audit import audit
from tallystick.engine.clock import Clock, Entropy, SystemClock
from tallystick.engine.engine import Engine
from tallystick.engine.faults import Faults, faults_from, hook
from tallystick.engine.instance import Instance, enter
from tallystick.engine.residence import RESIDENT_MAX
from tallystick.engine.scene import Scene
from tallystick.engine.stopping import GRACE_MS, stop
from tallystick.errors import StoreUnavailable
from tallystick.executors.contract import Executor, ReportTo
from tallystick.executors.function import FunctionExecutor, resolve
from tallystick.store.faults import FAULT_POINTS as STORE_POINTS
from tallystick.store.protocol import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

POINTS: Final = (*fault_points.POINTS, *STORE_POINTS)
"""Every fault point that there is, of the engine and of the store below it."""

FATAL_CODES: Final = frozenset({"fsync-failed", "io-error"})
"""After these a database's cache and its disk may differ: only a new opening knows what is there."""
