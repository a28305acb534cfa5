"""The whole judgement: a store, the effects, and what was promised about them.

violations = check("orders.db", effects=read("effects.jsonl"), acknowledged=["run-1"])
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.checker import agree, chain, formulas
from tests.checker import effects as outside
from tests.checker.replay import Told, replay
from tests.checker.rows import Ledger, Row, bytes_of, parse, read
from tests.checker.violation import Violation

AT_REST = {"succeeded", "failed", "cancelled", "in_doubt", "waiting"}


def check(
    path: str | Path,
    effects: Iterable[outside.Effect] = (),
    *,
    acknowledged: Iterable[str | dict[str, Any]] = (),
    final: bool = True,
    complete: bool = False,
    applied: tuple[str, ...] = (),
) -> list[Violation]:
    """Judge a store. An empty list is an acquittal.

    effects       what happened outside, in order; see `effects.py`
    acknowledged  runs whose start was answered: ids, or {"run", "sequence"} for an event
    final         nobody is at work any more: every acknowledged run ended, or waits for
                  something that it names, or for a person
    complete      every task logs its effect: what succeeded must be in the log
    applied       user tables with an `identity` column that transactional work writes
    """
    ledger, effects = read(path, applied=applied), list(effects)
    found = [Violation("file", "", "database", said) for said in ledger.complaints]
    found += chain.positions(ledger)
    found += chain.transitions(ledger)
    found += chain.content(ledger)
    found += _epochs(ledger)
    told, classes = {}, {}
    for run in ledger.runs:
        name = run["run_id"]
        classes[name] = _classes(ledger, run)
        told[name] = _run(ledger, run, classes[name], found)
    known = outside.identities(told.values(), classes)
    found += outside.judge(effects, known)
    if complete:
        found += outside.complete(effects, known)
    if applied:
        found += outside.applied(ledger.applied, known)
    found += _acknowledged(ledger, acknowledged, final=final)
    return found


def in_flight(path: str | Path) -> set[str]:
    """The identities (hex) of the attempts that a crash now may leave in doubt (P14)."""
    ledger = read(path)
    flying = set()
    for run in ledger.runs:
        told = _run(ledger, run, _classes(ledger, run), [])
        flying |= {
            formulas.identity(run["run_id"], a.node, a.instance, a.number).hex()
            for a in told.attempts
            if a.in_flight or a.doubt is not None
        }
    return flying


def doubts(path: str | Path) -> list[dict[str, Any]]:
    """Every attempt in doubt now: run, node, instance, attempt, identity (hex), reason."""
    ledger = read(path)
    return [
        {
            "run": run["run_id"],
            **{column: row[column] for column in ("node", "instance", "attempt")},
            "identity": bytes_of(row["identity"]).hex(),
            "reason": row["doubt"],
        }
        for run in ledger.runs
        for row in ledger.attempts[run["run_no"]]
        if row["doubt"] is not None
    ]


def _run(ledger: Ledger, run: Row, classes: dict, found: list[Violation]) -> Told:
    number, events = run["run_no"], []
    rows = ledger.events[number]
    found += chain.chain(run, rows)
    found += chain.envelopes(run, rows, events)
    found += chain.payloads(ledger, run, events)
    try:
        told = replay(run["run_id"], events, classes)
    except (KeyError, TypeError) as error:
        found.append(Violation("event-malformed", run["run_id"], "events", repr(error)))
        return Told(run["run_id"])
    found += told.found
    found += agree.header(ledger, run, told)
    found += agree.status(run, told)
    found += agree.terminal(run, told, ledger.attempts[number], ledger.activations[number])
    found += agree.activations(run, told, ledger.activations[number])
    found += agree.attempts(ledger, run, told, ledger.attempts[number])
    found += agree.bounds(ledger, run, told, ledger.attempts[number])
    return told


def _classes(ledger: Ledger, run: Row) -> dict[tuple[str, str, int], str]:
    """The effect class that each attempt was prepared under. Unreadable: the strictest."""
    classes = {}
    for row in ledger.attempts[run["run_no"]]:
        try:
            effect = parse(ledger.terms[bytes_of(row["terms"])]["body"])["effect"]
        except (KeyError, TypeError, ValueError):
            effect = "mutating"
        classes[row["node"], row["instance"], row["attempt"]] = effect
    return classes


def _epochs(ledger: Ledger) -> Iterator[Violation]:
    if len(ledger.store) != 1:
        yield Violation("store-row", "", "tally_store", f"{len(ledger.store)} rows, not one")
        return
    for engine in ledger.engines:
        if engine["epoch"] > ledger.store[0]["epoch"]:
            yield Violation("epoch", "", engine["instance"], "is of an epoch that never was")
        if (engine["ended"] is None) != (engine["ended_at"] is None):
            yield Violation("engine-end", "", engine["instance"], "an end and its time differ")


def _acknowledged(ledger: Ledger, promised, *, final: bool) -> Iterator[Violation]:
    """No acknowledged run, and no acknowledged event of one, is ever lost."""
    runs = {run["run_id"]: run for run in ledger.runs}
    for promise in promised:
        promise = promise if isinstance(promise, dict) else {"run": promise}
        run = runs.get(name := promise["run"])
        if run is None:
            yield Violation("run-lost", name, "run", "was acknowledged and is not there")
            continue
        if run["sequence"] < promise.get("sequence", 1):
            yield Violation("event-lost", name, f"event {promise['sequence']}", "was acknowledged")
        if final and run["status"] not in AT_REST:
            detail = f"is left {run['status']} ({run['reason']})"
            yield Violation("run-stuck", name, "status", detail)
