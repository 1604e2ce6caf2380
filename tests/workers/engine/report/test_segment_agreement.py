"""Two plans agree only if they have the same shape over the same files."""

from __future__ import annotations

import pytest

from service.contract.query import JoinKind
from service.contract.reports import OperatorMetrics
from tests.support.plan_parts import ORDERS, UID, USERS
from tests.support.scalars import scalar
from tests.support.stages import operator
from tests.workers.engine.report.test_operator_tree import KEEP
from workers.engine.plan.nodes import Filter, Join, Node, Scan
from workers.engine.report.operator_tree import agree, numbered, segments_of_operators, segments_of_plan

JOIN = Join(ORDERS, USERS, JoinKind.INNER, ((UID, UID),))
FILES = {"orders": ["/data/orders/0.parquet", "/data/orders/1.parquet"], "users": ["s3a://shop/users/0.parquet"]}
ORDER_FILE, USER_FILE = "file:/data/orders/0.parquet", "s3a://shop/users/0.parquet"


def scan(number: int, location: str, columns: str = "uid#1L") -> OperatorMetrics:
    detail = (
        f"FileScan parquet [{columns}] Batched: true, DataFilters: [], Format: Parquet, "
        f"Location: InMemoryFileIndex(2 paths)[{location}], PartitionFilters: []"
    )
    return operator(number, "Scan parquet", detail=detail)


def agrees(plan: Node, *operators: OperatorMetrics) -> bool:
    return agree(segments_of_plan(numbered(plan)), segments_of_operators(operators), FILES)


JOINED = operator(1, "SortMergeJoin", 2, 3)


def test_the_same_tables_in_the_same_order() -> None:
    assert agrees(JOIN, JOINED, scan(2, ORDER_FILE), scan(3, USER_FILE))
    assert not agrees(JOIN, JOINED, scan(2, USER_FILE), scan(3, ORDER_FILE))


@pytest.mark.parametrize(
    ("location", "same"),
    [
        ("file:/data/orders/1.parquet", True),
        ("file:/data/orders/0.parquet, file:/data/orders/1.parquet", True),
        ("file:/data/ord...", True),
        ("file:/data/orders/2.parquet", False),
        ("file:/data/orders", False),
        ("file:/data/us...", False),
    ],
)
def test_files(location: str, same: bool) -> None:
    assert agrees(JOIN, JOINED, scan(2, location), scan(3, USER_FILE)) is same
    assert agrees(ORDERS, scan(2, location)) is same


def test_columns_that_the_scan_does_not_read() -> None:
    assert agrees(ORDERS, scan(1, ORDER_FILE, "UID#1L"))
    assert not agrees(ORDERS, scan(1, ORDER_FILE, "uid#1L,name#2"))
    assert agrees(Scan("orders", "o", ()), scan(1, ORDER_FILE, "anything#2"))


def test_a_scan_without_a_location_is_known_only_where_there_is_one_table() -> None:
    bare = operator(2, "Scan parquet", detail="FileScan parquet [uid#1L] Batched: true")
    assert agrees(ORDERS, bare)
    assert not agrees(JOIN, JOINED, bare, scan(3, USER_FILE))


def test_other_shapes() -> None:
    assert agrees(Filter(ORDERS, KEEP), scan(1, ORDER_FILE))
    assert not agrees(JOIN, scan(2, ORDER_FILE))
    assert not agrees(ORDERS, operator(1, "EmptyRelation"))
    assert not agrees(ORDERS, operator(1, "HashAggregate", 2), scan(2, ORDER_FILE))


def test_joins_without_keys_of_one_table_may_stand_in_any_order() -> None:
    cross = Join(ORDERS, ORDERS, JoinKind.INNER, (), scalar("TRUE", None))
    operators = (operator(1, "CartesianProduct", 2, 3), scan(2, ORDER_FILE), scan(3, ORDER_FILE))
    assert not agrees(cross, *operators)
    assert agrees(Join(ORDERS, ORDERS, JoinKind.INNER, ((UID, UID),)), *operators)
