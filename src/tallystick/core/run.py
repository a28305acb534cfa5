"""A run in memory: what is live, and what is counted.

The owner keeps one `Run` for each run it works on. It holds live activations only; of those that
ended it keeps the status (joins ask for it) and, while somebody still has to read it, the output.

A transition works on a *fork* (see `layered`): `evolution` applies events to the fork, and the fork
becomes the copy in memory once it is on disk.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec

from tallystick.core.definition import Limits
from tallystick.core.graph import Bound
from tallystick.core.history import genesis
from tallystick.core.identity import ActivationKey, Authority
from tallystick.core.layered import Layered, Map
from tallystick.core.messages import (
    RunEndKind,
    StopCause,
)
from tallystick.core.recovery import Earlier
from tallystick.core.schedule import Schedule


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """An open attempt.

    number, dispatch   both from 1
    end                how the current dispatch ended, or None: it is in flight
    end_salt, end_payload   what cites the report of that end, to recognise a repeat
    earlier            the worst known of the dispatches that ended
    failed             one of them ended in a failure, whatever came later
    doubt              why it is in doubt, or None
    permitted          its current (or next) dispatch is the one that a person permitted
    """

    number: int
    identity: bytes
    intent: str
    prepared_at: int
    place: str
    dispatch: int = 1
    receipt: bool = False
    timeout: bool = False
    end: str | None = None
    end_salt: bytes = b""
    end_payload: str | None = None
    earlier: Earlier = "nothing"
    failed: bool = False
    doubt: str | None = None
    permitted: bool = False

    @property
    def in_flight(self) -> bool:
        """Its dispatch is committed and not ended, and it is not in doubt."""
        return self.end is None and self.doubt is None


class Activation(msgspec.Struct, frozen=True, gc=False):
    """A live visit to a leaf.

    input, input_digest  the exact input, canonical JSON, and the salted digest that cites it
    attempts             number of the newest attempt, 0: none yet
    failures, interruptions, permissions   the counts of design §4.2
    last_failure         failure kind of the newest closed attempt
    """

    key: ActivationKey
    ready_sequence: int
    input: bytes
    input_digest: str
    attempts: int = 0
    failures: int = 0
    interruptions: int = 0
    permissions: int = 0
    attempt: Attempt | None = None
    last_failure: str | None = None


class Ended(msgspec.Struct, frozen=True, gc=False):
    """What a closed attempt leaves behind, to recognise a repeat of its intent or its report.

    status   the outcome, or `abandoned`
    payload  digest of output or failure, None where there is none
    """

    attempt: int
    dispatch: int
    intent: str
    status: str
    salt: bytes
    payload: str | None


class Run(msgspec.Struct):
    """See the module's text. Change it only through `fork` and `evolve`."""

    id: str
    bound: Bound
    limits: Limits
    head: bytes
    key: str | None = None
    input: bytes = b"null"
    input_value: Any = None
    admitted_at: int = 0
    deadline: int | None = None
    authority: Authority | None = None
    generation: int = 0
    sequence: int = 0
    last_at: int = 0
    barrier: bool = False
    stopping: StopCause | None = None
    stop_node: str = ""
    stop_payload: bytes | None = None
    failure: str | None = None
    ended: RunEndKind | None = None
    consumed: int = 0
    active: int = 0
    open_attempts: int = 0
    in_flight: int = 0
    doubts: int = 0
    live: Map[ActivationKey, Activation] = msgspec.field(default_factory=Layered)
    ready: Map[ActivationKey, bool] = msgspec.field(default_factory=Layered)
    due: Schedule = msgspec.field(default_factory=Schedule)
    done: Map[ActivationKey, str] = msgspec.field(default_factory=Layered)
    joins: Map[ActivationKey, int] = msgspec.field(default_factory=Layered)
    outputs: Map[str, bytes] = msgspec.field(default_factory=Layered)
    reads_left: Map[str, int] = msgspec.field(default_factory=Layered)
    settled: Map[ActivationKey, Ended] = msgspec.field(default_factory=Layered)

    @classmethod
    def new(cls, run: str, bound: Bound, limits: Limits) -> Run:
        """A run before its first event."""
        return cls(run, bound, limits, genesis(run))

    def fork(self) -> Run:
        """A draft of the next state. This run stays as it is until the draft is settled."""
        draft = copy.copy(self)
        draft.live = self.live.fork()
        draft.ready = self.ready.fork()
        draft.due = self.due.fork()
        draft.done = self.done.fork()
        draft.joins = self.joins.fork()
        draft.outputs = self.outputs.fork()
        draft.reads_left = self.reads_left.fork()
        draft.settled = self.settled.fork()
        return draft

    def settle(self) -> Run:
        """Make the draft the copy in memory. The run it was forked from must not be used again."""
        self.live = self.live.settle()
        self.ready = self.ready.settle()
        self.due = self.due.keep()
        self.done = self.done.settle()
        self.joins = self.joins.settle()
        self.outputs = self.outputs.settle()
        self.reads_left = self.reads_left.settle()
        self.settled = self.settled.settle()
        return self

    @property
    def stop(self) -> bool:
        """A cancel request or the deadline is recorded: nothing is dispatched again."""
        return self.stopping in ("cancel", "deadline")

    def due_at(self) -> int | None:
        """The earliest durable timer: a scheduled try, or the deadline. None: there is none."""
        if self.ended:
            return None
        first = None if self.stop else self.deadline
        scheduled = self.next_due()
        if first is None or scheduled is None:
            return scheduled if first is None else first
        return min(first, scheduled)

    def next_due(self) -> int | None:
        """When the next scheduled try may begin. None: none can.

        At a cap a new attempt has to wait for something else than its time.
        """
        if not len(self.due):
            return None
        if not at_attempts_cap(self) and not at_concurrency_cap(self):
            return next(self.due.in_order())[0]
        if not self.between:
            return None
        again = (due for due, key in self.due.in_order() if self.live[key].attempt is not None)
        return next(again, None)

    @property
    def between(self) -> int:
        """How many attempts are open, not in doubt and not in flight: between dispatches."""
        return self.active - self.in_flight

    def open_dispatches(self) -> Iterator[tuple[Activation, Attempt]]:
        """Everything in flight."""
        for activation in self.live.values():
            attempt = activation.attempt
            if attempt is not None and attempt.in_flight:
                yield activation, attempt

    def in_doubt(self) -> Iterator[tuple[Activation, Attempt]]:
        """Every attempt in doubt."""
        for activation in self.live.values():
            attempt = activation.attempt
            if attempt is not None and attempt.doubt is not None:
                yield activation, attempt


def at_attempts_cap(run: Run) -> bool:
    """No further attempt is allowed before somebody raises the limit."""
    return run.limits.attempts is not None and run.consumed >= run.limits.attempts


def at_concurrency_cap(run: Run) -> bool:
    """No further attempt is allowed before one closes or goes in doubt."""
    return run.limits.concurrency is not None and run.active >= run.limits.concurrency
