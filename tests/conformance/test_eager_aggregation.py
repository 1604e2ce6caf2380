"""Tests that eager aggregation changes no column, type, row or error, for random groups, calls and joins.

Many queries over the same small tables run as one Spark job, before and after the rewrite, with their rows as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import ArithmeticException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from service.contract.options import JobSettings
from service.contract.query import Query
from service.sql.resolve.binder import bind
from service.sql.types.data_types import BIGINT, DOUBLE, INT, TINYINT, Field, Schema, decimal
from tests.conformance.eager_queries import (
    KINDS,
    PRODUCT_SCHEMA,
    SCHEMA,
    SUMS_OF_PRODUCTS,
    Json,
    call,
    factors,
    queries,
    rows,
)
from tests.support.counts import count
from workers.engine.plan.builder import build
from workers.engine.plan.joined_aggregate import joined_aggregate
from workers.engine.plan.nodes import Aggregate, Node, Scan, output_of
from workers.engine.plan.traversal import transform_up, walk_up
from workers.engine.plan.validation import check
from workers.engine.rules.eager.eager_aggregation import SIDE_CHOICES, EagerAggregation
from workers.engine.rules.eager.pushdown import refusal_of
from workers.engine.rules.rule import Match, RuleContext
from workers.engine.spark.lowering import lower
from workers.engine.statistics.model import Statistics, TableSize, ValueRange

pytestmark = pytest.mark.spark

KNOWN = RuleContext(JobSettings(), Statistics({}, {}, slots=2))
RULE = EagerAggregation()
WRITTEN = [(None, False), *((way, told) for way in ("BOTH", "LEFT", "RIGHT") for told in (False, True))]
"""The unchanged query and all rewrites, without statistics and with those of file footers."""


def ddl(schema: Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema.fields)


class Tables:
    """Tables of one schema."""

    def __init__(self, spark: SparkSession, schema: Schema, contents: dict[str, list[tuple[Any, ...]]]) -> None:
        self.schema = schema
        self._contents = contents
        self._frames = {name: spark.createDataFrame(rows, ddl(schema)).coalesce(1) for name, rows in contents.items()}
        self._scans: dict[tuple[str, str], DataFrame] = {}

    def known(self, plan: Node) -> RuleContext:
        """Returns the statistics of file footers: rows, and ranges of integers."""
        scans = [node for node in walk_up(plan) if isinstance(node, Scan)]
        sizes = {scan.alias: TableSize(scan.alias, 1, 1000, len(self._contents[scan.table]), True) for scan in scans}
        ranges = {}
        for scan in scans:
            for field, name in scan.columns:
                place = self.schema.names.index(name)
                values = [row[place] for row in self._contents[scan.table] if row[place] is not None]
                if field.type.is_integral and values:
                    ranges[field.name] = ValueRange(min(values), max(values), True)
        return RuleContext(JobSettings(), Statistics(sizes, {}, slots=2, ranges=ranges))

    def frame(self, plan: Node, query: Json) -> DataFrame:
        refs = [query["source"], *(join["right"] for join in query["joins"])]
        aliases = {ref.get("alias", ref["table"]): ref["table"] for ref in refs}
        return lower(plan, {alias: self._scan(table, alias) for alias, table in aliases.items()})

    def _scan(self, table: str, alias: str) -> DataFrame:
        if (table, alias) not in self._scans:
            names = [f"{alias}.{name}" for name in self.schema.names]
            self._scans[table, alias] = self._frames[table].toDF(*names)
        return self._scans[table, alias]

    def plan(self, query: Json) -> Node:
        return build(bind(Query.model_validate(query), dict.fromkeys(self._frames, self.schema)))


def results(frames: list[DataFrame]) -> list[list[tuple[Any, ...]]]:
    """Returns the rows of each frame, with values as text, in one job."""
    texts = [
        frame.select(
            F.lit(number).alias("n"),
            F.array(*[F.col(f"`{name}`").cast("string") for name in frame.columns]).alias("values"),
        )
        for number, frame in enumerate(frames)
    ]
    while len(texts) > 1:
        odd = texts[len(texts) // 2 * 2 :]
        texts = [one.unionAll(other) for one, other in zip(texts[::2], texts[1::2], strict=False)] + odd
    found: list[list[tuple[Any, ...]]] = [[] for _ in frames]
    for row in texts[0].collect():
        found[row["n"]].append(tuple(row["values"]))
    return found


@contextmanager
def configured(spark: SparkSession, changed: dict[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in changed}
    for key, value in changed.items():
        spark.conf.set(key, value)
    yield
    for key, old in before.items():
        if old is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, old)


@pytest.fixture(scope="module", autouse=True)
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Disables generated code, whose compilation takes longer than a few rows."""
    changed = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
    }
    with configured(spark, changed):
        yield


@pytest.fixture
def generated(spark: SparkSession) -> Iterator[None]:
    """Enables generated code, as for users."""
    with configured(spark, {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}):
        yield


@pytest.fixture(scope="module")
def drawn(spark: SparkSession) -> Tables:
    return Tables(spark, SCHEMA, {"many": rows(40, 1), "few": rows(12, 2), "empty": []})


def rewritten(plan: Node, way: str, below: str | None = None, ctx: RuleContext = KNOWN) -> Node | None:
    """Returns the plan with its aggregate rewritten in this way and, if possible, the lower join of a chain in the way
    `below`. Returns None if the first rewrite is not possible.
    """
    node = next(part for part in walk_up(plan) if isinstance(part, Aggregate))
    after = eager(node, way, ctx)
    if after is None:
        return None
    if below is not None:
        pushed: dict[Node, Node] = {part: eager(part, below, ctx) or part for part in pushed_by(node, way, after)}
        after = transform_up(after, lambda part: pushed.get(part, part))
    check(after, RULE.name, output_of(node))
    return transform_up(plan, lambda part: after if part == node else part)


def eager(node: Aggregate, way: str, ctx: RuleContext) -> Node | None:
    over = joined_aggregate(node)
    refused = over is None or refusal_of(over, SIDE_CHOICES[way]) is not None
    return None if refused else RULE.rewrite(Match(node, way, ""), ctx)


def pushed_by(node: Aggregate, way: str, after: Node) -> Iterable[Aggregate]:
    return (part for part in RULE.parts_of(Match(node, way, ""), after) if isinstance(part, Aggregate))


def assert_same(before: list[tuple[Any, ...]], after: list[tuple[Any, ...]], types: list[str], told: str) -> None:
    assert len(before) == len(after), told

    def order(row: tuple[Any, ...]) -> tuple[str, ...]:
        return tuple(
            repr(None if value is None else f"{float(value) + 0.0:.6g}" if type_ in {"double", "float"} else value)
            for value, type_ in zip(row, types, strict=True)
        )

    for one, other in zip(sorted(before, key=order), sorted(after, key=order), strict=True):
        for left, right, type_ in zip(one, other, types, strict=True):
            if left is None or right is None or type_ not in {"double", "float"}:
                assert left == right, f"{one} became {other}: {told}"
            else:
                a, b = float(left), float(right)
                same = (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
                assert same, f"{one} became {other}: {told}"


def compare(tables: Tables, batch: Iterable[tuple[Json, tuple[str, str]]]) -> int:
    """Checks that each query has the same result after its rewrites. Returns the number of rewritten queries."""
    frames: list[DataFrame] = []
    pairs: list[tuple[int, int, str]] = []
    as_written: dict[Node, int] = {}
    for number, (query, ways) in enumerate(batch):
        plan = tables.plan(query)
        after = rewritten(plan, *ways, tables.known(plan) if number % 2 else KNOWN)
        if after is None:
            continue
        if plan not in as_written:
            as_written[plan] = len(frames)
            frames.append(tables.frame(plan, query))
        one, other = frames[as_written[plan]], tables.frame(after, query)
        assert [(f.name, f.dataType) for f in one.schema] == [(f.name, f.dataType) for f in other.schema], (query, ways)
        pairs.append((as_written[plan], len(frames), f"{ways} {query}"))
        frames.append(other)
    if frames:
        found = results(frames)
        for before, changed, text in pairs:
            types = [field.dataType.simpleString() for field in frames[before].schema]
            assert_same(found[before], found[changed], types, text)
    return len(pairs)


ways = st.tuples(st.sampled_from(sorted(SIDE_CHOICES)), st.sampled_from(sorted(SIDE_CHOICES)))
# Every batch has each kind: with a drawn kind, some kinds would be missing.
batches = st.tuples(*(st.tuples(queries(kind), ways) for kind in KINDS * count(sample=1, full=3)))


@settings(max_examples=2, phases=[Phase.explicit, Phase.generate])
@given(batch=batches)
def test_random_queries_are_equivalent_after_eager_aggregation(
    drawn: Tables, batch: tuple[tuple[Json, tuple[str, str]], ...]
) -> None:
    assert compare(drawn, batch) > len(batch) / 2


@settings(max_examples=1, phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 1000))
def test_sums_of_products_are_exact(spark: SparkSession, seed: int) -> None:
    """Each key is a separate case; all are compared in one job."""
    tables = Tables(spark, PRODUCT_SCHEMA, {side: factors(side, seed, 300) for side in ("l", "r")})
    calls = [call("SUM", product, where) for product, where in SUMS_OF_PRODUCTS]
    cases = [
        (fixed(kind, [group], *calls), way)
        for kind, group in (("inner", "l.k"), ("left", "l.k"), ("right", "r.k"))
        for way in SIDE_CHOICES
    ]
    assert compare(tables, [(query, (way, way)) for query, way in cases]) == len(cases)


LARGE = 2**63 - 1


def fixed(kind: str, group: list[str], *calls: Json) -> Json:
    return {
        "source": {"kind": "table", "table": "l"},
        "joins": [{"kind": kind, "right": {"kind": "table", "table": "r"}, "on": [{"left": "l.k", "right": "r.k"}]}],
        "group_by": [{"expression": text, "name": f"g{number}"} for number, text in enumerate(group)],
        "aggregates": [{**made, "name": f"x{number}"} for number, made in enumerate(calls)],
    }


NARROW = Schema(
    (Field("k", INT), Field("b", BIGINT), Field("m", decimal(18, 2)), Field("x", DOUBLE), Field("s", TINYINT))
)


def narrow(spark: SparkSession, **contents: list[tuple[Any, ...]]) -> Tables:
    """Returns tables from rows whose last columns may be missing."""
    width = len(NARROW.fields)
    filled = {name: [row + (None,) * (width - len(row)) for row in rows] for name, rows in contents.items()}
    return Tables(spark, NARROW, filled)


def written(tables: Tables, query: Json, way: str | None, told: bool) -> DataFrame:
    """Returns a fixed query unchanged or rewritten; `told` has the meaning as in `WRITTEN`."""
    plan = tables.plan(query)
    after = plan if way is None else rewritten(plan, way, ctx=tables.known(plan) if told else KNOWN)
    assert after is not None
    return tables.frame(after, query)


def all_ways(tables: Tables, *queries_: Json) -> list[list[tuple[Any, ...]]]:
    """Returns the rows of each query as text, after checking that all rewrites have the same rows."""
    found = results([written(tables, query, *way) for query in queries_ for way in WRITTEN])
    found = [sorted(rows, key=repr) for rows in found]
    plain = found[:: len(WRITTEN)]
    assert found == [rows for rows in plain for _ in WRITTEN]
    return plain


def error_of(tables: Tables, query: Json, way: str | None, told: bool) -> str | None:
    """Returns the condition of the error that a query raises."""
    with pytest.raises(ArithmeticException) as caught:
        written(tables, query, way, told).collect()
    return caught.value.getCondition()


def test_rows_that_the_join_drops_do_not_overflow(spark: SparkSession) -> None:
    big = Decimal("9999999999999999.99")
    left = [(1, LARGE, big, 1e308), (2, LARGE, big, None), (2, LARGE, big, math.inf), (1, 5, None, 1.0)]
    left += [(3, -LARGE, -big, 0.0), (3, LARGE, big, 0.0)]
    sums = [call("MIN", "l.b"), call("SUM", "l.m"), call("SUM", "l.x"), call("SUM", "l.b", "l.b < 9 OR l.k = 3")]
    tables = narrow(spark, l=left, r=[(1, 1), (3, 1)])
    assert all_ways(tables, fixed("inner", ["l.k"], *sums)) == [
        [("1", "5", str(big), "1.0E308", "5"), ("3", str(-LARGE), "0.00", "0.0", "0")]
    ]


@pytest.mark.parametrize(
    ("left", "right", "summed", "condition"),
    [
        ([(1, LARGE)], [(1, 0), (1, 0)], "l.b", "ARITHMETIC_OVERFLOW"),
        # One product of four overflows, which only the extremes of its factors show.
        ([(1, 2**62), (1, -(2**62))], [(1, 2), (1, 0)], "l.b * r.b", "ARITHMETIC_OVERFLOW"),
        ([(1, 0, None, None, 100), (1, 0, None, None, -1)], [(1, 0, None, None, 2)], "l.s * r.s", None),
        # All products fit, but their sum overflows.
        ([(1, 2**62), (1, 2**61)], [(1, 1), (1, 1)], "r.b * l.b", "ARITHMETIC_OVERFLOW"),
    ],
)
def test_overflow_is_the_same_error(
    spark: SparkSession, left: Any, right: Any, summed: str, condition: str | None
) -> None:
    tables, query = narrow(spark, l=left, r=right), fixed("inner", [], call("SUM", summed))
    raised = {error_of(tables, query, *way) for way in WRITTEN}
    assert len(raised) == 1
    assert condition is None or raised == {condition}


@pytest.mark.parametrize("summed", ["l.b", "r.b"])
def test_sums_that_just_fit(spark: SparkSession, summed: str) -> None:
    third = LARGE // 3
    three = [(1, third)] * 3
    tables, query = narrow(spark, l=three, r=[(1, third)]), fixed("inner", ["l.k"], call("SUM", summed))
    assert all_ways(tables, query) == [[("1", str(3 * third))]]
    tables = narrow(spark, l=[*three[1:], (1, third + 2)], r=[(1, third + 1)])
    assert {error_of(tables, query, *way) for way in WRITTEN} == {"ARITHMETIC_OVERFLOW"}


def test_products_that_no_row_has_do_not_overflow(spark: SparkSession) -> None:
    tables = narrow(
        spark,
        l=[(1, 2**62), (2, 1), (3, LARGE), (3, None), (4, LARGE), (5, 2**62), (5, -(2**62))],
        r=[(1, 1), (2, 2**62), (3, None), (4, 0), (4, 1), (5, 1), (5, -1), (6, LARGE)],
    )
    cancelled, passed = call("SUM", "l.b * r.b"), call("SUM", "l.b * r.b", "r.b < 2")
    assert all_ways(tables, fixed("left", ["l.k"], cancelled), fixed("left", ["l.k"], passed)) == [
        [("1", str(2**62)), ("2", str(2**62)), ("3", None), ("4", str(LARGE)), ("5", "0")],
        [("1", str(2**62)), ("2", None), ("3", None), ("4", str(LARGE)), ("5", "0")],
    ]


def test_filter_prevents_evaluation_above_it(spark: SparkSession) -> None:
    left_out = narrow(spark, l=[(0, 1), (5, 2)], r=[(5, 0), (5, 0)])
    query = fixed("inner", [], call("SUM", "10 / l.k"), call("COUNT", None, "10 / l.k > 1"))
    assert all_ways(left_out, query) == [[("4.0", "2")]]
    guards = narrow(spark, l=[(1, 6), (1, 9)], r=[(1, 0), (1, 3)])
    guarded = [("SUM", "l.b / r.b"), ("AVG", "l.b / r.b"), ("COUNT", "10 / r.b"), ("MAX", "10 % r.b")]
    guarded += [("SUM", "l.b * (10 / r.b)")]
    query = fixed("inner", [], *(call(function, of, "r.b <> 0") for function, of in guarded))
    assert all_ways(guards, query) == [[("5.0", "2.5", "2", "1", "50.0")]]


@pytest.mark.usefixtures("generated")
def test_filter_guards_common_subexpressions_in_generated_code(spark: SparkSession) -> None:
    """Generated code evaluates an expression that occurs twice in the arguments only once, before every FILTER."""
    tables = narrow(spark, l=[(1, 2**62, None, None, 1)], r=[(1, 2**62, None, None, 1)])
    for summed in ("l.b * r.b", "l.b + r.b"):
        query = fixed("inner", ["l.s"], call("SUM", summed, "l.s <> r.s"))
        assert all_ways(tables, query) == [[("1", None)]]


def test_range_with_one_unknown_bound_can_be_false(spark: SparkSession) -> None:
    tables = narrow(spark, l=[(1, 1), (2, 2)], r=[(2, 1)])
    calls = [call("COUNT", "5 BETWEEN r.b AND 3"), call("COUNT", None, "5 NOT BETWEEN r.b AND 3")]
    assert all_ways(tables, fixed("left", ["l.k"], *calls)) == [[("1", "1", "1"), ("2", "1", "1")]]


def test_conditions_are_evaluated_where_spark_evaluates_them(spark: SparkSession) -> None:
    # Conditions move below the join, those above it first; none protects the other from evaluation.
    tables, query = narrow(spark, l=[(7, 0), (1, 2)], r=[(1, 1)]), fixed("inner", ["r.b"], call("COUNT", None))
    unguarded = {**query, "where": "10 / l.b > 1", "joins": [{**query["joins"][0], "residual": "l.b <> 0"}]}
    assert {error_of(tables, unguarded, *way) for way in WRITTEN} == {"DIVIDE_BY_ZERO"}


def test_empty_inputs(spark: SparkSession) -> None:
    calls = [call("COUNT", None), call("COUNT", "l.b"), call("SUM", "l.b"), call("AVG", "l.x"), call("MAX", "r.m")]
    queries_ = (fixed("inner", [], *calls, call("SUM", "l.x * r.b")), fixed("inner", ["r.k"], *calls))
    for tables in (narrow(spark, l=[], r=[]), narrow(spark, l=[(1, 1, None, 1.0)], r=[(2, 2)])):
        assert all_ways(tables, *queries_) == [[("0", "0", None, None, None, None)], []]
