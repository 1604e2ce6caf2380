"""The statistics and estimates of the optimizer: table sizes, hot keys, cardinality, selectivity, partitioning.
Costs belong to the rules that compare them; code that reads files is in `workers.engine.spark`.
Start with `model.py`, the values, then `cardinality.py`; `hot_keys.py` finds the hot keys of a sample.
"""
