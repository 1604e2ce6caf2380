"""Attempts in processes of their own, each with a Spark driver of its own: the process, and the worker's side of it.
How an attempt runs is in `workers.process.batch_runner`, and which jobs may begin in `workers.jobs.slots`.
Start with `driver_processes.py`, which starts and ends the processes, then `__main__.py`, which runs in them.
"""
