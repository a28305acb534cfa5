"""What is SQLite's own: files and their modes, faults, users' SQL, forks, the log."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time
from pathlib import Path

import apsw
import msgspec
import pytest

from tallystick.core.history import verify
from tallystick.errors import (
    ForkedClient,
    InvalidRequest,
    MaintenanceRequired,
    NotFound,
    StoreUnavailable,
)
from tallystick.store import gate, sqlite, sqlite_errors, threaded, worker
from tallystick.store.faults import FAULT_POINTS, MEANING
from tallystick.store.place import LOCAL, _type_at
from tallystick.store.plan import KINDS, STAGE
from tallystick.store.protocol import (
    Committed,
    RunFilter,
    StatementRefused,
    UserStatement,
)
from tallystick.store.sqlite import SqliteStore, open_sqlite
from tallystick.store.statements import SIZES, chunks, statements
from tests.store.conftest import Ids
from tests.store.contract import ENGINE, everything, put, started
from tests.store.flows import DEFINITION, DEFINITION_BODY, Author, payload_of

TABLE = "CREATE TABLE orders (id INTEGER PRIMARY KEY, paid INTEGER NOT NULL CHECK (paid >= 0))"


async def opened_at(path: Path | str, **keywords: object) -> SqliteStore:
    return await open_sqlite(path, **{"now": lambda: 1, "new_id": Ids()} | keywords)


@pytest.fixture
async def store(tmp_path: Path):
    store = await opened_at(tmp_path / "tally.db")
    await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
    yield store
    await store.close()


# Files and places


def modes(folder: Path) -> dict[str, str]:
    with os.scandir(folder) as found:
        return {entry.name: oct(stat.S_IMODE(entry.stat().st_mode)) for entry in found}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.invariant("D4")
async def test_files_are_readable_by_their_owner_only(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = await opened_at(tmp_path / "tally.db")
        await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
        author = Author("run-1")
        await put(store, author, author.admit(msgspec.json.encode("x" * 100_000)))
        seen = modes(tmp_path)
        blobs = modes(tmp_path / "tally.db-blobs")
        await store.close()
    finally:
        os.umask(before)
    assert seen.pop("tally.db-blobs") == "0o700"
    assert set(seen) == {"tally.db", "tally.db-wal", "tally.db-shm"}
    assert set(seen.values()) == set(blobs.values()) == {"0o600"}


@pytest.mark.invariant("D4")
async def test_a_database_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = str(tmp_path / "tally.db")
    await (await opened_at(path)).close()
    os.chmod(path, 0o644)
    await (await opened_at(path)).close()
    assert modes(tmp_path) == {"tally.db": "0o600"}


def contents(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def plant(tmp_path: Path, what: str) -> Path:
    """A place that must not be used; the path to open."""
    path = tmp_path / "tally.db"
    match what:
        case "symlink":
            path.symlink_to(tmp_path / "elsewhere")
        case "log symlink":
            (tmp_path / "tally.db-wal").symlink_to(tmp_path / "elsewhere")
        case "blobs symlink":
            (tmp_path / "tally.db-blobs").symlink_to(tmp_path)
        case "blobs file":
            (tmp_path / "tally.db-blobs").touch()
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "open directory":
            tmp_path.chmod(0o777)
        case "other owner":
            path.touch()
            os.chown(path, 12345, -1)
        case "directory of another":
            os.chown(tmp_path, 12345, -1)
    return path


@pytest.mark.parametrize(
    "what",
    [
        "symlink",
        "log symlink",
        "blobs symlink",
        "blobs file",
        "fifo",
        "directory",
        "open directory",
        "other owner",
        "directory of another",
    ],
)
async def test_a_place_that_others_could_swap_is_refused(tmp_path: Path, what: str) -> None:
    if "other" in what and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path = plant(tmp_path, what)
    before = contents(tmp_path)
    with pytest.raises(InvalidRequest) as refused:
        await opened_at(path)
    assert refused.value.code == "place-refused"
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p", "smb3", "virtiofs", None])
@pytest.mark.case("C5")
async def test_a_file_system_that_is_not_local_is_refused_by_name(
    tmp_path: Path, kind: str | None
) -> None:
    path = tmp_path / "tally.db"
    with pytest.raises(InvalidRequest) as refused:
        await opened_at(path, file_system_of=lambda _: kind)
    assert refused.value.facts["type"] == kind
    assert not os.listdir(tmp_path)
    store = await opened_at(path, file_system_of=lambda _: kind, any_file_system=True)
    await store.close()


async def test_a_file_system_in_memory_is_warned_about(tmp_path: Path) -> None:
    store = await opened_at(tmp_path / "tally.db", file_system_of=lambda _: "tmpfs")
    assert "does not survive" in store.warnings[0]
    await store.close()


def test_the_deepest_and_latest_mount_holds_a_path() -> None:
    lines = [
        "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw",
        "2 1 0:5 / /data rw - nfs4 host:/x rw",
        "3 2 8:2 / /data/my\\040disk rw - xfs /dev/sdb rw",
        "4 2 0:9 / /data/my\\040disk rw - btrfs /dev/sdc rw",
    ]
    mounts = "\n".join(lines)
    for path, kind in {
        "/home/me": "ext4",
        "/data": "nfs4",
        "/database": "ext4",
        "/data/x": "nfs4",
        "/data/my disk/x": "btrfs",
    }.items():
        assert _type_at(mounts, path) == kind
    assert {"ext4", "xfs", "btrfs", "zfs", "overlay", "apfs", "tmpfs"} <= LOCAL


async def test_the_directory_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await opened_at(tmp_path / "none" / "tally.db")


# Reading only, twice, and after closing


async def test_a_store_opened_to_read_writes_nothing(tmp_path: Path, store: SqliteStore) -> None:
    await started(store)
    reader = await opened_at(tmp_path / "tally.db", read_only=True)
    assert await everything(reader, "run-1") == await everything(store, "run-1")
    for write in (
        reader.commit([Author("x").admit()], epoch=1),
        reader.put_engine(ENGINE),
        reader.setup(TABLE),
    ):
        with pytest.raises(InvalidRequest):
            await write
    author = Author("run-2", seed=2)
    await put(store, author, author.admit())
    assert (await reader.run("run-2")).header.sequence == 1
    await reader.close()


async def test_two_openings_of_one_file_see_each_other(tmp_path: Path, store: SqliteStore) -> None:
    other = await opened_at(tmp_path / "tally.db")
    author = await started(store)
    await put(other, author, author.settle("one"))
    assert (await store.run("run-1")).header.sequence == 4
    assert other.store_id == store.store_id
    await other.close()
    await put(store, author, author.end())


async def test_many_openers_make_one_store(tmp_path: Path) -> None:
    ids = [f"store-{n}" for n in range(8)]
    openings = [opened_at(tmp_path / "tally.db", new_id=lambda name=name: name) for name in ids]
    stores = await asyncio.gather(*openings)
    assert len({store.store_id for store in stores}) == 1
    for store in stores:
        await store.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = await opened_at(tmp_path / "tally.db")
    await store.close()
    with pytest.raises(StoreUnavailable) as refused:
        await store.runs(RunFilter())
    assert refused.value.code == "store-closed"


async def test_what_was_submitted_before_closing_is_finished(tmp_path: Path) -> None:
    store = await opened_at(tmp_path / "tally.db")
    await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
    commits = [
        asyncio.ensure_future(store.commit([Author(f"run-{n}").admit()], epoch=1)) for n in range(9)
    ]
    await asyncio.sleep(0)
    await store.close()
    for commit in commits:
        assert isinstance((await commit)[0], Committed)


async def test_a_cancelled_commit_is_finished_all_the_same(store: SqliteStore) -> None:
    commit = asyncio.ensure_future(store.commit([Author("run-1").admit()], epoch=1))
    await asyncio.sleep(0)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    await store.commit([Author("run-2").admit()], epoch=1)
    assert (await store.run("run-1")).header.sequence == 1


def _said_by_a_child(store: SqliteStore) -> bytes:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"nothing"
        try:
            store._writer.check_process()
        except ForkedClient:
            said = b"forked"
        finally:
            os.write(write, said)
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
async def test_a_forked_child_is_told_to_open_anew(store: SqliteStore) -> None:
    assert _said_by_a_child(store) == b"forked"
    author = Author("run-1")
    await put(store, author, author.admit())


async def test_every_verb_asks_whether_it_is_in_a_child(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker.os, "getpid", lambda: -1)
    for verb in (
        store.commit([Author("x").admit()], epoch=1),
        store.run("x"),
        store.epoch(),
        store.close(),
    ):
        with pytest.raises(ForkedClient):
            await verb
    monkeypatch.undo()


# Faults


class Faulty:
    """Raises the n-th time that a point is reached."""

    def __init__(self, point: str, nth: int = 1) -> None:
        self.point, self.left, self.seen = point, nth, []

    def __call__(self, point: str) -> None:
        self.seen.append(point)
        if point == self.point:
            self.left -= 1
            if self.left == 0:
                raise OSError(f"fault at {point}")


COMMIT_POINTS = [point for point in FAULT_POINTS if point.startswith("commit.")]


async def faulty_store(path: Path, fault: Faulty) -> SqliteStore:
    """A store whose fault is armed only once it has a definition and a run."""
    armed: list[Faulty] = []
    store = await opened_at(path, fault=lambda point: [f(point) for f in armed] and None)
    await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
    armed.append(fault)
    return store


@pytest.mark.parametrize("point", [p for p in COMMIT_POINTS if "rolled back" in MEANING[p]])
@pytest.mark.invariant("P11", "S6", "D6")
async def test_a_failure_before_the_commit_writes_nothing(tmp_path: Path, point: str) -> None:
    fault = Faulty(point)
    store = await faulty_store(tmp_path / "tally.db", fault)
    batch = [Author("run-1").admit(), Author("run-2").admit()]
    if point == "commit.replay":
        batch.append(msgspec.structs.replace(Author("run-3").admit(), events=()))
    with pytest.raises(StoreUnavailable) as refused:
        await store.commit(batch, epoch=1)
    assert refused.value.facts["written"] is False
    assert await store.runs(RunFilter()) == []
    assert point in fault.seen
    answers = await store.commit(batch, epoch=1)
    assert answers[:2] == [Committed(1), Committed(2)]
    await store.close()


async def test_a_failure_before_the_transaction_writes_nothing(tmp_path: Path) -> None:
    store = await faulty_store(tmp_path / "tally.db", Faulty("commit.before-begin"))
    with pytest.raises(StoreUnavailable):
        await store.commit([Author("run-1").admit()], epoch=1)
    assert await store.commit([Author("run-1").admit()], epoch=1) == [Committed(1)]
    await store.close()


@pytest.mark.invariant("S12")
async def test_a_commit_may_succeed_and_report_failure(tmp_path: Path) -> None:
    store = await faulty_store(tmp_path / "tally.db", Faulty("commit.after-commit"))
    author = Author("run-1")
    transition = author.admit()
    with pytest.raises(StoreUnavailable) as unknown:
        await store.commit([transition], epoch=1)
    assert unknown.value.code == "commit-unknown"
    (event,) = [event async for event in store.events("run-1")]
    assert event.transition == transition.id
    author.done()
    await put(store, author, author.begin("one"))
    await store.close()


async def test_after_a_commit_of_unknown_outcome_a_new_connection_reads(tmp_path: Path) -> None:
    store = await faulty_store(tmp_path / "tally.db", Faulty("commit.after-commit"))
    before = store._reader
    with pytest.raises(StoreUnavailable):
        await store.commit([Author("run-1").admit()], epoch=1)
    assert (await store.run("run-1")).header.sequence == 1
    assert store._reader is not before
    await store.close()


@pytest.mark.invariant("P11")
async def test_a_guard_that_fails_once_is_replayed_one_by_one(tmp_path: Path) -> None:
    fault = Faulty("commit.guard")
    store = await faulty_store(tmp_path / "tally.db", fault)
    answers = await store.commit([Author(f"run-{n}").admit() for n in range(3)], epoch=1)
    assert answers == [Committed(1), Committed(2), Committed(3)]
    assert fault.seen.count("commit.replay") == 1
    await store.close()


@pytest.mark.parametrize("nth", [1, 2])
async def test_a_checkpoint_that_fails_loses_nothing(
    tmp_path: Path, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", 1)
    store = await faulty_store(tmp_path / "tally.db", Faulty("checkpoint.before", nth))
    author = await started(store)
    await put(store, author, author.settle("one"))
    before = await everything(store, "run-1")
    await store.close()
    store = await opened_at(tmp_path / "tally.db")
    assert await everything(store, "run-1") == before
    await store.close()


@pytest.mark.parametrize("point", ["definition.before-commit", "engine.before-commit"])
async def test_single_rows_are_written_whole_or_not(tmp_path: Path, point: str) -> None:
    fault = Faulty(point)
    store = await faulty_store(tmp_path / "tally.db", fault)

    async def write() -> None:
        await store.put_definition(bytes(32), b"[]", b"{}")
        await store.put_engine(ENGINE)

    with pytest.raises(StoreUnavailable):
        await write()
    assert await store.engine("engine-1") is None
    await write()
    assert await store.engine("engine-1") == ENGINE
    await store.close()


async def test_an_engine_row_may_be_written_and_report_failure(tmp_path: Path) -> None:
    store = await faulty_store(tmp_path / "tally.db", Faulty("engine.after-commit"))
    with pytest.raises(StoreUnavailable):
        await store.put_engine(ENGINE)
    assert await store.engine("engine-1") == ENGINE
    await store.put_engine(ENGINE)
    await store.close()


@pytest.mark.parametrize("point", [p for p in FAULT_POINTS if p.startswith("blob.")])
@pytest.mark.invariant("S6", "D6")
async def test_a_blob_that_fails_leaves_no_transition(tmp_path: Path, point: str) -> None:
    store = await faulty_store(tmp_path / "tally.db", Faulty(point))
    body = msgspec.json.encode("x" * 70_000)
    author = Author("run-1")
    transition = author.admit(body)
    with pytest.raises(StoreUnavailable):
        await store.commit([transition], epoch=1)
    assert await store.runs(RunFilter()) == []
    await put(store, author, transition)
    assert await store.payload("run-1", 1) == payload_of(body)
    await store.close()


async def test_another_process_that_writes_is_named_as_such(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = apsw.Connection(str(tmp_path / "tally.db"))
    other.execute("BEGIN IMMEDIATE")
    store._session._connection.set_busy_timeout(1)
    with pytest.raises(StoreUnavailable) as busy:
        await store.commit([Author("run-1").admit()], epoch=1)
    assert busy.value.code == "store-busy"
    other.execute("ROLLBACK")
    other.close()
    assert await store.commit([Author("run-1").admit()], epoch=1) == [Committed(1)]


# What users may do


async def user_store(path: Path) -> tuple[SqliteStore, Author]:
    store = await opened_at(path)
    await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
    await store.setup(TABLE + "; INSERT INTO orders VALUES (1, 0), (2, 0)")
    return store, await started(store)


@pytest.fixture
async def shop(tmp_path: Path):
    store, author = await user_store(tmp_path / "tally.db")
    yield store, author
    await store.close()


def settled_with(author: Author, *statements: UserStatement):
    return msgspec.structs.replace(author.settle("one"), statements=statements)


@pytest.mark.invariant("S6")
async def test_statements_of_users_commit_with_their_settlement(shop) -> None:
    store, author = shop
    pay = UserStatement("UPDATE orders SET paid = ? WHERE id = ?", (7, 1), 1)
    add = UserStatement("INSERT INTO orders VALUES (3, 1)")
    await put(store, author, settled_with(author, pay, add))
    assert await store.query("SELECT * FROM orders ORDER BY id") == [(1, 7), (2, 0), (3, 1)]


CONFLICTS = {
    "rows": UserStatement("UPDATE orders SET paid = 1 WHERE id = 99", (), 1),
    "too many rows": UserStatement("UPDATE orders SET paid = 1", (), 1),
    "no rows after many": UserStatement("SELECT 1", (), 1),
    "check": UserStatement("UPDATE orders SET paid = -1"),
    "unique": UserStatement("INSERT INTO orders VALUES (1, 1)"),
    "rollback": UserStatement("INSERT OR ROLLBACK INTO orders VALUES (1, 1)"),
    "syntax": UserStatement("UPDATE orders SAT"),
    "no such table": UserStatement("DELETE FROM nothing"),
    "parameters": UserStatement("UPDATE orders SET paid = ?", ()),
    "type": UserStatement("UPDATE orders SET paid = ?", (object(),)),
    "too large": UserStatement("UPDATE orders SET paid = ?", (2**63,)),
    "schema": UserStatement("DELETE FROM sqlite_master"),
    "extension": UserStatement("SELECT load_extension('x')"),
    "two statements": UserStatement("UPDATE orders SET paid = 1; UPDATE orders SET paid = 2"),
    "endless": UserStatement(
        "INSERT INTO orders WITH RECURSIVE n (i) AS (SELECT 9 UNION ALL SELECT i + 1 FROM n)"
        " SELECT i, 0 FROM n"
    ),
}
FORBIDDEN = {
    "engine table": "UPDATE tally_run SET damaged = 'x'",
    "engine table in capitals": "UPDATE TALLY_RUN SET damaged = 'x'",
    "engine table quoted": 'UPDATE "tally_run" SET damaged = 1',
    "engine table in main": "DELETE FROM main.tally_payload",
    "reading the engine": "UPDATE orders SET paid = (SELECT count(*) FROM tally_event)",
    "through a view": "INSERT INTO orders SELECT run_no, 1 FROM tally_run_row",
    "pragma": "PRAGMA foreign_keys = OFF",
    "pragma function": "UPDATE orders SET paid = (SELECT count(*) FROM pragma_table_info('x'))",
    "attach": "ATTACH ':memory:' AS x",
    "detach": "DETACH main",
    "commit": "COMMIT",
    "rollback": "ROLLBACK",
    "begin": "BEGIN",
    "savepoint": "SAVEPOINT alone",
    "release": "RELEASE alone",
    "table": "CREATE TABLE x (y)",
    "temp table": "CREATE TEMP TABLE tally_run (y)",
    "trigger": "CREATE TRIGGER x AFTER INSERT ON orders BEGIN SELECT 1; END",
    "drop": "DROP TABLE orders",
    "drop a guard": "DROP TRIGGER tally_run_delete",
    "alter": "ALTER TABLE orders ADD COLUMN x",
    "vacuum into": "VACUUM INTO '/tmp/x'",
    "virtual table": "CREATE VIRTUAL TABLE x USING fts5(y)",
    "analyze": "ANALYZE",
    "reindex": "REINDEX",
}


@pytest.mark.parametrize("statement", CONFLICTS.values(), ids=CONFLICTS.keys())
@pytest.mark.invariant("P11", "S6")
async def test_a_statement_that_conflicts_refuses_its_transition_alone(
    shop, statement: UserStatement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "STEPS_MAX", 200_000)
    store, author = shop
    await refused_alone(store, author, statement, "conflict")


@pytest.mark.parametrize("sql", FORBIDDEN.values(), ids=FORBIDDEN.keys())
async def test_a_statement_that_is_forbidden_refuses_its_transition_alone(shop, sql: str) -> None:
    store, author = shop
    # VACUUM is refused for being inside a transaction, before anybody is asked.
    kind = "conflict" if sql.startswith("VACUUM") else "forbidden"
    await refused_alone(store, author, UserStatement(sql), kind)


async def refused_alone(
    store: SqliteStore, author: Author, statement: UserStatement, kind: str
) -> None:
    good = UserStatement("UPDATE orders SET paid = paid + 1 WHERE id = 2", (), 1)
    others = [await started(store, f"other-{n}", seed=n) for n in range(2)]
    batch = [
        settled_with(others[0], good),
        settled_with(author, good, statement),
        settled_with(others[1], good),
    ]
    before = await everything(store, "run-1")
    first, answer, last = await store.commit(batch, epoch=1)
    assert isinstance(answer, StatementRefused)
    assert answer.kind == kind, answer
    assert isinstance(first, Committed)
    assert isinstance(last, Committed)
    assert await everything(store, "run-1") == before
    assert await store.query("SELECT * FROM orders ORDER BY id") == [(1, 0), (2, 2)]
    await put(store, author, settled_with(author, good))


async def test_a_deferred_foreign_key_is_found_before_the_commit(shop) -> None:
    store, author = shop
    await store.setup(
        "CREATE TABLE lines (id INTEGER REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)"
    )
    await refused_alone(store, author, UserStatement("INSERT INTO lines VALUES (99)"), "conflict")


async def test_triggers_of_users_do_not_open_the_gate(shop) -> None:
    store, author = shop
    await store.setup("CREATE VIEW peek AS SELECT 1 AS x; CREATE TABLE log (x)")
    raw = apsw.Connection(store.path)
    raw.execute(
        "CREATE TRIGGER sneak AFTER INSERT ON log BEGIN UPDATE tally_run SET damaged = 'x'; END"
    )
    raw.close()
    await refused_alone(store, author, UserStatement("INSERT INTO log VALUES (1)"), "forbidden")


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE tally_mine (x)",
        "CREATE TABLE mine (x REFERENCES tally_run (run_no)); INSERT INTO mine VALUES (1)",
        "CREATE TRIGGER t AFTER INSERT ON tally_event BEGIN SELECT 1; END",
        "DROP TRIGGER tally_run_delete",
        "CREATE INDEX mine ON tally_run (workflow)",
        "ALTER TABLE tally_run ADD COLUMN x",
        "CREATE TABLE a (x); COMMIT; CREATE TABLE b (x)",
        "PRAGMA foreign_keys = OFF",
        "ATTACH ':memory:' AS x",
        "CREATE TABLE a (x); nonsense",
    ],
)
async def test_a_setup_script_is_run_whole_or_not_and_touches_nothing_of_ours(
    store: SqliteStore, script: str
) -> None:
    before = apsw.Connection(store.path).execute("SELECT sql FROM sqlite_master").fetchall()
    with pytest.raises(InvalidRequest):
        await store.setup(script)
    assert apsw.Connection(store.path).execute("SELECT sql FROM sqlite_master").fetchall() == before


async def test_a_setup_script_may_make_tables_of_all_sorts(store: SqliteStore) -> None:
    for _ in range(2):
        await store.setup(
            "CREATE TABLE IF NOT EXISTS a (id INTEGER PRIMARY KEY AUTOINCREMENT, x UNIQUE);"
            "CREATE INDEX IF NOT EXISTS i ON a (x); SELECT 1;"
            "CREATE VIEW IF NOT EXISTS v AS SELECT x FROM a;"
            "CREATE TRIGGER IF NOT EXISTS t AFTER INSERT ON a BEGIN"
            " UPDATE a SET x = x + 1 WHERE id = NEW.id; END;"
            "INSERT INTO a (x) SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM a);"
        )
    assert await store.query("SELECT * FROM v") == [(2,)]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM orders",
        "SELECT * FROM tally_run",
        "SELECT 1; SELECT 2",
        "PRAGMA user_version",
        "SELECT * FROM nothing",
        "SELECT ?",
        "CREATE TEMP TABLE x (y)",
    ],
)
async def test_a_query_only_reads_and_only_what_is_the_users(shop, sql: str) -> None:
    store, _ = shop
    with pytest.raises(InvalidRequest):
        await store.query(sql)


async def test_a_query_is_bounded(shop) -> None:
    store, _ = shop
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    assert await store.query(endless, limit=3) == [(1,), (2,), (3,)]
    with pytest.raises(InvalidRequest):
        await store.query(f"SELECT max(i) FROM ({endless})")


def test_the_codes_are_those_of_the_driver() -> None:
    for name, code in gate._SETUP.items():
        assert getattr(apsw, f"SQLITE_{name}") == code
    for name in ("BUSY", "LOCKED", "READONLY", "IOERR", "CORRUPT", "FULL", "NOTADB"):
        assert getattr(apsw, f"SQLITE_{name}") == getattr(sqlite_errors, name)
    assert (gate.ALLOWED, gate.DENIED) == (apsw.SQLITE_OK, apsw.SQLITE_DENY)


# Statements


def test_every_fact_has_its_statement() -> None:
    from tallystick.core import facts
    from tallystick.core.facts import AnyFact

    assert {kind for kind, _ in KINDS} == set(AnyFact.__args__)
    assert len(KINDS) == len(AnyFact.__args__) <= STAGE
    for kind, name in KINDS:
        assert name.replace("_", "") == kind.__name__.lower()
        if kind not in {facts.InsertTerms, facts.InsertAttempt}:
            assert statements()[name].binds == ("run_no", *kind.__struct_fields__)


def test_every_statement_compiles_for_one_row_and_for_many() -> None:
    db = apsw.Connection(":memory:")
    db.execute(sqlite.migrations.creation())
    for statement in statements().values():
        sizes = SIZES if statement.text.startswith(("INSERT INTO tally_", "UPDATE")) else (1,)
        for rows in sizes:
            if "WHERE NOT EXISTS" in statement.text and rows > 1:
                continue
            count = len(statement.binds) * rows
            db.execute(f"EXPLAIN {statement.many(rows)}", (None,) * count).fetchall()


@pytest.mark.parametrize("rows", [*range(1, 300), 1000])
def test_rows_are_split_into_few_known_sizes(rows: int) -> None:
    parts = chunks(rows)
    assert sum(parts) == rows
    assert set(parts) <= set(SIZES)
    assert len(parts) <= rows // SIZES[0] + 4


# The log, and what a step costs


async def test_the_log_is_grown_once_and_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LOG_GROW_AFTER", 5)
    monkeypatch.setattr(sqlite, "LOG_GROWN_BYTES", 300_000)
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", 20)
    store = await opened_at(tmp_path / "tally.db")
    await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
    log = tmp_path / "tally.db-wal"
    author = Author("run-1")
    await put(store, author, author.admit())
    await put(store, author, author.begin("n0"))
    sizes = []
    for number in range(60):
        await put(store, author, author.step(f"n{number}", f"n{number + 1}"))
        sizes.append(log.stat().st_size)
    assert max(sizes) == sizes[-1] == 300_000
    other = await opened_at(tmp_path / "tally.db", read_only=True)
    events = [event async for event in other.events("run-1")]
    verify("run-1", [(e.sequence, e.transition, e.envelope, e.hash) for e in events])
    await other.close()
    await store.close()
    assert not log.exists()


@pytest.mark.case("C1")
async def test_a_reader_that_stays_does_not_stop_the_writer(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", 20)
    other = apsw.Connection(str(tmp_path / "tally.db"))
    other.execute("BEGIN; SELECT count(*) FROM tally_event").fetchall()
    author = Author("run-1")
    await put(store, author, author.admit())
    await put(store, author, author.begin("n0"))
    for number in range(40):
        await put(store, author, author.step(f"n{number}", f"n{number + 1}"))
    other.close()


@pytest.mark.invariant("H3")
async def test_a_step_costs_the_same_however_many_there_were(store: SqliteStore) -> None:
    author = Author("run-1")
    await put(store, author, author.admit())
    await put(store, author, author.begin("n10000"))
    pages = []
    for number in range(10_000, 10_600):
        await put(store, author, author.step(f"n{number}", f"n{number + 1}"))
        if number % 200 == 199:
            pages.append(_pages(store))
    first, second = pages[1] - pages[0], pages[2] - pages[1]
    assert second <= first * 1.1
    assert (pages[2] - pages[0]) * 4096 / 400 <= 1_300


def _pages(store: SqliteStore) -> int:
    db = apsw.Connection(store.path)
    count: int = db.pragma("page_count")
    db.close()
    return count


@pytest.mark.slow
async def test_a_busy_loop_does_not_starve_the_writer(store: SqliteStore) -> None:
    """Each call into SQLite may cost a switch interval of 5 ms: so there must be few of them."""
    authors = [Author(f"run-{n}", seed=n) for n in range(100)]
    await store.commit([author.admit() for author in authors], epoch=1)
    for author in authors:
        author.done()
    batch = [author.begin("one") for author in authors]
    busy = True

    def work() -> None:
        while busy:
            pass

    thread = threading.Thread(target=work)
    thread.start()
    try:
        began = time.perf_counter()
        answers = await store.commit(batch, epoch=1)
        took = time.perf_counter() - began
    finally:
        busy = False
        thread.join()
    assert all(isinstance(answer, Committed) for answer in answers)
    assert took < 1.0  # 600 rows, one call each, would take 3 s


# Damage


async def test_pages_of_history_are_bounded_by_their_bytes(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threaded, "PAGE_BYTES", 1_000)
    author = Author("run-1")
    await put(store, author, author.admit(msgspec.json.encode("x" * 200_000)))
    await put(store, author, author.begin("n0", msgspec.json.encode("y" * 100_000)))
    for number in range(20):
        await put(store, author, author.step(f"n{number}", f"n{number + 1}"))
    whole = [event.sequence async for event in store.events("run-1")]
    assert whole == list(range(1, 64))
    assert len(await store._page("run-1", 0)) == 1


TAMPERED = {
    "payload": ("UPDATE tally_payload SET body = '1' WHERE sequence = 2", "events"),
    "salt": ("UPDATE tally_payload SET salt = x'00' WHERE sequence = 2", "payload"),
    "identity": ("UPDATE tally_attempt SET identity = x'" + "00" * 32 + "'", "attempts"),
    "instance": ("UPDATE tally_attempt SET instance = '1'", "attempts"),
}


@pytest.mark.parametrize(("sql", "verb"), TAMPERED.values(), ids=TAMPERED.keys())
@pytest.mark.invariant("I7", "I3")
async def test_rows_that_contradict_each_other_are_damage(
    store: SqliteStore, sql: str, verb: str
) -> None:
    await started(store)
    db = apsw.Connection(store.path)
    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        db.execute(f"DROP TRIGGER {name}")
    db.execute(sql)
    db.close()
    read = {
        "events": lambda: anext(store.events("run-1", after=1)),
        "payload": lambda: store.payload("run-1", 2),
        "attempts": lambda: store.attempts("run-1"),
    }[verb]
    with pytest.raises(MaintenanceRequired) as damaged:
        await read()
    assert damaged.value.facts["run"] == "run-1"


def _overwrite(path: Path, page: int) -> None:
    content = bytearray(path.read_bytes())
    content[4096 * page :] = b"\xff" * len(content[4096 * page :])
    path.write_bytes(content)


@pytest.mark.parametrize("page", [1, 6])
async def test_a_damaged_file_is_damage(tmp_path: Path, page: int) -> None:
    path = tmp_path / "tally.db"
    store = await opened_at(path)
    await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
    await started(store)
    await store.close()
    _overwrite(path, page)

    async def look() -> None:
        store = await opened_at(path)
        try:
            await store.attempts("run-1")
        finally:
            await store.close()

    with pytest.raises(MaintenanceRequired):
        await look()


async def test_a_store_of_users_tables_is_found_again(tmp_path: Path) -> None:
    store, _ = await user_store(tmp_path / "tally.db")
    await store.close()
    store = await opened_at(tmp_path / "tally.db")
    assert await store.query("SELECT id FROM orders") == [(1,), (2,)]
    await store.close()
