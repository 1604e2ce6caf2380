"""The only SQL statements of Evenkeel: tables, transactions, and functions that read and write rows.
HTTP, files and decisions of use cases do not belong here; `Database.write` alone commits.
Start with `tables.py` and `session.py`, then `jobs.py` and `leases.py`.
"""
