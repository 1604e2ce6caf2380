"""Which plans can use an existing state."""

from __future__ import annotations

from service.contract.query import AggregateFunction
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, Field
from tests.support.stream_queries import built as built_query
from tests.support.stream_queries import planned
from workers.engine.plan.nodes import Aggregate, Call, Named, Project, Scan
from workers.engine.streaming.state import differences, layout_of
from workers.engine.streaming.stream_plan import changes_plan, stream_plan

ORDERS = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"), (Field("o.x", BIGINT), "x")))
UID, X = column("o.uid", BIGINT), column("o.x", BIGINT)


def built(function: AggregateFunction) -> Project:
    call = Call(function, (X,), Field("v", BIGINT))
    items = (Named(column("uid", BIGINT), "uid"), Named(column("v", BIGINT), "v"))
    return Project(Aggregate(ORDERS, (Named(UID, "uid"),), (call,)), items)


def layout(function: AggregateFunction = AggregateFunction.SUM, partitions: int = 2) -> dict[str, object]:
    plan = stream_plan(built(function), frozenset({"o"}))
    return layout_of(plan, frozenset({"o"}), provider="rocksdb", partitions=partitions, output="update")


def test_the_same_plan_can_use_the_state() -> None:
    assert differences(layout(), layout()) == ()


def test_a_plan_with_other_values_of_the_same_types_cannot() -> None:
    assert [one.what for one in differences(layout(), layout(AggregateFunction.MAX))] == ["the plan"]


def test_a_difference_has_the_setting_and_both_values() -> None:
    (one,) = differences(layout(), layout(partitions=4))
    assert str(one) == "state.partitions was 2 when the state was created, and is 4 now"


def test_the_layout_has_the_streams_and_their_columns() -> None:
    assert layout()["streams"] == [{"table": "orders", "columns": ["uid BIGINT", "x BIGINT"]}]


def test_a_layout_of_an_earlier_version_may_write_expressions_differently() -> None:
    after = layout()
    before = {name: value for name, value in after.items() if name != "text"}
    before["plan"] = "Filter COALESCE((o.x), 0L) > 1 AND (o.uid) IS NOT NULL"
    after["plan"] = "Filter coalesce(o.x, 0L) > 1 AND o.uid IS NOT NULL"
    assert differences(before, after) == ()
    assert [one.what for one in differences({**before, "text": after["text"]}, after)] == ["the plan"]
    after["plan"] = "Filter coalesce(o.x, 1L) > 1 AND o.uid IS NOT NULL"
    assert [one.what for one in differences(before, after)] == ["the plan"]


def test_a_join_with_other_time_bounds_has_another_layout() -> None:
    def of(seconds: int) -> dict[str, object]:
        within = f"s.ts BETWEEN t.ts - INTERVAL '{seconds}' SECOND AND t.ts"
        plan = planned(f"SELECT s.k, t.i FROM s JOIN t ON s.k = t.k WHERE {within}", timed=True)
        return layout_of(plan, frozenset("st"), provider="rocksdb", partitions=2, output="append")

    assert differences(of(5), of(5)) == ()
    assert [one.what for one in differences(of(5), of(6))] == ["the plan"]


def test_changed_files_of_static_tables_are_a_difference_for_changes() -> None:
    sql = "SELECT n.name, COUNT(*) AS c FROM s JOIN n ON s.g = n.g GROUP BY n.name HAVING COUNT(*) < 3"
    node, streams = built_query(sql)
    plan = changes_plan(node, streams, "HAVING may become false")
    before, same, after = (
        layout_of(plan, streams, provider="rocksdb", partitions=2, output="update", statics={"n": digest})
        for digest in ("a", "a", "b")
    )
    assert not differences(before, same)
    assert [found.what for found in differences(before, after)] == [
        "the files of static tables, from which removed rows are computed again"
    ]
