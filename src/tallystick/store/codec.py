"""Read rows into the values of the contract, and notice when they contradict themselves.

Text comes back from the database as `str` and is handed on as the bytes that were hashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from tallystick.core.facts import NewRun, RunHeader
from tallystick.core.history import payload_digest
from tallystick.core.identity import ActivationKey, dispatch_identity, parse_instance
from tallystick.core.messages import Intent, Payload
from tallystick.errors import MaintenanceRequired
from tallystick.store.protocol import (
    ActivationRow,
    AttemptRow,
    EngineRow,
    ListedRun,
    StoredRun,
)

Row: TypeAlias = Sequence[Any]  # Any: what a database driver returns


class _Citing(msgspec.Struct, frozen=True):
    """The part of an envelope that says what it cites."""

    payload: str | None = None


_citing = msgspec.json.Decoder(_Citing).decode
_intent = msgspec.json.Decoder(Intent).decode


def listed_run(row: Row) -> ListedRun:
    """A row of `tally_run_row`."""
    number, run, key, request, definition, workflow, semantics, bindings, limits, *rest = row
    admitted_at, deadline, generation, token, engine, *header = rest
    *moved, damaged = header
    new = NewRun(
        run,
        key,
        request,
        definition,
        workflow,
        semantics,
        bindings.encode(),
        limits.encode(),
        admitted_at,
        deadline,
    )
    moved[10] = bool(moved[10])  # barrier
    return ListedRun(number, StoredRun(new, RunHeader(*moved), generation, token, engine, damaged))


def attempt_row(run: str, row: Row) -> AttemptRow:
    """A row of `tally_attempt_row`; `MaintenanceRequired` where it differs from its intent."""
    _, node, instance, attempt, identity, intent, terms, *rest = row
    stored = AttemptRow(node, instance, attempt, identity, intent.encode(), terms, *rest)
    stored = msgspec.structs.replace(
        stored,
        earlier_unknown=bool(stored.earlier_unknown),
        earlier_failed=bool(stored.earlier_failed),
    )
    _check_intent(run, stored)
    return stored


def _check_intent(run: str, row: AttemptRow) -> None:
    """Every column that repeats the intent must equal it (invariant I7)."""
    try:
        intent = _intent(row.intent)
    except msgspec.MsgspecError as error:
        raise damaged(run, "an intent cannot be read", why=str(error)) from error
    key = ActivationKey(row.node, parse_instance(row.instance))
    said = (intent.run, intent.node, intent.instance, intent.attempt, intent.terms)
    if said != (run, row.node, row.instance, row.attempt, row.terms.hex()) or (
        row.dispatch == 1 and intent.place != row.place
    ):
        raise damaged(run, "an attempt differs from its intent", node=row.node, attempt=row.attempt)
    if dispatch_identity(run, key, row.attempt) != row.identity:
        raise damaged(run, "an attempt has another identity", node=row.node, attempt=row.attempt)


def activation_row(row: Row) -> ActivationRow:
    """A row of `read_activations`."""
    return ActivationRow(*row)


def engine_row(row: Row) -> EngineRow:
    """A row of `read_engine`."""
    return EngineRow(*row)


def payload(run: str, sequence: int, envelope: str, salt: bytes, body: bytes) -> Payload:
    """A payload as read. Raises `MaintenanceRequired` if it is not what its event cites."""
    digest = payload_digest(salt, body)
    if _citing(envelope).payload != digest:
        raise damaged(run, "a payload is not what its event cites", sequence=sequence)
    return Payload(salt, body, digest)


def damaged(run: str, what: str, **facts: str | int) -> MaintenanceRequired:
    """The error for stored data of one run that contradict each other."""
    return MaintenanceRequired(
        f"run {run} is damaged: {what}",
        code="run-damaged",
        facts={"run": run, **facts},
        next_step="restore a backup, or keep the files for an investigation; do not write to them",
    )
