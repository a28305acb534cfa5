"""Schema versions: what a store of this version contains, and how an older one becomes one.

A store is compared with what this version would create, object by object: a guard that is missing
or differs, a table that was altered, a trigger that somebody hung on one of ours. A migration only
goes forward, one number at a time, all of them in one transaction, and only after a backup was
verified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from tallystick.errors import Fact, MaintenanceRequired, UnsupportedSchema
from tallystick.store.statements import load

SCHEMA = 1
"""The version that this code reads and writes."""
APPLICATION_ID = 0x74616C79
"""`taly` in the header of an SQLite file. Source: sqlite.org/fileformat.html §1.3.13."""

Objects: TypeAlias = Mapping[tuple[str, str], tuple[str, str]]
"""What a schema contains: (type, name) → (table, SQL)."""


@dataclass(frozen=True, slots=True)
class Migration:
    """From version `to - 1` to `to`."""

    to: int
    sql: str


MIGRATIONS: tuple[Migration, ...] = ()
"""All that exist, in order. Version 1 is the first."""


class Migrating(Protocol):
    """A connection inside a transaction that changes the schema."""

    def script(self, sql: str) -> None:
        """Run any number of statements."""
        ...

    def objects(self) -> Objects:
        """What the schema contains now."""
        ...

    def set_version(self, version: int) -> None:
        """Record the version, in the header and in tally_store."""
        ...


def creation() -> str:
    """The SQL that makes an empty store of this version."""
    return load("schema.sql") + "\n" + load("guards.sql")


def ours(objects: Objects) -> Objects:
    """The objects that belong to us or hang on a table of ours."""
    return {
        key: value
        for key, value in objects.items()
        if key[1].lower().startswith("tally_") or value[0].lower().startswith("tally_")
    }


def check_objects(stored: Objects, expected: Objects) -> None:
    """Raise `MaintenanceRequired` unless the store contains exactly what it should."""
    stored, expected = ours(stored), ours(expected)
    if stored == expected:
        return
    missing = sorted(name for kind, name in expected.keys() - stored.keys())
    added = sorted(name for kind, name in stored.keys() - expected.keys())
    altered = sorted(
        key[1] for key in expected.keys() & stored.keys() if expected[key] != stored[key]
    )
    raise MaintenanceRequired(
        "the store's tables or guards are not those that this version made",
        code="guards-altered",
        check="guards",
        facts={"missing": [*missing], "added": [*added], "altered": [*altered]},
        next_step="restore a backup, or find out who changed the schema before anything is written",
    )


def check_version(application_id: int, version: int, *, path: str) -> None:
    """Raise `UnsupportedSchema` unless a file is a store of exactly this version."""
    facts: dict[str, Fact] = {"path": path, "stored": version, "supported": SCHEMA}
    if application_id != APPLICATION_ID:
        raise UnsupportedSchema(
            f"{path} is a database, but not a store of Tallystick",
            code="foreign-database",
            check="schema",
            facts=facts,
            next_step="choose another path",
        )
    if version > SCHEMA:
        raise UnsupportedSchema(
            f"{path} was written by a newer version (schema {version}, this one knows {SCHEMA})",
            code="newer-schema",
            check="schema",
            facts=facts,
            next_step="use the newer version of Tallystick",
        )
    if version < SCHEMA:
        raise UnsupportedSchema(
            f"{path} has schema {version}, this version needs {SCHEMA}",
            code="older-schema",
            check="schema",
            facts=facts,
            next_step=f"stop every engine, then: tally db migrate --db {path}",
        )


def steps(stored: int, target: int, migrations: Sequence[Migration]) -> list[Migration]:
    """The migrations that lead from one version to another. Raises `UnsupportedSchema`."""
    chosen = [migration for migration in migrations if stored < migration.to <= target]
    if [migration.to for migration in chosen] != list(range(stored + 1, target + 1)):
        raise UnsupportedSchema(
            f"no way leads from schema {stored} to schema {target}",
            code="no-migration",
            check="schema",
            facts={"stored": stored, "supported": target},
        )
    return chosen


def migrate(
    connection: Migrating,
    stored: int,
    *,
    expected: Objects,
    target: int = SCHEMA,
    migrations: Sequence[Migration] = MIGRATIONS,
) -> None:
    """Bring a store to a version, inside the connection's transaction, after its backup.

    expected  what the schema must contain afterwards

    Raises `UnsupportedSchema` where no way leads there, `MaintenanceRequired` where the result is
    not what it should be; the caller rolls back and nothing was changed.
    """
    for migration in steps(stored, target, migrations):
        connection.script(migration.sql)
        connection.set_version(migration.to)
    check_objects(connection.objects(), expected)
