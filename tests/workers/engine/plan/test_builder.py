"""The plan of a query before any rule."""

from __future__ import annotations

from dataclasses import replace

from service.contract.query import AggregateFunction, JoinKind, NullsOrder, SortDirection
from service.sql.expressions.scalar import column
from service.sql.resolve.bound import (
    BoundCall,
    BoundDerived,
    BoundJoin,
    BoundQuery,
    BoundTable,
    BoundUnion,
    Named,
    SortItem,
)
from service.sql.types.data_types import BIGINT, BOOLEAN, INT, Field, Schema
from tests.support.plan_parts import UID
from tests.support.scalars import scalar
from workers.engine.plan.builder import build
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import output_of

ORDERS = BoundTable("orders", "o", ((Field("o.uid", BIGINT), "uid"),))
USERS = BoundTable("users", "u", ((Field("u.uid", BIGINT), "uid"),))
PLAIN = BoundQuery(
    source=ORDERS,
    joins=(),
    where=None,
    is_aggregate=False,
    keys=(),
    calls=(),
    having=None,
    order_by=(),
    limit=None,
    select=(Named(UID, "uid"),),
    output=Schema((Field("uid", BIGINT),)),
)
COUNT = BoundCall(AggregateFunction.COUNT, (), False, None, None, Field("n", BIGINT))


def test_a_plain_selection_is_a_project_over_a_scan() -> None:
    assert text_of(build(PLAIN)) == "Project o.uid AS uid\n  Scan orders AS o [o.uid]"


def test_the_nodes_are_in_the_order_of_sql_semantics() -> None:
    query = replace(
        PLAIN,
        joins=(BoundJoin(JoinKind.INNER, USERS, ((UID, column("u.uid", BIGINT)),), None),),
        where=scalar("`o.uid` > 0", BOOLEAN),
        is_aggregate=True,
        keys=(Named(UID, "uid"),),
        calls=(COUNT,),
        having=scalar("`n` > 1", BOOLEAN),
        order_by=(SortItem(column("n", BIGINT), SortDirection.DESC, NullsOrder.LAST),),
        limit=3,
        select=(Named(column("uid", BIGINT), "uid"), Named(column("n", BIGINT), "orders")),
        output=Schema((Field("uid", BIGINT), Field("orders", BIGINT))),
    )
    plan = build(query)
    assert text_of(plan).splitlines() == [
        "Project uid, n AS orders",
        "  Limit 3",
        "    Sort n DESC NULLS LAST",
        "      Filter n > 1",
        "        Aggregate BY o.uid AS uid [COUNT(*) AS n]",
        "          Filter o.uid > 0",
        "            Join INNER ON o.uid = u.uid",
        "              Scan orders AS o [o.uid]",
        "              Scan users AS u [u.uid]",
    ]
    assert output_of(plan) == query.output.fields


def test_a_constant_orders_nothing() -> None:
    one = SortItem(scalar("1", INT), SortDirection.DESC, NullsOrder.LAST)
    uid = SortItem(UID, SortDirection.ASC, NullsOrder.FIRST)
    assert "Sort" not in text_of(build(replace(PLAIN, order_by=(one,))))
    assert "Sort o.uid ASC NULLS FIRST\n" in text_of(build(replace(PLAIN, order_by=(one, uid))))


def test_a_global_aggregate_has_no_keys() -> None:
    query = replace(PLAIN, is_aggregate=True, calls=(COUNT,), select=(Named(column("n", BIGINT), "n"),))
    assert "Aggregate [COUNT(*) AS n]" in text_of(build(query))


def derived(query: BoundQuery | BoundUnion, alias: str = "x") -> BoundDerived:
    columns = tuple((Field(f"{alias}.{field.name}", field.type), field.name) for field in query.output.fields)
    return BoundDerived(query, alias, columns)


def test_a_derived_table_is_its_plan_under_one_project_with_its_alias() -> None:
    query = replace(PLAIN, source=derived(replace(PLAIN, limit=3)), select=(Named(column("x.uid", BIGINT), "k"),))
    plan = build(query)
    assert text_of(plan) == (
        "Project x.uid AS k\n  Project o.uid AS x.uid\n    Limit 3\n      Scan orders AS o [o.uid]"
    )


def test_a_union_is_one_of_projects_with_the_same_columns() -> None:
    users = replace(PLAIN, source=USERS, select=(Named(column("u.uid", BIGINT), "uid"),))
    plan = build(replace(PLAIN, source=derived(BoundUnion((PLAIN, users)), "o")))
    assert text_of(plan) == (
        "Project o.uid AS uid\n  Union 2 inputs\n    Project o.uid\n      Scan orders AS o [o.uid]\n"
        "    Project u.uid AS o.uid\n      Scan users AS u [u.uid]"
    )


def test_grouping_sets_stay_with_their_aggregate() -> None:
    query = replace(PLAIN, is_aggregate=True, keys=(Named(UID, "uid"),), calls=(COUNT,), grouping_sets=((0,), ()))
    query = replace(query, select=(Named(column("n", BIGINT), "n"),))
    assert text_of(build(query)).splitlines()[1] == "  Aggregate BY o.uid AS uid SETS (uid), () [COUNT(*) AS n]"
