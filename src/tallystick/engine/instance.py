"""One opening of a store by an engine: its locks, and the row that is evidence about its end."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tallystick.engine.clock import Clock, Entropy
from tallystick.engine.locks import (
    Lock,
    Machine,
    folder_beside,
    me,
    take_engine,
    take_instance,
    this_machine,
)
from tallystick.store.protocol import EngineRow, Store

PREFIX: Final = "e"
DRAINED: Final = "drained"
"""How an engine ended of which nothing runs any more."""

# The locks of an engine whose functions outlive it: they are held until this process ends.
_kept: Final[list[Lock]] = []


class Instance:
    """Who this engine is. Made by `enter`; `unlock` is its last act."""

    def __init__(self, store: Store, row: EngineRow, engine: Lock, own: Lock) -> None:
        self._store = store
        self._row = row
        self._engine = engine
        self._own = own
        self._drained = False

    @property
    def id(self) -> str:
        """The id of this opening."""
        return self._row.instance

    @property
    def epoch(self) -> int:
        """The engine epoch whose lock it holds."""
        return self._row.epoch

    @property
    def machine(self) -> Machine:
        """Where it runs."""
        return Machine(self._row.host, self._row.boot)

    async def record_start(self) -> None:
        """Leave the record without which nobody could ever prove that this engine ended."""
        await self._store.put_engine(self._row)

    async def record_end(self, ended: str, now: int) -> None:
        """Record how it ended: `drained`, or a JSON list of the identities that may still run."""
        await self._store.put_engine(msgspec.structs.replace(self._row, ended=ended, ended_at=now))
        self._drained = ended == DRAINED

    def unlock(self, *, gone: bool) -> None:
        """Give up the engine lock; and the own one if nothing of this engine runs any more.

        The own lock's file stays where it is evidence: unless a drained end is on record.
        """
        if gone:
            self._own.release(remove=self._drained)
        else:
            _kept.append(self._own)
        self._engine.release()


async def enter(
    store: Store, database: Path, clock: Clock, entropy: Entropy, *, build: str
) -> Instance:
    """Take both locks of a store. Nothing is written to it yet.

    Raises `OwnerElsewhere`, which names the process that is the engine now.
    """
    folder, machine, now = folder_beside(database), this_machine(), clock.now()
    name = entropy.readable(PREFIX, now)
    holder = me(now, name, machine)
    epoch = await store.epoch()
    engine = take_engine(folder, epoch, holder)
    try:
        own = take_instance(folder, holder)
    except BaseException:
        engine.release()
        raise
    row = EngineRow(
        name,
        epoch,
        build,
        machine.host,
        machine.boot,
        holder.pid,
        now,
        str(own.path.resolve()),
        own.device,
        own.inode,
    )
    return Instance(store, row, engine, own)
