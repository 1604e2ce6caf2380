"""Spark's aggregate operators are assigned to our aggregates, all of them or none."""

from __future__ import annotations

import pytest

from service.contract.query import AggregateFunction
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, Field
from tests.support.plan_parts import ORDERS
from tests.support.stages import operator
from workers.engine.plan.nodes import Aggregate, Call, Deduplicate, Named, Node
from workers.engine.report.operator_matching import aggregate_groups

UID, ITEM = column("o.uid", BIGINT), column("o.item", BIGINT)
BY_UID = (Named(UID, "o.uid"),)
COUNTED = Aggregate(ORDERS, BY_UID, (Call(AggregateFunction.COUNT, (), Field("n", BIGINT)),))
DISTINCT = Aggregate(ORDERS, BY_UID, (Call(AggregateFunction.COUNT, (ITEM,), Field("n", BIGINT), distinct=True),))
COPIED = Aggregate(
    ORDERS,
    BY_UID,
    (*DISTINCT.calls, Call(AggregateFunction.COUNT, (UID,), Field("m", BIGINT), distinct=True)),
)
GROUPED = Aggregate(ORDERS, BY_UID, ())
FUNCTIONS = {"F": "count(1)", "P": "partial_count(1)", "M": "merge_count(1)", "N": ""}


def parts(made: list[Node], members: str) -> list[str] | None:
    """`members` are operators by their letter in `FUNCTIONS`, `x` exchanges; so are the groups that come out."""
    operators = [
        operator(number, "Exchange")
        if letter == "x"
        else operator(number, "HashAggregate", detail=f"HashAggregate(keys=[k], functions=[{FUNCTIONS[letter]}])")
        for number, letter in enumerate(members)
    ]
    groups = aggregate_groups(made, operators)
    return None if groups is None else ["".join(members[each.id] for each in group) for group in groups]


@pytest.mark.parametrize(
    ("made", "members", "groups"),
    [
        ([COUNTED], "FxP", ["FxP"]),
        ([COPIED], "FxPFxP", ["FxPFxP"]),
        ([COUNTED, COUNTED], "FxPFxP", ["FxP", "FxP"]),
        ([COUNTED, COUNTED], "FxPxFxP", ["FxP", "xFxP"]),
        ([COUNTED, COUNTED], "FF", ["F", "F"]),
        ([COUNTED, DISTINCT], "FxPFPNxN", ["FxP", "FPNxN"]),
        ([DISTINCT, COUNTED], "FxPMxPFP", ["FxPMxP", "FP"]),
        ([COUNTED, GROUPED], "FxPNxN", ["FxP", "NxN"]),
        ([GROUPED, COUNTED], "NxNFxP", ["NxN", "FxP"]),
        ([Deduplicate(ORDERS), COUNTED], "NFxP", ["N", "FxP"]),
        ([COUNTED, COPIED], "FxPFxPFxP", ["FxP", "FxPFxP"]),
    ],
)
def test_parts(made: list[Node], members: str, groups: list[str]) -> None:
    assert parts(made, members) == groups


@pytest.mark.parametrize(
    ("made", "members"),
    [
        ([COUNTED, COUNTED], "FxP"),
        ([COUNTED, COUNTED], "FxPFxPFxP"),
        ([COUNTED, COUNTED], "PFxP"),
        ([COPIED, COUNTED], "FxPFxPFxP"),
        ([GROUPED, GROUPED], "NxNxN"),
        ([DISTINCT, GROUPED], "FPNxN"),
        ([COUNTED, GROUPED], "FxPNNN"),
        ([COUNTED, GROUPED], "FxP"),
    ],
)
def test_groups_that_cannot_be_distinguished(made: list[Node], members: str) -> None:
    assert parts(made, members) is None


def test_an_unknown_text_of_an_operator() -> None:
    unlike = [operator(number, "HashAggregate", detail="HashAggregate") for number in range(2)]
    assert aggregate_groups([COUNTED, COUNTED], unlike) is None
