"""Writes the rows of a query as Parquet files in a directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

_FILES_ALONE = {
    # Hadoop starts a `chmod` process for every directory and file that it creates. Without the checksum files, which
    # are not needed, and without `_SUCCESS`, these are six for a result of one file instead of nine.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Otherwise Hadoop would use the cached file system that other parts of Spark created.
    "fs.file.impl.disable.cache": "true",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""Hadoop's properties of a write to local files."""


@dataclass(frozen=True)
class WrittenResult:
    """The number of rows that a query wrote, and the bytes of their files."""

    rows: int
    bytes: int


def write_parquet(frame: DataFrame, directory: Path) -> WrittenResult:
    """Runs `frame` and replaces the content of `directory` by its rows, as Parquet files only.

    Spark numbers the files by partition, so the files sorted by name have the order of the rows. A result without rows
    is one file with the schema. Rows are counted from the footers, so the query runs once. Raises what Spark raises.
    """
    # Most readers read the older INT96 in nanoseconds, which end in the year 2262.
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    # With a scheme, because Hadoop may be configured with another default file system.
    frame.write.mode("overwrite").options(**_FILES_ALONE).parquet(f"file://{directory}")
    files = result_files(directory)
    return WrittenResult(
        rows=sum(pq.read_metadata(path).num_rows for path in files),
        bytes=sum(path.stat().st_size for path in files),
    )


def result_files(directory: Path) -> tuple[Path, ...]:
    """Returns the files of a written result, in the order of its rows."""
    return tuple(sorted(directory.glob("part-*.parquet")))
