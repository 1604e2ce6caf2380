"""Reads the result of a job that SUCCEEDED: a page of it, or its files for a download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from service.errors import ResultMissingError, ResultNotReadyError
from service.jobs.cursors import decode_cursor, encode_cursor
from service.jobs.find import require_job
from service.results.columns import Column
from service.results.files import ResultFiles, open_result
from service.results.json_values import json_rows
from service.spec.model import Frozen
from service.spec.status import JobStatus
from service.store.retention import has_lost_its_result
from service.store.session import Database

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


def find_result(database: Database, results: Path, tenant: str, job_id: str) -> ResultFiles:
    """The files of the result. Raises JobNotFoundError, ResultNotReadyError and ResultMissingError."""
    with database.read() as session:
        row = require_job(session, tenant, job_id)
        if has_lost_its_result(row):
            raise ResultMissingError(
                "The job succeeded, and its result has been removed since: results are kept for a limited time. "
                "Submit the job again."
            )
        if row.status != JobStatus.SUCCEEDED.value or row.result_path is None:
            raise ResultNotReadyError(f"The job is {row.status}; only a job that SUCCEEDED has a result.")
        directory = results / row.result_path
    return open_result(directory)


def read_result(database: Database, results: Path, tenant: str, job_id: str, cursor: str, page_size: int) -> ResultPage:
    """At most `page_size` rows from behind `cursor` (empty: from the first on).

    Raises JobNotFoundError, ResultNotReadyError, ResultMissingError and InvalidCursorError.
    """
    files = find_result(database, results, tenant, job_id)
    scope = f"result|{job_id}"
    start = int(decode_cursor(cursor, scope, (int,))[0]) if cursor else 0
    table = files.page(max(start, 0), min(page_size, MAX_PAGE_SIZE))
    end = max(start, 0) + table.num_rows
    return ResultPage.model_construct(
        columns=files.columns,
        rows=json_rows(table),
        total_rows=files.rows,
        next_cursor=encode_cursor([end], scope) if end < files.rows else "",
    )
