"""What lies in the file: every row of every table of ours, read once, interpreted by nobody.

The file is opened read-only and in one read transaction. Text and raw bytes are handed on as the
database gives them: a column that holds the wrong one of the two is no crash here.
"""

import json
import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class DuplicateKey(ValueError):
    """A JSON object names one key twice."""


@dataclass(slots=True)
class Ledger:
    """A whole store in memory. Rows of a run are grouped by `run_no`, in the order of their key.

    complaints  what SQLite itself says about the file: integrity and foreign keys
    intents     what the store's own view makes of the columns of each attempt
    applied     identity (hex) of every row of the tables that transactional work writes
    """

    path: Path
    store: list[Row] = field(default_factory=list)
    engines: list[Row] = field(default_factory=list)
    definitions: dict[bytes, Row] = field(default_factory=dict)
    bindings: dict[bytes, Row] = field(default_factory=dict)
    terms: dict[bytes, Row] = field(default_factory=dict)
    runs: list[Row] = field(default_factory=list)
    activations: dict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    attempts: dict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    intents: dict[tuple[int, str, str, int], str] = field(default_factory=dict)
    events: dict[int, list[Row]] = field(default_factory=lambda: defaultdict(list))
    payloads: dict[int, dict[int, Row]] = field(default_factory=lambda: defaultdict(dict))
    applied: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def read(path: str | Path, *, applied: tuple[str, ...] = ()) -> Ledger:
    """Read the store at `path`, and the `identity` column of the user tables named in `applied`.

    A user table that is not there yet is empty.

    Raises `sqlite3.Error` if the file is no database, or is malformed beyond reading.
    """
    ledger = Ledger(Path(path))
    with closing(connect(path)) as db:
        db.execute("BEGIN")
        ledger.complaints = list(_complaints(db))
        ledger.store = _all(db, "tally_store", "one")
        ledger.engines = _all(db, "tally_engine", "started_at")
        ledger.definitions = {bytes_of(row["digest"]): row for row in _all(db, "tally_definition")}
        ledger.bindings = {bytes_of(row["digest"]): row for row in _all(db, "tally_bindings")}
        ledger.terms = {bytes_of(row["digest"]): row for row in _all(db, "tally_terms")}
        ledger.runs = _all(db, "tally_run", "run_no")
        _group(ledger.activations, _all(db, "tally_activation", "run_no, node, instance"))
        _group(ledger.attempts, _all(db, "tally_attempt", "run_no, node, instance, attempt"))
        ledger.intents = {
            (row["run_no"], row["node"], row["instance"], row["attempt"]): row["intent"]
            for row in _all(db, "tally_attempt_row")
        }
        _group(ledger.events, _all(db, "tally_event", "run_no, sequence"))
        for row in _all(db, "tally_payload"):
            ledger.payloads[row["run_no"]][row["sequence"]] = row
        for table in set(applied) & _tables(db):
            ledger.applied += [hex_of(row["identity"]) for row in _all(db, table, "rowid")]
    return ledger


def connect(path: str | Path) -> sqlite3.Connection:
    """Open the file read-only. What a killed writer left in the log beside it is seen, too."""
    uri = Path(path).resolve().as_uri() + "?mode=ro"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10)
    db.row_factory = sqlite3.Row
    db.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    return db


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master")}


def _all(db: sqlite3.Connection, table: str, order: str = "1") -> list[Row]:
    return [dict(row) for row in db.execute(f'SELECT * FROM "{table}" ORDER BY {order}')]


def _group(into: dict[int, list[Row]], rows: list[Row]) -> None:
    for row in rows:
        into[row["run_no"]].append(row)


def _complaints(db: sqlite3.Connection):
    for (said,) in db.execute("PRAGMA integrity_check(20)"):
        if said != "ok":
            yield f"integrity: {said}"
    for table, rowid, parent, _ in db.execute("PRAGMA foreign_key_check"):
        yield f"foreign key: {table} row {rowid} names no row of {parent}"


def bytes_of(value: str | bytes | None) -> bytes:
    """The bytes of a column that holds text or raw bytes; b"" for null."""
    if value is None:
        return b""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)


def hex_of(value: str | bytes | None) -> str:
    """A digest or identity as hex digits, however it is stored."""
    return value if isinstance(value, str) else bytes_of(value).hex()


def spell(value: Any) -> str:
    """Canonical JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def parse(value: str | bytes | None) -> Any:
    """Read stored JSON. Raises ValueError for what is not JSON or names a key twice."""
    return json.loads(bytes_of(value), object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DuplicateKey("a key stands twice")
    return found
