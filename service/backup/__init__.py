"""Backup and restore of the database and the result files. The commands are in `service.cli.backup`; removal of old
jobs and results is in `service.results.purge`. Start with `backup.py`.
"""
