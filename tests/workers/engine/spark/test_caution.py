"""Which joins of a physical plan hash or broadcast a side. What a cautious session does: test_engine.py."""

from __future__ import annotations

from workers.engine.spark.caution import hashed_joins

PLAN = """== Physical Plan ==
AdaptiveSparkPlan (20)
+- * Project (19)
   +- * BroadcastHashJoin Inner BuildRight (18)
      :- BroadcastNestedLoopJoin BuildLeft LeftOuter (9)
      :  :- * ShuffledHashJoin Inner BuildRight (5)
      :  :  :- * SortMergeJoin Inner (4)
      +- BroadcastExchange (17)

(18) BroadcastHashJoin [codegen id : 2]
Join condition: (name = BroadcastHashJoin Inner)
"""


def test_the_tree_is_counted_and_not_what_is_said_of_it() -> None:
    assert hashed_joins(PLAN) == 3
    assert hashed_joins(None) == 0
