"""Plans and runs jobs: the Celery application, the worker's metrics, and the packages of the worker.
Requests, validation and storage are in `service`, which never imports this package.
Start with `celery_app.py`, which builds the worker, then `process/worker.py` and `process/job_runner.py`.
"""
