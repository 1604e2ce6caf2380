"""Where the rows of a mini-batch are committed, once each: managed table, Delta, PostgreSQL, files.
Writing the staged Parquet files is in `micro_batch.py`; `workers.streams.runner` chooses a job's sink.
Start with `base.py`, the interface and its guarantees, then `managed.py`.
"""
