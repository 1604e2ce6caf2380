"""The statistics and estimates of the optimizer: table sizes, key sketches, cardinality, selectivity, partitioning.
Costs belong to the rules that compare them; code that reads files is in `workers.engine.spark`.
Start with `model.py`, the values, then `cardinality.py`.
"""
