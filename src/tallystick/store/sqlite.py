"""The default store: one SQLite file, through apsw, which carries a current SQLite.

The interpreter's own SQLite may be a version with the WAL-reset bug, so this is the one module that
knows a driver. One connection writes, in one thread: WAL, `synchronous=FULL`, `BEGIN IMMEDIATE`.
Another reads, in another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path

import apsw

from tallystick.errors import InvalidRequest, TallyError
from tallystick.store import migrations, sqlite_errors
from tallystick.store.codec import Row
from tallystick.store.faults import Fault, no_fault
from tallystick.store.files import Blobs, System, grow
from tallystick.store.gate import STEPS_CHECKED, Allowed, Gate
from tallystick.store.migrating import migrate_file
from tallystick.store.migrations import MIGRATIONS, Migration
from tallystick.store.opening import Door, Opening, objects_of
from tallystick.store.place import FileSystemOf, check_place, file_system_of
from tallystick.store.plan import Write
from tallystick.store.protocol import Expected, RowRefused, StatementRefused, UserStatement
from tallystick.store.statements import chunks, statements
from tallystick.store.threaded import ThreadedStore
from tallystick.store.transaction import Refused, Snapshot
from tallystick.store.worker import Worker

BUSY_MS = 5_000
"""How long a writer waits for another process to end its transaction."""
CHECKPOINT_PAGES = 1_000
"""The log is copied into the database when it has this many pages. Source: SQLite's own default."""
LOG_GROWN_BYTES = 4 * 1024 * 1024
LOG_GROW_AFTER = 500
"""After this many commits the log is grown at once: overwriting costs less than appending."""
LOG_GROW_FREE_BYTES = 256 * 1024 * 1024
"""It is left alone on a disk with less free space than this."""
CACHED_STATEMENTS = 500
REMEMBERED_MAX = 100_000
"""How many run numbers and contents a session remembers before it starts again."""

SqliteStore = ThreadedStore


class SqliteSession:
    """One connection. Meets `threaded.WritingSession` and `threaded.Reader`.

    may_grow  the log is a file of the system and may be grown
    """

    def __init__(self, connection: apsw.Connection, *, may_grow: bool, fault: Fault) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._gate = Gate()
        self._texts: dict[tuple[str, int], str] = {}
        self._numbers: dict[str, int] = {}
        self._contents: set[bytes] = set()
        self._broken: TallyError | None = None
        self._may_grow = may_grow
        self._fault = fault
        self._commits = 0
        self._log_pages = 0
        connection.authorizer = self._gate.authorize
        connection.set_progress_handler(self._gate.interrupt, STEPS_CHECKED)
        connection.set_wal_hook(self._note_log)

    # Transactions

    @property
    def known_contents(self) -> AbstractSet[bytes]:
        """Digests of terms and bindings that are known to be stored."""
        return self._contents

    def begin(self) -> Snapshot:
        if self._broken is not None:
            raise sqlite_errors.broken(self._broken)
        with _translated("begin"):
            self._cursor.execute("BEGIN IMMEDIATE")
        return Snapshot(*self.rows("snapshot", ())[0])

    def apply(self, write: Write) -> int:
        rows = write.rows
        changed = at = 0
        with _refusing():
            for size in (1,) if len(rows) == 1 else chunks(len(rows)):
                params = rows[at] if size == 1 else tuple(chain(*rows[at : at + size]))
                self._cursor.execute(self._text(write.statement, size), params)
                changed += self._connection.changes()
                at += size
        return len(rows) if statements()[write.statement].idempotent else changed

    def _text(self, statement: str, rows: int) -> str:
        text = self._texts.get((statement, rows))
        if text is None:
            text = self._texts[statement, rows] = statements()[statement].many(rows)
        return text

    def commit(self) -> None:
        try:
            self._cursor.execute("COMMIT")
        except apsw.ConstraintError as error:
            raise Refused(RowRefused(str(error))) from error
        except apsw.FullError as error:
            raise sqlite_errors.full(error) from error
        except apsw.Error as error:
            self._broken = sqlite_errors.unknown(error)
            raise self._broken from error
        self._commits += 1

    def rollback(self) -> None:
        # A full disk has rolled back already; a second ROLLBACK would hide the first error.
        if self._connection.in_transaction:
            try:
                self._cursor.execute("ROLLBACK")
            except apsw.Error as error:
                self._broken = self._broken or sqlite_errors.unknown(error)

    def set_savepoint(self) -> None:
        with _translated("savepoint"):
            self._cursor.execute("SAVEPOINT alone")

    def settle_savepoint(self, *, keep: bool) -> bool:
        if not self._connection.in_transaction:
            return False
        with _translated("savepoint"):
            if not keep:
                self._cursor.execute("ROLLBACK TO alone")
            self._cursor.execute("RELEASE alone")
        return True

    def check_deferred(self) -> None:
        if self._connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
            raise Refused(StatementRefused("conflict", "a foreign key points nowhere"))

    def number(self, run: str) -> int | None:
        found = self._numbers.get(run)
        if found is None:
            rows = self.rows("run_number", (run,))
            found = rows[0][0] if rows else None
        return found

    def expected(self, run: str) -> Expected | None:
        rows = self.rows("expected", (run,))
        return Expected(*rows[0]) if rows else None

    def holder(self, key: str) -> tuple[str, bytes] | None:
        rows = self.rows("holder_of_key", (key,))
        return (rows[0][0], rows[0][1]) if rows else None

    def remember(self, numbers: Mapping[str, int], contents: AbstractSet[bytes]) -> None:
        if len(self._numbers) + len(self._contents) > REMEMBERED_MAX:
            self._numbers.clear()
            self._contents.clear()
        self._numbers.update(numbers)
        self._contents.update(contents)

    # Reading

    def rows(self, statement: str, params: Row) -> list[Row]:
        with _translated(statement):
            return [*self._cursor.execute(self._text(statement, 1), tuple(params))]

    def query(self, sql: str, params: Sequence[object], limit: int) -> list[Row]:
        cursor = self._connection.cursor()
        cursor.exec_trace = self._gate.trace
        try:
            with self._gate.open(Allowed.QUERY):
                found = cursor.execute(sql, _bindings(params), can_cache=False)
                return [row for row, _ in zip(found, range(limit), strict=False)]
        except (apsw.Error, TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest(f"this query was refused: {error}", code="query") from error
        finally:
            cursor.close(True)

    # Users

    def run_user(self, statement: UserStatement) -> None:
        before = self._connection.total_changes()
        cursor = self._connection.cursor()
        cursor.exec_trace = self._gate.trace
        try:
            with self._gate.open(Allowed.WRITE):
                cursor.execute(statement.sql, _bindings(statement.params), can_cache=False)
                cursor.fetchall()
        except apsw.AuthError as error:
            raise Refused(StatementRefused("forbidden", str(error))) from error
        except (apsw.Error, TypeError, ValueError, OverflowError) as error:
            if sqlite_errors.code_of(error) in sqlite_errors.FATAL:
                raise sqlite_errors.translate(error, "a user's statement") from error
            raise Refused(StatementRefused("conflict", str(error))) from error
        finally:
            cursor.close(True)
        moved = self._connection.total_changes() != before
        changed = self._connection.changes() if moved else 0
        if statement.expect_rows not in {None, changed}:
            said = f"{changed} rows instead of {statement.expect_rows}"
            raise Refused(StatementRefused("conflict", said))

    def script(self, sql: str) -> None:
        self.begin()
        try:
            with self._gate.open(Allowed.SETUP):
                [*self._cursor.execute(sql, can_cache=False)]
            self.commit()
        except apsw.Error as error:
            self.rollback()
            raise InvalidRequest(f"the setup script was refused: {error}", code="setup") from error
        except (TallyError, Refused):
            self.rollback()
            raise

    # The log

    def _note_log(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def after_job(self) -> None:
        """Between jobs, when the last one was answered: bound the log, and grow it once."""
        if self._broken is not None:
            return
        if self._may_grow and self._commits >= LOG_GROW_AFTER:
            self._may_grow = False
            grow(Path(self._connection.filename_wal), to=LOG_GROWN_BYTES, free=LOG_GROW_FREE_BYTES)
        if self._log_pages >= CHECKPOINT_PAGES:
            self._log_pages = 0
            self._checkpoint()

    def _checkpoint(self) -> None:
        """Copy the log into the database. A failure is left to the next one: nothing is lost."""
        try:
            self._fault("checkpoint.before")
            self._connection.wal_checkpoint(None, apsw.SQLITE_CHECKPOINT_PASSIVE)
        except Exception:  # noqa: BLE001  whatever it is, the log still holds everything
            return

    def close(self) -> None:
        self.rollback()
        try:
            self._connection.close()
        except apsw.Error:
            return  # its last checkpoint failed: the log still holds everything


def _bindings(params: Sequence[object]) -> tuple[apsw.SQLiteValue, ...]:
    return tuple(params)


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise sqlite_errors.translate(error, doing) from error


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except apsw.ConstraintError as error:
        raise Refused(RowRefused(str(error))) from error
    except apsw.Error as error:
        raise sqlite_errors.translate(error, "write") from error


class _Driver:
    """Meets `opening.Driver`."""

    def look(self, uri: str) -> apsw.Connection:
        return apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)

    def connect(self, opening: Opening, *, writes: bool) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE if writes else apsw.SQLITE_OPEN_READONLY
        if opening.vfs is not None:
            flags |= apsw.SQLITE_OPEN_CREATE
        connection = apsw.Connection(
            str(opening.file), flags=flags, vfs=opening.vfs, statementcachesize=CACHED_STATEMENTS
        )
        connection.set_busy_timeout(BUSY_MS)
        for name, value in (
            ("locking_mode", "NORMAL" if opening.vfs is None else "EXCLUSIVE"),
            ("synchronous", opening.synchronous),
            ("foreign_keys", True),
            ("recursive_triggers", False),
            ("trusted_schema", False),
            ("cell_size_check", True),
            ("temp_store", "MEMORY"),
        ):
            connection.pragma(name, value)
        connection.wal_autocheckpoint(0)
        return connection

    def expected(self) -> migrations.Objects:
        return _expected()


@cache
def _expected() -> migrations.Objects:
    """Made once, in memory, and read back: SQLite's own spelling of what it is given."""
    connection = apsw.Connection(":memory:")
    try:
        connection.execute(migrations.creation())
        return objects_of(connection)
    finally:
        connection.close()


def migrate_sqlite(
    path: Path, backup: Path, *, migrations: Sequence[Migration] = MIGRATIONS
) -> tuple[int, int]:
    """Bring a store to this version, after a verified backup; see `migrating.migrate_file`."""
    return migrate_file(
        path,
        backup,
        connect=lambda file: apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READWRITE),
        expected=_expected(),
        steps=migrations,
    )


async def open_sqlite(
    path: str | Path,
    *,
    now: Callable[[], int],
    new_id: Callable[[], str],
    create: bool = True,
    read_only: bool = False,
    fault: Fault = no_fault,
    synchronous: str = "FULL",
    any_file_system: bool = False,
    file_system_of: FileSystemOf = file_system_of,
    system: System | None = None,
    vfs: str | None = None,
) -> SqliteStore:
    """Open a store, or make one.

    Args:
        path: the database file; beside it lie its log and `NAME-blobs`.
        now: ms since 1970.
        new_id: a random text that was never used before, safe in a file name.
        create: make the database if there is none; else `NotFound`.
        read_only: no verb that writes works.
        fault: called at each of `faults.FAULT_POINTS`.
        synchronous: anything but FULL loses acknowledged transitions at power loss; for tests.
        any_file_system: also on file systems on which SQLite's locks may not hold.
        file_system_of: how the type of a directory's file system is found; for tests.
        system: the calls that write files; for tests.
        vfs: name of an SQLite VFS; one connection, exclusive; for tests.

    Raises:
        UnsupportedSchema: it is not a store of this version. Not a byte was changed.
        MaintenanceRequired: its guards are missing or altered, or it is damaged.
        InvalidRequest: the place must not be used; nothing was written.
        NotFound: there is no database and `create` is False.
        StoreUnavailable: the database did not answer.
    """
    file = _resolved(path)
    warnings = check_place(
        file,
        create=create and not read_only,
        any_file_system=any_file_system,
        file_system_of=file_system_of,
    )
    opening = Opening(file, now, new_id, fault, synchronous, vfs, read_only, system or System())
    writer = Worker("tally-writer")
    try:
        return await _assemble(opening, writer, warnings)
    except BaseException:
        await writer.stop(lambda: None)
        raise


def _resolved(path: str | Path) -> Path:
    file = Path(path).absolute()
    return file.parent.resolve() / file.name


async def _assemble(opening: Opening, writer: Worker, warnings: Sequence[str]) -> SqliteStore:
    door = Door(opening, _Driver())
    session = await writer.do(lambda: _session(door.enter, opening))
    writer.after = session.after_job
    store_id: str = (await writer.do(lambda: session.rows("store_row", ())))[0][0]

    def read() -> SqliteSession:
        return _session(door.read, opening)

    reading = writer if opening.alone else Worker("tally-reader")
    blobs = Blobs(
        opening.file.with_name(opening.file.name + "-blobs"),
        new_name=opening.new_id,
        system=opening.system,
        fault=opening.fault,
    )
    return ThreadedStore(
        store_id=store_id,
        path=str(opening.file),
        writer=writer,
        session=session,
        reading=reading,
        reader=session if opening.alone else await reading.do(read),
        reopen=None if opening.alone else read,
        blobs=blobs,
        fault=opening.fault,
        warnings=warnings,
    )


def _session(connect: Callable[[], apsw.Connection], opening: Opening) -> SqliteSession:
    with _translated("open"):
        connection = connect()
        return SqliteSession(connection, may_grow=not opening.alone, fault=opening.fault)
