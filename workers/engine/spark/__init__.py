"""Runs a plan on Spark: the Spark plan, the tables' files, statistics from files, results, errors, Spark's own metrics.
Decisions about a plan are in `rules`; the session is started in `workers.driver`.
Start with `engine.py`, which plans and runs a query. `lowering.py` builds the Spark plan, and `table_statistics.py`
gathers the statistics.
"""
