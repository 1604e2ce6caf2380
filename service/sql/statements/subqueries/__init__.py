"""Replaces subqueries and LATERAL queries by joins. Start with `joined.py`, for the expressions of a SELECT."""
