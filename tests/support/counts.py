"""How often a test repeats what it does: a sample by default, the full count with `EVENKEEL_TEST_FULL=1`."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T", int, float)

FULL = os.environ.get("EVENKEEL_TEST_FULL") == "1"


def count(*, sample: T, full: T) -> T:
    """The number of times, or of seconds, for this run."""
    return full if FULL else sample
