"""The rows of staged mini-batches, as Arrow reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from service.results.arrow_types import arrow_schema
from service.spec.types import Field
from workers.engine.streaming.sinks.sink import SinkError, Staged


def staged_schema(columns: Sequence[Field]) -> pa.Schema:
    """The columns in Arrow. Raises SinkError for a column that files cannot hold."""
    try:
        return arrow_schema(columns)
    except ValueError as error:
        raise SinkError(f"{error} Leave it out, or CAST it to another type.") from error


def staged_rows(staged: Staged, schema: pa.Schema, at_once: int) -> Iterator[pa.RecordBatch]:
    """The rows in their order, at most `at_once` of them in a batch."""
    for path in staged.files:
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            for batch in file.iter_batches(batch_size=at_once):
                yield batch.select(schema.names).cast(schema)
