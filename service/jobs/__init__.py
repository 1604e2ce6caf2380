"""Use cases of jobs and workers: submit, explain, read, cancel, stop, resume, delete. No FastAPI.
SQL statements are in `service.store`, posted streams in `service.streams`.
Start with `submit_job.py`; `views.py` has a job as clients see it.
"""
