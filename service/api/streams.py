"""The routes of input streams: declare, list, read, delete, and append rows."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from service.api.authentication import ReaderTenant, SubmitterTenant
from service.api.database_retries import Repeatable, RetryingRoute
from service.api.dependencies import Cursor, ServicesDep, page_size_query
from service.api.problems import BODY_ERRORS, problems
from service.contract.errors import (
    BatchIdReusedError,
    BodyTooLargeError,
    DatabaseUnavailableError,
    InvalidCursorError,
    InvalidRowsError,
    StorageUnavailableError,
    StreamDiffersError,
    StreamInUseError,
    StreamNotFoundError,
    TooManyPostedBytesError,
    TooManyStreamsError,
    UnsupportedMediaTypeError,
)
from service.contract.model import Frozen
from service.data.posted_rows import NAME_PATTERN
from service.ingest.parsing import ARROW, CSV, NDJSON
from service.streams import manage_streams
from service.streams.append_rows import AppendedRows, PostedRows
from service.streams.append_rows import append_rows as append
from service.streams.manage_streams import MAX_PAGE_SIZE, Stream, StreamPage

router = APIRouter(prefix="/v1/streams", tags=["streams"], route_class=RetryingRoute)

StreamName = Annotated[
    str, Path(description="Name of a stream.", pattern=NAME_PATTERN, max_length=100, examples=["clicks"])
]

_BATCH_ID = r"^[\x20-\x7e]+$"
_ROWS: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            media_type: {"schema": {"type": "string", "format": "binary"}} for media_type in (ARROW, CSV, NDJSON)
        },
    }
}
"""Bodies of rows, each declared as a file. Python's generated client sends every file with the last type: NDJSON."""
_REQUEST_ID = Header(
    description="Your own request id for the logs; by default the service generates one. The response returns it."
)


class StreamDeclaration(Frozen):
    """The schema of a stream's rows."""

    declared_schema: str = Field(
        alias="schema",
        min_length=1,
        max_length=100_000,
        description="Columns as DDL. Only atomic types are allowed.",
        examples=["uid BIGINT, page STRING, at TIMESTAMP"],
    )


async def _body(request: Request) -> bytes:
    # BodyCheck has read the body already, up to its limit; a second try of the same request gets it again.
    return await request.body()


@router.put(
    "/{name}",
    response_model=Stream,
    summary="Declare a stream",
    responses={
        200: {"description": "The stream, which existed with the same schema."},
        201: {"description": "The new stream.", "model": Stream},
        **problems(*BODY_ERRORS, StreamDiffersError, TooManyStreamsError, StorageUnavailableError, spec=True),
    },
)
@Repeatable()
def declare_stream(
    name: StreamName, body: StreamDeclaration, services: ServicesDep, tenant: SubmitterTenant
) -> Response:
    """Creates a stream to which clients append rows and which jobs read. Repeating the declaration changes nothing."""
    settings = services.settings
    declared = manage_streams.declare_stream(
        services.database, settings.streams_dir, settings.limits, tenant, name, body.declared_schema
    )
    content = declared.stream.model_dump(mode="json", by_alias=True)
    return JSONResponse(content, 201 if declared.is_new else 200)


@router.get("", summary="List streams", responses=problems(InvalidCursorError))
def list_streams(
    services: ServicesDep,
    tenant: ReaderTenant,
    cursor: Cursor = "",
    page_size: Annotated[int, page_size_query("Entries per page", MAX_PAGE_SIZE)] = 50,
) -> StreamPage:
    """Returns streams, ordered by name."""
    return manage_streams.list_streams(services.database, tenant, cursor, page_size)


@router.get("/{name}", summary="Read a stream", responses=problems(StreamNotFoundError))
def get_stream(name: StreamName, services: ServicesDep, tenant: ReaderTenant) -> Stream:
    """Returns the declaration of a stream and the number of rows appended so far."""
    return manage_streams.get_stream(services.database, tenant, name)


@router.delete(
    "/{name}", status_code=204, summary="Delete a stream", responses=problems(StreamNotFoundError, StreamInUseError)
)
def delete_stream(name: StreamName, services: ServicesDep, tenant: SubmitterTenant) -> None:
    """Deletes the stream with all its rows. Fails while unfinished jobs read the stream."""
    manage_streams.delete_stream(services.database, services.settings.streams_dir, tenant, name)


@router.post(
    "/{name}/rows",
    status_code=202,
    summary="Append rows to a stream",
    openapi_extra=_ROWS,
    responses={
        202: {"description": "The rows are stored durably, exactly once."},
        **problems(
            BodyTooLargeError,
            UnsupportedMediaTypeError,
            StreamNotFoundError,
            InvalidRowsError,
            BatchIdReusedError,
            TooManyPostedBytesError,
            DatabaseUnavailableError,
            StorageUnavailableError,
        ),
    },
)
@Repeatable(query="batch_id")
def append_rows(
    name: StreamName,
    body: Annotated[bytes, Depends(_body)],
    request: Request,
    services: ServicesDep,
    tenant: SubmitterTenant,
    batch_id: Annotated[
        str,
        Query(
            min_length=1,
            max_length=255,
            pattern=_BATCH_ID,
            description="Any printable ASCII text. A request with the same id and body is the same batch as long as "
            "the stream exists: after a failure, repeat it. With another body it is rejected.",
            examples=["sensor-7/000042"],
        ),
    ],
    # For the specification. For an operation with several body types and no optional parameter, the Python client
    # generator writes a module that cannot be imported.
    x_request_id: Annotated[str, _REQUEST_ID] = "",  # noqa: ARG001
) -> AppendedRows:
    """Appends a batch of rows, all or none. Columns that a row omits are NULL."""
    media_type = request.headers["content-type"].partition(";")[0].strip().lower()
    posted = PostedRows(tenant, name, batch_id, media_type, body)
    return append(services.database, services.settings.streams_dir, services.settings.limits, posted)
