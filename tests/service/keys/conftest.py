"""A database whose time tests change."""

from __future__ import annotations

import pytest

from tests.support.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """Begins in 2023."""
    return ManualClock(1_700_000_000_000)
