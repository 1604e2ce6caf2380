"""The HTTP client of the commands: requests, input files, responses, and output on a terminal.
The commands are in `service.cli`; nothing here imports the server or the database.
Start with `session.py`, then `operations.py`, which has one method for each operation of the API.
"""
