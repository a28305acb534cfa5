"""What has become of each step of a run, and what is in doubt, read from what is committed.

rows of activations ─┐
rows of attempts    ─┼─▶ one line for each visit: status, numbers, output or failure
history             ─┘   (and `pending` for each step that was not visited yet)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from tallystick.core.definition import Bindings, Definition, Node
from tallystick.core.identity import ActivationKey, parse_instance
from tallystick.core.values import decode_trusted
from tallystick.errors import NotFound
from tallystick.store.protocol import ActivationRow, AttemptRow, Store, StoredRun

Visit: TypeAlias = tuple[str, str]
"""Node path and instance path, as they are stored."""

READ_AGAIN_MAX: Final = 5
"""Rows and history are read one after the other; if the run moved meanwhile they are read again."""

_REPORTS: Final = frozenset(
    {"DispatchEnded", "AttemptSettled", "AttemptAbandoned", "ActivationEnded"}
)

_definition = msgspec.json.Decoder(Definition).decode
_bindings = msgspec.json.Decoder(Bindings).decode


@dataclass(frozen=True, slots=True)
class Doubt:
    """An attempt that may have happened, and nobody can say: what a person has to decide.

    step    as people write it, `fix[2].build`
    reason  why it is not known, in a word: `unknown`, `exhausted`, …
    detail  the same in a sentence, or None
    identity  64 hex digits: the idempotency key that the outside saw
    effect  effect class in force · since: when it went in doubt, ms since 1970
    """

    step: str
    attempt: int
    dispatch: int
    reason: str
    identity: str
    effect: str
    since: int
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A visit to a step, as it is committed now.

    step    as people write it, `fix[2].build`
    status  pending, ready, running, retry, in_doubt, and at the end succeeded, failed, cancelled,
            skipped, given_up
    effect  effect class in force; None: this kind of step does nothing outside
    attempt, dispatch  numbers of the newest; None: there is none yet
    due_at  when it is tried again, ms since 1970, or None
    output  of a success · failure: why it failed, or was tried again; None: it did not
    """

    step: str
    status: str
    effect: str | None
    attempt: int | None = None
    dispatch: int | None = None
    due_at: int | None = None
    output: Any = None
    failure: Mapping[str, Any] | None = None


class _Line(msgspec.Struct, frozen=True):
    """As much of an envelope as is needed here."""

    kind: str
    at: int
    node: str = ""
    instance: str = ""
    status: str | None = None


_line = msgspec.json.Decoder(_Line).decode


class _Past(msgspec.Struct):
    """What the history adds to the rows.

    bodies    of events by sequence
    failures  what was reported last of each visit that did not succeed
    doubted   when each visit went in doubt last
    """

    bodies: dict[int, bytes]
    failures: dict[Visit, bytes]
    doubted: dict[Visit, int]


async def doubts_of(store: Store, stored: StoredRun) -> tuple[Doubt, ...]:
    """Every attempt of a run that is in doubt, in the order of node and instance."""
    run = stored.new.run
    rows = [row for row in await store.attempts(run) if row.doubt is not None and _open(row)]
    if not rows:
        return ()
    effects = _Effects(stored)
    past = await _past(store, run, frozenset())
    return tuple(
        Doubt(
            _named(row.node, row.instance),
            row.attempt,
            row.dispatch,
            row.doubt or "",
            row.identity.hex(),
            effects.of(row.node) or "mutating",
            past.doubted.get((row.node, row.instance), stored.header.last_at),
            _sentence(past.failures.get((row.node, row.instance))),
        )
        for row in rows
    )


async def steps_of(store: Store, run: str) -> list[StepInfo]:
    """Every visit to a step, in the order of the definition. Raises `NotFound`."""
    stored = await store.run(run)
    for _ in range(READ_AGAIN_MAX):
        found, before = await _steps(store, stored), stored.header.sequence
        stored = await store.run(run)
        if stored.header.sequence == before:
            return found
    return await _steps(store, stored)


async def check_step(store: Store, run: str, key: ActivationKey) -> None:
    """Refuse a name that no step has, before anything is done for it. Raises `NotFound`."""
    steps = await steps_of(store, run)
    if str(key) not in {it.step for it in steps}:
        raise NotFound(
            f"run {run} has no step {str(key)!r}",
            code="step-unknown",
            check="step",
            facts={"run": run, "in_doubt": [it.step for it in steps if it.status == "in_doubt"]},
            next_step=f"tally show {run}",
        )


async def _steps(store: Store, stored: StoredRun) -> list[StepInfo]:
    run = stored.new.run
    nodes = _definition(await store.definition(stored.new.definition)).root.nodes
    newest = {(row.node, row.instance): row for row in await store.attempts(run)}
    visits: dict[str, list[ActivationRow]] = {}
    for row in await store.activations(run):
        visits.setdefault(row.node, []).append(row)
    ends = {row.end_sequence for rows in visits.values() for row in rows if row.end_sequence}
    past = await _past(store, run, frozenset(ends))
    effects = _Effects(stored)
    found: list[StepInfo] = []
    for node in nodes:
        effect, rows = effects.of(node.id, node), visits.pop(node.id, [])
        rows.sort(key=lambda row: parse_instance(row.instance))
        found += [_told(row, newest.get((row.node, row.instance)), effect, past) for row in rows]
        if not rows:
            found.append(StepInfo(node.id, "pending", effect))
    for rows in visits.values():
        found += [_told(row, newest.get((row.node, row.instance)), None, past) for row in rows]
    return found


async def _past(store: Store, run: str, wanted: frozenset[int]) -> _Past:
    past = _Past({}, {}, {})
    async for event in store.events(run):
        line = _line(event.envelope)
        visit = (line.node, line.instance)
        if line.kind == "AttemptDoubted":
            past.doubted[visit] = line.at
        if event.payload is None:
            continue
        if event.sequence in wanted:
            past.bodies[event.sequence] = event.payload.body
        if line.kind in _REPORTS and line.status != "succeeded":
            past.failures[visit] = event.payload.body
    return past


def _told(
    row: ActivationRow, attempt: AttemptRow | None, effect: str | None, past: _Past
) -> StepInfo:
    status = row.status or _live_status(row, attempt)
    body = past.bodies.get(row.end_sequence or 0)
    due_at = None if row.status else row.due_at
    if due_at is None and attempt is not None and status == "retry":
        due_at = attempt.due_at
    output = decode_trusted(body) if body is not None and status == "succeeded" else None
    return StepInfo(
        _named(row.node, row.instance),
        status,
        effect,
        None if attempt is None else attempt.attempt,
        None if attempt is None else attempt.dispatch,
        due_at,
        output,
        _failure(status, body, past.failures.get((row.node, row.instance))),
    )


def _live_status(row: ActivationRow, attempt: AttemptRow | None) -> str:
    if attempt is None or not _open(attempt):
        return "ready" if row.due_at is None else "retry"
    if attempt.doubt is not None:
        return "in_doubt"
    return "running" if attempt.end is None else "retry"


def _failure(status: str, body: bytes | None, last: bytes | None) -> Mapping[str, Any] | None:
    """Why it failed; of one that is tried again, why it has to be."""
    told = last if status in ("retry", "ready", "running", "in_doubt") else body
    if told is None or status in ("succeeded", "skipped"):
        return None
    value = decode_trusted(told)
    return value if isinstance(value, dict) else None


def _sentence(report: bytes | None) -> str | None:
    value = None if report is None else decode_trusted(report)
    message = value.get("message") if isinstance(value, dict) else None
    return message if isinstance(message, str) else None


class _Effects:
    """Effect classes in force, as they were bound at admission."""

    def __init__(self, stored: StoredRun) -> None:
        self._steps = _bindings(stored.new.bindings).steps

    def of(self, path: str, node: Node | None = None) -> str | None:
        """The class of a step; None: it does nothing outside."""
        bound = self._steps.get(path)
        if bound is not None:
            return bound.effect
        if node is None or node.call is None:
            return None
        return node.effect or "mutating"


def _open(row: AttemptRow) -> bool:
    return row.outcome is None and row.abandoned_at is None


def _named(node: str, instance: str) -> str:
    return str(ActivationKey(node, parse_instance(instance)))
