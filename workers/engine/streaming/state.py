"""How Spark keeps a stream's state: the properties of the session that a streaming query is started from.

A query takes them up when it starts; most are part of its checkpoint from then on, whatever a later session says.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from service.spec.options import StateProvider

_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
_PROVIDERS = {
    StateProvider.ROCKSDB: f"{_PACKAGE}.RocksDBStateStoreProvider",
    StateProvider.MEMORY: f"{_PACKAGE}.HDFSBackedStateStoreProvider",
}

_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer"
_PER_BATCH_RULES = ("PropagateEmptyRelation", "ConvertToLocalRelation")
"""Rules that make another plan of a mini-batch to which a source brings nothing. What is left of a union is then one of
its branches, whose constants Spark folds into the aggregate: calls that differ in the union become one, and the rows of
the state are read with other calls than they were written with. Spark's own check compares numbers and types alone.
"""

_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

_EVERY_STREAM = {
    "spark.sql.optimizer.excludedRules": ",".join(f"{_OPTIMIZER}.{rule}" for rule in _PER_BATCH_RULES),
    # What the micro-batches write is read by others than Spark; INT96 ends in the year 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A replayed mini-batch starts from the state before it: two versions at least.
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stopTimeout": "20s",
    # Spark's own choice starts a process (chmod) for most files that it makes or renames, where Hadoop has no native
    # library: a third of what a small mini-batch takes. Neither is more atomic on a file system of this machine's.
    "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
    # The file system keeps checksums of its own: a second file for each.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "100",
    "spark.sql.streaming.metricsEnabled": "false",
}

_ROCKSDB = {
    # Each mini-batch writes what it changed, not the files of the store.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Counting the rows of a store costs a look before every write, which makes it one and a half times as slow.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    # All stores of a process share one bound: they live outside of the JVM's heap.
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    # Of files that are read again and again; 8 MB by default.
    "spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB": "128",
    # Files of the state carry the run that wrote them, and the commit log tells which are valid: two drivers at one
    # checkpoint cannot mix theirs.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
}

_MEMORY_BOUND = "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB"


@dataclass(frozen=True)
class StateOptions:
    """`partitions` are fixed by the first mini-batch of a checkpoint; `memory_mb` bounds RocksDB in a process."""

    provider: StateProvider
    partitions: int
    memory_mb: int = 500


def prepare_session(session: SparkSession, options: StateOptions) -> None:
    """Sets what streaming queries that are started from `session` take up, whatever it was prepared for before."""
    for name in (*_ROCKSDB, _MEMORY_BOUND):
        session.conf.unset(name)
    properties = {
        **_EVERY_STREAM,
        "spark.sql.shuffle.partitions": str(options.partitions),
        "spark.sql.streaming.stateStore.providerClass": _PROVIDERS[options.provider],
    }
    if options.provider is StateProvider.ROCKSDB:
        properties |= _ROCKSDB
        properties[_MEMORY_BOUND] = str(options.memory_mb)
    for name, value in properties.items():
        session.conf.set(name, value)
