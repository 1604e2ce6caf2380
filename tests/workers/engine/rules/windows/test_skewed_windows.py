"""When windows are computed in parts, and in which ones. The golden plans have the common cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from service.contract.options import JobSettings
from service.contract.reports import HotKey, RuleOutcome, RuleTrace
from service.sql.types.data_types import BIGINT, INT
from tests.support.compiled import compiled
from workers.engine.plan.expressions import literal
from workers.engine.plan.nodes import Exchange, Join, Node, Union, WindowFunctions
from workers.engine.plan.traversal import walk_up
from workers.engine.planner import Plan, low_memory_plan, plan_query
from workers.engine.rules.windows.skewed_windows import SkewedWindows
from workers.engine.statistics.model import KeySketch, OrderedKey, Statistics, TableSize, ValueRange

TABLES = {
    "o": "k BIGINT, t INT, i INT, b BIGINT, f DOUBLE, m DECIMAL(10,2), w DECIMAL(38,2), s STRING",
    "u": "k BIGINT, name STRING",
}
ROWS = 20_000_000
SEVEN = literal(7, BIGINT)


def known(
    *shares: float,
    distinct: int = 1_000_000,
    slots: int = 8,
    top: float = 0.01,
    ranges: Mapping[str, Any] | None = None,
) -> Statistics:
    """Returns statistics by which the keys 7, 8, … of `o.k` have these shares of the rows."""
    keys = range(7, 7 + len(shares))
    hot = tuple(
        HotKey(value=str(key), share=share, estimated_rows=round(share * ROWS))
        for key, share in zip(keys, shares, strict=True)
    )
    literals = tuple((literal(key, BIGINT),) for key in keys)
    sketch = KeySketch("o", ("o.k",), 60_000, distinct, 0.0, hot, literals=literals)  # type: ignore[arg-type]
    boundaries = tuple(one for value in range(1, 64) if (one := literal(value, INT)) is not None)
    orders = {
        (("o.k",), "o.t"): tuple(OrderedKey(own, boundaries, top) for own in literals),  # type: ignore[arg-type]
        ((), "o.t"): (OrderedKey((), boundaries, top),),
    }
    sizes = {"o": TableSize("o", 8, 1 << 30, ROWS, True), "u": TableSize("u", 8, 1 << 30, ROWS, True)}
    return Statistics(sizes, {("o.k",): sketch}, slots, orders=orders, ranges=dict(ranges or {}))


def planned(sql: str, statistics: Statistics, **settings: Any) -> Plan:
    return plan_query(compiled(TABLES, sql), statistics, JobSettings.model_validate(settings))


def trace(plan: Plan) -> RuleTrace:
    (found,) = (one for one in plan.trace if one.rule == SkewedWindows.name)
    return found


def nodes(plan: Plan, kind: type[Node]) -> list[Any]:
    return [node for node in walk_up(plan.after) if isinstance(node, kind)]


def over(call: str, window: str = "PARTITION BY k ORDER BY t") -> str:
    return f"SELECT {call} OVER ({window}) AS c FROM o"


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (over("NTILE(4)"), "NTILE cannot be computed from ranges"),
        (over("LAG(i, 101)"), "LAG is computed in ranges for a distance of 1 to 100 rows"),
        (over("LEAD(i, 0)"), "LEAD is computed in ranges for a distance of 1 to 100 rows"),
        (over("LAG(i) IGNORE NULLS"), "LAG with IGNORE NULLS may read a row of any range"),
        (over("LAG(ARRAY(i))"), "Values of LAG that have no order"),
        (over("SUM(i)", "PARTITION BY k ORDER BY t ROWS 3 PRECEDING"), "The frame of SUM is not from the start"),
        (over("SUM(i)", "PARTITION BY k ROWS UNBOUNDED PRECEDING"), "there is no ORDER BY"),
        (over("SUM(f)"), "The last digits of a running SUM of type DOUBLE"),
        (over("SUM(w)"), "more than 28 digits could overflow"),
        (over("AVG(b)"), "The last digits of this running AVG"),
        (over("SUM(i)", "PARTITION BY k ORDER BY f"), "The first key of ORDER BY is a DOUBLE"),
        (over("SUM(i)", "PARTITION BY k ORDER BY t + 1"), "The first key of ORDER BY is an expression"),
        (over("SUM(i)", "PARTITION BY k % 2 ORDER BY t"), "A key of PARTITION BY is an expression"),
        (over("SUM(i)", "PARTITION BY s ORDER BY t"), "There are no statistics for the partition keys"),
        (over("SUM(i)", "PARTITION BY k ORDER BY i"), "No partition has enough different values"),
        ("SELECT RANK() OVER (PARTITION BY k ORDER BY t) FROM (SELECT k, t FROM o LIMIT 9) AS o", "or a LIMIT"),
        (
            "SELECT x, RANK() OVER (ORDER BY t) FROM (SELECT t, LAG(i) OVER (ORDER BY t) AS x FROM o) AS o",
            "another window",
        ),
        ("SELECT k, SUM(SUM(i)) OVER (ORDER BY t), SUM(f) FROM o GROUP BY k, t", "The input has sums of fractions"),
    ],
)
@pytest.mark.parametrize("setting", ["auto", "true"])
def test_what_has_no_parts_stays(sql: str, reason: str, setting: str) -> None:
    plan = planned(sql, known(0.9), skewed_windows=setting)
    assert plan.after == plan.before
    found = [one for one in plan.trace if one.rule == SkewedWindows.name]
    assert all(one.outcome is RuleOutcome.SKIPPED for one in found)
    assert any(reason in one.reason for one in found)


@pytest.mark.parametrize(
    ("shares", "slots", "fires"),
    [((0.9,), 2, True), ((0.5,), 8, True), ((0.25, 0.25, 0.25, 0.25), 16, True), ((0.02,), 8, False), ((), 8, False)],
)
@pytest.mark.parametrize("window", ["PARTITION BY k ORDER BY t", "PARTITION BY k"])
def test_auto_splits_hot_partitions(shares: tuple[float, ...], slots: int, fires: bool, window: str) -> None:
    found = trace(planned(over("SUM(i)", window), known(*shares, slots=slots)))
    assert found.outcome is (RuleOutcome.FIRED if fires else RuleOutcome.SKIPPED)


def test_every_hot_partition_has_ranges_of_its_own() -> None:
    plan = planned(over("SUM(i)"), known(0.4, 0.4))
    assert "2 partitions split into 32 ranges of o.t" in trace(plan).reason
    (exchange,) = nodes(plan, Exchange)
    assert (len(exchange.keys), exchange.partitions) == (2, 32)


def test_a_dominating_value_of_the_order_column_is_not_worth_it() -> None:
    found = trace(planned(over("SUM(i)"), known(0.9, top=0.95)))
    assert "would not be clearly cheaper" in found.reason


def test_rows_that_a_condition_on_a_rank_drops_are_left_to_spark() -> None:
    first = "SELECT k FROM (SELECT k, {} OVER (PARTITION BY k ORDER BY t) AS n FROM o) AS w WHERE n <= 3"
    assert "only the first rows" in trace(planned(first.format("RANK()"), known(0.9))).reason
    assert trace(planned(first.format("RANK()"), known(0.9), skewed_windows=True)).outcome is RuleOutcome.FIRED
    assert trace(planned(first.format("SUM(i)"), known(0.9))).outcome is RuleOutcome.FIRED
    qualified = "SELECT k FROM o QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY t) = 1"
    assert "only the first rows" in trace(planned(qualified, known(0.9))).reason


def test_a_condition_on_the_key_may_remove_the_hot_partition() -> None:
    rest = "SELECT SUM(i) OVER (PARTITION BY k ORDER BY t) AS c FROM o WHERE k <> 7"
    assert "may keep all rows of a hot partition or none" in trace(planned(rest, known(0.9))).reason
    assert trace(planned(rest, known(0.9), skewed_windows=True)).outcome is RuleOutcome.FIRED
    other = "SELECT SUM(i) OVER (PARTITION BY k ORDER BY t) AS c FROM o WHERE i > 7"
    assert trace(planned(other, known(0.9))).outcome is RuleOutcome.FIRED


@pytest.mark.parametrize(
    ("call", "ranges", "types"),
    [
        ("SUM(b)", {}, {"DECIMAL(29,0)", "DECIMAL(38,0)"}),
        ("SUM(b)", {"o.b": ValueRange(-1_000, 1_000)}, {"DECIMAL(29,0)", "DECIMAL(38,0)"}),
        ("SUM(b)", {"o.b": ValueRange(-1_000, 1_000, is_whole=True)}, {"BIGINT"}),
        ("AVG(b)", {"o.b": ValueRange(-1_000, 1_000, is_whole=True)}, {"BIGINT"}),
        ("SUM(i)", {}, {"BIGINT"}),
        ("SUM(m)", {}, {"DECIMAL(20,2)", "DECIMAL(30,2)"}),
    ],
)
def test_sums_of_ranges_fit_in_their_types(call: str, ranges: Mapping[str, ValueRange], types: set[str]) -> None:
    windows = nodes(planned(over(call), known(0.9, ranges=ranges)), WindowFunctions)
    assert {str(one.expression.type) for node in windows for one in node.calls} == types


def test_aggregates_of_few_partitions_are_all_joined_back() -> None:
    few = planned(over("SUM(f)", "PARTITION BY k"), known(0.9, distinct=1_000))
    assert (nodes(few, Exchange), nodes(few, WindowFunctions), len(nodes(few, Join))) == ([], [], 1)
    many = planned(over("SUM(f)", "PARTITION BY k"), known(0.9))
    assert [len(nodes(many, kind)) for kind in (Union, WindowFunctions, Join)] == [1, 1, 1]


def test_only_one_window_reads_its_rows_twice() -> None:
    statistics = known(0.9)
    other = KeySketch("o", ("o.t",), 60_000, 1_000_000, 0.0, statistics.keys["o.k",].hot_keys, literals=((SEVEN,),))  # type: ignore[arg-type]
    both = Statistics(statistics.tables, {**statistics.keys, ("o.t",): other}, 8)
    sql = "SELECT COUNT(*) OVER (PARTITION BY k) AS a, COUNT(*) OVER (PARTITION BY t) AS b FROM o"
    plan = planned(sql, both)
    assert len(nodes(plan, Union)) == 1
    assert len(nodes(plan, WindowFunctions)) == 2


def test_the_low_memory_plan_has_no_parts() -> None:
    before = planned(over("SUM(i)"), known(0.9)).before
    plan = low_memory_plan(before, known(0.9), JobSettings(), "Why.")
    assert trace(plan).reason == "skewed_windows is false."


def test_the_setting_has_no_effect_without_windows() -> None:
    plan = planned("SELECT i FROM o", known(0.9), skewed_windows=True)
    assert trace(plan).reason == "skewed_windows is set, but the query has no OVER."
