"""A deliberately different store: in memory, asynchronous, with two writers and no lock.

SQLite has one writer that holds a lock. Here two tasks take batches from one queue, build the next
state of the runs concerned on copies, wait in between, and publish only if nobody published
meanwhile; else they begin again. What the schema guards there are rules in Python here. That both
meet one contract says that the contract is about neither.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from tallystick.core import facts as f
from tallystick.core.facts import AnyFact, NewRun, RunHeader
from tallystick.core.messages import Intent, Payload
from tallystick.errors import AuthorityLost, Conflict, NotFound, StoreUnavailable
from tallystick.store import protocol as p
from tallystick.store.protocol import ActivationRow, Answer, AttemptRow, Transition

TERMINAL = {"succeeded", "failed", "cancelled"}


class Refused(Exception):
    """On its way to being an answer."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer


def demand(holds: bool, message: str) -> None:
    if not holds:
        raise Refused(p.RowRefused(message))


@dataclass
class Run:
    number: int
    new: NewRun
    header: RunHeader
    generation: int
    token: bytes | None
    engine: str | None
    events: tuple[p.StoredEvent, ...] = ()
    attempts: dict[tuple[str, str, int], AttemptRow] = field(default_factory=dict)
    activations: dict[tuple[str, str], ActivationRow] = field(default_factory=dict)

    def copy(self) -> Run:
        return replace(self, attempts=dict(self.attempts), activations=dict(self.activations))

    @property
    def expected(self) -> p.Expected:
        return p.Expected(self.generation, self.token, self.header.sequence)

    @property
    def takes_work(self) -> bool:
        header = self.header
        return not header.barrier and header.stopping != "cancel" and header.ended_at is None


@dataclass
class State:
    """What is durable. Never changed in place: a writer publishes another one."""

    runs: dict[str, Run] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    terms: dict[bytes, bytes] = field(default_factory=dict)
    definitions: dict[bytes, bytes] = field(default_factory=dict)
    engines: dict[str, p.EngineRow] = field(default_factory=dict)
    position: int = 0
    epoch: int = 1

    def copy(self) -> State:
        return State(
            dict(self.runs),
            dict(self.keys),
            dict(self.terms),
            dict(self.definitions),
            dict(self.engines),
            self.position,
            self.epoch,
        )


@dataclass
class Memory:
    """Where a store lives between two openings."""

    state: State = field(default_factory=State)
    store_id: str = "memory"

    async def open(self) -> MemoryStore:
        return MemoryStore(self)


class MemoryStore:
    """Meets `protocol.Store`."""

    def __init__(self, home: Memory) -> None:
        self.home = home
        self.store_id = home.store_id
        self._queue: asyncio.Queue[tuple[Any, Any, asyncio.Future[Any]] | None] = asyncio.Queue()
        self._writers = [asyncio.ensure_future(self._write()) for _ in range(2)]
        self.collisions = 0

    @property
    def _state(self) -> State:
        return self.home.state

    # Writing

    async def commit(self, batch: Sequence[Transition], *, epoch: int) -> list[Answer]:
        if all(writer.done() for writer in self._writers):
            raise StoreUnavailable("this store is closed")
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        await self._queue.put((batch, epoch, future))
        return await future

    async def _write(self) -> None:
        while (asked := await self._queue.get()) is not None:
            batch, epoch, future = asked
            while True:
                base = self._state
                answers, built = await self._built(base, batch, epoch)
                if base is self._state:
                    self.home.state = built
                    break
                self.collisions += 1
            future.set_result(answers)

    async def _built(
        self, base: State, batch: Sequence[Transition], epoch: int
    ) -> tuple[list[Answer], State]:
        if base.epoch != epoch:
            return [p.EpochMoved(base.epoch)] * len(batch), base
        state, answers = base.copy(), []
        for transition in batch:
            await asyncio.sleep(0)  # the other writer moves on
            tried = state.copy()
            try:
                _apply(tried, transition)
            except Refused as refused:
                answers.append(refused.answer)
            else:
                state = tried
                answers.append(p.Committed(state.position))
        return answers, state

    async def put_definition(self, digest: bytes, body: bytes, description: bytes) -> None:
        if self._state.definitions.setdefault(digest, body) != body:
            raise Conflict("this definition has other content")

    async def put_engine(self, row: p.EngineRow) -> None:
        if row.epoch != self._state.epoch:
            raise AuthorityLost("another epoch")
        there = self._state.engines.get(row.instance)
        if there is not None and there != row:
            begun = msgspec.structs.replace(row, ended=None, ended_at=None)
            if there != begun:
                raise Conflict("this engine is recorded otherwise")
        self._state.engines[row.instance] = row

    async def close(self) -> None:
        for writer in self._writers:
            if not writer.done():
                await self._queue.put(None)
        await asyncio.gather(*self._writers)

    # Reading

    async def definition(self, digest: bytes) -> bytes:
        return _found(self._state.definitions, digest)

    async def terms(self, digest: bytes) -> bytes:
        return _found(self._state.terms, digest)

    async def run(self, run: str) -> p.StoredRun:
        return _stored(_found(self._state.runs, run))

    async def listed(self, run: str) -> p.ListedRun:
        found = _found(self._state.runs, run)
        return p.ListedRun(found.number, _stored(found))

    async def find(self, beginning: str, *, limit: int) -> list[str]:
        return sorted(run for run in self._state.runs if run.startswith(beginning))[:limit]

    async def counts(self) -> list[p.RunCount]:
        states = Counter(
            (it.header.status, it.header.reason, None if it.header.ended_at else it.engine)
            for it in map(_stored, self._state.runs.values())
        )
        return [p.RunCount(*state, False, count) for state, count in states.items()]

    async def halted(self, *, after: int, limit: int) -> list[p.ListedRun]:
        unfinished = await self.unfinished(after=after, limit=2**31)
        return [r for r in unfinished if r.stored.header.status in ("in_doubt", "waiting")][:limit]

    async def position(self) -> int:
        return max((event.position for event in self._all_events()), default=0)

    async def feed(self, *, after: int, limit: int) -> list[p.StoredEvent]:
        found = [event for event in self._all_events() if event.position > after]
        return sorted(found, key=lambda event: event.position)[:limit]

    def _all_events(self) -> list[p.StoredEvent]:
        return [event for run in self._state.runs.values() for event in run.events]

    async def run_by_key(self, key: str) -> p.StoredRun | None:
        run = self._state.keys.get(key)
        return None if run is None else await self.run(run)

    async def runs(self, which: p.RunFilter) -> list[p.ListedRun]:
        found = [
            p.ListedRun(run.number, _stored(run))
            for run in self._state.runs.values()
            if (which.status is None or run.header.status in which.status)
            and which.workflow in {None, run.new.workflow}
            and which.key in {None, run.new.key}
            and (which.before is None or run.number < which.before)
        ]
        return sorted(found, key=lambda run: -run.number)[: which.limit]

    async def unfinished(self, *, after: int, limit: int) -> list[p.ListedRun]:
        found = await self.runs(p.RunFilter(limit=2**31))
        open_ = [r for r in found if r.stored.header.ended_at is None and r.number > after]
        return open_[::-1][:limit]

    async def events(self, run: str, *, after: int = 0) -> AsyncIterator[p.StoredEvent]:
        there = self._state.runs.get(run)
        for event in there.events[after:] if there else ():
            await asyncio.sleep(0)
            yield event

    async def payload(self, run: str, sequence: int) -> Payload | None:
        there = self._state.runs.get(run)
        if there is None or sequence > len(there.events):
            return None
        return there.events[sequence - 1].payload

    async def attempts(self, run: str) -> list[AttemptRow]:
        there = self._state.runs.get(run)
        return [row for _, row in sorted(there.attempts.items())] if there else []

    async def pending(
        self, run: str, *, after: p.AttemptKey = ("", "", 0), limit: int = p.PENDING_MAX
    ) -> list[AttemptRow]:
        rows = [
            row
            for row in await self.attempts(run)
            if row.outcome is None and row.abandoned_at is None
            if (row.node, row.instance, row.attempt) > after
        ]
        return rows[: max(1, min(limit, p.PENDING_MAX))]

    async def activations(self, run: str) -> list[ActivationRow]:
        there = self._state.runs.get(run)
        return [row for _, row in sorted(there.activations.items())] if there else []

    async def epoch(self) -> int:
        return self._state.epoch

    async def engine(self, instance: str) -> p.EngineRow | None:
        return self._state.engines.get(instance)


def _found(there: Any, key: Any) -> Any:
    if key not in there:
        raise NotFound(f"no {key!r}")
    return there[key]


def _stored(run: Run) -> p.StoredRun:
    return p.StoredRun(run.new, run.header, run.generation, run.token, run.engine)


# One transition


def _apply(state: State, transition: Transition) -> None:
    held = transition.expected
    run = state.runs.get(transition.run)
    if transition.new_run is not None and transition.new_run.key in state.keys:
        holder = state.runs[state.keys[transition.new_run.key]]
        raise Refused(p.KeyTaken(holder.new.run, holder.new.request))
    demand((held is None) == (transition.new_run is not None), "new runs expect nothing")
    _check_events(transition)
    if held != (run.expected if run else None):
        raise Refused(p.AuthorityMoved(run.expected if run else None))
    run = _admitted(state, transition) if run is None else _moved(run, transition)
    state.runs[transition.run] = run
    _check_header(run.header)
    for fact in transition.facts:
        _change(state, run, fact)
    for sealed in transition.events:
        state.position += 1
        event = p.StoredEvent(
            transition.run,
            state.position,
            sealed.sequence,
            transition.id,
            sealed.envelope,
            sealed.hash,
            sealed.payload,
        )
        run.events += (event,)


def _check_events(transition: Transition) -> None:
    held = transition.expected.sequence if transition.expected else 0
    numbers = [sealed.sequence for sealed in transition.events]
    wanted = list(range(held + 1, transition.header.sequence + 1))
    demand(bool(numbers) and numbers == wanted, "events leave a gap")
    demand(transition.events[-1].hash == transition.header.head, "another head")


def _admitted(state: State, transition: Transition) -> Run:
    new, owner = transition.new_run, transition.authority
    assert new is not None
    demand(new.definition in state.definitions, "no such definition")
    if new.key is not None:
        state.keys[new.key] = new.run
    authority = (owner.generation, owner.token, owner.engine) if owner else (0, None, None)
    return Run(len(state.runs) + 1, new, transition.header, *authority)


def _moved(run: Run, transition: Transition) -> Run:
    moved, before = run.copy(), run.header
    after = moved.header = transition.header
    if transition.release:
        moved.token = moved.engine = None
    elif transition.authority is not None:
        to = transition.authority
        demand(to.generation == run.generation + 1, "generations rise by one")
        demand(to.token != run.token, "a new generation has a new token")
        moved.generation, moved.token, moved.engine = to.generation, to.token, to.engine
    demand(after.last_at >= before.last_at, "time falls")
    demand(after.consumed >= before.consumed, "counts fall")
    if before.ended_at is not None:
        ended = (after.ended_at, after.status) == (before.ended_at, before.status)
        demand(ended, "an ended run stays ended")
    return moved


def _check_header(header: RunHeader) -> None:
    demand(0 <= header.active <= header.open_attempts <= header.consumed, "counts")
    demand(header.ready >= 0, "ready")
    demand((header.status in TERMINAL) == (header.ended_at is not None), "status and end")
    if header.ended_at is not None:
        demand(header.open_attempts == 0 and not header.barrier, "ended with open work")


# One fact


def _change(state: State, run: Run, fact: AnyFact) -> None:
    if isinstance(fact, f.InsertTerms):
        state.terms.setdefault(fact.digest, fact.body)
    elif isinstance(fact, f.InsertActivation | f.EndActivation | f.CountActivation):
        _change_activation(run, fact)
    elif isinstance(fact, f.InsertAttempt):
        _insert_attempt(state, run, fact)
    else:
        key = (fact.node, fact.instance, fact.attempt)
        demand(key in run.attempts, "no such attempt")
        row = run.attempts[key]
        run.attempts[key] = changed = msgspec.structs.replace(row, **_changes(run, row, fact))
        _check_attempt(row, changed)


def _change_activation(run: Run, fact: Any) -> None:
    key = (fact.node, fact.instance)
    row = run.activations.get(key)
    if isinstance(fact, f.InsertActivation):
        demand(row is None, "this activation exists")
        given = (fact.ready_sequence, fact.status, fact.end_sequence)
        run.activations[key] = ActivationRow(*key, *given, 0, 0, 0, None)
        return
    if row is None or row.status is not None:
        raise Refused(p.RowRefused("no such live activation"))
    if isinstance(fact, f.EndActivation):
        changes: dict[str, Any] = {"status": fact.status, "end_sequence": fact.end_sequence}
        changes["due_at"] = None
    else:
        names = ("failures", "interruptions", "permissions", "due_at")
        changes = {name: getattr(fact, name) for name in names}
    run.activations[key] = msgspec.structs.replace(row, **changes)


def _insert_attempt(state: State, run: Run, fact: f.InsertAttempt) -> None:
    key = (fact.node, fact.instance, fact.attempt)
    demand(key not in run.attempts, "this attempt exists")
    demand(fact.terms in state.terms, "no such terms")
    demand(run.takes_work, "this run takes no new attempt")
    try:
        said = msgspec.json.decode(fact.intent, type=Intent)
        bytes.fromhex(said.input)
    except (msgspec.MsgspecError, ValueError):
        raise Refused(p.RowRefused("an intent cannot be read")) from None
    beside = (run.new.run, fact.node, fact.instance, fact.attempt, fact.terms.hex(), fact.place)
    there = (said.run, said.node, said.instance, said.attempt, said.terms, said.place)
    demand(there == beside and len(said.input) == 64, "an intent differs from its row")
    demand(msgspec.json.encode(said, order="sorted") == fact.intent, "not canonical")
    current = (1, fact.place, fact.receipt, None, None, None, False, False, None, None)
    ended = (None, None, None, None, None)
    run.attempts[key] = AttemptRow(*key, fact.identity, fact.intent, fact.terms, *current, *ended)


def _changes(run: Run, row: AttemptRow, fact: Any) -> dict[str, Any]:
    """What a fact changes in its row, and what must hold before it does."""
    is_open = row.outcome is None and row.abandoned_at is None
    demand(is_open or isinstance(fact, f.SetResolution), "this attempt is closed")
    match fact:
        case f.AttachReceipt():
            return {"receipt": fact.receipt}
        case f.BeginDispatch():
            demand(fact.dispatch == row.dispatch + 1, "dispatches rise by one")
            demand(row.end is not None and run.takes_work, "no dispatch may follow")
            return {
                "dispatch": fact.dispatch,
                "place": fact.place,
                "receipt": fact.receipt,
                "timeout_at": None,
                "end": None,
                "due_at": None,
            }
        case f.EndDispatch():
            names = ("end", "due_at", "earlier_unknown", "earlier_failed")
            return {name: getattr(fact, name) for name in names}
        case f.RequestTimeout():
            return {"timeout_at": fact.timeout_at}
        case f.MarkDoubt():
            return {"doubt": fact.doubt}
        case f.SetResolution():
            return {"resolution": fact.resolution}
        case f.Abandon():
            return {"abandoned_at": fact.abandoned_at, "end": fact.end, "doubt": None}
        case f.SetOutcome():
            names = ("outcome", "effect", "outcome_at", "outcome_sequence")
            receipt = row.receipt if row.receipt is not None else fact.receipt
            return {n: getattr(fact, n) for n in names} | {"receipt": receipt, "doubt": None}
    raise AssertionError(fact)


def _check_attempt(before: AttemptRow, after: AttemptRow) -> None:
    """What must hold between a row and the next."""
    if before.dispatch == after.dispatch:
        for name in ("receipt", "timeout_at"):
            was = getattr(before, name)
            demand(was is None or was == getattr(after, name), f"{name} is written once")
        demand(before.end is None or after.end is not None, "an end stays")
        demand(after.earlier_unknown >= before.earlier_unknown, "unknown ends stay")
        demand(after.earlier_failed >= before.earlier_failed, "failed ends stay")
    if after.outcome is not None:
        demand(after.receipt is not None, "no outcome without a receipt")
        demand((after.effect is None) == (after.outcome == "succeeded"), "effect")
