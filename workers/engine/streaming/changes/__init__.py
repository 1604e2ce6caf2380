"""Streams whose results change: each mini-batch computes the changes of every operator from the changes of its inputs.

`plan` plans the steps, `steps` has the operators with a state, `state_files` is the state, `run` runs mini-batches.
"""
