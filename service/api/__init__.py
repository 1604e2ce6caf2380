"""HTTP: the application, its routes, authentication, middleware and errors as problem details.
Use cases are in `jobs`, `streams` and `keys`; no SQL statement and no business rule belongs here.
Start with `app.py`, then read `jobs.py`, the routes of jobs.
"""
