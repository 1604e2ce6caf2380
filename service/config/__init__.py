"""Settings from the environment, properties of Spark, and helpers for threads, child processes and Java.
Settings of one job are in `service.contract.options`.
Start with `settings.py`; `client.py` is separate so that the commands of the API load quickly.
"""
