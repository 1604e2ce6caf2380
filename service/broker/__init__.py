"""Celery and Redis: configuration, TLS, transports, connection errors, and sending of job ids to workers.
The tasks are in `workers`; a job is stored in the database, a message contains only its id.
Start with `configuration.py`, then `dispatch.py`.
"""
