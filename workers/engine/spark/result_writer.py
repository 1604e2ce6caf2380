"""Results as Parquet files in a directory of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame

_FILES_ALONE = {
    # Hadoop forks a `chmod` for every directory and every file that it makes. Without the checksum files, which nobody
    # reads, and `_SUCCESS` these are six for a result of one file instead of nine.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Else it takes the one that other parts of Spark have made.
    "fs.file.impl.disable.cache": "true",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""Hadoop's properties of a write to local files."""


@dataclass(frozen=True)
class WrittenResult:
    """What a query wrote: rows, and bytes of the files with the rows."""

    rows: int
    bytes: int


def write_parquet(frame: DataFrame, directory: Path) -> WrittenResult:
    """Runs `frame` and writes its rows as Parquet files below `directory`, replacing what is there, and nothing else.

    Spark numbers the files by partition, so sorted by name they keep the rows' order; a result without rows is one
    file with the schema. Rows are counted from the footers, so the query runs once. Raises what Spark raises.
    """
    # The older INT96 is read in nanoseconds by most, which end in the year 2262.
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    # With its scheme: the file system that Hadoop's configuration names by default may be another one.
    frame.write.mode("overwrite").options(**_FILES_ALONE).parquet(f"file://{directory}")
    files = result_files(directory)
    return WrittenResult(
        rows=sum(pq.read_metadata(path).num_rows for path in files),
        bytes=sum(path.stat().st_size for path in files),
    )


def result_files(directory: Path) -> tuple[Path, ...]:
    """The files of a written result, in the order of its rows."""
    return tuple(sorted(directory.glob("part-*.parquet")))
