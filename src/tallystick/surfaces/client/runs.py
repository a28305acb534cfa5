"""What a run looks like from outside, read from what is committed."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import msgspec

from tallystick.core.history import genesis, link
from tallystick.core.identity import ActivationKey
from tallystick.core.values import decode_trusted
from tallystick.engine.loading import authority_of
from tallystick.engine.locks import evidence, this_machine
from tallystick.engine.recovery import waits_for_a_person
from tallystick.errors import InvalidRequest, MaintenanceRequired
from tallystick.store.protocol import ListedRun, Store, StoredEvent, StoredRun
from tallystick.surfaces.client.steps import Doubt, doubts_of

TERMINAL: Final = frozenset({"succeeded", "failed", "cancelled"})
_INDEX: Final = re.compile(r"[0-9]{1,18}\]")
LOOK_BACK_FIRST: Final = 4
"""A run's end is its last event, but for facts that came late: look back so far, then farther."""

Json: TypeAlias = Any
"""JSON as Python values, which their reader knows the shape of and a type checker does not."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run as it is committed now. Times are milliseconds since 1970.

    status    succeeded, failed, cancelled (those are final), running, waiting, in_doubt, …
    reason    what a waiting run waits for; None otherwise
    due_at    when something is due next, or None
    ended_at  None until the end · damaged: why nothing is done for it, or None
    engine    id of the engine that owns it, under `generation`; None: nobody does
    deadline  the instant after which it starts nothing, or None · definition: digest, hex
    number    the store's own, rising with admission; None where it was not asked for
    needs_person  nothing moves before somebody acts

    Input, doubts, output and failure are those of `RunHandle.status`; a list leaves them out.
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
    generation: int
    deadline: int | None
    definition: str
    number: int | None = None
    needs_person: bool = False
    damaged: str | None = None
    input: Any = None
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


def info_of(stored: StoredRun, number: int | None = None, *, orphaned: bool = False) -> RunInfo:
    """What a row tells. Input, doubts, output and failure are not in it.

    orphaned  the engine that owns it has provably ended
    """
    new, header, owner = stored.new, stored.header, authority_of(stored)
    status, reason = shown_status(
        header.status,
        header.reason,
        damaged=stored.damaged is not None,
        moved=owner is not None and not orphaned,
        begun=header.consumed > 0,
    )
    return RunInfo(
        new.run,
        new.workflow,
        new.key,
        status,
        reason,
        new.admitted_at,
        header.last_at,
        header.due_at,
        header.ended_at,
        header.consumed,
        header.active,
        None if owner is None else owner.engine,
        stored.generation,
        new.deadline,
        new.definition.hex(),
        number,
        stored.damaged is not None or waits_for_a_person(stored),
        stored.damaged,
    )


def shown_status(
    status: str, reason: str | None, *, damaged: bool, moved: bool, begun: bool = True
) -> tuple[str, str | None]:
    """As stored, but that what would run waits for an engine while none moves it."""
    if damaged:
        return "damaged", None
    if status == "running" and not moved:
        return "waiting", "owner" if begun else "start"
    return status, reason


class Owners:
    """Which engines have provably ended. Each is asked once, so make a new one for each answer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._gone: dict[str, bool] = {}

    async def gone(self, engine: str | None) -> bool:
        """The kernel or its own last record says that this engine has ended. None: nobody's."""
        if engine is None:
            return False
        if engine not in self._gone:
            proof = evidence(await self._store.engine(engine), this_machine())
            self._gone[engine] = proof.kind == "ended"
        return self._gone[engine]

    async def info(self, listed: ListedRun) -> RunInfo:
        """The run of a list. Only one that would run is asked about: an end needs no owner."""
        stored = listed.stored
        owner = stored.engine if stored.header.status == "running" else None
        return info_of(stored, listed.number, orphaned=await self.gone(owner))


async def full_info(store: Store, run: str) -> RunInfo:
    """Everything that `RunInfo` holds. Raises `NotFound`."""
    listed = await store.listed(run)
    stored = listed.stored
    info = await Owners(store).info(listed)
    admitted = await store.payload(run, 1)
    info = replace(info, input=None if admitted is None else decode_trusted(admitted.body))
    if info.ended:
        value = await end_of(store, stored)
        if info.status == "succeeded":
            return replace(info, output=value)
        return replace(info, failure=value if isinstance(value, dict) else None)
    return replace(info, doubts=await doubts_of(store, stored))


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
        yield told(event)


async def checked_history(store: Store, run: str, *, after: int = 0) -> AsyncIterator[HistoryEvent]:
    """The same, with the chain of hashes checked to the run's row.

    It is checked from the first event, or from event `after`: a page of a long history costs what a
    page costs, and who reads all of them has checked all of it.

    Raises `NotFound`, and `MaintenanceRequired` at the first event that is not what was recorded.
    """
    header = (await store.run(run)).header
    sequence = min(after, header.sequence)
    head = await _hash_at(store, run, sequence)
    async for event in store.events(run, after=sequence):
        head = link(head, sequence + 1, event.transition, event.envelope)
        sequence += 1
        if (event.sequence, event.hash) != (sequence, head):
            raise _broken(run, sequence)
        if sequence == header.sequence and head != header.head:
            raise _broken(run, sequence)
        if sequence > after:
            yield told(event)
    if sequence < header.sequence:
        raise _broken(run, sequence + 1)


async def _hash_at(store: Store, run: str, sequence: int) -> bytes:
    """The hash that the event after this one continues. 0: that of a history's beginning."""
    if sequence == 0:
        return genesis(run)
    async for event in store.events(run, after=sequence - 1):
        if event.sequence == sequence:
            return event.hash
        break
    raise _broken(run, sequence)


def _broken(run: str, sequence: int) -> MaintenanceRequired:
    return MaintenanceRequired(
        f"the history of {run} is broken at event {sequence}",
        code="history-broken",
        check="hash-chain",
        facts={"run": run, "sequence": sequence},
        next_step="restore a backup, or keep the file for an investigation; do not write to it",
    )


def told(event: StoredEvent) -> HistoryEvent:
    """An event as people and programs are told it."""
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
