"""The two queues: jobs that must not wait behind long ones, and long ones."""

from __future__ import annotations

from enum import StrEnum


class Queue(StrEnum):
    """Which workers a job is offered to."""

    SHORT = "short"
    LONG = "long"
