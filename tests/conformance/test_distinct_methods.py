"""Tests of all methods for DISTINCT against plain Spark, including the extreme values of types."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from service.contract.options import AggPhase
from service.contract.query import AggregateFunction
from service.contract.reports import RuleOutcome
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, BOOLEAN, DATE, STRING, Field, decimal
from tests.support.counts import count
from tests.support.scalars import scalar
from workers.engine.plan.aggregates import distinct_sets, refusal_of
from workers.engine.plan.nodes import Aggregate, Call, Named, Node, Phases, Scan
from workers.engine.plan.traversal import transform_up
from workers.engine.planner import Plan
from workers.engine.rules.distinct.bitmaps import BLOCK, LANE, LANES, bitmap_aggregate, group_bitmap_aggregate
from workers.engine.rules.distinct.branch_plans import joined_branches, keyed_branches, sent_by_value
from workers.engine.rules.distinct.incremental_aggregate import IncrementalAggregate
from workers.engine.spark.lowering import lower, physical_plan
from workers.engine.spark.session_options import raise_hash_limit

pytestmark = pytest.mark.spark

INTEGERS = ("i", "y", "s", "b", "m", "q", "da")
ANY = (*INTEGERS, "k", "g", "d", "f", "w", "ts")
FILTERS = (None, None, "t.i > 0", "t.q", "t.id < 0")
METHODS = ("bitmap", "branches", "split", "native", "auto")
RULES = {"bitmap": "bitmap_distinct", "branches": "distinct_branches", "split": "split_distinct_aggregate"}

Json = dict[str, Any]


@st.composite
def distinct_calls(draw: st.DrawFn, values: tuple[str, ...]) -> Json:
    name = draw(st.sampled_from(values))
    summable = [] if name in {"q", "da", "k", "ts"} else ["SUM", "AVG"]
    function = draw(st.sampled_from(["COUNT", "COUNT", "COUNT", *summable]))
    where = draw(st.sampled_from(FILTERS))
    return {"function": function, "arguments": [f"t.{name}"], "distinct": True, "filter": where}


PLAIN: st.SearchStrategy[Json] = st.sampled_from(
    [
        {"function": "COUNT"},
        {"function": "SUM", "arguments": ["t.m"], "filter": "t.i > 0"},
        {"function": "AVG", "arguments": ["t.b"]},
        {"function": "MAX", "arguments": ["t.ts"]},
        {"function": "LAST_VALUE", "arguments": ["t.k"], "order_by": "t.id"},
    ]
)


@st.composite
def queries(draw: st.DrawFn) -> Json:
    values = draw(st.sampled_from([INTEGERS, ANY]))
    calls = [draw(distinct_calls(values)) for _ in range(draw(st.sampled_from([1, 2, 2, 3])))]
    calls += draw(st.lists(PLAIN, max_size=2))
    keys = draw(st.sampled_from([[], ["t.k"], ["t.g", "t.d"], ["t.f"], ["t.i % 3"]]))
    return {
        "source": {"kind": "table", "table": draw(st.sampled_from(["mixed", "hot", "empty"])), "alias": "t"},
        "group_by": [{"expression": key, "name": f"key{number}"} for number, key in enumerate(keys)],
        "aggregates": [{**made, "name": f"x{number}"} for number, made in enumerate(calls)],
    }


def fired(plan: Plan) -> set[str]:
    return {trace.rule for trace in plan.trace if trace.outcome is RuleOutcome.FIRED}


@settings(max_examples=count(sample=6, full=16))
@given(
    query=queries(),
    method=st.sampled_from(METHODS[:3]),
    phase=st.sampled_from(["AUTO", "AUTO", "ONE_PHASE"]),
    incremental=st.booleans(),
)
def test_every_method_has_sparks_rows(oracle: Any, query: Json, method: str, phase: str, incremental: bool) -> None:
    chosen = {"distinct_method": method, "agg_phase": phase, "incremental_agg": incremental}
    oracle.check(query, {**chosen, "distinct_split.bucket_num": 3})


@settings(max_examples=count(sample=5, full=12))
@given(query=queries())
def test_each_set_of_values_can_be_shuffled_by_group_and_value(oracle: Any, query: Json) -> None:
    before = oracle.plan(query, {}).before
    oracle.check_plan(query, before, transform_up(before, _sent_by_value))


def _sent_by_value(node: Node) -> Node:
    if not isinstance(node, Aggregate) or any(refusal_of(call) for call in node.calls):
        return node
    return sent_by_value(node) if len(distinct_sets(node)) == 1 else joined_branches(node, sent_by_value)


@settings(max_examples=count(sample=8, full=24))
@given(
    table=st.sampled_from(["mixed", "hot", "empty"]),
    key=st.sampled_from(["t.i", "t.y", "t.s", "t.b", "t.q", "t.da", "t.g", "t.i % 3", "YEAR(t.ts)"]),
    values=st.lists(st.sampled_from(ANY), min_size=1, max_size=2, unique=True),
    filters=st.lists(st.sampled_from(FILTERS), min_size=1, max_size=3),
    phase=st.sampled_from(list(AggPhase)),
    values_in=st.sampled_from([Phases.ONE_PHASE, Phases.TWO_PHASE]),
)
def test_values_and_groups_as_bits(
    oracle: Any,
    table: str,
    key: str,
    values: list[str],
    filters: list[str | None],
    phase: AggPhase,
    values_in: Phases,
) -> None:
    count = {"function": "COUNT", "arguments": [f"t.{name}" for name in values], "distinct": True}
    query = {
        "source": {"kind": "table", "table": table, "alias": "t"},
        "group_by": [{"expression": key, "name": "key"}],
        "aggregates": [{**count, "filter": where, "name": f"x{number}"} for number, where in enumerate(filters)],
    }
    before = oracle.plan(query, {}).before

    def by_groups(node: Node) -> Node:
        return group_bitmap_aggregate(node, 3, phase, values_in) if isinstance(node, Aggregate) else node

    after = transform_up(before, by_groups)
    assert after != before
    oracle.check_plan(query, before, after)


@st.composite
def percentiles(draw: st.DrawFn) -> Json:
    """Draws percentiles of one value, with calls that can be split."""
    value = draw(st.sampled_from(["t.i", "t.y", "t.s", "t.b", "t.m", "t.d", "t.f", "t.w", "t.i % 3"]))
    filters = FILTERS if value.count(" ") == 0 else (None,)
    calls: list[Json] = [
        {"function": "PERCENTILE", "arguments": [value, draw(st.sampled_from(["0", "0.25", "0.5", "1"]))]}
        for _ in range(draw(st.integers(1, 3)))
    ]
    calls = [{**call, "filter": draw(st.sampled_from(filters))} for call in calls]
    calls += draw(st.lists(PLAIN, max_size=2))
    keys = draw(st.sampled_from([[], ["t.k"], ["t.g", "t.d"], ["t.f"], ["t.i % 3"]]))
    return {
        "source": {"kind": "table", "table": draw(st.sampled_from(["mixed", "hot", "empty"])), "alias": "t"},
        "group_by": [{"expression": key, "name": f"key{number}"} for number, key in enumerate(keys)],
        "aggregates": [{**made, "name": f"x{number}"} for number, made in enumerate(calls)],
    }


@settings(max_examples=count(sample=6, full=16))
@given(query=percentiles(), phase=st.sampled_from(["AUTO", "AUTO", "TWO_PHASE"]))
def test_percentiles_of_counted_values_are_sparks(oracle: Any, query: Json, phase: str) -> None:
    chosen = {"distinct_split.enabled": "true", "agg_phase": phase}
    assert "counted_percentiles" in fired(oracle.plan(query, chosen))
    oracle.check(query, chosen)


COUNTS = {name: {"function": "COUNT", "arguments": [f"t.{name}"], "distinct": True} for name in ANY}


@pytest.mark.parametrize("group", [[], ["t.d"]], ids=["global", "by a fraction"])
@pytest.mark.parametrize("table", ["mixed", "empty"])
def test_bitmaps_of_every_integer_type_in_branches(oracle: Any, table: str, group: list[str]) -> None:
    query = {
        "source": {"kind": "table", "table": table, "alias": "t"},
        "group_by": [{"expression": key, "name": "key"} for key in group],
        "aggregates": [{**COUNTS[name], "name": name} for name in INTEGERS],
    }
    plan, _ = oracle.check(query, {"distinct_method": "bitmap"})
    assert fired(plan) == {"distinct_branches"}


def test_mixed_sets_of_values_are_deduplicated_after_one_exchange(oracle: Any) -> None:
    query = {
        "source": {"kind": "table", "table": "mixed", "alias": "t"},
        "joins": [
            {
                "kind": "left",
                "right": {"kind": "table", "table": "names", "alias": "u"},
                "on": [{"left": "t.g", "right": "u.g"}],
            }
        ],
        "group_by": [{"expression": "t.k", "name": "key"}],
        "aggregates": [
            {"function": "COUNT", "arguments": ["t.i", "t.k"], "distinct": True, "name": "pairs"},
            {"function": "COUNT", "arguments": ["t.k", "t.d"], "distinct": True, "name": "others", "filter": "t.q"},
            {"function": "SUM", "arguments": ["t.f"], "distinct": True, "name": "sum"},
            {"function": "AVG", "arguments": ["t.m"], "name": "mean"},
            {"function": "FIRST_VALUE", "arguments": ["t.ts"], "order_by": "t.id", "name": "first"},
        ],
    }
    for method in ("branches", "split"):
        plan, _ = oracle.check(query, {"distinct_method": method, "distinct_split.bucket_num": 4})
        assert RULES[method] in fired(plan)
    assert IncrementalAggregate.name in fired(plan)


LOW, HIGH = -(2**63), 2**63 - 1
EDGES = (0, 1, -1, 63, 64, -63, -64, -65, 255, 256, 257, -256, -257, HIGH, HIGH - 1, LOW, LOW + 1, 2**40, None)
FIELDS = (Field("t.k", BIGINT), Field("t.v", BIGINT), Field("t.p", decimal(18, 18)), Field("t.da", DATE))


@pytest.mark.parametrize("keyed", [True, False])
def test_extreme_values_of_types(spark: SparkSession, keyed: bool) -> None:
    rows = ", ".join(
        f"({None if number % 4 == 0 else number % 3}, {_literal(value)}, "
        f"CAST({'-' if number % 2 else ''}0.{'9' * (18 - number % 3)} AS DECIMAL(18,18)), "
        f"DATE'{'0001-01-01' if number % 2 else '9999-12-31'}')"
        for number, value in enumerate(EDGES + EDGES[::2])
    ).replace("None", "NULL")
    names = [field.name for field in FIELDS]
    table = spark.sql(f"SELECT * FROM VALUES {rows}").toDF(*names)
    k, v, p, da = (column(field.name, field.type) for field in FIELDS)
    calls = tuple(
        Call(AggregateFunction.COUNT, (value,), Field(name, BIGINT), distinct=True)
        for name, value in (("v", v), ("p", p), ("da", da))
    )
    node = Aggregate(Scan("t", "t", tuple((field, field.name) for field in FIELDS)), (Named(k, "k"),), calls)
    if not keyed:
        node = Aggregate(node.input, (), calls)
    ways: list[Node] = [_by_bitmaps(node, width) for width in (LANE, LANES, BLOCK)]
    ways += [keyed_branches(node)] if keyed else []
    expected = sorted(map(str, lower(node, {"t": table}).collect()))
    assert f"v={len(EDGES) - 1}" in expected[0] or keyed
    for way in ways:
        assert sorted(map(str, lower(way, {"t": table}).collect())) == expected


@pytest.mark.parametrize("key", ["v", "da"])
def test_extreme_groups_of_types(spark: SparkSession, key: str) -> None:
    rows = ", ".join(
        f"({_literal(value)}, DATE'{'0001-01-01' if number % 2 else '9999-12-31'}', '{number % 5}')"
        for number, value in enumerate(EDGES + EDGES[::2])
    )
    fields = (*FIELDS[1:2], FIELDS[3], Field("t.k", STRING))
    table = spark.sql(f"SELECT * FROM VALUES {rows}").toDF(*(field.name for field in fields))
    groups = {field.name: column(field.name, field.type) for field in fields}
    call = Call(AggregateFunction.COUNT, (groups["t.k"],), Field("n", BIGINT), distinct=True)
    scan = Scan("t", "t", tuple((field, field.name) for field in fields))
    node = Aggregate(scan, (Named(groups[f"t.{key}"], key),), (call,))
    expected = sorted(map(str, lower(node, {"t": table}).collect()))
    assert len(expected) == (len(EDGES) if key == "v" else 2)
    by_groups = group_bitmap_aggregate(node, 2, AggPhase.AUTO)
    assert sorted(map(str, lower(by_groups, {"t": table}).collect())) == expected


def _by_bitmaps(node: Aggregate, width: int) -> Node:
    return joined_branches(node, lambda branch: bitmap_aggregate(branch, width, AggPhase.AUTO))


def test_bitmap_blocks_are_hashed(spark: SparkSession) -> None:
    session = spark.newSession()
    table = session.range(200_000).selectExpr("id % 3 AS `t.k`", "(id * 7919) % 100003 - 50000 AS `t.v`", "id AS `t.p`")
    k, v = column("t.k", BIGINT), column("t.v", BIGINT)
    call = Call(AggregateFunction.COUNT, (v,), Field("n", BIGINT), distinct=True, filter=scalar("`t.k` > 0", BOOLEAN))
    calls = (call, Call(AggregateFunction.MAX, (v,), Field("most", BIGINT)))
    node = Aggregate(Scan("t", "t", tuple((field, field.name) for field in FIELDS[:2])), (Named(k, "k"),), calls)
    plan = bitmap_aggregate(node, BLOCK, AggPhase.AUTO)
    raise_hash_limit(session, plan, 1 << 30)
    frame = lower(plan, {"t": table})
    assert "SortAggregate" not in physical_plan(frame)
    assert sorted(map(str, frame.collect())) == sorted(map(str, lower(node, {"t": table}).collect()))


def _literal(value: int | None) -> str:
    if value is None:
        return "NULL"
    return f"CAST('{value}' AS BIGINT)"


def test_errors_stay_errors(oracle: Any) -> None:
    query = {
        "source": {"kind": "table", "table": "mixed", "alias": "t"},
        "group_by": [{"expression": "t.k", "name": "key"}],
        "aggregates": [
            {"function": "COUNT", "arguments": ["t.i"], "distinct": True, "name": "n"},
            {"function": "SUM", "arguments": ["t.b * 9223372036854775807"], "distinct": True, "name": "s"},
        ],
    }
    scans = oracle.scans(query)
    for method in METHODS:
        plan = oracle.plan(query, {"distinct_method": method})
        with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
            lower(plan.after, scans).collect()
