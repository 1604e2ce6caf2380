"""The result of a job: pages of JSON, or everything as CSV, Arrow or Parquet."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from service.api.authentication import ReaderTenant
from service.api.dependencies import Cursor, JobId, ServicesDep
from service.api.negotiation import choose
from service.api.problems import problems
from service.api.retries import SteadyRoute
from service.errors import (
    InvalidCursorError,
    JobNotFoundError,
    NotAcceptableError,
    ResultMissingError,
    ResultNotReadyError,
)
from service.jobs.read_result import MAX_PAGE_SIZE, Places, ResultPage, find_result, read_result
from service.results.downloads import ARROW, CSV, PARQUET, WRITERS, as_csv

router = APIRouter(prefix="/v1/jobs", tags=["results"], route_class=SteadyRoute)

JSON = "application/json"
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
    page_size: Annotated[
        int, Query(ge=1, description=f"Rows on a JSON page; more than {MAX_PAGE_SIZE} is read as {MAX_PAGE_SIZE}.")
    ] = 1000,
    csv_formulas: Annotated[
        Literal["escape", "keep"],
        Query(
            description="CSV alone: `escape` puts an apostrophe before texts that a spreadsheet would run as formulas, "
            "`keep` gives every text as it is."
        ),
    ] = "escape",
) -> Response:
    """Rows in the order of the query; of a streaming job all groups as they are now, in an order of their own.

    The Accept header chooses: JSON in pages (the default), CSV, Arrow or Parquet.
    """
    media_type = choose(request.headers.getlist("accept"), (JSON, *WRITERS))
    places = Places(services.settings.results_dir, services.settings.streams_dir)
    if media_type == JSON:
        page = read_result(services.database, places, tenant, job_id, cursor, page_size)
        return JSONResponse(page.model_dump(), headers={"Vary": "Accept"})
    files = find_result(services.database, places, tenant, job_id).files
    ending, write = WRITERS[media_type]
    headers = {"Vary": "Accept", "Content-Disposition": f'attachment; filename="{job_id}.{ending}"'}
    chunks = as_csv(files, formulas=True) if media_type == CSV and csv_formulas == "keep" else write(files)
    # Files that are gone or damaged are found out before the answer begins.
    first = next(chunks, b"")
    return StreamingResponse(chain((first,), chunks), headers=headers, media_type=media_type)
