"""What only streaming jobs say of their tables and of when they run."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from service.spec.model import Frozen, Whole
from service.spec.quantities import Bounds, Duration
from service.spec.query import Identifier

STREAM_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""What a stream of rows may be called."""


_YEAR = timedelta(days=365)


class TableRole(StrEnum):
    """What a streaming job does with a table: reads what is new in a `stream`, joins a `static` one as it is."""

    STREAM = "stream"
    STATIC = "static"


class EventTime(Frozen):
    """When a row happened, and how late it may come."""

    column: Identifier = Field(description="The column, a TIMESTAMP, that tells when the row happened.")
    delay: Annotated[Duration, Bounds(timedelta(0), _YEAR)] = Field(
        default=timedelta(0),
        description="How much later than the newest row of the table a row may come; later ones, and those from before "
        "1970, are left out of windows, and of joins with another stream that go by event time.",
        json_schema_extra={"default": "0ms"},
        examples=["10m"],
    )


class StreamTable(Frozen):
    """Rows that were posted to a stream of the service: `POST /v1/streams/{name}/rows`."""

    format: Literal["stream"]
    stream: str = Field(min_length=1, max_length=200, pattern=STREAM_NAME, examples=["clicks"])
    role: Literal[TableRole.STREAM] = TableRole.STREAM
    event_time: EventTime | None = None


class RateTable(Frozen):
    """Made-up rows for trials: `value BIGINT`, which counts from 0, and `timestamp TIMESTAMP`."""

    format: Literal["rate"]
    rows_per_second: Whole = Field(default=1, ge=1, le=10_000_000)
    role: Literal[TableRole.STREAM] = TableRole.STREAM
    event_time: EventTime | None = None


class Schedule(Frozen):
    """When an incremental job runs again by itself."""

    every: Annotated[Duration, Bounds(timedelta(seconds=1), _YEAR)] = Field(
        description="How long after the end of a run the next one begins.",
        examples=["10m"],
    )
