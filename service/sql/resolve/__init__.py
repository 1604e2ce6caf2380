"""Name resolution: a structured query and the schemas of its tables in, a bound query out.
What the settings or the mode of a job forbid is checked in `service.sql.checks`.
Start with `bound.py` for the result and `binder.py` for the way to it.
"""
