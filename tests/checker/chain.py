"""Is the history whole: numbered without gaps, chained, and citing what is really there?"""

from collections.abc import Iterator
from typing import Any

from tests.checker import formulas
from tests.checker.rows import Ledger, Row, bytes_of, parse
from tests.checker.violation import Violation

Event = dict[str, Any]


def positions(ledger: Ledger) -> Iterator[Violation]:
    """Positions are 1..n over the whole store, and rise with the sequence of each run."""
    taken = sorted(row["position"] for rows in ledger.events.values() for row in rows)
    for expected, found in enumerate(taken, 1):
        if expected != found:
            yield Violation("position-gap", "", f"position {expected}", f"{found} stands there")
            break
    for run in ledger.runs:
        before = 0
        for row in ledger.events[run["run_no"]]:
            if row["position"] <= before:
                yield Violation(
                    "position-order",
                    run["run_id"],
                    f"event {row['sequence']}",
                    f"position {row['position']} follows {before}",
                )
            before = row["position"]


def transitions(ledger: Ledger) -> Iterator[Violation]:
    """The events of one transition stand together, in one run, in neighbouring positions."""
    last: dict[int, Row] = {}
    names = {run["run_no"]: run["run_id"] for run in ledger.runs}
    rows = sorted((row for of in ledger.events.values() for row in of), key=_position)
    for row in rows:
        run, transition = names.get(row["run_no"], "?"), row["transition_id"]
        where = f"event {row['sequence']}"
        if not 0 < transition < 2**63:
            yield Violation("transition-id", run, where, f"{transition} is no positive 63-bit id")
        before = last.get(transition)
        if before is not None and (
            before["run_no"] != row["run_no"]
            or before["sequence"] + 1 != row["sequence"]
            or before["position"] + 1 != row["position"]
        ):
            yield Violation("transition-split", run, where, f"transition {transition} is scattered")
        last[transition] = row


def _position(row: Row) -> int:
    return row["position"]


def chain(run: Row, rows: list[Row]) -> Iterator[Violation]:
    """Sequences are 1..n, each hash follows from the one before, the last is the run's head."""
    name = run["run_id"]
    head = formulas.genesis(name)
    for expected, row in enumerate(rows, 1):
        where = f"event {row['sequence']}"
        if row["sequence"] != expected:
            yield Violation("sequence-gap", name, where, f"event {expected} should stand here")
            return
        envelope = bytes_of(row["envelope"])
        head = formulas.link(head, row["sequence"], row["transition_id"], envelope)
        if head != bytes_of(row["hash"]):
            yield Violation("chain-broken", name, where, "was changed, moved or sealed wrongly")
            return
    if run["sequence"] != len(rows):
        yield Violation(
            "sequence-head", name, "sequence", f"{run['sequence']} beside {len(rows)} events"
        )
    elif head != bytes_of(run["head"]):
        yield Violation("chain-head", name, "head", "is not the hash of the last event")


def envelopes(run: Row, rows: list[Row], into: list[Event]) -> Iterator[Violation]:
    """Read every envelope, in order, into `into`; one that cannot be read ends the reading."""
    for row in rows:
        try:
            event = parse(row["envelope"])
            _ = event["kind"], event["at"]  # every event has these two
        except (ValueError, KeyError, TypeError) as error:
            where = f"event {row['sequence']}"
            yield Violation("envelope-unreadable", run["run_id"], where, repr(error))
            return
        if list(event) != sorted(event):
            where = f"event {row['sequence']}"
            yield Violation("envelope-not-canonical", run["run_id"], where, "keys are not sorted")
        into.append({**event, "sequence": row["sequence"]})


def payloads(ledger: Ledger, run: Row, events: list[Event]) -> Iterator[Violation]:
    """What an envelope cites is there and has the cited digest; what is there is cited."""
    name, stored = run["run_id"], dict(ledger.payloads[run["run_no"]])
    for event in events:
        where, cited = f"event {event['sequence']}", event.get("payload")
        row = stored.pop(event["sequence"], None)
        if cited is None and row is not None:
            yield Violation("payload-uncited", name, where, "has a payload that it does not cite")
        if cited is None:
            continue
        if row is None:
            yield Violation("payload-missing", name, where, f"cites {cited[:12]}…, not stored")
            continue
        body = _body(ledger, row)
        if body is None:
            yield Violation("blob-missing", name, where, f"{row['blob']} is not there")
        elif formulas.payload(bytes_of(row["salt"]), body) != cited:
            yield Violation("payload-digest", name, where, "the payload is not the one cited")
        if len(bytes_of(row["salt"])) != 16:
            yield Violation("payload-salt", name, where, "the salt is not 16 bytes")
    for sequence in stored:
        yield Violation("payload-uncited", name, f"event {sequence}", "there is no such event")


def _body(ledger: Ledger, row: Row) -> bytes | None:
    if row["blob"] is None:
        return bytes_of(row["body"])
    for folder in (f"{ledger.path.name}-blobs", f"{ledger.path.stem}.blobs", "blobs"):
        file = ledger.path.parent / folder / row["blob"]
        if file.is_file():
            return file.read_bytes()
    return None


def content(ledger: Ledger) -> Iterator[Violation]:
    """Definitions and terms lie under the digest of what they say."""
    for table, rows in (("definition", ledger.definitions), ("terms", ledger.terms)):
        for digest, row in rows.items():
            if formulas.content(table, bytes_of(row["body"])) != digest:
                where = f"{table} {digest.hex()[:12]}…"
                yield Violation(f"{table}-digest", "", where, "is not the digest of its body")
