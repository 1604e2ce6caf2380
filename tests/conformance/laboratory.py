"""Runs a query with many settings: each distinct rewritten plan once, all in a single Spark action.

The oracle is `spark.sql` with the same text. If it fails, every plan must fail with the same error condition.
Statistics are those of the tables' files or of tables a million times larger, so that the cost model chooses plans that
it would not choose for a hundred rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.contract.job import JobSpec
from service.contract.options import JobSettings
from service.contract.problems import SpecError
from service.contract.read_options import TableFormat
from service.contract.reports import RuleOutcome
from service.contract.tables import TableSource
from service.data.files import find_table_files
from service.data.schemas import read_schema
from service.sql.compile import compile_job
from service.sql.expressions.scalar import quoted
from service.sql.resolve.bound import BoundQuery
from service.sql.types.data_types import Field, Schema
from tests.conformance.combinations import Settings, dimensions, unheard
from tests.support.rows import difference
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Aggregate, Join, Node, Scan, WindowFunctions
from workers.engine.plan.traversal import walk_up
from workers.engine.planner import plan_query
from workers.engine.rules.required_statistics import statistics_keys, summed_columns, window_orders
from workers.engine.spark.lowering import SharedFrames, lower
from workers.engine.spark.sources import TableInput, read_scan, scans_of
from workers.engine.spark.table_statistics import gather_statistics
from workers.engine.statistics.model import Statistics

SLOTS = 4
_MAGNIFIED = 1_000_000

_PLANS_PER_ACTION = 40
"""The number of plans in an action. For more plans, the time of Spark's optimizer grows faster than their number."""


@contextmanager
def interpreted(spark: SparkSession, partitions: int = 2) -> Iterator[None]:
    """Disables generated code and adaptive execution, which take most of the time of a tiny query."""
    changed = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": str(partitions),
        # The plans of an action must run separately and not be merged.
        "spark.sql.optimizer.excludedRules": ",".join(
            f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in ("MergeSubplans", "MergeScalarSubqueries")
        ),
    }
    before = {key: spark.conf.get(key, None) for key in changed}
    for key, value in changed.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            spark.conf.unset(key) if old is None else spark.conf.set(key, old)


def parquet(path: str) -> TableSource:
    """Returns a source of Parquet files."""
    return TableSource.model_validate({"format": "parquet", "path": path})


def table_input(root: Path, name: str, source: TableSource) -> TableInput:
    """Returns the table `name` below `root`, as a worker resolves it."""
    files = find_table_files(name, source, [root])
    return TableInput(source, files, read_schema(name, source, files))


@dataclass(frozen=True)
class Asked:
    """The query of a job, as `sql` or `query`, and its settings. `says` has the settings that the query itself
    forces.
    """

    job: Mapping[str, Any]
    settings: Settings
    description: str = ""
    says: Settings = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.description}{dict(self.settings)}"


@dataclass
class Tally:
    """The outcome of a query's combinations: their number and their distinct plans."""

    combinations: int = 0
    plans: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    """The reasons for refusals at submission, by query and settings."""
    fired: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    unheard: list[str] = field(default_factory=list)
    """Forced settings on which no rule has reported."""


class Laboratory:
    """Tables below `root` with their statistics. If `cached`, plans read them from memory, otherwise as a worker does.
    `thorough` plans every combination for both sizes of the tables; `one_by_one` runs each plan as its own action.
    """

    def __init__(
        self,
        spark: SparkSession,
        root: Path,
        tables: Mapping[str, TableSource],
        *,
        cached: bool,
        thorough: bool = False,
        one_by_one: bool = False,
    ) -> None:
        self._spark = spark
        self._compare = _different_ends if one_by_one else _differences
        self._thorough = thorough
        self._cached = cached
        self._inputs = {name: table_input(root, name, source) for name, source in tables.items()}
        self._frames: dict[str, DataFrame] = {}
        for name, table in self._inputs.items():
            frame = _plainly_read(spark, table)
            self._frames[name] = frame.repartition(2).cache() if cached else frame
            self._frames[name].createOrReplaceTempView(name)

    def close(self) -> None:
        """Drops the tables."""
        for name, frame in self._frames.items():
            self._spark.catalog.dropTempView(name)
            frame.unpersist()

    def compile(self, job: Mapping[str, Any], settings: Settings | None = None) -> BoundQuery:
        """Compiles a job's `sql` or `query` with these settings. Raises SpecError if it is refused."""
        tables = {name: table.source.model_dump(mode="json", by_alias=True) for name, table in self._inputs.items()}
        spec = JobSpec.model_validate({"tables": tables, **job, "settings": settings or {}})
        return compile_job(spec, self.schemas)

    @property
    def schemas(self) -> dict[str, Schema]:
        """Returns the tables' columns, as the service reads them."""
        return {name: table.schema for name, table in self._inputs.items()}

    def choices(self, text: str) -> tuple[tuple[Settings, ...], ...]:
        """Returns the dimensions of settings that concern the query."""
        nodes = list(walk_up(build(self.compile({"sql": text}))))
        calls = [call for node in nodes if isinstance(node, Aggregate) for call in node.calls]
        return dimensions(
            distinct=any(call.distinct for call in calls),
            aggregate=any(isinstance(node, Aggregate) for node in nodes),
            join=any(isinstance(node, Join) and node.keys for node in nodes),
            window=any(isinstance(node, WindowFunctions) for node in nodes),
        )

    def plans(self, text: str, combinations: Sequence[Settings]) -> Tally:
        """Plans the query with every combination, without running it."""
        tally = Tally(len(combinations))
        tally.plans = len(self._plans(text, _under(text, combinations), tally))
        return tally

    def fails(self, text: str) -> bool:
        """Whether Spark's own execution of the text fails."""
        return isinstance(_end(self._spark.sql(in_spark(text))), str)

    def check(self, text: str, combinations: Sequence[Settings]) -> Tally:
        """Runs the query with every combination, each distinct plan once, and compares the rows with those of Spark."""
        return self.check_asked(text, _under(text, combinations))

    def check_asked(self, text: str, asked: Sequence[Asked]) -> Tally:
        """Runs all of `asked`, each distinct plan once, and compares the rows with those of Spark for `text`, which is
        equivalent and has the same aliases.
        """
        tally = Tally(len(asked))
        plans = self._plans(text, asked, tally)
        tally.plans = len(plans)
        scans = self._scans(plans)
        shared = {description: SharedFrames() for description in plans.values()}
        frames = {text: lower(plan, scans, shared=shared[text]) for plan, text in plans.items()}
        expected = self._spark.sql(in_spark(text))
        types = [column.dataType for column in expected.schema]
        for description, frame in frames.items():
            if [column.dataType for column in frame.schema] != types:
                tally.wrong.append(f"{description}: the columns are {frame.schema.simpleString()}")
        if not tally.wrong:
            tally.wrong += self._compare(expected, frames)
        for each in shared.values():
            each.release()
        return tally

    def _plans(self, text: str, asked: Sequence[Asked], tally: Tally) -> dict[Node, str]:
        """Returns the distinct plans, each with the first query and settings that led to it."""
        built = build(self.compile({"sql": text}))
        known = gather_statistics(
            statistics_keys(built),
            scans_of(built),
            self._inputs,
            SLOTS,
            ranged=summed_columns(built),
            orders=window_orders(built),
        )
        both = (("", known), (" (large)", magnified(known)))
        plans: dict[Node, str] = {}
        for number, one in enumerate(asked):
            try:
                query = self.compile(one.job, one.settings)
            except SpecError as error:
                tally.refused[str(one)] = str(error)
                continue
            chosen = JobSettings.model_validate({"skew.threshold": 0, **one.settings})
            # Unless thorough, every other combination is planned for large tables.
            for size, statistics in both if self._thorough else both[number % 2 :][:1]:
                plan = plan_query(query, statistics, chosen)
                plans.setdefault(plan.after, f"{one}{size}")
                heard = unheard({**one.settings, **one.says}, {trace.rule for trace in plan.trace})
                tally.unheard += [f"{one}: {key}" for key in heard]
                tally.fired |= {trace.rule for trace in plan.trace if trace.outcome is RuleOutcome.FIRED}
        return plans

    def scans(self, text: str) -> dict[str, DataFrame]:
        """Returns the DataFrames that the query reads, by alias."""
        return self._scans([build(self.compile({"sql": text}))])

    def _scans(self, plans: Iterable[Node]) -> dict[str, DataFrame]:
        """Returns the DataFrames by alias, with all columns that a plan reads."""
        merged: dict[tuple[str, str], dict[Field, str]] = {}
        for scan in (scan for plan in plans for scan in scans_of(plan)):
            merged.setdefault((scan.alias, scan.table), {}).update(scan.columns)
        scans = [Scan(table, alias, tuple(columns.items())) for (alias, table), columns in merged.items()]
        if not self._cached:
            return {scan.alias: read_scan(self._spark, scan, self._inputs[scan.table]) for scan in scans}
        return {
            scan.alias: self._frames[scan.table].select(
                [F.col(quoted(name)).alias(found.name) for found, name in scan.columns]
            )
            for scan in scans
        }


def _under(text: str, combinations: Iterable[Settings]) -> list[Asked]:
    return [Asked({"sql": text}, settings) for settings in combinations]


def _plainly_read(spark: SparkSession, table: TableInput) -> DataFrame:
    """Reads a table with Spark's own reader and the options that correspond to the job's."""
    paths = [f"file://{path}" for path in table.files.files]
    source, options = table.source, table.source.options
    if source.format is TableFormat.PARQUET:
        return spark.read.parquet(*paths)
    return spark.read.csv(
        paths,
        schema=source.declared_schema,
        header=options.header,
        sep=options.delimiter,
        quote=options.quote,
        escape=options.quote,
        nullValue=options.null_value,
        mode="FAILFAST",
    )


def in_spark(text: str) -> str:
    """Returns the text without hints, and with Spark's functions for FIRST_VALUE and LAST_VALUE ordered by a column."""
    text = re.sub(r"/\*\+.*?\*/", "", text)
    for name, sparks in (("FIRST_VALUE", "min_by"), ("LAST_VALUE", "max_by")):
        text = re.sub(rf"{name}\((\S+) ORDER BY (\S+)\)", rf"{sparks}(\1, \2)", text)
    return text


@contextmanager
def as_if_large(times: int = _MAGNIFIED) -> Iterator[None]:
    """Makes every engine plan as if its tables were `times` as large."""

    def gather(*given: Any, **named: Any) -> Statistics:
        return magnified(gather_statistics(*given, **named), times)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workers.engine.spark.engine.gather_statistics", gather)
        yield


def magnified(known: Statistics, times: int = _MAGNIFIED) -> Statistics:
    """Returns the statistics of tables that are `times` as large, with the same shares and rates."""
    tables = {
        alias: replace(size, rows=size.rows * times, bytes=size.bytes * times) for alias, size in known.tables.items()
    }
    keys = {
        columns: replace(
            sketch,
            distinct_keys=sketch.distinct_keys * (times if sketch.distinct_keys > sketch.sampled_rows / 2 else 1),
            hot_keys=tuple(
                hot.model_copy(update={"estimated_rows": hot.estimated_rows * times}) for hot in sketch.hot_keys
            ),
        )
        for columns, sketch in known.keys.items()
    }
    return replace(known, tables=tables, keys=keys)


def _differences(expected: DataFrame, frames: Mapping[str, DataFrame]) -> list[str]:
    names, found = list(frames), list(frames.values())
    try:
        first, *rows = _together([expected, *found[:_PLANS_PER_ACTION]])
        for start in range(_PLANS_PER_ACTION, len(found), _PLANS_PER_ACTION):
            rows += _together(found[start : start + _PLANS_PER_ACTION])
    except (PySparkException, Py4JJavaError):
        # PySpark raises the latter for an error in a subquery.
        return _different_ends(expected, frames)
    wrong = ((name, difference(first, got)) for name, got in zip(names, rows, strict=True))
    return [f"{name}: {how}" for name, how in wrong if how]


def _together(frames: Sequence[DataFrame]) -> list[list[Row]]:
    """Returns the rows of each frame, in one action."""
    names = [f"c{place}" for place in range(len(frames[0].columns))]
    tagged = (frame.toDF(*names).select(F.lit(number).alias("frame"), *names) for number, frame in enumerate(frames))
    rows: list[list[Row]] = [[] for _ in frames]
    for row in reduce(DataFrame.union, tagged).collect():
        rows[row[0]].append(row[1:])
    return rows


def _different_ends(expected: DataFrame, frames: Mapping[str, DataFrame]) -> list[str]:
    """Compares the frames one by one, because one of them fails."""
    wanted = _end(expected)
    wrong = []
    for description, frame in frames.items():
        got = _end(frame)
        if isinstance(wanted, str) or isinstance(got, str):
            how = None if wanted == got else f"{got if isinstance(got, str) else 'rows'} instead of {wanted!r:.200}"
        else:
            how = difference(wanted, got)
        wrong += [f"{description}: {how}"] if how else []
    return wrong


def _end(frame: DataFrame) -> list[Row] | str:
    try:
        return frame.collect()
    except PySparkException as error:
        return error.getCondition() or type(error).__name__
