"""Rules for joins: broadcast, hash or sort-merge, and joins with hot keys; their rewrites and costs.
Aggregates below joins are in `eager`; stream-stream joins are in `workers.engine.streaming`.
Start with the rules `join_strategy.py` and `skewed_join.py`, then `hot_keys.py`.
"""
