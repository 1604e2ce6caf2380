"""Request and report of a profile: the hot keys of a table and the skew they would cause, before any job runs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from .model import Frozen, refuse_boolean
from .query import Identifier
from .reports import HotKey
from .tables import CHANGE_FIELDS, TableSource

MAX_KEYS = 16
MAX_COLUMNS = 8
MAX_SLOTS = 100_000


class ProfileRequest(Frozen):
    """A table, and the candidate keys to group or join it by."""

    table: TableSource
    keys: Annotated[
        tuple[Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=MAX_COLUMNS)], ...],
        Field(min_length=1, max_length=MAX_KEYS, description="The keys; each is a list of columns."),
    ] = Field(examples=[[["tailnum"], ["origin", "dest"]]])
    slots: int | None = Field(
        default=None,
        ge=1,
        le=MAX_SLOTS,
        description="Number of tasks over which a shuffle by the key would distribute the rows; by default, the number "
        "of tasks that the largest worker runs at the same time.",
        examples=[200],
    )

    _slots_are_not_boolean = field_validator("slots", mode="before")(refuse_boolean)

    @field_validator("table")
    @classmethod
    def _refuse_streaming_fields(cls, table: TableSource) -> TableSource:
        for field in ("role", "event_time", *CHANGE_FIELDS, "refresh"):
            if getattr(table, field):
                raise PydanticCustomError(
                    "only_for_streams",
                    "'{field}' is for streaming jobs, and a profile reads the current files: remove it.",
                    {"field": field},
                )
        return table

    @field_validator("keys")
    @classmethod
    def _refuse_duplicate_columns(cls, keys: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        for key in keys:
            if len({column.casefold() for column in key}) < len(key):
                raise PydanticCustomError(
                    "duplicate_column", "The key {key} names a column twice: name it once.", {"key": ", ".join(key)}
                )
        return keys


class ProfiledTable(Frozen):
    """The size of the table."""

    files: int
    bytes: int
    rows: int
    rows_are_exact: bool


class KeyProfile(Frozen):
    """Statistics of one key, and the load of the tasks after a plain shuffle by it."""

    columns: tuple[str, ...]
    rows: int = Field(description="Rows of the table.")
    rows_are_exact: bool
    sampled_rows: int = Field(
        description="Number of sampled rows. If it is 0, no row could be sampled, and the other fields have no meaning."
    )
    distinct_keys: int = Field(description="Estimated number of distinct keys.")
    null_share: float = Field(ge=0, le=1)
    hot_keys: tuple[HotKey, ...] = Field(description="The most frequent keys, in descending order of frequency.")
    slots: int = Field(description="Number of tasks over which the rows are distributed.")
    busy_tasks: int = Field(description="Tasks that get at least one row; at most the number of distinct keys.")
    rows_on_hottest_task: int
    rows_on_median_task: int = Field(description="The median over the busy tasks.")
    max_over_median: float = Field(description="Rows of the hottest task divided by those of the median task.")
    max_over_mean: float = Field(
        description="Rows of the hottest task divided by the mean: all rows divided by `slots`."
    )
    skewed: bool = Field(
        description="Whether `max_over_median` or `max_over_mean` exceeds the default of `skew.factor`, and the rows "
        "of the hottest task take at least the default of `skew.threshold`."
    )
    advice: str = Field(description="One sentence: the effect of the key on a job, and the setting that helps.")


class ProfileReport(Frozen):
    """Hot keys of a table, estimated from a sample."""

    table: ProfiledTable
    keys: tuple[KeyProfile, ...] = Field(description="One for each requested key, in the same order.")
    statistics_ms: int = Field(description="Time to collect the statistics.")
