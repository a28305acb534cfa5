"""Durations are read exactly, written shortest, and bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.instants import (
    DURATION_MAX,
    DurationRefused,
    Instant,
    Millis,
    after,
    elapsed,
    format_duration,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("500ms", 500),
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("2d", 172_800_000),
        ("0s", 0),
        ("1s1s", 2_000),
        ("5m3ms", 300_003),
    ],
)
def test_parts_of_a_duration_add_up(text: str, millis: int) -> None:
    assert parse_duration(text) == millis


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "s",
        "5 s",
        "-5s",
        "1.5h",
        "5S",
        "5w",
        "5s\n",
        " 5s",
        "٣s",
        "36526d",
        "9" * 5_000 + "s",
        "1s" * 100,
        "1e3s",
        "+5s",
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(DurationRefused):
        parse_duration(text)


def test_a_hundred_years_are_the_most() -> None:
    assert parse_duration("36525d") == DURATION_MAX
    with pytest.raises(DurationRefused, match="100 years"):
        parse_duration("36525d1ms")


@given(st.integers(0, DURATION_MAX).map(Millis))
def test_a_written_duration_reads_back(duration: Millis) -> None:
    assert parse_duration(format_duration(duration)) == duration


def test_instants_move_by_durations() -> None:
    assert after(Instant(10), Millis(5)) == 15
    assert elapsed(Instant(10), Instant(15)) == 5
    assert elapsed(Instant(15), Instant(10)) == 0
