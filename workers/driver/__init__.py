"""The Spark driver of a worker: session, configuration, local directories, executors and cluster checks.
What runs on the driver is in `workers.engine`; the thread that checks the driver is in `workers.process`.
Start with `session.py`, which starts and replaces the driver, then `driver.py`, which jobs use.
"""
