"""How much memory a task has, as far as Spark's configuration tells."""

from __future__ import annotations

from pyspark.sql import SparkSession

_RESERVED = 300 << 20
"""What Spark keeps of every heap for itself (`RESERVED_SYSTEM_MEMORY_BYTES`)."""
_FRACTION = "0.6"
"""`spark.memory.fraction`: what execution and storage share of the rest."""
_DRIVER_PARTS = 8
"""A broadcast is gathered and hashed on the driver, which has other jobs: a task counts with so small a part of it."""


def is_in_driver(master: str) -> bool:
    """Whether tasks run in the driver's JVM. `local-cluster[…]` starts executors of their own.

    >>> is_in_driver("local[4]"), is_in_driver("local"), is_in_driver("local-cluster[2,1,1024]")
    (True, True, False)
    """
    return master == "local" or master.startswith("local[")


def task_memory(session: SparkSession, slots: int) -> int:
    """Bytes that a task may take while all of its executor's slots are taken; never below one.

    In local mode the driver's heap is the executor's. Where the cores of an executor are not configured, all `slots`
    are taken to be in one: the standalone master gives a worker's cores to a single executor.
    """
    context = session.sparkContext
    jvm = context._jvm
    # Not the context's configuration: to get it copies every setting of the driver, one call after the other.
    conf = session.conf
    driver = int(jvm.java.lang.Runtime.getRuntime().maxMemory()) if jvm is not None else 1 << 30
    fraction = float(conf.get("spark.memory.fraction", _FRACTION) or _FRACTION)
    if is_in_driver(str(context.master)):
        return max(1, round((driver - _RESERVED) * fraction / slots))
    told = conf.get("spark.executor.memory", "1g") or "1g"
    heap = int(jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(told)) if jvm is not None else 1 << 30
    cores = int(conf.get("spark.executor.cores", str(slots)) or slots)
    return max(1, round(min((heap - _RESERVED) * fraction / cores, driver / _DRIVER_PARTS)))
