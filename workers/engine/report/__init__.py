"""Reports after a run: estimates against measurements, skew of tasks and keys, and advice on settings.
Reading Spark's metrics is in `workers.engine.spark`; nothing here changes a plan.
Start with `estimates.py`, then `skew.py`; `operator_matching.py` finds Spark's operators for our nodes.
"""
