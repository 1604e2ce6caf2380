"""The rule for windows with hot partitions, its rewrites and its costs.
Aggregates with GROUP BY are in `distinct` and `eager`; ranks over a filter are Spark's own (`InferWindowGroupLimit`).
Start with `skewed_windows.py`, then `running.py`.
"""
