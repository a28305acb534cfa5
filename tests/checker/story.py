"""A small true story, written into a database by hand, for the checker's own tests.

It has everything that the checker reads: a run with every effect class that ended after a takeover,
one with an operation in flight, one in doubt. The rows are written as the words of `messages` and
`schema.sql` have them, with plain `sqlite3`, by code that shares nothing with the checker's replay.
"""

import hashlib
import json
import sqlite3
from pathlib import Path

SCHEMA = Path(__file__).parents[2] / "src" / "tallystick" / "store" / "sql" / "schema.sql"
CLASSES = ("read_only", "idempotent", "transactional", "mutating")
OWNER = b"t" * 16


def empty(path: str | Path) -> sqlite3.Connection:
    """A new store without its guards, so that a lie can be written into it."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA synchronous = OFF")
    db.executescript(SCHEMA.read_text("utf-8"))
    for (trigger,) in db.execute(
        "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    ).fetchall():
        db.execute(f'DROP TRIGGER "{trigger}"')
    db.execute("PRAGMA ignore_check_constraints = ON")
    insert(db, "tally_store", one=1, store_id="store", schema=1, epoch=1, created_at=0)
    body = '{"root":{"nodes":[]},"workflow":"story"}'
    digest = content("definition", body)
    insert(db, "tally_definition", digest=digest, body=body, description="{}")
    insert(db, "tally_bindings", digest=content("bindings", "{}"), body="{}")
    for effect in CLASSES:
        body = terms(effect)
        insert(db, "tally_terms", digest=content("terms", body), body=body)
    db.execute("CREATE TABLE applied (identity TEXT NOT NULL)")
    return db


def insert(db: sqlite3.Connection, table: str, **columns: object) -> None:
    """Insert a row; what is not named and has no default is null."""
    names = ", ".join(f'"{name}"' for name in columns)
    marks = ", ".join("?" * len(columns))
    db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(columns.values()))


def content(kind: str, body: str) -> bytes:
    return hashlib.sha256(f"tcj1:{kind}\n{body}".encode()).digest()


def terms(effect: str) -> str:
    said = {"definition": "d", "effect": effect, "executor": "function", "kind": "call"}
    return spell(said | {"max_attempts": 2, "interruptions_max": 5})


def spell(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def identity(run: str, node: str, instance: str, attempt: int) -> bytes:
    digest = hashlib.sha256(b"tcj1:dispatch\n")
    for text in (run, node, instance, str(attempt)):
        digest.update(len(text.encode()).to_bytes(4, "big") + text.encode())
    return digest.digest()


def reseal(db: sqlite3.Connection, run: str) -> None:
    """Seal the run's history anew: what a liar would do who knows how the chain is made."""
    ((number,),) = db.execute("SELECT run_no FROM tally_run WHERE run_id = ?", (run,))
    head = hashlib.sha256(b"tcj1:history\n" + run.encode()).digest()
    rows = db.execute(
        "SELECT position, sequence, transition_id, envelope FROM tally_event"
        " WHERE run_no = ? ORDER BY sequence",
        (number,),
    ).fetchall()
    for position, sequence, transition, envelope in rows:
        link = sequence.to_bytes(8, "big") + transition.to_bytes(8, "big") + envelope.encode()
        head = hashlib.sha256(head + link).digest()
        db.execute("UPDATE tally_event SET hash = ? WHERE position = ?", (head, position))
    db.execute(
        "UPDATE tally_run SET head = ?, sequence = ? WHERE run_no = ?", (head, len(rows), number)
    )


class Run:
    """A run as it is told; each verb says its event and writes the rows that go with it."""

    def __init__(self, db: sqlite3.Connection, name: str, effects: list[dict]) -> None:
        self.db, self.name, self.effects = db, name, effects
        self.sequence = self.transition = 0
        self.at = 1_000
        ((taken,),) = db.execute("SELECT count(*) FROM tally_run")
        self.number = taken + 1
        (definition,) = db.execute("SELECT digest FROM tally_definition").fetchone()
        columns = {"run_no": self.number, "run_id": name, "request": b"r", "workflow": "story"}
        bindings = content("bindings", "{}")
        fixed = {"definition": definition, "semantics": 1, "bindings": bindings, "limits": "{}"}
        moving = {"generation": 1, "token": OWNER, "engine": "e1", "sequence": 0, "head": b""}
        counts = dict.fromkeys(("consumed", "active", "open_attempts", "ready", "barrier"), 0)
        self.at += 1
        times = {"admitted_at": self.at, "last_at": self.at, "status": "running"}
        insert(db, "tally_run", **columns, **fixed, **moving, **counts, **times)
        self.at -= 1
        said = {"definition": definition.hex(), "bindings": bindings.hex(), "limits": "{}"}
        self.say("RunAdmitted", body="{}", **said, semantics=1)
        self.say("RunClaimed", generation=1, engine="e1", step=False)

    def say(self, kind: str, *, body: str | None = None, step: bool = True, **fields) -> int:
        """Record an event. step False: it belongs to the transition of the event before."""
        self.sequence += 1
        if step:
            self.transition, self.at = 1_000 * self.number + self.sequence, self.at + 1
        if body is not None:
            salt = hashlib.md5(f"{self.name} {self.sequence}".encode()).digest()
            fields["payload"] = hashlib.sha256(salt + body.encode()).hexdigest()
            where = {"run_no": self.number, "sequence": self.sequence}
            insert(self.db, "tally_payload", **where, salt=salt, body=body)
        ((before,),) = self.db.execute("SELECT coalesce(max(position), 0) FROM tally_event")
        insert(
            self.db,
            "tally_event",
            position=before + 1,
            run_no=self.number,
            sequence=self.sequence,
            transition_id=self.transition,
            envelope=spell({"kind": kind, "at": self.at, **fields}),
            hash=b"",
        )
        self.last = fields
        return self.sequence

    def ready(self, node: str) -> None:
        sequence = self.say("ActivationReady", node=node, body="{}", step=False)
        where = {"run_no": self.number, "node": node, "instance": ""}
        insert(self.db, "tally_activation", **where, ready_sequence=sequence)
        self.input = self.last["payload"]

    def prepare(self, node: str, effect: str, number: int = 1) -> None:
        digest = content("terms", terms(effect))
        intent = {"run": self.name, "node": node, "attempt": number, "terms": digest.hex()}
        intent |= {"input": self.input, "place": "here", "prepared_at": self.at + 1}
        cited = content("intent", spell(intent)).hex()
        said = {"node": node, "attempt": number, "intent": cited, "accepted": True}
        self.say("AttemptPrepared", **said, place="here")
        insert(
            self.db,
            "tally_attempt",
            run_no=self.number,
            node=node,
            instance="",
            attempt=number,
            identity=identity(self.name, node, "", number),
            terms=digest,
            input=bytes.fromhex(self.input),
            prepared_at=self.at,
            place="here",
            receipt="{}",
        )

    def effect(self, node: str, number: int = 1, dispatch: int = 1) -> None:
        """The outside does what it was asked to."""
        key = identity(self.name, node, "", number).hex()
        place = {"run": self.name, "node": node, "instance": "", "attempt": number}
        self.effects.append({"identity": key, "dispatch": dispatch, "on_disk": True, **place})

    def set(self, table: str, node: str, attempt: int | None = None, **columns) -> None:
        changes = ", ".join(f'"{name}" = ?' for name in columns)
        sql = f"UPDATE tally_{table} SET {changes} WHERE run_no = ? AND node = ?"
        values = [*columns.values(), self.number, node]
        if attempt is not None:
            sql, values = sql + " AND attempt = ?", [*values, attempt]
        self.db.execute(sql, values)

    def end_dispatch(self, node: str, end: str, due: int | None, dispatch: int = 1) -> None:
        fields = {"node": node, "attempt": 1, "dispatch": dispatch, "end": end}
        self.say("DispatchEnded", **fields, **({} if due is None else {"due": due}))
        self.set("attempt", node, 1, end=end, due_at=due)

    def redispatch(self, node: str, dispatch: int) -> None:
        (end,) = self.db.execute(
            'SELECT "end" FROM tally_attempt WHERE run_no = ? AND node = ?', (self.number, node)
        ).fetchone()
        fields = {"node": node, "attempt": 1, "dispatch": dispatch, "place": "there"}
        self.say("AttemptRedispatched", **fields, accepted=True)
        former = {"first_place": "here"} if dispatch == 2 else {}
        earlier = {"earlier_unknown": end == "unknown", "earlier_failed": end == "failed"}
        empty = {"end": None, "due_at": None, "timeout_at": None}
        self.set("attempt", node, 1, dispatch=dispatch, place="there", **empty, **earlier, **former)

    def succeed(self, node: str, number: int = 1, dispatch: int = 1) -> None:
        fields = {"node": node, "attempt": number, "dispatch": dispatch, "status": "succeeded"}
        sequence = self.say("AttemptSettled", **fields, body='{"ok":true}')
        outcome = {"outcome": "succeeded", "outcome_at": self.at, "outcome_sequence": sequence}
        self.set("attempt", node, number, **outcome)
        self.set("activation", node, status="succeeded", end_sequence=sequence)

    def doubt(self, node: str) -> None:
        self.end_dispatch(node, "unknown", None)
        self.set("activation", node, interruptions=1)
        fields = {"node": node, "attempt": 1, "dispatch": 1, "reason": "nobody can say"}
        self.say("AttemptDoubted", step=False, **fields)
        self.set("attempt", node, 1, doubt="nobody can say")

    def never_happened(self, node: str) -> None:
        """A person decides, and the next attempt is permitted."""
        fields = {"node": node, "attempt": 1}
        self.say("DoubtResolved", **fields, decision="never_happened", actor="ann", body='"seen"')
        self.say("AttemptAbandoned", step=False, **fields, end="attested", retry_at=self.at)
        closed = {"doubt": None, "end": "attested", "abandoned_at": self.at}
        self.set("attempt", node, 1, **closed, resolution='{"decision":"never_happened"}')

    def close(self, status: str, **columns) -> None:
        """Bring the run's own row up to date, by counting."""
        where = f"FROM tally_attempt WHERE run_no = {self.number}"
        opened = f"{where} AND outcome IS NULL AND abandoned_at IS NULL"
        self.db.execute(
            f"UPDATE tally_run SET status = ?, last_at = ?, consumed = (SELECT count(*) {where}),"
            f" open_attempts = (SELECT count(*) {opened}),"
            f" active = (SELECT count(*) {opened} AND doubt IS NULL) WHERE run_no = ?",
            (status, self.at, self.number),
        )
        for name, value in columns.items():
            sql = f"UPDATE tally_run SET {name} = ? WHERE run_no = ?"
            self.db.execute(sql, (value, self.number))
        reseal(self.db, self.name)


def tell(path: str | Path) -> tuple[sqlite3.Connection, list[dict]]:
    """Write the whole story. Returns the open database and the effects that happened."""
    db, effects = empty(path), []
    _told_to_its_end(db, effects)
    flying = Run(db, "flying", effects)
    flying.ready("charge")
    flying.prepare("charge", "idempotent")
    flying.effect("charge")
    flying.close("running")
    doubted = Run(db, "doubted", effects)
    doubted.ready("mail")
    doubted.prepare("mail", "mutating")
    doubted.effect("mail")
    doubted.doubt("mail")
    doubted.close("in_doubt", reason="doubt")
    return db, effects


def _told_to_its_end(db: sqlite3.Connection, effects: list[dict]) -> None:
    run = Run(db, "ended", effects)
    run.ready("look")
    run.prepare("look", "read_only")
    run.effect("look")
    evidence = {"former": "e1", "evidence": "ended", "seen": "lock"}
    run.say("RunHandedOff", generation=2, engine="e2", barrier=True, **evidence)
    run.end_dispatch("look", "unknown", run.at + 1)
    run.say("BarrierDropped", step=False)
    run.redispatch("look", 2)
    run.effect("look", dispatch=2)
    run.succeed("look", dispatch=2)
    run.ready("charge")
    run.prepare("charge", "idempotent")
    run.effect("charge")
    run.end_dispatch("charge", "failed", run.at + 1)
    run.set("activation", "charge", failures=1)
    run.redispatch("charge", 2)
    run.effect("charge", dispatch=2)
    run.succeed("charge", dispatch=2)
    run.ready("book")
    run.prepare("book", "transactional")
    run.effect("book")
    insert(db, "applied", identity=identity("ended", "book", "", 1).hex())
    run.succeed("book")
    run.ready("mail")
    run.prepare("mail", "mutating")
    run.doubt("mail")
    run.never_happened("mail")
    run.prepare("mail", "mutating", 2)
    run.effect("mail", 2)
    run.succeed("mail", 2)
    sequence = run.say("ActivationEnded", node="extra", status="skipped", step=False)
    where = {"run_no": run.number, "node": "extra", "instance": ""}
    insert(db, "tally_activation", **where, status="skipped", end_sequence=sequence)
    run.say("RunEnded", status="succeeded", body='{"ok":true}', step=False)
    run.close("succeeded", generation=2, engine="e2", ended_at=run.at)
