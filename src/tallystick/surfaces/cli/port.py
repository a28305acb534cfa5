"""What the commands need of the client, and the JSON documents that they pass on.

`--json` prints these documents as they are; pages for people are rendered from the same ones, so
that the two can never disagree. Instants are milliseconds since 1970. A field is always there; None
means that there is no such thing (yet).
"""

from __future__ import annotations

from asyncio import Event
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Literal, NamedTuple, Protocol, TypeAlias, TypedDict

from tallystick.core.values import Value

Outcome: TypeAlias = Literal["succeeded", "failed", "cancelled", "never_happened"]
Role: TypeAlias = Literal["client", "own", "engine"]
"""`client` dispatches nothing; `own` only the runs that it starts; `engine` everything."""

EventDocument: TypeAlias = Mapping[str, Value]
"""An event: its envelope (`kind`, `at` and the fields of that kind) with `run`, `sequence`,
`position`, `step` (the activation as people write it, or None), and `payload` (what it cites, as
JSON; None where there is none any more)."""


class Failure(TypedDict):
    """Why something did not succeed. `step` is absent for the run itself."""

    kind: str
    message: str


class Started(NamedTuple):
    """A run that exists. after: number of its newest event when it was found; 0 for a new one."""

    run: str
    created: bool
    after: int


class StepDocument(TypedDict):
    """A visit to a step.

    status   pending, ready, running, retry, in_doubt, succeeded, failed, cancelled, skipped,
             given_up
    attempt, dispatch  numbers of the newest; None: none yet
    effect   effect class in force · due_at: when it is tried again
    """

    step: str
    status: str
    effect: str | None
    attempt: int | None
    dispatch: int | None
    due_at: int | None
    output: Value
    failure: Failure | None


class DoubtDocument(TypedDict):
    """An attempt that may have happened: what a person needs to find out, and to decide.

    identity  the idempotency key that the outside saw (hex) · since: when it went in doubt
    reason    in a word · detail: in a sentence, or None
    """

    step: str
    attempt: int
    dispatch: int
    effect: str
    identity: str
    reason: str
    detail: str | None
    since: int


class RunLine(TypedDict):
    """A run as a list shows it. `person`: nothing moves before a person acts."""

    number: int
    run: str
    workflow: str
    key: str | None
    status: str
    reason: str | None
    person: bool
    admitted_at: int
    ended_at: int | None


class RunDocument(RunLine):
    """A run with everything that is known of it. definition: digest (hex)."""

    definition: str
    deadline: int | None
    owner: str | None
    generation: int
    input: Value
    output: Value
    failure: Failure | None
    steps: list[StepDocument]
    doubts: list[DoubtDocument]


class ListDocument(TypedDict):
    """A page of runs, newest first. next: `before` of the next page, None: this is the last."""

    runs: list[RunLine]
    next: int | None


class ProblemDocument(TypedDict):
    """One problem of a source; line and column from 1, 0: the source as a whole."""

    file: str
    line: int
    column: int
    code: str
    message: str
    remedy: str | None


class ValidDocument(TypedDict):
    """What `validate` found. workflow, digest None: there are problems. warnings do not refuse."""

    file: str
    valid: bool
    workflow: str | None
    digest: str | None
    steps: int
    problems: list[ProblemDocument]
    warnings: list[ProblemDocument]


class IdleDocument(TypedDict):
    """How many runs have each status, once nothing moves by itself. person: who wait for one."""

    statuses: dict[str, int]
    person: list[str]


class Tally(Protocol):
    """An open database. Every verb raises the errors of `tallystick.errors`.

    path     the database as opened · created: this opening made it
    """

    path: str
    created: bool

    async def full_id(self, text: str) -> str:
        """The run whose id is `text` or, alone among all, begins with it.

        `NotFound`; `InvalidRequest` with the candidates among the facts.
        """
        ...

    async def start(self, file: str, *, value: Value, key: str | None, root: str | None) -> Started:
        """Compile, admit, and return once the run is durable. A repeat by key: the same run.

        Raises `InvalidRequest` with all problems of the source among its facts.
        """
        ...

    async def show(self, run: str) -> RunDocument:
        """The run now."""
        ...

    async def list(
        self,
        *,
        status: tuple[str, ...],
        workflow: str | None,
        key: str | None,
        before: int | None,
        limit: int,
    ) -> ListDocument:
        """A page of runs, newest first; empty filters let everything pass."""
        ...

    def history(self, run: str, *, after: int) -> AsyncIterator[EventDocument]:
        """The run's events so far above sequence `after`, its hash chain checked on the way."""
        ...

    def follow(self, run: str, *, after: int) -> AsyncIterator[EventDocument]:
        """Events of one run above sequence `after` as they are committed, to its end."""
        ...

    def news(self, kinds: Collection[str], until: Event) -> AsyncIterator[EventDocument]:
        """Events of these kinds of every run since this opening; ends once `until` is set."""
        ...

    async def settled(self, run: str) -> RunDocument:
        """Return once the run has ended, or nothing of it moves before a person acts."""
        ...

    async def resolve(
        self, run: str, step: str, outcome: Outcome, *, output: bytes | None, reason: str
    ) -> RunDocument:
        """Record a person's decision. output: canonical JSON, with `succeeded` and only with it."""
        ...

    async def idle(self) -> IdleDocument:
        """Return once every run is terminal, in doubt or waiting for a person."""
        ...

    async def stopped(self) -> None:
        """Return or raise once the engine stopped by itself: why it did is the error."""
        ...

    async def stop(self, grace_ms: int) -> None:
        """Stop in order: no new dispatch, what ends within the grace has ended. Then close."""
        ...


class Opener(Protocol):
    """How the commands reach a database, and a compiler that needs none."""

    def open(
        self, database: str | None, *, role: Role, file: str | None = None
    ) -> AbstractAsyncContextManager[Tally]:
        """Open. None: `.tally/tally.db`. As `client` nothing is created: `NotFound` instead.

        file  a source that will be started: it is compiled before anything is opened or created
        """
        ...

    def validate(self, file: str, *, import_code: bool, root: str | None) -> ValidDocument:
        """Compile a source, and with `import_code` check it against the functions that it names."""
        ...
