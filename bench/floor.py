"""The floor: the rows of a step, written by a bare loop that obeys no rules.

One thread, one connection, the store's own tables without its guards, the same pragmas, the same
number of rows, hashes and bytes that a step of the engine leaves behind. There is no graph, no
check, no event loop and no operation: what the engine takes beyond this has to be worth it.

A step is one transition: the outcome of the one before, and the intent of the next.

    update run (guarded by authority and sequence), attempt, activation
    insert activation, attempt, 3 events with their chain, 2 payloads with their digests
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw

SCHEMA = Path(__file__).parents[1] / "src" / "tallystick" / "store" / "sql" / "schema.sql"
INPUT, OUTPUT = '{"n":10}', '{"k":1,"out":10}'  # 8 and 16 bytes
TOKEN, TERMS = b"t" * 16, sha256(b"terms").digest()
BINDINGS, DEFINITION = sha256(b"bindings").digest(), sha256(b"definition").digest()
NODES = tuple(f"s{number}" for number in range(10_001))

RUN = (
    "INSERT INTO tally_run (run_no, run_id, request, definition, workflow, semantics, bindings,"
    " limits, admitted_at, generation, token, engine, sequence, head, last_at, status, consumed,"
    " active, open_attempts, ready, barrier) VALUES (?1, ?2, ?3, ?4, 'floor', 1, ?5, '{}', ?6, 1,"
    " ?7, 'engine', ?8, ?9, ?6, 'running', 1, 1, 1, 0, 0)"
)
ADVANCE = (
    "UPDATE tally_run SET sequence = ?2, head = ?3, last_at = ?4, status = 'running',"
    " reason = NULL, due_at = NULL, consumed = ?5, active = 1, open_attempts = 1, ready = 0,"
    " barrier = 0, stopping = NULL"
    " WHERE run_no = ?1 AND generation = 1 AND token IS ?6 AND sequence = ?7"
)
FINISH = (
    "UPDATE tally_run SET sequence = ?2, head = ?3, last_at = ?4, status = 'succeeded', active = 0,"
    " open_attempts = 0, ended_at = ?4"
    " WHERE run_no = ?1 AND generation = 1 AND token IS ?5 AND sequence = ?6"
)
OUTCOME = (
    "UPDATE tally_attempt SET outcome = 'succeeded', outcome_at = ?3, outcome_sequence = ?4"
    " WHERE run_no = ?1 AND node = ?2 AND instance = '' AND attempt = 1"
)
END = (
    "UPDATE tally_activation SET status = 'succeeded', end_sequence = ?3"
    " WHERE run_no = ?1 AND node = ?2 AND instance = ''"
)
ACTIVATION = (
    "INSERT INTO tally_activation (run_no, node, instance, ready_sequence) VALUES (?, ?, '', ?)"
)
ATTEMPT = (
    "INSERT INTO tally_attempt (run_no, node, instance, attempt, identity, terms, input,"
    " prepared_at, place, receipt)"
    " VALUES (?, ?, '', 1, ?, ?, ?, ?, 'engine', '{\"kind\":\"engine\"}')"
)
EVENT = (
    "INSERT INTO tally_event (position, run_no, sequence, transition_id, envelope, hash)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
PAYLOAD = "INSERT INTO tally_payload (run_no, sequence, salt, body) VALUES (?, ?, ?, ?)"
ORDER = (RUN, ADVANCE, FINISH, OUTCOME, END, ACTIVATION, ATTEMPT, EVENT, PAYLOAD)


class Floor:
    """An open file and the few numbers that the loop carries along."""

    def __init__(self, path: Path) -> None:
        self.db = apsw.Connection(str(path))
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute("PRAGMA foreign_keys = ON")
        self.db.execute(SCHEMA.read_text("utf-8"))
        for (name,) in self.db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            self.db.execute(f'DROP TRIGGER "{name}"')
        self.db.execute("INSERT INTO tally_bindings VALUES (?, '{}')", (BINDINGS,))
        self.db.execute("INSERT INTO tally_terms VALUES (?, '{}')", (TERMS,))
        self.db.execute("INSERT INTO tally_definition VALUES (?, '{}', '{}')", (DEFINITION,))
        self.position = self.transition = self.runs = 0
        self.rows: dict[str, list[tuple[Any, ...]]] = {sql: [] for sql in ORDER}

    def commit(self) -> None:
        """One database transaction with everything that was said since the last."""
        execute = self.db.executemany
        self.db.execute("BEGIN IMMEDIATE")
        for sql in ORDER:
            if rows := self.rows[sql]:
                execute(sql, rows)
                rows.clear()
        self.db.execute("COMMIT")

    def one_row(self) -> None:
        """The least that can be committed at all."""
        self.db.execute("INSERT INTO one_row VALUES (NULL, 1)")


class Run:
    """A run of the floor: its number, where its history stands, and which step is under way."""

    __slots__ = ("at", "floor", "head", "name", "number", "sequence", "step")

    def __init__(self, floor: Floor) -> None:
        floor.runs += 1
        self.floor, self.number, self.step, self.sequence = floor, floor.runs, 0, 0
        self.name, self.at = f"{floor.runs:032x}", 1_800_000_000_000
        self.head = sha256(b"tcj1:history\n" + self.name.encode()).digest()

    def admit(self) -> None:
        """The first transition: the run, its owner, and the intent of its first step."""
        self.floor.transition += 1
        self.say(
            f'{{"at":{self.at},"bindings":"{{}}","definition":"{DEFINITION.hex()}",'
            f'"kind":"RunAdmitted","limits":"{{}}","payload":"%s","semantics":1}}',
            INPUT,
        )
        self.say(f'{{"at":{self.at},"engine":"engine","generation":1,"kind":"RunClaimed"}}')
        self.prepare()
        fixed = (self.number, self.name, DEFINITION, DEFINITION, BINDINGS, self.at, TOKEN)
        self.floor.rows[RUN].append((*fixed, self.sequence, self.head))

    def advance(self) -> None:
        """The outcome of this step and the intent of the next."""
        before = self.settle()
        self.step += 1
        self.prepare()
        self.floor.rows[ADVANCE].append(
            (self.number, self.sequence, self.head, self.at, self.step + 1, TOKEN, before)
        )

    def finish(self) -> None:
        """The outcome of the last step, and the end of the run."""
        before = self.settle()
        ended = f'{{"at":{self.at},"kind":"RunEnded","payload":"%s","status":"succeeded"}}'
        self.say(ended, OUTPUT)
        self.floor.rows[FINISH].append(
            (self.number, self.sequence, self.head, self.at, TOKEN, before)
        )

    def settle(self) -> int:
        """Returns the number of the last event before."""
        self.floor.transition += 1
        self.at += 1
        before, node = self.sequence, NODES[self.step]
        self.say(
            f'{{"at":{self.at},"attempt":1,"dispatch":1,"kind":"AttemptSettled","node":"{node}",'
            '"payload":"%s","status":"succeeded"}',
            OUTPUT,
        )
        rows = self.floor.rows
        rows[OUTCOME].append((self.number, node, self.at, self.sequence))
        rows[END].append((self.number, node, self.sequence))
        return before

    def prepare(self) -> None:
        node, rows, ready = NODES[self.step], self.floor.rows, self.sequence + 1
        cited = self.say(
            f'{{"at":{self.at},"kind":"ActivationReady","node":"{node}","payload":"%s"}}', INPUT
        )
        intent = (
            f'{{"attempt":1,"input":"{cited}","node":"{node}","place":"engine",'
            f'"prepared_at":{self.at},"run":"{self.name}","terms":"{TERMS.hex()}"}}'
        )
        digest = sha256(intent.encode()).hexdigest()
        self.say(
            f'{{"accepted":true,"at":{self.at},"attempt":1,"intent":"{digest}",'
            f'"kind":"AttemptPrepared","node":"{node}"}}'
        )
        identity = sha256(f"tcj1:dispatch\n{self.name}{node}1".encode()).digest()
        rows[ACTIVATION].append((self.number, node, ready))
        parts = (TERMS, bytes.fromhex(cited), self.at)
        rows[ATTEMPT].append((self.number, node, identity, *parts))

    def say(self, envelope: str, body: str | None = None) -> str:
        """Seal an event into the chain, with its payload where the envelope has a `%s` for it."""
        floor, cited = self.floor, ""
        self.sequence += 1
        floor.position += 1
        if body is not None:
            salt = floor.position.to_bytes(16, "big")
            cited = sha256(salt + body.encode()).hexdigest()
            envelope = envelope.replace("%s", cited)
            floor.rows[PAYLOAD].append((self.number, self.sequence, salt, body))
        numbers = self.sequence.to_bytes(8, "big") + floor.transition.to_bytes(8, "big")
        self.head = sha256(self.head + numbers + envelope.encode()).digest()
        floor.rows[EVENT].append(
            (floor.position, self.number, self.sequence, floor.transition, envelope, self.head)
        )
        return cited


def commit(path: Path, count: int) -> dict[str, float]:
    """Milliseconds of a bare commit of one row."""
    floor = Floor(path)
    floor.db.execute("CREATE TABLE one_row (number INTEGER PRIMARY KEY, x INTEGER)")
    return {"ms": 1e3 * sum(each(floor.one_row, count)) / count}


def sequential(path: Path, steps: int) -> dict[str, float]:
    """Steps of one run, one transaction each."""
    floor = Floor(path)
    run = Run(floor)
    run.admit()
    floor.commit()

    def step() -> None:
        run.advance()
        floor.commit()

    cpu = time.process_time()
    took = each(step, steps)
    cpu = time.process_time() - cpu
    return {"ms": 1e3 * sum(took) / steps, "cpu_us": 1e6 * cpu / steps, "steps": steps}


def throughput(path: Path, runs: int, steps: int, in_flight: int) -> dict[str, float]:
    """`runs` runs of `steps` steps each, `in_flight` of them at a time and in step with each other.

    Batches have that size. A finished group and the admission of the next share a transaction.
    """
    floor = Floor(path)
    wall, cpu = time.perf_counter(), time.process_time()
    finished: list[Run] = []
    for _ in range(runs // in_flight):
        group = [Run(floor) for _ in range(in_flight)]
        for run in group:
            run.admit()
        floor.commit()
        for _ in range(steps - 1):
            for run in group:
                run.advance()
            floor.commit()
        for run in group:
            run.finish()
        finished += group
    floor.commit()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    done = len(finished) * steps
    return {"steps_per_s": done / wall, "cpu_us": 1e6 * cpu / done, "steps": done}


def each(act: Callable[[], None], count: int) -> list[float]:
    """Seconds of each of `count` calls."""
    stamps = [time.perf_counter()]
    for _ in range(count):
        act()
        stamps.append(time.perf_counter())
    return [after - before for before, after in pairwise(stamps)]


def main() -> None:
    """Measure one thing and print it as JSON."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("what", choices=("commit", "sequential", "throughput"))
    parser.add_argument("path", type=Path)
    parser.add_argument("numbers", type=int, nargs="+")
    asked = parser.parse_args()
    print(json.dumps(globals()[asked.what](asked.path, *asked.numbers)))


if __name__ == "__main__":
    main()
