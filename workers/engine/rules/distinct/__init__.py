"""Rules for DISTINCT aggregates, their rewrites, and the costs of all methods to run an aggregate.
Joins are in `joins` and `eager`; two-phase aggregates without DISTINCT are in `two_phase_aggregate.py`.
Start with `methods.py`, which compares the methods, then the rule `split_distinct_aggregate.py`.
"""
