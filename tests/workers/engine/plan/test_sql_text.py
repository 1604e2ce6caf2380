"""Plans as queries. tests/conformance/test_plan_texts.py runs the texts on Spark."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args

import pytest

from service.contract.options import JoinLocal, JoinShip
from service.contract.query import GeneratorFunction, JoinKind, NullsOrder, SortDirection
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, BOOLEAN, INT, Field
from tests.support.plan_parts import COUNT
from tests.support.scalars import scalar
from workers.engine.plan.nodes import (
    Aggregate,
    Deduplicate,
    Exchange,
    Expand,
    Filter,
    Generate,
    Join,
    JoinStrategy,
    Limit,
    MultisetOperation,
    Named,
    Node,
    Project,
    Recursion,
    Scan,
    Shared,
    Sort,
    SortItem,
    StepRows,
    Union,
    Values,
    Watermark,
    WindowFunctions,
    Windows,
    Within,
)
from workers.engine.plan.sql import nested_sql, sql_of

ORDERS = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"), (Field("o.x", BIGINT), "x")))
USERS = Scan("users", "u", ((Field("u.uid", BIGINT), "u`id"),))
UID, X = column("o.uid", BIGINT), column("o.x", BIGINT)
POSITIVE = scalar("`o.x` > 0", BOOLEAN)
UID_OF_VALUES = scalar("1L", BIGINT)
RANKED = WindowFunctions(ORDERS, (Named(scalar("rank() OVER (PARTITION BY `o.x` ORDER BY `o.uid` DESC)", INT), "r"),))
KEYS = ((UID, column("u.uid", BIGINT)),)
BY_UID = Aggregate(ORDERS, (Named(UID, "uid"),), (COUNT,))


def last_of(node: Node) -> str:
    """The text behind the steps, on one line."""
    return " ".join(sql_of(node).rpartition("\n)\n")[2].split())


def test_a_query_of_every_clause() -> None:
    having = Filter(Aggregate(Filter(ORDERS, POSITIVE), (Named(UID, "uid"),), (COUNT,)), scalar("`n` > 1", None))
    ordered = Sort(having, (SortItem(column("n", BIGINT), SortDirection.DESC, NullsOrder.LAST),))
    assert (
        sql_of(Project(Limit(ordered, 3), (Named(column("n", BIGINT), "total"),)))
        == """\
WITH
scan_0 AS (
  SELECT `uid` AS `o.uid`, `x` AS `o.x`
  FROM `orders`
),
aggregate_2 AS (
  SELECT `o.uid` AS `uid`, count(*) AS `n`
  FROM scan_0
  WHERE `o.x` > 0
  GROUP BY `o.uid`
)
SELECT `n` AS `total`
FROM aggregate_2
WHERE `n` > 1
ORDER BY `n` DESC NULLS LAST
LIMIT 3"""
    )


def test_nested_steps_and_relations() -> None:
    limited = Limit(USERS, 3)
    joined = Join(
        Filter(ORDERS, POSITIVE), limited, JoinKind.INNER, KEYS, strategy=JoinStrategy(JoinShip.BROADCAST_RIGHT)
    )
    names: dict[Node, str] = {ORDERS: "relation_0", limited: "relation_1"}
    assert (
        nested_sql(Aggregate(joined, (), (COUNT,)), names.get)
        == """\
SELECT /*+ BROADCAST(relation_2) */ count(*) AS `n`
FROM (
SELECT *
FROM (
SELECT `o.uid`, `o.x`
FROM relation_0
) AS scan_0
WHERE `o.x` > 0
) AS filter_1 JOIN (
SELECT *
FROM relation_1
) AS relation_2
  ON (`o.uid`) = (`u.uid`)"""
    )


@pytest.mark.parametrize(
    ("node", "last"),
    [
        (ORDERS, "SELECT `uid` AS `o.uid`, `x` AS `o.x` FROM `orders`"),
        (Scan("orders", "o", ()), "SELECT 1 AS `$row` FROM `orders`"),
        (Filter(Filter(ORDERS, POSITIVE), POSITIVE), "SELECT * FROM scan_0 WHERE (`o.x` > 0) AND (`o.x` > 0)"),
        (
            Project(ORDERS, (Named(UID, "o.uid"), Named(X, "o.x"))),
            "SELECT `uid` AS `o.uid`, `x` AS `o.x` FROM `orders`",
        ),
        (Project(ORDERS, (Named(X, "a b"),)), "SELECT `o.x` AS `a b` FROM scan_0"),
        (Join(ORDERS, USERS, JoinKind.CROSS, ()), "SELECT * FROM scan_0 CROSS JOIN scan_1"),
        (
            Join(ORDERS, USERS, JoinKind.LEFT_ANTI, KEYS, POSITIVE, null_safe=True),
            "SELECT * FROM scan_0 LEFT ANTI JOIN scan_1 ON (`o.uid`) <=> (`u.uid`) AND (`o.x` > 0)",
        ),
        (Aggregate(ORDERS, (Named(UID, "uid"),), ()), "SELECT DISTINCT `o.uid` AS `uid` FROM scan_0"),
        (Aggregate(ORDERS, (), ()), "SELECT count(*) AS `$row` FROM scan_0"),
        (
            Aggregate(ORDERS, (Named(scalar("-7", INT), "seven"),), (COUNT,)),
            "SELECT -7 AS `seven`, count(*) AS `n` FROM scan_0 GROUP BY CAST(-7 AS INT)",
        ),
        (
            Aggregate(
                ORDERS,
                (Named(UID, "uid"), Named(scalar("1", INT), "one")),
                (COUNT,),
                grouping_sets=((1,), (0, 1), ()),
            ),
            "SELECT `o.uid` AS `uid`, CAST(1 AS INT) AS `one`, count(*) AS `n` FROM scan_0 "
            "GROUP BY `o.uid`, CAST(1 AS INT) GROUPING SETS ((CAST(1 AS INT)), (`o.uid`, CAST(1 AS INT)), ())",
        ),
        (Deduplicate(ORDERS), "SELECT DISTINCT `o.uid`, `o.x` FROM scan_0"),
        (
            Deduplicate(Expand(ORDERS, 2, "$b")),
            "SELECT DISTINCT *, explode(sequence(1, 2)) AS `$b` FROM scan_0",
        ),
        (Deduplicate(Filter(ORDERS, POSITIVE)), "SELECT DISTINCT `o.uid`, `o.x` FROM scan_0 WHERE `o.x` > 0"),
        (Deduplicate(Limit(ORDERS, 3)), "SELECT DISTINCT `o.uid`, `o.x` FROM limit_1"),
        (Filter(Deduplicate(ORDERS), POSITIVE), "SELECT * FROM deduplicate_1 WHERE `o.x` > 0"),
        (
            Generate(ORDERS, GeneratorFunction.EXPLODE, (UID,), (Field("u.x", INT),), outer=True),
            "SELECT *, explode_outer(`o.uid`) AS (`u.x`) FROM scan_0",
        ),
        (Expand(ORDERS, 3, "$b"), "SELECT *, explode(sequence(1, 3)) AS `$b` FROM scan_0"),
        (RANKED, "SELECT *, rank() OVER (PARTITION BY `o.x` ORDER BY `o.uid` DESC) AS `r` FROM scan_0"),
        (Filter(RANKED, POSITIVE), "SELECT * FROM windowfunctions_1 WHERE `o.x` > 0"),
        (Exchange(ORDERS, (UID, X)), "SELECT * FROM scan_0 DISTRIBUTE BY `o.uid`, `o.x`"),
        (Exchange(ORDERS, (UID,), 7), "SELECT /*+ REPARTITION(7, `o.uid`) */ * FROM scan_0"),
        (Exchange(ORDERS, (POSITIVE,), 7), "SELECT * FROM scan_0 DISTRIBUTE BY `o.x` > 0 /* into 7 tasks */"),
        (Exchange(ORDERS, ()), "SELECT /*+ REBALANCE */ * FROM scan_0"),
        (Exchange(ORDERS, (), 7), "SELECT /*+ REPARTITION(7) */ * FROM scan_0"),
        (Union((ORDERS, ORDERS)), "SELECT * FROM scan_0 UNION ALL SELECT * FROM scan_1"),
        (MultisetOperation(ORDERS, ORDERS, "except_all"), "SELECT * FROM scan_0 EXCEPT ALL SELECT * FROM scan_1"),
        (
            Values((Field("v.x", BIGINT),), ((UID_OF_VALUES,), (UID_OF_VALUES,))),
            "SELECT * FROM VALUES (1L), (1L) AS `values`(`v.x`)",
        ),
        (Limit(Limit(ORDERS, 5), 3), "SELECT * FROM limit_1 LIMIT 3"),
        (Limit(Limit(ORDERS, None, 2), 3, 1), "SELECT * FROM limit_1 LIMIT 3 OFFSET 1"),
    ],
)
def test_each_operator(node: Node, last: str) -> None:
    assert last_of(node) == last


@pytest.mark.parametrize(
    ("strategy", "hint"),
    [
        (JoinStrategy(), ""),
        (JoinStrategy(JoinShip.BROADCAST_LEFT, JoinLocal.HASH_LEFT), "/*+ BROADCAST(scan_0) */ "),
        (JoinStrategy(JoinShip.BROADCAST_RIGHT), "/*+ BROADCAST(scan_1) */ "),
        (JoinStrategy(JoinShip.REPARTITION, JoinLocal.HASH_LEFT), "/*+ SHUFFLE_HASH(scan_0) */ "),
        (JoinStrategy(JoinShip.REPARTITION, JoinLocal.HASH_RIGHT), "/*+ SHUFFLE_HASH(scan_1) */ "),
        (JoinStrategy(JoinShip.REPARTITION), "/*+ MERGE(scan_0) */ "),
        (JoinStrategy(local=JoinLocal.SORT_MERGE), "/*+ MERGE(scan_0) */ "),
    ],
)
def test_a_strategy_is_a_hint(strategy: JoinStrategy, hint: str) -> None:
    join = Join(ORDERS, USERS, JoinKind.INNER, KEYS, strategy=strategy)
    assert last_of(join) == f"SELECT {hint}* FROM scan_0 JOIN scan_1 ON (`o.uid`) = (`u.uid`)"
    # It stays where rows are grouped in the same SELECT, and what sends them is a step of its own.
    assert hint in last_of(Aggregate(join, (Named(UID, "uid"),), (COUNT,)))
    assert last_of(Exchange(join, ())).startswith("SELECT /*+ REBALANCE */ * FROM " + ("join_2" if hint else "scan_0"))


def test_an_order_is_not_by_an_item_that_took_its_name() -> None:
    ordered = Sort(BY_UID, (SortItem(column("n", BIGINT), SortDirection.ASC, NullsOrder.FIRST),))
    negated = Named(scalar("-`n`", BIGINT), "N")
    assert last_of(Project(ordered, (negated,))) == "SELECT -`n` AS `N` FROM sort_2"


def test_steps_are_called_like_no_table() -> None:
    table = Scan("scan_0", "o", ORDERS.columns)
    assert sql_of(Filter(table, POSITIVE)).startswith("WITH\nscan_0_ AS (")


def test_a_name_with_a_backquote() -> None:
    assert last_of(USERS) == "SELECT `u``id` AS `u.uid` FROM `users`"


KNOWN_FIELDS = {
    Scan: {"table", "alias", "columns"},
    Values: {"columns", "rows"},
    Watermark: {"input", "column", "delay_ms"},
    Windows: {"input", "column", "size_ms", "slide_ms", "name"},
    Filter: {"input", "condition"},
    Project: {"input", "items"},
    Join: {"left", "right", "kind", "keys", "residual", "null_safe", "strategy", "within"},
    Aggregate: {"input", "keys", "calls", "role", "phases", "grouping_sets"},
    Deduplicate: {"input"},
    Expand: {"input", "branches", "name"},
    Generate: {"input", "function", "arguments", "columns", "outer"},
    WindowFunctions: {"input", "calls"},
    Exchange: {"input", "keys", "partitions"},
    Union: {"inputs"},
    Sort: {"input", "keys"},
    MultisetOperation: {"left", "right", "kind"},
    Recursion: {"inputs", "step", "columns", "levels"},
    StepRows: {"place", "columns"},
    Limit: {"input", "count", "offset"},
    Shared: {"input", "number"},
}


def test_the_text_shows_every_node_and_every_field() -> None:
    # What fails here has been added to a node: teach `sql_of` what it means, then name it above. What has no say in
    # whether two nodes are equal has none in what they mean.
    told = {kind: {field.name for field in fields(kind) if field.compare} for kind in get_args(Node)}
    assert told == KNOWN_FIELDS


def test_an_unknown_node_fails() -> None:
    class Pivot(Limit):
        """Something that a later rule may bring."""

    with pytest.raises(TypeError, match="Pivot has no SQL"):
        sql_of(Pivot(ORDERS, 3))


def test_windows_are_sparks_and_a_watermark_is_a_comment() -> None:
    node = Windows(Filter(Watermark(ORDERS, X, 5000), POSITIVE), X, 600_000, 60_000, "$w")
    assert last_of(node) == (
        "SELECT *, window(`o.x`, '600000 milliseconds', '60000 milliseconds') AS `$w` "
        "FROM scan_0 /* watermark: 5000 ms behind */ WHERE `o.x` > 0"
    )


def test_the_time_bounds_of_a_stream_join_are_a_comment() -> None:
    key = (column("o.uid", BIGINT), column("u.uid", BIGINT))
    node = Join(ORDERS, USERS, JoinKind.INNER, (key,), within=Within(X, column("u.uid", BIGINT), -5, 10))
    assert last_of(node).endswith("ON (`o.uid`) = (`u.uid`) /* within: `o.x` - `u.uid` from -5 to 10 us */")
