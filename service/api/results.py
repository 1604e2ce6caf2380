"""The route of a job's result: JSON in pages, or the whole result as CSV, Arrow or Parquet."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from service.api.authentication import ReaderTenant
from service.api.database_retries import RetryingRoute
from service.api.dependencies import Cursor, JobId, ServicesDep, page_size_query
from service.api.problems import problems
from service.api.representations import JSON, choose_media_type
from service.contract.errors import (
    InvalidCursorError,
    JobNotFoundError,
    NotAcceptableError,
    ResultMissingError,
    ResultNotReadyError,
)
from service.jobs.read_result import MAX_PAGE_SIZE, ResultDirectories, ResultPage, find_result, read_result
from service.results.files import ARROW, CSV, PARQUET, WRITERS, as_csv

router = APIRouter(prefix="/v1/jobs", tags=["results"], route_class=RetryingRoute)

_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


@router.get(
    "/{job_id}/result",
    response_model=ResultPage,
    summary="Read a job's result",
    responses={
        200: {
            "description": "A page of rows as JSON, or the whole result in another format.",
            "content": {CSV: {"schema": {"type": "string"}}, ARROW: _BINARY, PARQUET: _BINARY},
        },
        **problems(JobNotFoundError, ResultNotReadyError, ResultMissingError, NotAcceptableError, InvalidCursorError),
    },
)
def get_result(
    job_id: JobId,
    request: Request,
    services: ServicesDep,
    tenant: ReaderTenant,
    cursor: Cursor = "",
    page_size: Annotated[int, page_size_query("Rows per JSON page", MAX_PAGE_SIZE)] = 1000,
    csv_formulas: Annotated[
        Literal["escape", "keep"],
        Query(
            description="For CSV only: `escape` puts an apostrophe before texts that a spreadsheet would evaluate as "
            "formulas, `keep` returns every text unchanged."
        ),
    ] = "escape",
) -> Response:
    """Returns the rows in the order of the query; for a streaming job all current groups, in no particular order.

    The Accept header selects the format: JSON in pages (the default), CSV, Arrow or Parquet.
    """
    media_type = choose_media_type(request.headers.getlist("accept"), (JSON, *WRITERS))
    places = ResultDirectories(services.settings.results_dir, services.settings.streams_dir)
    if media_type == JSON:
        page = read_result(services.database, places, tenant, job_id, cursor, page_size)
        return JSONResponse(page.model_dump(), headers={"Vary": "Accept"})
    files = find_result(services.database, places, tenant, job_id).files
    ending, write = WRITERS[media_type]
    headers = {"Vary": "Accept", "Content-Disposition": f'attachment; filename="{job_id}.{ending}"'}
    chunks = as_csv(files, formulas=True) if media_type == CSV and csv_formulas == "keep" else write(files)
    # Read the first chunk now, so that missing or damaged files raise an error before the response starts.
    first = next(chunks, b"")
    return StreamingResponse(chain((first,), chunks), headers=headers, media_type=media_type)
