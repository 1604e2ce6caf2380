"""What a worker says of itself, and what follows from it."""

from __future__ import annotations

from enum import StrEnum


class SparkState(StrEnum):
    """Whether a worker's Spark could run a job now."""

    STARTING = "starting"
    READY = "ready"
    UNAVAILABLE = "unavailable"


class WorkerStatus(StrEnum):
    """How a worker stands, as clients and operators see it."""

    STARTING = "STARTING"
    READY = "READY"
    DRAINING = "DRAINING"
    UNAVAILABLE = "UNAVAILABLE"
    SILENT = "SILENT"
