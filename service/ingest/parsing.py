"""A posted body as a table of the stream's columns, whatever it is written in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from service.ingest.arrow_stream import read_arrow
from service.ingest.csv_rows import read_csv
from service.ingest.faults import invalid_rows, no_rows
from service.ingest.media_types import ARROW, CSV, NDJSON
from service.ingest.ndjson import read_ndjson
from service.spec.types import Schema

_TEXTS: Mapping[str, Callable[[str, Schema], pa.Table]] = {NDJSON: read_ndjson, CSV: read_csv}


def rows_of(body: bytes, media_type: str, schema: Schema) -> pa.Table:
    """The rows in `body`: every column of `schema` in its order and type, NULL where it was left out.

    `media_type` is one of those that rows may come in. Raises InvalidRowsError for the first thing that is wrong: rows
    are taken all or none.
    """
    table = read_arrow(body, schema) if media_type == ARROW else _TEXTS[media_type](_decoded(body), schema)
    if table.num_rows == 0:
        raise no_rows()
    return table


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        line = 1 + body.count(b"\n", 0, error.start)
        raise invalid_rows("malformed_row", "This is not UTF-8.", line=line) from None
