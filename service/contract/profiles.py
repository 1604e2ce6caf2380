"""Profiles of keys as they are asked for and told: what a table's keys look like before any job."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from service.contract.job import SCHEMA_REQUIRED, TableSource, schema_required
from service.contract.model import Frozen, refuse_flag
from service.contract.query import Identifier
from service.contract.reports import HotKey

MAX_KEYS = 16
MAX_COLUMNS = 8
MAX_SLOTS = 100_000


class ProfileRequest(Frozen):
    """A table, and the keys that somebody thinks of grouping or joining it by."""

    table: TableSource
    keys: Annotated[
        tuple[Annotated[tuple[Identifier, ...], Field(min_length=1, max_length=MAX_COLUMNS)], ...],
        Field(min_length=1, max_length=MAX_KEYS, description="Each key as its columns."),
    ] = Field(examples=[[["tailnum"], ["origin", "dest"]]])
    slots: int | None = Field(
        default=None,
        ge=1,
        le=MAX_SLOTS,
        description="Tasks that would share the rows, shuffled by the key; by default those of the largest worker.",
        examples=[200],
    )

    _slots_are_no_flag = field_validator("slots", mode="before")(refuse_flag)

    @field_validator("table")
    @classmethod
    def _is_read_once(cls, table: TableSource) -> TableSource:
        for word in ("role", "event_time", "follow"):
            if getattr(table, word):
                raise PydanticCustomError(
                    "only_for_streams",
                    "'{word}' is for streaming jobs, and a profile reads the files that are there now: remove it.",
                    {"word": word},
                )
        if table.lacks_schema:
            raise PydanticCustomError(SCHEMA_REQUIRED, "{told}", {"told": schema_required(table)})
        return table

    @field_validator("keys")
    @classmethod
    def _names_a_column_once(cls, keys: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        for key in keys:
            if len({column.casefold() for column in key}) < len(key):
                raise PydanticCustomError(
                    "duplicate_column", "The key {key} has a column twice: name it once.", {"key": ", ".join(key)}
                )
        return keys


class ProfiledTable(Frozen):
    """Size of the table."""

    files: int
    bytes: int
    rows: int
    rows_are_exact: bool


class KeyProfile(Frozen):
    """What is known of one key, and how a plain shuffle by it would load its tasks."""

    columns: tuple[str, ...]
    rows: int = Field(description="Rows of the table.")
    rows_are_exact: bool
    sampled_rows: int = Field(
        description="Rows that this was found out from; 0 where none could be sampled: the others say nothing then."
    )
    distinct_keys: int = Field(description="Estimated number of distinct keys.")
    null_share: float = Field(ge=0, le=1)
    hot_keys: tuple[HotKey, ...] = Field(description="The most frequent ones, most frequent first.")
    slots: int = Field(description="Tasks that share the rows.")
    busy_tasks: int = Field(description="Tasks that get any row: no more than there are keys.")
    rows_on_hottest_task: int
    rows_on_median_task: int = Field(description="Of the busy ones.")
    max_over_median: float = Field(description="The hottest task's rows over those of the median one.")
    max_over_even: float = Field(description="The hottest task's rows over an even share of all slots.")
    skewed: bool = Field(
        description="Whether either is more than `skew.factor`, and the rows of the hottest task take at least "
        "`skew.threshold`, by their defaults."
    )
    advice: str = Field(description="One sentence: what the key would do to a job, and which setting helps.")


class ProfileReport(Frozen):
    """Hot keys of a table, from a sample; no row of it was counted one by one."""

    table: ProfiledTable
    keys: tuple[KeyProfile, ...] = Field(description="One for each key asked for, in that order.")
    statistics_ms: int = Field(description="What gathering the statistics took.")
