"""The limits of one planning pass: when it must end, and when optional rewrites end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


def go_on() -> None:
    """The check of a plan that nothing can stop."""


class PlanningBudget:
    """How long a planning pass may take.

    `check` raises as soon as the plan is no longer wanted: planning calls it between steps of Python code. After
    `seconds` the planner skips the rules that it has not applied yet; the plan that it has then is run.
    """

    def __init__(
        self,
        check: Callable[[], None] = go_on,
        seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.check = check
        self.seconds = seconds
        self._clock = clock
        self._ends = clock() + seconds

    def is_spent(self) -> bool:
        """Whether the time for optional rewrites is over."""
        return self._clock() >= self._ends
