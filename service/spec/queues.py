"""The queues: jobs that must not wait behind long ones, long ones, and those that run until they are stopped."""

from __future__ import annotations

from enum import StrEnum


class Queue(StrEnum):
    """Which workers a job is offered to."""

    SHORT = "short"
    LONG = "long"
    STREAM = "stream"


EXPECTED = (Queue.SHORT, Queue.LONG)
"""Queues that some worker of every installation should listen to; continuous jobs are not everybody's."""


class QueueChoice(StrEnum):
    """What a job says of its queue; `auto` leaves it to the size of its tables."""

    AUTO = "auto"
    SHORT = "short"
    LONG = "long"

    def resolve(self, table_bytes: int, long_from_bytes: int) -> Queue:
        """The queue of a job whose tables have `table_bytes` together; from `long_from_bytes` on, it is a long one."""
        if self is QueueChoice.AUTO:
            return Queue.LONG if table_bytes >= long_from_bytes else Queue.SHORT
        return Queue(self.value)
