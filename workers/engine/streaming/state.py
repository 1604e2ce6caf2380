"""How Spark keeps a stream's state: the properties of the session that a streaming query is started from.

A query takes them up when it starts; most are part of its checkpoint from then on, whatever a later session says.

What a stream's state looks like on disk, as far as a later run must agree with it.

Spark compares numbers and types of the columns of a state when it opens it, and reads whatever fits. Two plans may keep
different things in columns of the same types; so the layout of a state is stored with its job, and a run that would
keep another one is told before it touches anything.

How the changes of a stream's state are spread over its partitions, by the files that each mini-batch leaves.

    <checkpoint>/commits/<mini-batch>                               which of the files below are its own
    <checkpoint>/state/<operator>/_metadata/metadata                the operator's name
    <checkpoint>/state/<operator>/<partition>/[<store>/]<version>_<id>.changelog     RocksDB
    <checkpoint>/state/<operator>/<partition>/[<store>/]<version>.delta              in memory

A version is that of the mini-batch and one more. A file holds the keys that the mini-batch wrote or removed, with their
values, and is compressed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from service.contract.options import StateProvider
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.streaming.stream_plan import StreamPlan

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


VERSION = 1
"""Grows when streams are run in a way that cannot go on from state that was written before by the same plan."""

_TEXT = 2
"""Grows when the same plan gets another text."""

_WORD = re.compile(r"\w+|[^\w\s()]")

_MEANINGS = {
    "version": "the state format of this release",
    "shape": "what the state holds",
    "streams": "the streams and their columns",
    "columns": "the columns of the result",
    "keys": "the columns that identify groups",
    "plan": "the plan",
    "provider": "state.provider",
    "partitions": "state.partitions",
    "output": "output",
}


@dataclass(frozen=True)
class Difference:
    """One thing that is not as it was when the state was made."""

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.what} was {self.before} when the state was made, and is {self.after}"


def layout_of(
    plan: StreamPlan, streams: frozenset[str], *, provider: str, partitions: int, output: str
) -> dict[str, Any]:
    """The layout as JSON values. `streams` are aliases."""
    scans = sorted({node for node in walk_up(plan.node) if isinstance(node, Scan) and node.alias in streams}, key=str)
    return {
        "version": VERSION,
        "shape": plan.shape.value,
        "streams": [
            {"table": scan.table, "columns": [f"{name} {field.type}" for field, name in scan.columns]} for scan in scans
        ],
        "columns": [f"{field.name} {field.type}" for field in plan.columns],
        "keys": None if plan.keys is None else list(plan.keys),
        "plan": text_of(plan.node),
        "text": _TEXT,
        "provider": provider,
        "partitions": partitions,
        "output": output,
    }


def differences(before: dict[str, Any], after: dict[str, Any]) -> tuple[Difference, ...]:
    """What is not as it was, what the caller can set last; empty where the state can be used."""
    if before.get("text") != _TEXT:
        # Earlier versions wrote expressions with other parentheses and names of functions in capitals.
        before, after = ({**layout, "plan": _words(str(layout.get("plan")))} for layout in (before, after))
    found = (key for key in _MEANINGS if before.get(key) != after.get(key))
    return tuple(Difference(_MEANINGS[key], _told(before.get(key)), _told(after.get(key))) for key in found)


def _words(plan: str) -> str:
    """The words of each line of a plan in an order that the line's form does not change."""
    return "\n".join(" ".join(sorted(_WORD.findall(line.casefold()))) for line in plan.splitlines())


def _told(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 and "\n" not in text else "another one"


_HEADER_LINES = 1


@dataclass(frozen=True)
class StateChanges:
    """What a mini-batch changed in the state of one operator: the bytes of each partition's changes, in order."""

    operator: str
    bytes: tuple[int, ...]

    @property
    def median_bytes(self) -> float:
        """Of the partitions."""
        return median(self.bytes)

    @property
    def skew(self) -> float | None:
        """The largest partition's changes by the median one's; None where half of them have none."""
        return max(self.bytes) / self.median_bytes if self.median_bytes else None


def changes_of(checkpoint: Path, batch_id: int) -> tuple[StateChanges | None, ...]:
    """Of a committed mini-batch, by operator in the order of their numbers; None in the place of one whose files are
    gone, all or some.

    A few microseconds for each partition. Raises OSError and ValueError for a checkpoint that makes no sense.
    """
    lines = (checkpoint / "commits" / str(batch_id)).read_text().splitlines()[_HEADER_LINES:]
    own: dict[str, list[list[str]]] = (json.loads(lines[0]).get("stateUniqueIds") or {}) if lines else {}
    found: list[StateChanges | None] = []
    for operator in _numbered(checkpoint / "state"):
        partitions = _numbered(operator)
        ids = own.get(operator.name)
        sizes = [
            _size(partition, [f"{batch_id + 1}_{one}.changelog" for one in ids[int(partition.name)]])
            if ids is not None and int(partition.name) < len(ids)
            else _size(partition, [f"{batch_id + 1}.delta", f"{batch_id + 1}.changelog"])
            for partition in partitions
        ]
        known = [size for size in sizes if size is not None]
        is_whole = bool(known) and len(known) == len(sizes)
        found.append(StateChanges(_name(operator), tuple(known)) if is_whole else None)
    return tuple(found)


def bytes_of_changes(checkpoint: Path, batch_id: int) -> tuple[int | None, ...]:
    """What the checkpoint holds of each operator's changes up to a mini-batch, compressed; None where it has no file.

    In the order of the operators' numbers. RocksDB keeps a new state in memory: until it writes files of its own,
    after ten mini-batches or more, these changes are all that the state is restored from. Raises OSError.
    """
    return tuple(_bytes_until(operator, batch_id + 1) for operator in _numbered(checkpoint / "state"))


def _bytes_until(operator: Path, last: int) -> int | None:
    largest: dict[tuple[Path, int], int] = {}
    for path in operator.rglob("*.changelog"):
        version = path.name.partition(".")[0].partition("_")[0]
        if version.isdecimal() and int(version) <= last:
            # A mini-batch that was repeated may have left a file of each try: one of them counts.
            place = (path.parent, int(version))
            largest[place] = max(largest.get(place, 0), path.stat().st_size)
    return sum(largest.values()) if largest else None


def _numbered(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))


def _size(partition: Path, names: list[str]) -> int | None:
    """The bytes of those of the files that are there, in the partition or a store of it; None where none is."""
    sizes = [path.stat().st_size for path in _there(partition, names)]
    return sum(sizes) if sizes else None


def _there(partition: Path, names: list[str]) -> Iterator[Path]:
    found = [path for name in names if (path := partition / name).exists()]
    # The stores of a join, each in a directory of its own.
    yield from found or (path for name in names for path in partition.glob(f"*/{name}"))


def _name(operator: Path) -> str:
    lines = (operator / "_metadata" / "metadata").read_text().splitlines()[_HEADER_LINES:]
    return str(json.loads(lines[0])["operatorInfo"]["operatorName"])
