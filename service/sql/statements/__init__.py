"""SQL statements as structured queries: SELECT, FROM, GROUP BY, ORDER BY, subqueries, UNION ALL and join hints.
Columns are resolved and typed later, in `service.sql.resolve`.
Start with `query.py`, then `select.py`.
"""
