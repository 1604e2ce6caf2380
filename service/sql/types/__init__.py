"""Column types, type inference of expressions, the supported scalar functions, and the types of aggregate functions.
How expressions are represented and read is in `service.sql.expressions`.
Start with `inference.py` for the type of an expression, or `data_types.py` for the types themselves.
"""
