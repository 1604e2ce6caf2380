"""The demo: a separate service runs jobs on real flight data, and their results are compared with pandas.
The command itself is in `service.cli.start`.
Start with `course.py`; `data.py` has the tables and the jobs.
"""
