"""The reports of a job with their representations in notebooks. Their fields are those of the specification."""

from __future__ import annotations

from ..contract.reports import PlanReport, SkewReport
from . import html
from .responses import RunMetrics


class Plan(PlanReport):
    """The query before and after the rules, and what each rule did. `str(plan)` is the plan that runs."""

    def __str__(self) -> str:
        return self.after.text

    def _repr_html_(self) -> str:
        return html.plan(self)


class Skew(SkewReport):
    """Whether the job was skewed, by which keys, what that cost, and which setting would help."""

    def __str__(self) -> str:
        return self.advice

    def _repr_html_(self) -> str:
        return html.skew(self)


class Metrics(RunMetrics):
    """The measurements of the job's run."""

    skew: Skew

    def _repr_html_(self) -> str:
        return html.metrics(self)
