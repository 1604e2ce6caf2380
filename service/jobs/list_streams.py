"""Lists streams of posted rows by name, page by page."""

from __future__ import annotations

from pydantic import Field

from service.jobs.cursors import decode_cursor, encode_cursor
from service.jobs.stream_views import Stream
from service.spec.model import Frozen
from service.store import ingest
from service.store.session import Database

MAX_PAGE_SIZE = 200
"""A larger `page_size` is read as this."""

_SCOPE = "streams"


class StreamPage(Frozen):
    """One page of the list of streams."""

    streams: tuple[Stream, ...]
    next_cursor: str = Field(description="Give it as `cursor` for the next page; empty on the last one.")


def list_streams(database: Database, tenant: str, cursor: str, page_size: int) -> StreamPage:
    """A page of at most `page_size` streams from behind `cursor` (empty: from the first name on).

    Raises InvalidCursorError.
    """
    after = str(decode_cursor(cursor, _SCOPE, (str,))[0]) if cursor else ""
    limit = min(page_size, MAX_PAGE_SIZE)
    with database.read() as session:
        # One more than asked for tells whether there is a next page.
        found = ingest.list_streams(session, tenant=tenant, after=after, limit=limit + 1)
    page = found[:limit]
    return StreamPage(
        streams=tuple(Stream.of(stream) for stream in page),
        next_cursor=encode_cursor([page[-1].name], _SCOPE) if len(found) > limit else "",
    )
