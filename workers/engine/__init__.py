"""The engine: it turns a bound query into a plan, applies the rules and runs the plan on Spark.
Leases, threads and the database do not belong here; only `spark` and `streaming` import PySpark.
Start with `planner.py`, then `plan/nodes.py` and `rules/rulebook.py`.
"""
