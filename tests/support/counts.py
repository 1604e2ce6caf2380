"""The repetitions of tests: a sample by default, the full number with `EVENKEEL_TEST_FULL=1`."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T", int, float)

FULL = os.environ.get("EVENKEEL_TEST_FULL") == "1"


def count(*, sample: T, full: T) -> T:
    """Returns the number of repetitions, or of seconds, for this run."""
    return full if FULL else sample
