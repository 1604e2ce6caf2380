"""Streams whose results change: each mini-batch computes the changes of every operator from the changes of its inputs.

`plan` plans the steps, and `steps` and `aggregates` have the operators with a state. `state_files` is the state,
`state_tasks` are the tasks that read and write it, and `run` runs mini-batches.
"""
