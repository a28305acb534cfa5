"""The chain shows every change, gap and swap; events are the whole truth about a run."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core import messages
from tallystick.core.commands import Failed, RequestTimeout, Succeeded
from tallystick.core.definition import Limits
from tallystick.core.draft import Draft
from tallystick.core.evolution import replay
from tallystick.core.history import envelope_of, genesis, open_envelope, verify
from tallystick.core.messages import AnyEvent
from tallystick.core.run import Run
from tallystick.core.values import canonical
from tallystick.errors import MaintenanceRequired
from tests.core.world import FAILED, OK, REFUSED, UNKNOWN, World, call, fields_of, succeed


def eventful() -> World:
    """A run in which every event but those of executors outside the engine happens."""
    world = World(
        call("a", "idempotent", tries=3),
        call("b"),
        call("c", "read_only", tries=9),
        call("d", needs=("b",)),
        succeed("e", needs=("d",), when="${{ input }}"),
        given=True,
        limits=Limits(duration_ms=1_000),
    )
    world.tell("c", FAILED)
    world.ask(RequestTimeout(world.key("a"), 1, 1))
    world.tell("a", FAILED)
    world.crash()
    for name in ("a", "b", "c"):
        world.tell(name, UNKNOWN)
    world.advance()
    world.tell("c", FAILED)
    world.resolve("b", "never_happened")
    world.advance()
    world.tell("b", REFUSED)
    world.do(world.report("a", OK), world.report("a", Succeeded(b"2")))
    world.pass_deadline()
    return world


WORLD = eventful()
CHAIN = [(s, t, e, h) for s, t, e, h, _ in WORLD.events]


def test_the_run_that_is_tampered_with_says_almost_everything():
    said = {type(event).__name__ for event in WORLD.recorded}
    assert len(said) >= 13, said


@pytest.mark.invariant("M3", "H1")
def test_events_are_numbered_without_gaps_and_chained_from_the_run():
    assert [sequence for sequence, *_ in CHAIN] == list(range(1, len(CHAIN) + 1))
    assert verify("run-1", CHAIN) == WORLD.run.head
    assert verify("run-1", []) == genesis("run-1")


def broken(chain) -> bool:
    """Whether reading notices. What is cut off at the end shows by the head in the run's row."""
    try:
        head = verify("run-1", chain)
    except MaintenanceRequired:
        return True
    return head != WORLD.run.head


def replay_notices(chain, payloads=None) -> bool:
    payloads = payloads or [p for *_, p in WORLD.events]
    rows = [(*row, payload) for row, payload in zip(chain, payloads, strict=False)]
    fresh = Run.new("run-1", WORLD.run.bound, WORLD.run.limits)
    try:
        return replay(fresh, rows).head != WORLD.run.head
    except MaintenanceRequired:
        return True


@pytest.mark.invariant("H2")
@given(st.data())
def test_any_changed_byte_is_noticed(data):
    chain = [list(row) for row in CHAIN]
    row = data.draw(st.sampled_from(chain))
    field = data.draw(st.sampled_from([2, 3]))
    changed = bytearray(row[field])
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] ^= data.draw(st.integers(1, 255))
    row[field] = bytes(changed)
    assert broken(chain)
    assert replay_notices(chain)


@pytest.mark.invariant("H2", "M3")
@given(st.integers(0, len(CHAIN) - 1), st.integers(0, len(CHAIN) - 1))
def test_a_missing_moved_or_repeated_event_is_noticed(one, other):
    missing = CHAIN[:one] + CHAIN[one + 1 :]
    assert broken(missing)
    assert replay_notices(missing)
    if one < len(CHAIN) - 1:
        with pytest.raises(MaintenanceRequired, match=f"event {one + 1} is missing") as found:
            verify("run-1", missing)
        assert (found.value.code, found.value.facts["sequence"]) == ("history-broken", one + 1)
    renumbered = [(at, *row[1:]) for at, row in enumerate(missing, 1)]
    assert broken(renumbered)
    repeated = [*CHAIN[: one + 1], CHAIN[one], *CHAIN[one + 1 :]]
    assert broken(repeated)
    if one != other:
        swapped = CHAIN.copy()
        swapped[one], swapped[other] = swapped[other], swapped[one]
        assert broken(swapped)
        assert broken([(at, *row[1:]) for at, row in enumerate(swapped, 1)])


@pytest.mark.invariant("H2")
@given(st.integers(0, len(CHAIN) - 1))
def test_another_transition_or_run_is_noticed(at):
    chain = CHAIN.copy()
    sequence, transition, envelope, stored = chain[at]
    chain[at] = (sequence, transition + 1, envelope, stored)
    assert broken(chain)
    with pytest.raises(MaintenanceRequired):
        verify("run-2", CHAIN)


@pytest.mark.invariant("H2")
def test_the_chain_verifies_without_payloads_and_a_needed_one_is_missed():
    """Deleting payloads keeps the proof. A live run cannot go on without the inputs it needs."""
    assert verify("run-1", CHAIN) == WORLD.run.head
    rows = [(*row, None) for row in CHAIN]
    fresh = Run.new("run-1", WORLD.run.bound, WORLD.run.limits)
    with pytest.raises(MaintenanceRequired, match="missing"):
        replay(fresh, rows)


@pytest.mark.invariant("H2")
def test_no_salt_can_be_computed_from_the_others():
    """What is deleted stays hidden: a seed keeps 16 bytes that no salt shows."""
    payloads = [p for *_, p in WORLD.events if p]
    assert len({p.salt for p in payloads}) == len(payloads)
    for size in (32, 48, 64, 1_024):
        seed = bytes(at % 251 for at in range(size))
        draft = Draft(WORLD.run.fork(), WORLD.now, seed)
        drawn = [draft.draw() for _ in range(size // 16 + 20)]
        assert seed[-16:] not in drawn
        assert len(set(drawn)) == len(drawn)


@pytest.mark.invariant("M1")
@pytest.mark.parametrize("event", WORLD.recorded, ids=lambda event: type(event).__name__)
def test_an_envelope_is_canonical_and_comes_back(event):
    envelope = envelope_of(event)
    assert open_envelope(envelope) == event
    assert canonical(envelope) == envelope


@pytest.mark.parametrize(
    "envelope",
    [
        b"",
        b"{}",
        b"[]",
        b'{"kind":"NoSuchEvent","at":1}',
        b'{"kind":"RunEnded","at":1}',
        b'{"kind":"BarrierDropped","at":1,"more":2}',
        b"\xff",
    ],
)
def test_an_envelope_of_another_kind_is_refused(envelope):
    with pytest.raises(MaintenanceRequired):
        open_envelope(envelope)


def test_every_event_has_a_handler():
    from tallystick.core.evolution import _EVOLVE

    assert set(_EVOLVE) == set(AnyEvent.__args__)


@pytest.mark.invariant("M1", "M7")
def test_replay_does_not_depend_on_how_events_were_grouped():
    """Every prefix, read at once, equals the run that lived through it."""
    world = World(call("a", tries=2), call("b", "idempotent", tries=3))
    for end in (REFUSED, OK):
        world.do(world.report("a", end), world.report("b", FAILED))
        world.crash()
        world.advance()
    whole = world.reloaded()
    assert fields_of(whole) == fields_of(world.run)


@pytest.mark.invariant("H3")
def test_a_step_late_in_a_long_run_writes_no_more_than_an_early_one():
    sizes = []
    nodes = [call(f"s{at:03}", needs=(f"s{at - 1:03}",) if at else ()) for at in range(120)]
    world = World(*nodes)
    for node in nodes:
        before = len(world.events)
        world.tell(node.id, Succeeded(b'"0123456789abc"'))
        written = world.events[before:]
        sizes.append(sum(len(e) + (len(p.body) if p else 0) for _, _, e, _, p in written))
    assert max(sizes[10:-1]) - min(sizes[10:-1]) <= 8
    assert world.run.ended == "succeeded"


def test_a_failure_of_any_shape_can_be_recorded():
    """Whatever a task raises: surrogates, endless text, details that JSON cannot hold."""
    for detail in ({"x": float("nan")}, {1: 2}, "\ud800", object(), [b"bytes"], None):
        world = World(call("a"))
        world.tell("a", Failed("error", "\ud800" + "x" * 100_000, "possible", detail))
        assert world.run.ended == "failed"
    assert msgspec.json.decode(world.events[-1][4].body)["kind"] == "error"
    assert messages.RunEnded in {type(event) for event in world.recorded}
