"""Where the rows of a mini-batch are committed, once each: managed table, Delta, PostgreSQL, files.
Writing the staged Parquet files is in `query.py`; `workers.streams.runner` chooses a job's sink.
Start with `base.py`, the interface and its guarantees, then `managed.py`.
"""
