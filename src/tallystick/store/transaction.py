"""Write a batch: guards first, then rows, one commit; and if anything is refused, one by one.

The fast way has no savepoints: if a guard or a row of any transition is refused, the whole database
transaction is rolled back. The batch is then replayed in a second one, each transition under a
savepoint, so that each gets its own answer and all that can be written still share one fsync.

    begin ─▶ epoch ─▶ guards ─▶ rows ─▶ user statements ─▶ commit ─▶ answers
               │         └─────────┴──────────┴─ refused ─▶ rollback ─▶ replay, one by one
               └─ another ─▶ rollback, everything refused

What runs here is driver-free: a `Session` is one connection in one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tallystick.errors import StoreUnavailable, TallyError
from tallystick.store.faults import Fault
from tallystick.store.plan import Blobs, Plan, Write, fault_of, plan
from tallystick.store.protocol import (
    Answer,
    AuthorityMoved,
    Committed,
    EpochMoved,
    Expected,
    KeyTaken,
    RowRefused,
    Transition,
    UserStatement,
)


class Refused(Exception):
    """The database refused a guard or a row. answer: None where the reason has to be looked up."""

    def __init__(self, answer: Answer | None = None) -> None:
        super().__init__(answer)
        self.answer = answer


class Snapshot(NamedTuple):
    """Where a transaction starts."""

    epoch: int
    position: int
    run_no: int


class Session(Protocol):
    """One connection that may write. Everything but `begin` happens inside its transaction.

    Every verb raises `TallyError` when the database itself failed.
    """

    @property
    def known_contents(self) -> AbstractSet[bytes]:
        """Digests of terms and bindings that are known to be stored."""
        ...

    def begin(self) -> Snapshot:
        """Begin to write and say where; waits a bounded time for another writer."""
        ...

    def apply(self, write: Write) -> int:
        """Run a statement for its rows and say how many changed. Raises `Refused`."""
        ...

    def run_user(self, statement: UserStatement) -> None:
        """Run a user's statement under the authorizer. Raises `Refused`."""
        ...

    def commit(self) -> None:
        """Make it durable. Raises `Refused` where a deferred constraint was violated."""
        ...

    def rollback(self) -> None:
        """Forget the transaction; without one, a no-op."""
        ...

    def set_savepoint(self) -> None:
        """Remember this point of the transaction."""
        ...

    def settle_savepoint(self, *, keep: bool) -> bool:
        """Keep or undo what happened since. False: the transaction itself is gone."""
        ...

    def check_deferred(self) -> None:
        """Raise `Refused` if a deferred constraint is violated now."""
        ...

    def number(self, run: str) -> int | None:
        """The number of a run, or None: it does not exist."""
        ...

    def expected(self, run: str) -> Expected | None:
        """What the guard of a run compares, or None: it does not exist."""
        ...

    def holder(self, key: str) -> tuple[str, bytes] | None:
        """The run that a key belongs to, and its request."""
        ...

    def remember(self, numbers: Mapping[str, int], contents: AbstractSet[bytes]) -> None:
        """Keep what a committed plan brought."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """What is to be written, and under which engine epoch."""

    transitions: Sequence[Transition]
    epoch: int
    blobs: Blobs


def write(session: Session, batch: Batch, fault: Fault) -> list[Answer]:
    """Write a batch and answer each transition, in order, after the fsync.

    Raises `TallyError` of the session, and `StoreUnavailable` for a fault that raised.
    """
    try:
        fault("commit.before-begin")
        try:
            return _together(session, batch, fault)
        except Refused:
            session.rollback()
        return _replay(session, batch, fault)
    except TallyError:
        session.rollback()
        raise
    except Exception as error:
        session.rollback()
        raise failed(error) from error


def failed(error: Exception) -> StoreUnavailable:
    """What callers see of an error that nobody expected, before a commit: nothing was written."""
    return StoreUnavailable(
        f"the store failed while writing: {error!r}",
        code="store-failed",
        check="commit",
        facts={"written": False},
    )


def _together(session: Session, batch: Batch, fault: Fault) -> list[Answer]:
    snapshot = session.begin()
    if snapshot.epoch != batch.epoch:
        return _epoch_moved(session, batch, snapshot)
    made = _planned(session, batch, snapshot)
    for guard in made.guards:
        _exactly(session, guard)
    _guard_fault(fault)
    fault("commit.after-guards")
    for rows in made.rows:
        _exactly(session, rows)
    for _, statement in made.statements:
        session.run_user(statement)
    fault("commit.after-rows")
    _commit(session, fault)
    session.remember(made.numbers, made.contents)
    return [Committed(position) for position in made.positions]


def _planned(session: Session, batch: Batch, snapshot: Snapshot) -> Plan:
    """The plan of the whole batch. Raises `Refused` if it has to go one by one."""
    numbers: dict[str, int] = {}
    seen: set[str] = set()
    for transition in batch.transitions:
        if transition.run in seen or fault_of(transition) is not None:
            raise Refused
        seen.add(transition.run)
        if transition.expected is not None:
            number = session.number(transition.run)
            if number is None:
                raise Refused
            numbers[transition.run] = number
    return _plan(session, batch.transitions, batch.blobs, numbers, snapshot)


def _plan(
    session: Session,
    transitions: Sequence[Transition],
    blobs: Blobs,
    numbers: Mapping[str, int],
    snapshot: Snapshot,
) -> Plan:
    try:
        return plan(
            transitions,
            numbers=numbers,
            position=snapshot.position,
            run_no=snapshot.run_no,
            known_contents=session.known_contents,
            blobs=blobs,
        )
    except ValueError as error:
        raise Refused(RowRefused(str(error))) from error


def _exactly(session: Session, write: Write) -> None:
    """Run a statement; each of its rows must have changed exactly one."""
    if session.apply(write) != len(write.rows):
        raise Refused(RowRefused(f"{write.statement}: a row that it changes is not there"))


def _guard_fault(fault: Fault) -> None:
    try:
        fault("commit.guard")
    except Exception as error:
        raise Refused from error


def _commit(session: Session, fault: Fault) -> None:
    fault("commit.before-commit")
    session.commit()
    try:
        fault("commit.after-commit")
    except Exception as error:
        raise commit_unknown() from error


def commit_unknown() -> StoreUnavailable:
    """A commit that reported a failure and may have succeeded."""
    return StoreUnavailable(
        "the commit reported a failure; it may have succeeded",
        code="commit-unknown",
        check="commit",
        next_step="read each run of the batch again before anything is done",
    )


def _epoch_moved(session: Session, batch: Batch, snapshot: Snapshot) -> list[Answer]:
    session.rollback()
    return [EpochMoved(snapshot.epoch)] * len(batch.transitions)


def _replay(session: Session, batch: Batch, fault: Fault) -> list[Answer]:
    """One by one, in one transaction. A transition that breaks that transaction is left out."""
    refused: dict[int, Answer] = {}
    while True:
        try:
            answers = _replayed(session, batch, fault, refused)
        except TransactionGone as gone:
            session.rollback()
            refused[gone.index] = gone.answer
        else:
            return answers


class TransactionGone(Exception):
    """A statement ended the whole transaction (`INSERT OR ROLLBACK`): begin again without it."""

    def __init__(self, index: int, answer: Answer) -> None:
        super().__init__(index)
        self.index, self.answer = index, answer


def _replayed(
    session: Session, batch: Batch, fault: Fault, refused: Mapping[int, Answer]
) -> list[Answer]:
    snapshot = session.begin()
    if snapshot.epoch != batch.epoch:
        return _epoch_moved(session, batch, snapshot)
    fault("commit.replay")
    answers: list[Answer] = []
    brought: list[Plan] = []
    numbers: dict[str, int] = {}
    for index, transition in enumerate(batch.transitions):
        answer = refused.get(index)
        if answer is None:
            made = _alone(session, transition, batch.blobs, numbers, snapshot, index)
            if isinstance(made, Plan):
                brought.append(made)
                numbers |= made.numbers
                newest = snapshot.run_no + (transition.new_run is not None)
                snapshot = Snapshot(snapshot.epoch, made.positions[-1], newest)
                answer = Committed(snapshot.position)
            else:
                answer = made
        answers.append(answer)
    if not brought:
        session.rollback()
        return answers
    _commit(session, fault)
    for made in brought:
        session.remember(made.numbers, made.contents)
    return answers


def _alone(
    session: Session,
    transition: Transition,
    blobs: Blobs,
    numbers: Mapping[str, int],
    snapshot: Snapshot,
    index: int,
) -> Plan | Answer:
    """Write one transition under a savepoint: its plan, or why it was refused."""
    if (malformed := fault_of(transition)) is not None:
        return RowRefused(malformed)
    if (refusal := _guard_refusal(session, transition)) is not None:
        return refusal
    session.set_savepoint()
    try:
        number = numbers.get(transition.run) or session.number(transition.run)
        made = _plan(session, [transition], blobs, {transition.run: number or 0}, snapshot)
        for rows in (*made.guards, *made.rows):
            _exactly(session, rows)
        for statement in transition.statements:
            session.run_user(statement)
        session.check_deferred()
    except Refused as error:
        answer = error.answer or RowRefused("refused without a reason")
        if not session.settle_savepoint(keep=False):
            raise TransactionGone(index, answer) from error
        return answer
    session.settle_savepoint(keep=True)
    return made


def _guard_refusal(session: Session, transition: Transition) -> Answer | None:
    """What the guards say, found by looking: key, authority, sequence."""
    seen = session.expected(transition.run)
    if transition.new_run is not None and transition.new_run.key is not None:
        holder = session.holder(transition.new_run.key)
        if holder is not None:
            return KeyTaken(*holder)
    if seen != transition.expected:
        return AuthorityMoved(seen)
    return None
