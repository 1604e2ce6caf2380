"""Streams of posted rows: declare, post to, list, read, delete."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from service.api.authentication import ReaderTenant, SubmitterTenant
from service.api.dependencies import Cursor, ServicesDep
from service.api.middleware import Repeatable, SteadyRoute
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
from service.streams.append_rows import AppendedRows, PostedRows
from service.streams.append_rows import append_rows as append
from service.streams.manage_streams import MAX_PAGE_SIZE, Stream, StreamPage
from service.streams.manage_streams import declare_stream as declare
from service.streams.manage_streams import delete_stream as delete
from service.streams.manage_streams import get_stream as get
from service.streams.manage_streams import list_streams as list_page

router = APIRouter(prefix="/v1/streams", tags=["streams"], route_class=SteadyRoute)

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
"""Files, all of them. Python's generated client knows a file by its class alone, and sends each as the last: NDJSON."""
_REQUEST_ID = Header(
    description="Your own id of the request, for the logs, in place of one that the service makes. The answer has it."
)


class StreamDeclaration(Frozen):
    """What the rows of a stream are."""

    declared_schema: str = Field(
        alias="schema",
        min_length=1,
        max_length=100_000,
        description="Columns as DDL, of atomic types.",
        examples=["uid BIGINT, page STRING, at TIMESTAMP"],
    )


async def _body(request: Request) -> bytes:
    # The guard has read it, up to its limit; a second try of the same request finds it again.
    return await request.body()


@router.put(
    "/{name}",
    response_model=Stream,
    summary="Declare a stream",
    responses={
        200: {"description": "The stream, which was declared so before."},
        201: {"description": "The stream, from now on.", "model": Stream},
        **problems(*BODY_ERRORS, StreamDiffersError, TooManyStreamsError, StorageUnavailableError, spec=True),
    },
)
@Repeatable()
def declare_stream(
    name: StreamName, body: StreamDeclaration, services: ServicesDep, tenant: SubmitterTenant
) -> Response:
    """Makes a stream that rows can be posted to and jobs can read. The same declaration again changes nothing."""
    settings = services.settings
    declared = declare(services.database, settings.streams_dir, settings.limits, tenant, name, body.declared_schema)
    content = declared.stream.model_dump(mode="json", by_alias=True)
    return JSONResponse(content, 201 if declared.is_new else 200)


@router.get("", summary="List streams", responses=problems(InvalidCursorError))
def list_streams(
    services: ServicesDep,
    tenant: ReaderTenant,
    cursor: Cursor = "",
    page_size: Annotated[
        int, Query(ge=1, description=f"Streams on a page; more than {MAX_PAGE_SIZE} is read as {MAX_PAGE_SIZE}.")
    ] = 50,
) -> StreamPage:
    """Streams by name."""
    return list_page(services.database, tenant, cursor, page_size)


@router.get("/{name}", summary="Read a stream", responses=problems(StreamNotFoundError))
def get_stream(name: StreamName, services: ServicesDep, tenant: ReaderTenant) -> Stream:
    """A stream as declared, and what was posted to it so far."""
    return get(services.database, tenant, name)


@router.delete(
    "/{name}", status_code=204, summary="Delete a stream", responses=problems(StreamNotFoundError, StreamInUseError)
)
def delete_stream(name: StreamName, services: ServicesDep, tenant: SubmitterTenant) -> None:
    """Removes the stream with all its rows, unless jobs read it that have not finished."""
    delete(services.database, services.settings.streams_dir, tenant, name)


@router.post(
    "/{name}/rows",
    status_code=202,
    summary="Post rows to a stream",
    openapi_extra=_ROWS,
    responses={
        202: {"description": "The rows are stored, once, and survive a crash."},
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
            description="Any printable ASCII text of your choice. The same id with the same body is the same batch "
            "for as long as the stream is there: after a failure, repeat the post. With another body it is refused.",
            examples=["sensor-7/000042"],
        ),
    ],
    # For the specification. Where bodies of several types are all that is to choose, Python's generator of clients
    # writes a module that cannot be imported.
    x_request_id: Annotated[str, _REQUEST_ID] = "",  # noqa: ARG001
) -> AppendedRows:
    """Appends a batch of rows, all or none. Columns that a row leaves out are NULL."""
    media_type = request.headers["content-type"].partition(";")[0].strip().lower()
    posted = PostedRows(tenant, name, batch_id, media_type, body)
    return append(services.database, services.settings.streams_dir, services.settings.limits, posted)
