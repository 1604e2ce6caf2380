"""The rule that aggregates the sides of a join before the join: conditions, rewrite and costs.
The choice of the join's own strategy, and joins of hot keys, are in `joins`.
Start with `eager_aggregation.py`, the rule, then `pushdown.py` (when) and `rewrite.py` (how).
"""
