"""A client in memory that says what a test told it to, for tests of the command line.

It meets `tallystick.surfaces.cli.port`, the list of what the commands need of the real one.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tallystick.errors import NotFound
from tallystick.surfaces.cli.port import Started

RUN = "r_01ARZ3NDEKTSV4RRFFQ69G5FAV"
AT = 1_740_830_400_250


def line(**changes):
    """A run as a list shows it."""
    return {
        "number": 7,
        "run": RUN,
        "workflow": "orders",
        "key": "order-17",
        "status": "succeeded",
        "reason": None,
        "person": False,
        "admitted_at": AT,
        "ended_at": AT + 1_000,
    } | changes


def document(**changes):
    """A run with everything known of it."""
    return {
        **line(),
        "definition": "ab" * 32,
        "deadline": None,
        "owner": None,
        "generation": 1,
        "input": {"order": 17},
        "output": {"total": 12.5},
        "failure": None,
        "steps": [],
        "doubts": [],
    } | changes


def step(name="charge", **changes):
    """A visit to a step."""
    return {
        "step": name,
        "status": "succeeded",
        "effect": "mutating",
        "attempt": 1,
        "dispatch": 1,
        "due_at": None,
        "output": None,
        "failure": None,
    } | changes


def doubt(name="invoice", **changes):
    """An attempt that may have happened."""
    return {
        "step": name,
        "attempt": 1,
        "dispatch": 1,
        "effect": "mutating",
        "identity": "cd" * 32,
        "reason": "unknown",
        "detail": "its engine ended while it was in flight",
        "since": AT + 500,
    } | changes


def doubtful(*doubts, **changes):
    """A run that waits for a person because of these doubts."""
    return document(
        status="in_doubt",
        person=True,
        ended_at=None,
        output=None,
        doubts=list(doubts or (doubt(),)),
        steps=[step("invoice", status="in_doubt")],
        **changes,
    )


def event(kind, sequence=1, **fields):
    """An event as the client tells it."""
    return {
        "kind": kind,
        "run": RUN,
        "sequence": sequence,
        "position": sequence,
        "at": AT + sequence,
        "step": None,
        "payload": None,
    } | fields


@dataclass
class FakeTally:
    """An open database.

    settles  the runs that `settled` returns, one after another; the last one again and again.
             None stands for a run that goes on for ever
    raises   what any verb raises, by its name
    """

    path: str = ".tally/tally.db"
    created: bool = False
    started: bool = True
    run: dict = field(default_factory=document)
    settles: list = field(default_factory=list)
    events: list = field(default_factory=list)
    page: dict = field(default_factory=lambda: {"runs": [line()], "next": None})
    idles: dict | None = None
    raises: dict = field(default_factory=dict)
    calls: list = field(default_factory=list)

    def _called(self, verb, **arguments):
        self.calls.append((verb, arguments))
        if verb in self.raises:
            raise self.raises[verb]

    async def full_id(self, text):
        self._called("full_id", text=text)
        if not RUN.startswith(text):
            raise NotFound(f"no run begins with {text}", check="run", next_step="tally list")
        return RUN

    async def start(self, file, *, value, key, root):
        self._called("start", file=file, value=value, key=key, root=root)
        return Started(RUN, self.started, 0)

    async def show(self, run):
        self._called("show", run=run)
        return self.run

    async def list(self, **filters):
        self._called("list", **filters)
        return self.page

    async def history(self, run, *, after):
        self._called("history", run=run, after=after)
        for told in self.events:
            yield told

    async def follow(self, run, *, after):
        self._called("follow", run=run, after=after)
        for told in self.events:
            yield told
        if self.settles and self.settles[-1] is None:
            await asyncio.Event().wait()

    async def news(self, kinds, until):
        self._called("news", kinds=kinds)
        for told in self.events:
            if told["kind"] in kinds:
                yield told

    async def settled(self, run):
        self._called("settled", run=run)
        now = self.settles.pop(0) if len(self.settles) > 1 else (self.settles or [self.run])[0]
        if now is None:
            await asyncio.Event().wait()
        self.run = now
        return now

    async def resolve(self, run, step, outcome, *, output, reason):
        self._called("resolve", run=run, step=step, outcome=outcome, output=output, reason=reason)
        return self.run

    async def idle(self):
        self._called("idle")
        if self.idles is None:
            await asyncio.Event().wait()
        return self.idles

    async def stopped(self):
        self._called("stopped")
        await asyncio.Event().wait()

    async def stop(self, grace_ms):
        self._called("stop", grace_ms=grace_ms)


@dataclass
class FakeOpener:
    """How the commands reach the fake."""

    tally: FakeTally = field(default_factory=FakeTally)
    valid: dict | None = None
    opened: list = field(default_factory=list)

    @asynccontextmanager
    async def open(self, database, *, role, file=None):
        self.opened.append((database, role))
        self.tally._called("open")
        yield self.tally

    def validate(self, file, *, import_code, root):
        self.tally._called("validate", file=file, import_code=import_code, root=root)
        return self.valid
