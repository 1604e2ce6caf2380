"""Errors of the engine that the caller did not cause. They have no HTTP status.

EngineError            a bug or a limit of the engine
    InvalidPlanError   a plan that violates an invariant, with the rule that made it
"""

from __future__ import annotations

from typing import ClassVar


class EngineError(Exception):
    """Base of the engine's own errors. `code` is stable and machine-readable."""

    code: ClassVar[str] = "engine_error"


class InvalidPlanError(EngineError):
    """A plan violates invariants. `made_by` is the builder or the rule that made the plan; `violations` has one
    sentence for each violation.
    """

    code: ClassVar[str] = "invalid_plan"

    def __init__(self, made_by: str, violations: tuple[str, ...]) -> None:
        self.made_by = made_by
        self.violations = violations
        super().__init__(f"the plan made by {made_by} is invalid: {'; '.join(violations)}")
