"""Settings of Hadoop in the driver's JVM which make small jobs and mini-batches faster. They change no result.

Hadoop has a thousand properties by default. Spark serializes them for each reading of files, for each state of a
mini-batch and for each task of a write: 40 ms on a busy machine. Two thirds belong to YARN and MapReduce, which nothing
here uses.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark import SparkContext

_UNUSED = frozenset({"yarn-default.xml", "mapred-default.xml"})
_USED = ("mapreduce.outputcommitter.", "mapreduce.fileoutputcommitter.")
"""Beginnings of the names of properties that Spark's writes read."""


def prepare_hadoop(context: SparkContext) -> None:
    """Changes the settings of the JVM of `context`. Properties that Hadoop's files or Spark's settings set remain."""
    jvm: Any = context._jvm
    configuration = context._jsc.hadoopConfiguration()
    if not str(context.master).startswith("yarn"):
        _remove_unused_defaults(jvm, configuration)
    # State files have checksums of their own: those of RocksDB, ZIP and LZ4. The logs of a checkpoint have none. Hadoop
    # starts a process (chmod) for each file that it creates, also for a checksum file. Checksum files that exist are
    # still verified.
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(configuration).setWriteChecksum(False)


def _remove_unused_defaults(jvm: Any, configuration: Any) -> None:
    # Loads the defaults. They would be loaded again with the first class that uses them.
    jvm.org.apache.hadoop.mapreduce.util.ConfigUtil.loadResources()
    text = jvm.java.io.StringWriter()
    jvm.org.apache.hadoop.conf.Configuration.dumpConfiguration(configuration, text)
    for each in json.loads(text.toString())["properties"]:
        if each["resource"] in _UNUSED and not each["key"].startswith(_USED):
            configuration.unset(each["key"])
