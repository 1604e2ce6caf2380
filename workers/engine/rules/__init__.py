"""The optimizer's rules; `distinct`, `eager` and `joins` hold a rule together with its rewrite and its costs.
Estimates of rows are in `statistics`; applying rules and recording the result is in `planner.py`.
Start with `rulebook.py`, the ordered list of all rules, then `rule.py`, the interface.
"""
