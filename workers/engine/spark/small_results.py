"""Collects small results, and writes them as one Parquet file without a Spark job for the write.

A write through Spark optimises the query again, and commits directories and files: 0.2 s more for queries of TPC-H. A
collected result runs the plan that the report shows. Larger results stay on the executors.

A batch job's result is small if its plan has a bound, or if it has few groups by the statistics (`is_small`). If there
are far more groups than expected, Spark refuses to collect them (`spark.driver.maxResultSize`), and writes them. That
of a mini-batch depends on the input of the mini-batch: the plan says whether the input limits it
(`is_limited_by_input`), and Spark how large it is then (`estimated_bytes`).
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as T  # noqa: N812 - the name every Spark program gives it

from service.contract.query import JoinKind
from workers.engine.plan.nodes import (
    Aggregate,
    Deduplicate,
    Exchange,
    Expand,
    Filter,
    Join,
    Limit,
    MultisetOperation,
    Node,
    Project,
    Scan,
    Sort,
    Union,
    Values,
    Watermark,
    WindowFunctions,
)
from workers.engine.plan.traversal import walk_up
from workers.engine.spark.session_options import keeps_values
from workers.engine.statistics.cardinality import bytes_per_row, estimate_rows
from workers.engine.statistics.model import Statistics

_log = logging.getLogger(__name__)

MOST_BYTES = 4 << 20
"""The most bytes of a collected result, without those of texts."""

MOST_ROWS_OF_TEXT = 100
"""The most rows of a collected result with texts or binary values, whose length is not known."""

MOST_GROUPS = 100_000
"""The most rows of a collected result whose number is an estimate."""

MOST_POSSIBLE_BYTES = 256 << 20
"""The most bytes of a result whose number of rows is an estimate, if each row that is read were a group. Queries over
more rows gain little."""

_EXPECTED_TEXT = 32
"""Bytes of a text in a result whose number of rows is an estimate, in addition to the bytes of a row in the files."""

_SPARK_SCHEMA = "org.apache.spark.sql.parquet.row.metadata"
_SPARK_VERSION = "org.apache.spark.version"
"""The keys of metadata that Spark writes too: the types of the columns, which the service reads, and the version, from
which readers know the calendar of old dates.
"""

_REFUSED = "spark.driver.maxResultSize"

_WIDTHS: dict[type[T.DataType], int] = {
    T.BooleanType: 1,
    T.ByteType: 1,
    T.ShortType: 2,
    T.IntegerType: 4,
    T.LongType: 8,
    T.FloatType: 4,
    T.DoubleType: 8,
    T.DecimalType: 16,
    T.DateType: 4,
    T.TimestampType: 8,
    T.TimestampNTZType: 8,
}
"""The bytes of a value, by type."""

_TEXTS = (T.StringType, T.BinaryType)

_LIMITED_BY_INPUT = (Aggregate, Deduplicate, Exchange, Expand, Filter, Join, Project, Scan, Union, Watermark)

_MAKES_LONG_TEXTS = re.compile(r"\b(?:repeat|space|[lr]pad|array_repeat|sequence)\(", re.IGNORECASE)
"""Functions whose result may be much longer than their arguments."""


def is_small(plan: Node, sql: str, statistics: Statistics, schema: T.StructType) -> bool:
    """Whether the result of `plan`, which `sql` computes, is small enough to be collected. `schema` has its columns.

    The length of a text has no bound. It is assumed to be short unless an aggregate or a function makes it from many
    values.
    """
    types = [type(field.dataType) for field in schema.fields]
    if not types or keeps_values(plan) or not all(each in _WIDTHS or each in _TEXTS for each in types):
        return False
    has_text = any(each in _TEXTS for each in types)
    if has_text and _MAKES_LONG_TEXTS.search(sql) is not None:
        return False
    rows = most_rows(plan, statistics)
    is_bounded = (
        rows is not None
        and rows * sum(_WIDTHS.get(each, 0) for each in types) <= MOST_BYTES
        and (not has_text or rows <= MOST_ROWS_OF_TEXT)
    )
    return is_bounded or _has_few_groups(plan, types, replace(statistics, guesses=True))


def _has_few_groups(plan: Node, types: Sequence[type[T.DataType]], statistics: Statistics) -> bool:
    """Whether the rows of `plan` are groups, by the estimate few, and a driver can also collect them if there are many
    more. The estimate of other rows may be farther off.
    """
    while isinstance(plan, Project | Filter | Sort | Limit | WindowFunctions):
        plan = plan.input
    if not isinstance(plan, Aggregate):
        return False
    groups, most = estimate_rows(plan, statistics), estimate_rows(plan.input, statistics)
    # A long text takes as many bytes in the files, unless it repeats.
    text = _EXPECTED_TEXT + bytes_per_row(plan, statistics)
    width = sum(_WIDTHS.get(each, text) for each in types)
    is_bounded = most is not None and most * width <= MOST_POSSIBLE_BYTES
    return is_bounded and groups is not None and groups <= min(MOST_GROUPS, MOST_BYTES / width)


def most_rows(plan: Node, statistics: Statistics) -> int | None:
    """Returns a bound of the rows that `plan` emits; None if there is none."""
    match plan:
        case Limit(count=count) if count is not None:
            below = most_rows(plan.input, statistics)
            return count if below is None else min(count, below)
        case Aggregate() if not plan.grouping_sets and not plan.keys:
            return 1
        case Aggregate() if plan.grouping_sets:
            return None
        case Values():
            return len(plan.rows)
        case Union():
            return _total([most_rows(each, statistics) for each in plan.inputs], sum)
        case Join(kind=JoinKind.LEFT_SEMI | JoinKind.LEFT_ANTI) | MultisetOperation():
            return most_rows(plan.left, statistics)
        case Join():
            # Each pair of rows, and the rows of an outer join that have no partner.
            return _total([most_rows(each, statistics) for each in (plan.left, plan.right)], _pairs)
        case Aggregate() | Deduplicate() | Exchange() | Filter() | Limit() | Project() | Sort() | WindowFunctions():
            return most_rows(plan.input, statistics)
        case Scan():
            size = statistics.tables.get(plan.alias)
            return size.rows if size is not None and size.rows_are_exact else None
        case _:
            return None


def _total(bounds: Sequence[int | None], combine: Callable[[Sequence[int]], int]) -> int | None:
    known = [bound for bound in bounds if bound is not None]
    return combine(known) if len(known) == len(bounds) else None


def _pairs(bounds: Sequence[int]) -> int:
    left, right = bounds
    return max(left, 1) * max(right, 1) + left + right


def is_limited_by_input(plan: Node, sql: str, schema: T.StructType) -> bool:
    """Whether a mini-batch of `plan`, which `sql` computes, emits about as much as it reads. `schema` has its columns.

    A group is emitted if the mini-batch has changed it, so there are no more groups than rows. But a closed window, or
    a join of streams, emits rows of earlier mini-batches.
    """
    types = [type(field.dataType) for field in schema.fields]
    return (
        all(isinstance(node, _LIMITED_BY_INPUT) and getattr(node, "within", None) is None for node in walk_up(plan))
        and all(each in _WIDTHS or each in _TEXTS for each in types)
        and bool(types)
        and _MAKES_LONG_TEXTS.search(sql) is None
    )


def estimated_bytes(frame: DataFrame) -> int:
    """Returns Spark's estimate of a result: that of the files to be read, times what each operator adds to a row. The
    pairs of a join count as if every row had a partner in every other row.
    """
    return int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())


def collect_parquet(frame: DataFrame, directory: Path) -> bool:
    """Runs `frame` and replaces the content of `directory` by one Parquet file with its rows, in their order.

    Returns False if Spark refuses to collect as many bytes, or the file cannot be written; a write through Spark then
    succeeds, or raises an error that names the cause. Raises what Spark raises.
    """
    session = frame.sparkSession
    try:
        table = frame.toArrow()
    except (PySparkException, Py4JJavaError) as error:
        if _REFUSED in str(error):
            return False
        raise
    try:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        with pq.ParquetWriter(directory / "part-00000.parquet", table.schema, store_schema=False) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({_SPARK_SCHEMA: frame.schema.json(), _SPARK_VERSION: session.version})
    except OSError:
        _log.warning("the collected result was not written", exc_info=True)
        return False
    return True
