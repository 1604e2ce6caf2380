"""How often a job looks at its tables."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """How often a job reads its tables.

    `batch` reads them once, as they are. `incremental` processes what is new since its last run, and then waits to be
    resumed. `continuous` runs until it is stopped.
    """

    BATCH = "batch"
    INCREMENTAL = "incremental"
    CONTINUOUS = "continuous"

    @property
    def is_streaming(self) -> bool:
        """Whether the job keeps state from one mini-batch to the next."""
        return self is not Mode.BATCH


class OutputMode(StrEnum):
    """What a mini-batch emits: every group that it `update`s, or rows to `append` that nothing will change."""

    UPDATE = "update"
    APPEND = "append"
