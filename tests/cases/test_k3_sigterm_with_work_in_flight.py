"""K3: SIGTERM at any instant: nothing new begins, nothing is lost, and the process goes in time."""

import json
import os
import random
import signal
import sqlite3
import time
from contextlib import closing

import pytest

from tests.cases.field import World, tally, tally_process, until
from tests.effects import log

INSTANTS = int(os.environ.get("TALLY_K3", "40"))
"""1,000 of them by `TALLY_K3=1000`."""
LEAVE_S = 1.0
"""How long after its grace a process may be there."""

LOAD = """
    tally: 1
    workflow: k3
    input: {type: integer}
    steps:
    """ + "".join(
    f"""
      - {{id: a{n}, needs: [], call: "TASKS:{first}", with: {{x: "${{{{ input }}}}"}}}}
      - {{id: b{n}, needs: [a{n}], call: "TASKS:{second}", with: {{x: "${{{{ input }}}}"}}}}
      - {{id: c{n}, needs: [b{n}], call: "TASKS:{first}", with: {{x: "${{{{ input }}}}"}}}}"""
    for n, (first, second) in enumerate([("note", "note_thread"), ("note_thread", "give")] * 2)
)

pytestmark = [pytest.mark.case("K3"), pytest.mark.slow]


@pytest.mark.timeout(60 + INSTANTS)
@pytest.mark.invariant("D1", "D7", "A10", "S12", "P14")
def test_at_any_instant_it_stops_in_order(tmp_path):
    """Life after life on one store: each inherits what the one before left, and is stopped too."""
    world, chance = World(tmp_path), random.Random(os.environ.get("TALLY_SEED", "1"))
    stopped = 0
    for series in range(INSTANTS):
        with world.life(LOAD, *range(3), series=series // 4, grace_ms=2_000) as life:
            life.until("armed")
            life.is_over(chance.uniform(0, 0.12))
            life.send(signal.SIGTERM)
            asked = time.monotonic()
            told = life.last_words(seconds=2 + LEAVE_S + 2)
            assert time.monotonic() - asked < 2 + LEAVE_S
            stopped += not told["runs"]
        assert not begun_after(world, told["closing_at"])
    assert stopped > INSTANTS / 4, "most of them were at work"
    world.run(LOAD, *range(3), series=(INSTANTS - 1) // 4)
    assert set(world.engines()) == {"drained"}, "every end is on record"
    assert not world.judged()
    with closing(sqlite3.connect(world.store)) as db:
        found = dict(db.execute("SELECT status, count(*) FROM tally_run_row GROUP BY status"))
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    started = len({line["run"] for line in log.read(world.acknowledged)})
    assert started <= found.pop("succeeded") + found.pop("running", 0) + found.pop("waiting", 0)
    assert not found, "what ended within its grace is in no doubt"


def begun_after(world: World, instant: int) -> list[str]:
    """Attempts whose intent is of later than this, and which were not given up uncalled."""
    with closing(sqlite3.connect(f"{world.store.as_uri()}?mode=ro", uri=True)) as db:
        rows = db.execute(NEWEST).fetchall()
    events = [(run, json.loads(envelope)) for run, envelope in rows]
    given_up = {
        (run, event["node"], event["attempt"])
        for run, event in events
        if event["kind"] == "AttemptAbandoned" and event["end"] == "given_up"
    }
    return [
        f"{event['node']} at {event['at']}, {event['at'] - instant} ms after the signal"
        for run, event in events
        if event["kind"] == "AttemptPrepared"
        and event["at"] > instant
        and (run, event["node"], event["attempt"]) not in given_up
    ]


NEWEST = "SELECT run_no, envelope FROM tally_event ORDER BY position DESC LIMIT 500"

STUCK = """
    tally: 1
    workflow: k3
    steps:
      - {id: stuck, call: "TASKS:STUCK", needs: []}
      - {id: beside, call: "TASKS:note", needs: []}
      - {id: after, call: "TASKS:note", needs: [stuck]}
    """


@pytest.fixture
def fifo(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    return {"CASE_FIFO": str(tmp_path / "fifo")}


@pytest.mark.invariant("A5", "C8", "R13")
@pytest.mark.parametrize(
    ("task", "drained", "status"),
    [
        ("hang", True, "running"),  # read-only, cancelled, and dispatched again
        ("hang_thread", False, "in_doubt"),
        ("ignore_cancel", False, "in_doubt"),
    ],
)
def test_what_does_not_end_does_not_hold_the_process(tmp_path, fifo, task, drained, status):
    world, flow = World(tmp_path), STUCK.replace("STUCK", task)
    with world.life(flow, 0, grace_ms=200, environment=fifo) as life:
        until("both effects", lambda: len(world.effects()) == 2)
        life.send(signal.SIGTERM)
        asked = time.monotonic()
        life.last_words(seconds=10)
        assert time.monotonic() - asked < 0.2 + LEAVE_S + 0.5  # the half: other tests' load
    (ended,) = world.engines()
    assert (ended == "drained") == drained, ended
    if not drained:
        (identity,) = {e["identity"] for e in world.effects() if e["step"] == "stuck"}
        assert json.loads(ended) == [identity], "the record names what may still run"
    assert not world.judged(complete=False, final=False)
    with world.life(flow, 0, environment=fifo) as life:
        if status == "in_doubt":
            (run,) = life.last_words()["runs"].values()
            assert [doubt["step"] for doubt in run["doubts"]] == ["stuck"]
        else:
            until("a second dispatch", lambda: len(world.effects()) == 3)
    steps = [line["step"] for line in world.effects()]
    assert steps.count("stuck") == (1 if status == "in_doubt" else 2)
    assert steps.count("beside") == 1
    assert not world.judged(complete=False, final=False)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(tmp_path, fifo, first, second):
    world, flow = World(tmp_path), STUCK.replace("STUCK", "hang_thread")
    with world.life(flow, 0, grace_ms=60_000, environment=fifo) as life:
        until("both effects", lambda: len(world.effects()) == 2)
        life.send(first)
        assert not life.is_over(0.05)
        life.send(second)
        life.last_words(status=-second, seconds=2)
    assert world.engines() == [None], "no clean end is on record"
    (run,) = world.run(flow, 0, environment=fifo)["runs"].values()
    assert run["status"] == "in_doubt"
    assert [line["step"] for line in world.effects()].count("stuck") == 1
    assert not world.judged(complete=False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_stops_in_order_and_the_next_goes_on(tmp_path, fifo, number):
    """`tally run` with a thread that does not end before the signal, and does in its grace."""
    world = World(tmp_path)
    world.store = tmp_path / ".tally" / "tally.db"
    (tmp_path / "k3.yaml").write_text(
        "tally: 1\nworkflow: k3\nsteps:\n"
        "  - {id: stuck, call: tests.cases.tasks:hang_thread}\n"
        "  - {id: after, call: tests.cases.tasks:note}\n"
    )
    words = ("run", "k3.yaml", "--key", "k")
    with tally_process(*words, folder=tmp_path, environment=fifo) as process:
        until("the effect", lambda: world.effects())
        process.send_signal(number)
        (tmp_path / "fifo").write_bytes(b"end")  # returns once the task reads
        said, _ = process.communicate(timeout=15)
        assert process.returncode == 128 + number, said
    assert world.engines() == ["drained"]
    assert [line["step"] for line in world.effects()] == ["stuck"], "no new dispatch"
    tally(*words, status=0, folder=tmp_path)
    assert [line["step"] for line in world.effects()] == ["stuck", "after"]
    assert not world.judged()
