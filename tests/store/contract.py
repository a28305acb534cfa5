"""What every store must do. A store is put under it by a class with a `home` fixture.

`home.open()` opens the store; opening again after closing shows what is durable. Nothing here knows
a database: PostgreSQL goes under it unchanged.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec
import pytest

from tallystick.core.facts import (
    Abandon,
    AnyFact,
    AttachReceipt,
    BeginDispatch,
    CountActivation,
    EndActivation,
    EndDispatch,
    InsertActivation,
    InsertAttempt,
    InsertTerms,
    MarkDoubt,
    RequestTimeout,
    SetOutcome,
    SetResolution,
)
from tallystick.core.history import verify
from tallystick.core.identity import Authority
from tallystick.core.messages import ActivationReady, AttemptPrepared, LateFactKept
from tallystick.errors import AuthorityLost, Conflict, NotFound
from tallystick.store.protocol import (
    PENDING_MAX,
    Answer,
    AuthorityMoved,
    Committed,
    EngineRow,
    EpochMoved,
    Expected,
    KeyTaken,
    RowRefused,
    RunFilter,
    Store,
    Transition,
)
from tests.store.flows import (
    DEFINITION,
    DEFINITION_BODY,
    RECEIPT,
    TERMS,
    TERMS_BODY,
    Author,
    payload_of,
    token,
)


class Home(Protocol):
    """Where a store lives between two openings."""

    async def open(self) -> Store: ...


ENGINE = EngineRow("engine-1", 1, "build", "host", "boot", 4711, 1_700_000_000_000, "/lock", 1, 2)


async def put(store: Store, author: Author, transition: Transition) -> None:
    """Commit a transition that must succeed."""
    (answer,) = await store.commit([transition], epoch=1)
    assert isinstance(answer, Committed), answer
    author.done()


async def started(store: Store, run: str = "run-1", **more: Any) -> Author:
    """A run with one open attempt of node `one`."""
    author = Author(run, **more)
    await put(store, author, author.admit())
    await put(store, author, author.begin("one"))
    return author


async def everything(store: Store, *runs: str) -> dict[str, object]:
    """All that a store says about some runs."""
    said: dict[str, object] = {}
    for run in runs:
        try:
            row = await store.run(run)
        except NotFound:
            said[run] = None
            continue
        events = [event async for event in store.events(run)]
        said[run] = (row, await store.attempts(run), await store.activations(run), events)
    return said


async def chain_verifies(store: Store, run: str) -> None:
    """The history is gapless and chained, and the run's row names its last event."""
    events = [event async for event in store.events(run)]
    head = verify(run, [(e.sequence, e.transition, e.envelope, e.hash) for e in events])
    header = (await store.run(run)).header
    assert (header.sequence, header.head) == (len(events), head)


class StoreContract:
    """The suite. Subclasses give the fixture `home`."""

    @pytest.fixture
    async def store(self, home: Home) -> Any:
        store = await home.open()
        await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
        yield store
        await store.close()

    # -- what was written is there

    async def test_a_run_reads_back_as_it_was_written(self, store: Store) -> None:
        author = Author("run-1", key="order-1", deadline=1_800_000_000_000)
        transition = author.admit(b'{"order":1}')
        await put(store, author, transition)
        row = await store.run("run-1")
        assert row.new == transition.new_run
        assert row.header == transition.header
        assert (row.generation, row.token, row.engine) == (1, token(1), "engine-1")
        (event,) = [event async for event in store.events("run-1")]
        (sealed,) = transition.events
        assert (event.sequence, event.envelope, event.hash) == (1, sealed.envelope, sealed.hash)
        assert event.transition == transition.id
        assert event.payload == sealed.payload == await store.payload("run-1", 1)
        assert await store.run_by_key("order-1") == row

    async def test_attempts_and_activations_read_back_as_they_were_written(
        self, store: Store
    ) -> None:
        author = await started(store)
        (attempt,) = await store.attempts("run-1")
        assert (attempt.node, attempt.instance, attempt.attempt, attempt.dispatch) == (
            "one",
            "",
            1,
            1,
        )
        assert (attempt.receipt, attempt.terms, attempt.place) == (RECEIPT, TERMS, "memory")
        assert attempt.outcome is attempt.end is attempt.doubt is attempt.abandoned_at is None
        assert await store.terms(TERMS) == TERMS_BODY
        (activation,) = await store.activations("run-1")
        assert (activation.ready_sequence, activation.status) == (2, None)
        await put(store, author, author.settle("one"))
        (attempt,) = await store.attempts("run-1")
        assert (attempt.outcome, attempt.outcome_sequence) == ("succeeded", 4)
        (activation,) = await store.activations("run-1")
        assert (activation.status, activation.end_sequence) == ("succeeded", 4)

    @pytest.mark.invariant("D1", "S6")
    async def test_what_was_acknowledged_is_there_after_reopening(self, home: Home) -> None:
        store = await home.open()
        await store.put_definition(DEFINITION, DEFINITION_BODY, b"{}")
        author = await started(store)
        await put(store, author, author.step("one", "two"))
        await put(store, author, author.settle("two", active=0, open_attempts=0))
        await put(store, author, author.end())
        before = await everything(store, "run-1")
        identity = store.store_id
        await store.close()
        store = await home.open()
        assert store.store_id == identity
        assert await everything(store, "run-1") == before
        await chain_verifies(store, "run-1")
        await store.close()

    @pytest.mark.invariant("M3", "H1")
    async def test_sequences_and_positions_have_no_gaps(self, store: Store) -> None:
        authors = [Author(f"run-{n}", seed=n) for n in range(5)]
        await store.commit([author.admit() for author in authors], epoch=1)
        for author in authors:
            author.done()
        for author in authors[:3]:
            await put(store, author, author.begin("one"))
        await store.commit([author.settle("one") for author in authors[:3]], epoch=1)
        positions = []
        for author in authors:
            events = [event async for event in store.events(author.run)]
            assert [event.sequence for event in events] == list(range(1, len(events) + 1))
            positions += [event.position for event in events]
        assert sorted(positions) == list(range(1, len(positions) + 1))

    async def test_an_answer_names_the_position_of_the_last_event(self, store: Store) -> None:
        first, second = Author("run-1"), Author("run-2")
        answers = await store.commit([first.admit(), second.admit()], epoch=1)
        assert answers == [Committed(1), Committed(2)]

    async def test_histories_are_read_in_order_from_where_one_asks(self, store: Store) -> None:
        author = await started(store)
        for number in range(120):
            here, there = ("one", "two") if number == 0 else (f"n{number}", f"n{number + 1}")
            await put(store, author, author.step(here, there if number else "n1"))
        events = [event.sequence async for event in store.events("run-1")]
        assert events == list(range(1, 364))
        assert [event.sequence async for event in store.events("run-1", after=360)] == [
            361,
            362,
            363,
        ]
        assert [event async for event in store.events("nobody")] == []
        await chain_verifies(store, "run-1")

    async def test_large_values_read_back_whole(self, store: Store) -> None:
        author = Author("run-1")
        body = msgspec.json.encode("x" * 200_000)
        await put(store, author, author.admit(body))
        payload = await store.payload("run-1", 1)
        assert payload == payload_of(body)
        assert [event.payload async for event in store.events("run-1")] == [payload]

    # -- the guards of a run

    @pytest.mark.parametrize(
        "wrong",
        [
            Expected(2, token(1), 3),
            Expected(0, token(1), 3),
            Expected(1, token(2), 3),
            Expected(1, None, 3),
            Expected(1, token(1), 2),
            Expected(1, token(1), 4),
        ],
        ids=["later", "earlier", "token", "unclaimed", "behind", "ahead"],
    )
    @pytest.mark.invariant("P6", "P11", "A3")
    async def test_another_authority_or_sequence_is_refused_and_changes_nothing(
        self, store: Store, wrong: Expected
    ) -> None:
        author = await started(store)
        right = author.expected
        before = await everything(store, "run-1")
        author.expected = wrong
        transition = author.settle("one")
        assert await store.commit([transition], epoch=1) == [AuthorityMoved(right)]
        assert await everything(store, "run-1") == before

    @pytest.mark.invariant("P6")
    async def test_an_unclaimed_run_is_written_by_its_claim_only(self, store: Store) -> None:
        author = Author("run-1", authority=None)
        await put(store, author, author.admit())
        assert (await store.run("run-1")).token is None
        author.expected = Expected(1, token(1), 1)
        assert await store.commit([author.begin("one")], epoch=1) == [
            AuthorityMoved(Expected(0, None, 1))
        ]
        author.expected = Expected(0, None, 1)
        await put(store, author, author.claim(Authority(1, token(7), "engine-2")))
        row = await store.run("run-1")
        assert (row.generation, row.token, row.engine) == (1, token(7), "engine-2")
        await put(store, author, author.begin("one"))

    @pytest.mark.invariant("A1", "A2", "A3", "A10")
    async def test_release_keeps_the_generation_and_the_next_claim_raises_it(
        self, store: Store
    ) -> None:
        author = Author("run-1")
        await put(store, author, author.admit())
        former = author.copy()
        await put(store, author, author.release())
        row = await store.run("run-1")
        assert (row.generation, row.token, row.engine) == (1, None, None)
        assert isinstance((await store.commit([former.begin("one")], epoch=1))[0], AuthorityMoved)
        await put(store, author, author.claim(Authority(2, token(2), "engine-2")))
        assert (await store.run("run-1")).generation == 2

    @pytest.mark.parametrize(
        "authority",
        [Authority(1, token(2), "e"), Authority(3, token(2), "e"), Authority(2, token(1), "e")],
        ids=["same generation", "two further", "same token"],
    )
    @pytest.mark.invariant("A2")
    async def test_authority_moves_by_one_generation_and_a_new_token(
        self, store: Store, authority: Authority
    ) -> None:
        author = Author("run-1")
        await put(store, author, author.admit())
        before = await everything(store, "run-1")
        (answer,) = await store.commit([author.claim(authority)], epoch=1)
        assert isinstance(answer, RowRefused)
        assert await everything(store, "run-1") == before

    @pytest.mark.invariant("P12")
    async def test_of_two_concurrent_transitions_from_one_state_exactly_one_is_written(
        self, store: Store
    ) -> None:
        author = await started(store)
        rival = author.copy()
        answers = await asyncio.gather(
            store.commit([author.settle("one")], epoch=1),
            store.commit([rival.settle("one", b'"other"')], epoch=1),
        )
        kinds = sorted(type(answer).__name__ for (answer,) in answers)
        assert kinds == ["AuthorityMoved", "Committed"]
        await chain_verifies(store, "run-1")

    @pytest.mark.invariant("P12", "X2")
    async def test_of_many_starts_with_one_key_exactly_one_makes_a_run(self, store: Store) -> None:
        authors = [Author(f"run-{n}", key="order-1") for n in range(20)]
        transitions = [author.admit() for author in authors]
        answers = await asyncio.gather(
            *(store.commit([transition], epoch=1) for transition in transitions)
        )
        won = [n for n, (answer,) in enumerate(answers) if isinstance(answer, Committed)]
        assert len(won) == 1
        taken = KeyTaken(f"run-{won[0]}", authors[0].new_run.request)
        assert [a for (a,) in answers if not isinstance(a, Committed)] == [taken] * 19
        assert [listed.stored.new.run for listed in await store.runs(RunFilter())] == [
            f"run-{won[0]}"
        ]

    async def test_keys_in_one_batch_are_taken_in_order(self, store: Store) -> None:
        first, second = Author("run-1", key="k"), Author("run-2", key="k", workflow="other")
        third = Author("run-3", key="l")
        batch = [first.admit(), second.admit(), third.admit()]
        assert await store.commit(batch, epoch=1) == [
            Committed(1),
            KeyTaken("run-1", first.new_run.request),
            Committed(2),
        ]

    async def test_a_run_is_made_once(self, store: Store) -> None:
        author = Author("run-1")
        await put(store, author, author.admit())
        again = Author("run-1", seed=9)
        assert await store.commit([again.admit()], epoch=1) == [AuthorityMoved(author.expected)]
        nobody = Author("nobody", expected=Expected(1, token(1), 0))
        assert await store.commit([nobody.begin("one")], epoch=1) == [AuthorityMoved(None)]

    # -- batches

    @pytest.mark.invariant("P11")
    async def test_a_refused_transition_takes_nobody_with_it(self, store: Store) -> None:
        authors = [await started(store, f"run-{n}", seed=n) for n in range(5)]
        authors[1].expected = Expected(1, token(9), 3)
        batch = [author.settle("one") for author in authors]
        batch[3] = authors[3].make(
            [LateFactKept(at=authors[3].now, node="none", attempt=1, dispatch=1, status="failed")],
            (AttachReceipt("{}", "none", "", 1),),
        )
        answers = await store.commit(batch, epoch=1)
        kinds = [type(answer).__name__ for answer in answers]
        assert kinds == ["Committed", "AuthorityMoved", "Committed", "RowRefused", "Committed"]
        for number, author in enumerate(authors):
            header = (await store.run(author.run)).header
            assert header.sequence == (3 if number in (1, 3) else 4)
            await chain_verifies(store, author.run)
        positions = [answer.position for answer in answers if isinstance(answer, Committed)]
        assert positions == [16, 17, 18]

    async def test_two_transitions_of_one_run_in_a_batch_are_written_in_order(
        self, store: Store
    ) -> None:
        author = Author("run-1")
        first = author.admit()
        author.done()
        second = author.begin("one")
        author.done()
        third = author.settle("one")
        author.done()
        answers = await store.commit([first, second, third], epoch=1)
        assert answers == [Committed(1), Committed(3), Committed(4)]
        await chain_verifies(store, "run-1")

    @pytest.mark.invariant("A3")
    async def test_another_epoch_refuses_the_whole_batch(self, store: Store) -> None:
        first, second = Author("run-1"), Author("run-2")
        batch = [first.admit(), second.admit()]
        assert await store.commit(batch, epoch=2) == [EpochMoved(1), EpochMoved(1)]
        assert await store.runs(RunFilter()) == []
        assert await store.epoch() == 1

    async def test_an_empty_batch_is_answered_with_nothing(self, store: Store) -> None:
        assert await store.commit([], epoch=1) == []

    @pytest.mark.invariant("S10")
    async def test_open_attempts_are_listed_in_bounded_ordered_pages(self, store: Store) -> None:
        """One that closes between two pages is not missed by the scan, and none is told twice."""
        author = Author("run-1")
        await put(store, author, author.admit())
        names = [f"n{number:03}" for number in range(PENDING_MAX + 50)]
        for name in names:
            await put(store, author, author.begin(name))
        before = await everything(store, "run-1")
        first = await store.pending("run-1", limit=10_000)
        assert [row.node for row in first] == names[:PENDING_MAX]
        assert await everything(store, "run-1") == before
        await put(store, author, author.settle(names[0]))
        last = first[-1]
        rest = await store.pending("run-1", after=(last.node, last.instance, last.attempt))
        assert [row.node for row in rest] == names[PENDING_MAX:]
        assert [row.node for row in await store.pending("run-1", limit=3)] == names[1:4]
        assert await store.pending("nobody") == []

    @pytest.mark.invariant("A8")
    async def test_authority_that_moved_while_a_write_waited_refuses_that_write(
        self, store: Store
    ) -> None:
        """Both are in one batch: the second was decided under what the first gives away."""
        author = await started(store)
        stale = author.settle("one")
        moved = author.claim(Authority(2, token(2), "engine-2"))
        answers = await store.commit([moved, stale], epoch=1)
        assert isinstance(answers[0], Committed)
        assert isinstance(answers[1], AuthorityMoved)
        assert await store.pending("run-1") != []

    async def test_a_batch_may_be_larger_than_any_statement(self, store: Store) -> None:
        authors = [Author(f"run-{n:03}", seed=n) for n in range(300)]
        answers = await store.commit([author.admit() for author in authors], epoch=1)
        assert answers == [Committed(n) for n in range(1, 301)]
        for author in authors:
            author.done()
        answers = await store.commit([author.begin("one") for author in authors], epoch=1)
        assert answers == [Committed(n) for n in range(302, 901, 2)]
        await chain_verifies(store, "run-299")

    @pytest.mark.parametrize("fault", ["gap", "head", "no events", "header"])
    @pytest.mark.invariant("M3")
    async def test_a_transition_that_does_not_fit_together_is_refused(
        self, store: Store, fault: str
    ) -> None:
        author = await started(store)
        good = author.settle("one")
        header = good.header
        bad = {
            "gap": {"events": (msgspec.structs.replace(good.events[0], sequence=6),)},
            "head": {"header": msgspec.structs.replace(header, head=bytes(32))},
            "no events": {"events": ()},
            "header": {"header": msgspec.structs.replace(header, sequence=9)},
        }[fault]
        before = await everything(store, "run-1")
        (answer,) = await store.commit([msgspec.structs.replace(good, **bad)], epoch=1)
        assert isinstance(answer, RowRefused)
        assert await everything(store, "run-1") == before
        await put(store, author, good)

    # -- facts

    async def test_facts_are_written_in_the_order_given(self, store: Store) -> None:
        author = await started(store)
        await put(store, author, author.redispatch("one"))
        (row,) = await store.attempts("run-1")
        assert (row.dispatch, row.end, row.due_at, row.earlier_unknown) == (2, None, None, True)
        against = (
            EndDispatch("unknown", 5, True, False, "one", "", 1),
            BeginDispatch(3, "elsewhere", None, "one", "", 1),
            RequestTimeout(7, "one", "", 1),
            EndDispatch("failed", 9, True, True, "one", "", 1),
            BeginDispatch(4, "memory", None, "one", "", 1),
            AttachReceipt("late", "one", "", 1),
        )
        await put(store, author, author.make([_late("one")], against))
        (row,) = await store.attempts("run-1")
        assert (row.dispatch, row.place, row.receipt, row.timeout_at) == (4, "memory", "late", None)
        assert (row.earlier_unknown, row.earlier_failed) == (True, True)

    async def test_every_fact_changes_what_it_names(self, store: Store) -> None:
        author = await started(store)
        await put(store, author, author.step("one", "two"))
        facts: tuple[AnyFact, ...] = (
            InsertActivation("skipped", "", None, "skipped", 7),
            CountActivation(1, 1, 1, 99, "two", ""),
            RequestTimeout(50, "two", "", 1),
            EndDispatch("unknown", None, False, True, "two", "", 1),
            MarkDoubt("why", "two", "", 1),
            SetResolution('{"decision":"failed"}', "two", "", 1),
        )
        await put(store, author, author.make([_late("two")], facts))
        row = (await store.attempts("run-1"))[1]
        assert (row.timeout_at, row.end, row.earlier_failed) == (50, "unknown", True)
        assert (row.doubt, row.resolution) == ("why", '{"decision":"failed"}')
        skipped, two = (await store.activations("run-1"))[1:]
        assert (skipped.status, skipped.end_sequence) == ("skipped", 7)
        assert (two.failures, two.interruptions, two.permissions) == (1, 1, 1)
        assert two.due_at == 99
        ended = (
            SetOutcome("failed", "possible", 60, 8, "unused", "two", "", 1),
            EndActivation("failed", 8, "two", ""),
        )
        await put(store, author, author.make([_late("two")], ended))
        row = (await store.attempts("run-1"))[1]
        assert (row.outcome, row.effect, row.doubt, row.receipt) == (
            "failed",
            "possible",
            None,
            RECEIPT,
        )
        two = (await store.activations("run-1"))[2]
        assert (two.status, two.due_at) == ("failed", None)

    async def test_an_abandoned_attempt_says_how_it_ended(self, store: Store) -> None:
        author = Author("run-1")
        await put(store, author, author.admit())
        begin = author.begin("one")
        facts = tuple(
            msgspec.structs.replace(fact, receipt=None) if isinstance(fact, InsertAttempt) else fact
            for fact in begin.facts
        )
        await put(store, author, msgspec.structs.replace(begin, facts=facts))
        gone = (Abandon(70, "given_up", "one", "", 1),)
        await put(store, author, author.make([_late("one")], gone, active=0, open_attempts=0))
        (row,) = await store.attempts("run-1")
        assert (row.abandoned_at, row.end, row.outcome, row.receipt) == (70, "given_up", None, None)

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            pytest.param(
                (SetOutcome("succeeded", None, 5, 4, None, "one", "", 1),),
                (SetOutcome("failed", "none", 6, 5, None, "one", "", 1),),
                id="outcome after outcome",
            ),
            pytest.param(
                (SetOutcome("succeeded", None, 5, 4, None, "one", "", 1),),
                (Abandon(6, "precluded", "one", "", 1),),
                id="abandonment after outcome",
            ),
            pytest.param(
                (Abandon(6, "precluded", "one", "", 1),),
                (SetOutcome("failed", "none", 6, 5, None, "one", "", 1),),
                id="outcome after abandonment",
            ),
            pytest.param((), (AttachReceipt("other", "one", "", 1),), id="second receipt"),
            pytest.param(
                (RequestTimeout(5, "one", "", 1),),
                (RequestTimeout(6, "one", "", 1),),
                id="second timeout",
            ),
            pytest.param((), (BeginDispatch(2, "p", None, "one", "", 1),), id="dispatch not ended"),
            pytest.param(
                (EndDispatch("unknown", 5, True, False, "one", "", 1),),
                (BeginDispatch(3, "p", None, "one", "", 1),),
                id="dispatch skips a number",
            ),
            pytest.param(
                (EndDispatch("unknown", 5, True, False, "one", "", 1),),
                (BeginDispatch(1, "p", None, "one", "", 1),),
                id="dispatch falls",
            ),
            pytest.param(
                (EndActivation("succeeded", 4, "one", ""),),
                (EndActivation("failed", 5, "one", ""),),
                id="activation ends twice",
            ),
            pytest.param(
                (EndActivation("succeeded", 4, "one", ""),),
                (CountActivation(0, 1, 0, None, "one", ""),),
                id="ended activation counts",
            ),
            pytest.param((), (InsertActivation("one", "", 4, None, None),), id="same activation"),
            pytest.param((), (MarkDoubt("why", "two", "", 1),), id="no such attempt"),
            pytest.param((), (EndActivation("failed", 4, "two", ""),), id="no such activation"),
            pytest.param(
                (), (SetOutcome("failed", None, 6, 5, None, "one", "", 1),), id="no effect named"
            ),
            pytest.param(
                (),
                (InsertAttempt("one", "", 1, bytes(32), b"{}", TERMS, "p", None),),
                id="same attempt",
            ),
            pytest.param(
                (),
                (InsertAttempt("one", "", 2, bytes(32), b"{}", bytes(32), "p", None),),
                id="unknown terms",
            ),
        ],
    )
    @pytest.mark.invariant("I5", "I6", "P3", "P11", "S3")
    async def test_facts_that_contradict_what_is_stored_are_refused(
        self, store: Store, first: tuple[AnyFact, ...], second: tuple[AnyFact, ...]
    ) -> None:
        author = await started(store)
        if first:
            await put(store, author, author.make([_late("one")], first))
        before = await everything(store, "run-1")
        (answer,) = await store.commit([author.make([_late("one")], second)], epoch=1)
        assert isinstance(answer, RowRefused), answer
        assert await everything(store, "run-1") == before

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (b'"node":"two"', b'"node":"too"'),
            (b'"attempt":1', b'"attempt":2'),
            (b'"place":"memory"', b'"place":"other"'),
            (b'"run":"run-1"', b'"run":"run-2"'),
            (b'"terms":"', b'"terms":"0'),
            (b'"input":"', b'"input":"0'),
            (b'"input":"', b'"input":"zz'),
            (b'"node":"two"', b'"node": "two"'),
            (b'"node":"two"', b'"node":"two","surplus":1'),
            (b'{"attempt":1,', b"{"),
            (b"{", b""),
            (b"two", b"tw\xff"),
        ],
        ids=lambda part: part.decode("latin-1"),
    )
    @pytest.mark.invariant("I5", "I7", "P3")
    async def test_an_intent_that_differs_from_its_row_is_refused(
        self, store: Store, old: bytes, new: bytes
    ) -> None:
        author = await started(store)
        good = author.step("one", "two")
        facts = tuple(
            msgspec.structs.replace(fact, intent=fact.intent.replace(old, new))
            if isinstance(fact, InsertAttempt)
            else fact
            for fact in good.facts
        )
        assert facts != good.facts
        before = await everything(store, "run-1")
        (answer,) = await store.commit([msgspec.structs.replace(good, facts=facts)], epoch=1)
        assert isinstance(answer, RowRefused)
        assert await everything(store, "run-1") == before
        await put(store, author, good)

    @pytest.mark.invariant("I5")
    async def test_an_intent_reads_back_byte_for_byte_wherever_later_dispatches_went(
        self, store: Store
    ) -> None:
        author = await started(store)
        (row,) = await store.attempts("run-1")
        for number, place in ((2, "elsewhere"), (3, "memory"), (4, "third"), (5, "third")):
            facts = (_ended_unknown(), BeginDispatch(number, place, None, "one", "", 1))
            await put(store, author, author.make([_late("one")], facts))
            (now,) = await store.attempts("run-1")
            assert (now.intent, now.place, now.dispatch) == (row.intent, place, number)

    @pytest.mark.invariant("I6")
    async def test_no_outcome_without_a_receipt(self, store: Store) -> None:
        author = Author("run-1")
        await put(store, author, author.admit())
        begin = author.begin("one")
        facts = tuple(
            msgspec.structs.replace(fact, receipt=None) if isinstance(fact, InsertAttempt) else fact
            for fact in begin.facts
        )
        await put(store, author, msgspec.structs.replace(begin, facts=facts))
        (answer,) = await store.commit([author.settle("one")], epoch=1)
        assert isinstance(answer, RowRefused)
        observed = (SetOutcome("succeeded", None, 5, 4, '{"kind":"observed"}', "one", "", 1),)
        await put(store, author, author.make([_late("one")], observed))
        assert (await store.attempts("run-1"))[0].receipt == '{"kind":"observed"}'

    @pytest.mark.parametrize("closed", ["barrier", "cancel", "ended"])
    async def test_nothing_new_under_a_barrier_after_a_cancel_or_after_the_end(
        self, store: Store, closed: str
    ) -> None:
        author = await started(store)
        await put(store, author, author.make([_late("one")], (_ended_unknown(),)))
        state = {
            "barrier": {"barrier": True},
            "cancel": {"stopping": "cancel"},
            "ended": {"status": "failed", "ended_at": 9, "open_attempts": 0, "active": 0},
        }[closed]
        await put(store, author, author.make([_late("one")], **state))
        for facts in ((_attempt(author, "two"),), (BeginDispatch(2, "p", None, "one", "", 1),)):
            before = await everything(store, "run-1")
            terms = (InsertTerms(TERMS, TERMS_BODY),)
            (answer,) = await store.commit([author.make([_late("one")], terms + facts)], epoch=1)
            assert isinstance(answer, RowRefused)
            assert await everything(store, "run-1") == before

    async def test_the_transition_that_drops_the_barrier_may_dispatch(self, store: Store) -> None:
        author = await started(store)
        ended = (_ended_unknown(),)
        await put(store, author, author.make([_late("one")], ended, barrier=True))
        again = (BeginDispatch(2, "memory", None, "one", "", 1),)
        await put(store, author, author.make([_late("one")], again, barrier=False))

    @pytest.mark.parametrize(
        "header",
        [
            {"active": -1},
            {"active": 2},
            {"open_attempts": 5, "active": 1},
            {"consumed": 0, "active": 0, "open_attempts": 0},
            {"ended_at": 5},
            {"status": "succeeded"},
            {"status": "succeeded", "ended_at": 5},
            {"last_at": 5},
            {"ready": -1},
        ],
        ids=lambda header: " ".join(f"{k}={v}" for k, v in header.items()),
    )
    @pytest.mark.invariant("S5", "P10", "G10")
    async def test_headers_that_contradict_themselves_are_refused(
        self, store: Store, header: dict[str, object]
    ) -> None:
        author = await started(store)
        before = await everything(store, "run-1")
        late = author.make([_late("one")])
        changed = msgspec.structs.replace(
            late, header=msgspec.structs.replace(late.header, **header)
        )
        (answer,) = await store.commit([changed], epoch=1)
        assert isinstance(answer, RowRefused)
        assert await everything(store, "run-1") == before

    @pytest.mark.invariant("G12")
    async def test_an_ended_run_stays_ended(self, store: Store) -> None:
        author = await started(store)
        await put(store, author, author.settle("one"))
        await put(store, author, author.end())
        for change in ({"ended_at": None, "status": "running"}, {"status": "failed"}):
            (answer,) = await store.commit([author.make([_late("one")], **change)], epoch=1)
            assert isinstance(answer, RowRefused)

    # -- the rest

    async def test_runs_are_listed_newest_first_by_what_is_asked(self, store: Store) -> None:
        for number in range(6):
            author = Author(
                f"run-{number}", key=f"k{number}", workflow="ab"[number % 2], seed=number
            )
            await put(store, author, author.admit())
            if number < 2:
                await put(store, author, author.end())

        async def listed(**which: Any) -> list[str]:
            return [run.stored.new.run for run in await store.runs(RunFilter(**which))]

        assert await listed() == [f"run-{n}" for n in (5, 4, 3, 2, 1, 0)]
        assert await listed(workflow="a") == ["run-4", "run-2", "run-0"]
        assert await listed(status=("succeeded",)) == ["run-1", "run-0"]
        assert await listed(status=("succeeded", "running"), limit=2) == ["run-5", "run-4"]
        assert await listed(status=()) == []
        assert await listed(key="k3") == ["run-3"]
        page = await store.runs(RunFilter(limit=2))
        assert await listed(before=page[-1].number, limit=2) == ["run-3", "run-2"]
        unfinished = await store.unfinished(after=0, limit=3)
        assert [run.stored.new.run for run in unfinished] == ["run-2", "run-3", "run-4"]
        rest = await store.unfinished(after=unfinished[-1].number, limit=3)
        assert [run.stored.new.run for run in rest] == ["run-5"]

    async def test_runs_are_found_by_a_beginning_of_their_id(self, store: Store) -> None:
        for run in ("run-1", "run-10", "run-2", "sun-1"):
            await started(store, run)
        assert await store.find("run-1", limit=9) == ["run-1", "run-10"]
        assert await store.find("run", limit=2) == ["run-1", "run-10"]
        assert await store.find("", limit=9) == ["run-1", "run-10", "run-2", "sun-1"]
        assert await store.find("x", limit=9) == []
        assert await store.find("%", limit=9) == await store.find("run-_", limit=9) == []
        listed = await store.listed("run-2")
        assert (listed.number, listed.stored) == (3, await store.run("run-2"))

    async def test_runs_are_counted_by_their_state(self, store: Store) -> None:
        assert await store.counts() == []
        for run in ("run-1", "run-2", "run-3"):
            author = await started(store, run)
            if run == "run-3":
                await put(store, author, author.doubt("one"))
        engine = (await store.run("run-1")).engine
        assert sorted((it.status, it.engine, it.count) for it in await store.counts()) == [
            ("in_doubt", engine, 1),
            ((await store.run("run-1")).header.status, engine, 2),
        ]
        (halted,) = await store.halted(after=0, limit=9)
        assert halted.stored.new.run == "run-3"
        assert await store.halted(after=halted.number, limit=9) == []

    async def test_the_events_of_all_runs_come_in_the_order_of_their_commits(
        self, store: Store
    ) -> None:
        assert await store.position() == 0
        for run in ("run-1", "run-2"):
            await started(store, run)
        told = await store.feed(after=0, limit=100)
        assert [event.position for event in told] == list(range(1, len(told) + 1))
        assert await store.position() == len(told)
        for run in ("run-1", "run-2"):
            own = [event async for event in store.events(run)]
            assert [event for event in told if event.run == run] == own
        assert await store.feed(after=2, limit=2) == told[2:4]
        assert await store.feed(after=len(told), limit=9) == []

    async def test_what_is_not_there_is_named(self, store: Store) -> None:
        for missing in (store.run("x"), store.definition(bytes(32)), store.terms(bytes(32))):
            with pytest.raises(NotFound):
                await missing
        assert await store.run_by_key("x") is None
        assert await store.payload("x", 1) is None
        assert await store.engine("x") is None
        assert await store.attempts("x") == await store.activations("x") == []

    async def test_an_event_without_a_payload_has_none(self, store: Store) -> None:
        await started(store)
        assert await store.payload("run-1", 3) is None
        assert await store.payload("run-1", 99) is None

    @pytest.mark.invariant("I8")
    async def test_a_definition_has_one_content(self, store: Store) -> None:
        await store.put_definition(DEFINITION, DEFINITION_BODY, b'{"titles":{"a":"A"}}')
        assert await store.definition(DEFINITION) == DEFINITION_BODY
        with pytest.raises(Conflict):
            await store.put_definition(DEFINITION, b"{}", b"{}")
        assert await store.definition(DEFINITION) == DEFINITION_BODY

    async def test_a_run_needs_its_definition(self, home: Home) -> None:
        store = await home.open()
        (answer,) = await store.commit([Author("run-1").admit()], epoch=1)
        assert isinstance(answer, RowRefused)
        assert await store.runs(RunFilter()) == []
        await store.close()

    @pytest.mark.invariant("A3", "A9")
    async def test_an_engine_says_once_that_it_started_and_once_how_it_ended(
        self, store: Store
    ) -> None:
        await store.put_engine(ENGINE)
        await store.put_engine(ENGINE)
        assert await store.engine("engine-1") == ENGINE
        with pytest.raises(Conflict):
            await store.put_engine(msgspec.structs.replace(ENGINE, pid=1))
        with pytest.raises(AuthorityLost):
            await store.put_engine(msgspec.structs.replace(ENGINE, instance="e2", epoch=2))
        assert await store.engine("e2") is None
        ended = msgspec.structs.replace(ENGINE, ended="drained", ended_at=5)
        await store.put_engine(ended)
        await store.put_engine(ended)
        assert await store.engine("engine-1") == ended
        for other in (ENGINE, msgspec.structs.replace(ended, ended="[]")):
            with pytest.raises(Conflict):
                await store.put_engine(other)

    async def test_closing_twice_is_closing_once(self, home: Home) -> None:
        store = await home.open()
        await store.close()
        await store.close()

    @pytest.mark.invariant("H2")
    async def test_every_payload_is_what_its_event_cites(self, store: Store) -> None:
        author = await started(store)
        await put(store, author, author.settle("one", b'{"a":"\\u0000"}'))
        async for event in store.events("run-1"):
            if event.payload is not None:
                assert event.payload.digest.encode() in event.envelope


def _late(node: str) -> LateFactKept:
    """An event that may be said at any time."""
    return LateFactKept(at=1_700_000_000_000, node=node, attempt=1, dispatch=1, status="failed")


def _ended_unknown() -> EndDispatch:
    return EndDispatch("unknown", 5, True, False, "one", "", 1)


def _attempt(author: Author, node: str) -> InsertAttempt:
    (fact,) = [f for f in author.copy().begin(node).facts if isinstance(f, InsertAttempt)]
    return fact


def committed(answers: list[Answer]) -> bool:
    """Whether all of a batch was written."""
    return all(isinstance(answer, Committed) for answer in answers)


__all__ = ["ActivationReady", "AttemptPrepared", "Home", "StoreContract", "committed"]
