"""What a worker's Spark is like at this moment, in a value that costs nothing to ask for."""

from __future__ import annotations

from dataclasses import dataclass

from service.spec.workers import SparkState


@dataclass(frozen=True)
class SparkCondition:
    """Whether the worker's Spark could run a job now, and as what the cluster knows it."""

    state: SparkState
    fault: str | None = None
    """What is wrong and what to do about it, without secrets; None unless UNAVAILABLE."""
    app_id: str | None = None
    """Spark's application id; None while there is no driver."""
    slots: int | None = None
    """Tasks that run at once; None while there is no driver."""
