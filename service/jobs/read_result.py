"""Reads the result of a job that SUCCEEDED, or of a stream as it is: a page of it, or its files for a download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from service.contract.enums import JobStatus, Mode
from service.contract.errors import ResultMissingError, ResultNotReadyError
from service.contract.model import Frozen
from service.jobs.views import decode_cursor, encode_cursor, require_job
from service.results.columns import Column, json_rows
from service.results.files import ResultFiles, open_result
from service.results.stream_result import open_stream_result, result_directory
from service.store.maintenance import has_lost_its_result
from service.store.session import Database
from service.store.streaming_state import find_stream
from service.store.tables import JobRow

MANAGED = "managed"
"""The sink whose rows this service keeps."""

MAX_PAGE_SIZE = 10_000
"""A larger `page_size` is read as this."""

Rows = Annotated[
    list[list[Any]],
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "array", "items": {}},
            "description": "One array a row, its values in the order of `columns`. Integers are numbers (BIGINT up to "
            "64 bits), DECIMAL is a string, NaN and the infinities are the strings `NaN`, `Infinity`, `-Infinity`, "
            "TIMESTAMP is RFC 3339 in UTC, TIMESTAMP_NTZ the same without zone, DATE `YYYY-MM-DD`, BINARY base64.",
        }
    ),
]


class ResultPage(Frozen):
    """Some rows of a result."""

    columns: tuple[Column, ...]
    rows: Rows
    total_rows: int
    next_cursor: str = Field(description="Give it as `cursor` for the next page; empty on the last one.")


@dataclass(frozen=True)
class Places:
    """Where results are: those of jobs that ended, and what streaming jobs keep."""

    results: Path
    streams: Path


@dataclass(frozen=True)
class FoundResult:
    """The files of a result. `version` tells it from others of the same job: a stream's changes as it runs."""

    files: ResultFiles
    version: str


def find_result(
    database: Database, places: Places, tenant: str, job_id: str, version: tuple[int, int] | None = None
) -> FoundResult:
    """The files of the result; of a streaming job those of its newest state, or of `version`: generation and version of
    the result in it.

    Raises JobNotFoundError, ResultNotReadyError and ResultMissingError.
    """
    with database.read() as session:
        row = require_job(session, tenant, job_id, with_spec=True)
        if Mode(row.mode).is_streaming:
            stream = find_stream(session, job_id)
            generation = None if stream is None else stream.generation
            return _of_stream(places.streams, row, generation, version)
        if has_lost_its_result(row):
            raise ResultMissingError(
                "The job succeeded, and its result has been removed since: results are kept for a limited time. "
                "Submit the job again."
            )
        if row.status != JobStatus.SUCCEEDED.value or row.result_path is None:
            raise ResultNotReadyError(f"The job is {row.status}; only a job that SUCCEEDED has a result.")
        directory = places.results / row.result_path
    return FoundResult(open_result(directory), "")


def _of_stream(streams: Path, row: JobRow, generation: int | None, version: tuple[int, int] | None) -> FoundResult:
    kind = row.spec.get("sink", {}).get("kind", MANAGED)
    if kind != MANAGED:
        raise ResultNotReadyError(f"The result of this job goes to its sink, '{kind}': read it there.")
    if generation is None:
        raise ResultNotReadyError("The job has not begun: its result comes with the first mini-batch.")
    if version is not None and version[0] != generation:
        raise ResultMissingError("The job was resumed from scratch meanwhile. Start again without a cursor.")
    found = open_stream_result(result_directory(streams, row.id, generation), None if version is None else version[1])
    return FoundResult(found.files, f"{generation}.{found.version}")


def read_result(
    database: Database, places: Places, tenant: str, job_id: str, cursor: str, page_size: int
) -> ResultPage:
    """At most `page_size` rows from behind `cursor` (empty: from the first on). All pages that follow each other are of
    one version of the result.

    Raises JobNotFoundError, ResultNotReadyError, ResultMissingError and InvalidCursorError.
    """
    scope = f"result|{job_id}"
    start, version = _position(cursor, scope)
    found = find_result(database, places, tenant, job_id, version)
    files = found.files
    table = files.page(start, min(page_size, MAX_PAGE_SIZE))
    end = start + table.num_rows
    return ResultPage.model_construct(
        columns=files.columns,
        rows=json_rows(table),
        total_rows=files.rows,
        next_cursor=encode_cursor([end, found.version], scope) if end < files.rows else "",
    )


def _position(cursor: str, scope: str) -> tuple[int, tuple[int, int] | None]:
    """Where the next page begins, and in which version of a stream's result; a job that ends has one alone."""
    if not cursor:
        return 0, None
    start, version = decode_cursor(cursor, scope, (int, str))
    generation, _, number = str(version).partition(".")
    is_version = generation.isdecimal() and number.isdecimal()
    return max(int(start), 0), (int(generation), int(number)) if is_version else None
