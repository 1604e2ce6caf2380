"""Plan nodes as frozen values, and the functions that all layers use: traversal, validation, text and SQL.
Rewrites belong to their rule in `rules`, estimates to `statistics`. Nothing here imports Spark.
Start with `nodes.py`, then `builder.py` (query to plan) and `aggregates.py` (partial and final calls).
"""
