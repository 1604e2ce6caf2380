"""The Python client, `import evenkeel`: requests, jobs, results and errors, with and without `asyncio`.
The commands of `service.cli` use it too. Nothing here imports the server, the database or a terminal, and only the
packages of its own `pyproject.toml` are needed. Imports are relative, because the distributions contain it as
`evenkeel.client`. Start with `client.py`; `exchange.py` explains how one routine serves both kinds of connection.
"""
