"""The only SQL statements of Evenkeel: tables, transactions, and functions that read and write rows.
HTTP, files and decisions of use cases do not belong here; only `Database.write` commits.
Start with `tables.py` and `session.py`, then `jobs.py`, `attempts.py`, `transitions.py` and `leases.py`.
"""
