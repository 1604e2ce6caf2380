"""The files of tables: data roots, listings, local and remote reads, and schemas. Results of jobs are in
`service.results`, formats of posted rows in `service.ingest`. Start with `files.py`, which finds the files of a table.
"""
