"""The time limit and the cancellation of one planning pass."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


def no_check() -> None:
    """The check of a planning pass that cannot be cancelled."""


class PlanningBudget:
    """The time budget of a planning pass.

    Planning calls `check` between steps; it raises an exception if the pass was cancelled. After `seconds` the planner
    skips the remaining rules, and the plan made so far is run.
    """

    def __init__(
        self,
        check: Callable[[], None] = no_check,
        seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.check = check
        self.seconds = seconds
        self._clock = clock
        self._ends = clock() + seconds

    def is_spent(self) -> bool:
        """Whether the time for rules is over."""
        return self._clock() >= self._ends
