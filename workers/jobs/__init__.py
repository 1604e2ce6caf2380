"""One attempt at a job: lease, planning thread, cancellation, outcome, result directories and metrics.
Streams are in `workers.streams`; `workers.process.job_runner` decides which of both runs a job.
Start with `attempt.py`, the state of an attempt, then `planning.py` and `outcome.py`.
"""
