"""The models that clients, the API and the workers exchange, with their limits and errors.
No I/O and no imports of other packages of this project; SQL text is parsed in `service.sql`.
Start with `job.py` (a job as a client posts it), then `reports.py` (what the API returns about it).
"""
