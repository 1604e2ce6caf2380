"""Times as people tell them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from service.cli.client.show_job import ago, lasted

NOW = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-1, "0.0 s"),
        (0.44, "0.4 s"),
        (12.3, "12 s"),
        (59.7, "1 min 0 s"),
        (185, "3 min 5 s"),
        (7_800, "2 h 10 min"),
        (300_000, "3 d"),
    ],
)
def test_spans(seconds: float, told: str) -> None:
    assert lasted(timedelta(seconds=seconds)) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(-5, "just now"), (1, "just now"), (42, "42 s ago"), (61, "1 min ago"), (7_300, "2 h ago"), (200_000, "2 d ago")],
)
def test_how_long_ago(seconds: int, told: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == told
    assert ago(None, NOW) == ""
