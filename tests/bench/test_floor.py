"""The floor of the bench does the work that it is compared for."""

import sqlite3
from contextlib import closing

import pytest

from bench import floor
from tests.checker import chain
from tests.checker.rows import read

STEPS, RUNS = 5, 6


@pytest.fixture
def measured(tmp_path):
    found = floor.throughput(tmp_path / "floor.db", RUNS, STEPS, 3)
    assert found["steps"] == RUNS * STEPS
    return tmp_path / "floor.db"


def test_the_floor_leaves_the_rows_of_every_step(measured):
    with closing(sqlite3.connect(measured)) as db:
        rows = {
            table: db.execute(f"SELECT count(*) FROM tally_{table}").fetchone()[0]
            for table in ("run", "attempt", "activation", "event", "payload")
        }
        ended = db.execute("SELECT count(*) FROM tally_run WHERE status = 'succeeded'").fetchone()
    admitted, finished = 2, 1  # events beyond three for each step, payloads one less
    assert rows == {
        "run": RUNS,
        "attempt": RUNS * STEPS,
        "activation": RUNS * STEPS,
        "event": RUNS * (3 * STEPS + admitted + finished),
        "payload": RUNS * (2 * STEPS + 2),
    }
    assert ended == (RUNS,)


def test_the_floor_seals_a_true_history(measured):
    """It pays for the hashes that the engine pays for."""
    ledger = read(measured)
    for run in ledger.runs:
        events = []
        rows = ledger.events[run["run_no"]]
        assert not list(chain.chain(run, rows))
        assert not list(chain.envelopes(run, rows, events))
        assert not list(chain.payloads(ledger, run, events))
    assert not list(chain.positions(ledger))
    assert not list(chain.transitions(ledger))


def test_the_floor_commits_as_durably_as_the_engine(tmp_path):
    db = floor.Floor(tmp_path / "floor.db").db
    assert db.execute("PRAGMA synchronous").get == 2
    assert db.execute("PRAGMA journal_mode").get == "wal"
    assert [len(text) for text in (floor.INPUT, floor.OUTPUT)] == [8, 16]
