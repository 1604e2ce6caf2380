"""The plan to run after one that hashed a side ran out of memory. That Spark's failures lead to it:
tests/workers/engine/spark/test_engine.py.
"""

from __future__ import annotations

from typing import Any

from service.contract.options import JobSettings, JoinLocal, JoinShip, JoinSkew
from service.contract.query import JoinKind
from service.contract.reports import HotKey
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, Field
from tests.support.scalars import scalar
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Join, JoinStrategy, Limit, Node, Scan
from workers.engine.planner import FALLBACK, apply_rules, crash_reason, has_joins, low_memory_plan, out_of_memory_reason
from workers.engine.rules.rule import RuleContext
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

A, B, C = (Scan(name, name, ((Field(f"{name}.k", BIGINT), "k"),)) for name in "abc")
BROADCAST = JoinStrategy(JoinShip.BROADCAST_RIGHT, JoinLocal.HASH_RIGHT, JoinSkew.NONE)
HASHED = JoinStrategy(JoinShip.REPARTITION, JoinLocal.HASH_LEFT)
NOTHING_KNOWN = Statistics({}, {}, slots=4)


def join(left: Node, right: Scan, strategy: JoinStrategy, kind: JoinKind = JoinKind.INNER, keyed: bool = True) -> Join:
    keys = ((column("a.k", BIGINT), column(f"{right.alias}.k", BIGINT)),) if keyed else ()
    return Join(left, right, kind, keys, strategy=strategy)


def cautious(node: Node, statistics: Statistics = NOTHING_KNOWN, **settings: Any) -> tuple[str, list[str]]:
    """The plan, and what the trace tells of it."""
    plan = low_memory_plan(node, statistics, JobSettings.model_validate(settings), "Memory ran out.")
    assert plan.before == node
    return text_of(plan.after), [trace.reason for trace in plan.trace if trace.rule == FALLBACK]


def test_every_join_is_sorted_and_merged_whatever_was_demanded() -> None:
    top = Limit(join(join(A, B, BROADCAST), C, HASHED), 3)
    expected = [
        "Limit 3",
        "  Join INNER REPARTITION SORT_MERGE ON a.k = c.k",
        "    Join INNER REPARTITION SORT_MERGE NONE ON a.k = b.k",
        "      Scan a AS a [a.k]",
        "      Scan b AS b [b.k]",
        "    Scan c AS c [c.k]",
    ]
    text, told = cautious(top, join={"ship": "BROADCAST_LEFT"})
    assert text.splitlines() == expected
    assert told == [
        "Memory ran out. Every equi-join now uses sort-merge, Spark broadcasts nothing automatically, and "
        "distinct values are not counted with blocks of bitmaps."
    ]


def test_joins_without_keys_are_left_to_spark_and_traced_if_it_must_broadcast() -> None:
    text, told = cautious(join(A, B, JoinStrategy(JoinShip.BROADCAST_LEFT), JoinKind.CROSS, keyed=False))
    assert text.startswith("Join CROSS\n")
    assert len(told) == 1
    text, told = cautious(join(A, B, JoinStrategy(JoinShip.BROADCAST_RIGHT), JoinKind.LEFT, keyed=False))
    assert text.startswith("Join LEFT\n")
    assert told[1:] == ["The join has no equality: Spark can run this kind of join only by broadcasting a side."]


def test_hot_keys_are_not_broadcast_after_the_exchange_that_spread_them() -> None:
    sizes = {"a": TableSize("a", 8, 1 << 30, 10_000_000, True), "b": TableSize("b", 8, 1 << 28, 5_000_000, True)}
    hot = HotKey(value="7", share=0.9, estimated_rows=9_000_000)
    literals = ((scalar("7L", BIGINT),),)
    of_a = KeySketch("a", ("a.k",), 60_000, 1_000_000, 0.0, (hot,), literals=literals)
    of_b = KeySketch("b", ("b.k",), 60_000, 5_000_000, 0.0, ())
    known = Statistics(sizes, {("a.k",): of_a, ("b.k",): of_b}, slots=4, task_memory=1 << 30)
    by_setting, by_hint = join(A, B, JoinStrategy()), join(A, B, JoinStrategy(skew=JoinSkew.ISOLATE))
    cases: list[tuple[Join, dict[str, Any]]] = [(by_setting, {"join": {"skew": "ISOLATE"}}), (by_hint, {})]
    for one, settings in cases:
        context = RuleContext(JobSettings.model_validate(settings), known)
        assert "BROADCAST_RIGHT" in text_of(apply_rules(one, context).after)
        text, _ = cautious(one, known, **settings)
        assert text.startswith("Join INNER REPARTITION SORT_MERGE ON a.k = b.k\n")


def test_what_is_told() -> None:
    assert out_of_memory_reason("The table is too large.", 4_321) == (
        "Fell back and ran again: after 4,321 ms the query ran out of memory (The table is too large)."
    )
    by_itself = out_of_memory_reason("Java heap space", 7, while_it_ran=True)
    assert by_itself.startswith(
        "Fell back and ran again: after 7 ms the query ran out of memory (Java heap space). The plan"
    )
    assert by_itself.endswith("adaptive execution may have broadcast one.")
    assert crash_reason(1).startswith("An earlier attempt lost the worker")
    assert crash_reason(2).startswith("2 earlier attempts lost the worker")
    assert has_joins(Limit(join(A, B, JoinStrategy()), 1))
    assert not has_joins(Limit(A, 1))
