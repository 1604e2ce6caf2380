"""One running stream: start, supervision, fencing, input files, lookup tables, backlog and metrics.
Query plans, state, mini-batches and sinks are in `workers.engine.streaming`.
Start with `runner.py`, which starts a stream, then `attempt.py` and `supervisor.py`.
"""
