"""Scalar expressions: the tree, reading it from sqlglot, type inference, functions, printing it as Spark SQL.
SELECT, FROM and GROUP BY are read in `service.sql.statements`.
Start with `nodes.py` for the tree, then `reader.py`, which decides what is accepted.
"""
