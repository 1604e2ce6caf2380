"""Reads the result of a successful job, or the current result of a streaming job: one page, or files to download."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from service.contract.enums import JobStatus, Mode
from service.contract.errors import InvalidLookupError, ResultMissingError, ResultNotReadyError
from service.contract.model import Frozen
from service.jobs.views import decode_cursor, encode_cursor, require_job
from service.results.columns import Column
from service.results.files import ResultFiles, open_result
from service.results.json_values import json_rows
from service.results.lookup import rows_of_result, rows_of_stream
from service.results.stream_result import open_stream_result, result_directory
from service.store.maintenance import has_lost_result
from service.store.session import Database
from service.store.streaming_state import find_stream

MANAGED = "managed"
"""The sink whose rows this service stores and serves."""

MAX_PAGE_SIZE = 10_000
"""A larger `page_size` is reduced to this."""

Rows = Annotated[
    list[list[Any]],
    WithJsonSchema(
        {
            "type": "array",
            "items": {"type": "array", "items": {}},
            "description": "One array for each row, with its values in the order of `columns`. Integers are numbers "
            "(BIGINT up to 64 bits), DECIMAL is a string, NaN and the infinities are the strings `NaN`, `Infinity`, "
            "`-Infinity`, TIMESTAMP is RFC 3339 in UTC, TIMESTAMP_NTZ the same without a zone, DATE `YYYY-MM-DD`, "
            "BINARY base64.",
        }
    ),
]


class ResultPage(Frozen):
    """A page of rows of a result."""

    columns: tuple[Column, ...]
    rows: Rows
    total_rows: int
    next_cursor: str = Field(description="The `cursor` of the next page; empty on the last page.")


@dataclass(frozen=True)
class ResultDirectories:
    """The directories of results: `results` for batch jobs, `streams` for streaming jobs."""

    results: Path
    streams: Path


@dataclass(frozen=True)
class FoundResult:
    """The files of a result. `version` identifies a version of a streaming job's result; it is empty for batch jobs."""

    files: ResultFiles
    version: str


def find_result(
    database: Database, places: ResultDirectories, tenant: str, job_id: str, version: tuple[int, int] | None = None
) -> FoundResult:
    """Returns the files of the result. For a streaming job, `version` is the generation and the version of the result
    in it; without it, the newest one is used.

    Raises JobNotFoundError, ResultNotReadyError and ResultMissingError.
    """
    place = _find_place(database, places, tenant, job_id)
    if place.generation is None:
        return FoundResult(open_result(place.directory), "")
    if version is not None and version[0] != place.generation:
        raise ResultMissingError("The job has been resumed from scratch. Start again without a cursor.")
    found = open_stream_result(place.directory, None if version is None else version[1])
    return FoundResult(found.files, f"{place.generation}.{found.version}")


@dataclass(frozen=True)
class _Place:
    """The directory of a result; `generation` is that of a streaming job's state, None for a batch job."""

    directory: Path
    generation: int | None


def _find_place(database: Database, places: ResultDirectories, tenant: str, job_id: str) -> _Place:
    """Returns where the result is. Raises JobNotFoundError, ResultNotReadyError and ResultMissingError."""
    with database.read() as session:
        row = require_job(session, tenant, job_id, with_spec=True)
        if Mode(row.mode).is_streaming:
            stream = find_stream(session, job_id)
            kind = row.spec.get("sink", {}).get("kind", MANAGED)
            if kind != MANAGED:
                raise ResultNotReadyError(f"The job writes its result to its sink '{kind}'. Read it there.")
            if stream is None:
                raise ResultNotReadyError("The job has not started. It has a result after its first mini-batch.")
            return _Place(result_directory(places.streams, row.id, stream.generation), stream.generation)
        if has_lost_result(row):
            raise ResultMissingError(
                "The job succeeded, but its result has been removed because results are kept for a limited time. "
                "Submit the job again."
            )
        if row.status != JobStatus.SUCCEEDED.value or row.result_path is None:
            raise ResultNotReadyError(f"The job is {row.status}; only a job that has SUCCEEDED has a result.")
        return _Place(places.results / row.result_path, None)


def look_up(
    database: Database, places: ResultDirectories, tenant: str, job_id: str, key: str, page_size: int
) -> ResultPage:
    """Returns at most `page_size` of the rows with the values of `key`, a JSON object by column; there is no next page.

    Raises InvalidLookupError, JobNotFoundError, ResultNotReadyError and ResultMissingError.
    """
    try:
        values = json.loads(key)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or not values:
        raise InvalidLookupError('The key is a JSON object of columns and values, such as {"k": "a"}.')
    place = _find_place(database, places, tenant, job_id)
    limit = min(page_size, MAX_PAGE_SIZE)
    if place.generation is None:
        files = open_result(place.directory)
        columns, rows = files.columns, rows_of_result(files, values, limit)
    else:
        columns, rows = rows_of_stream(place.directory, values, limit)
    return ResultPage.model_construct(columns=columns, rows=json_rows(rows), total_rows=rows.num_rows, next_cursor="")


def read_result(
    database: Database, places: ResultDirectories, tenant: str, job_id: str, cursor: str, page_size: int
) -> ResultPage:
    """Returns at most `page_size` rows that follow `cursor`; an empty cursor starts at the first row.

    All pages that follow one another are of the same version of the result. Raises JobNotFoundError,
    ResultNotReadyError, ResultMissingError and InvalidCursorError.
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
    """Returns the first row of the page, and the version of a streaming job's result (None for a batch job)."""
    if not cursor:
        return 0, None
    start, version = decode_cursor(cursor, scope, (int, str))
    generation, _, number = str(version).partition(".")
    is_version = generation.isdecimal() and number.isdecimal()
    return max(int(start), 0), (int(generation), int(number)) if is_version else None
