"""The REST service: accepts, validates, stores and reports jobs.
It does not plan or run jobs and never imports `workers` or pyspark; tasks are sent to workers by name.
Start with `api/app.py` for the HTTP application and `jobs/submit_job.py` for the way of a job.
"""

from importlib.metadata import version

__version__ = version("evenkeel")
