"""Name resolution: turns a structured query and the schemas of its tables into a bound query.
Whether the job's settings and mode allow the query is checked in `service.sql.checks`.
Start with `bound.py` for the result, then `binder.py`.
"""
