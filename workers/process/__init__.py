"""The worker process: its threads, the jobs that it takes, heartbeats, recovery of lost jobs, and shutdown.
How one batch job runs is in `workers.jobs`, how one stream runs in `workers.streams`.
Start with `worker.py`, which starts everything, then `job_runner.py`, which runs a job from claim to end.
"""
