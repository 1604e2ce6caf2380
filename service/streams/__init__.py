"""Use cases of streams of posted rows: declare, append, read, list and delete. Streaming jobs, which read such streams,
are in `service.jobs`. Start with `append_rows.py`.
"""
