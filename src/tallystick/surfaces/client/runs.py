"""What a run looks like from outside, read from what is committed."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import msgspec

from tallystick.core.identity import ActivationKey, parse_instance
from tallystick.core.values import decode_trusted
from tallystick.engine.loading import authority_of
from tallystick.engine.recovery import waits_for_a_person
from tallystick.errors import InvalidRequest, MaintenanceRequired
from tallystick.store.protocol import Store, StoredEvent, StoredRun

TERMINAL: Final = frozenset({"succeeded", "failed", "cancelled"})
_INDEX: Final = re.compile(r"[0-9]{1,18}\]")
LOOK_BACK_FIRST: Final = 4
"""A run's end is its last event, but for facts that came late: look back so far, then farther."""

Json: TypeAlias = Any
"""JSON as Python values, which their reader knows the shape of and a type checker does not."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """An attempt that may have happened, and nobody can say: what a person has to decide.

    step    as people write it, `fix[2].build` · reason: why it is not known
    identity  64 hex digits: the idempotency key that the outside saw
    """

    step: str
    attempt: int
    dispatch: int
    reason: str
    identity: str


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run as it is committed now. Times are milliseconds since 1970.

    status    succeeded, failed, cancelled (those are final), running, waiting, in_doubt, …
    reason    what a waiting run waits for; None otherwise
    due_at    when something is due next, or None
    ended_at  None until the end · damaged: why nothing is done for it, or None
    needs_person  nothing moves before somebody acts
    """

    id: str
    workflow: str
    key: str | None
    status: str
    reason: str | None
    admitted_at: int
    last_at: int
    due_at: int | None
    ended_at: int | None
    consumed: int
    active: int
    engine: str | None
    number: int | None = None
    needs_person: bool = False
    damaged: str | None = None
    doubts: tuple[Doubt, ...] = ()
    output: Json = None
    failure: Mapping[str, Json] | None = None

    @property
    def ended(self) -> bool:
        """The run is over, and stays as it is."""
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One recorded event.

    sequence  its number in the run, from 1 · position: its number in the whole store
    kind      what happened, `AttemptSettled` · at: the run's time, ms
    fields    the rest of the envelope, JSON
    payload   what it cites (an input, an output, a failure); None where there is none (any more)
    hash      64 hex digits: the chain up to here
    """

    run: str
    sequence: int
    position: int
    kind: str
    at: int
    fields: Mapping[str, Json]
    payload: Json
    hash: str


def info_of(stored: StoredRun, number: int | None = None) -> RunInfo:
    """What a row tells. Doubts, output and failure are not in it."""
    new, header, owner = stored.new, stored.header, authority_of(stored)
    return RunInfo(
        new.run,
        new.workflow,
        new.key,
        header.status if stored.damaged is None else "damaged",
        header.reason,
        new.admitted_at,
        header.last_at,
        header.due_at,
        header.ended_at,
        header.consumed,
        header.active,
        None if owner is None else owner.engine,
        number,
        stored.damaged is not None or waits_for_a_person(stored),
        stored.damaged,
    )


async def full_info(store: Store, run: str) -> RunInfo:
    """Everything that `RunInfo` holds. Raises `NotFound`."""
    stored = await store.run(run)
    info = info_of(stored)
    if info.ended:
        value = await end_of(store, stored)
        if info.status == "succeeded":
            return replace(info, output=value)
        return replace(info, failure=value if isinstance(value, dict) else None)
    return replace(info, doubts=await doubts_of(store, run))


async def doubts_of(store: Store, run: str) -> tuple[Doubt, ...]:
    """Every attempt of a run that is in doubt, in the order of node and instance."""
    return tuple(
        Doubt(
            str(ActivationKey(row.node, parse_instance(row.instance))),
            row.attempt,
            row.dispatch,
            row.doubt,
            row.identity.hex(),
        )
        for row in await store.attempts(run)
        if row.doubt is not None and row.outcome is None and row.abandoned_at is None
    )


async def end_of(store: Store, stored: StoredRun) -> Json:
    """The output of a run that succeeded, the failure of one that did not; None if it has none.

    Raises `MaintenanceRequired` where the history of an ended run has no end.
    """
    back = LOOK_BACK_FIRST
    while True:
        after = max(0, stored.header.sequence - back)
        async for event in store.events(stored.new.run, after=after):
            if b'"kind":"RunEnded"' in event.envelope:
                return None if event.payload is None else decode_trusted(event.payload.body)
        if after == 0:
            break
        back *= 8
    raise MaintenanceRequired(
        f"run {stored.new.run} has ended, and its history does not say how",
        code="end-missing",
        facts={"run": stored.new.run},
    )


async def history_of(store: Store, run: str, *, after: int = 0) -> AsyncIterator[HistoryEvent]:
    """A run's events in order, above this sequence."""
    async for event in store.events(run, after=after):
        yield _told(event)


def _told(event: StoredEvent) -> HistoryEvent:
    fields: dict[str, Any] = msgspec.json.decode(event.envelope)
    payload = None if event.payload is None else decode_trusted(event.payload.body)
    return HistoryEvent(
        event.run,
        event.sequence,
        event.position,
        fields.pop("kind"),
        fields.pop("at"),
        fields,
        payload,
        event.hash.hex(),
    )


def parse_step(text: str) -> ActivationKey:
    """The activation that `fix[2].build` names. Raises `InvalidRequest`."""
    names, indices = [], []
    for part in text.split("."):
        name, bracket, rest = part.partition("[")
        if not name or (bracket and not _INDEX.fullmatch(rest)):
            raise InvalidRequest(
                f"{text!r} does not name a step",
                code="step-unreadable",
                check="step",
                next_step="write it as `tally show` does, for example build or fix[2].build",
            )
        names.append(name)
        if bracket:
            indices.append(int(rest[:-1]))
    return ActivationKey(".".join(names), tuple(indices))
