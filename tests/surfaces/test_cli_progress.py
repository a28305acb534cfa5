"""Every kind of event has words, and progress fits on a screen however large the run is."""

import typing

import msgspec
import pytest

from tallystick.core import messages
from tallystick.surfaces.cli.progress import LiveProgress
from tallystick.surfaces.cli.sayings import SAYINGS, event_line, said
from tallystick.surfaces.cli.screen import Style
from tallystick.surfaces.render import Paint
from tests.surfaces.fake_client import AT, event

PLAIN = Style(Paint(on=False), None)
KINDS = {kind.__name__: kind for kind in typing.get_args(messages.AnyEvent)}
SAID = {
    "a settled attempt": (
        event("AttemptSettled", step="a", status="failed", failure="error", late=True, retry_at=AT),
        "failed (error), late, next attempt at 2025-03-01 12:00:00.250Z",
    ),
    "a dispatch that ended": (
        event("DispatchEnded", step="a", dispatch=2, end="unknown"),
        "dispatch 2 ended unknown",
    ),
    "a takeover": (
        event("RunHandedOff", former="e1", evidence="ended", seen="its lock was free"),
        "taken over from e1: ended (its lock was free)",
    ),
    "a doubt": (event("AttemptDoubted", step="a", reason="x\x1b"), "in doubt: x\\x1b"),
    "a kind of tomorrow": (event("Something\x07"), "Something\\x07"),
}


def test_every_kind_of_event_has_words():
    assert set(SAYINGS) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_words_name_only_fields_that_the_kind_has(kind):
    """With every field set, no place for one is left open."""
    fields = {field.encode_name: 1 for field in msgspec.structs.fields(KINDS[kind])}
    assert "?" not in said({"kind": kind, **fields})
    assert said({"kind": kind})  # and with none it still says something


@pytest.mark.parametrize(("told", "words"), SAID.values(), ids=SAID)
def test_an_event_is_told_in_a_few_words(told, words):
    assert said(told) == words
    assert words in event_line(told, PLAIN)


def test_the_picture_counts_what_ended_and_shows_what_is_open():
    live = LiveProgress(screen=None)
    for number in range(5_000):
        live.show(event("AttemptPrepared", step=f"s{number}", attempt=1))
    for number in range(4_000):
        live.show(event("AttemptSettled", step=f"s{number}", status="succeeded"))
    live.show(event("AttemptSettled", step="s4000", status="failed", retry_at=AT))
    live.show(event("LateFactKept", step="s0", status="failed"))
    lines = live.picture()
    assert lines[0] == "4000 succeeded, 1000 open"
    assert len(lines) == 14
    assert lines[-1] == "  … and 988 more"


def test_the_picture_shows_poison_as_escapes():
    live = LiveProgress(screen=None)
    live.show(event("AttemptDoubted", step="\x1b[2J", reason="\u202e"))
    assert all(line.isprintable() for line in live.picture())
