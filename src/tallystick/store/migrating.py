"""Bring an SQLite store of an older version to this one: backup, verify, migrate, or nothing.

    write lock ─▶ backup beside it ─▶ verified ─▶ migrations, one transaction ─▶ compared ─▶ commit

The lock is held from the first to the last, so the backup is exactly what was migrated. That no
engine lives is for the caller to know. A backup holds no blobs: no migration touches them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tallystick.errors import Fact, MaintenanceRequired, UnsupportedSchema
from tallystick.store import migrations
from tallystick.store.files import System
from tallystick.store.migrations import Migration
from tallystick.store.opening import Connection, objects_of, seen_by


class Migrator:
    """Meets `migrations.Migrating` on a connection that is in a transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def script(self, sql: str) -> None:
        """See `migrations.Migrating`."""
        [*self._connection.execute(sql)]

    def objects(self) -> migrations.Objects:
        """See `migrations.Migrating`."""
        return objects_of(self._connection)

    def set_version(self, version: int) -> None:
        """See `migrations.Migrating`."""
        self._connection.execute(f"PRAGMA user_version = {version:d}")
        self._connection.execute("UPDATE tally_store SET schema = max(schema, ?)", (version,))


def migrate_file(
    file: Path,
    backup: Path,
    *,
    connect: Callable[[Path], Connection],
    expected: migrations.Objects,
    steps: Sequence[Migration],
) -> tuple[int, int]:
    """Migrate a file; its former and its present version. Equal: there was nothing to do.

    backup  a path at which nothing lies yet

    Raises `UnsupportedSchema` or `MaintenanceRequired`, and then nothing was changed.
    """
    connection = connect(file)
    try:
        seen = seen_by(connection)
        if seen.application_id != migrations.APPLICATION_ID:
            migrations.check_version(seen.application_id, seen.version, path=str(file))
        migrations.steps(seen.version, migrations.SCHEMA, steps)
        if seen.version == migrations.SCHEMA:
            return seen.version, seen.version
        connection.execute("BEGIN IMMEDIATE")
        try:
            _back_up(file, backup, connect)
            migrations.migrate(
                Migrator(connection), seen.version, expected=expected, migrations=steps
            )
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
        [*connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")]
        return seen.version, migrations.SCHEMA
    except (MaintenanceRequired, UnsupportedSchema):
        raise
    except Exception as error:
        raise _failed(file, f"the migration failed: {error}") from error
    finally:
        connection.close()


def _back_up(file: Path, backup: Path, connect: Callable[[Path], Connection]) -> None:
    """Copy, bring to disk, and read the copy back."""
    system = System()
    try:
        system.close(system.create(backup, b""))
    except FileExistsError as error:
        raise _failed(file, f"{backup} is there already") from error
    reader = connect(file)
    try:
        reader.execute("VACUUM INTO ?", (str(backup),))
        wanted = _summary(reader)
    finally:
        reader.close()
    fd = os.open(backup, os.O_RDONLY | os.O_CLOEXEC)
    try:
        system.sync(fd)
    finally:
        system.close(fd)
    system.sync_directory(backup.parent)
    copy = connect(backup)
    try:
        sound = [*copy.execute("PRAGMA integrity_check")] == [("ok",)]
        if not sound or _summary(copy) != wanted:
            raise _failed(file, f"the backup at {backup} is not sound")
    finally:
        copy.close()


def _summary(connection: Connection) -> list[object]:
    """What a faithful copy says too: its schema, and how much there is of everything."""
    return [
        seen_by(connection),
        *connection.execute("SELECT store_id, epoch FROM tally_store"),
        *connection.execute(
            "SELECT max(position), count(*), sum(length(envelope)) FROM tally_event"
        ),
        *connection.execute("SELECT count(*), sum(consumed) FROM tally_run"),
        *connection.execute("SELECT count(*), sum(length(body)) FROM tally_payload"),
    ]


def _failed(file: Path, what: str) -> MaintenanceRequired:
    facts: dict[str, Fact] = {"path": str(file)}
    return MaintenanceRequired(
        f"{file} was not migrated: {what}",
        code="not-migrated",
        check="migration",
        facts=facts,
        next_step="nothing was changed; free space, or choose another path for the backup",
    )
