"""Queries over streams: their plans, state, sources, mini-batches and sinks.
Leases, fencing and supervision of a running stream are in `workers.streams`.
Start with `engine.py`, then `stream_plan.py` (what the state keeps) and `query.py`.
"""
