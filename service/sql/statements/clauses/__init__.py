"""One SELECT: its columns, GROUP BY, ORDER BY, LIMIT, DISTINCT. Start with `select.py`."""
