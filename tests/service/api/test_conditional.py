"""Entity tags and the wait that a request prefers."""

from __future__ import annotations

import pytest

from service.api.conditional import known_version, wait_seconds


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("wait=10", 10),
        ("Wait = 10", 10),
        ('wait="10"', 10),
        ("respond-async, wait=10; foo=bar", 10),
        ("wait=0", 0),
        ("wait=999", 45),
        ("", None),
        ("wait", None),
        ("wait=-1", None),
        ("wait=1.5", None),
        ("wait=9999999999", None),
        ("await=3", None),
    ],
)
def test_wait(prefer: str, seconds: int | None) -> None:
    assert wait_seconds(prefer, longest=45.5) == seconds


@pytest.mark.parametrize(
    ("tags", "version"),
    [
        ('"3-abc"', 3),
        ('W/"12-abc", "3-abc"', 12),
        ("*", None),
        ("", None),
        ('"abc"', None),
        ("3-abc", None),
        ('"99999999999999999999-a"', None),
    ],
)
def test_known_version(tags: str, version: int | None) -> None:
    assert known_version(tags) == version
