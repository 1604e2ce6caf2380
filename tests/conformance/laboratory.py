"""A query under many settings, each rewritten plan run once, all of them by a single Spark action.

The oracle is Spark's own reading of the text (`spark.sql`); where that fails, every plan must fail with the same
condition. Statistics are those of the tables' files, or the same of tables a million times as large, so that the cost
takes ways that it would not take for a hundred rows.
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

from service.contract.job import JobSpec, TableFormat, TableSource
from service.contract.options import JobSettings
from service.contract.problems import SpecError
from service.contract.reports import RuleOutcome
from service.data.files import find_table_files
from service.data.schemas import read_schema
from service.sql.compile import compile_job
from service.sql.expressions.scalar import quoted
from service.sql.resolve.bound import BoundQuery
from service.sql.types.data_types import Field, Schema
from tests.conformance.combinations import Settings, dimensions, unheard
from tests.support.rows import difference
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Aggregate, Join, Node, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.planner import plan_query
from workers.engine.rules.required_statistics import statistics_keys, summed_columns
from workers.engine.spark.lowering import lower
from workers.engine.spark.sources import TableInput, read_scan, scans_of
from workers.engine.spark.table_statistics import gather_statistics
from workers.engine.statistics.model import Statistics

SLOTS = 4
_MAGNIFIED = 1_000_000

_AT_ONCE = 40
"""Plans of one action: Spark's optimizer takes more than its share of time for more."""


@contextmanager
def interpreted(spark: SparkSession, partitions: int = 2) -> Iterator[None]:
    """Without what costs a tiny query most of its time: generated code and adaptive execution."""
    changed = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": str(partitions),
        # Plans that stand beside each other are to run as they are, not merged into one.
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
    """A table of Parquet files."""
    return TableSource.model_validate({"format": "parquet", "path": path})


def table_input(root: Path, name: str, source: TableSource) -> TableInput:
    """The table `name` below `root`, as a worker finds it."""
    files = find_table_files(name, source, [root])
    return TableInput(source, files, read_schema(name, source, files))


@dataclass(frozen=True)
class Asked:
    """A job's query as it was put, `sql` or `query`, and its settings; `says` is what the query itself forces, in the
    words of the settings.
    """

    job: Mapping[str, Any]
    settings: Settings
    told: str = ""
    says: Settings = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.told}{dict(self.settings)}"


@dataclass
class Tally:
    """What became of a query's combinations: how many there were, and the plans among them."""

    combinations: int = 0
    plans: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    """By what was asked, why it was refused at submission."""
    fired: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    unheard: list[str] = field(default_factory=list)
    """Forced settings that neither made a rule fire nor one say why it did not."""


class Laboratory:
    """Tables below `root`, by name, and what is known of them. `cached`: plans read them from memory, else as a worker
    does. `thorough` plans every combination for both sizes of them; `one_by_one`, each plan is an action of its own.
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
        """Forgets the tables."""
        for name, frame in self._frames.items():
            self._spark.catalog.dropTempView(name)
            frame.unpersist()

    def compile(self, job: Mapping[str, Any], settings: Settings | None = None) -> BoundQuery:
        """The query of a job, put as `sql` or `query`, with these settings. Raises SpecError where it is refused."""
        tables = {name: table.source.model_dump(mode="json", by_alias=True) for name, table in self._inputs.items()}
        spec = JobSpec.model_validate({"tables": tables, **job, "settings": settings or {}})
        return compile_job(spec, self.schemas)

    @property
    def schemas(self) -> dict[str, Schema]:
        """The tables' columns, as the service reads them."""
        return {name: table.schema for name, table in self._inputs.items()}

    def choices(self, text: str) -> tuple[tuple[Settings, ...], ...]:
        """The dimensions of settings that concern the query."""
        nodes = list(walk_up(build(self.compile({"sql": text}))))
        calls = [call for node in nodes if isinstance(node, Aggregate) for call in node.calls]
        return dimensions(
            distinct=any(call.distinct for call in calls),
            aggregate=any(isinstance(node, Aggregate) for node in nodes),
            join=any(isinstance(node, Join) and node.keys for node in nodes),
        )

    def plans(self, text: str, combinations: Sequence[Settings]) -> Tally:
        """Plans the query under every combination, and runs nothing."""
        tally = Tally(len(combinations))
        tally.plans = len(self._plans(text, _under(text, combinations), tally))
        return tally

    def fails(self, text: str) -> bool:
        """Whether Spark itself gives an error for the text."""
        return isinstance(_end(self._spark.sql(in_spark(text))), str)

    def check(self, text: str, combinations: Sequence[Settings]) -> Tally:
        """Runs the query under every combination, each plan once, and compares it with Spark's own answer."""
        return self.check_asked(text, _under(text, combinations))

    def check_asked(self, text: str, asked: Sequence[Asked]) -> Tally:
        """Runs what was asked, each plan once, and compares it with Spark's own answer to `text`, which all of it means
        and of whose aliases it all is.
        """
        tally = Tally(len(asked))
        plans = self._plans(text, asked, tally)
        tally.plans = len(plans)
        scans = self._scans(plans)
        frames = {told: lower(plan, scans) for plan, told in plans.items()}
        expected = self._spark.sql(in_spark(text))
        types = [column.dataType for column in expected.schema]
        for told, frame in frames.items():
            if [column.dataType for column in frame.schema] != types:
                tally.wrong.append(f"{told}: the columns are {frame.schema.simpleString()}")
        if not tally.wrong:
            tally.wrong += self._compare(expected, frames)
        return tally

    def _plans(self, text: str, asked: Sequence[Asked], tally: Tally) -> dict[Node, str]:
        """Every different plan, and what was asked first that led to it."""
        built = build(self.compile({"sql": text}))
        known = gather_statistics(
            statistics_keys(built), scans_of(built), self._inputs, SLOTS, ranged=summed_columns(built)
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
            # Every other combination for large tables, where not each is tried for both.
            for size, statistics in both if self._thorough else both[number % 2 :][:1]:
                plan = plan_query(query, statistics, chosen)
                plans.setdefault(plan.after, f"{one}{size}")
                heard = unheard({**one.settings, **one.says}, {trace.rule for trace in plan.trace})
                tally.unheard += [f"{one}: {key}" for key in heard]
                tally.fired |= {trace.rule for trace in plan.trace if trace.outcome is RuleOutcome.FIRED}
        return plans

    def _scans(self, plans: Iterable[Node]) -> dict[str, DataFrame]:
        """By alias, with every column that any of the plans reads."""
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
    """The table as Spark reads it, told in the words of its own reader what the job tells the service."""
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
    """The text without hints, and with what Spark's grammar lacks in its own words: FIRST_VALUE and LAST_VALUE by a
    column.
    """
    text = re.sub(r"/\*\+.*?\*/", "", text)
    for name, sparks in (("FIRST_VALUE", "min_by"), ("LAST_VALUE", "max_by")):
        text = re.sub(rf"{name}\((\S+) ORDER BY (\S+)\)", rf"{sparks}(\1, \2)", text)
    return text


@contextmanager
def as_if_large(times: int = _MAGNIFIED) -> Iterator[None]:
    """Every engine plans as if its tables were so many times as large; what it reads of them is the same."""

    def gather(*given: Any, **named: Any) -> Statistics:
        return magnified(gather_statistics(*given, **named), times)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workers.engine.spark.engine.gather_statistics", gather)
        yield


def magnified(known: Statistics, times: int = _MAGNIFIED) -> Statistics:
    """The same shares and rates, of tables so many times as large."""
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
    told, found = list(frames), list(frames.values())
    try:
        first, *rows = _together([expected, *found[:_AT_ONCE]])
        for start in range(_AT_ONCE, len(found), _AT_ONCE):
            rows += _together(found[start : start + _AT_ONCE])
    except (PySparkException, Py4JJavaError):
        # The latter is what PySpark makes of an error below a subquery.
        return _different_ends(expected, frames)
    wrong = ((name, difference(first, got)) for name, got in zip(told, rows, strict=True))
    return [f"{name}: {how}" for name, how in wrong if how]


def _together(frames: Sequence[DataFrame]) -> list[list[Row]]:
    """The rows of each, by one action."""
    names = [f"c{place}" for place in range(len(frames[0].columns))]
    tagged = (frame.toDF(*names).select(F.lit(number).alias("frame"), *names) for number, frame in enumerate(frames))
    rows: list[list[Row]] = [[] for _ in frames]
    for row in reduce(DataFrame.union, tagged).collect():
        rows[row[0]].append(row[1:])
    return rows


def _different_ends(expected: DataFrame, frames: Mapping[str, DataFrame]) -> list[str]:
    """One by one, since one of them fails."""
    wanted = _end(expected)
    wrong = []
    for told, frame in frames.items():
        got = _end(frame)
        if isinstance(wanted, str) or isinstance(got, str):
            how = None if wanted == got else f"{got if isinstance(got, str) else 'rows'} instead of {wanted!r:.200}"
        else:
            how = difference(wanted, got)
        wrong += [f"{told}: {how}"] if how else []
    return wrong


def _end(frame: DataFrame) -> list[Row] | str:
    try:
        return frame.collect()
    except PySparkException as error:
        return error.getCondition() or type(error).__name__
