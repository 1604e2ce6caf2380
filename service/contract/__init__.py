"""The models that clients, the service and the workers exchange, with their limits and errors. No I/O.
Nothing here imports another package of ours; SQL text is read in `service.sql`.
Start with `job.py`, a job as a client posts it; `reports.py` has what the service answers about it.
"""
