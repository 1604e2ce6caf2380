"""The SQL compiler: turns SQL text or a structured query into a bound query, with resolved names and types.
It uses no files, no database and no Spark. Plans and optimizer rules are in `workers.engine`.
Start with `compile.py`, which calls `parser.py`, `statements`, `resolve` and `checks`, in this order.
`parameters.py` checks the values of parameters and makes literals of them; `service.contract.parameters` has their
form in a job.
"""
