"""Every cell of the table: how a function ended, why it was asked to stop, where, and its class."""

import asyncio
import itertools

import pytest

from tallystick.core.commands import Cancelled, Failed, GivenUp, Interrupted, Refused, Unknown
from tallystick.core.definition import EFFECTS
from tallystick.errors import NotAccepted, OutcomeUnknown
from tallystick.executors.function import ends

STOPS = (None, "timeout", "cancel", "grace", "lost")
HARMLESS = ("read_only", "transactional")
EVERY = list(itertools.product(EFFECTS, STOPS, (False, True)))


def word(end) -> str:
    match end:
        case Failed(kind, _, effect):
            assert effect == "possible"
            return f"failed({kind})"
        case Unknown(_, counted):
            return "unknown" if counted else "unknown, uncounted"
        case _:
            return type(end).__name__.lower()


# asked to stop by: (coroutine of a harmless class, of another class, in a thread)
OWN_ERROR = {
    None: ("failed(error)", "failed(error)", "failed(error)"),
    "timeout": ("failed(error)", "failed(error)", "failed(timeout)"),
    "cancel": ("failed(error)", "failed(error)", "failed(error)"),
    "grace": ("failed(error)", "failed(error)", "failed(error)"),
    "lost": ("failed(error)", "failed(error)", "failed(error)"),
}
CANCELLED = {
    None: ("failed(error)", "unknown", "failed(error)"),
    "timeout": ("failed(timeout)", "unknown", "failed(timeout)"),
    "cancel": ("cancelled", "unknown", "cancelled"),
}


@pytest.mark.invariant("R11", "S8")
@pytest.mark.parametrize(("effect", "stop", "in_thread"), EVERY)
@pytest.mark.parametrize(
    ("error", "table"), [(ValueError("no"), OWN_ERROR), (asyncio.CancelledError(), CANCELLED)]
)
def test_an_exception_means_what_the_table_says(error, table, effect, stop, in_thread):
    end = ends.ended_by(error, effect=effect, stop=stop, in_thread=in_thread)
    if stop in table:
        column = 2 if in_thread else int(effect not in HARMLESS)
        assert word(end) == table[stop][column]
    else:  # the engine stops, or lost the run
        assert (
            word(end)
            == {
                "read_only": "interrupted",
                "transactional": "interrupted",
                "idempotent": "unknown, uncounted",
                "mutating": "unknown",
            }[effect]
        )


@pytest.mark.invariant("R11")
@pytest.mark.parametrize(("effect", "stop", "in_thread"), EVERY)
def test_a_function_that_says_it_does_not_know_is_believed(effect, stop, in_thread):
    said = OutcomeUnknown("connection lost")
    for error in (said, ExceptionGroup("g", [ValueError(), ExceptionGroup("h", [said])])):
        end = ends.ended_by(error, effect=effect, stop=stop, in_thread=in_thread)
        assert isinstance(end, Unknown)
        assert end.counted


@pytest.mark.parametrize(("effect", "stop", "in_thread"), EVERY)
def test_a_function_that_was_not_accepted_never_began(effect, stop, in_thread):
    end = ends.ended_by(NotAccepted("busy"), effect=effect, stop=stop, in_thread=in_thread)
    assert end == Refused("tallystick.errors.NotAccepted: busy")


@pytest.mark.invariant("R11", "S11")
def test_a_group_of_refusals_is_no_proof_that_nothing_was_accepted():
    """A task group does not list the members that succeeded."""
    error = ExceptionGroup("g", [NotAccepted("a"), NotAccepted("b")])
    end = ends.ended_by(error, effect="mutating", stop=None, in_thread=False)
    assert word(end) == "failed(error)"


@pytest.mark.case("L3")
def test_a_group_lists_all_its_members():
    error = ExceptionGroup("two", [ValueError("a"), ExceptionGroup("in", [KeyError("b")])])
    end = ends.ended_by(error, effect="read_only", stop=None, in_thread=False)
    assert isinstance(end, Failed)
    assert [(m["type"], m["message"]) for m in end.detail["members"]] == [
        ("ValueError", "a"),
        ("KeyError", "'b'"),
    ]
    assert end.detail["members_total"] == 2


@pytest.mark.invariant("S11")
@pytest.mark.parametrize("stop", STOPS[1:])
def test_what_was_never_called_left_nothing(stop):
    end = ends.never_called(stop)
    assert isinstance(end, GivenUp) or end.effect == "none"


@pytest.mark.parametrize("effect", EFFECTS)
def test_what_outlives_the_grace_is_unknown(effect):
    end = ends.still_running(effect, "grace", "a thread")
    assert isinstance(end, Unknown)
    assert end.counted is (effect == "mutating")


@pytest.mark.invariant("R11")
@pytest.mark.parametrize("error", [SystemExit(3), BaseException("odd"), RecursionError()])
def test_what_is_no_ordinary_exception_is_an_error_all_the_same(error):
    end = ends.ended_by(error, effect="mutating", stop=None, in_thread=False)
    assert word(end) == "failed(error)"


@pytest.mark.case("P3", "P1")
@pytest.mark.parametrize("text", ["a\0b", "a\ud800b", "\udcffb", "x" * 10_000_000, "\0" * 100_000])
def test_the_text_of_an_error_is_bounded_and_can_be_stored(text):
    def chain(depth):
        if depth:
            return ExceptionGroup(text, [chain(depth - 1), ValueError(text)])
        return KeyError(text)

    end = ends.ended_by(chain(100), effect="read_only", stop=None, in_thread=False)
    encoded = str(end).encode()  # refuses lone surrogates
    assert b"\0" not in encoded
    assert len(encoded) < 2 * ends.DETAIL_BYTES_MAX


def test_an_exception_that_cannot_be_shown_is_a_failure_too():
    class OddError(Exception):
        def __str__(self):
            raise ValueError("no")

    end = ends.ended_by(OddError(), effect="read_only", stop=None, in_thread=False)
    assert "cannot be shown" in end.message


def test_the_traceback_names_places_and_no_values():
    def fails(secret):
        raise ValueError("plain")

    try:
        fails("hunter2")
    except ValueError as error:
        end = ends.ended_by(error, effect="read_only", stop=None, in_thread=False)
    assert "fails" in end.detail["traceback"][-1]
    assert "hunter2" not in str(end)


def test_the_end_types_are_all_reachable():
    """The table would be wrong in silence if one of its words could never be said."""
    said = {
        type(ends.ended_by(error, effect=effect, stop=stop, in_thread=in_thread))
        for effect, stop, in_thread in EVERY
        for error in (ValueError(), asyncio.CancelledError(), OutcomeUnknown(), NotAccepted())
    }
    assert said == {Failed, Unknown, Cancelled, Interrupted, Refused}
