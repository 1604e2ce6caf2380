"""Checks of a bound query: forced settings that cannot apply, and queries that streaming jobs cannot run.
Names and types are checked earlier, in `service.sql.resolve`.
Start with `settings.py`, or with `streaming.py` for streaming jobs.
"""
