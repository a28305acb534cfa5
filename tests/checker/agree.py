"""Do the stored rows say what the events say, no more and no less?

Nothing here trusts a column: counters are counted, statuses derived, digests computed.
"""

from collections.abc import Iterator

from tests.checker import formulas, violation
from tests.checker.replay import UNKNOWN, Activation, Attempt, Told
from tests.checker.rows import Ledger, Row, bytes_of, hex_of, parse, spell
from tests.checker.violation import Violation

TERMINAL = {"succeeded", "failed", "cancelled"}
SHOWN = TERMINAL | {
    "damaged", "recovering", "in_doubt", "cancelling", "pausing", "paused", "running", "waiting",
}  # fmt: skip


def header(ledger: Ledger, run: Row, told: Told) -> Iterator[Violation]:
    """The run's own row against the events, and its counters against a recount."""
    name, admitted = run["run_id"], told.admitted or {}
    attempts = told.attempts
    expected = {
        "key": admitted.get("key"),
        "definition": admitted.get("definition"),
        "semantics": admitted.get("semantics"),
        "bindings": admitted.get("bindings"),
        "limits": admitted.get("limits"),
        "admitted_at": admitted.get("at"),
        "deadline": admitted.get("deadline"),
        "last_at": told.last_at,
        "consumed": len(attempts),
        "active": sum(attempt.open and attempt.doubt is None for attempt in attempts),
        "open_attempts": sum(attempt.open for attempt in attempts),
        "ready": sum(visit.ready for visit in told.activations.values()),
        "barrier": int(told.barrier),
        "stopping": told.stopping and told.stopping["cause"],
        "ended_at": told.ended and told.ended["at"],
    }
    if told.generation is not None:
        expected["generation"] = told.generation
    for column, value in expected.items():
        found = run[column]
        if column == "definition":
            found = hex_of(found)
        elif column == "bindings":
            body = ledger.bindings.get(bytes_of(found), {}).get("body", found)
            found = formulas.content("bindings", bytes_of(body)).hex()
        if found != value:
            yield Violation("run-row", name, column, f"is {found!r}, the events say {value!r}")


def status(run: Row, told: Told) -> Iterator[Violation]:
    """The first line of the status table that holds is the one that is shown."""
    name, shown, attempts = run["run_id"], run["status"], told.attempts
    flying = any(attempt.in_flight for attempt in attempts)
    doubted = any(attempt.doubt is not None for attempt in attempts)
    waiting = any(visit.ready for visit in told.activations.values()) and not told.stopping
    allowed = SHOWN - TERMINAL - {"damaged", "recovering"}
    if told.ended:
        allowed = {told.ended["status"]}
    elif run["damaged"] is not None:
        allowed = {"damaged"}
    elif told.barrier:
        allowed = {"recovering"}
    elif doubted and not flying and not waiting:
        allowed = {"in_doubt"}
    elif not doubted:
        allowed -= {"in_doubt"}
    if flying:
        allowed -= {"in_doubt", "paused", "waiting"}
    if shown not in allowed:
        yield Violation("status", name, "status", f"{shown!r} is shown, not {sorted(allowed)}")
    if shown == "waiting" and not run["reason"]:
        yield Violation("status-reason", name, "reason", "it waits and does not say for what")


def terminal(run: Row, told: Told, attempts: list[Row], visits: list[Row]) -> Iterator[Violation]:
    """A run that ended has nothing open, by its rows alone."""
    if run["ended_at"] is None and run["status"] not in TERMINAL:
        return
    for row in attempts:
        if _is_open(row):
            yield Violation("terminal-open", run["run_id"], _name(row), "is open in an ended run")
    for row in visits:
        if row["status"] is None:
            where = violation.visit(row["node"], row["instance"])
            yield Violation("terminal-open", run["run_id"], where, "is live in an ended run")
    if not told.ended:
        yield Violation("terminal-unsaid", run["run_id"], "status", "no event ended the run")


def activations(run: Row, told: Told, rows: list[Row]) -> Iterator[Violation]:
    """One row for each visit that the events know, and with what they say."""
    name, unseen = run["run_id"], dict(told.activations)
    for row in rows:
        key = row["node"], row["instance"]
        where, said = violation.visit(*key), unseen.pop(key, None)
        if said is None:
            yield Violation("activation-unsaid", name, where, "no event speaks of it")
            continue
        for column, value in _activation_columns(said).items():
            if row[column] != value:
                detail = f"is {row[column]!r}, the events say {value!r}"
                yield Violation("activation-row", name, f"{where} {column}", detail)
    for key in unseen:
        yield Violation("activation-missing", name, violation.visit(*key), "has events, no row")


def _activation_columns(said: Activation) -> dict[str, object]:
    columns: dict[str, object] = {
        "ready_sequence": said.ready_sequence,
        "status": said.status,
        "end_sequence": said.end_sequence,
    }
    if said.between and said.attempts:
        columns["due_at"] = said.due_at
    if said.live:
        columns |= {"failures": said.failures, "interruptions": said.interruptions}
    return columns


def bounds(ledger: Ledger, run: Row, told: Told, rows: list[Row]) -> Iterator[Violation]:
    """Nothing is tried more often than its terms allow, and a person's permissions (R3, R9)."""
    for row in rows:
        try:
            terms = parse(ledger.terms[bytes_of(row["terms"])]["body"])
        except (KeyError, ValueError):
            continue
        visit = told.activations.get((row["node"], row["instance"]))
        if visit is None or row["attempt"] != len(visit.attempts):
            continue
        for what, count, allowed in (
            ("failed", visit.failures, terms.get("max_attempts", 1)),
            ("was interrupted", visit.interruptions, terms.get("interruptions_max", 5) + 1),
        ):
            if count > allowed + visit.decisions:
                detail = f"{what} {count} times, {allowed + visit.decisions} are allowed"
                yield Violation("bound", run["run_id"], _name(row), detail)


def attempts(ledger: Ledger, run: Row, told: Told, rows: list[Row]) -> Iterator[Violation]:
    """One row for each attempt that the events know; its facts are those that they say."""
    name = run["run_id"]
    unseen = {(a.node, a.instance, a.number): a for a in told.attempts}
    for row in rows:
        where = _name(row)
        said = unseen.pop((row["node"], row["instance"], row["attempt"]), None)
        if said is None:
            yield Violation("attempt-unsaid", name, where, "no event announced this intent")
        for code, detail in _row_alone(run, row):
            yield Violation(code, name, where, detail)
        for code, detail in _intent(ledger, run, told, row, said):
            yield Violation(code, name, where, detail)
        for column, found, value in _differences(row, said) if said else ():
            detail = f"is {found!r}, the events say {value!r}"
            yield Violation("attempt-row", name, f"{where} {column}", detail)
    for said in unseen.values():
        yield Violation("attempt-missing", name, said.name, "was prepared and has no row")


def _row_alone(run: Row, row: Row) -> Iterator[tuple[str, str]]:
    """What a row may never look like, whatever the events say (I1, I6)."""
    expected = formulas.identity(run["run_id"], row["node"], row["instance"], row["attempt"])
    if bytes_of(row["identity"]) != expected:
        yield "identity", f"{hex_of(row['identity'])[:12]}… is not {expected.hex()[:12]}…"
    if row["outcome"] is not None and row["receipt"] is None:
        yield "outcome-without-receipt", "an outcome and no receipt"
    if (row["outcome"] is None) != (row["outcome_at"] is None):
        yield "outcome-time", "an outcome and its time come together"
    if (row["outcome"] is None) != (row["outcome_sequence"] is None):
        yield "outcome-event", "an outcome and the number of its event come together"
    if row["outcome"] is not None and row["abandoned_at"] is not None:
        yield "closed-twice", "an outcome and an abandonment"
    if row["doubt"] is not None and not _is_open(row):
        yield "doubt-closed", "in doubt and closed"
    if row["outcome"] in {"failed", "cancelled"} and row["effect"] not in {"none", "possible"}:
        yield "effect-unsaid", f"{row['outcome']} without saying what it may have left behind"


def _intent(
    ledger: Ledger, run: Row, told: Told, row: Row, said: Attempt | None
) -> Iterator[tuple[str, str]]:
    """The intent, put together from its columns, is the one that was announced (I5, I7)."""
    intent = {
        "attempt": row["attempt"],
        "input": hex_of(row["input"]),
        "node": row["node"],
        "place": row["place"] if row["first_place"] is None else row["first_place"],
        "prepared_at": row["prepared_at"],
        "run": run["run_id"],
        "terms": hex_of(row["terms"]),
    } | ({"instance": row["instance"]} if row["instance"] else {})
    text = spell(intent)
    shown = ledger.intents.get((row["run_no"], row["node"], row["instance"], row["attempt"]))
    if shown != text:
        yield "intent-shown", f"{shown!r} is shown, the columns say {text!r}"
    visit = told.activations.get((row["node"], row["instance"]))
    if visit is not None and visit.payload is not None and visit.payload != intent["input"]:
        yield "intent-differs", "its input is not what the activation got"
    if said is not None:
        if formulas.content("intent", text.encode()).hex() != said.intent:
            yield "intent-differs", "it is not the one that was announced"
        if row["prepared_at"] != said.at:
            yield "intent-differs", f"prepared at {row['prepared_at']}, announced at {said.at}"
    if bytes_of(row["terms"]) not in ledger.terms:
        yield "terms-missing", "cites terms that are not stored"


def _differences(row: Row, said: Attempt) -> Iterator[tuple[str, object, object]]:
    columns: dict[str, object] = {
        "dispatch": said.dispatch,
        "place": said.place,
        "timeout_at": said.timeout_at,
        "doubt": said.doubt,
        "outcome": said.outcome,
        "effect": said.effect,
        "outcome_at": said.outcome_at,
        "outcome_sequence": said.outcome_sequence,
        "abandoned_at": said.abandoned_at,
    }
    if said.outcome is None:
        columns["end"] = said.end
    if said.open:
        columns["due_at"] = said.due_at
    for column, value in columns.items():
        if row[column] != value:
            yield column, row[column], value
    if (row["receipt"] is not None) != said.accepted:
        yield "receipt", row["receipt"], "accepted" if said.accepted else None
    if (row["resolution"] is not None) != bool(said.decisions):
        yield "resolution", row["resolution"], said.decisions
    earlier = {end for number, end in said.ends.items() if number < said.dispatch}
    if earlier & UNKNOWN and not row["earlier_unknown"]:
        yield "earlier_unknown", row["earlier_unknown"], True
    if row["earlier_unknown"] and not (UNKNOWN | {"interrupted"}) & set(said.ends.values()):
        yield "earlier_unknown", row["earlier_unknown"], False
    if row["earlier_failed"] and not {"failed", "cancelled"} & set(said.ends.values()):
        yield "earlier_failed", row["earlier_failed"], False


def _is_open(row: Row) -> bool:
    return row["outcome"] is None and row["abandoned_at"] is None


def _name(row: Row) -> str:
    return violation.attempt(row["node"], row["instance"], row["attempt"])
