"""The demo: real flights are aggregated through a service of its own, and results are compared with pandas.
The command itself is in `service.cli.start`.
Start with `course.py`; `data.py` has the tables and the jobs.
"""
