"""Transitions as a machine would make them, written by hand: the smallest honest author of a run.

`Author` keeps what a run's next transition needs (sequence, head, counts) and advances it only when
it is told that the last one was committed, so that a test can also lose one.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field, replace

import msgspec

from tallystick.core.facts import (
    Abandon,
    AnyFact,
    BeginDispatch,
    CountActivation,
    EndActivation,
    EndDispatch,
    InsertActivation,
    InsertAttempt,
    InsertTerms,
    MarkDoubt,
    NewRun,
    RequestTimeout,
    RunHeader,
    SetOutcome,
)
from tallystick.core.history import genesis, payload_digest, seal
from tallystick.core.identity import ActivationKey, Authority, dispatch_identity
from tallystick.core.messages import (
    ActivationReady,
    AnyEvent,
    AttemptAbandoned,
    AttemptPrepared,
    AttemptRedispatched,
    AttemptSettled,
    DispatchEnded,
    Intent,
    Payload,
    Recorded,
    RunAdmitted,
    RunClaimed,
    RunEnded,
    RunReleased,
    Terms,
)
from tallystick.store.protocol import Expected, Transition, UserStatement

DEFINITION_BODY = b'{"root":{"nodes":[]},"workflow":"flow"}'
DEFINITION = hashlib.sha256(DEFINITION_BODY).digest()
BINDINGS = b'{"steps":{}}'
TERMS_BODY = msgspec.json.encode(
    Terms(
        DEFINITION.hex(),
        "function",
        "1",
        "mutating",
        "call",
        1,
        ("unavailable",),
        1000,
        2.0,
        60000,
        5,
    ),
    order="sorted",
)
TERMS = hashlib.sha256(TERMS_BODY).digest()
RECEIPT = '{"kind":"function"}'


def payload_of(body: bytes, seed: int = 0) -> Payload:
    """A payload with a salt that depends on the seed alone."""
    salt = hashlib.sha256(seed.to_bytes(8, "big") + body).digest()[:16]
    return Payload(salt, body, payload_digest(salt, body))


def token(number: int) -> bytes:
    """16 bytes that look like a fencing token."""
    return number.to_bytes(16, "big")


@dataclass
class Author:
    """Writes the transitions of one run. Every verb returns one and expects `commit` to be told."""

    run: str
    key: str | None = None
    now: int = 1_700_000_000_000
    seed: int = 0
    workflow: str = "flow"
    deadline: int | None = None
    expected: Expected | None = None
    header: RunHeader | None = None
    authority: Authority | None = field(default_factory=lambda: Authority(1, token(1), "engine-1"))
    _next: tuple[Expected, RunHeader, Authority | None] | None = None
    _ids: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self._ids = random.Random(f"{self.run}/{self.seed}")
        if self.header is None:
            self.header = RunHeader(
                0, genesis(self.run), self.now, "running", None, None, 0, 0, 0, 0, False, None, None
            )

    @property
    def new_run(self) -> NewRun:
        request = hashlib.sha256(b"request" + self.workflow.encode()).digest()
        return NewRun(
            self.run,
            self.key,
            request,
            DEFINITION,
            self.workflow,
            1,
            BINDINGS,
            b"{}",
            self.now,
            self.deadline,
        )

    def make(
        self,
        events: list[Recorded | AnyEvent],
        facts: tuple[AnyFact, ...] = (),
        *,
        statements: tuple[UserStatement, ...] = (),
        authority: Authority | None = None,
        release: bool = False,
        **header: object,
    ) -> Transition:
        """One transition from where the run stands now."""
        assert self.header is not None
        identity = self._ids.getrandbits(62) + 1
        held = self.expected.sequence if self.expected else 0
        recorded = [e if isinstance(e, Recorded) else Recorded(e) for e in events]
        sealed = seal(recorded, head=self.header.head, sequence=held, transition=identity)
        self.now += 1
        moved = msgspec.structs.replace(
            self.header,
            sequence=held + len(sealed),
            head=sealed[-1].hash,
            last_at=self.now,
            **header,
        )
        new = self.expected is None
        if new:
            authority = authority or self.authority
        owner = None if release else authority or self.authority
        generation = (
            owner.generation if owner else (self.expected.generation if self.expected else 0)
        )
        self._next = (
            Expected(generation, owner.token if owner else None, moved.sequence),
            moved,
            owner,
        )
        return Transition(
            self.run,
            identity,
            self.expected,
            moved,
            sealed,
            facts,
            self.new_run if new else None,
            authority,
            release,
            statements,
        )

    def done(self) -> None:
        """The last transition was committed."""
        assert self._next is not None
        self.expected, self.header, self.authority = self._next
        self._next = None

    def committed(self, transition: Transition) -> None:
        """This transition was committed, whichever was made last."""
        held = self.expected or Expected(1, token(1), 0)
        self.header = transition.header
        self.expected = Expected(held.generation, held.token, transition.header.sequence)

    def copy(self) -> Author:
        """Another author who knows the same: a rival."""
        return replace(self, _ids=random.Random(self._ids.random()))

    # -- the life of a run

    def admit(self, body: bytes = b'{"n":1}') -> Transition:
        cited = payload_of(body, self.seed)
        event = RunAdmitted(
            at=self.now,
            definition=DEFINITION.hex(),
            payload=cited.digest,
            bindings="{}",
            limits="{}",
            semantics=1,
            key=self.key,
        )
        return self.make([Recorded(event, cited)])

    def begin(self, node: str, body: bytes = b'{"a":12}') -> Transition:
        """A ready activation, its attempt 1 prepared and accepted."""
        events, facts = self._begin(node, body, self._sequence)
        return self.make(events, facts, **self._opened())

    def settle(
        self, node: str, output: bytes = b'{"result":12345}', attempt: int = 1, **more: object
    ) -> Transition:
        """The attempt succeeded."""
        events, facts = self._settle(node, output, attempt, self._sequence)
        return self.make(events, facts, **(self._closed() | more))  # type: ignore[arg-type]

    def step(self, done: str, following: str) -> Transition:
        """What one sequential step costs: one settles, the next is prepared and accepted."""
        events, facts = self._settle(done, b'{"result":12345}', 1, self._sequence)
        begun, opened = self._begin(following, b'{"a":12}', self._sequence + len(events))
        assert self.header is not None
        return self.make([*events, *begun], (*facts, *opened), consumed=self.header.consumed + 1)

    def doubt(self, node: str) -> Transition:
        """The dispatch ended unknown and a person has to decide."""
        assert self.header is not None
        ended = DispatchEnded(at=self.now, node=node, attempt=1, dispatch=1, end="unknown")
        facts = (
            EndDispatch("unknown", None, False, False, node, "", 1),
            MarkDoubt("engine ended", node, "", 1),
        )
        return self.make([ended], facts, active=self.header.active - 1, status="in_doubt")

    def ended(self, node: str) -> Transition:
        """The timed-out dispatch ended unknown; the next is scheduled."""
        ended = DispatchEnded(
            at=self.now, node=node, attempt=1, dispatch=1, end="unknown", due=self.now
        )
        facts = (
            RequestTimeout(self.now, node, "", 1),
            EndDispatch("unknown", self.now, True, True, node, "", 1),
        )
        return self.make([ended], facts)

    def abandon(self, node: str) -> Transition:
        """The attempt never began and never can."""
        gone = AttemptAbandoned(at=self.now, node=node, attempt=1, end="precluded")
        facts = (Abandon(self.now, "precluded", node, "", 1),)
        return self.make([gone], facts, **self._closed())

    def redispatch(self, node: str, number: int = 2) -> Transition:
        """The dispatch ended unknown and the next one begins, in one transition."""
        ended = DispatchEnded(
            at=self.now, node=node, attempt=1, dispatch=number - 1, end="unknown", due=self.now
        )
        facts = (
            EndDispatch("unknown", self.now, True, False, node, "", 1),
            BeginDispatch(number, "memory", RECEIPT, node, "", 1),
        )
        again = AttemptRedispatched(
            at=self.now, node=node, attempt=1, dispatch=number, place="memory", accepted=True
        )
        return self.make([ended, again], facts)

    def end(self, body: bytes = b"null") -> Transition:
        """The run succeeded."""
        cited = payload_of(body, self.seed)
        event = RunEnded(at=self.now, status="succeeded", payload=cited.digest)
        return self.make([Recorded(event, cited)], status="succeeded", ended_at=self.now)

    def claim(self, authority: Authority) -> Transition:
        event = RunClaimed(at=self.now, generation=authority.generation, engine=authority.engine)
        return self.make([event], authority=authority)

    def release(self) -> Transition:
        assert self.expected is not None
        event = RunReleased(at=self.now, generation=self.expected.generation)
        return self.make([event], release=True)

    @property
    def _sequence(self) -> int:
        return self.expected.sequence if self.expected else 0

    def _opened(self) -> dict[str, int]:
        assert self.header is not None
        return {
            name: getattr(self.header, name) + 1 for name in ("consumed", "active", "open_attempts")
        }

    def _closed(self) -> dict[str, int]:
        assert self.header is not None
        return {name: getattr(self.header, name) - 1 for name in ("active", "open_attempts")}

    def _begin(
        self, node: str, body: bytes, sequence: int
    ) -> tuple[list[Recorded | AnyEvent], tuple[AnyFact, ...]]:
        cited = payload_of(body, self.seed)
        intent = msgspec.json.encode(
            Intent(self.run, node, 1, TERMS.hex(), cited.digest, "memory", self.now), order="sorted"
        )
        identity = dispatch_identity(self.run, ActivationKey(node), 1)
        events: list[Recorded | AnyEvent] = [
            Recorded(ActivationReady(at=self.now, node=node, payload=cited.digest), cited),
            AttemptPrepared(
                at=self.now,
                node=node,
                attempt=1,
                intent=hashlib.sha256(intent).hexdigest(),
                accepted=True,
            ),
        ]
        facts: tuple[AnyFact, ...] = (
            InsertTerms(TERMS, TERMS_BODY),
            InsertActivation(node, "", sequence + 1, None, None),
            InsertAttempt(node, "", 1, identity, intent, TERMS, "memory", RECEIPT),
            CountActivation(0, 0, 0, None, node, ""),
        )
        return events, facts

    def _settle(
        self, node: str, output: bytes, attempt: int, sequence: int
    ) -> tuple[list[Recorded | AnyEvent], tuple[AnyFact, ...]]:
        cited = payload_of(output, self.seed)
        event = AttemptSettled(
            at=self.now,
            node=node,
            attempt=attempt,
            dispatch=1,
            status="succeeded",
            payload=cited.digest,
        )
        facts: tuple[AnyFact, ...] = (
            SetOutcome("succeeded", None, self.now, sequence + 1, None, node, "", attempt),
            EndActivation("succeeded", sequence + 1, node, ""),
        )
        return [Recorded(event, cited)], facts
