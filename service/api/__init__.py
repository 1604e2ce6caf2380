"""HTTP: the application, its routes, authentication, middleware and errors as problem details.
Use cases are in `jobs`, `streams` and `keys`; no SQL statement and no business rule belongs here.
Start with `app.py`, then read `jobs.py`, the routes of jobs.
The specification, openapi.yaml, is made by `openapi.py`, which calls `compact_schemas.py`, `shared_components.py`,
`examples.py` and `openapi_yaml.py`.
"""
