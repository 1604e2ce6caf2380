"""The SQL compiler: SQL text or a structured query in, a query with resolved names and types out.
No files, no database and no Spark; plans and optimizer rules are in `workers.engine`.
Start with `compile.py`: parser, `statements`, `resolve` and `checks` are called from there, in this order.
"""
