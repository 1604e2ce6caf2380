"""Scalar expressions: the tree, reading it from sqlglot, limits of its size, rewrites, printing it as Spark SQL.
SELECT, FROM and GROUP BY are read in `service.sql.statements`; types are inferred in `service.sql.types`.
Start with `nodes.py` for the tree, then `reader.py`, which decides what is accepted.
"""
