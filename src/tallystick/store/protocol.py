"""What the engine asks of a store. Two databases meet this one contract and one suite.

A store writes *batches of transitions* and reads. It decides nothing: what is written was decided
in `core`, and what may be written is guarded by the run's authority and sequence, compared in the
same database transaction.

    guards    first, for every transition of the batch: the run's row moves from exactly the
              expected authority and sequence, a new run's key is free, the engine epoch is the
              expected one
    rows      then, for every transition: facts, events, payloads

If a guard or a statement of one transition fails, the whole database transaction is rolled back and
the batch is replayed one by one, so that each gets its own answer. Nothing is answered before the
fsync.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from tallystick.core.facts import AnyFact, NewRun, RunHeader
from tallystick.core.history import Sealed
from tallystick.core.identity import Authority
from tallystick.core.messages import Payload


class UserStatement(msgspec.Struct, frozen=True, gc=False):
    """A statement that a transactional function handed back. Runs under an authorizer.

    expect_rows  number of rows it must change; None: any
    """

    sql: str
    params: tuple[object, ...] = ()
    expect_rows: int | None = None


class Expected(msgspec.Struct, frozen=True, gc=False):
    """The guard of a run that exists: who may write it, and after which event. token None.

    Unclaimed.
    """

    generation: int
    token: bytes | None
    sequence: int


class Transition(msgspec.Struct, frozen=True, gc=False):
    """One committed step of a run. The unit of atomicity.

    id         random, positive, 63 bits, kept with each of its events
    expected   None only together with `new_run`
    authority  set where authority changes (claim, handoff, release with token b""); else None
    statements of a transactional settlement; a failure refuses this transition alone
    """

    run: str
    id: int
    expected: Expected | None
    header: RunHeader
    events: tuple[Sealed, ...]
    facts: tuple[AnyFact, ...] = ()
    new_run: NewRun | None = None
    authority: Authority | None = None
    release: bool = False
    statements: tuple[UserStatement, ...] = ()


class Committed(msgspec.Struct, frozen=True, gc=False):
    """It is on disk. position: store-wide number of its last event."""

    position: int


class AuthorityMoved(msgspec.Struct, frozen=True, gc=False):
    """The run's authority or sequence is not the expected one. Nothing of it was written."""

    seen: Expected | None


class KeyTaken(msgspec.Struct, frozen=True, gc=False):
    """The idempotency key belongs to another run. Nothing was written."""

    run: str
    request: bytes


class StatementRefused(msgspec.Struct, frozen=True, gc=False):
    """A user statement failed, was forbidden or touched other rows. Nothing was written.

    kind  `conflict` (rows, constraint) or `forbidden` (engine table, PRAGMA, ATTACH, transaction)
    """

    kind: Literal["conflict", "forbidden"]
    message: str


class EpochMoved(msgspec.Struct, frozen=True, gc=False):
    """Another engine epoch holds: the whole batch was refused and the engine must stop."""

    epoch: int


class RowRefused(msgspec.Struct, frozen=True, gc=False):
    """A guard of the schema refused a row: stored facts would contradict each other. Damage."""

    message: str


Answer: TypeAlias = (
    Committed | AuthorityMoved | KeyTaken | StatementRefused | EpochMoved | RowRefused
)


class StoredRun(msgspec.Struct, frozen=True, gc=False):
    """A run's row as read."""

    new: NewRun
    header: RunHeader
    generation: int
    token: bytes | None
    engine: str | None
    damaged: str | None = None


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """An event as read. payload None: it never had one, or it was deleted."""

    run: str
    position: int
    sequence: int
    transition: int
    envelope: bytes
    hash: bytes
    payload: Payload | None


class EngineRow(msgspec.Struct, frozen=True, gc=False):
    """One opening of the store by an engine. `ended` None: it has not said that it ended.

    lock_path, lock_device, lock_inode  the instance's own lock file, as recorded at its start
    ended       `drained`, or a JSON list of the identities still running
    """

    instance: str
    epoch: int
    build: str
    host: str
    boot: str
    pid: int
    started_at: int
    lock_path: str
    lock_device: int
    lock_inode: int
    ended: str | None = None
    ended_at: int | None = None


class RunFilter(msgspec.Struct, frozen=True, gc=False):
    """Which runs a list shows. All given conditions hold. None: any.

    before  run numbers below this (a page's last `number`), newest first
    """

    status: tuple[str, ...] | None = None
    workflow: str | None = None
    key: str | None = None
    before: int | None = None
    limit: int = 100


class ListedRun(msgspec.Struct, frozen=True, gc=False):
    """One line of a list. `number` is the store's own, rising with admission."""

    number: int
    stored: StoredRun


class RunCount(msgspec.Struct, frozen=True):
    """So many runs are in one state. engine: who owns them; None: nobody, or they have ended."""

    status: str
    reason: str | None
    engine: str | None
    damaged: bool
    count: int


AttemptKey: TypeAlias = tuple[str, str, int]
"""Node path, instance path, attempt number: the order in which attempts are listed."""

PENDING_MAX = 100
"""Open attempts in one page."""


class Store(Protocol):
    """An open store. All verbs raise `StoreUnavailable` when the database did not answer.

    After `StoreUnavailable` from `commit` the outcome is unknown: read each run again.
    Damage found while reading raises `MaintenanceRequired`.
    """

    store_id: str

    async def commit(self, batch: Sequence[Transition], *, epoch: int) -> list[Answer]:
        """Write a batch in one database transaction; one answer each, in order, after the fsync.

        `CapacityUnavailable(which="disk")` when the disk is full: nothing was written.
        """
        ...

    async def put_definition(self, digest: bytes, body: bytes, description: bytes) -> None:
        """Store a definition by digest; a repeat is a no-op. Durable when it returns."""
        ...

    async def definition(self, digest: bytes) -> bytes:
        """The canonical JSON of a definition. Raises `NotFound`."""
        ...

    async def terms(self, digest: bytes) -> bytes:
        """The canonical JSON of a terms row. Raises `NotFound`."""
        ...

    async def run(self, run: str) -> StoredRun:
        """A run's row. Raises `NotFound`."""
        ...

    async def listed(self, run: str) -> ListedRun:
        """A run's row with its number. Raises `NotFound`."""
        ...

    async def run_by_key(self, key: str) -> StoredRun | None:
        """The run that an idempotency key belongs to, or None."""
        ...

    async def runs(self, which: RunFilter) -> list[ListedRun]:
        """A page of runs, newest first."""
        ...

    async def find(self, beginning: str, *, limit: int) -> list[str]:
        """Ids that begin with this text, in their order."""
        ...

    async def counts(self) -> list[RunCount]:
        """How many runs are in each state."""
        ...

    async def halted(self, *, after: int, limit: int) -> list[ListedRun]:
        """Unfinished runs in doubt, waiting or damaged, by number, oldest first, above `after`."""
        ...

    async def unfinished(self, *, after: int, limit: int) -> list[ListedRun]:
        """Runs that have not ended, by number, oldest first, above `after`."""
        ...

    def events(self, run: str, *, after: int = 0) -> AsyncIterator[StoredEvent]:
        """A run's events in order, above sequence `after`, read in bounded pages."""
        ...

    async def position(self) -> int:
        """The number of the newest event of all runs; 0: there is none."""
        ...

    async def feed(self, *, after: int, limit: int) -> list[StoredEvent]:
        """Events of all runs above a position, in the order of their commits."""
        ...

    async def payload(self, run: str, sequence: int) -> Payload | None:
        """The payload that the event of this number cites, or None if there is none (any more)."""
        ...

    async def attempts(self, run: str) -> list[AttemptRow]:
        """All attempt rows of a run, in (node, instance, attempt) order."""
        ...

    async def pending(
        self, run: str, *, after: AttemptKey = ("", "", 0), limit: int = PENDING_MAX
    ) -> list[AttemptRow]:
        """Open attempts in (node, instance, attempt) order, those after `after`, a page of them.

        limit  at most `PENDING_MAX`. A scan from the beginning, page by page, leaves out none that
               was open when it began and still is. Writes nothing.
        """
        ...

    async def activations(self, run: str) -> list[ActivationRow]:
        """All activation rows of a run, in (node, instance) order."""
        ...

    async def epoch(self) -> int:
        """The present engine epoch, ≥ 1."""
        ...

    async def put_engine(self, row: EngineRow) -> None:
        """Record an engine's start, or its end (the row with the same instance).

        Guarded by epoch.
        """
        ...

    async def engine(self, instance: str) -> EngineRow | None:
        """The row of an engine instance, or None: it left no record."""
        ...

    async def close(self) -> None:
        """Finish what was submitted, checkpoint, close. A second call is a no-op."""
        ...


class AttemptRow(msgspec.Struct, frozen=True, gc=False):
    """An attempt as stored; see schema.sql for the columns."""

    node: str
    instance: str
    attempt: int
    identity: bytes
    intent: bytes
    terms: bytes
    dispatch: int
    place: str
    receipt: str | None
    timeout_at: int | None
    end: str | None
    due_at: int | None
    earlier_unknown: bool
    earlier_failed: bool
    doubt: str | None
    resolution: str | None
    outcome: str | None
    effect: str | None
    outcome_at: int | None
    outcome_sequence: int | None
    abandoned_at: int | None


class ActivationRow(msgspec.Struct, frozen=True, gc=False):
    """An activation as stored. status None: live."""

    node: str
    instance: str
    ready_sequence: int | None
    status: str | None
    end_sequence: int | None
    failures: int
    interruptions: int
    permissions: int
    due_at: int | None
