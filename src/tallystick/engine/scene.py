"""What every part of an engine works with."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tallystick.engine.clock import Clock, Entropy
from tallystick.engine.locks import Machine
from tallystick.store.protocol import Store


class Scene(msgspec.Struct, frozen=True):
    """One opening of a store: where it happens, and by whose time and chance.

    instance  id of this opening · epoch: the engine epoch that it holds the lock of
    fault     called at every fault point with its name
    """

    store: Store
    clock: Clock
    entropy: Entropy
    fault: Callable[[str], None]
    machine: Machine
    instance: str
    epoch: int
