"""The guards of the schema against SQL typed by hand, kind by kind.

A store with a life in it is opened by a bare connection, with foreign keys off and no manners. Each
attempt must fail, and nothing may have changed afterwards.
"""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from tallystick.core.identity import Authority
from tallystick.errors import MaintenanceRequired
from tallystick.store.protocol import Committed, EngineRow
from tallystick.store.sqlite import open_sqlite
from tallystick.store.statements import load
from tests.store.conftest import Ids
from tests.store.contract import ENGINE
from tests.store.flows import DEFINITION, DEFINITION_BODY, Author, token

A = "x'" + "aa" * 32 + "'"
TABLES = (
    "tally_store",
    "tally_engine",
    "tally_definition",
    "tally_bindings",
    "tally_terms",
    "tally_run",
    "tally_activation",
    "tally_attempt",
    "tally_event",
    "tally_payload",
)


async def _life(path: Path) -> None:
    """A store with one run that works, one in doubt, and one that ended."""
    store = await open_sqlite(path, now=lambda: 1, new_id=Ids())
    await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
    await store.put_engine(ENGINE)
    ended: EngineRow = EngineRow("engine-0", *_rest(ENGINE), "drained", 9)
    await store.put_engine(EngineRow("engine-0", *_rest(ENGINE)))
    await store.put_engine(ended)
    for run, verbs in {
        "live": ["begin"],
        "doubt": ["begin", "doubt"],
        "done": ["begin", "settle", "end"],
        "between": ["begin", "ended"],
        "abandoned": ["begin", "abandon"],
    }.items():
        author = Author(run, key=f"key-{run}")
        await _commit(store, author, author.admit())
        for verb in verbs:
            make = getattr(author, verb)
            await _commit(store, author, make() if verb == "end" else make("one"))
    await store.close()


def _rest(row: EngineRow) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in row.__struct_fields__[1:-2])


async def _commit(store, author, transition) -> None:
    (answer,) = await store.commit([transition], epoch=1)
    assert isinstance(answer, Committed), answer
    author.done()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import asyncio

    path = tmp_path_factory.mktemp("guards") / "tally.db"
    asyncio.run(_life(path))
    return path


@pytest.fixture
def db(template: Path, tmp_path: Path) -> apsw.Connection:
    """A bare connection to a copy."""
    copy = tmp_path / "tally.db"
    copy.write_bytes(template.read_bytes())
    connection = apsw.Connection(str(copy))
    yield connection
    connection.close()


def dump(db: apsw.Connection) -> list[object]:
    return [(t, r) for t in TABLES for r in db.execute(f"SELECT * FROM {t} ORDER BY 1, 2")]


RUN = "(SELECT run_no FROM tally_run WHERE run_id = '{}')"
REST = (
    "request, definition, workflow, semantics, bindings, limits, admitted_at, deadline, generation,"
    " token, engine, sequence, head, last_at, status, reason, due_at, consumed, active,"
    " open_attempts, ready, barrier, stopping, ended_at, damaged FROM tally_run LIMIT 1"
)
LIVE, DOUBT, DONE, BETWEEN, ABANDONED = (
    RUN.format(name) for name in ("live", "doubt", "done", "between", "abandoned")
)


def on(run: str, changes: str) -> str:
    return f"UPDATE tally_attempt SET {changes} WHERE run_no = {run}"


def run(changes: str, name: str = "live") -> str:
    return f"UPDATE tally_run SET {changes} WHERE run_id = '{name}'"


FORBIDDEN = {
    # the store
    "a second store": "INSERT INTO tally_store VALUES (2, 'x', 1, 1, 1)",
    "another store": "INSERT OR REPLACE INTO tally_store VALUES (1, 'x', 1, 1, 1)",
    "store id": "UPDATE tally_store SET store_id = 'x'",
    "store born again": "UPDATE tally_store SET created_at = 2",
    "epoch falls": "UPDATE tally_store SET epoch = 0",
    "schema falls": "UPDATE tally_store SET schema = 0",
    "store rowid": "UPDATE tally_store SET rowid = 7",
    "no store": "DELETE FROM tally_store",
    # engines
    "engine again": "INSERT INTO tally_engine SELECT * FROM tally_engine",
    "engine replaced": "INSERT OR REPLACE INTO tally_engine"
    " VALUES ('engine-1', 1, 'b', 'h', 'b', 1, 1, '/', 1, 1, NULL, NULL)",
    "engine pid": "UPDATE tally_engine SET pid = 1",
    "engine epoch": "UPDATE tally_engine SET epoch = 7",
    "engine name": "UPDATE OR REPLACE tally_engine SET instance = 'engine-1'",
    "engine lock": "UPDATE tally_engine SET lock_inode = 7",
    "engine ends again": "UPDATE tally_engine SET ended = '[]' WHERE instance = 'engine-0'",
    "engine ends later": "UPDATE tally_engine SET ended_at = 10 WHERE instance = 'engine-0'",
    "engine lives again": "UPDATE tally_engine SET ended = NULL, ended_at = NULL",
    "end without time": "UPDATE tally_engine SET ended = 'x' WHERE instance = 'engine-1'",
    "no engine": "DELETE FROM tally_engine",
    # content
    "definition body": "UPDATE tally_definition SET body = '{}'",
    "definition title": "UPDATE tally_definition SET description = 'x'",
    "definition digest": f"UPDATE OR REPLACE tally_definition SET digest = {A}",
    "definition replaced": "INSERT OR REPLACE INTO tally_definition"
    " SELECT digest, '{}', '{}' FROM tally_definition",
    "no definition": "DELETE FROM tally_definition",
    "short digest": "INSERT INTO tally_definition VALUES (x'00', '{}', '{}')",
    "bindings body": "UPDATE tally_bindings SET body = '{}'",
    "bindings replaced": "INSERT OR REPLACE INTO tally_bindings"
    " SELECT digest, 'x' FROM tally_bindings",
    "no bindings": "DELETE FROM tally_bindings",
    "terms body": "UPDATE tally_terms SET body = '{}'",
    "terms replaced": "INSERT OR REPLACE INTO tally_terms SELECT digest, 'x' FROM tally_terms",
    "no terms": "DELETE FROM tally_terms",
    # runs: pinned
    **{
        f"run {column}": run(f"{column} = {value}")
        for column, value in {
            "run_no": "99",
            "rowid": "99",
            "_rowid_": "99",
            "oid": "99",
            "run_id": "'x'",
            "key": "'x'",
            "request": A,
            "definition": A,
            "workflow": "'x'",
            "semantics": "2",
            "bindings": A,
            "limits": "'[]'",
            "admitted_at": "2",
            "deadline": "2",
        }.items()
    },
    "run takes a key": "UPDATE OR REPLACE tally_run SET key = 'key-done' WHERE run_id = 'live'",
    "run takes a number": f"UPDATE OR REPLACE tally_run SET run_no = {DONE} WHERE run_id = 'live'",
    "no run": "DELETE FROM tally_run",
    "run again": "INSERT INTO tally_run SELECT * FROM tally_run",
    "run replaced": "INSERT OR REPLACE INTO tally_run SELECT * FROM tally_run",
    "run replaced by id": f"INSERT OR REPLACE INTO tally_run SELECT NULL, 'live', NULL, {REST}",
    "run replaced by key": "INSERT OR REPLACE INTO tally_run"
    f" SELECT NULL, 'new', 'key-done', {REST}",
    "run upserted": "INSERT INTO tally_run SELECT * FROM tally_run WHERE true"
    " ON CONFLICT (run_no) DO UPDATE SET workflow = 'x'",
    # runs: authority
    "generation falls": run("generation = 0, token = NULL, engine = NULL"),
    "generation rises alone": run("generation = 2"),
    "generation jumps": run("generation = 3, token = x'07', engine = 'e'"),
    "generation rises unowned": run("generation = 2, token = NULL, engine = NULL"),
    "token alone": run("token = x'07'"),
    "engine alone": run("engine = 'other'"),
    "owner without token": run("token = NULL"),
    "token without owner": run("engine = NULL"),
    "token of nothing": run("generation = 2, token = x'', engine = 'e'"),
    # runs: progress
    "sequence falls": run("sequence = 1"),
    "time falls": run("last_at = 1"),
    "count falls": run("consumed = 0, active = 0, open_attempts = 0"),
    "head alone": run(f"head = {A}"),
    "short head": run("sequence = 99, head = x'00'"),
    "active below zero": run("active = -1"),
    "more active than open": run("active = 5"),
    "more open than ever": run("open_attempts = 5"),
    "ready below zero": run("ready = -1"),
    "barrier of two": run("barrier = 2"),
    "end with open work": run("status = 'failed', ended_at = 5"),
    "end without status": run("ended_at = 5, open_attempts = 0, active = 0"),
    "status without end": run("status = 'succeeded'"),
    "a second end": run("ended_at = 5", "done"),
    "another end": run("status = 'failed'", "done"),
    "lives again": run("status = 'running', ended_at = NULL", "done"),
    # activations
    "activation again": "INSERT INTO tally_activation SELECT * FROM tally_activation",
    "activation replaced": "INSERT OR REPLACE INTO tally_activation"
    f" (run_no, node, instance) VALUES ({DONE}, 'one', '')",
    "activation moved": f"UPDATE OR REPLACE tally_activation SET run_no = {DONE}",
    "activation renamed": "UPDATE tally_activation SET node = 'x'",
    "activation instance": "UPDATE tally_activation SET instance = '1'",
    "activation input": "UPDATE tally_activation SET ready_sequence = 1",
    "activation ends again": f"UPDATE tally_activation SET status = 'failed' WHERE run_no = {DONE}",
    "activation output": f"UPDATE tally_activation SET end_sequence = 1 WHERE run_no = {DONE}",
    "activation lives again": "UPDATE tally_activation SET status = NULL, end_sequence = NULL"
    f" WHERE run_no = {DONE}",
    "activation counts on": f"UPDATE tally_activation SET failures = 1 WHERE run_no = {DONE}",
    "end without output": "UPDATE tally_activation SET status = 'failed'",
    "failures below zero": "UPDATE tally_activation SET failures = -1",
    "no activation": "DELETE FROM tally_activation",
    # attempts: the intent
    **{
        f"attempt {column}": on(LIVE, f"{column} = {value}")
        for column, value in {
            "run_no": "99",
            "node": "'x'",
            "instance": "'1'",
            "attempt": "2",
            "identity": A,
            "terms": A,
            "input": A,
            "prepared_at": "1",
            "first_place": "'x'",
            "place": "'x'",
        }.items()
    },
    "place of an old intent": on(BETWEEN, "dispatch = 2, place = 'x', \"end\" = NULL"),
    "attempt taken over": f"UPDATE OR REPLACE tally_attempt SET run_no = {DONE}",
    "attempt again": "INSERT INTO tally_attempt SELECT * FROM tally_attempt",
    "attempt replaced": "INSERT OR REPLACE INTO tally_attempt SELECT * FROM tally_attempt",
    "attempt upserted": "INSERT INTO tally_attempt SELECT * FROM tally_attempt WHERE true"
    " ON CONFLICT DO UPDATE SET input = excluded.identity",
    "attempt born settled": "INSERT INTO tally_attempt (run_no, node, instance, attempt, identity,"
    " terms, input, prepared_at, place, receipt, outcome, outcome_at, outcome_sequence)"
    f" SELECT {LIVE}, 'two', '', 1, identity, terms, input, 1, 'p', 'r', 'succeeded', 1, 1"
    " FROM tally_attempt LIMIT 1",
    "attempt born old": "INSERT INTO tally_attempt (run_no, node, instance, attempt, identity,"
    f" terms, input, prepared_at, place, dispatch) SELECT {LIVE}, 'two', '', 1, identity, terms,"
    " input, 1, 'p', 2 FROM tally_attempt LIMIT 1",
    "attempt zero": "INSERT INTO tally_attempt (run_no, node, instance, attempt, identity, terms,"
    f" input, prepared_at, place) SELECT {LIVE}, 'two', '', 0, identity, terms, input, 1, 'p'"
    " FROM tally_attempt LIMIT 1",
    "attempt after the end": "INSERT INTO tally_attempt (run_no, node, instance, attempt, identity,"
    f" terms, input, prepared_at, place) SELECT {DONE}, 'two', '', 1, identity, terms, input, 1,"
    " 'p' FROM tally_attempt LIMIT 1",
    "no attempt": "DELETE FROM tally_attempt",
    # attempts: the dispatch
    "receipt changed": on(LIVE, "receipt = 'other'"),
    "receipt emptied": on(LIVE, "receipt = NULL"),
    "dispatch not ended": on(LIVE, "dispatch = 2"),
    "dispatch falls": on(BETWEEN, "dispatch = 0"),
    "dispatch jumps": on(BETWEEN, "dispatch = 3"),
    "dispatch of a settled one": on(DONE, "dispatch = 2"),
    "dispatch of an abandoned one": on(ABANDONED, "dispatch = 2"),
    "end emptied": on(BETWEEN, '"end" = NULL'),
    "unknown forgotten": on(BETWEEN, "earlier_unknown = 0"),
    "failure forgotten": on(BETWEEN, "earlier_failed = 0"),
    "timeout changed": on(BETWEEN, "timeout_at = 9"),
    "timeout emptied": on(BETWEEN, "timeout_at = NULL"),
    # attempts: the end
    "outcome changed": on(DONE, "outcome = 'failed', effect = 'none'"),
    "outcome emptied": on(DONE, "outcome = NULL, outcome_at = NULL, outcome_sequence = NULL"),
    "outcome later": on(DONE, "outcome_at = 5"),
    "outcome elsewhere": on(DONE, "outcome_sequence = 1"),
    "outcome and abandoned": on(DONE, "abandoned_at = 5"),
    "abandoned and outcome": on(ABANDONED, "outcome = 'failed', effect = 'none',"
    " outcome_at = 1, outcome_sequence = 1"),
    "abandoned later": on(ABANDONED, "abandoned_at = 5"),
    "abandonment emptied": on(ABANDONED, "abandoned_at = NULL"),
    "doubt of a settled one": on(DONE, "doubt = 'why'"),
    "receipt of a settled one": on(DONE, "receipt = 'other'"),
    "outcome without time": on(LIVE, "outcome = 'succeeded', outcome_sequence = 1"),
    "time without outcome": on(LIVE, "outcome_at = 5"),
    "outcome without event": on(LIVE, "outcome = 'succeeded', outcome_at = 1"),
    "outcome of no kind": on(LIVE, "outcome = 'x', outcome_at = 1, outcome_sequence = 1"),
    "failure without effect": on(LIVE, "outcome = 'failed', outcome_at = 1, outcome_sequence = 1"),
    "success with effect": on(
        LIVE, "outcome = 'succeeded', effect = 'none', outcome_at = 1, outcome_sequence = 1"
    ),
    "outcome without receipt": on(
        ABANDONED, "receipt = NULL, outcome = 'succeeded', outcome_at = 1, outcome_sequence = 1"
    ),
    "outcome in doubt": on(DOUBT, "outcome = 'succeeded', outcome_at = 1, outcome_sequence = 1"),
    # events
    "envelope": "UPDATE tally_event SET envelope = '{}'",
    "hash": f"UPDATE tally_event SET hash = {A}",
    "event moved": "UPDATE OR REPLACE tally_event SET position = 1 WHERE position = 2",
    "event rowid": "UPDATE tally_event SET rowid = 99 WHERE position = 2",
    "event of another run": f"UPDATE tally_event SET run_no = {DONE}, sequence = 99",
    "no event": "DELETE FROM tally_event",
    "last event": "DELETE FROM tally_event"
    " WHERE position = (SELECT max(position) FROM tally_event)",
    "event again": "INSERT OR REPLACE INTO tally_event SELECT * FROM tally_event",
    "event beyond the run": "INSERT INTO tally_event SELECT (SELECT max(position) FROM tally_event)"
    f" + 1, {LIVE}, 4, 1, '{{}}', {A}",
    "event after a gap": "INSERT INTO tally_event SELECT (SELECT max(position) FROM tally_event)"
    f" + 1, {LIVE}, 5, 1, '{{}}', {A}",
    "event before": f"INSERT INTO tally_event VALUES (0, {LIVE}, 4, 1, '{{}}', {A})",
    "event anywhere": f"INSERT INTO tally_event VALUES (NULL, {LIVE}, 4, 1, '{{}}', {A})",
    "event of nobody": f"INSERT INTO tally_event SELECT max(position) + 1, 77, 1, 1, '{{}}', {A}"
    " FROM tally_event",
    # payloads
    "payload body": "UPDATE tally_payload SET body = '1'",
    "payload salt": "UPDATE tally_payload SET salt = x'00'",
    "payload moved": "UPDATE OR REPLACE tally_payload SET sequence = 1",
    "payload replaced": "INSERT OR REPLACE INTO tally_payload"
    " SELECT run_no, sequence, salt, '1', NULL, NULL FROM tally_payload",
    "payload of a live run": f"DELETE FROM tally_payload WHERE run_no = {LIVE}",
    "payload twice": f"INSERT INTO tally_payload VALUES ({LIVE}, 3, x'00', '1', 'name', 1)",
    "payload of nothing": f"INSERT INTO tally_payload VALUES ({LIVE}, 3, x'00', NULL, NULL, NULL)",
    # types
    "text for a number": run("consumed = 'many'"),
    "blob for a text": "INSERT INTO tally_definition"
    " VALUES (x'" + "ab" * 32 + "', x'00', '{}')",
}  # fmt: skip


@pytest.mark.parametrize("sql", FORBIDDEN.values(), ids=FORBIDDEN.keys())
@pytest.mark.invariant("I5", "I6", "I8", "A2", "G12", "H2", "M3", "S5")
def test_no_sql_changes_what_never_changes(db: apsw.Connection, sql: str) -> None:
    before = dump(db)
    with pytest.raises(apsw.ConstraintError):
        db.execute(sql)
    assert dump(db) == before


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE tally_store SET epoch = 2",
        run("generation = 2, token = x'07', engine = 'e'"),
        run("token = NULL, engine = NULL"),
        run("sequence = 99, head = " + A),
        on(LIVE, "outcome = 'succeeded', outcome_at = 1, outcome_sequence = 1"),
        on(LIVE, "\"end\" = 'unknown', earlier_unknown = 1"),
        on(BETWEEN, 'dispatch = 2, receipt = NULL, timeout_at = NULL, "end" = NULL'),
        on(DOUBT, "doubt = NULL, outcome = 'succeeded', outcome_at = 1, outcome_sequence = 1"),
        on(DONE, "resolution = '{}'"),
        f"DELETE FROM tally_payload WHERE run_no = {DONE}",
        "INSERT INTO tally_terms SELECT * FROM tally_terms WHERE true ON CONFLICT DO NOTHING",
        "UPDATE tally_engine SET ended = '[]', ended_at = 1 WHERE instance = 'engine-1'",
    ],
)
def test_the_guards_let_through_what_the_store_does(db: apsw.Connection, sql: str) -> None:
    db.execute(sql)
    assert db.changes() >= 1 or "NOTHING" in sql


@pytest.mark.parametrize("state", ["barrier = 1", "stopping = 'cancel'"])
def test_nothing_new_starts_past_the_api(db: apsw.Connection, state: str) -> None:
    db.execute("UPDATE tally_run SET " + state + " WHERE run_id IN ('live', 'between')")
    insert = (
        "INSERT INTO tally_attempt (run_no, node, instance, attempt, identity, terms, input,"
        f" prepared_at, place) SELECT {LIVE}, 'two', '', 1, identity, terms, input, 1, 'p'"
        " FROM tally_attempt LIMIT 1"
    )
    for sql in (insert, on(BETWEEN, 'dispatch = 2, "end" = NULL')):
        with pytest.raises(apsw.ConstraintError):
            db.execute(sql)


TRIGGERS = [line.split()[2] for line in load("guards.sql").splitlines() if "CREATE TRIGGER" in line]


def test_every_table_has_guards_against_every_verb() -> None:
    """`no SQL changes…` shows that they work; this shows that no table was forgotten."""
    guards = load("guards.sql")
    for table in TABLES:
        for verb in ("INSERT", "UPDATE", "DELETE"):
            found = [
                block
                for block in guards.split("CREATE TRIGGER")[1:]
                if f"BEFORE {verb}" in block and f"ON {table}\n" in block
            ]
            assert found, f"{table} has no guard against {verb}"


@pytest.mark.parametrize("trigger", TRIGGERS)
@pytest.mark.invariant("I5")
async def test_a_store_without_one_of_its_guards_is_not_opened(
    db: apsw.Connection, trigger: str
) -> None:
    db.execute(f"DROP TRIGGER {trigger}")
    with pytest.raises(MaintenanceRequired) as refused:
        await open_sqlite(db.filename, now=lambda: 1, new_id=Ids())
    assert refused.value.facts["missing"] == [trigger]


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_each_guard_stops_something_that_nothing_else_stops(
    db: apsw.Connection, trigger: str
) -> None:
    """Else it guards nothing, or the table above does not show that it does."""
    db.execute(f"DROP TRIGGER {trigger}")
    before = dump(db)
    passed = []
    for name, sql in FORBIDDEN.items():
        db.execute("SAVEPOINT attempt")
        try:
            db.execute(sql)
            if dump(db) != before:
                passed.append(name)
        except apsw.ConstraintError:
            pass
        db.execute("ROLLBACK TO attempt; RELEASE attempt")
    assert passed


ALTERATIONS = {
    "weaker": (
        "DROP TRIGGER tally_run_delete;"
        " CREATE TRIGGER tally_run_delete BEFORE DELETE ON tally_run WHEN OLD.run_no < 0"
        " BEGIN SELECT RAISE(ABORT, 'a run stays'); END",
        "altered",
    ),
    "stranger": (
        "CREATE TRIGGER my_own AFTER INSERT ON tally_event BEGIN SELECT 1; END",
        "added",
    ),
    "column": ("ALTER TABLE tally_run ADD COLUMN note TEXT", "altered"),
    "index": ("CREATE INDEX mine ON tally_run (workflow)", "added"),
    "no index": ("DROP INDEX tally_run_unfinished", "missing"),
    "view": ("DROP VIEW tally_run_row; CREATE VIEW tally_run_row AS SELECT 1", "altered"),
    "table": ("DROP TABLE tally_payload", "missing"),
}


@pytest.mark.parametrize(("sql", "how"), ALTERATIONS.values(), ids=ALTERATIONS.keys())
@pytest.mark.invariant("I5")
async def test_a_store_whose_schema_was_altered_is_not_opened(
    db: apsw.Connection, sql: str, how: str
) -> None:
    db.execute(sql)
    with pytest.raises(MaintenanceRequired) as refused:
        await open_sqlite(db.filename, now=lambda: 1, new_id=Ids())
    assert refused.value.facts[how]
    assert refused.value.code == "guards-altered"


async def test_tables_of_users_do_not_matter(db: apsw.Connection) -> None:
    db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY); CREATE INDEX o ON orders (id)")
    store = await open_sqlite(db.filename, now=lambda: 1, new_id=Ids())
    assert (await store.run("live")).token == token(1)
    await store.close()


def test_authority_is_a_value() -> None:
    """The token of these tests is the one that authors use."""
    assert Author("x").authority == Authority(1, token(1), "engine-1")
