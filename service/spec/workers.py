"""What a worker says of itself."""

from __future__ import annotations

from enum import StrEnum


class SparkState(StrEnum):
    """Whether a worker's Spark could run a job now."""

    STARTING = "starting"
    READY = "ready"
    UNAVAILABLE = "unavailable"
