"""Turn a batch of transitions into rows, grouped by statement, ready to be written in few calls.

Transitions of different runs touch different rows, so their order does not matter and their rows
may be grouped. Within one transition the order of its facts does matter where two of them touch the
same row (a receipt, then an outcome). So each kind of fact has a *rank*, kinds are written in rank
order, and a fact that would overtake an earlier one of its own row is put off to the next *stage*:

    facts of one attempt   AttachReceipt  SetOutcome | BeginDispatch after EndDispatch: in order
                           SetOutcome  AttachReceipt | against the order: the second is stage 1

Values are bound as they come, but for JSON, which travels as bytes and is stored as text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec.structs import astuple

from tallystick.core.facts import (
    Abandon,
    AttachReceipt,
    BeginDispatch,
    CountActivation,
    EndActivation,
    EndDispatch,
    InsertActivation,
    InsertAttempt,
    InsertTerms,
    MarkDoubt,
    RequestTimeout,
    SetOutcome,
    SetResolution,
)
from tallystick.core.messages import Intent, Payload
from tallystick.store.protocol import Transition, UserStatement

Row: TypeAlias = tuple[object, ...]

_read_intent = msgspec.json.Decoder(Intent).decode
_write_intent = msgspec.json.Encoder(order="sorted").encode

KINDS: tuple[tuple[type, str], ...] = (
    (InsertTerms, "insert_terms"),
    (InsertActivation, "insert_activation"),
    (InsertAttempt, "insert_attempt"),
    (AttachReceipt, "attach_receipt"),
    (RequestTimeout, "request_timeout"),
    (EndDispatch, "end_dispatch"),
    (MarkDoubt, "mark_doubt"),
    (SetResolution, "set_resolution"),
    (BeginDispatch, "begin_dispatch"),
    (SetOutcome, "set_outcome"),
    (Abandon, "abandon"),
    (CountActivation, "count_activation"),
    (EndActivation, "end_activation"),
)
"""The order in which kinds of facts are written within a stage, and the statement of each."""

STAGE = 16
"""Stage and rank make one number: rank + STAGE × stage. There are fewer kinds than this."""

_RANK = {kind: rank for rank, (kind, _) in enumerate(KINDS)}
_OF_ACTIVATION = {_RANK[kind] for kind in (InsertActivation, CountActivation, EndActivation)}


class Write(NamedTuple):
    """Rows for one statement."""

    statement: str
    rows: list[Row]


class BlobName(NamedTuple):
    """Where a payload's body lies that is too large for its row. size: bytes."""

    name: str
    size: int


Blobs: TypeAlias = Mapping[tuple[str, int], BlobName]
"""Bodies already written to files, by run and sequence."""


@dataclass(slots=True)
class Plan:
    """What to write, in this order.

    guards      refuse the batch if one of their rows changes nothing
    rows        facts by stage and rank, then events, then payloads
    statements  what users asked for, each with the index of its transition
    positions   of the last event of each transition
    numbers     of all runs of the batch, also those given to new ones
    contents    digests of the terms and bindings that the batch brings
    """

    guards: list[Write] = field(default_factory=list)
    rows: list[Write] = field(default_factory=list)
    statements: list[tuple[int, UserStatement]] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    contents: set[bytes] = field(default_factory=set)


def fault_of(transition: Transition) -> str | None:
    """Why a transition cannot be written whatever the store holds, or None."""
    if not transition.events:
        return "a transition without events"
    held = transition.expected.sequence if transition.expected else 0
    last = held + len(transition.events)
    if transition.events[-1].sequence != last or transition.header.sequence != last:
        return f"events do not lead from number {held} to number {transition.header.sequence}"
    if transition.events[-1].hash != transition.header.head:
        return "the run's head is not the hash of its last event"
    if (transition.expected is None) != (transition.new_run is not None):
        return "a new run expects nothing, and every other run expects something"
    return None


def plan(
    batch: Sequence[Transition],
    *,
    numbers: Mapping[str, int],
    position: int,
    run_no: int,
    known_contents: AbstractSet[bytes],
    blobs: Blobs,
) -> Plan:
    """Plan a batch of well-formed transitions of different runs.

    numbers      of the runs that exist
    position     of the newest event in the store · run_no: the highest in use
    known_contents  digests of terms and bindings that are stored already
    """
    made = Plan()
    guards: dict[str, list[Row]] = {}
    staged: dict[int, list[Row]] = {}
    events: list[Row] = []
    payloads: list[Row] = []
    for index, transition in enumerate(batch):
        if transition.new_run is not None:
            run_no += 1
            number = run_no
        else:
            number = numbers[transition.run]
        made.numbers[transition.run] = number
        _guard(guards, transition, number, known_contents, made.contents)
        if transition.facts:
            _stage(staged, transition, number, known_contents, made.contents)
        for sealed in transition.events:
            position += 1
            sequence = sealed.sequence
            events.append(
                (position, number, sequence, transition.id, sealed.envelope.decode(), sealed.hash)
            )
            if sealed.payload is not None:
                blob = blobs.get((transition.run, sequence)) if blobs else None
                payloads.append(_payload(number, sequence, sealed.payload, blob))
        made.positions.append(position)
        made.statements += [(index, statement) for statement in transition.statements]
    made.guards = [Write(name, guards[name]) for name in GUARDS if name in guards]
    made.rows = [Write(KINDS[at % STAGE][1], staged[at]) for at in sorted(staged)]
    made.rows.append(Write("insert_event", events))
    if payloads:
        made.rows.append(Write("insert_payload", payloads))
    return made


GUARDS = ("insert_bindings", "insert_run", "advance_run", "finish_run", "move_run")
"""The statements that guard a batch, in the order in which they run."""


def _guard(
    guards: dict[str, list[Row]],
    transition: Transition,
    number: int,
    known_contents: AbstractSet[bytes],
    brought: set[bytes],
) -> None:
    header = astuple(transition.header)
    if transition.expected is None:
        digest = _bring_bindings(guards, transition, known_contents, brought)
        _insert_run(guards, transition, number, digest, header)
        return
    held = (number, *astuple(transition.expected))
    if transition.authority is not None or transition.release:
        guards.setdefault("move_run", []).append(held + header + _moved(transition))
    elif transition.header.ended_at is not None:
        guards.setdefault("finish_run", []).append(held + header)
    else:
        guards.setdefault("advance_run", []).append(held + header[:-1])


def _moved(transition: Transition) -> Row:
    """Generation, token and engine after the transition. A release keeps the generation."""
    assert transition.expected is not None
    if transition.release or transition.authority is None:
        return (transition.expected.generation, None, None)
    return astuple(transition.authority)


def _bring_bindings(
    guards: dict[str, list[Row]],
    transition: Transition,
    known_contents: AbstractSet[bytes],
    brought: set[bytes],
) -> bytes:
    """The digest of a new run's bindings, which are written unless they are there already."""
    assert transition.new_run is not None
    body = transition.new_run.bindings
    digest = hashlib.sha256(b"tcj1:bindings\n" + body).digest()
    if digest not in known_contents and digest not in brought:
        brought.add(digest)
        guards.setdefault("insert_bindings", []).append((digest, body.decode()))
    return digest


def _insert_run(
    guards: dict[str, list[Row]], transition: Transition, number: int, bindings: bytes, header: Row
) -> None:
    new, owner = transition.new_run, transition.authority
    assert new is not None
    guards.setdefault("insert_run", []).append(
        (
            number,
            new.run,
            new.key,
            new.request,
            new.definition,
            new.workflow,
            new.semantics,
            bindings,
            new.limits.decode(),
            new.admitted_at,
            new.deadline,
            *((0, None, None) if owner is None else astuple(owner)),
            *header,
        )
    )


def _stage(
    staged: dict[int, list[Row]],
    transition: Transition,
    number: int,
    known_contents: AbstractSet[bytes],
    brought: set[bytes],
) -> None:
    """Sort the facts of one transition into `staged`, by the number of their stage and rank."""
    reached: dict[tuple[object, ...], int] = {}
    for fact in transition.facts:
        at = _RANK[type(fact)]
        if isinstance(fact, InsertTerms):
            if fact.digest in known_contents or fact.digest in brought:
                continue
            brought.add(fact.digest)
            row: Row = (fact.digest, fact.body.decode())
        else:
            attempt = None if at in _OF_ACTIVATION else fact.attempt  # type: ignore[union-attr]  # by rank
            target = (fact.node, fact.instance, attempt)
            before = reached.get(target)
            if before is not None:
                at = _after(before, at)
            reached[target] = at
            if isinstance(fact, InsertAttempt):
                row = _intent_row(fact, transition.run, number)
            else:
                row = (number, *astuple(fact))
        rows = staged.get(at)
        if rows is None:
            staged[at] = [row]
        else:
            rows.append(row)


def _after(before: int, rank: int) -> int:
    """The first number of this rank after a number that the same row has reached."""
    at = before - before % STAGE + rank
    return at if at > before else at + STAGE


def _intent_row(fact: InsertAttempt, run: str, number: int) -> Row:
    """The parts of an intent. Raises `ValueError` if they do not make exactly these bytes again."""
    try:
        intent = _read_intent(fact.intent)
        digest = bytes.fromhex(intent.input)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"an intent cannot be read: {error}") from error
    beside = Intent(
        run,
        fact.node,
        fact.attempt,
        fact.terms.hex(),
        digest.hex(),
        fact.place,
        intent.prepared_at,
        fact.instance,
    )
    if _write_intent(beside) != fact.intent:
        raise ValueError("an intent differs from the columns beside it, or is not canonical")
    return (
        number,
        fact.node,
        fact.instance,
        fact.attempt,
        fact.identity,
        fact.terms,
        digest,
        intent.prepared_at,
        fact.place,
        fact.receipt,
    )


def _payload(number: int, sequence: int, payload: Payload, blob: BlobName | None) -> Row:
    if blob is None:
        return (number, sequence, payload.salt, payload.body.decode(), None, None)
    return (number, sequence, payload.salt, None, blob.name, blob.size)
