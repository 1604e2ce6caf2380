"""The oracle: runs a query's plan before and after the rules on the same rows with plain Spark."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy
from pyspark.sql import DataFrame, Row, SparkSession

from service.contract.job import JobSpec
from service.contract.options import JobSettings
from service.contract.query import Query
from service.contract.reports import RuleOutcome
from service.sql.compile import compile_job
from service.sql.resolve.binder import bind
from service.sql.types.data_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    DataType,
    Field,
    Schema,
    TypeName,
    decimal,
)
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Node
from workers.engine.planner import Plan, plan_query
from workers.engine.spark.lowering import lower
from workers.engine.spark.sources import scans_of
from workers.engine.statistics.model import Statistics

SEED = 20_130_101

FACTS = Schema(
    (
        Field("id", BIGINT),
        Field("k", STRING),
        Field("g", INT),
        Field("d", DOUBLE),
        Field("f", FLOAT),
        Field("i", INT),
        Field("y", DataType(TypeName.TINYINT)),
        Field("s", DataType(TypeName.SMALLINT)),
        Field("b", BIGINT),
        Field("m", decimal(10, 2)),
        Field("w", decimal(25, 5)),
        Field("q", BOOLEAN),
        Field("da", DATE),
        Field("ts", TIMESTAMP),
    )
)
NAMES = Schema((Field("g", INT), Field("name", STRING), Field("d", DOUBLE)))
SCHEMAS = {"mixed": FACTS, "hot": FACTS, "empty": FACTS, "names": NAMES}

_NASTY_DOUBLES = (0.0, -0.0, math.nan, math.inf, 1.5, -2.25, 0.1, 3.75, None)


def facts(rows: int, hot: float, seed: int) -> list[tuple[Any, ...]]:
    """Returns rows with NULLs, NaN, both zeros, repeated values and empty text; a share `hot` has the key ('a', 1)."""
    random = Random(seed)

    def maybe(value: Any) -> Any:
        return None if random.random() < 0.15 else value

    def row(number: int) -> tuple[Any, ...]:
        is_hot = random.random() < hot
        return (
            number,
            "a" if is_hot else random.choice(["a", "b", "", "c d", "ä'`", None]),
            1 if is_hot else maybe(random.randint(-2, 3)),
            random.choice(_NASTY_DOUBLES[:3] + _NASTY_DOUBLES[4:]) if random.random() < 0.95 else math.inf,
            maybe(random.choice([0.0, -0.0, 0.5, -1.25, math.nan])),
            maybe(random.randint(-50, 50)),
            maybe(random.randint(-128, 127)),
            maybe(random.randint(-3, 3)),
            maybe(random.choice([0, 1, -1, 2**40, -(2**40), random.randint(-9, 9)])),
            maybe(Decimal(random.randint(-999, 999)) / 100),
            maybe(Decimal(random.randint(-(10**12), 10**12)) / 100_000),
            maybe(random.random() < 0.5),
            maybe(date(2013, random.randint(1, 12), random.randint(1, 3))),
            maybe(datetime(2013, 1, random.randint(1, 3), 12, 30, 0, random.randint(0, 2), tzinfo=UTC)),
        )

    return [row(number) for number in range(rows)]


@dataclass(frozen=True)
class Outcome:
    """The result of a plan: column names and types, and the rows."""

    columns: tuple[tuple[str, str], ...]
    rows: list[Row]


Known = Callable[[Node], Statistics]
"""Returns the statistics for a plan of the builder."""


def _unknown(_: Node) -> Statistics:
    return Statistics({}, {}, slots=2)


class Oracle:
    """Runs a query as written and as rewritten by the rules."""

    def __init__(self, tables: Mapping[str, DataFrame]) -> None:
        self._tables = tables

    def plan(self, query: Mapping[str, Any], settings: Mapping[str, Any], statistics: Statistics | None = None) -> Plan:
        """Returns the query's plan with the rules applied."""
        bound = bind(Query.model_validate(query), SCHEMAS)
        known = statistics or Statistics({}, {}, slots=2)
        return plan_query(bound, known, JobSettings.model_validate(settings))

    def scans(self, query: Mapping[str, Any]) -> dict[str, DataFrame]:
        """Returns the DataFrames of the query's tables by alias."""
        refs = [query["source"], *(join["right"] for join in query.get("joins", ()))]
        return {ref["alias"]: _renamed(self._tables[ref["table"]], ref["alias"]) for ref in refs}

    def check(
        self, query: Mapping[str, Any], settings: Mapping[str, Any], statistics: Statistics | None = None
    ) -> tuple[Plan, list[Row]]:
        """Checks that the rewritten plan has the same columns, types and rows.

        Returns the plan and the rows of the query as written.
        """
        plan = self.plan(query, settings, statistics)
        return plan, self.check_plan(query, plan.before, plan.after)

    def check_plan(self, query: Mapping[str, Any], before: Node, after: Node) -> list[Row]:
        """Checks the same for two plans of the query and returns the rows of the first."""
        return self._check(self.scans(query), before, after)

    def plan_sql(self, sql: str, known: Known = _unknown, settings: Mapping[str, Any] = MappingProxyType({})) -> Plan:
        """Returns the plan of a query in SQL, with the statistics that `known` makes of its plan before the rules; by
        default, without any.
        """
        used = {name: schema for name, schema in SCHEMAS.items() if re.search(rf"\b{name}\b", sql)}
        tables = {name: {"format": "parquet", "path": name} for name in used}
        bound = compile_job(JobSpec.model_validate({"tables": tables, "sql": sql}), used)
        return plan_query(bound, known(build(bound)), JobSettings.model_validate(settings))

    def outcomes(
        self,
        queries: SearchStrategy[str],
        rule: str,
        known: Known = _unknown,
        chosen: Mapping[str, Any] = MappingProxyType({}),
    ) -> Counter[RuleOutcome | None]:
        """Returns how many of 300 random queries have each outcome of a rule; None for those without a trace of it."""
        found: Counter[RuleOutcome | None] = Counter()

        @settings(max_examples=300, database=None)
        @given(sql=queries)
        def count(sql: str) -> None:
            outcomes: set[RuleOutcome | None] = {
                trace.outcome for trace in self.plan_sql(sql, known, chosen).trace if trace.rule == rule
            }
            found.update(outcomes or {None})

        count()
        return found

    def check_sql(
        self, sql: str, known: Known = _unknown, settings: Mapping[str, Any] = MappingProxyType({})
    ) -> tuple[Plan, list[Row]]:
        """Like `check`, for a query in SQL; `known` as in `plan_sql`."""
        plan = self.plan_sql(sql, known, settings)
        scans = {scan.alias: _renamed(self._tables[scan.table], scan.alias) for scan in scans_of(plan.before)}
        return plan, self._check(scans, plan.before, plan.after)

    def _check(self, scans: dict[str, DataFrame], before: Node, after: Node) -> list[Row]:
        expected = _outcome(lower(before, scans))
        if after == before:
            return expected.rows
        got = _outcome(lower(after, scans))
        assert got.columns == expected.columns
        assert_same_rows(expected.rows, got.rows)
        return expected.rows


def _renamed(frame: DataFrame, alias: str) -> DataFrame:
    return frame.toDF(*[f"{alias}.{name}" for name in frame.columns])


def _outcome(frame: DataFrame) -> Outcome:
    return Outcome(tuple((field.name, field.dataType.simpleString()) for field in frame.schema), frame.collect())


def assert_same_rows(expected: list[Row], got: list[Row]) -> None:
    """Compares multisets of rows; floats within 1e-9, everything else exactly."""
    assert len(expected) == len(got)
    for one, other in zip(sorted(expected, key=_order), sorted(got, key=_order), strict=True):
        assert all(_same(left, right) for left, right in zip(one, other, strict=True)), f"{one} became {other}"


def _order(row: Row) -> tuple[tuple[str, str], ...]:
    # Few digits of floats, so that the last digits do not decide the order; -0.0 + 0.0 is 0.0.
    return tuple(
        (type(value).__name__, f"{value + 0.0:.5g}" if isinstance(value, float) else repr(value)) for value in row
    )


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)
    return type(left) is type(right) and bool(left == right)


@pytest.fixture(scope="module")
def oracle(spark: SparkSession) -> Iterator[Oracle]:
    """The oracle with a mixed, a skewed, an empty and a join table."""
    print(f"rows by seed {SEED}")  # noqa: T201 - shown where a test fails
    ddl = ", ".join(f"{field.name} {field.type}" for field in FACTS.fields)
    names = [
        (None, "nobody", 0.0),
        (1, "one", -0.0),
        (1, "uno", math.nan),
        (2, "two", None),
        (-1, "", 1.5),
        (9, "nine", 2.0),
    ]
    rows = {"mixed": facts(150, 0.0, SEED), "hot": facts(400, 0.9, SEED + 1), "empty": []}
    tables = {name: spark.createDataFrame(content, ddl).repartition(2).cache() for name, content in rows.items()}
    tables["names"] = spark.createDataFrame(names, "g INT, name STRING, d DOUBLE").cache()
    changed = {
        "spark.sql.adaptive.enabled": "false",
        # Compiling generated code would take most of the time. The fixed cases use it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    for key, value in changed.items():
        spark.conf.set(key, value)
    yield Oracle(tables)
    for key in changed:
        spark.conf.unset(key)
    for frame in tables.values():
        frame.unpersist()
