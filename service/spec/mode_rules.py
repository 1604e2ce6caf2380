"""What the parts of a job that its mode gives a meaning to must be like: roles, sink, schedule, time limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from service.spec.modes import Mode
from service.spec.sinks import ManagedSink
from service.spec.streaming import RateTable, StreamTable, TableRole

if TYPE_CHECKING:
    from service.spec.job import JobSpec, TableSource

SCHEMA_REQUIRED = "schema_required"
_MODES = "the modes 'incremental' and 'continuous'"


class Fault(NamedTuple):
    """What is wrong with a job, and where."""

    at: tuple[str, ...]
    code: str
    detail: str


def mode_faults(spec: JobSpec) -> Iterator[Fault]:
    """Every place of `spec` that does not go with its mode."""
    yield from _role_faults(spec) if spec.mode.is_streaming else _words_of_streams(spec)
    yield from _schema_faults(spec)
    if spec.mode.is_streaming and spec.limits.failure_retries:
        detail = (
            "A streaming job that failed rests, and goes on from there by its 'schedule' or when it is resumed: remove "
            "'failure_retries'."
        )
        yield Fault(("limits", "failure_retries"), "retries_not_for_streams", detail)
    if spec.mode.is_streaming and spec.compare_with is not None:
        detail = "A streaming job has no one time to compare: remove 'compare_with'."
        yield Fault(("compare_with",), "comparison_not_for_streams", detail)
    if spec.mode is Mode.CONTINUOUS and spec.schedule is not None:
        detail = "A continuous job runs until it is stopped: remove 'schedule', or use the mode 'incremental'."
        yield Fault(("schedule",), "schedule_not_applicable", detail)
    if spec.mode is Mode.CONTINUOUS and spec.limits.timeout is not None:
        detail = "A continuous job runs until it is stopped: remove 'timeout'. POST /v1/jobs/{id}/stop stops it."
        yield Fault(("limits", "timeout"), "limits_timeout_not_for_streams", detail)
    if spec.mode is not Mode.CONTINUOUS and spec.limits.timeout is None:
        yield Fault(("limits", "timeout"), "timeout_required", "Only a continuous job has no time limit: give one.")


def _schema_faults(spec: JobSpec) -> Iterator[Fault]:
    for name, table in spec.file_tables.items():
        may_be_inferred = spec.mode.is_streaming and spec.role_of(name) is not TableRole.STATIC
        if table.lacks_schema and not may_be_inferred:
            yield Fault(("tables", name), SCHEMA_REQUIRED, schema_required(table))


def schema_required(table: TableSource) -> str:
    """What to do about a table of a format that does not tell its columns."""
    return f"A {table.format.value} table needs its 'schema', for example \"uid BIGINT, name STRING\"."


def _words_of_streams(spec: JobSpec) -> Iterator[Fault]:
    for name, table in spec.tables.items():
        if isinstance(table, StreamTable | RateTable):
            yield _only_streaming(("tables", name, "format"), f"The format '{table.format}'")
            continue
        for word in ("role", "event_time"):
            if getattr(table, word) is not None:
                yield _only_streaming(("tables", name, word), f"'{word}'")
        if table.follow:
            yield _only_streaming(("tables", name, "follow"), "'follow'")
    for word in ("output", "schedule"):
        if getattr(spec, word) is not None:
            yield _only_streaming((word,), f"'{word}'")
    if not isinstance(spec.sink, ManagedSink):
        yield _only_streaming(("sink",), f"The sink '{spec.sink.kind}'")


def _only_streaming(at: tuple[str, ...], what: str) -> Fault:
    return Fault(at, "only_for_streams", f"{what} is for {_MODES}: set 'mode', or remove it.")


def _role_faults(spec: JobSpec) -> Iterator[Fault]:
    unclear = False
    for name in spec.tables:
        role = spec.role_of(name)
        if role is None:
            unclear = True
            detail = f"Table '{name}' needs its 'role', since there are several: 'stream' or 'static'."
            yield Fault(("tables", name, "role"), "role_required", detail)
        elif role is TableRole.STATIC and spec.tables[name].event_time is not None:
            detail = "Only rows of a stream have an event time: remove it, or give the table the role 'stream'."
            yield Fault(("tables", name, "event_time"), "event_time_not_applicable", detail)
        elif role is TableRole.STREAM and name in spec.followed:
            detail = (
                "New files of a stream are read as they come: remove 'follow', or give the table the role 'static'."
            )
            yield Fault(("tables", name, "follow"), "follow_not_applicable", detail)
    if not unclear and not spec.streams:
        detail = "No table of the job has the role 'stream': give it to the one that rows are added to."
        yield Fault(("tables",), "no_stream", detail)
