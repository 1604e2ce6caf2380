"""Use cases of jobs and workers: submit, explain, read, cancel, stop, resume and delete. No FastAPI.
SQL statements are in `service.store`, streams of posted rows in `service.streams`.
Start with `submit_job.py`; the models of the API's responses are in `views.py`.
"""
