"""How a database is opened: it is looked at, as a file and by its schema, before a byte is written.

    place ─▶ header and schema, read-only ─▶ make private ─▶ connect ─▶ schema again ─▶ session
                    │                                          │
                    └─ foreign, newer, older, altered: refused └─ empty: created, in one transaction

The second look is for the race with another process that creates it at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from tallystick.errors import UnsupportedSchema
from tallystick.store import migrations
from tallystick.store.faults import Fault
from tallystick.store.files import System
from tallystick.store.place import make_private

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a database says it is."""

    application_id: int
    version: int
    objects: migrations.Objects

    @property
    def empty(self) -> bool:
        """Nobody has written anything into it."""
        return not (self.application_id or self.version or self.objects)


@dataclass(frozen=True, slots=True)
class Opening:
    """What was asked of a store's `open`, for the threads that open connections.

    now        ms since 1970 · new_id: a random text that was never used before
    vfs        None: files of the system; a name: for tests, one exclusive connection
    """

    file: Path
    now: Callable[[], int]
    new_id: Callable[[], str]
    fault: Fault
    synchronous: str
    vfs: str | None
    read_only: bool
    system: System

    @property
    def alone(self) -> bool:
        """Only one connection: it reads what it writes, or it only reads."""
        return self.vfs is not None or self.read_only


class Driver(Protocol[C]):
    """What opening needs of a database module."""

    def look(self, file: Path, *, live: bool) -> Seen:
        """Read what a file says, changing nothing; `ValueError`: no database. live: with a log."""
        ...

    def expected(self) -> migrations.Objects:
        """What a store of this version contains."""
        ...

    def connect(self, opening: Opening, *, writes: bool) -> C:
        """A connection with its settings made."""
        ...

    def seen(self, connection: C) -> Seen:
        """What the database says to an open connection."""
        ...

    def create(self, connection: C, opening: Opening) -> None:
        """Make an empty store, unless somebody else just did."""
        ...

    def prepare_writing(self, connection: C) -> None:
        """Turn the log on."""
        ...

    def close(self, connection: C) -> None:
        """Close a connection."""
        ...


@dataclass(frozen=True, slots=True)
class Door(Generic[C]):
    """Opens connections to one database."""

    opening: Opening
    driver: Driver[C]

    def enter(self) -> C:
        """Look, create if need be, connect. Raises `UnsupportedSchema`, `MaintenanceRequired`."""
        opening, driver = self.opening, self.driver
        if opening.vfs is None:
            self._look_first()
        connection = driver.connect(opening, writes=not opening.read_only)
        try:
            self._check(connection)
        except BaseException:
            driver.close(connection)
            raise
        return connection

    def read(self) -> C:
        """One more connection, which only reads."""
        return self.driver.connect(self.opening, writes=False)

    def _look_first(self) -> None:
        file = self.opening.file
        if file.exists() and file.stat().st_size > 0:
            log = file.with_name(file.name + "-wal")
            try:
                seen = self.driver.look(file, live=log.exists() and log.stat().st_size > 0)
            except ValueError as error:
                raise _not_ours(file) from error
            if not seen.empty:
                self._refuse_foreign(seen)
        if not self.opening.read_only:
            make_private(file)
            self.opening.system.sync_directory(file.parent)

    def _check(self, connection: C) -> None:
        seen = self.driver.seen(connection)
        if seen.empty and not self.opening.read_only:
            self.driver.create(connection, self.opening)
            seen = self.driver.seen(connection)
        self._refuse_foreign(seen)
        if not self.opening.read_only:
            self.driver.prepare_writing(connection)

    def _refuse_foreign(self, seen: Seen) -> None:
        path = str(self.opening.file)
        migrations.check_version(seen.application_id, seen.version, path=path)
        migrations.check_objects(seen.objects, self.driver.expected())


def _not_ours(file: Path) -> UnsupportedSchema:
    return UnsupportedSchema(
        f"{file} is not a database",
        code="foreign-file",
        check="schema",
        facts={"path": str(file)},
        next_step="choose another path",
    )
