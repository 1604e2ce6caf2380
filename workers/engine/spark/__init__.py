"""Runs a plan on Spark: lowering, sources, statistics from files, results, errors and Spark's own metrics.
Decisions about a plan are in `rules`; the session is started in `workers.driver`.
Start with `engine.py`, then `lowering.py`; statistics start in `table_statistics.py`.
"""
