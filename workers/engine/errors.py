"""What can go wrong inside the engine that is not the caller's fault.

EngineError            an engine bug or an engine limit; knows no HTTP status
    InvalidPlanError   a plan that breaks an invariant, with the rule that made it
"""

from __future__ import annotations

from typing import ClassVar


class EngineError(Exception):
    """Base of the engine's own errors. `code` is stable and machine-readable."""

    code: ClassVar[str] = "engine_error"


class InvalidPlanError(EngineError):
    """A plan breaks an invariant. `made_by` is the builder or the rule whose plan it is; `violations` says what is
    wrong, one sentence each.
    """

    code: ClassVar[str] = "invalid_plan"

    def __init__(self, made_by: str, violations: tuple[str, ...]) -> None:
        self.made_by = made_by
        self.violations = violations
        super().__init__(f"the plan made by {made_by} is invalid: {'; '.join(violations)}")
