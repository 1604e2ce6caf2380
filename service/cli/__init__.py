"""The command `evenkeel`. Modules of commands import what they need when they run, so that help is instant.
Requests to the API are in `service.client`; use cases of the server are in `jobs`, `keys` and `backup`.
Start with `main.py`, which lists all commands; `start.py` has `up`, `serve`, `worker` and `demo`.
"""
