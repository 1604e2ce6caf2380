"""Statistics are required for what is decided by cost, and for nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.contract.options import JobSettings, JoinLocal, JoinShip, JoinSkew
from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.nodes import OrderKey, Over
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, BINARY, STRING, Field
from tests.support.plan_parts import COUNT
from workers.engine.plan.nodes import Aggregate, Call, Join, JoinStrategy, Limit, Named, Node, Scan, WindowFunctions
from workers.engine.rules.required_statistics import (
    is_all_forced,
    joined_texts,
    statistics_keys,
    undecided,
    window_orders,
)

L = Scan("l", "l", ((Field("l.k", BIGINT), "k"), (Field("l.d", BIGINT), "d")))
R = Scan("r", "r", ((Field("r.k", BIGINT), "k"),))
K, D = column("l.k", BIGINT), column("l.d", BIGINT)
JOIN = Join(L, R, JoinKind.INNER, ((K, column("r.k", BIGINT)),))
DISTINCT = Call(AggregateFunction.COUNT, (D,), Field("x", BIGINT), distinct=True)

PLAIN = Aggregate(L, (Named(K, "k"),), (COUNT,))
COUNTED = Aggregate(L, (Named(K, "k"),), (COUNT, DISTINCT))
JOINED = Aggregate(JOIN, (Named(K, "k"),), (COUNT,))

ORDERED = Over("COUNT", (), (K.tree,), (OrderKey(D.tree),))
RUNNING = WindowFunctions(L, (Named(Scalar(ORDERED, BIGINT), "n"),))
TILED = WindowFunctions(L, (Named(Scalar(replace(ORDERED, function="ntile", arguments=(D.tree,)), BIGINT), "n"),))

PHASE = {"agg_phase": "ONE_PHASE"}
JOINS = {"join.ship": "REPARTITION", "join.local": "SORT_MERGE", "join.skew": "NONE"}
NOT_EAGER = {"eager_aggregation": False}


@pytest.mark.parametrize(
    ("plan", "settings", "forced"),
    [
        (PLAIN, {}, False),
        (PLAIN, PHASE, True),
        (COUNTED, PHASE, False),
        (COUNTED, {**PHASE, "distinct_split.enabled": True}, True),
        (COUNTED, {**PHASE, "distinct_split.enabled": False}, False),
        (COUNTED, {**PHASE, "distinct_method": "native"}, True),
        (COUNTED, {**PHASE, "distinct_method": "split"}, True),
        (COUNTED, {**PHASE, "distinct_method": "bitmap"}, False),
        (COUNTED, {"distinct_method": "native"}, False),
        (JOIN, {}, False),
        (JOIN, JOINS, True),
        (JOIN, {**JOINS, "join.skew": "ISOLATE"}, False),
        (JOIN, {"join.ship": "REPARTITION", "join.skew": "NONE"}, False),
        (JOIN, {"join.ship": "BROADCAST_LEFT"}, True),
        (JOINED, {**PHASE, **JOINS}, False),
        (JOINED, {**PHASE, **JOINS, **NOT_EAGER}, True),
        (JOINED, {**PHASE, **JOINS, "eager_aggregation": True}, True),
        (RUNNING, {}, False),
        (RUNNING, {"skewed_windows": True}, False),
        (RUNNING, {"skewed_windows": False}, True),
        (replace(RUNNING, input=PLAIN), PHASE, True),
        (TILED, {"skewed_windows": False}, False),
        (Limit(L, 3), {}, False),
        (Limit(Join(L, R, JoinKind.CROSS, ()), 3), PHASE, False),
    ],
)
def test_all_is_forced_or_something_is_not(plan: Node, settings: dict[str, Any], forced: bool) -> None:
    assert is_all_forced(plan, JobSettings.model_validate(settings)) is forced


def test_what_is_forced_for_one_join_counts() -> None:
    strategy = JoinStrategy(JoinShip.REPARTITION, JoinLocal.HASH_LEFT, JoinSkew.NONE)
    assert is_all_forced(Join(L, R, JoinKind.INNER, JOIN.keys, strategy=strategy), JobSettings())


def test_only_what_is_open_needs_keys() -> None:
    is_open = undecided(JOINED, JobSettings.model_validate({**PHASE, **NOT_EAGER}))
    assert (is_open(JOIN), is_open(JOINED), is_open(L)) == (True, False, False)
    is_open = undecided(JOINED, JobSettings.model_validate({**JOINS, **NOT_EAGER}))
    assert (is_open(JOIN), is_open(JOINED)) == (False, True)


def test_texts_below_undecided_joins_are_required() -> None:
    texts = (Field("r.s", STRING), "s"), (Field("r.b", BINARY), "b")
    join = Join(L, Limit(Scan("r", "r", (*R.columns, *texts)), 3), JoinKind.INNER, JOIN.keys)
    assert joined_texts(join) == {"r.s", "r.b"}
    assert joined_texts(Limit(join, 3), undecided(join, JobSettings.model_validate(JOINS))) == frozenset()
    assert joined_texts(Scan("r", "r", texts)) == frozenset()


def test_windows_need_their_partition_keys_and_the_order_of_hot_ones() -> None:
    assert statistics_keys(RUNNING) == {("l.k",)}
    assert window_orders(RUNNING) == {(("l.k",), "l.d")}
    everything = WindowFunctions(L, (Named(Scalar(replace(ORDERED, partition_by=()), BIGINT), "n"),))
    assert statistics_keys(everything) == frozenset()
    assert window_orders(everything) == {((), "l.d")}
    assert statistics_keys(TILED) == frozenset()
    assert window_orders(TILED) == frozenset()
    assert window_orders(replace(RUNNING, input=Limit(L, 3))) == frozenset()
    assert window_orders(RUNNING, lambda _: False) == frozenset()
