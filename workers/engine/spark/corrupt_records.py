"""Counts the records of text files that do not match the schema, in tables whose `mode` does not fail the job.

Spark's own mode DROPMALFORMED drops records without counting them. So the table is read in the mode PERMISSIVE, with a
column for the text of such records, which are counted and filtered out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.contract.read_options import ParseMode, ReadOptions
from service.sql.expressions.scalar import quoted

_CORRUPT_COUNT, _HASH_OF_COLUMNS = "corrupt", "hash"
"""The names of the observed metrics."""
_WAIT_SECONDS = 2.0
"""Spark reports the counts shortly after the run. It never does for a table that it did not have to read."""


class CorruptRecords:
    """The counts of one run, by table."""

    def __init__(self) -> None:
        self._observed: dict[str, Observation] = {}

    def count(self, table: str, frame: DataFrame, options: ReadOptions) -> DataFrame:
        """Returns the frame, whose corrupt records are counted when it runs; without them in mode `dropmalformed`."""
        corrupt = F.col(quoted(options.column_name_of_corrupt_record))
        observation = self._observed.setdefault(table, Observation())
        others = [F.col(quoted(name)) for name in frame.columns]
        observed = frame.observe(
            observation,
            F.count(corrupt).alias(_CORRUPT_COUNT),
            # Otherwise Spark parses only the columns that the query reads, and finds fewer records.
            F.max(F.when(corrupt.isNotNull(), F.xxhash64(*others))).alias(_HASH_OF_COLUMNS),
        )
        return without_corrupt(observed, options)

    def counts(self) -> Mapping[str, int]:
        """Returns the number of corrupt records that the run read, by table."""
        deadline = time.monotonic() + (_WAIT_SECONDS if self._observed else 0.0)
        found: dict[str, int] = {}
        for table, observation in self._observed.items():
            while not _is_done(observation) and time.monotonic() < deadline:
                time.sleep(0.02)
            if _is_done(observation):
                found[table] = int(observation.get[_CORRUPT_COUNT])
        return found


def _is_done(observation: Observation) -> bool:
    """Whether Spark has reported the metrics. To read them would wait for that without a limit."""
    java = observation._jo
    return java is not None and bool(java.future().isCompleted())


def without_corrupt(frame: DataFrame, options: ReadOptions) -> DataFrame:
    """Returns the frame without corrupt records and their column in mode `dropmalformed`."""
    if options.mode is not ParseMode.DROPMALFORMED:
        return frame
    corrupt = F.col(quoted(options.column_name_of_corrupt_record))
    return frame.filter(corrupt.isNull()).drop(corrupt)
