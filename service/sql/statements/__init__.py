"""Turns SQL statements into structured queries: SELECT, FROM, GROUP BY, ORDER BY, derived tables, UNION, join hints.
Columns are resolved and typed later, in `service.sql.resolve`.
Start with `query.py`, then `select.py`.
"""
