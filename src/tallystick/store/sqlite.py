"""The default store: one SQLite file, through apsw, which carries a current SQLite.

The interpreter's own SQLite may be a version with the WAL-reset bug, so this is the one module that
knows a driver. What it does with it:

    open      looks before it writes: the place, the header, the schema, object by object
    write     one connection in one thread; WAL, `synchronous=FULL`, `BEGIN IMMEDIATE`
    read      another connection, read-only, in another thread
    users     their statements run under an authorizer that knows no table of ours

How a failure is answered depends on what it says about the disk. Before COMMIT nothing was written. A
COMMIT that finds the disk full did not write its last frame, so nothing was written either. A COMMIT
that fails in any other way may have succeeded, and the connection writes no more: after a failed fsync
the kernel may have forgotten what it could not write, and says success the next time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

import apsw

from tallystick.errors import (
    CapacityUnavailable,
    InvalidRequest,
    MaintenanceRequired,
    StoreUnavailable,
    TallyError,
    UnsupportedSchema,
)
from tallystick.store import migrations
from tallystick.store.codec import Row
from tallystick.store.faults import Fault, no_fault
from tallystick.store.files import Blobs, System
from tallystick.store.place import FileSystemOf, check_place, file_system_of, make_private
from tallystick.store.plan import Write
from tallystick.store.protocol import Expected, RowRefused, StatementRefused, UserStatement
from tallystick.store.statements import chunks, statements
from tallystick.store.threaded import ThreadedStore
from tallystick.store.transaction import Refused, Snapshot
from tallystick.store.worker import Worker

BUSY_MS = 5_000
"""How long a writer waits for another process to end its transaction."""
CHECKPOINT_PAGES = 1_000
"""The WAL is copied into the database when it has this many pages. Source: SQLite's own default."""
WAL_LIMIT_BYTES = 64 * 1024 * 1024
"""What a long reader made the WAL grow beyond this is given back."""
WAL_GROWN_BYTES = 4 * 1024 * 1024
WAL_GROW_AFTER = 500
"""After this many commits the WAL is grown at once: overwriting costs less than appending."""
WAL_GROW_FREE_BYTES = 256 * 1024 * 1024
"""It is left alone on a disk with less free space than this."""
CACHED_STATEMENTS = 500
REMEMBERED_MAX = 100_000
"""How many run numbers and terms a session remembers before it starts again."""
USER_STEPS_MAX = 20_000_000
"""A user's statement may take this many steps of SQLite's machine: about a second."""

SqliteStore = ThreadedStore


class Session:
    """One connection that reads and writes. Meets `transaction.Session` and `threaded.Reader`."""

    def __init__(self, connection: apsw.Connection, *, may_grow: bool, fault: Fault) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._texts: dict[tuple[str, int], str] = {}
        self._numbers: dict[str, int] = {}
        self._terms: set[bytes] = set()
        self._broken: TallyError | None = None
        self._may_grow = may_grow
        self._fault = fault
        self._commits = 0
        self._wal_pages = 0
        self._user = False
        self._setup = False
        self._ran = 0
        connection.authorizer = self._authorize
        connection.set_wal_hook(self._note_wal)

    # -- the verbs of a transaction

    @property
    def known_terms(self) -> Set[bytes]:
        """Digests of terms that are stored."""
        return self._terms

    def begin(self) -> Snapshot:
        if self._broken is not None:
            raise _broken(self._broken)
        with _translated("begin"):
            self._cursor.execute("BEGIN IMMEDIATE")
            return Snapshot(*self._cursor.execute(self._text("snapshot", 1)).fetchall()[0])

    def apply(self, write: Write) -> int:
        rows = write.rows
        changed, at = 0, 0
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
            raise _full(error) from error
        except apsw.Error as error:
            self._broken = _unknown(error)
            raise self._broken from error
        self._commits += 1

    def rollback(self) -> None:
        # A full disk has rolled back already; a second ROLLBACK would raise and hide the first error.
        if self._connection.in_transaction:
            try:
                self._cursor.execute("ROLLBACK")
            except apsw.Error as error:
                self._broken = self._broken or _unknown(error)

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
            if not rows:
                return None
            found = self._numbers[run] = rows[0][0]
        return found

    def expected(self, run: str) -> Expected | None:
        rows = self.rows("expected", (run,))
        return Expected(*rows[0]) if rows else None

    def holder(self, key: str) -> tuple[str, bytes] | None:
        rows = self.rows("holder_of_key", (key,))
        return (rows[0][0], rows[0][1]) if rows else None

    def remember(self, numbers: Mapping[str, int], terms: Set[bytes]) -> None:
        if len(self._numbers) + len(self._terms) > REMEMBERED_MAX:
            self._numbers.clear()
            self._terms.clear()
        self._numbers.update(numbers)
        self._terms.update(terms)

    # -- reading

    def rows(self, statement: str, params: Row) -> list[Row]:
        with _translated(statement):
            return self._cursor.execute(self._text(statement, 1), tuple(params)).fetchall()

    def query(self, sql: str, params: Sequence[object], limit: int) -> list[Row]:
        try:
            with self._as_user():
                cursor = self._connection.cursor()
                found = cursor.execute(sql, tuple(params), can_cache=False)
                rows = [row for row, _ in zip(found, range(limit), strict=False)]
                cursor.close(True)
                return rows
        except (apsw.Error, TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest(
                f"this query was refused: {error}", code="query-refused"
            ) from error

    # -- users

    def run_user(self, statement: UserStatement) -> None:
        try:
            with self._as_user():
                before = self._connection.total_changes()
                self._cursor.execute(statement.sql, statement.params, can_cache=False)
                changed = self._connection.changes() if self._changed_since(before) else 0
        except apsw.AuthError as error:
            raise Refused(StatementRefused("forbidden", str(error))) from error
        except (apsw.FullError, apsw.IOError, apsw.CorruptError) as error:
            raise _translate(error, "a user's statement") from error
        except (apsw.Error, TypeError, ValueError, OverflowError) as error:
            raise Refused(StatementRefused("conflict", str(error))) from error
        if statement.expect_rows is not None and changed != statement.expect_rows:
            said = f"{changed} rows instead of {statement.expect_rows}"
            raise Refused(StatementRefused("conflict", said))

    def _changed_since(self, before: int) -> bool:
        return self._connection.total_changes() != before

    def script(self, sql: str) -> None:
        try:
            with _translated("begin"):
                self._cursor.execute("BEGIN IMMEDIATE")
            with self._as_user(setup=True):
                self._cursor.execute(sql, can_cache=False)
            self.commit()
        except TallyError:
            self.rollback()
            raise
        except apsw.Error as error:
            self.rollback()
            raise InvalidRequest(
                f"the setup script was refused: {error}", code="setup-refused"
            ) from error

    @contextmanager
    def _as_user(self, *, setup: bool = False) -> Iterator[None]:
        budget = iter(range(USER_STEPS_MAX // 10_000))
        self._user, self._setup, self._ran = True, setup, 0
        self._cursor.exec_trace = None if setup else self._first_only
        self._connection.set_progress_handler(lambda: next(budget, None) is None, 10_000)
        try:
            yield
        finally:
            self._user = False
            self._cursor.exec_trace = None
            self._connection.set_progress_handler(None)

    def _first_only(self, cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
        self._ran += 1
        return self._ran == 1

    def _authorize(
        self, code: int, one: str | None, two: str | None, schema: str | None, source: str | None
    ) -> int:
        if not self._user:
            return apsw.SQLITE_OK
        allowed = _USER_CODES | _SETUP_CODES if self._setup else _USER_CODES
        if code not in allowed or any(_is_ours(name) for name in (one, two, source)):
            return apsw.SQLITE_DENY
        return apsw.SQLITE_OK

    # -- the log

    def _note_wal(self, connection: apsw.Connection, database: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def after_job(self) -> None:
        """Between jobs, when the last one was answered: bound the WAL, and grow it once."""
        if self._connection.in_transaction or self._broken is not None:
            return
        if self._may_grow and self._commits >= WAL_GROW_AFTER:
            self._may_grow = False
            _grow(Path(self._connection.filename + "-wal"))
        if self._wal_pages >= CHECKPOINT_PAGES:
            self._wal_pages = 0
            self.checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)

    def checkpoint(self, mode: int) -> None:
        """Copy the WAL into the database. A failure is left to the next one: nothing is lost."""
        try:
            self._fault("checkpoint.before")
            self._connection.wal_checkpoint(None, mode)
        except Exception:  # noqa: BLE001  whatever it is, the WAL still holds everything
            return

    def close(self) -> None:
        self.rollback()
        try:
            self._connection.close()
        except apsw.Error as error:
            raise _translate(error, "close") from error


_USER_CODES = frozenset(
    {
        apsw.SQLITE_SELECT,
        apsw.SQLITE_READ,
        apsw.SQLITE_INSERT,
        apsw.SQLITE_UPDATE,
        apsw.SQLITE_DELETE,
        apsw.SQLITE_FUNCTION,
        apsw.SQLITE_RECURSIVE,
    }
)
_SETUP_CODES = frozenset(
    {
        apsw.SQLITE_CREATE_TABLE,
        apsw.SQLITE_CREATE_INDEX,
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_CREATE_VIEW,
        apsw.SQLITE_DROP_TABLE,
        apsw.SQLITE_DROP_INDEX,
        apsw.SQLITE_DROP_TRIGGER,
        apsw.SQLITE_DROP_VIEW,
        apsw.SQLITE_ALTER_TABLE,
        apsw.SQLITE_REINDEX,
    }
)
_FORBIDDEN = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})


def _is_ours(name: str | None) -> bool:
    return name is not None and (name.lower().startswith("tally_") or name.lower() in _FORBIDDEN)


# -- what a failure says


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise _translate(error, doing) from error


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except apsw.ConstraintError as error:
        raise Refused(RowRefused(str(error))) from error
    except apsw.Error as error:
        raise _translate(error, "write") from error


def _translate(error: apsw.Error, doing: str) -> TallyError:
    """The error of a statement that is not a COMMIT: nothing was written."""
    facts = {"doing": doing, "error": f"{type(error).__name__}: {error}", "written": False}
    match error:
        case apsw.FullError():
            return _full(error)
        case apsw.CorruptError() | apsw.NotADBError():
            return MaintenanceRequired(
                f"the database is damaged: {error}",
                code="database-damaged",
                facts=facts,
                next_step="restore a backup; keep the file for an investigation",
            )
        case apsw.ReadOnlyError():
            return InvalidRequest(
                f"the database cannot be written: {error}", code="read-only", facts=facts
            )
        case apsw.BusyError() | apsw.LockedError():
            return StoreUnavailable(
                f"another process holds the database's write lock: {error}",
                code="store-busy",
                facts=facts,
                next_step="end the other transaction; the same command again is safe",
            )
        case _:
            return StoreUnavailable(
                f"the database did not answer: {error}", code="store-failed", facts=facts
            )


def _full(error: apsw.Error) -> CapacityUnavailable:
    return CapacityUnavailable(
        f"the disk is full: {error}",
        which="disk",
        transient=True,
        code="disk-full",
        check="disk",
        facts={"error": f"{type(error).__name__}: {error}", "written": False},
        next_step="free some space; the engine goes on by itself",
    )


def _unknown(error: apsw.Error) -> StoreUnavailable:
    return StoreUnavailable(
        f"the commit reported a failure; it may have succeeded: {error}",
        code="commit-unknown",
        check="commit",
        facts={"error": f"{type(error).__name__}: {error}"},
        next_step="open the store anew and read each run of the batch again",
    )


def _broken(first: TallyError) -> StoreUnavailable:
    return StoreUnavailable(
        f"this store writes no more after: {first.message}",
        code="store-broken",
        check="commit",
        facts={**first.facts, "written": False},
        next_step="open the store anew",
    )


def _grow(wal: Path) -> None:
    """Write zeros behind the log's end: recovery stops at the first frame without its checksum."""
    try:
        space = os.statvfs(wal)
        size = wal.stat().st_size
        if size >= WAL_GROWN_BYTES or space.f_bavail * space.f_frsize < WAL_GROW_FREE_BYTES:
            return
        with wal.open("r+b", buffering=0) as file:
            file.seek(size)
            file.write(bytes(WAL_GROWN_BYTES - size))
            os.fsync(file.fileno())
    except OSError:
        return  # it is for speed alone


# -- opening


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

    now        ms since 1970 · new_id: a random text that was never used, safe in a file name
    create     make the database if there is none; else `NotFound`
    read_only  no verb that writes works
    fault      called at each of `faults.FAULT_POINTS`
    synchronous  anything but FULL loses acknowledged transitions at power loss; for tests
    any_file_system  also network file systems, on which SQLite's locks may not hold
    vfs        name of an SQLite VFS; one connection, exclusive, for tests

    Raises `UnsupportedSchema` (not a byte was changed), `MaintenanceRequired` where guards are missing
    or altered, `InvalidRequest` for a place that must not be used, `NotFound`, `StoreUnavailable`.
    """
    file = Path(path).absolute()
    file = file.parent.resolve() / file.name
    warnings = check_place(
        file,
        create=create and not read_only,
        any_file_system=any_file_system,
        file_system_of=file_system_of,
    )
    opening = _Opening(file, now, new_id, fault, synchronous, vfs, read_only)
    writer = Worker("tally-writer")
    try:
        store_id, session = await writer.do(opening.session)
        writer.after = session.after_job
        return await _assemble(opening, writer, session, store_id, warnings, system)
    except BaseException:
        await writer.stop(lambda: None)
        raise


@dataclass(frozen=True, slots=True)
class _Opening:
    """What was asked of `open_sqlite`, for the threads that open connections."""

    file: Path
    now: Callable[[], int]
    new_id: Callable[[], str]
    fault: Fault
    synchronous: str
    vfs: str | None
    read_only: bool

    def session(self) -> tuple[str, Session]:
        """Look, open, create if need be: the store's id, and the connection that may write."""
        with _translated("open"):
            if self.vfs is None:
                self._look_first()
            connection = self._connect(writes=not self.read_only)
            try:
                self._check(connection)
                session = Session(connection, may_grow=self.vfs is None, fault=self.fault)
                return session.rows("store_row", ())[0][0], session
            except BaseException:
                connection.close()
                raise

    def reader(self) -> Session:
        """One more connection, which only reads."""
        with _translated("open"):
            return Session(self._connect(writes=False), may_grow=False, fault=no_fault)

    def _look_first(self) -> None:
        """Refuse a file that is not ours before anything of it, or beside it, is changed."""
        if self.file.exists() and self.file.stat().st_size > 0:
            wal = self.file.with_name(self.file.name + "-wal")
            live = wal.exists() and wal.stat().st_size > 0
            connection = apsw.Connection(
                f"{self.file.as_uri()}?mode=ro{'' if live else '&immutable=1'}",
                flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
            )
            try:
                seen = _seen(connection)
            except apsw.NotADBError as error:
                raise _not_ours(self.file) from error
            finally:
                connection.close()
            if not seen.empty:
                self._refuse_foreign(seen)
        if not self.read_only:
            make_private(self.file)
            System().sync_directory(self.file.parent)

    def _connect(self, *, writes: bool) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE if writes else apsw.SQLITE_OPEN_READONLY
        if self.vfs is not None:
            flags |= apsw.SQLITE_OPEN_CREATE
        connection = apsw.Connection(
            str(self.file), flags=flags, vfs=self.vfs, statementcachesize=CACHED_STATEMENTS
        )
        connection.set_busy_timeout(BUSY_MS)
        for name, value in (
            ("locking_mode", "EXCLUSIVE" if self.vfs is not None else "NORMAL"),
            ("synchronous", self.synchronous),
            ("foreign_keys", True),
            ("recursive_triggers", False),
            ("trusted_schema", False),
            ("cell_size_check", True),
            ("temp_store", "MEMORY"),
        ):
            connection.pragma(name, value)
        connection.wal_autocheckpoint(0)
        return connection

    def _check(self, connection: apsw.Connection) -> None:
        seen = _seen(connection)
        if seen.empty and not self.read_only:
            self._create(connection)
            seen = _seen(connection)
        self._refuse_foreign(seen)
        if not self.read_only:
            mode = connection.pragma("journal_mode", "WAL")
            if mode != "wal":
                raise StoreUnavailable(
                    f"the database cannot keep a write-ahead log (journal mode {mode})",
                    code="no-wal",
                )
            connection.pragma("journal_size_limit", WAL_LIMIT_BYTES)

    def _create(self, connection: apsw.Connection) -> None:
        connection.pragma("journal_mode", "WAL")
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _seen(connection).empty:  # else another process was faster
                connection.execute(migrations.creation())
                connection.pragma("application_id", migrations.APPLICATION_ID)
                connection.pragma("user_version", migrations.SCHEMA)
                insert = statements()["insert_store"].one()
                connection.execute(insert, (self.new_id(), migrations.SCHEMA, self.now()))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        # The header says whose file it is, also to who looks without reading the log.
        connection.wal_checkpoint(None, apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _refuse_foreign(self, seen: _Seen) -> None:
        migrations.check_version(seen.application_id, seen.version, path=str(self.file))
        migrations.check_objects(seen.objects, _expected_objects())


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a database says it is."""

    application_id: int
    version: int
    objects: migrations.Objects

    @property
    def empty(self) -> bool:
        """Nobody has written anything into it."""
        return not (self.application_id or self.version or self.objects)


def _seen(connection: apsw.Connection) -> _Seen:
    return _Seen(
        connection.pragma("application_id"), connection.pragma("user_version"), _objects(connection)
    )


def _objects(connection: apsw.Connection) -> migrations.Objects:
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
    return {(kind, name): (table, sql or "") for kind, name, table, sql in rows}


@cache
def _expected_objects() -> migrations.Objects:
    """What a store of this version contains: made once, in memory, and read back."""
    connection = apsw.Connection(":memory:")
    try:
        connection.execute(migrations.creation())
        return _objects(connection)
    finally:
        connection.close()


def _not_ours(file: Path) -> UnsupportedSchema:
    return UnsupportedSchema(
        f"{file} is not a database",
        code="foreign-file",
        check="schema",
        facts={"path": str(file)},
        next_step="choose another path",
    )


async def _assemble(
    opening: _Opening,
    writer: Worker,
    session: Session,
    store_id: str,
    warnings: Sequence[str],
    system: System | None,
) -> SqliteStore:
    alone = opening.vfs is not None or opening.read_only
    reading = writer if alone else Worker("tally-reader")
    reader = session if alone else await reading.do(opening.reader)
    blobs = Blobs(
        opening.file.with_name(opening.file.name + "-blobs"),
        new_name=opening.new_id,
        system=system,
        fault=opening.fault,
    )
    return ThreadedStore(
        store_id=store_id,
        path=str(opening.file),
        writer=writer,
        session=session,
        reading=reading,
        reader=reader,
        reopen=None if alone else opening.reader,
        blobs=blobs,
        fault=opening.fault,
        warnings=warnings,
    )
