"""Reads Avro files into DataFrames. Spark's Python workers decode them with `fastavro`, one task a file up to a limit.

The files are read where the tasks run: executors on other machines need the data roots, and `evenkeel` in their Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from service.data.avro_files import AvroFileError, read_header, records
from service.data.file_io import DataFile, local_path, open_without_links

MARK = "AvroFileError"
"""In the messages of errors of the Python workers, before the sentence for the client."""

_MAX_TASKS = 4096
"""Of one read. A task reads several files if a table has more."""


def read_avro(session: SparkSession, files: Sequence[DataFile], ddl: str) -> DataFrame:
    """Returns the columns of `ddl` of local `files`. No row is read yet.

    A file that is damaged fails the query that reads it, with `MARK` in the message.
    """
    # `repartition` would put several files into one partition, and none into others.
    paths = [(str(local_path(file)),) for file in files]
    sliced = session.sparkContext.parallelize(paths, min(len(paths), _MAX_TASKS))
    listed = session.createDataFrame(sliced, "path STRING")
    schema = to_arrow_schema(session.createDataFrame([], ddl).schema, timezone="UTC")
    return listed.mapInArrow(_reader(schema), ddl)


def _reader(schema: pa.Schema) -> Any:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch.column(0).to_pylist():
                yield from read_file(path, schema)

    return read


def read_file(path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a local file. Raises AvroFileError with the name of the file."""
    name = path.rpartition("/")[2]
    try:
        with open_without_links(Path(path)) as stream:
            header = read_header(stream)
            for rows in records(stream, header):
                yield pa.RecordBatch.from_pylist(rows, schema=schema)
    except AvroFileError as error:
        raise AvroFileError(f"'{name}' {error}.") from None
    except OSError as error:
        raise AvroFileError(f"'{name}' cannot be read: {error.strerror}.") from None
    except (pa.ArrowException, ValueError, OverflowError):
        raise AvroFileError(f"'{name}' has values that do not match the columns of the table.") from None
