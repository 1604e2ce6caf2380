"""What a case gives in Spark: the rows of its SQL by Spark itself, and by the plans of the engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.contract.options import JobSettings
from service.contract.reports import RuleOutcome
from service.sql.resolve.bound import tables_of
from tests.sql.case_files import FIRES, SPARKS, Case, Table
from tests.sql.checks import Outcome, compiled, settings_of
from tests.sql.values import rows_written
from tests.support.window_statistics import window_statistics
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Node
from workers.engine.planner import plan_query
from workers.engine.spark.lowering import lower
from workers.engine.statistics.model import Statistics

FORCED: tuple[Mapping[str, Any], ...] = (
    {"agg_phase": "ONE_PHASE"},
    {"distinct_split.enabled": "true", "distinct_split.bucket_num": 3},
    {"distinct_split.enabled": "true", "distinct_split.bucket_num": 7, "agg_phase": "ONE_PHASE"},
    {"skewed_windows": "true"},
)
"""The settings under each of which a case is planned, in addition to its own."""

_NAME = re.compile("[a-z_][A-Za-z0-9_]*")

_SUFFIXES = {"TINYINT": "Y", "SMALLINT": "S", "BIGINT": "L", "FLOAT": "F", "DOUBLE": "D", "DECIMAL": "BD"}
"""The suffixes of Spark's literals by type. The digits of a DECIMAL are its precision and scale."""

_CONFIGURATION = {
    "spark.sql.adaptive.enabled": "false",
    # To compile generated code would take most of the time.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    # The plans of one action are to run as they are, not merged into one.
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in ("MergeSubplans", "MergeScalarSubqueries")
    ),
}


def _arguments(parameters: Any) -> Any:
    """The values of parameters as Spark takes them, a column for each that has a type."""
    if isinstance(parameters, Mapping):
        return {name: _argument(value) for name, value in parameters.items()}
    return parameters and [_argument(value) for value in parameters]


def _argument(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    name, text = value["type"].partition("(")[0], value["value"]
    if name in _SUFFIXES:
        return F.expr(f"{text}{_SUFFIXES[name]}")
    # Spark takes literals only, not CAST.
    return F.lit(text) if name == "STRING" else F.expr(f"{name} '{text}'")


class SqlInSpark:
    """Runs cases in a session, which keeps the tables that they have had."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._frames: dict[tuple[str, int], DataFrame] = {}
        self._kept: list[Table] = []

    def by_spark(self, case: Case) -> Outcome:
        """What plain Spark makes of the SQL."""
        for name, frame in self._tables(case).items():
            frame.createOrReplaceTempView(name)
        frame = self._spark.sql(case.settings.get(SPARKS, case.sql), args=_arguments(case.settings.get("parameters")))
        return _failure(frame) if case.kind == "fails" else next(_results(case, [frame]))

    def by_engine(self, case: Case) -> Iterator[tuple[str, Outcome]]:
        """What each plan of the engine gives, and what it is the plan of: of the query as it stands, and of those that
        the settings force.
        """
        query, tables = compiled(case), self._tables(case)
        scans = {
            table.alias: tables[table.table].toDF(*[f"{table.alias}.{name}" for name in tables[table.table].columns])
            for table in tables_of(query)
        }
        plans: dict[Node, str] = {build(query): "as it stands"}
        fired: set[str] = set()
        for forced in FORCED:
            settings = {**settings_of(case), **forced}
            known = self._statistics(case) if "skewed_windows" in forced else Statistics({}, {}, slots=2)
            planned = plan_query(query, known, JobSettings.model_validate(settings))
            plans.setdefault(planned.after, f"with {settings}")
            fired |= {trace.rule for trace in planned.trace if trace.outcome is RuleOutcome.FIRED}
        if not_fired := set(case.settings.get(FIRES, ())) - fired:
            raise AssertionError(f"Rules do not fire: {', '.join(sorted(not_fired))}; others do: {fired}")
        frames = [lower(plan, scans) for plan in plans]
        if case.kind == "fails":
            yield from zip(plans.values(), (_failure(frame) for frame in frames), strict=True)
        else:
            yield from zip(plans.values(), _results(case, frames), strict=True)

    def close(self) -> None:
        """Forgets the tables."""
        for frame in self._frames.values():
            frame.unpersist()

    def _tables(self, case: Case) -> Mapping[str, DataFrame]:
        return {name: self._frame(name, table) for name, table in case.tables.items()}

    def _statistics(self, case: Case) -> Statistics:
        rows = {name: table.rows for name, table in case.tables.items()}
        names = {name: tuple(field.name for field in table.schema.fields) for name, table in case.tables.items()}
        return window_statistics(build(compiled(case)), rows, names)

    def _frame(self, name: str, table: Table) -> DataFrame:
        key = name, id(table)
        if key not in self._frames:
            # A table that is kept has an identity of its own.
            self._kept.append(table)
            ddl = ", ".join(f"{column.name} {column.type}" for column in table.schema.fields)
            self._frames[key] = self._spark.createDataFrame(list(table.rows), ddl).repartition(2).cache()
        return self._frames[key]


@contextmanager
def sql_in_spark(spark: SparkSession) -> Iterator[SqlInSpark]:
    """Runs cases in `spark`, with a configuration that suits tiny queries."""
    before = {key: spark.conf.get(key, None) for key in _CONFIGURATION}
    for key, value in _CONFIGURATION.items():
        spark.conf.set(key, value)
    found = SqlInSpark(spark)
    try:
        yield found
    finally:
        found.close()
        for key, old in before.items():
            spark.conf.unset(key) if old is None else spark.conf.set(key, old)


def _failure(frame: DataFrame) -> Outcome:
    """The condition of the error in which the query ends."""
    try:
        frame.collect()
    except PySparkException as error:
        return error.getCondition() or type(error).__name__, ()
    raise AssertionError("It does not fail.")


def _results(case: Case, frames: Sequence[DataFrame]) -> Iterator[Outcome]:
    """The columns and rows of each, all of them by one action, which takes less time than one for each."""
    columns = [
        " | ".join(f"{_name(field.name)}{field.dataType.simpleString()}" for field in frame.schema) for frame in frames
    ]
    names = [f"c{place}" for place in range(len(frames[0].columns))]
    tagged = (frame.toDF(*names).select(F.lit(number).alias("frame"), *names) for number, frame in enumerate(frames))
    rows: list[list[Any]] = [[] for _ in frames]
    for row in reduce(DataFrame.union, tagged).collect():
        rows[row[0]].append(row[1:])
    for of_frame, found in zip(columns, rows, strict=True):
        yield case.argument, (of_frame, *rows_written(found, ordered=case.argument == "ordered"))


def _name(name: str) -> str:
    """The name of a column, where it is one: those that Spark makes of expressions are not the job's."""
    return f"{name} " if _NAME.fullmatch(name) else ""
