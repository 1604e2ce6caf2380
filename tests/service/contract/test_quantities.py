"""Durations and sizes."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from service.contract.model import Duration, format_bytes, format_duration, parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("500 MS", timedelta(milliseconds=500)),
        (" 5 s ", timedelta(seconds=5)),
        ("2 min", timedelta(minutes=2)),
        ("1h", timedelta(hours=1)),
        ("3 days", timedelta(days=3)),
        ("0s", timedelta()),
        (timedelta(seconds=7), timedelta(seconds=7)),
    ],
)
def test_durations(text: object, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "value",
    ["", "5", 5, 5.0, None, True, "s", "-5s", "5.5s", "5 parsecs", "5s5s", "99999d", "9" * 400 + "s", [], "\u0665s",
     timedelta(days=4000), timedelta(seconds=-1)],
)  # fmt: skip
def test_invalid_durations(value: object) -> None:
    with pytest.raises(ValueError, match="a duration is"):
        parse_duration(value)


UNITS = (
    *("ms", "milli", "millis", "millisecond", "milliseconds"),
    *("s", "sec", "secs", "second", "seconds"),
    *("m", "min", "minute", "minutes", "h", "hour", "hours", "d", "day", "days"),
)


@pytest.mark.parametrize(
    "text", [f"{space}5{space}{unit}{space}" for unit in [*UNITS, "", "mss", "day s"] for space in ("", " ")]
)
def test_the_documented_pattern_is_that_of_valid_durations(text: str) -> None:
    pattern = TypeAdapter(Duration).json_schema()["pattern"]
    try:
        parse_duration(text)
    except ValueError:
        assert not re.search(pattern, text)
    else:
        assert re.search(pattern, text)


@pytest.mark.parametrize(
    ("value", "size"),
    [("64MB", 64 << 20), ("64 mb", 64 << 20), ("1k", 1024), ("10", 10), (10, 10), ("2GB", 2 << 30), (0, 0)],
)
def test_sizes(value: object, size: int) -> None:
    assert parse_bytes(value) == size


@pytest.mark.parametrize("value", ["", "MB", "1.5GB", "-1", -1, 1.5, None, True, "1xb", "2000000TB", 1 << 61])
def test_invalid_sizes(value: object) -> None:
    with pytest.raises(ValueError, match="a size is"):
        parse_bytes(value)


@given(st.integers(0, 3650 * 86_400_000))
def test_durations_round_trip(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


@given(st.integers(0, 1 << 60) | st.integers(0, 1 << 20).map(lambda size: size << 20))
def test_sizes_round_trip(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


def test_shortest_texts() -> None:
    assert [format_duration(timedelta(milliseconds=value)) for value in (0, 500, 5000, 120_000, 3_600_000)] == [
        "0ms",
        "500ms",
        "5s",
        "2min",
        "1h",
    ]
    assert [format_bytes(value) for value in (0, 1000, 1024, 64 << 20)] == ["0b", "1000b", "1KB", "64MB"]
