"""How an SQLite database is opened: it is looked at before a byte of it, or beside it, is written.

    place ─▶ header and schema, read-only ─▶ make private ─▶ connect ─▶ schema again ─▶ session
                    │                                          │
                    └─ foreign, newer, older, altered: refused └─ empty: created, in one transaction

The second look is for the race with another process that creates it at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from tallystick.errors import StoreUnavailable, UnsupportedSchema
from tallystick.store import migrations
from tallystick.store.faults import Fault
from tallystick.store.files import System
from tallystick.store.place import make_private
from tallystick.store.sqlite_errors import NOTADB, code_of
from tallystick.store.statements import statements

HEADER_BYTES = 100
"""Source: sqlite.org/fileformat.html §1.3."""
LOG_MAX_BYTES = 64 * 1024 * 1024
"""What a long reader made the log grow beyond this is given back."""


class Connection(Protocol):
    """As much of a driver's connection as opening needs."""

    def execute(self, sql: str, bindings: Any = None, /) -> Iterable[Any]:  # noqa: ANN401  a driver's own
        """Run one or more statements; rows of the last."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


C = TypeVar("C", bound=Connection)
C_co = TypeVar("C_co", bound=Connection, covariant=True)


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


class Driver(Protocol[C_co]):
    """How a database module connects."""

    def look(self, uri: str) -> C_co:
        """A bare connection that cannot write."""
        ...

    def connect(self, opening: Opening, *, writes: bool) -> C_co:
        """A connection with its settings made."""
        ...

    def expected(self) -> migrations.Objects:
        """What a store of this version contains."""
        ...


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


def seen_by(connection: Connection) -> Seen:
    """What the database says to a connection."""
    ((application_id,),) = connection.execute("PRAGMA application_id")
    ((version,),) = connection.execute("PRAGMA user_version")
    return Seen(application_id, version, objects_of(connection))


def objects_of(connection: Connection) -> migrations.Objects:
    """All tables, indexes, views and triggers, as `migrations.Objects`."""
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
    return {(kind, name): (table, sql or "") for kind, name, table, sql in rows}


@dataclass(frozen=True, slots=True)
class Door(Generic[C]):
    """Opens connections to one database."""

    opening: Opening
    driver: Driver[C]

    def enter(self) -> C:
        """Look, create if need be, connect. Raises `UnsupportedSchema`, `MaintenanceRequired`."""
        opening = self.opening
        if opening.vfs is None:
            self._look_first()
            if not opening.read_only:
                make_private(opening.file)
                opening.system.sync_directory(opening.file.parent)
        connection = self.driver.connect(opening, writes=not opening.read_only)
        try:
            self._check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def read(self) -> C:
        """One more connection, which only reads."""
        return self.driver.connect(self.opening, writes=False)

    def _look_first(self) -> None:
        file = self.opening.file
        size = file.stat().st_size if file.exists() else 0
        if size == 0:
            return
        if size < HEADER_BYTES:  # SQLite takes it for an empty file
            raise _not_ours(file)
        log = file.with_name(file.name + "-wal")
        live = log.exists() and log.stat().st_size > 0
        # Without a log nobody has it open: then not even a lock or a shared memory file is made.
        connection = self.driver.look(f"{file.as_uri()}?mode=ro{'' if live else '&immutable=1'}")
        try:
            seen = seen_by(connection)
        except Exception as error:
            if code_of(error) == NOTADB:
                raise _not_ours(file) from error
            raise
        finally:
            connection.close()
        if not seen.empty:
            self._refuse_foreign(seen)

    def _check(self, connection: C) -> None:
        seen = seen_by(connection)
        if seen.empty and not self.opening.read_only:
            self._create(connection)
            seen = seen_by(connection)
        self._refuse_foreign(seen)
        if not self.opening.read_only:
            _turn_log_on(connection)
            [*connection.execute(f"PRAGMA journal_size_limit = {LOG_MAX_BYTES}")]

    def _refuse_foreign(self, seen: Seen) -> None:
        path = str(self.opening.file)
        migrations.check_version(seen.application_id, seen.version, path=path)
        migrations.check_objects(seen.objects, self.driver.expected())

    def _create(self, connection: C) -> None:
        _turn_log_on(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            if seen_by(connection).empty:  # else another process was faster
                self._fill(connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        # The header says whose file it is, also to who looks without reading the log.
        [*connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")]

    def _fill(self, connection: C) -> None:
        connection.execute(migrations.creation())
        connection.execute(f"PRAGMA application_id = {migrations.APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {migrations.SCHEMA}")
        row = (self.opening.new_id(), migrations.SCHEMA, self.opening.now())
        connection.execute(statements()["insert_store"].one(), row)


def _turn_log_on(connection: Connection) -> None:
    ((mode,),) = connection.execute("PRAGMA journal_mode = WAL")
    if mode != "wal":
        raise StoreUnavailable(f"no write-ahead log (journal mode {mode})", code="no-wal")


def _not_ours(file: Path) -> UnsupportedSchema:
    return UnsupportedSchema(
        f"{file} is not a database",
        code="foreign-file",
        check="schema",
        facts={"path": str(file)},
        next_step="choose another path",
    )
