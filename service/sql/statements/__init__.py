"""Turns SQL statements into structured queries. Columns are resolved and typed later, in `service.sql.resolve`.

`query.py` compiles nested queries and set operations. Below it, each package uses those after it: `subqueries/`,
`clauses/` (one SELECT), `tables/` (FROM).
"""
