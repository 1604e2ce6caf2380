"""Column types, the types of operations on them, and the types of aggregate functions.
Types of whole expressions are inferred in `service.sql.expressions.inference`.
Start with `data_types.py`.
"""
